//! The state of a lock on the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlock_proto::keys::UNITS;
use fairlock_proto::requests::inspect::{HolderEntry, Inspected, QueueEntry};

use crate::driver::tried::granted_at;
use crate::error::RequestError;
use crate::quorum::majority;
use crate::store::runner::Answer;

/// How many waiters a status shows.
pub(crate) const WAITERS_SHOWN: u32 = 100;

/// The holder and the queue of a lock at one instant on the server. All times are by the server's clock.
///
/// Several servers share no such instant, since each answers at its own time: then this is the state on which a
/// majority of them agrees, and [`servers`](Self::servers) has the answer of each.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockStatus {
    /// That instant; with several servers, the latest.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub at: SystemTime,
    /// The holder, if any. With several servers, the owner that holds the lock on a majority, with the greatest token
    /// that one of these servers reports: see [`is_known`](Self::is_known).
    pub holder: Option<Holder>,
    /// The waiters, first in line first; at most 100. With several servers, the waiters of the server that has the
    /// most.
    pub queue: Vec<Waiter>,
    /// How many wait, including those beyond the first 100. Exact among the first 256; after those, tickets of dead
    /// clients count until the server reaches them.
    pub waiters: u64,
    /// For how long the server grants no lock, not even a free one: it has restarted or lost its data, and this client
    /// has [`strict_restart`](crate::LockClientBuilder::strict_restart). `None`: the server, or a majority of several,
    /// grants locks.
    #[cfg_attr(feature = "serde", serde(rename = "frozen_for_ms", serialize_with = "crate::serialize::millis_if_any"))]
    pub frozen_for: Option<Duration>,
    /// The answer of each server, in the order of the servers passed to [`connect`](crate::LockClient::connect). With
    /// one server `serde` writes only the fields above.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_one"))]
    pub servers: Vec<ServerStatus>,
}

/// The state of a lock on one server.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerStatus {
    /// The URL of the server, without the password.
    pub address: String,
    /// Its answer, whose own `servers` is empty, or the reason why it did not answer.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::answer"))]
    pub answer: Result<LockStatus, RequestError>,
    /// The index of the same server under another address, if any; this one then does not count. Detected only with
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart).
    pub same_as: Option<usize>,
}

#[cfg(feature = "serde")]
fn is_one(servers: &[ServerStatus]) -> bool {
    servers.len() <= 1
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
    /// The label of the call ([`FairLock::labelled`](crate::FairLock::labelled)), or else of its client.
    pub label: String,
    /// When the hold began.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub since: SystemTime,
    /// How long it has held the lock.
    #[cfg_attr(feature = "serde", serde(rename = "held_for_ms", serialize_with = "crate::serialize::millis"))]
    pub held_for: Duration,
    /// When its lease ends, unless the client renews it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub lease_until: SystemTime,
    /// How long until then.
    #[cfg_attr(feature = "serde", serde(rename = "lease_left_ms", serialize_with = "crate::serialize::millis"))]
    pub lease_left: Duration,
    /// How many permits of a semaphore it has. 1 for a lock and a reader; a writer has all 1,024 units of a read-write
    /// lock.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_usual"))]
    pub weight: u32,
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
    /// The label of the call, or else of its client.
    pub label: String,
    /// When it loses its place, unless the server receives a request from its client before then.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub deadline: SystemTime,
    /// How many permits of a semaphore it waits for. 1 for a lock and a reader; a writer waits for all 1,024 units of a
    /// read-write lock.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_usual"))]
    pub weight: u32,
}

#[cfg(feature = "serde")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_usual(weight: &u32) -> bool {
    *weight == 1
}

/// The holders and the waiters of a semaphore at one instant on the server. All times are by the server's clock.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SemaphoreStatus {
    /// That instant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub at: SystemTime,
    /// The holders, in the order in which they got their permits; at most 100.
    pub holders: Vec<Holder>,
    /// How many hold permits, including those beyond the first 100.
    pub holding: u64,
    /// How many permits all holders have together.
    pub used: u64,
    /// The number set for all clients ([`set_permits`](crate::FairSemaphore::set_permits)). `None`: each client's own
    /// number counts.
    pub set_permits: Option<u32>,
    /// The numbers of permits that the clients of these holders and waiters use; more than one if clients differ.
    pub named_permits: Vec<u32>,
    /// The waiters, first in line first; at most 100.
    pub queue: Vec<Waiter>,
    /// How many wait, including those beyond the first 100; see [`LockStatus::waiters`].
    pub waiters: u64,
    /// See [`LockStatus::frozen_for`].
    #[cfg_attr(feature = "serde", serde(rename = "frozen_for_ms", serialize_with = "crate::serialize::millis_if_any"))]
    pub frozen_for: Option<Duration>,
}

/// The readers or the writer of a read-write lock, and the waiters, at one instant on the server. All times are by the
/// server's clock.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RwLockStatus {
    /// That instant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::time"))]
    pub at: SystemTime,
    /// The writer, if there is one.
    pub writer: Option<Holder>,
    /// The readers, in the order in which they began; at most 100.
    pub readers: Vec<Holder>,
    /// How many read, including those beyond the first 100.
    pub reading: u64,
    /// The waiters, first in line first; at most 100.
    pub queue: Vec<Waiter>,
    /// How many wait, including those beyond the first 100; see [`LockStatus::waiters`].
    pub waiters: u64,
    /// See [`LockStatus::frozen_for`].
    #[cfg_attr(feature = "serde", serde(rename = "frozen_for_ms", serialize_with = "crate::serialize::millis_if_any"))]
    pub frozen_for: Option<Duration>,
}

