//! What a caller asks once about a name, and what it hears.

use std::sync::Arc;
use std::time::Duration;

use crate::handle::Handle;
use crate::requests::inspect::Inspected;

#[derive(Debug, Clone, Hash)]
pub enum Question {
    /// The holders, and the first `most` waiters.
    Inspect { most: u32 },
    /// The present hold ends, if it has this token.
    ForceUnlock { expected: Option<u64> },
    /// For all clients. `None`: the limit of each client counts.
    SetLimit { limit: Option<u32> },
    /// A new lease for what a handle holds, unless more is left.
    Extend { handle: Handle, lease: Duration },
    /// What a handle holds is given back.
    Release { handle: Handle },
    /// Every later token of a name that this owner holds is greater than the floor.
    Raise { owner: Arc<str>, token: u64, floor: u64 },
    /// Whether the server serves such requests. A free name with others in its queue is passed on.
    Probe,
}

#[derive(Debug, Clone)]
pub enum Finding {
    /// With the server's clock at that time, in microseconds since 1970.
    Inspected {
        inspected: Box<Inspected>,
        server_micros: i64,
    },
    Done,
    /// There was nothing that was held.
    Nothing,
}
