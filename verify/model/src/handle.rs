//! Handles: holds that are no client's. Any process that has read one may extend, release or attach it.

use crate::network::{Network, OwnerId, Request, Time, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    pub token: Token,
    /// Until when its hold is relied on (R5).
    pub until: Time,
    /// An attach was requested. From then on earlier promises are not relied on.
    pub is_spent: bool,
    pub stage: HandleStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandleStage {
    /// The detach has no answer yet, and no process has the handle.
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
    pub fn is_relied_on(&self, now: Time) -> bool {
        now < self.until
    }

    /// Whether it may hold the lock.
    pub fn is_wanted(&self) -> bool {
        self.stage != HandleStage::Over
    }

    pub fn may_be_used(&self) -> bool {
        matches!(self.stage, HandleStage::Known { .. })
    }

    pub fn may_be_extended(&self, id: OwnerId, network: &Network) -> bool {
        !network.has_request(id, |request| matches!(request, Request::Renew { .. }))
    }

    /// Again, if the request was lost.
    pub fn may_be_released(&self, id: OwnerId, network: &Network) -> bool {
        match self.stage {
            HandleStage::Known { .. } => true,
            HandleStage::Releasing(request) => !network.has_request(id, |other| *other == request),
            _ => false,
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