impl LockStatus {
    pub(crate) fn new(answer: Answer<Inspected>) -> Self {
        let (at, inspected) = (instant(&answer), answer.body);
        let holder = inspected.holders.into_iter().next().map(|entry| Holder::new(at, entry));
        let (queue, servers) = (waiters(at, inspected.queue), Vec::new());
        Self { at, holder, queue, waiters: inspected.waiters, frozen_for: inspected.frozen_for, servers }
    }

    /// The status on which these servers agree, or the error of one of them if none answers.
    pub(crate) fn together(servers: Vec<ServerStatus>) -> Result<Self, RequestError> {
        let answers = || servers.iter().filter_map(|server| server.answer.as_ref().ok());
        let Some(most) = answers().max_by_key(|answer| answer.waiters) else {
            let error = RequestError::most_telling(servers.into_iter().filter_map(|server| server.answer.err()));
            return Err(error.unwrap_or(RequestError::Closed));
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let holders = || answers().filter_map(|answer| answer.holder.as_ref());
        holders().for_each(|holder| *counts.entry(&holder.owner).or_default() += 1);
        let majority = majority(servers.len());
        let is_held = |holder: &&Holder| counts.get(holder.owner.as_str()).is_some_and(|count| *count >= majority);
        let mut frozen: Vec<_> = answers().map(|answer| answer.frozen_for.unwrap_or_default()).collect();
        frozen.sort_unstable();
        let frozen_for = frozen.get(majority - 1).or(frozen.last()).copied().filter(|left| !left.is_zero());
        let together = Self {
            at: answers().map(|answer| answer.at).max().unwrap_or(most.at),
            holder: holders().filter(is_held).max_by_key(|holder| holder.token).cloned(),
            queue: most.queue.clone(),
            waiters: most.waiters,
            frozen_for,
            servers: Vec::new(),
        };
        Ok(Self { servers, ..together })
    }

    /// Whether enough servers answered to know the holder. If not, `holder` is `None` even if the lock is held. Always
    /// true with one server.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// let client = fairlock::LockClient::builder().without_strict_restart().embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// servers[0].shut_down();
    /// assert!(lock.status().await?.is_known());
    /// servers[1].shut_down();
    /// assert!(!lock.status().await?.is_known());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.servers.iter().filter(|server| server.answer.is_ok()).count() >= majority(self.servers.len())
    }
}

impl Waiter {
    fn new(position: usize, at: SystemTime, entry: QueueEntry) -> Self {
        Self {
            position,
            owner: entry.ticket.rsplit_once(':').map_or_else(String::new, |(owner, _)| owner.to_owned()),
            label: entry.label,
            deadline: at + entry.deadline_in,
            weight: entry.share.weight,
        }
    }
}

impl Holder {
    fn new(at: SystemTime, entry: HolderEntry) -> Self {
        let since = granted_at(entry.since);
        Self {
            owner: entry.owner,
            holds: entry.holds,
            token: entry.token,
            label: entry.label,
            since,
            held_for: at.duration_since(since).unwrap_or_default(),
            lease_until: at + entry.lease_left,
            lease_left: entry.lease_left,
            weight: entry.share.weight,
        }
    }
}

impl SemaphoreStatus {
    pub(crate) fn new(answer: Answer<Inspected>) -> Self {
        let at = instant(&answer);
        let Inspected { holders, holding, used, set_limit: set_permits, waiters: waiting, frozen_for, queue } =
            answer.body;
        let shares = holders.iter().map(|holder| holder.share).chain(queue.iter().map(|entry| entry.share));
        let named_permits = BTreeSet::from_iter(shares.map(|share| share.limit)).into_iter().collect();
        let (holders, queue) = (holders.into_iter().map(|entry| Holder::new(at, entry)).collect(), waiters(at, queue));
        Self { at, holders, holding, used, set_permits, named_permits, queue, waiters: waiting, frozen_for }
    }
}

impl RwLockStatus {
    pub(crate) fn new(answer: Answer<Inspected>) -> Self {
        let at = instant(&answer);
        let Inspected { holders, holding, waiters: waiting, frozen_for, queue, .. } = answer.body;
        let holders = holders.into_iter().map(|entry| Holder::new(at, entry));
        let (mut writers, readers): (Vec<_>, Vec<_>) = holders.partition(|holder| holder.weight == UNITS);
        let reading = holding.saturating_sub(writers.len() as u64);
        let (writer, queue) = (writers.pop(), waiters(at, queue));
        Self { at, writer, readers, reading, queue, waiters: waiting, frozen_for }
    }
}

/// The server's time of an answer.
fn instant<T>(answer: &Answer<T>) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(answer.server_ms).unwrap_or_default())
}

fn waiters(at: SystemTime, queue: Vec<QueueEntry>) -> Vec<Waiter> {
    queue.into_iter().enumerate().map(|(index, entry)| Waiter::new(index + 1, at, entry)).collect()
}
