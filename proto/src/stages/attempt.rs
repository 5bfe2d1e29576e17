//! One try of a call to get the lock, named by (owner, seq).

use std::sync::Arc;
use std::time::Duration;

use crate::chore::Leaving;
use crate::desk::Desk;
use crate::effect::{Outcome, Way};
use crate::error::{CallError, Loss};
use crate::event::{CallId, Lease, Manner, Scope, TaskId};
use crate::keys::place;
use crate::lease;
use crate::sending::{Asked, LastAnswer, Sent};
use crate::stages::asking::Asking;
use crate::stages::entry::{Stage, Who};
use crate::stages::held::Held;
use crate::stages::hold::{Begun, Hold, Holder, LeaseSet};
use crate::stages::renewal::Renewal;
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

/// Whether the task of a waiting call does anything else, as far as the machine knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attention {
    Undisturbed,
    Disturbed,
}

#[derive(Debug, Clone, Hash)]
pub struct Attempt {
    pub call: Call,
    /// The request for the lock, or the question about a grant.
    pub asked: Asked,
    pub remains: Remains,
    /// When it first asked about a grant. Even unanswered, that may have set the lease that the call wants.
    pub asked_about: Option<Instant>,
    pub way: Way,
}

/// What the server has of an attempt, apart from copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remains {
    Nothing,
    /// A place or a hold.
    Something,
}

impl Attempt {
    pub fn new(call: Call, desk: &mut Desk<'_>) -> Self {
        Self { call, asked: desk.next_asked(), remains: Remains::Nothing, asked_about: None, way: Way::AtOnce }
    }

    /// Leaves if the server has anything of the attempt, or may still get it (R3).
    pub fn leave(&self, who: &Who, desk: &mut Desk<'_>) {
        let Asked { seq, copies_until, .. } = self.asked;
        let has_copies = copies_until > ServerTime::default();
        if has_copies {
            // The missing answer may have said that the server had given up this client (R8).
            desk.verify_all(&who.keys.lock);
        }
        if has_copies || self.remains == Remains::Something {
            let leaving = Leaving {
                owner: who.owner_id.clone(),
                seq,
                place: place(&who.owner_id, seq.0, &self.call.terms),
                copies_until,
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

    pub fn time_out(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.leave(who, desk);
        let outcome = out_of_time(self.asked.last, &self.call.manner, who, desk);
        desk.tell(self.call.id, outcome);
        Stage::Idle
    }

    /// The server has forgotten this attempt, or the attempt has ended there. A new one goes to the end of the queue.
    pub fn anew(mut self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.leave(who, desk);
        (self.asked.seq, self.asked.copies_until) = (desk.next_seq(), ServerTime::default());
        // These were about a grant to the attempt before.
        (self.remains, self.asked_about, self.way) = (Remains::Nothing, None, Way::AtOnce);
        Stage::Asking(Asking::new(self))
    }

    /// The same after a pause.
    pub fn anew_later(mut self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.asked.pause(desk.now);
        self.anew(who, desk)
    }

    /// Begins a hold after an answer that this much of its lease is `left`.
    pub fn hold_answered(self, token: u64, sent: Sent, left: Duration, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let (wanted, Sent { at, epoch }) = (self.call.lease, sent);
        let deadline = lease::deadline_by_answer(at, left, wanted.length());
        // The server still keeps a longer lease, the grant's.
        let set = if left > wanted.length() { LeaseSet::OfGrant } else { LeaseSet::Wanted(at) };
        self.hold(Begun { token, deadline, epoch, set }, who, desk)
    }

    /// Begins a hold, unless its deadline has passed already.
    pub fn hold(mut self, begun: Begun, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if begun.deadline <= desk.now {
            self.remains = Remains::Something;
            return self.anew_later(who, desk);
        }
        let Call { lease, task, scope, .. } = self.call;
        let holder = Holder { terms: self.call.terms.clone(), task, scope, began: desk.now };
        let Begun { token, deadline, epoch, set } = begun;
        let (longest, Asked { seq: attempt, copies_until, .. }) = (lease.length(), self.asked);
        let hold = Hold { token, attempt, lease, deadline, longest, copies_until, holder };
        let renewal = Renewal::begin(&hold, set, epoch, desk.now);
        let held = Held::begin(hold, renewal, &self.call, self.way, desk);
        // A forced unlock has ended it, and the message overtook the answer.
        if who.revoked >= token { held.lose(Loss::Forced, who, desk) } else { Stage::Held(held) }
    }
}

/// The outcome of a call whose time has run out: others have the lock, or the server did not answer.
pub fn out_of_time(last: LastAnswer, manner: &Manner, who: &Who, desk: &mut Desk<'_>) -> Outcome {
    if let Some(cause) = desk.why_unserved(who.slot) {
        return Outcome::Failed(CallError::Unreachable(cause));
    }
    Outcome::Failed(match last {
        LastAnswer::Others(holder) if !manner.waits() => return Outcome::Busy(holder),
        LastAnswer::Others(holder) => CallError::Timeout(holder),
        LastAnswer::Failed(error) => CallError::Unreachable(error.into_cause()),
        LastAnswer::Nothing => CallError::Unreachable(desk.why_no_answer(who.slot)),
    })
}
