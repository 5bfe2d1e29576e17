//! Mutexes without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores a panic of a test or a simulator: no code here panics while it holds the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
