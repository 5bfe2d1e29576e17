//! The stage of an attempt that asks for the lock, until there is an answer.

use std::time::Duration;

use crate::desk::Desk;
use crate::effect::{Note, Outcome, Way};
use crate::error::{CallError, Fault, RequestError, other_reply};
use crate::event::Manner;
use crate::handle::Handle;
use crate::queue::{Belief, NewWaiter};
use crate::request::{Answer, Reply, Request};
use crate::requests::acquire::{Acquire, Acquired, Mode};
use crate::requests::give::{Gave, Give};
use crate::sending::{Answered, Asked, LastAnswer, Sending, Sent};
use crate::stages::attempt::{Attempt, Call, Remains};
use crate::stages::confirming::Confirming;
use crate::stages::entry::{Said, Stage, Who};
use crate::stages::queued::Queued;
use crate::time::ServerTime;
use crate::trust::{Floor, Grant};

#[derive(Debug, Clone, Hash)]
pub struct Asking {
    pub attempt: Attempt,
    /// A grant that came before the answer `queued`, which the client needs to judge it (R7).
    early: Option<Grant>,
}

impl Asking {
    pub fn new(attempt: Attempt) -> Self {
        Self { attempt, early: None }
    }

    pub fn begin(call: Call, desk: &mut Desk<'_>) -> Stage {
        Stage::Asking(Self::new(Attempt::new(call, desk)))
    }

    /// The same request each time (R1).
    pub fn ask(&mut self, who: &Who, desk: &mut Desk<'_>) -> Request {
        // An answer proves nothing about a message from before its request (R7). If this attempt has the lock, the
        // answer says so.
        self.early = None;
        self.attempt.asked.not_after = desk.not_after(who.slot);
        let Attempt { call: Call { terms, lease, manner, .. }, asked, .. } = &self.attempt;
        let mode = match manner {
            Manner::Waits { .. } => Mode::Queue,
            Manner::Tries { proposed: None, .. } => Mode::Try,
            Manner::Tries { proposed: Some(token), .. } => Mode::Propose(*token),
            Manner::Attaches { handle, .. } => return self.attach(handle, who),
        };
        Request::Acquire(Acquire {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            seq: asked.seq.0,
            mode,
            lease: lease.length(),
            terms: terms.clone(),
            not_after: asked.not_after.0,
        })
    }

    /// Asks for the hold of a handle (R16).
    fn attach(&self, handle: &Handle, who: &Who) -> Request {
        let Attempt { call, asked: Asked { seq, not_after, .. }, .. } = &self.attempt;
        Request::Give(Box::new(Give {
            keys: who.keys.clone(),
            from: handle.owner.clone(),
            seq: seq.0,
            token: handle.token,
            to: who.owner_id.clone(),
            attempt: seq.0,
            lease: call.lease.length(),
            terms: call.terms.clone(),
            not_after: not_after.0,
        }))
    }

    pub fn replied(self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Answered { reply, sent, .. } = answered;
        match reply {
            Ok(Reply { answer: Answer::Acquired(acquired), .. }) => self.answered(acquired, sent, who, desk),
            Ok(Reply { answer: Answer::Gave(gave), server_micros }) => {
                let server_ms = server_micros.unwrap_or_default() / 1000;
                self.attached(gave, server_ms, sent, who, desk)
            }
            reply => self.unanswered(reply.err().unwrap_or_else(other_reply), who, desk),
        }
    }

    fn answered(mut self, acquired: Acquired, sent: Sent, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let last = &mut self.attempt.asked.last;
        match acquired {
            Acquired::Queued { .. } | Acquired::Busy { .. } | Acquired::Full { .. } => *last = LastAnswer::Others(None),
            // The script does not look at the holder if the request is late or its attempt has ended.
            Acquired::Late | Acquired::Over => {}
            Acquired::Held { .. } | Acquired::Lost | Acquired::TooHeavy { .. } => *last = LastAnswer::Nothing,
        }
        match acquired {
            Acquired::Held { token, lease_left, .. } => self.held(token, lease_left, sent, who, desk),
            Acquired::Queued { .. } => self.queued(acquired, sent, who, desk),
            Acquired::Busy { more: false, holder } => {
                // The server keeps nothing of the attempt, unless a copy comes.
                self.attempt.leave(who, desk);
                desk.tell(self.attempt.call.id, Outcome::Busy(holder));
                Stage::Idle
            }
            // The lock is free, but the queue begins with more dead tickets than one call clears. Ask again at once.
            Acquired::Busy { more: true, .. } | Acquired::Full { more: true, .. } => Stage::Asking(self),
            Acquired::Full { waiters, .. } => self.attempt.fail(CallError::QueueFull { waiters }, who, desk),
            // Our estimate of the server's clock was off; this answer has corrected it.
            Acquired::Late => self.pause(desk),
            Acquired::TooHeavy { limit } => self.attempt.fail(CallError::TooHeavy { limit }, who, desk),
            Acquired::Lost | Acquired::Over => self.attempt.anew_later(who, desk),
        }
    }

