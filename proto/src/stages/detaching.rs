//! The stage of a hold that is given to a handle (R16). It is not renewed meanwhile.

use std::time::Duration;

use crate::canonical::RequestNumber;
use crate::desk::Desk;
use crate::effect::{DetachOutcome, Outcome, Request};
use crate::error::{Cause, ChangeError, Ended, Fault, Loss, RequestError, other_reply};
use crate::event::{Answer, CallId, Reply};
use crate::handle::{Handle, SEQ};
use crate::node::Lane;
use crate::requests::give::{Gave, Give};
use crate::sending::{Answered, Sending};
use crate::stages::counting::Retry;
use crate::stages::entry::{Closing, Stage, Who};
use crate::stages::held::Held;
use crate::stages::line::{Change, Line};
use crate::stages::releasing::Copies;
use crate::time::{Instant, ServerTime};

#[derive(Debug, Clone, Hash)]
pub struct Detaching {
    held: Held,
    call: CallId,
    handle: Handle,
    retry: Retry,
    /// Of the requests before the one that is under way.
    copies: Copies,
    /// Of the request that is under way.
    not_after: ServerTime,
    failure: Option<RequestError>,
}

impl Detaching {
    pub fn begin(held: Held, change: Change, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let retry = Retry::new(desk);
        let handle = Handle {
            kind: who.keys.kind,
            name: who.keys.name.clone(),
            owner: format!("{}-{}:0", desk.settings().client, retry.seq.0).into(),
            token: held.hold.token,
            lease: whole_millis(change.lease),
            copies_until: ServerTime::default(),
        };
        let (not_after, copies) = (ServerTime::default(), Copies::None);
        Stage::Detaching(Box::new(Self { held, call: change.id, handle, retry, copies, not_after, failure: None }))
    }

    pub fn ask(&mut self, number: RequestNumber, who: &Who, desk: &mut Desk<'_>) -> Request {
        (self.retry.sending, self.not_after) = (Sending::UnderWay(number), desk.not_after(who.slot));
        Request::Give(Box::new(Give {
            keys: who.keys.clone(),
            from: who.owner_id.clone(),
            seq: self.retry.seq.0,
            token: self.handle.token,
            to: self.handle.owner.clone(),
            attempt: SEQ,
            lease: self.handle.lease,
            terms: self.held.hold.holder.terms.clone(),
            not_after: self.not_after.0,
        }))
    }

    pub fn wants(&self) -> Option<Lane> {
        self.retry.sending.wants(Lane::Acquire)
    }

    /// While nothing was sent the hold ends at its deadline. Then the server decides.
    pub fn due(&self) -> Option<Instant> {
        let deadline = Some(self.held.hold.deadline).filter(|_| !self.may_have_run());
        self.retry.sending.due().into_iter().chain(deadline).min()
    }

    pub fn time(mut self, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if self.held.hold.is_over(desk.now) && !self.may_have_run() {
            return self.refused(ChangeError::Lost(Loss::Expired), line, who, desk);
        }
        self.retry.sending.go_on(desk.now);
        Stage::Detaching(Box::new(self))
    }

    fn may_have_run(&self) -> bool {
        self.copies == Copies::Some || matches!(self.retry.sending, Sending::UnderWay(_))
    }

    pub fn replied(mut self, answered: Answered, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if !self.retry.sending.awaits(answered.number) {
            return Stage::Detaching(Box::new(self));
        }
        let error = match answered.reply {
            Ok(Reply { answer: Answer::Gave(Gave::Given { .. }), .. }) => {
                desk.given_back(&who.keys, who.slot, answered.sent);
                return self.given(who, desk);
            }
            Ok(Reply { answer: Answer::Gave(Gave::Lost), .. }) => return self.lose(Loss::Gone, who, desk),
            // No copy was served, nor will one be, and the answer has corrected our estimate of the server's clock.
            Ok(Reply { answer: Answer::Gave(Gave::Late), .. }) => {
                (self.copies, self.handle.copies_until) = (Copies::None, ServerTime::default());
                RequestError::NotSent(Fault::TooLate.into())
            }
            reply => reply.err().unwrap_or_else(other_reply),
        };
        self.failed(error, line, who, desk)
    }

