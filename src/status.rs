//! What the server knows of a lock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::store::verbs::inspect::{Inspected, QueueEntry};

/// Who holds a lock and who waits, as of one instant on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The holder, if any.
    pub holder: Option<Holder>,
    /// Those who wait, first in line first; at most 100.
    pub queue: Vec<Waiter>,
    /// How many wait, including those beyond the first 100. Exact among the first 512; behind those, tickets of clients
    /// that died count until the server comes to them.
    pub waiters: u64,
    /// Nobody is served for so long, although the lock may be free: the server was started anew or has lost its data,
    /// and this client has [`strict_restart`](crate::LockClientBuilder::strict_restart). `None`: the server serves.
    pub frozen_for: Option<Duration>,
}

/// A holder, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `<client id>:<number>`
    pub owner: String,
    /// Its holds, including nested ones.
    pub holds: u32,
    /// Its fencing token.
    pub token: u64,
    /// The label of its client, or that of the call ([`FairLock::labelled`](crate::FairLock::labelled)).
    pub label: String,
    /// Since when it holds the lock, by the server's clock.
    pub since: SystemTime,
    /// When its lease ends unless it is renewed.
    pub lease_left: Duration,
}

/// A waiter, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// 1 is next.
    pub position: usize,
    /// `<client id>:<number>`
    pub owner: String,
    /// The label of its client, or that of the call.
    pub label: String,
    /// When it loses its place unless the server hears from it, on this machine's clock.
    pub deadline: Instant,
}

impl LockStatus {
    pub(crate) fn new(asked: Instant, inspected: Inspected) -> Self {
        let holder = (!inspected.owner.is_empty()).then(|| Holder {
            owner: inspected.owner,
            holds: inspected.holds,
            token: inspected.token,
            label: inspected.label,
            since: UNIX_EPOCH + inspected.since,
            lease_left: inspected.lease_left.unwrap_or_default(),
        });
        let waiter = |(index, entry)| Waiter::new(index + 1, asked, entry);
        let queue = inspected.queue.into_iter().enumerate().map(waiter).collect();
        Self { holder, queue, waiters: inspected.waiters, frozen_for: inspected.frozen_for }
    }
}

impl Waiter {
    fn new(position: usize, asked: Instant, entry: QueueEntry) -> Self {
        Self {
            position,
            owner: entry.ticket.rsplit_once(':').map_or_else(String::new, |(owner, _)| owner.to_owned()),
            label: entry.label,
            deadline: asked + entry.deadline_in,
        }
    }
}
