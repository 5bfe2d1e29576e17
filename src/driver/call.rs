//! A call for a lock. The caller's future only reads its slot.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fairlock_proto::effect::DetachOutcome;
use fairlock_proto::error::{CallError, ChangeError, Loss, RequestError, UnlockError, Unlocked};
use fairlock_proto::event::{CallId, Event};
use fairlock_proto::keys::Keys;
use fairlock_proto::question::{Finding, Question};
use fairlock_proto::time::Instant as Moment;
use tokio::time::{Sleep, sleep_until};

use super::client::{Client, Driver};
use super::hold::About;
use super::shared::Answered;
use crate::store::clock::now;

/// A call that the machine knows, and later its guard. Dropping it gives it up.
pub struct Pending {
    client: Arc<Client>,
    /// `None`: the machine does not know the call yet, or has forgotten it.
    call: Option<CallId>,
}

impl Pending {
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, call: None }
    }

    /// Asks for a lock from the first poll on.
    pub fn outcome<'a>(&'a mut self, about: &'a Arc<About>) -> impl Future<Output = Answered> + 'a {
        let limit = about.manner.limit().and_then(|limit| self.limit_elsewhere(|_| limit));
        self.drive(Some(about), limit, |call| Event::Call(call, about.want()))
    }

    /// Hands an event to the machine at the first poll, and waits for the outcome.
    async fn drive(
        &mut self,
        about: Option<&Arc<About>>,
        mut limit: Option<Pin<Box<Sleep>>>,
        event: impl Fn(CallId) -> Event<'static>,
    ) -> Answered {
        poll_fn(|context| {
            let polled = match self.call {
                Some(call) => self.poll(call, context),
                None => {
                    let waker = context.waker().clone();
                    let (call, answered) = self.client.driver().begin(about.cloned(), waker, &event);
                    self.call = Some(call);
                    answered.map_or(Poll::Pending, |answered| Poll::Ready(self.answered(answered)))
                }
            };
            if let (Poll::Pending, Some(limit)) = (&polled, &mut limit) {
                self.keep_limit(limit, context);
            }
            polled
        })
        .await
    }

    /// For a caller in another runtime, which keeps its own limit: perhaps nothing drives the client's runtime.
    fn limit_elsewhere(&self, limit: impl FnOnce(&Driver) -> Moment) -> Option<Pin<Box<Sleep>>> {
        let driver = self.client.driver();
        driver.context().is_elsewhere().then(|| Box::pin(sleep_until(driver.clock.instant(limit(driver)).into())))
    }

    /// Makes the machine end the call, which wakes its caller: usually at once, or later if more is due than one step
    /// does.
    fn keep_limit(&self, limit: &mut Pin<Box<Sleep>>, context: &mut Context<'_>) {
        while limit.as_mut().poll(context).is_ready() {
            limit.as_mut().reset((now() + Duration::from_millis(1)).into());
            self.client.driver().feed(Event::Time);
        }
    }

    fn poll(&mut self, call: CallId, context: &Context<'_>) -> Poll<Answered> {
        self.client.driver().poll_call(call, context).map(|answered| self.answered(answered))
    }

    /// The machine forgets a call after any answer but a grant.
    fn answered(&mut self, answered: Answered) -> Answered {
        if !matches!(answered, Answered::Granted(_)) {
            self.call = None;
        }
        answered
    }

    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let mut guard = self.call;
        let mut limit = self.limit_elsewhere(Driver::operation_limit);
        let answered = poll_fn(|context| {
            let polled = match (guard.take(), self.call) {
                (Some(guard), _) => {
                    let answered = self.client.driver().unlock(guard, context.waker().clone());
                    answered.map_or(Poll::Pending, |answered| Poll::Ready(self.answered(answered)))
                }
                (None, Some(call)) => self.poll(call, context),
                (None, None) => Poll::Pending,
            };
            if let (Poll::Pending, Some(limit)) = (&polled, &mut limit) {
                self.keep_limit(limit, context);
            }
            polled
        })
        .await;
        unlocked(answered)
    }

    /// Sets the weight of this guard from now on. If the future is dropped, the change goes on.
    pub async fn shrink(&self, weight: u32) -> Result<Unlocked, UnlockError> {
        unlocked(self.change(move |call, guard| Event::Shrink { call, guard, weight }).await)
    }

    /// Sets a new lease for the hold of this guard.
    pub fn extend(&self, lease: Duration) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let extended = self.change(move |call, guard| Event::Extend { call, guard, lease });
        async move {
            match extended.await {
                Answered::Extended(outcome) => outcome,
                answered => Err(lost(&answered)),
            }
        }
    }

    /// Gives the hold of this guard to a handle. If the future is dropped, the client releases the hold.
    pub async fn detach(&self, lease: Duration) -> DetachOutcome {
        match self.change(move |call, guard| Event::Detach { call, guard, lease }).await {
            Answered::Detached(outcome) => outcome,
            answered => DetachOutcome::Refused(lost(&answered)),
        }
    }

    /// Makes a call about the hold of this guard.
    fn change<F>(&self, event: F) -> impl Future<Output = Answered> + Send + use<F>
    where
        F: Fn(CallId, CallId) -> Event<'static> + Send + Sync,
    {
        let (guard, mut change) = (self.call, Self::new(self.client.clone()));
        async move {
            let Some(guard) = guard else { return Answered::Failed(CallError::Lost) };
            // Without a timer: this future may outlive the runtime that polled it first.
            change.drive(None, None, |call| event(call, guard)).await
        }
    }

    /// Asks a question about a name, once.
    pub async fn ask(mut self, keys: &Arc<Keys>, question: Question) -> Result<Finding, Unasked> {
        let limit = self.limit_elsewhere(Driver::operation_limit);
        match self.drive(None, limit, |call| Event::Ask(call, keys.clone(), question.clone())).await {
            Answered::Found(outcome) => outcome.map_err(Unasked::Failed),
            Answered::Failed(CallError::RuntimeGone) => Err(Unasked::Failed(RequestError::RuntimeGone)),
            // A question has no other outcome.
            _ => Err(Unasked::Closed),
        }
    }

    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

/// Why a question failed.
pub enum Unasked {
    Failed(RequestError),
    Closed,
}

/// The machine answers each change with its outcome, unless the client is closed.
fn lost(answered: &Answered) -> ChangeError {
    ChangeError::Lost(if let Answered::Failed(CallError::Closed) = answered { Loss::Closed } else { Loss::Gone })
}

fn unlocked(answered: Answered) -> Result<Unlocked, UnlockError> {
    match answered {
        Answered::Unlocked(outcome) => outcome,
        Answered::Failed(CallError::Closed) => Err(UnlockError::Lost(Loss::Closed)),
        // The machine answers each unlock with its outcome.
        _ => Err(UnlockError::Lost(Loss::Gone)),
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.call.into_iter().for_each(|call| self.client.driver().gone(call));
    }
}
