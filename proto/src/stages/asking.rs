//! The stage of an attempt that asks for the lock, until there is an answer.

use std::time::Duration;

use crate::canonical::RequestNumber;
use crate::desk::Desk;
use crate::effect::{Note, Outcome, Request, Way};
use crate::error::{CallError, Fault, RequestError, other_reply};
use crate::event::{Answer, Manner, Reply};
use crate::handle::Handle;
use crate::queue::{Belief, NewWaiter};
use crate::requests::acquire::{Acquire, Acquired, Mode};
use crate::requests::give::{Gave, Give};
use crate::sending::{Answered, Sending};
use crate::stages::attempt::{Attempt, Call, LastAnswer, Remains};
use crate::stages::confirming::Confirming;
use crate::stages::entry::{Stage, Who};
use crate::stages::queued::Queued;
use crate::time::ServerTime;
use crate::trust::{Floor, Grant};

#[derive(Debug, Clone, Hash)]
pub struct Asking {
    pub attempt: Attempt,
    pub sending: Sending,
    /// Of the request that is under way.
    not_after: ServerTime,
    /// A grant that came before the answer "queued", which is needed to judge it (R7).
    early: Option<Grant>,
}

impl Asking {
    pub fn new(attempt: Attempt, sending: Sending) -> Self {
        Self { attempt, sending, not_after: ServerTime::default(), early: None }
    }

    pub fn begin(call: Call, desk: &mut Desk<'_>) -> Stage {
        Stage::Asking(Self::new(Attempt::new(call, desk), Sending::Waits))
    }

    /// The same request each time (R1).
    pub fn ask(&mut self, number: RequestNumber, who: &Who, desk: &mut Desk<'_>) -> Request {
        let Call { terms, lease, manner, .. } = &self.attempt.call;
        // An answer proves nothing about a message from before its request (R7). If this attempt has the lock, it says so.
        self.early = None;
        self.sending = Sending::UnderWay(number);
        self.not_after = desk.not_after(who.slot);
        let mode = match manner {
            Manner::Waits { .. } => Mode::Queue,
            Manner::Tries { proposed: None, .. } => Mode::Try,
            Manner::Tries { proposed: Some(token), .. } => Mode::Propose(*token),
            Manner::Attaches { handle, .. } => return self.attach(handle, who),
        };
        Request::Acquire(Acquire {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            seq: self.attempt.seq.0,
            mode,
            lease: lease.length(),
            terms: terms.clone(),
            not_after: self.not_after.0,
        })
    }

    /// It asks for what a handle holds (R16).
    fn attach(&self, handle: &Handle, who: &Who) -> Request {
        let Attempt { call, seq, .. } = &self.attempt;
        Request::Give(Box::new(Give {
            keys: who.keys.clone(),
            from: handle.owner.clone(),
            seq: seq.0,
            token: handle.token,
            to: who.owner_id.clone(),
            attempt: seq.0,
            lease: call.lease.length(),
            terms: call.terms.clone(),
            not_after: self.not_after.0,
        }))
    }

    /// A request that is under way may be served until its `not_after`, whatever the server's clock shows later (R3).
    fn count_copies(&mut self) {
        if matches!(self.sending, Sending::UnderWay(_)) {
            self.attempt.copies_until = self.attempt.copies_until.max(self.not_after);
        }
    }

    pub fn replied(self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if !self.sending.awaits(answered.number) {
            return Stage::Asking(self);
        }
        match &answered.reply {
            Ok(Reply { answer: Answer::Acquired(acquired), .. }) => {
                let acquired = *acquired;
                self.answered(acquired, &answered, who, desk)
            }
            Ok(Reply { answer: Answer::Gave(gave), server_micros }) => {
                let (gave, server_ms) = (*gave, server_micros.unwrap_or_default() / 1000);
                self.attached(gave, server_ms, &answered, who, desk)
            }
            _ => self.unanswered(answered.reply.err(), who, desk),
        }
    }

    fn answered(mut self, acquired: Acquired, answered: &Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.attempt.last = match acquired {
            Acquired::Queued { .. } | Acquired::Busy { .. } | Acquired::Full { .. } => LastAnswer::Others,
            // A late request, or one that is over, does not look at who has the lock.
            Acquired::Late | Acquired::Over => self.attempt.last,
            Acquired::Held { .. } | Acquired::Lost | Acquired::TooHeavy { .. } => LastAnswer::Nothing,
        };
        match acquired {
            Acquired::Held { token, lease_left, .. } => self.held(token, lease_left, answered, who, desk),
            Acquired::Queued { .. } => self.queued(&acquired, answered, who, desk),
            Acquired::Busy { more: false } => {
                // Nothing of the attempt is left, unless a copy comes.
                self.attempt.leave(who, desk);
                desk.tell(self.attempt.call.id, Outcome::Busy);
                Stage::Idle
            }
            // Free behind more dead tickets than one call clears.
            Acquired::Busy { more: true } | Acquired::Full { more: true, .. } => self.again(Sending::Waits),
            Acquired::Full { waiters, .. } => self.attempt.fail(CallError::QueueFull { waiters }, who, desk),
            // Our estimate of the server's clock was off; this answer has corrected it.
            Acquired::Late => self.pause(desk),
            Acquired::TooHeavy { limit } => self.attempt.fail(CallError::TooHeavy { limit }, who, desk),
            Acquired::Lost | Acquired::Over => self.attempt.anew_later(who, desk),
        }
    }

