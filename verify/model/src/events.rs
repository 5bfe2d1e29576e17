//! What a run has reached. Kept outside the states: as a part of them, events would multiply their number.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something that a base run must reach. A run in which too little happens would hold for that reason.
pub trait Event: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Another one for each event, below 64.
    fn number(self) -> u64;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventSet<E>(u64, PhantomData<E>);

impl<E> Default for EventSet<E> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<E: Event> EventSet<E> {
    pub fn add(&mut self, event: E) {
        self.0 |= 1 << event.number();
    }

    pub fn contains(self, event: E) -> bool {
        self.0 & 1 << event.number() != 0
    }
}

/// The events of all states together.
#[derive(Debug)]
pub struct Reached<E>(AtomicU64, PhantomData<E>);

impl<E> Default for Reached<E> {
    fn default() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }
}

impl<E: Event> Reached<E> {
    pub fn note(&self, events: EventSet<E>) {
        if events.0 & !self.0.load(Ordering::Relaxed) != 0 {
            self.0.fetch_or(events.0, Ordering::Relaxed);
        }
    }

    pub fn all(&self) -> EventSet<E> {
        EventSet(self.0.load(Ordering::Relaxed), PhantomData)
    }
}
