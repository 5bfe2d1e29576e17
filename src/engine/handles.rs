//! Holds that outlive a guard: extending them, giving them to a handle, and what is done by a handle.
//!
//! R16: see the handle of `proto`.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::handle::{Handle, SEQ};
use fairlock_proto::keys::Keys;
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::release::Released;
use fairlock_proto::requests::renew::{Only, Renew, Renewed};
use fairlock_proto::time::ServerTime;

use super::cleanup::{self, LeaveRequest};
use super::context::Context;
use super::detached::{DetachRefusal, ExtendError};
use super::error::Loss;
use super::guard::EngineGuard;
use super::hold::{End, Hold, Question};
use super::lease;
use super::lock::EngineLock;
use super::owners::OwnersTurn;
use crate::store::Priority;
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::error::{Cause, Fault, RequestError};
use crate::store::runner::Answer;

/// How a detach ended.
pub enum DetachOutcome<G> {
    Detached(Handle),
    /// The guard is as before.
    Refused(G, DetachRefusal),
    /// The handle has the hold, or it is free.
    Unanswered(Handle, Cause),
}

impl<G> DetachOutcome<G> {
    /// The same with another kind of guard.
    pub fn of<T>(self, guard: impl FnOnce(G) -> T) -> DetachOutcome<T> {
        match self {
            Self::Detached(handle) => DetachOutcome::Detached(handle),
            Self::Refused(refused, why) => DetachOutcome::Refused(guard(refused), why),
            Self::Unanswered(handle, cause) => DetachOutcome::Unanswered(handle, cause),
        }
    }
}

/// A detach under way. Dropped, it gives back what it may have detached.
struct Detaching {
    /// Gone when the guard has ended.
    guard: Option<EngineGuard>,
    hold: Arc<Hold>,
    handle: Handle,
    /// A request may have been served.
    was_sent: bool,
}

/// Gives what a guard holds to a handle.
pub async fn detach(guard: EngineGuard, lease: Duration) -> DetachOutcome<EngineGuard> {
    let (hold, context) = (guard.hold.clone(), guard.hold.context().clone());
    if let Err(error) = context.options().check_lease("the lease of detach", lease) {
        return DetachOutcome::Refused(guard, DetachRefusal::Lease(error));
    }
    // Before the turn, which another request of this owner may have.
    if let Err(reason) = hold.wait_to_detach() {
        return DetachOutcome::Refused(guard, reason);
    }
    let handle = Handle {
        kind: hold.entry.keys.kind,
        name: hold.entry.keys.name.clone(),
        // It is made in the owner's turn.
        owner: "".into(),
        token: hold.token,
        // Whole milliseconds, as the server gets it: the text of the handle has no more either.
        lease: lease.saturating_sub(Duration::from_nanos(u64::from(lease.subsec_nanos() % 1_000_000))),
        copies_until: ServerTime::default(),
    };
    let mut detaching = Detaching { guard: Some(guard), hold: hold.clone(), handle, was_sent: false };
    let (_turn, limit) = match take_turn(&hold).await {
        Ok(taken) => taken,
        Err(error) => return detaching.refused(DetachRefusal::Request(error)),
    };
    // A nested call may have ended meanwhile.
    if let Err(reason) = hold.begin_to_detach() {
        return detaching.refused(reason);
    }
    let seq = context.next_seq();
    detaching.handle.owner = format!("{}-{seq}:0", context.runner.client.id).into();
    detaching.run(seq, limit).await
}

/// The owner's turn at the server, as for a release, and until when the call has time. A future that has rested meanwhile
/// gets all of it again.
async fn take_turn(hold: &Hold) -> Result<(OwnersTurn, Instant), RequestError> {
    let (context, limit) = (hold.context(), hold.context().runner.limit());
    let taking = async {
        let no_turn = || RequestError::NotSent(hold.entry.why_no_answer(&context.runner));
        hold.entry.turn_in_time(limit).await.ok_or_else(no_turn)
    };
    let turn = context.ask(taking).await?;
    Ok((turn, if now() < limit { limit } else { context.runner.limit() }))
}

/// One request in the owner's turn. For another call of this owner, which waits for that, it notes how far it is.
async fn ask<T>(hold: &Hold, request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    let last_answer = &hold.entry.last_answer;
    let asked = hold.context().ask(request).await;
    match &asked {
        Ok(_) => last_answer.own(),
        Err(error) => drop(last_answer.note(error.clone())),
    }
    asked
}