    fn held(mut self, token: u64, left: Duration, sent: Sent, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.attempt.remains = Remains::Something;
        // The answer took so long that the hold might end before its first renewal.
        if left < 2 * desk.now.since(sent.at) {
            Stage::Confirming(Confirming::new(self.attempt, token, None, desk))
        } else {
            self.attempt.hold_answered(token, sent, left, who, desk)
        }
    }

    fn attached(mut self, gave: Gave, server_ms: i64, sent: Sent, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Manner::Attaches { handle, .. } = &self.attempt.call.manner else { return Stage::Asking(self) };
        let (token, is_undecided) = (handle.token, handle.is_undecided(server_ms));
        match gave {
            Gave::Given { lease_left, weight } => {
                // The hold keeps its weight. The server reports 0 for a lock.
                self.attempt.call.weight = self.attempt.call.weight.max(weight);
                self.held(token, lease_left, sent, who, desk)
            }
            Gave::Late => self.pause(desk),
            Gave::Lost if is_undecided => self.pause(desk),
            Gave::Lost => self.attempt.fail(CallError::Lost, who, desk),
        }
    }

    fn queued(mut self, acquired: Acquired, sent: Sent, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Acquired::Queued { floor, lease_left, more, known, holder } = acquired else { return Stage::Asking(self) };
        (self.attempt.remains, self.attempt.way) = (Remains::Something, Way::HandedOver);
        // The answer to an earlier copy may have said that the server gave the client up (R8).
        let is_known = known && self.attempt.asked.copies_until == ServerTime::default();
        let queue = desk.enqueue(NewWaiter {
            keys: &who.keys,
            slot: who.slot,
            entry: who.id,
            owner_id: &who.owner_id,
            seq: self.attempt.asked.seq,
            floor: Floor { token: floor, asked: sent.at, round_trip: desk.now.since(sent.at), epoch: sent.epoch },
            lease_left,
            holder,
            more,
            belief: if is_known { Belief::Known } else { Belief::GivenUp },
        });
        desk.note(Note::IsQueued(self.attempt.call.id));
        let queued = Queued::new(self.attempt, queue);
        match self.early {
            Some(grant) => queued.told(Said::Pushed(grant), who, desk),
            None => Stage::Queued(queued),
        }
    }

    fn unanswered(mut self, error: RequestError, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // A script that the server stopped half-way may have left anything there.
        if error.may_have_run() {
            self.attempt.remains = Remains::Something;
        }
        let end = error.of_call();
        self.attempt.asked.repeat(error, desk.now);
        // The server granted the lock and the answer got lost. The same request gets that answer at once (P6).
        if self.early.is_some() {
            self.attempt.asked.sending.hurry();
        }
        match end {
            Some(error) => self.attempt.fail(error, who, desk),
            None => Stage::Asking(self),
        }
    }

    fn pause(mut self, desk: &Desk<'_>) -> Stage {
        self.attempt.asked.pause(desk.now);
        Stage::Asking(self)
    }

    /// The server reports that this attempt has the lock.
    pub fn told(mut self, said: Said) -> Stage {
        match said {
            // Messages may come late: the smaller token is about a grant that has ended.
            Said::Pushed(grant) if self.attempt.asked.sending.is_under_way() => {
                self.early = self.early.into_iter().chain([grant]).max_by_key(|grant| grant.token);
            }
            // The answer got lost.
            _ => self.attempt.asked.sending.hurry(),
        }
        Stage::Asking(self)
    }

    pub fn withdraw(mut self) -> Attempt {
        let asked = &mut self.attempt.asked;
        asked.count_copies();
        // The server's earlier refusals, which its gate remembers, say nothing about the request under way.
        if let (Sending::UnderWay(_), LastAnswer::Nothing) = (asked.sending, &asked.last) {
            asked.last = LastAnswer::Failed(RequestError::Unanswered(Fault::NoAnswerYet.into()));
        }
        self.attempt
    }
}
