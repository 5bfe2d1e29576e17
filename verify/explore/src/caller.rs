//! A caller as the world and its checker see it, and the options of its client.

use std::time::Duration;

use fairlock_proto::time::Instant;

pub const OPERATION: Duration = Duration::from_secs(2);
pub const LEASE: Duration = Duration::from_secs(4);
pub const GRANT_TTL: Duration = Duration::from_secs(3);
pub const FIRST_LEASE: Duration = Duration::from_secs(5);
pub const WAITER_TTL: Duration = Duration::from_secs(7);
/// Not as long as an operation may take: a search looks at what comes between the two.
pub const POLL: Duration = Duration::from_millis(1900);

#[derive(Debug, Clone)]
pub struct Caller {
    pub name: usize,
    pub owner: u64,
    pub waits: bool,
    pub limit: Option<Instant>,
    /// What it has of the name.
    pub weight: u32,
    pub attaches: Option<Taken>,
    pub state: State,
}

/// The handle that a caller takes up.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub token: u64,
    pub state: HandleState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleState {
    MayHold,
    /// Before the caller began.
    GivenBack,
}

impl Caller {
    /// The id of its owner.
    pub fn id(&self, client: usize) -> String {
        format!("c{client}:{}", self.owner)
    }
}

/// Of the callers of one owner, the one that has come further counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Waits,
    Unlocks,
    Offered,
    Holds,
}
