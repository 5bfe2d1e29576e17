//! The stage of a hold that its guard gives to a handle (R16). The client does not renew it in the meantime.

use std::time::Duration;

use crate::desk::Desk;
use crate::effect::{DetachOutcome, Outcome};
use crate::error::{Cause, ChangeError, Ended, Fault, Loss, RequestError, other_reply};
use crate::event::CallId;
use crate::handle::{Handle, SEQ};
use crate::request::{Answer, Reply, Request};
use crate::requests::give::{Gave, Give};
use crate::sending::{Answered, Asked, LastAnswer};
use crate::stages::entry::{Closing, Stage, Who};
use crate::stages::held::Held;
use crate::stages::line::Change;
use crate::time::{Instant, ServerTime};

#[derive(Debug, Clone, Hash)]
pub struct Detaching {
    held: Held,
    call: CallId,
    handle: Handle,
    pub asked: Asked,
}

impl Detaching {
    pub fn begin(held: Held, change: Change, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let asked = desk.next_asked();
        let handle = Handle {
            kind: who.keys.kind,
            name: who.keys.name.clone(),
            owner: format!("{}-{}:0", desk.settings().client, asked.seq.0).into(),
            token: held.hold.token,
            lease: whole_millis(change.lease),
            copies_until: ServerTime::default(),
        };
        Stage::Detaching(Box::new(Self { held, call: change.id, handle, asked }))
    }

    pub fn ask(&mut self, who: &Who, desk: &mut Desk<'_>) -> Request {
        self.asked.not_after = desk.not_after(who.slot);
        Request::Give(Box::new(Give {
            keys: who.keys.clone(),
            from: who.owner_id.clone(),
            seq: self.asked.seq.0,
            token: self.handle.token,
            to: self.handle.owner.clone(),
            attempt: SEQ,
            lease: self.handle.lease,
            terms: self.held.hold.holder.terms.clone(),
            not_after: self.asked.not_after.0,
        }))
    }

    /// Before the client has sent the request, the hold ends at its deadline. Afterwards the server decides.
    pub fn due(&self) -> Option<Instant> {
        Some(self.held.hold.deadline).filter(|_| !self.may_have_run())
    }

    pub fn time(self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if self.held.hold.is_over(desk.now) && !self.may_have_run() {
            return self.refused(ChangeError::Lost(Loss::Expired), who, desk);
        }
        Stage::Detaching(Box::new(self))
    }

    fn may_have_run(&self) -> bool {
        self.asked.may_have_run() || self.asked.sending.is_under_way()
    }

    pub fn replied(mut self, answered: Answered, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let error = match answered.reply {
            Ok(Reply { answer: Answer::Gave(Gave::Given { .. }), .. }) => {
                desk.given_back(&who.keys, who.slot, answered.sent.at);
                return self.given(who, desk);
            }
            Ok(Reply { answer: Answer::Gave(Gave::Lost), .. }) => return self.lose(Loss::Gone, who, desk),
            // The server has served no copy, nor will it, and this answer has corrected our estimate of its clock.
            Ok(Reply { answer: Answer::Gave(Gave::Late), .. }) => {
                (self.asked.last, self.asked.copies_until) = (LastAnswer::Nothing, ServerTime::default());
                RequestError::NotSent(Fault::TooLate.into())
            }
            reply => reply.err().unwrap_or_else(other_reply),
        };
        match self.asked.repeat_unless_final(error, desk.now) {
            Ok(()) => Stage::Detaching(Box::new(self)),
            Err(error) => self.give_up(error, who, desk),
        }
    }

    pub fn time_out(self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let error = self.asked.out_of_time(desk.why_no_answer(who.slot));
        self.give_up(error, who, desk)
    }

    fn give_up(self, error: RequestError, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if self.may_have_run() {
            self.unanswered(error.into_cause(), who, desk)
        } else {
            self.refused(ChangeError::Request(error), who, desk)
        }
    }

    /// The guard keeps the hold.
    fn refused(self, error: ChangeError, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        // P8: the lease may have ended by now.
        let is_over = self.held.hold.is_over(desk.now);
        let error = if is_over { ChangeError::Lost(Loss::Expired) } else { error };
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Refused(error)));
        self.held.keep_after_all(who, desk)
    }

    /// The handle has the hold.
    fn given(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // R3: a copy of the acquire would queue now.
        if self.held.hold.copies_until > ServerTime::default() {
            self.held.hold.leave(who, desk);
        }
        self.held.hold.ended(Ended::Detached, desk);
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Done(Box::new(self.handle))));
        Stage::Idle
    }

    /// The handle has the hold, or the leave ends it: without a late copy nothing would renew the hold.
    fn unanswered(self, cause: Cause, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.held.hold.leave(who, desk);
        self.held.hold.ended(Ended::Detached, desk);
        let call = self.call;
        desk.tell(call, Outcome::Detached(DetachOutcome::Unanswered(Box::new(self.unanswered_handle()), cause)));
        Stage::Idle
    }

    /// The handle with the time until which the server may serve a copy of the detach.
    fn unanswered_handle(mut self) -> Handle {
        self.asked.count_copies();
        Handle { copies_until: self.asked.copies_until, ..self.handle }
    }

    /// The caller is gone, and with it the handle.
    pub fn gone(mut self, call: CallId, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if call != self.call {
            self.held.guards.remove(call);
            return Stage::Detaching(Box::new(self));
        }
        if !self.may_have_run() {
            return self.held.keep_after_all(who, desk);
        }
        // The order does not matter: each of the two leaves nothing for a late copy of the request.
        self.held.hold.leave(who, desk);
        self.held.hold.ended(Ended::Detached, desk);
        desk.give_back(who.keys.clone(), who.slot, self.unanswered_handle());
        Stage::Idle
    }

    pub fn close(self, why: Closing, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if self.may_have_run() {
            return self.unanswered(Fault::Closed.into(), who, desk);
        }
        match why {
            Closing::ByUser => self.lose(Loss::Closed, who, desk),
            Closing::RuntimeGone => self.refused(why.change_error(), who, desk),
        }
    }

    pub fn revoked(self, token: u64, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if self.handle.token == token { self.lose(Loss::Forced, who, desk) } else { Stage::Detaching(Box::new(self)) }
    }

    fn lose(self, loss: Loss, who: &Who, desk: &mut Desk<'_>) -> Stage {
        desk.tell(self.call, Outcome::Detached(DetachOutcome::Refused(ChangeError::Lost(loss))));
        self.held.lose(loss, who, desk)
    }
}

/// Cuts to milliseconds, the unit of the request and of the text of a handle.
fn whole_millis(lease: Duration) -> Duration {
    lease.saturating_sub(Duration::from_nanos(u64::from(lease.subsec_nanos() % 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_of_a_handle_is_cut_to_milliseconds() {
        assert_eq!(whole_millis(Duration::from_micros(5_001_999)), Duration::from_millis(5_001));
    }
}
