//! The stage of an attempt whose grant came too late to be sure: the client asks the server.

use crate::desk::Desk;
use crate::effect::Note;
use crate::request::{Answer, Reply, Request};
use crate::requests::renew::{Only, Renew, Renewed};
use crate::sending::{Answered, LastAnswer};
use crate::slab::Id;
use crate::stages::attempt::{Attempt, Remains};
use crate::stages::entry::{Stage, Who};
use crate::stages::queued::Queued;

#[derive(Debug, Clone, Hash)]
pub struct Confirming {
    pub attempt: Attempt,
    token: u64,
    /// `None` if it never had a place, because the server granted it the lock at once.
    queue: Option<Id>,
}

impl Confirming {
    pub fn new(mut attempt: Attempt, token: u64, queue: Option<Id>, desk: &Desk<'_>) -> Self {
        attempt.asked_about.get_or_insert(desk.now);
        attempt.remains = Remains::Something;
        Self { attempt, token, queue }
    }

    pub fn ask(&self, who: &Who) -> Request {
        Request::Renew(Renew {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            token: self.token,
            lease: self.attempt.call.lease.length(),
            // The server may set the shorter lease, unless it has served a later request since (decision 16).
            only: Only::Attempt(self.attempt.asked.seq.0),
            remember: false,
        })
    }

    pub fn replied(mut self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if let Ok(Reply { answer: Answer::Renewed(Renewed::Renewed { lease_left }), .. }) = answered.reply {
            let token = self.token;
            return self.withdraw(desk).hold_answered(token, answered.sent, lease_left, who, desk);
        }
        if let Err(error) = answered.reply {
            if let Some(error) = error.of_call() {
                return self.withdraw(desk).fail(error, who, desk);
            }
            self.attempt.asked.last = LastAnswer::Failed(error.clone());
            desk.note(Note::CannotConfirm(who.keys.clone(), error.into_cause()));
        }
        match self.queue {
            // The place may still be there. A poll asks the same question, and repeats until it is answered (P9).
            Some(queue) => {
                desk.verify_soon(queue);
                Stage::Queued(Queued::new(self.attempt, queue))
            }
            None => self.attempt.anew_later(who, desk),
        }
    }

    pub fn withdraw(self, desk: &mut Desk<'_>) -> Attempt {
        if let Some(queue) = self.queue {
            desk.dequeue(queue, self.attempt.asked.seq);
        }
        self.attempt
    }
}
