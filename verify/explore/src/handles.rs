//! The changes that callers ask for, and the handles of a world.

use std::collections::BTreeSet;
use std::sync::Arc;

use fairlock_proto::event::CallId;
use fairlock_proto::handle::Handle;

use crate::checker::Guard;

#[derive(Debug, Clone)]
pub enum Change {
    /// With the guard's call.
    Shrink(CallId),
    Extend(CallId),
    /// Also keeps what the checker restores after a refusal.
    Detach(CallId, Option<Guard>),
    /// With a handle.
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
    /// Handles not known to be used up, with their names.
    pub left: Vec<(usize, Handle)>,
    pub given_back: Vec<Handle>,
    /// The owners of all handles that a caller ever got.
    pub told: BTreeSet<Arc<str>>,
}

impl Handles {
    pub fn are_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether a caller got the handle of this owner, and no caller has released it.
    pub fn are_in_hand(&self, owner: &str) -> bool {
        self.told.contains(owner) && !self.is_given_back(owner)
    }

    /// R16: from then on the handle holds nothing.
    pub fn is_given_back(&self, owner: &str) -> bool {
        self.given_back.iter().any(|handle| *handle.owner == *owner)
    }
}