    fn failed(mut self, error: RequestError, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.retry.pause_after(&error, desk.now);
        self.count_copies(&error);
        match error.unless_final(&mut self.failure) {
            Ok(()) => Stage::Detaching(Box::new(self)),
            Err(error) => self.give_up(error, line, who, desk),
        }
    }

    fn count_copies(&mut self, error: &RequestError) {
        if error.may_have_run() {
            self.copies = Copies::Some;
        }
        if matches!(error, RequestError::Unanswered(_) | RequestError::RuntimeGone) {
            self.handle.copies_until = self.handle.copies_until.max(self.not_after);
        }
    }

    /// Its time is over.
    pub fn time_out(mut self, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let error = self.retry.sending.out_of_time(self.failure.take(), desk.why_no_answer(who.slot));
        self.count_copies(&error);
        self.give_up(error, line, who, desk)
    }

    fn give_up(self, error: RequestError, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        match self.copies {
            Copies::None => self.refused(ChangeError::Request(error), line, who, desk),
            Copies::Some => self.unanswered(error.into_cause(), who, desk),
        }
    }

    /// Its guard has it as before.
    fn refused(self, error: ChangeError, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let outcome = |error| Outcome::Detached(DetachOutcome::Refused(error));
        // P8: its lease may be over by now.
        if self.held.hold.is_over(desk.now) {
            desk.tell(self.call, outcome(ChangeError::Lost(Loss::Expired)));
        } else {
            desk.tell(self.call, outcome(error));
        }
        self.held.keep_after_all(line, who, desk)
    }

    /// The handle has it.
    fn given(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // R3: a copy of the acquire would queue now.
        if self.held.hold.copies_until > ServerTime::default() {
            self.held.hold.leave(who, desk);
        }
        let handle = Handle { copies_until: ServerTime::default(), ..self.handle };
        self.held.hold.ended(Ended::Detached, desk);
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Done(Box::new(handle))));
        Stage::Idle
    }

    /// The handle has it, or it is left: if no copy is served any more, nobody would renew it.
    fn unanswered(self, cause: Cause, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.held.hold.leave(who, desk);
        self.held.hold.ended(Ended::Detached, desk);
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Unanswered(Box::new(self.handle), cause)));
        Stage::Idle
    }

    /// The caller is gone, and with it the handle.
    pub fn gone(mut self, call: CallId, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if call != self.call {
            self.held.guards.remove(call);
            return Stage::Detaching(Box::new(self));
        }
        if !self.may_have_run() {
            return self.held.keep_after_all(line, who, desk);
        }
        // In any order: each of the two leaves nothing to a copy of the request that is served late.
        self.held.hold.leave(who, desk);
        let handle = Handle { copies_until: self.handle.copies_until.max(self.not_after), ..self.handle };
        desk.give_back(who.keys.clone(), who.slot, handle);
        self.held.hold.ended(Ended::Detached, desk);
        Stage::Idle
    }

    pub fn close(mut self, why: Closing, line: &mut Line, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if self.may_have_run() {
            self.handle.copies_until = self.handle.copies_until.max(self.not_after);
            return self.unanswered(Fault::Closed.into(), who, desk);
        }
        match why {
            Closing::ByUser => self.lose(Loss::Closed, who, desk),
            Closing::RuntimeGone => self.refused(why.change_error(), line, who, desk),
        }
    }

    pub fn revoked(self, token: u64, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if self.handle.token == token { self.lose(Loss::Forced, who, desk) } else { Stage::Detaching(Box::new(self)) }
    }

    fn lose(self, loss: Loss, who: &Who, desk: &mut Desk<'_>) -> Stage {
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Refused(ChangeError::Lost(loss))));
        self.held.lose(loss, who, desk)
    }

    pub fn failure(&self) -> Option<Cause> {
        self.failure.clone().map(RequestError::into_cause)
    }

    pub fn is_for(&self, call: CallId) -> bool {
        self.call == call
    }
}

/// As the server gets it, and as the text of a handle says it.
fn whole_millis(lease: Duration) -> Duration {
    lease.saturating_sub(Duration::from_nanos(u64::from(lease.subsec_nanos() % 1_000_000)))
}
