//! The calls of one owner that wait for their turn at the server.

use std::collections::VecDeque;
use std::time::Duration;

use crate::desk::Desk;
use crate::effect::{DetachOutcome, Outcome};
use crate::error::{ChangeError, Loss, RequestError};
use crate::event::CallId;
use crate::stages::attempt::Call;
use crate::stages::entry::Closing;

pub type Line = VecDeque<Next>;

#[derive(Debug, Clone, Hash)]
pub enum Next {
    Guard(Call),
    /// A new lease for the owner's hold.
    Extend(Change),
    Detach(Change),
}

/// A call to extend or detach the owner's hold.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Change {
    pub id: CallId,
    pub lease: Duration,
}

impl Next {
    pub fn id(&self) -> CallId {
        match self {
            Self::Guard(call) => call.id,
            Self::Extend(change) | Self::Detach(change) => change.id,
        }
    }

    /// Reports the error to the caller.
    pub fn fail(&self, error: ChangeError, desk: &mut Desk<'_>) {
        let outcome = match self {
            Self::Guard(_) => Outcome::Failed(error.of_call()),
            Self::Extend(_) => Outcome::Extended(Err(error)),
            Self::Detach(_) => Outcome::Detached(DetachOutcome::Refused(error)),
        };
        desk.tell(self.id(), outcome);
    }

    pub fn close(&self, why: Closing, desk: &mut Desk<'_>) {
        match self {
            Self::Guard(call) => desk.tell(call.id, Outcome::Failed(why.error())),
            _ => self.fail(why.change_error(), desk),
        }
    }
}

impl Closing {
    pub fn change_error(self) -> ChangeError {
        match self {
            Self::ByUser => ChangeError::Lost(Loss::Closed),
            Self::RuntimeGone => ChangeError::Request(RequestError::RuntimeGone),
        }
    }
}