impl Detaching {
    async fn run(mut self, seq: u64, limit: Instant) -> DetachOutcome<EngineGuard> {
        let context = self.hold.context().clone();
        let (mut backoff, mut copies_until) = (context.backoff(), 0);
        loop {
            if let Some(loss) = self.loss() {
                return self.refused(DetachRefusal::Lost(loss));
            }
            let (hold, handle) = (self.hold.clone(), self.handle.clone());
            let mut give = Give {
                keys: hold.entry.keys.clone(),
                from: hold.entry.owner_id.clone(),
                seq,
                token: hold.token,
                to: handle.owner.clone(),
                attempt: SEQ,
                lease: handle.lease,
                terms: hold.terms.clone(),
                not_after: 0,
            };
            // Before the await that may lose the answer.
            let was_sent = std::mem::replace(&mut self.was_sent, true);
            let asking = async {
                let admitted = context.runner.admit(&give.keys.lock, Priority::Normal, Some(limit)).await?;
                context.runner.give(admitted, &mut give, &mut copies_until).await
            };
            let asked = ask(&hold, asking).await;
            let error = match asked {
                Ok(Answer { body: Gave::Given { .. }, sent, .. }) => {
                    context.given_back(&hold.entry.keys, sent);
                    return self.detached();
                }
                Ok(Answer { body: Gave::Lost, .. }) => {
                    hold.keep_after_all();
                    hold.lose(Loss::Gone);
                    return self.refused(DetachRefusal::Lost(Loss::Gone));
                }
                // No copy was served, and the answer has corrected our estimate of the server's clock.
                Ok(Answer { body: Gave::Late, .. }) => {
                    self.was_sent = false;
                    RequestError::NotSent(Arc::new(Fault::TooLate))
                }
                Err(error) => {
                    self.was_sent = was_sent || error.may_have_run();
                    error
                }
            };
            if !may_try_again(&error, &mut backoff, limit).await {
                return self.failed(error, copies_until);
            }
        }
    }

    /// Ended by force, or by `close`.
    fn loss(&self) -> Option<Loss> {
        match self.hold.end() {
            Some(End::Lost(loss)) if !self.was_sent || loss != Loss::Closed => Some(loss),
            _ => None,
        }
    }

    fn failed(mut self, error: RequestError, copies_until: i64) -> DetachOutcome<EngineGuard> {
        if !self.was_sent || self.loss().is_some() {
            return self.refused(DetachRefusal::Request(error));
        }
        let hold = self.hold.clone();
        self.handle.copies_until = ServerTime(copies_until);
        let handle = self.handle.clone();
        let (leave, _) = self.end();
        // If no copy is served any more, the owner's hold would not be renewed.
        cleanup::leave(hold.context(), leave);
        DetachOutcome::Unanswered(handle, error.into_cause())
    }

    fn detached(mut self) -> DetachOutcome<EngineGuard> {
        let hold = self.hold.clone();
        let handle = self.handle.clone();
        let (leave, copies) = self.end();
        // R3: a copy of the acquire would queue now.
        if copies {
            cleanup::leave(hold.context(), leave);
        }
        DetachOutcome::Detached(handle)
    }

    fn end(&mut self) -> (LeaveRequest, bool) {
        if let Some(guard) = self.guard.take() {
            guard.forget();
        }
        self.hold.detached()
    }

    fn refused(mut self, mut reason: DetachRefusal) -> DetachOutcome<EngineGuard> {
        self.hold.keep_after_all();
        // P8: the hold may have been lost during the tries, or its lease is over by now.
        if let Some(End::Lost(loss)) = self.hold.expire_if_due() {
            reason = DetachRefusal::Lost(loss);
        }
        match self.guard.take() {
            Some(guard) => DetachOutcome::Refused(guard, reason),
            // It does not occur: only an end takes the guard.
            None => DetachOutcome::Unanswered(self.handle.clone(), Arc::new(Fault::NoAnswer(Duration::ZERO))),
        }
    }
}

impl Drop for Detaching {
    fn drop(&mut self) {
        if self.guard.is_none() {
            return;
        }
        if !self.was_sent {
            // The guard is dropped next, and gives it back.
            return self.hold.keep_after_all();
        }
        let (hold, handle) = (self.hold.clone(), self.handle.clone());
        let (leave, _) = self.end();
        let context = hold.context().clone();
        let limit = context.forgotten_at(leave.lease.max(handle.lease));
        // Without `ask`: `close` waits for it.
        context.clone().spawn(async move {
            // First: then no copy of the detach can be served any more.
            cleanup::leave_until(context.clone(), leave, limit).await;
            let mut backoff = context.backoff();
            while now() < limit {
                match release_once(&context, &hold.entry.keys, &handle, context.runner.limit()).await {
                    Err(RequestError::Closed | RequestError::RuntimeGone) | Ok(_) => return,
                    Err(error) => backoff.pause_after(&error).await,
                }
            }
        });
    }
}

