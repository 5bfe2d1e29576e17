//! Work that one thread at a time does for all, while nobody waits for it. `verify/threads` runs this file in all
//! orders of threads.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

pub struct Relay<C> {
    courier: Mutex<C>,
    /// Whether more work came up since the courier began.
    is_wanted_once_more: AtomicBool,
    /// How many rounds a thread works for others: a caller has its own work.
    rounds: usize,
}

/// Whether some work remains undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Nothing,
    Something,
}

impl<C> Relay<C> {
    pub fn new(courier: C, rounds: usize) -> Self {
        Self { courier: Mutex::new(courier), is_wanted_once_more: AtomicBool::new(false), rounds }
    }

    /// Does the work that is there. If another thread is at it, that thread looks once more when it is done. `finish`
    /// gets the result of `work`, when the courier is free.
    ///
    /// Each access to the flag is a read-modify-write. With a plain load after the unlock and a plain store before the
    /// `try_lock`, both threads may miss the other's write, and nobody does the work.
    pub fn carry<T>(&self, mut work: impl FnMut(&mut C) -> T, mut finish: impl FnMut(T)) -> Left {
        self.is_wanted_once_more.swap(true, Ordering::AcqRel);
        for _ in 0..self.rounds {
            let Some(mut courier) = self.courier.try_lock() else { return Left::Nothing };
            self.is_wanted_once_more.swap(false, Ordering::AcqRel);
            let done = work(&mut courier);
            drop(courier);
            finish(done);
            // Only the next round resets the flag, under the lock: the thread that resets it is about to look.
            if !self.is_wanted_once_more.fetch_or(false, Ordering::AcqRel) {
                return Left::Nothing;
            }
        }
        Left::Something
    }
}
