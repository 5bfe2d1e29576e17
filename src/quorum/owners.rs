//! Maps owners and locks of this client to holds, so that nested calls find the hold that they re-enter (Q11).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::engine::owner::Owner;
use crate::sync::Mutex;

type Key = (Arc<str>, Owner);

/// The owners in scopes that have or want a lock. Its size is that of the calls and guards alive.
#[derive(Debug)]
pub struct Owners<H> {
    turns: Mutex<HashMap<Key, Weak<QuorumTurn<H>>>>,
}

/// One owner at one lock.
#[derive(Debug)]
pub struct QuorumTurn<H> {
    owners: Arc<Owners<H>>,
    key: Key,
    /// Its hold. Locked while one of its calls acquires: a second branch of the scope waits for that, and re-enters.
    pub hold: tokio::sync::Mutex<Weak<H>>,
}

impl<H> Default for Owners<H> {
    fn default() -> Self {
        Self { turns: Mutex::default() }
    }
}

impl<H> Owners<H> {
    pub fn turn(self: &Arc<Self>, name: &Arc<str>, owner: Owner) -> Arc<QuorumTurn<H>> {
        let key = (name.clone(), owner);
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn =
            Arc::new(QuorumTurn { owners: self.clone(), key: key.clone(), hold: tokio::sync::Mutex::new(Weak::new()) });
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

impl<H> Drop for QuorumTurn<H> {
    fn drop(&mut self) {
        let mut turns = self.owners.turns.lock();
        // A new one may have taken its place already.
        if turns.get(&self.key).is_some_and(|turn| turn.strong_count() == 0) {
            turns.remove(&self.key);
        }
    }
}
