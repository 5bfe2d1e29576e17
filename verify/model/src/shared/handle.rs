//! Handles, as in the lock's model: holds that are no client's. Here others hold beside them, and
//! what a handle has is counted with the weight that it was detached with.

use super::network::{Network, OwnerId, Request, Time, Token, Weight};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    pub token: Token,
    pub weight: Weight,
    /// Until when somebody relies on what it holds (R5).
    pub until: Time,
    /// Somebody has asked to attach it. From then on nobody relies on what it was told before.
    pub is_spent: bool,
    pub stage: HandleStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandleStage {
    /// The detach has no answer yet, and nobody has the handle.
    Asked,
    /// `in_doubt`: the detach was not answered in time.
    Known {
        in_doubt: bool,
    },
    Releasing(Request),
    /// Attached, released, or never made.
    Over,
}

impl Handle {
    /// Whether it may hold something.
    pub fn is_wanted(&self) -> bool {
        self.stage != HandleStage::Over
    }

    pub fn may_be_used(&self) -> bool {
        matches!(self.stage, HandleStage::Known { .. })
    }

    pub fn may_be_extended(&self, id: OwnerId, network: &Network) -> bool {
        self.may_be_used() && !network.carries(id, |request| matches!(request, Request::Renew { .. }))
    }

    /// Again, if the request was lost.
    pub fn may_be_released(&self, id: OwnerId, network: &Network) -> bool {
        match self.stage {
            HandleStage::Releasing(request) => !network.carries(id, |other| *other == request),
            _ => self.may_be_used(),
        }
    }

    pub fn awaits(&self, request: &Request) -> bool {
        match (self.stage, request) {
            (HandleStage::Releasing(ours), Request::Release { .. }) => ours == *request,
            (HandleStage::Known { .. }, Request::Renew { .. }) => true,
            _ => false,
        }
    }
}
