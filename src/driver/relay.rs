//! Work that one thread at a time does for all, without anybody waiting for it. `verify/threads` runs this file in all orders of
//! threads.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

pub struct Relay<C> {
    courier: Mutex<C>,
    /// Something came up for the courier since it began.
    is_wanted_once_more: AtomicBool,
    /// How often a thread looks once more for others: a caller has its own work.
    rounds: usize,
}

/// Whether work is left that no thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Nothing,
    Something,
}

impl<C> Relay<C> {
    pub fn new(courier: C, rounds: usize) -> Self {
        Self { courier: Mutex::new(courier), is_wanted_once_more: AtomicBool::new(false), rounds }
    }

    /// Does the work that is there. If another thread is at it, that one looks once more when it is done. `finish` has what is
    /// left to be done when the courier is free.
    ///
    /// Each access to the flag is a read and a write in one. With a plain load behind the unlock and a plain store before the
    /// `try_lock`, both threads may read what was before the other's write, and the work stays where it is.
    pub fn carry<T>(&self, mut work: impl FnMut(&mut C) -> T, mut finish: impl FnMut(T)) -> Left {
        self.is_wanted_once_more.swap(true, Ordering::AcqRel);
        for _ in 0..self.rounds {
            let Some(mut courier) = self.courier.try_lock() else { return Left::Nothing };
            self.is_wanted_once_more.swap(false, Ordering::AcqRel);
            let done = work(&mut courier);
            drop(courier);
            finish(done);
            // Reset by the next round alone, under the lock: whoever resets it is about to look.
            if !self.is_wanted_once_more.fetch_or(false, Ordering::AcqRel) {
                return Left::Nothing;
            }
        }
        Left::Something
    }
}
