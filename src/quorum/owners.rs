//! The owners that hold or want a lock of this client. It does not know what a hold is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use fairlock_proto::keys::Keys;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout_at;

use crate::driver::observe::Who;
use crate::driver::owner::Owner;
use crate::sync::Mutex;

/// How many owners of one lock to look at. A longer look would cost each of many calls more than it saves.
const LOOKED_AT: usize = 16;

/// Lock key and owner number.
type EntryKey = (Arc<str>, u64);

/// The entries in use; `H` is what an owner holds.
pub struct OwnerTable<H> {
    entries: Mutex<BTreeMap<EntryKey, Weak<OwnerEntry<H>>>>,
}

/// An owner's turn at the server: one request at a time, so that counts cannot overtake each other (P4). An unanswered
/// request keeps the turn until its outcome is clear. Two branches of one scope meet here: the second one waits, then
/// re-enters.
pub type OwnersTurn = OwnedMutexGuard<()>;

/// One owner at one lock of one client.
pub struct OwnerEntry<H> {
    table: Arc<OwnerTable<H>>,
    pub keys: Arc<Keys>,
    pub owner: Owner,
    pub owner_id: Arc<str>,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The call that has the turn waits in the queue, which may take long.
    queueing: AtomicBool,
    /// Weak: guards and releases under way keep a hold alive, the entry does not.
    hold: Mutex<Weak<H>>,
}

impl<H> OwnerTable<H> {
    pub fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }

    /// The entry of this owner at this lock, or a new one.
    pub fn entry(self: &Arc<Self>, keys: &Arc<Keys>, owner: Owner, client: &str) -> Arc<OwnerEntry<H>> {
        let mut entries = self.entries.lock();
        let key: EntryKey = (keys.lock.clone(), owner.number());
        // An entry that is being dropped cannot be upgraded. A new one takes its place, and the `Drop` of the old one
        // lets it stay.
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(OwnerEntry {
            table: self.clone(),
            keys: keys.clone(),
            owner,
            owner_id: owner.id(client),
            turn: Arc::default(),
            queueing: AtomicBool::new(false),
            hold: Mutex::new(Weak::new()),
        });
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// Whether at most one owner of this client holds or wants this lock. `is_held` excludes ended holds, which a
    /// watcher may keep for long.
    pub fn has_one_owner(&self, lock_key: &str, is_held: impl Fn(&H) -> bool) -> bool {
        let in_use = |entry: &&Arc<OwnerEntry<H>>| entry.hold().is_none_or(|hold| is_held(&hold));
        let oldest = self.oldest_at(lock_key, LOOKED_AT);
        oldest.len() < LOOKED_AT && oldest.iter().filter(in_use).count() < 2
    }

    fn oldest_at(&self, lock_key: &str, most: usize) -> Vec<Arc<OwnerEntry<H>>> {
        let from: EntryKey = (lock_key.into(), 0);
        let to = (from.0.clone(), u64::MAX);
        // Collected: dropping the last reference to an entry takes the lock on the table.
        self.entries.lock().range(from..=to).take(most).filter_map(|(_, entry)| entry.upgrade()).collect()
    }
}

impl<H> OwnerEntry<H> {
    /// See [`OwnersTurn`].
    pub async fn turn(&self) -> OwnersTurn {
        self.turn.clone().lock_owned().await
    }

    /// `None`: another call kept the turn until the limit.
    pub async fn turn_in_time(&self, limit: Instant) -> Option<OwnersTurn> {
        timeout_at(limit.into(), self.turn()).await.ok()
    }

    /// The call that a log line is about. `terms`: the terms of the call.
    pub fn who<'a>(&'a self, terms: &'a str) -> Who<'a> {
        Who { name: &self.keys.name, owner: &self.owner_id, terms, is_node: false }
    }

    pub fn hold(&self) -> Option<Arc<H>> {
        self.hold.lock().upgrade()
    }

    pub fn set_hold(&self, hold: &Arc<H>) {
        *self.hold.lock() = Arc::downgrade(hold);
    }

    /// Whether a call of this owner is waiting in the queue.
    pub fn is_queueing(&self) -> bool {
        self.queueing.load(Ordering::Relaxed)
    }

    /// Makes [`is_queueing`](Self::is_queueing) true until the returned value is dropped.
    pub fn queueing(&self) -> Queueing<'_> {
        self.queueing.store(true, Ordering::Relaxed);
        Queueing(&self.queueing)
    }
}

pub struct Queueing<'a>(&'a AtomicBool);

impl Drop for Queueing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<H> Drop for OwnerEntry<H> {
    fn drop(&mut self) {
        let key = (self.keys.lock.clone(), self.owner.number());
        let mut entries = self.table.entries.lock();
        // Another thread may have made a new entry between our last reference and this line. That one must stay.
        if entries.get(&key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&key);
        }
    }
}
