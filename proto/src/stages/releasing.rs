//! The stage of an owner whose last guard has ended: the lock is released, and the request repeated until it is answered.

use crate::canonical::RequestNumber;
use crate::desk::Desk;
use crate::effect::Request;
use crate::error::{Cause, Ended, Loss, RequestError, UnlockError, Unlocked, other_reply};
use crate::event::{Answer, CallId, Reply};
use crate::node::Lane;
use crate::requests::release::Released;
use crate::sending::{Answered, Sending};
use crate::stages::counting::Retry;
use crate::stages::entry::{Stage, Who};
use crate::stages::guards::{Count, Guards};
use crate::stages::hold::Hold;
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
pub struct Releasing {
    hold: Hold,
    /// The unlocks whose callers wait.
    guards: Guards,
    retry: Retry,
    copies: Copies,
    /// When the lease is over, whatever is answered.
    until: Instant,
    failure: Option<Cause>,
}

/// What the requests before this one may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copies {
    None,
    /// One of them may have freed the lock.
    Some,
}

impl Releasing {
    pub fn begin(hold: Hold, guards: Guards, desk: &mut Desk<'_>) -> Stage {
        let (retry, until) = (Retry::new(desk), desk.forgotten_at(hold.longest));
        Stage::Releasing(Self { hold, guards, retry, copies: Copies::None, until, failure: None })
    }

    pub fn ask(&mut self, number: RequestNumber, who: &Who) -> Request {
        self.retry.sending = Sending::UnderWay(number);
        self.hold.release_to(Count::NONE, self.retry.seq, who)
    }

    pub fn wants(&self) -> Option<Lane> {
        self.retry.sending.wants(Lane::Release)
    }

    pub fn replied(self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if !self.retry.sending.awaits(answered.number) {
            return Stage::Releasing(self);
        }
        match answered.reply {
            Ok(Reply { answer: Answer::Released(released), .. }) => {
                if let Released::Freed { more: true, .. } | Released::Gone { more: true } = released {
                    desk.pass_on(who.keys.clone(), who.slot);
                }
                desk.given_back(&who.keys, who.slot, answered.sent);
                self.answered(&released, who, desk)
            }
            reply => self.unanswered(reply.err().unwrap_or_else(other_reply), desk),
        }
    }

    fn answered(mut self, released: &Released, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // Not there, but it was good when its last guard ended: the copy before this one has freed it, or its lease has ended
        // since, which is no loss.
        let is_freed = match *released {
            Released::Freed { token, .. } if token == self.hold.token => true,
            Released::Freed { .. } | Released::Held { .. } | Released::Gone { .. } => self.copies == Copies::Some,
            Released::Lost => false,
        };
        let (ended, outcome) = match is_freed {
            true => (Ended::Freed, Ok(Unlocked::Freed)),
            false => {
                // The message about a forced end has come before this answer.
                let loss = if who.revoked >= self.hold.token { Loss::Forced } else { Loss::Gone };
                (Ended::Lost(loss), Err(UnlockError::Lost(loss)))
            }
        };
        if !is_freed {
            // What was freed had another token: a late copy of the acquire had taken the lock again (R11).
            self.hold.leave(who, desk);
        }
        self.hold.ended(ended, desk);
        self.guards.tell_ending(&outcome, desk);
        Stage::Idle
    }

    fn unanswered(mut self, error: RequestError, desk: &mut Desk<'_>) -> Stage {
        if error.may_have_run() {
            self.copies = Copies::Some;
        }
        self.retry.pause_after(&error, desk.now);
        let until = self.until;
        match error {
            RequestError::RuntimeGone => return self.forget(UnlockError::RuntimeGone { until }, desk),
            // Its caller gets that now. The release is repeated, in case a person helps.
            RequestError::Refused(refusal) if refusal.needs_a_person() => {
                self.guards.tell_ending(&Err(UnlockError::Refused { refusal, until }), desk);
            }
            error => self.failure = Some(error.into_cause()),
        }
        Stage::Releasing(self)
    }

    /// No answer will come.
    pub fn forget(mut self, error: UnlockError, desk: &mut Desk<'_>) -> Stage {
        self.hold.ended(Ended::Unconfirmed, desk);
        self.guards.tell_ending(&Err(error), desk);
        Stage::Idle
    }

    pub fn runtime_gone(self, desk: &mut Desk<'_>) -> Stage {
        let until = self.until;
        self.forget(UnlockError::RuntimeGone { until }, desk)
    }

    pub fn gone(mut self, call: CallId) -> Stage {
        self.guards.remove(call);
        Stage::Releasing(self)
    }

    /// Why there is no answer, as far as a request has failed.
    pub fn failure(&self) -> Option<Cause> {
        self.failure.clone()
    }

    pub fn time(mut self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let cause = self.failure.clone().unwrap_or_else(|| desk.why_no_answer(who.slot));
        let until = self.until;
        let unknown = || UnlockError::Unknown { until, cause: cause.clone() };
        self.guards.tell_late(unknown, desk);
        if self.until <= desk.now {
            return self.forget(unknown(), desk);
        }
        self.retry.sending.go_on(desk.now);
        Stage::Releasing(self)
    }

    pub fn due(&self) -> Instant {
        let dues = [self.retry.sending.due(), self.guards.due()];
        dues.into_iter().flatten().fold(self.until, Instant::min)
    }
}
