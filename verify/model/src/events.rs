//! The events that the runs reach. States do not include them, since they would multiply the number of states.

use std::sync::atomic::{AtomicU32, Ordering};

/// An event that a base run must reach. Without that, a run would also hold if too little happened in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Guarded,
    GuardedWithoutANode,
    BusyLeftAlone,
    Queued,
    QueuedWithHold,
    ReleasedAbove,
    PassedOn,
    NodeSkipped,
    LateAcquire,
    ProposalTaken,
    ProposedTooFar,
    GivenAlike,
    RaisedHigher,
    RaiseRefused,
    Renewed,
    LeaseExpired,
    Failed,
    Lost,
    TakenIn,
    Frozen,
    Thawed,
    Forced,
    /// The property about waiters followed a state to its end.
    Settled,
}

/// One bit for each event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventSet(u32);

impl EventSet {
    pub fn add(&mut self, event: Event) {
        self.0 |= 1 << event as u32;
    }

    pub fn contains(self, event: Event) -> bool {
        self.0 & 1 << event as u32 != 0
    }
}

/// The events of all states together.
#[derive(Debug, Default)]
pub struct Reached(AtomicU32);

impl Reached {
    pub fn note(&self, events: EventSet) {
        // Nearly always they are known, and a load costs less than a write.
        if events.0 & !self.0.load(Ordering::Relaxed) != 0 {
            self.0.fetch_or(events.0, Ordering::Relaxed);
        }
    }

    pub fn all(&self) -> EventSet {
        EventSet(self.0.load(Ordering::Relaxed))
    }
}
