//! The stage of an attempt that has a place in the queue.

use crate::desk::Desk;
use crate::lease;
use crate::sending::Sending;
use crate::slab::Id;
use crate::stages::attempt::{Attempt, LastAnswer};
use crate::stages::confirming::Confirming;
use crate::stages::entry::{Stage, Who};
use crate::stages::hold::{Begun, Proof};
use crate::trust::{Grant, Verdict};

#[derive(Debug, Clone, Hash)]
pub struct Queued {
    pub attempt: Attempt,
    queue: Id,
}

impl Queued {
    pub fn new(attempt: Attempt, queue: Id) -> Self {
        Self { attempt, queue }
    }

    /// A grant of this attempt was pushed.
    pub fn pushed(self, grant: Grant, who: &Who, desk: &mut Desk<'_>) -> Stage {
        match desk.judge(self.queue, grant) {
            Verdict::Over => Stage::Queued(self),
            Verdict::Ask => self.found(grant.token, desk),
            Verdict::Until(until) => {
                let attempt = self.withdraw(desk);
                // At first the grant's own time counts. A lease that is shorter than it is kept from the start.
                let asked = attempt.asked_about.unwrap_or(desk.now);
                let deadline = until.min(lease::deadline(asked, attempt.call.lease.length()));
                let proof = Proof::Grant { epoch: desk.serving(who.slot).epoch };
                attempt.hold(Begun { token: grant.token, deadline, proof }, who, desk)
            }
        }
    }

    /// The server says that it has the lock, and not since when: it is asked.
    pub fn found(self, token: u64, desk: &mut Desk<'_>) -> Stage {
        Stage::Confirming(Confirming::new(self.attempt, token, Some(self.queue), desk))
    }

    /// Its place is lost. At once: those that have lost their places together ask in the order in which they came (P3).
    pub fn ask_anew(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.withdraw(desk).anew(Sending::Waits, who, desk)
    }

    /// Why it has no lock, and with it those of the same owner that wait for it.
    pub fn last_answer(&self, desk: &Desk<'_>) -> LastAnswer {
        desk.failure_of(self.queue).map_or(LastAnswer::Others, LastAnswer::Failed)
    }

    /// It is not polled for any longer.
    pub fn withdraw(self, desk: &mut Desk<'_>) -> Attempt {
        let last = self.last_answer(desk);
        desk.dequeue(self.queue, self.attempt.seq);
        Attempt { last, ..self.attempt }
    }
}
