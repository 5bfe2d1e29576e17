//! Work that may be too much for one step, with 100,000 holds: a close, or the checks of a new connection.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::event::NodeId;
use crate::stages::entry::Closing;
use crate::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Work {
    /// Asks a node about everything that it may not know.
    Check {
        node: NodeId,
        whose: Whose,
        from: usize,
    },
    /// Looks at names that the client released since then at a server that has been replaced.
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
    /// The node whose connection this work checks.
    pub fn checks(&self) -> Option<NodeId> {
        if let Self::Check { node, .. } = self { Some(*node) } else { None }
    }
}
