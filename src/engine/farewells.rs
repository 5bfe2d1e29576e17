//! The names that this client released a moment ago, and may have to release once more (R15).
//!
//! A server that takes over may be a little behind the one before: a replica that had not received a release, or a
//! restart from an older file. There the hold is back without an owner to release it, and its name stays blocked for a
//! whole lease. So the names are kept for a moment, and checked on the next connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::keys::Keys;

use crate::store::ServedKeys;
use crate::store::clock::now;
use crate::sync::Mutex;

/// How far a server that takes over may be behind. Replicas are behind by milliseconds, an append-only file by a
/// second.
const BEHIND_AT_MOST: Duration = Duration::from_secs(5);
/// Names kept in each of the two generations. Only a client that releases more than 1,000 names a second forgets any, and
/// those stale holds end with their leases.
const NAMES: usize = 4096;

pub struct Farewells {
    /// The time before the end of a connection was noticed that is kept.
    window: Duration,
    state: Mutex<ReleasedNames>,
}

struct ReleasedNames {
    /// When each lock key was last released. In two generations, so that no search for old entries is needed.
    young: HashMap<Arc<str>, Instant>,
    old: HashMap<Arc<str>, Instant>,
    /// When the young generation began.
    began: Instant,
    /// To be asked about on the present connection, until then. In order, so that the simulator can repeat a
    /// run.
    owed: BTreeMap<Arc<str>, Instant>,
    /// A task checks them.
    asking: bool,
}

impl Farewells {
    /// `noticed_within`: how long it takes to notice that a connection has ended.
    pub fn new(noticed_within: Duration) -> Self {
        let (young, old, owed) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        let state = ReleasedNames { young, old, began: now(), owed, asking: false };
        Self { window: BEHIND_AT_MOST + noticed_within, state: Mutex::new(state) }
    }

    /// A request that was sent then released what an owner of this client had at this lock, and was answered.
    pub fn note(&self, keys: &Keys, sent: Instant, is_connected: impl Fn(&str) -> bool) {
        let mut state = self.state.lock();
        if state.young.len() >= NAMES || sent >= state.began + self.window {
            state.begin_generation(sent, is_connected);
        }
        match state.young.get_mut(&keys.lock) {
            Some(last) => *last = sent.max(*last),
            None => drop(state.young.insert(keys.lock.clone(), sent)),
        }
    }

    /// A connection to the server of these locks is up again, after the one before `broke`; `None`: it is not
    /// known when. From now on they are owed, until `until`. True if a task has to be started that asks.
    pub fn owe(&self, keys: &ServedKeys, broke: Option<Instant>, until: Instant) -> bool {
        let mut state = self.state.lock();
        // From the end of the connection, not from now: what a long break kept from being asked is not older
        // for the server.
        let since = broke.and_then(|broke| broke.checked_sub(self.window));
        let ReleasedNames { young, old, owed, .. } = &mut *state;
        for (lock_key, noted) in young.iter().chain(&*old) {
            // Bounded, should one connection after the other end before it has an answer.
            if keys.contains(lock_key) && since.is_none_or(|since| *noted >= since) && owed.len() < 2 * NAMES {
                owed.insert(lock_key.clone(), until);
            }
        }
        !owed.is_empty() && !std::mem::replace(&mut state.asking, true)
    }

    /// The names to check. `None`: none is left, and the task that asks must end.
    pub fn owed(&self) -> Option<Vec<Arc<str>>> {
        let (mut state, now) = (self.state.lock(), now());
        state.owed.retain(|_, until| now < *until);
        state.asking = !state.owed.is_empty();
        state.asking.then(|| state.owed.keys().cloned().collect())
    }

    /// The server has answered, or it never will.
    pub fn said(&self, lock_key: &str) {
        self.state.lock().owed.remove(lock_key);
    }
}

impl ReleasedNames {
    fn begin_generation(&mut self, now: Instant, is_connected: impl Fn(&str) -> bool) {
        let young = std::mem::take(&mut self.young);
        let forgotten = std::mem::replace(&mut self.old, young);
        self.began = now;
        // While one server of several is away, the others go on, and its names must outlive the break. Not
        // all, or there would be no room for the next ones.
        self.young.extend(forgotten.into_iter().filter(|(lock_key, _)| !is_connected(lock_key)).take(NAMES / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keys(name: usize) -> Keys {
        Keys::new("fairlock", &name.to_string())
    }

    fn key(name: usize) -> Arc<str> {
        keys(name).lock
    }

    fn owed(farewells: &Farewells, broke: Option<Instant>) -> Vec<Arc<str>> {
        farewells.owe(&ServedKeys::All, broke, now() + SECOND);
        let owed = farewells.owed().unwrap_or_default();
        owed.iter().for_each(|name| farewells.said(name));
        owed
    }

    #[test]
    fn the_age_of_a_name_counts_to_the_end_of_the_connection() {
        let farewells = Farewells::new(SECOND);
        let begun = now();
        farewells.note(&keys(1), begun, |_| true);
        farewells.note(&keys(2), begun + 2 * SECOND, |_| true);
        assert_eq!(owed(&farewells, Some(begun + 6 * SECOND)), [key(1), key(2)]);
        assert_eq!(owed(&farewells, Some(begun + 7 * SECOND)), [key(2)], "an answered one is kept for the next break");
        assert_eq!(owed(&farewells, Some(begun + 9 * SECOND)).len(), 0);
        assert_eq!(owed(&farewells, None).len(), 2);
    }

    #[test]
    fn the_latest_names_are_kept_in_bounded_memory() {
        let farewells = Farewells::new(SECOND);
        let begun = now();
        for name in 0..10 * NAMES {
            farewells.note(&keys(name), begun, |_| true);
        }
        let owed = owed(&farewells, Some(begun));
        assert!((NAMES..=2 * NAMES).contains(&owed.len()), "{} names", owed.len());
        assert!((9 * NAMES..10 * NAMES).all(|name| owed.binary_search(&key(name)).is_ok()));
    }

    #[test]
    fn names_whose_server_is_away_outlive_those_of_the_others() {
        let farewells = Farewells::new(SECOND);
        let begun = now();
        farewells.note(&keys(1), begun, |_| true);
        farewells.note(&keys(2), begun, |_| true);
        for later in 1..10 {
            farewells.note(&keys(3), begun + 6 * later * SECOND, |lock_key| lock_key != &*key(1));
        }
        assert_eq!(owed(&farewells, None), [key(1), key(3)]);
    }

    #[test]
    fn one_task_asks_until_nothing_is_owed() {
        let farewells = Farewells::new(SECOND);
        assert!(!farewells.owe(&ServedKeys::All, None, now() + SECOND), "there is nothing to ask");
        farewells.note(&keys(1), now(), |_| true);
        assert!(farewells.owe(&ServedKeys::All, None, now() + SECOND));
        assert!(!farewells.owe(&ServedKeys::All, None, now() + SECOND), "one task asks already");
        assert_eq!(farewells.owed(), Some(vec![key(1)]));
        farewells.said(&key(1));
        assert_eq!(farewells.owed(), None);
        assert!(farewells.owe(&ServedKeys::All, None, now()));
        assert_eq!(farewells.owed(), None, "its time is over");
    }
}
