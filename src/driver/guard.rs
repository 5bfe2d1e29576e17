//! One guard's share of a hold. Dropping it releases it in the background.

use std::ops::Deref;
use std::sync::Arc;

use fairlock_proto::effect::Way;

use super::call::Pending;
use super::client::Client;
use super::error;
use super::hold::DrivenHold;
use crate::engine::error::UnlockError;
use crate::engine::release::Unlocked;

pub struct DrivenGuard {
    /// `None`: it is being unlocked.
    pending: Option<Pending>,
    hold: Arc<DrivenHold>,
    client: Arc<Client>,
    pub way: Way,
}

/// A hold, as others see it. It keeps the client connected.
#[derive(Clone)]
pub struct HoldView {
    hold: Arc<DrivenHold>,
    _client: Arc<Client>,
}

impl Deref for HoldView {
    type Target = DrivenHold;

    fn deref(&self) -> &DrivenHold {
        &self.hold
    }
}

impl DrivenGuard {
    pub fn new(pending: Pending, hold: Arc<DrivenHold>, way: Way) -> Self {
        hold.is_claimed();
        Self { client: pending.client().clone(), pending: Some(pending), hold, way }
    }

    pub fn hold(&self) -> &Arc<DrivenHold> {
        &self.hold
    }

    pub fn view(&self) -> HoldView {
        HoldView { hold: self.hold.clone(), _client: self.client.clone() }
    }

    /// Releases it, and waits for the outcome.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let Some(pending) = self.pending.take() else { return Ok(Unlocked::Freed) };
        let client = self.client.clone();
        let driver = client.driver();
        error::of_unlock(pending.unlock().await, driver.clock, &driver.context().runner, &self.hold.entry.keys.lock)
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
        // First: where the machine finds that the hold is lost, this guard has relied on it (P8).
        drop(self.pending.take());
        self.hold.is_given_up();
    }
}
