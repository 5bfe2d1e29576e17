//! What callers ask about what they hold, and the handles that there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use fairlock_proto::event::CallId;
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{self, Share};

use crate::caller::FIRST_LEASE;
use crate::checker::Guard;
use crate::names::is_shared;

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

/// Those that nobody has spent, as far as is known.
#[derive(Default)]
pub struct Handles {
    pub left: Vec<(usize, Handle)>,
    pub given_back: Vec<Handle>,
    /// The owners of all that were ever told.
    pub told: BTreeSet<Arc<str>>,
}

impl Handles {
    pub fn are_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether somebody may give it back.
    pub fn are_in_hand(&self, owner: &str) -> bool {
        self.told.contains(owner) && !self.is_given_back(owner)
    }

    /// R16: then it never holds anything again.
    pub fn is_given_back(&self, owner: &str) -> bool {
        self.given_back.iter().any(|handle| *handle.owner == *owner)
    }
}

pub fn terms(name: usize, share: Share) -> Arc<str> {
    if is_shared(name) {
        keys::shared_terms(share, FIRST_LEASE, "x").into()
    } else {
        keys::terms(FIRST_LEASE, "x").into()
    }
}