/// Sets a new lease from now on, unless more is left.
pub async fn extend(hold: &Arc<Hold>, wanted: Duration) -> Result<(), ExtendError> {
    hold.check_extend(wanted).map_err(ExtendError::Lease)?;
    let context = hold.context();
    let failed = |error| loss_of(hold).map_or(ExtendError::Request(error), ExtendError::Lost);
    // In turn with releases and nested calls: the seq must not come between one of them and its answer.
    let (_turn, limit) = take_turn(hold).await.map_err(failed)?;
    let (mut backoff, seq) = (context.backoff(), context.next_seq());
    let mut may_have_run = false;
    loop {
        if let Some(loss) = loss_of(hold) {
            return Err(ExtendError::Lost(loss));
        }
        // At each try: the turn and an answer that is lost take time, and `max_hold` leaves less.
        let lease = hold.lease_to_extend(wanted);
        let question = Question { lease, only: Only::Extend(seq), doubts: hold.doubts() };
        let entry = &hold.entry;
        let (keys, owner, token) = (entry.keys.clone(), entry.owner_id.clone(), hold.token);
        let renew = Renew { keys, owner, token, lease, only: question.only, remember: hold.remember() };
        // The loss is heard while it waits.
        let asking = pin!(ask(hold, context.runner.renew(&renew, Some(limit))));
        let Some(asked) = hold.over.run_until_cancelled(asking).await else { continue };
        match asked {
            Ok(Answer { body: Renewed::Renewed { lease_left }, sent, .. }) => {
                hold.extend(question, sent, lease::deadline_told(sent, lease_left, lease));
                hold.schedule(false);
                return Ok(());
            }
            Ok(Answer { body: Renewed::Lost, .. }) => hold.lose(Loss::Gone),
            Err(error) => {
                may_have_run |= error.may_have_run();
                if !may_try_again(&error, &mut backoff, limit).await {
                    return Err(failed(error.of_call(may_have_run)));
                }
            }
        }
    }
}

/// Why the guard that is being extended has no hold any more. To that guard, a hold that was released is lost as well.
fn loss_of(hold: &Hold) -> Option<Loss> {
    hold.expire_if_due().map(|end| if let End::Lost(loss) = end { loss } else { Loss::Gone })
}

/// Pauses before another try. `false`: none can help within the time of the call.
async fn may_try_again(error: &RequestError, backoff: &mut Backoff, limit: Instant) -> bool {
    let is_final = match error {
        RequestError::Refused(refusal) => refusal.needs_a_person(),
        RequestError::Closed | RequestError::RuntimeGone | RequestError::Name(_) => true,
        _ => false,
    };
    !is_final && backoff.pause_until(Some(limit), error).await
}

/// Sets a new lease for what a handle holds, unless more is left. `false`: it holds nothing.
pub async fn extend_handle(lock: &EngineLock, handle: &Handle, lease: Duration) -> Result<bool, RequestError> {
    let (context, keys) = (lock.context(), lock.keys()?);
    let (keys, owner, token) = (keys.clone(), handle.owner.clone(), handle.token);
    let renew = Renew { keys, owner, token, lease, only: Only::Longer, remember: true };
    let (limit, mut backoff, mut may_have_run) = (context.runner.limit(), context.backoff(), false);
    loop {
        let error = match context.ask(context.runner.renew(&renew, Some(limit))).await {
            Ok(Answer { body: Renewed::Lost, server_ms, .. }) if handle.is_undecided(server_ms) => {
                RequestError::Unanswered(Arc::new(Fault::Undecided))
            }
            Ok(answer) => return Ok(matches!(answer.body, Renewed::Renewed { .. })),
            Err(error) => error,
        };
        may_have_run |= error.may_have_run();
        if !may_try_again(&error, &mut backoff, limit).await {
            return Err(error.of_call(may_have_run));
        }
    }
}

/// Gives back what a handle holds. `false`: it held nothing.
pub async fn release_handle(lock: &EngineLock, handle: &Handle) -> Result<bool, RequestError> {
    let (context, keys) = (lock.context(), lock.keys()?);
    let (limit, mut backoff, mut may_have_run) = (context.runner.limit(), context.backoff(), false);
    loop {
        match context.ask(release_once(context, keys, handle, limit)).await {
            // An earlier copy without an answer may have freed it.
            Ok(freed) => return Ok(freed || may_have_run),
            Err(error) => {
                may_have_run |= error.may_have_run();
                if !may_try_again(&error, &mut backoff, limit).await {
                    return Err(error.of_call(may_have_run));
                }
            }
        }
    }
}

async fn release_once(
    context: &Arc<Context>,
    keys: &Arc<Keys>,
    handle: &Handle,
    by: Instant,
) -> Result<bool, RequestError> {
    let release = handle.release(keys.clone());
    let answer = context.runner.release(&release, by).await?;
    let (freed, more) = match answer.body {
        Released::Freed { more, .. } => (true, more),
        Released::Gone { more } => (false, more),
        Released::Held { .. } | Released::Lost => (false, false),
    };
    if more {
        cleanup::pass_on(context, keys);
    }
    Ok(freed)
}
