//! One guard's share of a hold. Dropping it releases it in the background.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlock_proto::effect::Way;

use super::call::Pending;
use super::client::Client;
use super::error;
use super::hold::DrivenHold;
use super::shared::Granted;
use crate::engine::error::{Ended, Loss, UnlockError};
use crate::engine::release::Unlocked;

pub struct DrivenGuard {
    /// `None`: it is being unlocked.
    pending: Option<Pending>,
    hold: Arc<DrivenHold>,
    client: Arc<Client>,
    pub way: Way,
    weight: AtomicU32,
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
    pub fn new(pending: Pending, Granted { hold, way, weight }: Granted) -> Self {
        hold.is_claimed();
        Self { client: pending.client().clone(), pending: Some(pending), hold, way, weight: AtomicU32::new(weight) }
    }

    /// What it has of the name.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// From here on it has that much of the name. Without an answer it goes on in the background, which is no error, unless the
    /// hold is over by then.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        let Some(guard) = &self.pending else { return Err(Loss::Gone) };
        self.weight.fetch_min(weight, Ordering::Relaxed);
        let driver = self.client.driver();
        let outcome = guard.shrink(weight, &self.hold.entry).await;
        let outcome = error::of_unlock(outcome, driver.clock, &driver.context().runner, &self.hold.entry.keys.lock);
        match (outcome, self.hold.end()) {
            (Err(UnlockError::Lost(loss)), _) | (_, Some(Ended::Lost(loss))) => Err(loss),
            _ => Ok(()),
        }
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
