//! The state of a request that the client repeats until it is answered, and its answer.

use crate::backoff::Backoff;
use crate::canonical::{Epoch, RequestNumber, Seq};
use crate::error::{Cause, RequestError};
use crate::held_by::HeldBy;
use crate::node::Lane;
use crate::request::Reply;
use crate::time::{Instant, ServerTime};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sending {
    /// It goes out as soon as it may.
    Waits,
    UnderWay(RequestNumber),
    Pause(Instant),
}

impl Sending {
    pub fn awaits(self, answer: RequestNumber) -> bool {
        self == Self::UnderWay(answer)
    }

    pub fn is_under_way(self) -> bool {
        matches!(self, Self::UnderWay(_))
    }

    pub fn wants(self, lane: Lane) -> Option<Lane> {
        matches!(self, Self::Waits).then_some(lane)
    }

    pub fn due(self) -> Option<Instant> {
        if let Self::Pause(until) = self { Some(until) } else { None }
    }

    pub fn is_due(self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Ends a pause whose time has passed.
    pub fn go_on(&mut self, now: Instant) {
        if self.is_due(now) {
            *self = Self::Waits;
        }
    }

    /// Ends a pause early.
    pub fn hurry(&mut self) {
        if let Self::Pause(_) = self {
            *self = Self::Waits;
        }
    }
}

/// A request that the client repeats with the same seq until it is answered (R1).
#[derive(Debug, Clone, Hash)]
pub struct Asked {
    pub seq: Seq,
    pub sending: Sending,
    backoff: Backoff,
    /// The limit of the copy under way: the server does not serve it later. 0 if it may, because that does no harm.
    pub not_after: ServerTime,
    /// The latest `not_after` of the unanswered copies. Until then the server may serve one of them (R3).
    pub copies_until: ServerTime,
    pub last: LastAnswer,
}

/// The outcome of the last copy.
#[derive(Debug, Clone, Hash)]
pub enum LastAnswer {
    /// There was none, or the answer is about this owner alone.
    Nothing,
    /// Others have the lock, or are first in line. With the holder, if the answer names it.
    Others(Option<Box<HeldBy>>),
    /// If the server may have served an earlier copy, the error says so too.
    Failed(RequestError),
}

impl Asked {
    pub fn new(seq: Seq, backoff: Backoff) -> Self {
        let (not_after, copies_until) = (ServerTime::default(), ServerTime::default());
        Self { seq, sending: Sending::Waits, backoff, not_after, copies_until, last: LastAnswer::Nothing }
    }

    /// Whether it has waited for this answer. Then nothing is under way any more.
    pub fn takes(&mut self, answered: &Answered) -> bool {
        let takes = self.sending.awaits(answered.number);
        if takes {
            if matches!(answered.reply, Err(RequestError::Unanswered(_) | RequestError::RuntimeGone)) {
                self.count_copies();
            }
            (self.sending, self.not_after) = (Sending::Waits, ServerTime::default());
        }
        takes
    }

    /// The server may serve the copy under way until its `not_after`, whatever its clock shows later (R3).
    pub fn count_copies(&mut self) {
        self.copies_until = self.copies_until.max(self.not_after);
    }

    pub fn pause(&mut self, now: Instant) {
        self.sending = Sending::Pause(now + self.backoff.pause());
    }

    pub fn pause_after(&mut self, error: &RequestError, now: Instant) {
        self.sending = Sending::Pause(now + self.backoff.pause_after(error));
    }

    /// The request failed. The client sends it again after a pause.
    pub fn repeat(&mut self, error: RequestError, now: Instant) {
        self.pause_after(&error, now);
        self.last = LastAnswer::Failed(error.after(self.failure()));
    }

    /// The same, or `Err` if no other try can help.
    pub fn repeat_unless_final(&mut self, error: RequestError, now: Instant) -> Result<(), RequestError> {
        let is_final = error.is_final();
        self.repeat(error, now);
        self.failure().filter(|_| is_final).map_or(Ok(()), |error| Err(error.clone()))
    }

    pub fn failure(&self) -> Option<&RequestError> {
        if let LastAnswer::Failed(error) = &self.last { Some(error) } else { None }
    }

    /// Whether the server may have served a copy without an answer.
    pub fn may_have_run(&self) -> bool {
        self.failure().is_some_and(RequestError::may_have_run)
    }

    /// The error if the time has run out. `why` counts if no copy has failed.
    pub fn out_of_time(&self, why: Cause) -> RequestError {
        match self.failure().cloned() {
            failure if self.sending.is_under_way() => {
                RequestError::Unanswered(failure.map_or(why, RequestError::into_cause))
            }
            Some(failure) => failure,
            None => RequestError::NotSent(why),
        }
    }
}

/// The answer to a request, or why there is none.
#[derive(Debug)]
pub struct Answered {
    pub number: RequestNumber,
    pub sent: Sent,
    pub reply: Result<Reply, RequestError>,
}

/// When the client sent a request, and to which server.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// The instant before sending: leases count from here (R5).
    pub at: Instant,
    /// The epoch of the server at that time.
    pub epoch: Epoch,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn a_timer_ends_a_pause_that_is_over_and_nothing_else() {
        let [early, due] = [1, 2].map(Instant::from_micros);
        let under_way = Sending::UnderWay(RequestNumber(1));
        for (mut sending, now, then) in [
            (Sending::Pause(due), early, Sending::Pause(due)),
            (Sending::Pause(due), due, Sending::Waits),
            (under_way, due, under_way),
        ] {
            sending.go_on(now);
            assert_eq!(sending, then);
        }
    }

    #[test]
    fn what_is_under_way_when_its_time_is_over_may_be_served_yet() {
        let mut asked = Asked::new(Seq(1), Backoff::new(1));
        assert!(matches!(asked.out_of_time(Fault::NoAnswerYet.into()), RequestError::NotSent(_)));
        asked.sending = Sending::UnderWay(RequestNumber(1));
        assert!(matches!(asked.out_of_time(Fault::NoAnswerYet.into()), RequestError::Unanswered(_)));
    }
}