    fn held(mut self, token: u64, left: Duration, answered: &Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.attempt.remains = Remains::Something;
        // It was on its way for longer than the hold lasts yet, which might be lost before its first renewal.
        if left < 2 * desk.now.since(answered.sent) {
            Stage::Confirming(Confirming::new(self.attempt, token, None, desk))
        } else {
            self.attempt.hold_answered(token, answered, left, who, desk)
        }
    }

    fn attached(mut self, gave: Gave, server_ms: i64, answered: &Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Manner::Attaches { handle, .. } = &self.attempt.call.manner else { return Stage::Asking(self) };
        let (token, is_undecided) = (handle.token, handle.is_undecided(server_ms));
        match gave {
            Gave::Given { lease_left, weight } => {
                // What is given keeps its weight. A lock has none.
                self.attempt.call.weight = self.attempt.call.weight.max(weight);
                self.held(token, lease_left, answered, who, desk)
            }
            Gave::Late => self.pause(desk),
            Gave::Lost if is_undecided => self.pause(desk),
            Gave::Lost => self.attempt.fail(CallError::Lost, who, desk),
        }
    }

    fn queued(mut self, acquired: &Acquired, answered: &Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Acquired::Queued { floor, lease_left, more, known, .. } = *acquired else { return Stage::Asking(self) };
        (self.attempt.remains, self.attempt.way) = (Remains::Something, Way::HandedOver);
        // The answer to an earlier copy may have said that the client was given up (R8).
        let is_known = known && self.attempt.copies_until == ServerTime::default();
        let Answered { sent, epoch, .. } = *answered;
        let queue = desk.enqueue(&NewWaiter {
            keys: &who.keys,
            slot: who.slot,
            entry: who.id,
            owner_id: &who.owner_id,
            seq: self.attempt.seq,
            floor: Floor { token: floor, asked: sent, round_trip: desk.now.since(sent), epoch },
            lease_left,
            more,
            belief: if is_known { Belief::Known } else { Belief::GivenUp },
        });
        desk.note(Note::IsQueued(self.attempt.call.id));
        let queued = Queued::new(self.attempt, queue);
        match self.early {
            Some(grant) => queued.pushed(grant, who, desk),
            None => Stage::Queued(queued),
        }
    }

    fn unanswered(mut self, error: Option<RequestError>, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let error = error.unwrap_or_else(other_reply);
        if matches!(error, RequestError::Unanswered(_) | RequestError::RuntimeGone) {
            self.count_copies();
        }
        // A script that was refused half-way may have left anything behind.
        if matches!(&error, RequestError::Refused(refusal) if refusal.ran_in_part()) {
            self.attempt.remains = Remains::Something;
        }
        let pause = Sending::Pause(desk.now + self.attempt.backoff.pause_after(&error));
        match LastAnswer::failed(error) {
            Err(error) => self.attempt.fail(error, who, desk),
            Ok(failed) => {
                self.attempt.last = failed;
                // Granted, and the answer is lost: the same request gets it at once (P6).
                let is_granted = self.early.is_some();
                self.again(if is_granted { Sending::Waits } else { pause })
            }
        }
    }

    fn again(mut self, sending: Sending) -> Stage {
        self.sending = sending;
        Stage::Asking(self)
    }

    fn pause(mut self, desk: &Desk<'_>) -> Stage {
        let pause = Sending::Pause(desk.now + self.attempt.backoff.pause());
        self.again(pause)
    }

    /// A grant of this attempt was pushed.
    pub fn pushed(mut self, grant: Grant) -> Stage {
        match self.sending {
            // Granted, and the answer is lost.
            Sending::Pause(_) => self.sending = Sending::Waits,
            Sending::Waits => {}
            // Messages may come late: the one with the smaller token is about a grant that is over.
            Sending::UnderWay(_) => {
                self.early = self.early.into_iter().chain([grant]).max_by_key(|grant| grant.token);
            }
        }
        Stage::Asking(self)
    }

    /// A poll found that this attempt has the lock.
    pub fn found(mut self) -> Stage {
        if let Sending::Pause(_) = self.sending {
            self.sending = Sending::Waits;
        }
        Stage::Asking(self)
    }

    /// It asks no longer.
    pub fn withdraw(mut self) -> Attempt {
        self.count_copies();
        // What the server has refused before says nothing about this request.
        if let (Sending::UnderWay(_), LastAnswer::Nothing) = (self.sending, &self.attempt.last) {
            self.attempt.last = LastAnswer::Failed(Fault::NoAnswerYet.into());
        }
        self.attempt
    }
}
