//! The locks that others want as well.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, Ordering};

/// Names share these by their hash. Two such names cost each other a round trip now and then.
const SLOTS: usize = 256;
/// How many calls go to the queue at once after one that found others there.
const CALLS: u8 = 16;

/// A call that tries all nodes at once, past a queue, briefly takes what the next waiter needs. So the client does not
/// do that if it saw others lately.
pub struct Contention([AtomicU8; SLOTS]);

impl Default for Contention {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; SLOTS])
    }
}

impl Contention {
    fn slot(&self, name: &str) -> Option<&AtomicU8> {
        // Not seeded, so that a simulated run can be repeated.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let hash = usize::try_from(hasher.finish() % SLOTS as u64).ok()?;
        self.0.get(hash)
    }

    /// Records that others have the lock or wait for it.
    pub fn seen(&self, name: &str) {
        if let Some(slot) = self.slot(name) {
            slot.store(CALLS, Ordering::Relaxed);
        }
    }

    /// Whether this call should go to the queue at once. Counts it.
    pub fn is_likely(&self, name: &str) -> bool {
        let one_less = |left: u8| left.checked_sub(1);
        self.slot(name).is_some_and(|slot| slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok())
    }
}
