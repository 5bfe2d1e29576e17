//! One try of a call to get the lock: (owner, seq).

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::canonical::Seq;
use crate::chore::Leaving;
use crate::desk::Desk;
use crate::effect::{Outcome, Way};
use crate::error::{CallError, Cause, Loss, RequestError};
use crate::event::{CallId, Lease, Manner, Scope, TaskId};
use crate::keys::place;
use crate::lease;
use crate::sending::{Answered, Sending};
use crate::stages::asking::Asking;
use crate::stages::entry::{Stage, Who};
use crate::stages::held::Held;
use crate::stages::hold::{Begun, Hold, Holder, Proof, outlasts};
use crate::time::{Instant, ServerTime};

/// A call for a guard.
#[derive(Debug, Clone, Hash)]
pub struct Call {
    pub id: CallId,
    pub scope: Scope,
    pub manner: Manner,
    pub lease: Lease,
    pub weight: u32,
    pub terms: Arc<str>,
    pub task: TaskId,
    pub began: Instant,
    pub attention: Attention,
}

/// Whether the task of a waiting call does anything else, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attention {
    Undisturbed,
    Disturbed,
}

#[derive(Debug, Clone, Hash)]
pub struct Attempt {
    pub call: Call,
    pub seq: Seq,
    /// The latest `not_after` of its requests without an answer: until then a copy may be served.
    pub copies_until: ServerTime,
    pub remains: Remains,
    pub last: LastAnswer,
    pub backoff: Backoff,
    /// When it first asked about a grant. Without an answer, that may have set the lease that it wants.
    pub asked_about: Option<Instant>,
    pub way: Way,
}

/// What the server has of an attempt, copies aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remains {
    Nothing,
    /// A place or a hold.
    Something,
}

/// What the last request about the name came to.
#[derive(Debug, Clone, Hash)]
pub enum LastAnswer {
    /// No answer, or one about this owner alone.
    Nothing,
    /// Others have the lock, or are first in line.
    Others,
    Failed(Cause),
}

impl Attempt {
    pub fn new(call: Call, desk: &mut Desk<'_>) -> Self {
        let seq = desk.next_seq();
        let (backoff, remains, last) = (desk.backoff(seq), Remains::Nothing, LastAnswer::Nothing);
        let (copies_until, way) = (ServerTime::default(), Way::AtOnce);
        Self { call, seq, copies_until, remains, last, backoff, asked_about: None, way }
    }

    /// Leaves if the server has anything of it, or may get it yet (R3).
    pub fn leave(&self, who: &Who, desk: &mut Desk<'_>) {
        let has_copies = self.copies_until > ServerTime::default();
        if has_copies {
            // The answer to that copy may have said that the server had given up this client (R8).
            desk.verify_all(&who.keys.lock);
        }
        if has_copies || self.remains == Remains::Something {
            let leaving = Leaving {
                owner: who.owner_id.clone(),
                seq: self.seq,
                place: place(&who.owner_id, self.seq.0, &self.call.terms),
                copies_until: self.copies_until,
                lease: self.call.lease.length(),
            };
            desk.leave(who.keys.clone(), who.slot, leaving);
        }
    }

    pub fn fail(self, error: CallError, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.leave(who, desk);
        desk.tell(self.call.id, Outcome::Failed(error));
        Stage::Idle
    }

    /// Its time is over.
    pub fn time_out(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let last = self.last.clone();
        self.leave(who, desk);
        let outcome = out_of_time(last, &self.call.manner, who, desk);
        desk.tell(self.call.id, outcome);
        Stage::Idle
    }

    /// The server has forgotten this attempt, or it is over there. A new one goes to the end of the queue.
    pub fn anew(mut self, sending: Sending, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.leave(who, desk);
        (self.seq, self.copies_until, self.remains) = (desk.next_seq(), ServerTime::default(), Remains::Nothing);
        // That was about a grant of the one before.
        (self.asked_about, self.way) = (None, Way::AtOnce);
        Stage::Asking(Asking::new(self, sending))
    }

    /// The same after a pause.
    pub fn anew_later(mut self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let pause = Sending::Pause(desk.now + self.backoff.pause());
        self.anew(pause, who, desk)
    }

    /// By an answer that so much of its lease is left.
    pub fn hold_answered(
        self,
        token: u64,
        answered: &Answered,
        left: Duration,
        who: &Who,
        desk: &mut Desk<'_>,
    ) -> Stage {
        let (wanted, sent, epoch) = (self.call.lease, answered.sent, answered.epoch);
        let deadline = lease::deadline_by_answer(sent, left, wanted.length());
        let proof = if outlasts(left, wanted) { Proof::Grant { epoch } } else { Proof::Answer { sent, epoch } };
        self.hold(Begun { token, deadline, proof }, who, desk)
    }

    /// The lock is this attempt's.
    pub fn hold(mut self, begun: Begun, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if begun.deadline <= desk.now {
            self.remains = Remains::Something;
            return self.anew_later(who, desk);
        }
        let Call { lease, task, scope, .. } = self.call;
        let holder = Holder { terms: self.call.terms.clone(), task, scope, began: desk.now };
        let Begun { token, deadline, proof } = begun;
        let longest = lease.length();
        let hold = Hold { token, attempt: self.seq, lease, deadline, longest, copies_until: self.copies_until, holder };
        let held = Held::begin(hold, proof, &self.call, self.way, desk);
        // Ended by force, and the message overtook the answer.
        if who.revoked >= token { held.lose(Loss::Forced, who, desk) } else { Stage::Held(held) }
    }
}

impl LastAnswer {
    /// A request had no answer. `Err`: the reason does not pass, and ends the call.
    pub fn failed(error: RequestError) -> Result<Self, CallError> {
        match error {
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => Ok(Self::Failed(cause)),
            RequestError::Refused(refusal) if refusal.may_pass() => Ok(Self::Failed(refusal.cause)),
            RequestError::Refused(refusal) => Err(CallError::Refused(refusal)),
            RequestError::RuntimeGone => Err(CallError::RuntimeGone),
        }
    }
}

/// The outcome of a call that is out of time: others have the lock, or the server did not answer.
pub fn out_of_time(last: LastAnswer, manner: &Manner, who: &Who, desk: &mut Desk<'_>) -> Outcome {
    if let Some(cause) = desk.why_unserved(who.slot) {
        return Outcome::Failed(CallError::Unreachable(cause));
    }
    Outcome::Failed(match last {
        LastAnswer::Others if !manner.waits() => return Outcome::Busy,
        LastAnswer::Others => CallError::Timeout,
        LastAnswer::Failed(cause) => CallError::Unreachable(cause),
        LastAnswer::Nothing => CallError::Unreachable(desk.why_no_answer(who.slot)),
    })
}
