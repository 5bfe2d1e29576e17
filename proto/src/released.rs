//! The names that this client released at a server a moment ago (R15).
//!
//! A server that takes over may lag a little: a replica that had not received a release, or a restart from an older
//! file. There the hold is back, without an owner to release it. So the client asks about these names after a
//! reconnect.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::keys::Keys;
use crate::time::Instant;

/// How far a server that takes over may lag. Replicas lag by milliseconds, an append-only file by a second.
pub const BEHIND_AT_MOST: Duration = Duration::from_secs(5);
/// The most names to keep. Only a client that releases more within that time forgets any. Those stale holds end with
/// their leases.
const NAMES: usize = 4096;

#[derive(Debug, Clone, Hash)]
pub struct Released {
    window: Duration,
    /// The last release of each name, by the lock key.
    names: BTreeMap<Arc<str>, (Instant, Arc<Keys>)>,
    /// In the order of their first release. A name with a later release goes to the end when its turn comes.
    ring: VecDeque<(Instant, Arc<str>)>,
}

impl Released {
    pub fn new(window: Duration) -> Self {
        Self { window, names: BTreeMap::new(), ring: VecDeque::new() }
    }

    /// The server has answered that a request, sent then, released everything of an owner at this name.
    pub fn note(&mut self, keys: &Arc<Keys>, sent: Instant) {
        self.forget_before(sent - self.window);
        match self.names.get_mut(&keys.lock) {
            Some((last, _)) => *last = sent.max(*last),
            None => {
                self.names.insert(keys.lock.clone(), (sent, keys.clone()));
                self.ring.push_back((sent, keys.lock.clone()));
            }
        }
    }

    fn forget_before(&mut self, oldest: Instant) {
        while self.ring.len() > NAMES || self.ring.front().is_some_and(|(noted, _)| *noted < oldest) {
            let Some((noted, lock)) = self.ring.pop_front() else { return };
            match self.names.get(&lock) {
                Some((last, _)) if *last > noted && *last >= oldest => self.ring.push_back((*last, lock)),
                _ => drop(self.names.remove(&lock)),
            }
        }
    }

    /// The time from which on the next server may not know a release, if the connection ended at `broke`.
    pub fn since_end(&self, broke: Option<Instant>) -> Instant {
        broke.map_or(Instant::default(), |broke| broke - self.window)
    }

    /// Looks at some names after `behind`, and returns those with a release since `since`, and the name to go on
    /// after. The keys give the order, which stays valid while other names come and go.
    pub fn since(&self, since: Instant, behind: &str, count: usize) -> (Vec<Arc<Keys>>, Option<Arc<str>>) {
        let bounds: (_, Bound<&str>) = (Bound::Excluded(behind), Bound::Unbounded);
        let some: Vec<_> = self.names.range::<str, _>(bounds).take(count).collect();
        let next = some.last().filter(|_| some.len() == count).map(|(lock, _)| Arc::clone(lock));
        let meant = some.into_iter().filter(|(_, (last, _))| *last >= since);
        (meant.map(|(_, (_, keys))| keys.clone()).collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keys(name: usize) -> Arc<Keys> {
        Arc::new(Keys::new("fairlock", &name.to_string()))
    }

    fn names(released: &Released, since: Instant) -> Vec<String> {
        released.since(since, "", usize::MAX).0.iter().map(|keys| keys.name.clone()).collect()
    }

    #[test]
    fn a_name_is_kept_for_the_window_after_its_last_release() {
        let (mut released, begun) = (Released::new(6 * SECOND), Instant::from_micros(60_000_000));
        released.note(&keys(1), begun);
        released.note(&keys(2), begun + SECOND);
        released.note(&keys(1), begun + 2 * SECOND);
        assert_eq!(names(&released, begun + 2 * SECOND), ["1"]);
        released.note(&keys(3), begun + 8 * SECOND);
        assert_eq!(names(&released, begun), ["1", "3"]);
    }

    #[test]
    fn the_latest_names_are_kept_in_bounded_memory() {
        let (mut released, begun) = (Released::new(SECOND), Instant::from_micros(60_000_000));
        for name in 0..3 * NAMES {
            // One name comes again and again, and takes no more room than the others.
            released.note(&keys(0), begun);
            released.note(&keys(name), begun);
        }
        let kept = names(&released, begun);
        assert!(kept.len() <= NAMES + 1 && kept.contains(&(3 * NAMES - 1).to_string()), "{}", kept.len());
    }
}
