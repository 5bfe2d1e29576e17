//! The stage of an attempt that has a place in the queue.

use crate::desk::Desk;
use crate::lease;
use crate::sending::LastAnswer;
use crate::slab::Id;
use crate::stages::attempt::Attempt;
use crate::stages::confirming::Confirming;
use crate::stages::entry::{Said, Stage, Who};
use crate::stages::hold::{Begun, LeaseSet};
use crate::trust::Verdict;

#[derive(Debug, Clone, Hash)]
pub struct Queued {
    pub attempt: Attempt,
    queue: Id,
}

impl Queued {
    pub fn new(attempt: Attempt, queue: Id) -> Self {
        Self { attempt, queue }
    }

    /// The server reports that the attempt has the lock. A poll does not report for how long, so the client asks.
    pub fn told(self, said: Said, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let (token, verdict) = match said {
            Said::Pushed(grant) => (grant.token, desk.judge(self.queue, grant)),
            Said::Polled { token } => (token, Verdict::Ask),
        };
        match verdict {
            Verdict::Over => Stage::Queued(self),
            Verdict::Ask => Stage::Confirming(Confirming::new(self.attempt, token, Some(self.queue), desk)),
            Verdict::Until(until) => {
                let attempt = self.withdraw(desk);
                // At first the grant's own time counts. A shorter lease counts from the start.
                let asked = attempt.asked_about.unwrap_or(desk.now);
                let deadline = until.min(lease::deadline(asked, attempt.call.lease.length()));
                let (epoch, set) = (desk.serving(who.slot).epoch, LeaseSet::OfGrant);
                attempt.hold(Begun { token, deadline, epoch, set }, who, desk)
            }
        }
    }

    /// The attempt lost its place. It asks at once: calls that lost their places together ask in the order in which
    /// they came (P3).
    pub fn ask_anew(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        self.withdraw(desk).anew(who, desk)
    }

    /// Why the attempt, and the calls of its owner in line, do not have the lock.
    pub fn last_answer(&self, desk: &Desk<'_>) -> LastAnswer {
        desk.last_answer_of(self.queue)
    }

    pub fn withdraw(mut self, desk: &mut Desk<'_>) -> Attempt {
        let last = self.last_answer(desk);
        desk.dequeue(self.queue, self.attempt.asked.seq);
        self.attempt.asked.last = last;
        self.attempt
    }
}
