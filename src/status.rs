//! What the server knows of a lock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::store::runner::Answer;
use crate::store::verbs::inspect::{Inspected, QueueEntry};

/// How many waiters a status shows.
pub(crate) const WAITERS_SHOWN: u32 = 100;

/// Who holds a lock and who waits, as of one instant on the server. All times are by the server's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockStatus {
    /// That instant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::time"))]
    pub at: SystemTime,
    /// The holder, if any.
    pub holder: Option<Holder>,
    /// Those who wait, first in line first; at most 100.
    pub queue: Vec<Waiter>,
    /// How many wait, including those beyond the first 100. Exact among the first 256; behind those, tickets of clients
    /// that died count until the server comes to them.
    pub waiters: u64,
    /// Nobody is served for so long, although the lock may be free: the server was started anew or has lost its data,
    /// and this client has [`strict_restart`](crate::LockClientBuilder::strict_restart). `None`: the server serves.
    #[cfg_attr(feature = "serde", serde(rename = "frozen_for_ms", serialize_with = "crate::wire::millis_if_any"))]
    pub frozen_for: Option<Duration>,
}

/// A holder, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    /// Since when it holds the lock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::time"))]
    pub since: SystemTime,
    /// How long that is.
    #[cfg_attr(feature = "serde", serde(rename = "held_for_ms", serialize_with = "crate::wire::millis"))]
    pub held_for: Duration,
    /// When its lease ends unless it is renewed.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::time"))]
    pub lease_until: SystemTime,
    /// How long that is.
    #[cfg_attr(feature = "serde", serde(rename = "lease_left_ms", serialize_with = "crate::wire::millis"))]
    pub lease_left: Duration,
}

/// A waiter, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiter {
    /// 1 is next.
    pub position: usize,
    /// `<client id>:<number>`
    pub owner: String,
    /// The label of its client, or that of the call.
    pub label: String,
    /// When it loses its place unless the server hears from its client.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::time"))]
    pub deadline: SystemTime,
}

impl LockStatus {
    pub(crate) fn new(answer: Answer<Inspected>) -> Self {
        let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(answer.server_ms).unwrap_or_default());
        let inspected = answer.body;
        let holder = (!inspected.owner.is_empty()).then(|| {
            let since = UNIX_EPOCH + inspected.since;
            let lease_left = inspected.lease_left.unwrap_or_default();
            Holder {
                owner: inspected.owner,
                holds: inspected.holds,
                token: inspected.token,
                label: inspected.label,
                since,
                held_for: at.duration_since(since).unwrap_or_default(),
                lease_until: at + lease_left,
                lease_left,
            }
        });
        let waiter = |(index, entry)| Waiter::new(index + 1, at, entry);
        let queue = inspected.queue.into_iter().enumerate().map(waiter).collect();
        Self { at, holder, queue, waiters: inspected.waiters, frozen_for: inspected.frozen_for }
    }
}

impl Waiter {
    fn new(position: usize, at: SystemTime, entry: QueueEntry) -> Self {
        Self {
            position,
            owner: entry.ticket.rsplit_once(':').map_or_else(String::new, |(owner, _)| owner.to_owned()),
            label: entry.label,
            deadline: at + entry.deadline_in,
        }
    }
}
