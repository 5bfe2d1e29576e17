//! Releasing: reports to the server that a guard ended. Dropped half-way, the background finishes it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use fairlock_proto::requests::release::{self as verb, Released};
use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};

use super::cleanup;
use super::error::{Loss, UnlockError};
use super::hold::{Count, End, Hold};
use super::owners::OwnersTurn;
use crate::store::admission::PATIENCE;
use crate::store::clock::now;
use crate::store::error::RequestError;

/// The outcome of an unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unlocked {
    /// The lock is free, or the next waiter has it already.
    Freed,
    /// The same owner still holds it this many times.
    StillHeld(u32),
}

/// Makes the server count as many holds as there are guards. Begun when a guard ends, or when a
/// nested acquire was given up half-way.
pub struct Release {
    hold: Arc<Hold>,
    /// The owner's turn at the server; kept until the outcome is known.
    turn: Option<OwnersTurn>,
    /// The last request that was sent: a retry repeats it (R1).
    sent: Option<Sent>,
    /// The holder of the turn may stand still: see [`take_over`].
    without_turn: bool,
    /// Nothing is left to do when this is dropped.
    finished: bool,
}

#[derive(Clone, Copy)]
struct Sent {
    seq: u64,
    count: Count,
    /// A copy that was sent before may have run.
    again: bool,
}

impl Sent {
    /// No guard is left.
    fn last(seq: u64) -> Self {
        Self { seq, count: Count::NONE, again: false }
    }
}

impl Release {
    pub fn new(hold: Arc<Hold>) -> Self {
        Self { hold, turn: None, sent: None, without_turn: false, finished: false }
    }

    /// For a caller that has the owner's turn already.
    pub fn with_turn(hold: Arc<Hold>, turn: OwnersTurn) -> Self {
        Self { hold, turn: Some(turn), sent: None, without_turn: false, finished: false }
    }

    pub fn leaves_guards(&self) -> bool {
        self.hold.live() > 0
    }

    /// There is nothing to release after all. Returns the turn.
    pub fn cancel(mut self) -> Option<OwnersTurn> {
        self.finished = true;
        self.turn.take()
    }

    /// Runs until the outcome is known, or until the server gave no answer within the operation
    /// time-out. Dropped before, it goes on in the background.
    pub async fn run(mut self) -> Result<Unlocked, UnlockError> {
        self.drive().await
    }

    /// The same for a call of this owner that has the turn, and keeps it if nothing is left to be done.
    pub async fn run_before_another(mut self) -> Option<OwnersTurn> {
        let _ = self.drive().await;
        if self.finished { self.turn.take() } else { None }
    }

    async fn drive(&mut self) -> Result<Unlocked, UnlockError> {
        let context = self.hold.context().clone();
        let outcome = {
            // Pinned here, since `run_until_cancelled` would have room for it twice.
            let running = pin!(self.run_in_time());
            context.gone.run_until_cancelled(running).await
        };
        // An outcome that is known already is not lost to the end of the runtime.
        outcome.or_else(|| self.known()).unwrap_or_else(|| Err(self.give_up(RequestError::RuntimeGone)))
    }

    /// The same, in the background: others that wait for a part of what is held need not wait for a future that rests.
    pub async fn run_in_background(self) -> Result<Unlocked, UnlockError> {
        let (context, until) = (self.hold.context().clone(), self.forgotten_at());
        let mut running = Box::pin(self.run());
        let outcome = {
            let _runtime = context.enter();
            // Polled once here, so that it waits for the owner's turn before any later call of that owner does.
            running.as_mut().now_or_never()
        };
        if let Some(outcome) = outcome {
            return outcome;
        }
        let (tell, told) = oneshot::channel();
        context.spawn(running.map(|outcome| drop(tell.send(outcome))));
        told.await.unwrap_or(Err(UnlockError::RuntimeGone { until }))
    }

    async fn run_in_time(&mut self) -> Result<Unlocked, UnlockError> {
        // For all that this call waits for: what is left then is done in the background.
        let limit = now() + self.hold.context().operation_timeout();
        // The deadline does not matter here: the guard has ended before it, and now only the server knows whether the lock
        // is freed in time (decision 11).
        if let Some(End::Lost(loss)) = self.hold.end() {
            self.finished = true;
            return Err(UnlockError::Lost(loss));
        }
        // Another request of this owner may have the turn, and may have no answer either.
        if !self.begin() && timeout_at(limit.into(), self.take_turn()).await.is_err() {
            let cause = self.hold.entry.why_no_answer(&self.hold.context().runner);
            // The release has not finished: dropping it here moves it to the background.
            return Err(UnlockError::Unknown { until: self.forgotten_at(), cause });
        }
        self.finish(Some(limit)).await
    }

    fn forgotten_at(&self) -> Instant {
        self.hold.context().forgotten_at(self.hold.longest_lease())
    }

