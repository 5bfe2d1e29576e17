//! Sends the requests: each with its priority, and with what is known only when it is sent.

use std::sync::Arc;
use std::time::Instant;

use fairlock_proto::requests::ScriptRequest;
use fairlock_proto::requests::acquire::{Acquire, Acquired};
use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::inspect::{Inspect, Inspected};
use fairlock_proto::requests::leave::{Leave, Left};
use fairlock_proto::requests::poll::{Poll, Polled};
use fairlock_proto::requests::release::{Release, Released};
use fairlock_proto::requests::renew::{Renew, Renewed};
use fairlock_proto::requests::set_limit::{LimitSet, SetLimit};

use super::Priority;
use super::admission::InFlight;
use super::error::RequestError;
use super::runner::{Answer, Runner};

type Outcome<T> = Result<Answer<T>, RequestError>;

impl Runner {
    /// `copies_until` is set to the server time until which a copy of this request may be served,
    /// unless an answer proves that none is under way.
    pub async fn acquire(
        &self,
        admitted: Arc<InFlight>,
        acquire: &mut Acquire,
        copies_until: &mut i64,
    ) -> Outcome<Acquired> {
        // Only after admission, which may take long under load. A `not_after` from before could have
        // passed by the time that the request is sent (R2).
        acquire.not_after = self.not_after(&acquire.keys.lock);
        // Before the first await that may lose the answer: from here on a copy may be under way.
        let earlier = *copies_until;
        *copies_until = earlier.max(acquire.not_after);
        let outcome = self.run(admitted, acquire).await;
        // Any other outcome proves that no copy of this request is under way: it was answered, or not
        // sent. A future that is dropped above keeps the later time, and its leave then writes a
        // tombstone (R3).
        if !matches!(outcome, Err(RequestError::Unanswered(_))) {
            *copies_until = earlier;
        }
        outcome
    }

    /// `copies_until`: as of an acquire.
    pub async fn give(&self, admitted: Arc<InFlight>, give: &mut Give, copies_until: &mut i64) -> Outcome<Gave> {
        give.not_after = self.not_after(&give.keys.lock);
        let earlier = *copies_until;
        *copies_until = earlier.max(give.not_after);
        let outcome = self.run(admitted, give).await;
        if !matches!(outcome, Err(RequestError::Unanswered(_))) {
            *copies_until = earlier;
        }
        outcome
    }

    pub async fn release(&self, release: &Release, by: Instant) -> Outcome<Released> {
        // As early as a renewal: a release that waits makes others wait for a lock that is not in use.
        self.send(release, Priority::Release, Some(by)).await
    }

    pub async fn renew(&self, renew: &Renew, by: Option<Instant>) -> Outcome<Renewed> {
        // Urgent: new acquires must never make a holder lose its lock (P8).
        let admitted = self.admit(&renew.keys.lock, Priority::Urgent, by).await?;
        // Boxed: of 100,000 renewals that are due together, few are sent at a time.
        Box::pin(self.run(admitted, renew)).await
    }

    pub async fn poll(&self, poll: &Poll) -> Outcome<Polled> {
        // Urgent: a poll that waits behind new acquires could cost live waiters their place.
        let answer = self.send(poll, Priority::Urgent, None).await?;
        poll.check(&answer.body).map_err(|error| self.distrust(&poll.keys.lock, error))?;
        Ok(answer)
    }

    pub async fn leave(&self, leave: &Leave) -> Outcome<Left> {
        // Early: what is left behind keeps others waiting (P5).
        self.send(leave, Priority::Cleanup, None).await
    }

    pub async fn inspect(&self, inspect: &Inspect) -> Outcome<Inspected> {
        self.send(inspect, Priority::Question, Some(self.limit())).await
    }

    pub async fn force_unlock(&self, force: &mut ForceUnlock) -> Outcome<ForceUnlocked> {
        // A single question passes a closed gate: a person asks it, and wants to see the refusal
        // (decision 40).
        let admitted = self.admit(&force.keys.lock, Priority::Question, Some(self.limit())).await?;
        force.not_after = self.not_after(&force.keys.lock);
        self.run(admitted, force).await
    }

    /// May be repeated: a second run sets the same.
    pub async fn set_limit(&self, set: &mut SetLimit) -> Outcome<LimitSet> {
        let admitted = self.admit(&set.keys.lock, Priority::Question, Some(self.limit())).await?;
        set.not_after = self.not_after(&set.keys.lock);
        self.run(admitted, set).await
    }

    /// Waits until it may be sent, and sends it.
    async fn send<R: ScriptRequest>(&self, request: &R, priority: Priority, by: Option<Instant>) -> Outcome<R::Reply> {
        let admitted = self.admit(&request.keys().lock, priority, by).await?;
        self.run(admitted, request).await
    }
}
