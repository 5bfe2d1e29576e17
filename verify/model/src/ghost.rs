//! What is noted of a run for its properties and bounds. No client or script reads it.

use crate::bounds::Fault;
use crate::events;
use crate::network::{Ticket, Time, Token};

/// Ghost variables: no client or script reads them, only the properties and the bounds of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The greatest token given out so far.
    pub highest: Token,
    /// Holds up to this token were ended by force_unlock or lost with the server's data. P1 does not
    /// cover them.
    pub exempt_up_to: Token,
    pub fault: Option<Fault>,
    pub deafens: u8,
    pub reconnects: u8,
    pub clock_in_tokens: bool,
    pub violation: Option<Violation>,
    /// How long the server stood still, until when its waiters keep their places for that, and who they are.
    pub stall: Time,
    pub kept_until: Time,
    pub kept: Vec<Ticket>,
}

/// A forbidden step that the state after it does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    TokenDidNotGrow,
    Overtaken,
    PlaceLost,
}

/// Events that a base run must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    HandOver,
    HeldByTrust,
    HeldByConfirm,
    HeldByPoll,
    Nested,
    LeaseExpired,
    RetryAnswered,
    TombstoneRefused,
    LeftWhileOwner,
    FloorRefused,
    LossReported,
    Busy,
    /// A grant was trusted from an answer that was not about its ticket alone.
    TrustedByName,
    NoPlace,
    FreeLockTold,
    UnknownHold,
    Doubted,
    DoubtEnded,
    Unreachable,
    PassedOver,
    Skipped,
    SkipReset,
    Stopped,
    DeadCleared,
    LeftFromSkipped,
    Forgiven,
    AskedAgainDead,
    ListGone,
    /// R14: the server began to grant nothing, and ended that.
    Frozen,
    Thawed,
    Detached,
    Attached,
    /// A copy of a detach or an attach was refused: late, behind a tombstone, or stale.
    GiveRefused,
    /// A guard was extended, also by a copy behind a later request of its owner.
    Extended,
    ExtendedLate,
    /// A first renewal made the lease shorter, or came behind another request.
    Shortened,
    NotShortened,
    HandleExtended,
    HandleReleased,
    /// The property about waiters followed a state to its end.
    Settled,
}

impl events::Event for Event {
    fn number(self) -> u64 {
        self as u64
    }
}

pub type EventSet = events::EventSet<Event>;
