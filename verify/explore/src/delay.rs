//! What keeps a lock from its live waiters, and for how long it may: P6, P7 and P9 each have a bound. The check runs
//! while nothing fails but what these promises are about: messages are lost, or processes end.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock_proto::time::Instant;

use crate::caller::{FIRST_LEASE, LEASE, POLL, WAITER_TTL};

/// The promises allow 100 ms for the network. Here a round trip takes 40 ms.
const SLACK: Duration = Duration::from_millis(100);

/// A holder and any number of waiters have died, and a message is lost.
const AT_MOST: Duration =
    Duration::from_millis((LEASE.as_millis() + WAITER_TTL.as_millis() + POLL.as_millis()) as u64).saturating_add(SLACK);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// A waiter does not know of its grant.
    Unheard(u64),
    /// Its owner is dead, or about to release it.
    DeadHolder { token: u64, lease_ends: Instant },
    /// The lock is free.
    Unserved,
}

/// The present hindrance of each name, and since when it lasts.
#[derive(Default)]
pub struct Delays {
    present: BTreeMap<usize, Present>,
    /// The last token of each name, and the time of its grant.
    granted: BTreeMap<usize, (u64, Instant)>,
}

#[derive(Clone, Copy)]
struct Present {
    hindrance: Hindrance,
    since: Instant,
    /// Since when there has been any hindrance.
    delayed: Instant,
}

impl Delays {
    pub fn granted(&mut self, name: usize, token: u64, now: Instant) {
        let last = self.granted.entry(name).or_insert((token, now));
        if last.0 != token {
            *last = (token, now);
        }
    }

    pub fn look(&mut self, name: usize, hindrance: Option<Hindrance>, now: Instant) -> Option<String> {
        let Some(hindrance) = hindrance else {
            self.present.remove(&name);
            return None;
        };
        let before = self.present.get(&name).copied();
        let same = before.filter(|before| before.hindrance.is_same(hindrance));
        let since = same.map_or(now, |before| before.since);
        let delayed = before.map_or(now, |before| before.delayed);
        self.present.insert(name, Present { hindrance, since, delayed });
        let granted = self.granted.get(&name).map_or(now, |(_, granted)| *granted);
        let judged = [hindrance.judge(since, granted, now), ("P6", now.since(delayed), AT_MOST)];
        let (promise, lasts, _) = judged.into_iter().find(|(_, lasts, bound)| lasts > bound)?;
        Some(format!("{promise}: name {name} waits for {lasts:?} since {since:?}: {hindrance:?}"))
    }
}

impl Hindrance {
    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::DeadHolder { token: one, .. }, Self::DeadHolder { token: other, .. }) => one == other,
            (one, other) => one == other,
        }
    }

    /// The promise, how long the hindrance lasts, and how long it may last.
    fn judge(self, since: Instant, granted: Instant, now: Instant) -> (&'static str, Duration, Duration) {
        match self {
            Self::Unheard(_) => ("P9", now.since(since), POLL + SLACK),
            Self::DeadHolder { lease_ends, .. } => ("P7", now.since(lease_ends.max(granted + FIRST_LEASE)), SLACK),
            Self::Unserved => ("P3", now.since(since), SLACK),
        }
    }
}