    /// True if nothing has to be waited for: the owner's turn is free, or not needed.
    fn begin(&mut self) -> bool {
        if self.turn.is_none() && !self.without_turn {
            self.turn = self.hold.entry.try_turn();
        }
        if self.hold.live() == 0 {
            // This future may rest, so the watchdog looks then (P6).
            self.hold.schedule(false);
        }
        self.turn.is_some() || self.without_turn
    }

    async fn take_turn(&mut self) {
        let entry = self.hold.entry.clone();
        let mut turn = pin!(entry.turn());
        while self.turn.is_none() && !self.without_turn {
            match timeout(PATIENCE, turn.as_mut()).await {
                Ok(turn) => self.turn = Some(turn),
                // The future of a nested call or of another unlock has the turn, and may rest.
                Err(_) => self.take_over(),
            }
        }
    }

    /// Goes on without the turn, if no guard is left.
    fn take_over(&mut self) {
        let Some(seq) = self.hold.take_over() else { return };
        self.without_turn = true;
        // A release that was sent without an answer is repeated unchanged (R1).
        if self.sent.is_none_or(|sent| sent.count != Count::NONE) {
            self.sent = Some(Sent::last(seq));
        }
    }

    /// Sends until the outcome is known. With a limit it gives up after it, and at once after a permanent refusal.
    async fn finish(&mut self, limit: Option<Instant>) -> Result<Unlocked, UnlockError> {
        let mut backoff = self.hold.context().backoff();
        loop {
            // We look again after each answer. A guard that was dropped in between needs one more
            // request.
            if let Some(outcome) = self.known() {
                return outcome;
            }
            if let Err(error) = self.send(limit).await {
                if matches!(error, RequestError::Closed | RequestError::RuntimeGone) {
                    return Err(self.give_up(error));
                }
                // A retry may help once a person has changed something. The background retries until the lease is over;
                // the caller gets the error now.
                let is_final = matches!(&error, RequestError::Refused(refusal) if refusal.needs_a_person());
                // A connection that broke has taken no time: the retry may still learn the outcome.
                if limit.is_some() && is_final || !backoff.pause_until(limit, &error).await {
                    // This future may have rested, and the watchdog has released it meanwhile.
                    return self.known().unwrap_or_else(|| Err(self.failed(error)));
                }
            }
        }
    }

    async fn run_to_the_end(&mut self) {
        if !self.begin() {
            self.take_turn().await;
        }
        let _ = self.finish(None).await;
    }

    /// Nothing can be sent any longer, and no answer will come.
    fn give_up(&mut self, error: RequestError) -> UnlockError {
        self.finished = true;
        self.hold.forget();
        self.failed(error)
    }

    fn failed(&self, error: RequestError) -> UnlockError {
        let until = self.forgotten_at();
        match error {
            RequestError::Refused(refusal) => UnlockError::Refused { refusal, until },
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => UnlockError::Unknown { until, cause },
            RequestError::RuntimeGone => UnlockError::RuntimeGone { until },
            error => UnlockError::Unknown { until, cause: Arc::new(error) },
        }
    }

    /// The outcome, if no request or no further one is needed: then this is finished.
    fn known(&mut self) -> Option<Result<Unlocked, UnlockError>> {
        let hold = &self.hold;
        // With guards left, a deadline that has passed ends the hold. Without, the server's answer decides: it may have
        // freed the lock in time.
        let end = if hold.live() > 0 { hold.expire_if_due() } else { hold.end() };
        let outcome = match end {
            Some(End::Freed | End::Detached) => Ok(Unlocked::Freed),
            Some(End::Lost(loss)) => Err(UnlockError::Lost(loss)),
            None if hold.unsettled().is_some() => return None,
            None => Ok(Unlocked::StillHeld(hold.live())),
        };
        self.finished = true;
        Some(outcome)
    }

