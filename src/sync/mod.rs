//! A mutex without poisoning.

use std::sync::{MutexGuard, PoisonError};

/// A mutex that goes on after a panic. No code of this library panics while it holds one, and no code of the user runs then;
/// if it did, the data would still be whole.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
