//! A call for a lock: the caller's future only reads its slot.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fairlock_proto::effect::Way;
use fairlock_proto::error::{Loss, UnlockError, Unlocked};
use fairlock_proto::event::{CallId, Want};

use super::Client;
use super::error;
use super::guard::DrivenGuard;
use super::hold::About;
use super::shared::Answered;
use crate::engine::error::LockError;
use crate::engine::observe::ObservedCall;

/// A call that the machine knows, then its guard. Dropped, it is given up.
pub struct Pending {
    client: Arc<Client>,
    call: CallId,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// The machine has forgotten it.
    Over,
}

/// Asks for the lock until there is an outcome. `None`: it is not free, and the call does not wait.
pub async fn acquire(client: Arc<Client>, want: Want, about: Arc<About>) -> Result<Option<DrivenGuard>, LockError> {
    let metrics = about.metrics.clone();
    // Before the work, and so dropped after it: what is given up was left first.
    let call = ObservedCall::begin(about.clone(), &metrics);
    let outcome = call.drive(pin!(ask(client, want, about))).await;
    match &outcome {
        Ok(Some(guard)) => {
            let hold = guard.hold();
            if call.is_told() {
                hold.show();
            }
            call.acquired(hold.token, || guard.way == Way::HandedOver);
        }
        Ok(None) => call.busy(),
        Err(error) => call.failed(error),
    }
    outcome
}

async fn ask(client: Arc<Client>, want: Want, about: Arc<About>) -> Result<Option<DrivenGuard>, LockError> {
    loop {
        let mut pending = Pending::begin(client.clone(), want.clone(), about.clone()).await;
        return match pending.outcome().await {
            Answered::Granted(hold, way) => Ok(Some(DrivenGuard::new(pending, hold, way))),
            Answered::Failed(error) => Err(error::of_call(error)),
            // This future was not polled when its turn came, and the lock went to the next one.
            Answered::PassedOver => continue,
            Answered::Busy | Answered::Unlocked(_) => Ok(None),
        };
    }
}

impl Pending {
    /// Hands the call to the machine when it is polled.
    fn begin(client: Arc<Client>, want: Want, about: Arc<About>) -> impl Future<Output = Self> {
        let mut handed = Some((client, want, about));
        poll_fn(move |context| {
            let Some((client, want, about)) = handed.take() else { return Poll::Pending };
            let call = client.driver().call(want, about, context.waker().clone());
            Poll::Ready(Self { client, call, stage: Stage::Open })
        })
    }

    async fn outcome(&mut self) -> Answered {
        let outcome = poll_fn(|context| self.client.driver().poll_call(self.call, context)).await;
        if !matches!(outcome, Answered::Granted(..)) {
            self.stage = Stage::Over;
        }
        outcome
    }

    /// The guard ends.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        poll_fn(|context| {
            self.client.driver().unlock(self.call, context.waker().clone());
            Poll::Ready(())
        })
        .await;
        match self.outcome().await {
            Answered::Unlocked(outcome) => outcome,
            // The machine answers each unlock with its outcome.
            _ => Err(UnlockError::Lost(Loss::Gone)),
        }
    }

    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.stage == Stage::Open {
            self.client.driver().gone(self.call);
        }
    }
}
