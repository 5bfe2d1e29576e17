//! The stage of an owner whose last guard has ended. The client repeats the release until it is answered.

use crate::desk::Desk;
use crate::error::{Ended, Loss, RequestError, UnlockError, Unlocked, other_reply};
use crate::event::CallId;
use crate::request::{Answer, Reply, Request};
use crate::requests::release::Released;
use crate::sending::{Answered, Asked};
use crate::stages::entry::{Stage, Who};
use crate::stages::guards::{Count, Guards};
use crate::stages::hold::Hold;
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
pub struct Releasing {
    hold: Hold,
    /// The unlocks that callers wait for.
    guards: Guards,
    pub asked: Asked,
    /// By then the lease has ended, whatever the server answers.
    until: Instant,
}

impl Releasing {
    pub fn begin(hold: Hold, guards: Guards, desk: &mut Desk<'_>) -> Stage {
        let (asked, until) = (desk.next_asked(), desk.forgotten_at(hold.longest));
        Stage::Releasing(Self { hold, guards, asked, until })
    }

    pub fn ask(&self, who: &Who) -> Request {
        self.hold.release_to(Count::NONE, self.asked.seq, who)
    }

    pub fn replied(self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        match answered.reply {
            Ok(Reply { answer: Answer::Released(released), .. }) => {
                if let Released::Freed { more: true, .. } | Released::Gone { more: true } = released {
                    desk.pass_on(who.keys.clone(), who.slot);
                }
                desk.given_back(&who.keys, who.slot, answered.sent.at);
                self.answered(&released, who, desk)
            }
            reply => self.unanswered(reply.err().unwrap_or_else(other_reply), desk),
        }
    }

    fn answered(mut self, released: &Released, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // The server does not have the hold, but the hold was valid when its last guard ended. An earlier copy has
        // freed it, or its lease has ended since, which does not count as a loss.
        let is_freed = match *released {
            Released::Freed { token, .. } if token == self.hold.token => true,
            Released::Freed { .. } | Released::Held { .. } | Released::Gone { .. } => self.asked.may_have_run(),
            Released::Lost => false,
        };
        let (ended, outcome) = match is_freed {
            true => (Ended::Freed, Ok(Unlocked::Freed)),
            false => {
                // The message about a forced unlock came before this answer.
                let loss = if who.revoked >= self.hold.token { Loss::Forced } else { Loss::Gone };
                (Ended::Lost(loss), Err(UnlockError::Lost(loss)))
            }
        };
        if !is_freed {
            // The freed hold had another token: a late copy of the acquire had taken the lock again (R11).
            self.hold.leave(who, desk);
        }
        self.hold.ended(ended, desk);
        self.guards.tell_ending(&outcome, desk);
        Stage::Idle
    }

    fn unanswered(mut self, error: RequestError, desk: &mut Desk<'_>) -> Stage {
        let until = self.until;
        match &error {
            RequestError::RuntimeGone => return self.runtime_gone(desk),
            // The caller gets the refusal now. The client repeats the release, in case a person helps.
            RequestError::Refused(refusal) if refusal.needs_a_person() => {
                let refusal = refusal.clone();
                self.guards.tell_ending(&Err(UnlockError::Refused { refusal, until }), desk);
            }
            _ => {}
        }
        self.asked.repeat(error, desk.now);
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

    pub fn time(mut self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let failure = self.asked.failure().cloned().map(RequestError::into_cause);
        let (until, cause) = (self.until, failure.unwrap_or_else(|| desk.why_no_answer(who.slot)));
        let unknown = || UnlockError::Unknown { until, cause: cause.clone() };
        self.guards.tell_late(unknown, desk);
        if self.until <= desk.now {
            return self.forget(unknown(), desk);
        }
        Stage::Releasing(self)
    }

    pub fn due(&self) -> Instant {
        self.guards.due().map_or(self.until, |due| due.min(self.until))
    }
}
