//! What callers ask about what they hold, and the handles that there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use fairlock_proto::event::CallId;
use fairlock_proto::handle::Handle;

use crate::checker::Guard;

#[derive(Debug, Clone)]
pub enum Change {
    /// Of this guard.
    Shrink(CallId),
    Extend(CallId),
    /// What is relied on if it is refused.
    Detach(CallId, Option<Guard>),
    /// By a handle.
    Extends,
    Releases(Handle),
}

impl Change {
    pub fn guard(&self) -> Option<CallId> {
        match self {
            Self::Shrink(guard) | Self::Extend(guard) | Self::Detach(guard, _) => Some(*guard),
            Self::Extends | Self::Releases(_) => None,
        }
    }
}

/// The handles of a world.
#[derive(Default)]
pub struct Handles {
    /// Those that nobody has spent, as far as is known, with their names.
    pub left: Vec<(usize, Handle)>,
    pub given_back: Vec<Handle>,
    /// The owners of all handles that a caller ever got.
    pub told: BTreeSet<Arc<str>>,
}

impl Handles {
    pub fn are_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether a caller got the handle of this owner, and nobody has given it back.
    pub fn are_in_hand(&self, owner: &str) -> bool {
        self.told.contains(owner) && !self.is_given_back(owner)
    }

    /// R16: from then on the handle holds nothing.
    pub fn is_given_back(&self, owner: &str) -> bool {
        self.given_back.iter().any(|handle| *handle.owner == *owner)
    }
}
