//! One guard's share of a hold. Dropping it releases it in the background.

use std::sync::Arc;

use fairlock_proto::effect::Way;

use super::call::Pending;
use super::error;
use super::hold::DrivenHold;
use crate::engine::error::UnlockError;
use crate::engine::release::Unlocked;

pub struct DrivenGuard {
    /// `None`: it is being unlocked.
    pending: Option<Pending>,
    hold: Arc<DrivenHold>,
    pub way: Way,
}

impl DrivenGuard {
    pub fn new(pending: Pending, hold: Arc<DrivenHold>, way: Way) -> Self {
        hold.is_claimed();
        Self { pending: Some(pending), hold, way }
    }

    pub fn hold(&self) -> &Arc<DrivenHold> {
        &self.hold
    }

    /// Releases it, and waits for the outcome.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let Some(pending) = self.pending.take() else { return Ok(Unlocked::Freed) };
        let clock = pending.client().driver().clock;
        let outcome = pending.unlock().await;
        error::of_unlock(outcome, clock)
    }

    /// For a call that takes several names together. It is kept anyway.
    pub fn complete(&mut self) {}

    /// The place of its server in the list.
    pub fn servers(&self) -> Vec<usize> {
        self.hold.is_valid().then_some(0).into_iter().collect()
    }
}

impl Drop for DrivenGuard {
    fn drop(&mut self) {
        // Before the machine learns of it, which may end the hold: nobody relies on it any more.
        self.hold.is_given_up();
        drop(self.pending.take());
    }
}
