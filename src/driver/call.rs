//! A call for a lock: the caller's future only reads its slot.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
    /// `None`: the machine does not know it yet, or has forgotten it.
    call: Option<CallId>,
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
        let mut pending = Pending { client: client.clone(), call: None };
        return match pending.outcome(&want, &about).await {
            Answered::Granted(hold, way) => Ok(Some(DrivenGuard::new(pending, hold, way))),
            Answered::Failed(error) => Err(error::of_call(error, &client.driver().context().runner)),
            // This future was not polled when its turn came, and the lock went to the next one.
            Answered::PassedOver => continue,
            Answered::Busy | Answered::Unlocked(_) => Ok(None),
        };
    }
}

impl Pending {
    /// Hands the call to the machine at the first poll.
    async fn outcome(&mut self, want: &Want, about: &Arc<About>) -> Answered {
        poll_fn(|context| match self.call {
            Some(call) => self.poll(call, context),
            None => {
                let waker = context.waker().clone();
                let (call, answered) = self.client.driver().call(want.clone(), about.clone(), waker);
                self.call = Some(call);
                answered.map_or(Poll::Pending, |answered| Poll::Ready(self.answered(answered)))
            }
        })
        .await
    }

    fn poll(&mut self, call: CallId, context: &Context<'_>) -> Poll<Answered> {
        self.client.driver().poll_call(call, context).map(|answered| self.answered(answered))
    }

    /// After any but a grant the machine has forgotten it.
    fn answered(&mut self, answered: Answered) -> Answered {
        if !matches!(answered, Answered::Granted(..)) {
            self.call = None;
        }
        answered
    }

    /// The guard ends.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let mut guard = self.call;
        let answered = poll_fn(|context| match (guard.take(), self.call) {
            (Some(guard), _) => {
                let answered = self.client.driver().unlock(guard, context.waker().clone());
                answered.map_or(Poll::Pending, |answered| Poll::Ready(self.answered(answered)))
            }
            (None, Some(call)) => self.poll(call, context),
            (None, None) => Poll::Pending,
        })
        .await;
        match answered {
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
        self.call.into_iter().for_each(|call| self.client.driver().gone(call));
    }
}
