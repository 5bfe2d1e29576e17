//! One guard's share of a hold. Dropping it releases it in the background.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairlock_proto::effect::{self, Way};

use super::call::Pending;
use super::client::Client;
use super::detached::DetachOutcome;
use super::error;
use super::hold::DrivenHold;
use super::outcome::{Ended, HoldError, Loss, UnlockError, Unlocked};
use super::shared::Granted;
use crate::store::error::RequestError;
use crate::store::options::{Options, OptionsError};

pub struct DrivenGuard {
    /// `None`: an unlock is under way.
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

    /// How much of the name it has.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Reduces the weight from here on. Without an answer the change goes on in the background, which is no error,
    /// unless the hold has ended by then.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        let Some(guard) = &self.pending else { return Err(Loss::Gone) };
        self.weight.fetch_min(weight, Ordering::Relaxed);
        let driver = self.client.driver();
        let outcome = guard.shrink(weight).await;
        let outcome = error::of_unlock(outcome, driver.clock, &driver.context().runner, &self.hold.entry.keys.lock);
        match (outcome, self.hold.end()) {
            (Err(UnlockError::Lost(loss)), _) | (_, Some(Ended::Lost(loss))) => Err(loss),
            _ => Ok(()),
        }
    }

    /// Sets a new lease from now on, unless more is left.
    pub fn extend(&self, lease: Duration) -> impl Future<Output = Result<(), HoldError>> + Send + use<> {
        let (client, hold) = (self.client.clone(), self.hold.clone());
        let extending = self.pending.as_ref().map(|guard| guard.extend(lease));
        async move {
            let context = client.driver().context();
            check_extend(lease, &hold, context.options()).map_err(HoldError::Lease)?;
            let Some(extending) = extending else { return Err(HoldError::Lost(Loss::Gone)) };
            let extended = extending.await;
            extended.map_err(|error| error::of_change(error, &context.runner, &hold.entry.keys.lock))
        }
    }

    /// Gives the hold to a handle.
    pub async fn detach(self, lease: Duration) -> DetachOutcome<Self> {
        match self.client.driver().context().options().check_lease("the lease of detach", lease) {
            Ok(()) => self.give(lease).await,
            Err(error) => DetachOutcome::Refused(self, HoldError::Lease(error)),
        }
    }

    /// Unlocks. If the hold is younger than `at_least`, a handle that nobody has keeps the name until that age.
    pub async fn unlock_at_least(self, at_least: Duration) -> Result<(), HoldError> {
        let rest = round_up(at_least.saturating_sub(self.hold.held_for()));
        if rest.is_zero() {
            return Ok(self.unlock().await.map(drop)?);
        }
        let options = self.client.driver().context().options();
        options.check_longest("the time to stay taken", at_least.max(rest)).map_err(HoldError::Lease)?;
        match self.give(rest).await {
            DetachOutcome::Detached(_) => Ok(()),
            DetachOutcome::Refused(_, error) => Err(error),
            DetachOutcome::Unanswered(_, cause) => Err(HoldError::Request(RequestError::Unanswered(cause))),
        }
    }

    async fn give(self, lease: Duration) -> DetachOutcome<Self> {
        let Some(guard) = &self.pending else {
            return DetachOutcome::Refused(self, HoldError::Lost(Loss::Gone));
        };
        let outcome = {
            let _unreliable = self.hold.is_not_relied_on();
            guard.detach(lease).await
        };
        let (client, lock) = (self.client.clone(), self.hold.entry.keys.lock.clone());
        let runner = &client.driver().context().runner;
        match outcome {
            effect::DetachOutcome::Done(handle) => DetachOutcome::Detached(*handle),
            effect::DetachOutcome::Refused(why) => DetachOutcome::Refused(self, error::of_change(why, runner, &lock)),
            effect::DetachOutcome::Unanswered(handle, cause) => {
                DetachOutcome::Unanswered(*handle, error::cause(cause, runner, &lock))
            }
        }
    }

    pub fn prefix(&self) -> String {
        self.client.driver().context().options().prefix.clone()
    }

    pub fn hold(&self) -> &Arc<DrivenHold> {
        &self.hold
    }

    pub fn token(&self) -> u64 {
        self.hold.token
    }

    pub fn view(&self) -> HoldView {
        HoldView { hold: self.hold.clone(), _client: self.client.clone() }
    }

    /// Releases the guard, and waits for the outcome.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let Some(pending) = self.pending.take() else { return Ok(Unlocked::Freed) };
        let client = self.client.clone();
        let driver = client.driver();
        error::of_unlock(pending.unlock().await, driver.clock, &driver.context().runner, &self.hold.entry.keys.lock)
    }

    /// The place of its server in the list.
    pub fn servers(&self) -> Vec<usize> {
        self.hold.is_valid().then_some(0).into_iter().collect()
    }
}

/// Rounds up to milliseconds, the unit of Redis.
fn round_up(time: Duration) -> Duration {
    let nanos = time.subsec_nanos() % 1_000_000;
    if nanos == 0 { time } else { time.saturating_add(Duration::from_nanos(u64::from(1_000_000 - nanos))) }
}

fn check_extend(lease: Duration, hold: &DrivenHold, options: &Options) -> Result<(), OptionsError> {
    options.check_lease("the lease of extend", lease)?;
    let Some(longest) = options.max_hold else { return Ok(()) };
    options.check_max_hold(lease, longest.saturating_sub(hold.held_for()))
}

impl Drop for DrivenGuard {
    fn drop(&mut self) {
        // First: if the machine finds now that the hold is lost, this guard has relied on it (P8).
        drop(self.pending.take());
        self.hold.is_given_up();
    }
}
