//! A caller, from the view of the world and its checker, and the options of its client.

use std::time::Duration;

use fairlock_proto::time::Instant;

pub const OPERATION: Duration = Duration::from_secs(2);
pub const LEASE: Duration = Duration::from_secs(4);
pub const GRANT_TTL: Duration = Duration::from_secs(3);
pub const FIRST_LEASE: Duration = Duration::from_secs(5);
pub const WAITER_TTL: Duration = Duration::from_secs(7);
/// Shorter than an operation may take, so that a search sees what happens in between.
pub const POLL: Duration = Duration::from_millis(1900);

#[derive(Debug, Clone)]
pub struct Caller {
    pub name: usize,
    pub owner: u64,
    pub waits: bool,
    pub limit: Option<Instant>,
    /// Its weight in the name.
    pub weight: u32,
    pub attaches: Option<Taken>,
    pub state: State,
}

/// The handle that a caller attaches.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub token: u64,
    pub state: HandleState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleState {
    MayHold,
    /// It was released before the caller began.
    GivenBack,
}

impl Caller {
    /// The id of its owner.
    pub fn id(&self, client: usize) -> String {
        format!("c{client}:{}", self.owner)
    }
}

/// The furthest of an owner's callers counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Waits,
    Unlocks,
    Offered,
    Holds,
}
