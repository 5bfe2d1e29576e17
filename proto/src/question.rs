//! The questions that a caller asks once about a name, and the answers.

use std::sync::Arc;
use std::time::Duration;

use crate::handle::Handle;
use crate::requests::inspect::Inspected;

#[derive(Debug, Clone, Hash)]
pub enum Question {
    /// The holders, and the first `most` waiters.
    Inspect { most: u32 },
    /// End the present hold, if it has this token.
    ForceUnlock { expected: Option<u64> },
    /// Set the limit for all clients. With `None`, the limit of each client counts.
    SetLimit { limit: Option<u32> },
    /// Set a new lease for the hold of a handle, unless more is left.
    Extend { handle: Handle, lease: Duration },
    /// Give back the hold of a handle.
    Release { handle: Handle },
    /// Make every later token of a name that this owner holds greater than the floor.
    Raise { owner: Arc<str>, token: u64, floor: u64 },
    /// Find out whether the server serves such requests. It passes on a free name with a queue.
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
    /// There was no hold.
    Nothing,
}