    /// Sends one request and applies its answer to the hold.
    async fn send(&mut self, limit: Option<Instant>) -> Result<(), RequestError> {
        let hold = self.hold.clone();
        // Read once. A guard may be dropped meanwhile, and what is sent must be what is noted.
        let sent = self.next(hold.count());
        if sent.count == Count::NONE {
            // Before the request: a renewal after it would find the lock gone and report a loss.
            hold.stop_renewing();
        }
        hold.set_unsettled();
        // Before the await that may lose the answer.
        self.sent = Some(Sent { again: true, ..sent });
        let entry = &hold.entry;
        let release = verb::Release {
            keys: entry.keys.clone(),
            owner: entry.owner_id.clone(),
            token: hold.token,
            holds: sent.count.holds,
            weight: sent.count.weight,
            seq: sent.seq,
            attempt: hold.attempt,
            // Late copies of a release do no harm. The tombstone is for those of the acquire (R3).
            copies_until: hold.copies_until(),
            terms: hold.terms.clone(),
            is_handle: false,
        };
        // Other calls wait for the request that has the turn. A release without the turn says nothing about that one.
        let last_answer = (!self.without_turn).then_some(&entry.last_answer);
        let runner = &hold.context().runner;
        match runner.release(&release, limit.unwrap_or_else(|| runner.limit())).await {
            Ok(answer) => {
                last_answer.inspect(|last_answer| last_answer.own());
                if sent.count == Count::NONE {
                    hold.context().given_back(&entry.keys, answer.sent);
                }
                self.settle(sent, &answer.body);
                Ok(())
            }
            Err(error) => {
                // `settle` takes a lock that is not there for our own doing only if an earlier copy may have freed it; after
                // a first copy that would be a loss.
                if !error.may_have_run() {
                    // So the next one is the first copy.
                    self.sent = Some(sent);
                }
                // For another call of this owner that waits for its turn and runs out of time.
                let _ = last_answer.map(|last_answer| last_answer.note(error.clone()));
                Err(error)
            }
        }
    }

    /// The same request again, or a new one when the number of guards has changed since.
    fn next(&self, count: Count) -> Sent {
        match self.sent {
            Some(sent) if sent.count == count => sent,
            // A new count needs a new seq. A late copy of the earlier request is then refused, and
            // cannot set the old count again (R1).
            _ => Sent { seq: self.hold.context().next_seq(), count, again: false },
        }
    }

    fn settle(&self, sent: Sent, answer: &Released) {
        let hold = &self.hold;
        // `take_over` sends beside the caller. Each of the two may find that the other one has freed
        // the lock.
        let again = sent.again || hold.is_taken_over();
        // The script stopped at its bound, perhaps before it came to a live waiter. Otherwise the lock
        // would stay free until one of the waiters polls (P6).
        if let Released::Freed { more: true, .. } | Released::Held { more: true, .. } | Released::Gone { more: true } =
            answer
        {
            cleanup::pass_on(hold.context(), &hold.entry.keys);
        }
        match *answer {
            Released::Freed { token, .. } if token == hold.token => hold.freed(),
            Released::Held { holds, .. } => hold.settle(Count { holds, ..sent.count }),
            // It was for an inner guard, and the server had run the one of `take_over` before. The next request asks how the
            // hold ended.
            Released::Lost if sent.count != Count::NONE && hold.is_taken_over() => {}
            // Not there under our token, but it was good when its last guard ended. Either the copy before this one has freed
            // it, or its lease has ended since, which is no loss.
            _ if *answer != Released::Lost && again && hold.was_released_in_time() => hold.freed(),
            // The freed hold had another token: a late copy of the acquire had taken the
            // lock again, after ours had been lost (R11).
            _ => hold.lose(Loss::Gone),
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Lost or freed meanwhile: a task of its own would find nothing to do.
        if self.hold.end().is_none() {
            // The turn goes along. If it was free, a nested call could begin with a count that this release
            // is about to change (P4). `sent` goes along too: a retry repeats its seq (R1).
            go_on(self.hold.clone(), self.turn.take(), self.sent, false);
        }
    }
}

/// Finishes a release that its caller has begun and may never drive again, in the background. There is none while there are
/// guards.
///
/// The caller keeps the owner's turn. That does no harm here: there is no guard left, none can begin any more, and so
/// every release of this hold sets 0 on the server (P4). Either one may find the lock freed by the other, which
/// `Hold::take_over` makes known.
pub fn take_over(hold: &Arc<Hold>) {
    let Some(seq) = hold.take_over() else { return };
    hold.stop_renewing();
    go_on(hold.clone(), None, Some(Sent::last(seq)), true);
}

fn go_on(hold: Arc<Hold>, turn: Option<OwnersTurn>, sent: Option<Sent>, without_turn: bool) {
    let context = hold.context().clone();
    let limit = context.forgotten_at(hold.longest_lease());
    hold.goes_on_in_background();
    context.spawn(async move {
        // Made here: a task that never begins, since its runtime has ended, must not spawn another one.
        let mut rest = InBackground(Release { hold, turn, sent, without_turn, finished: false });
        // Past the limit the lease is over, and there is nothing left to finish.
        let _ = timeout_at(limit.into(), rest.0.run_to_the_end()).await;
    });
}

/// A release in the background. A runtime that shuts down drops it, and it must not spawn again.
struct InBackground(Release);

impl Drop for InBackground {
    fn drop(&mut self) {
        // Watchers of the hold must not wait for an answer that cannot come.
        // We need to mark it _before_ the field is dropped, which comes next. Otherwise that drop would spawn this task
        // again.
        if !std::mem::replace(&mut self.0.finished, true) {
            self.0.hold.forget();
        }
    }
}
