//! What runs of the quorum reach.

use crate::events;

/// Events that a base run must reach.
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

impl events::Event for Event {
    fn number(self) -> u64 {
        self as u64
    }
}

pub type EventSet = events::EventSet<Event>;
