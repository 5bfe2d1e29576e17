//! Work that may be too much for one step: close, and what a new connection asks about, with 100,000 holds.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::event::NodeId;
use crate::stages::entry::Closing;
use crate::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Work {
    /// Asks the server of these slots about what it may not know.
    Check {
        node: NodeId,
        whose: Whose,
        from: usize,
    },
    /// Looks at the names that were released since then at a server which has been replaced.
    Released {
        node: NodeId,
        slots: RangeInclusive<u16>,
        since: Instant,
        behind: Arc<str>,
    },
    Close {
        why: Closing,
        from: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Whose {
    Queues,
    Entries,
    Chores,
}

impl Work {
    /// The node whose connection is being checked by it.
    pub fn checks(&self) -> Option<NodeId> {
        if let Self::Check { node, .. } = self { Some(*node) } else { None }
    }
}
