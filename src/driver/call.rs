//! A call for a lock: the caller's future only reads its slot.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use fairlock_proto::error::{Loss, UnlockError, Unlocked};
use fairlock_proto::event::{CallId, Want};

use super::client::Client;
use super::hold::About;
use super::shared::Answered;

/// A call that the machine knows, then its guard. Dropped, it is given up.
pub struct Pending {
    client: Arc<Client>,
    /// `None`: the machine does not know it yet, or has forgotten it.
    call: Option<CallId>,
}

impl Pending {
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, call: None }
    }

    /// Hands the call to the machine at the first poll.
    pub async fn outcome(&mut self, want: &Want, about: &Arc<About>) -> Answered {
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
