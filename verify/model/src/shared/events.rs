//! What is noted of a run, and what runs reach.

use crate::events;
use crate::map::Map;

use super::bounds::Fault;
use super::network::{Token, Weight};

/// No client or script reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The greatest token given so far.
    pub highest: Token,
    /// Holds up to this token were lost with the server's data, and this one was revoked. P1 does not cover them until their
    /// clients learn of it.
    pub exempt_up_to: Token,
    pub revoked: Token,
    /// The limit that each token was admitted under.
    pub admitted: Map<Token, Weight>,
    pub fault: Option<Fault>,
    pub permits_set: u8,
    pub deafens: u8,
    pub clock_in_tokens: bool,
    pub violation: Option<Violation>,
}

/// A forbidden step that the state after it does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    TokenDidNotGrow,
    Overtaken,
    /// A script ended although the first waiter fits, and did not say "more".
    NotServed,
}

/// Events that a base run must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    HandOver,
    /// Two or more in one call.
    ServedTogether,
    Stopped,
    EnteredBeside,
    /// The first in line does not fit although something is free.
    HeavyWaits,
    HeldByTrust,
    HeldByConfirm,
    HeldByPoll,
    NextBlock,
    FloorRefused,
    Nested,
    NestedPastAWaiter,
    Shrunk,
    TakenOut,
    HashExpired,
    OlderHoldEnded,
    RetryAnswered,
    TombstoneRefused,
    LeftWhileHolding,
    LossReported,
    Busy,
    NoPlace,
    StalePlace,
    PassedOver,
    DeadCleared,
    FullHouse,
    AboveLowered,
    Paused,
    Frozen,
    Thawed,
    Revoked,
    Detached,
    Attached,
    GiveRefused,
    HandleExtended,
    HandleReleased,
    Settled,
}

impl events::Event for Event {
    fn number(self) -> u64 {
        self as u64
    }
}

pub type EventSet = events::EventSet<Event>;
