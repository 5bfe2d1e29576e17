//! Where a request stands that is repeated until it is answered, and its answer.

use crate::canonical::{Epoch, RequestNumber};
use crate::error::{Cause, RequestError};
use crate::event::Reply;
use crate::node::Lane;
use crate::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sending {
    /// It is to be sent as soon as it may.
    Waits,
    UnderWay(RequestNumber),
    Pause(Instant),
}

impl Sending {
    pub fn awaits(self, answer: RequestNumber) -> bool {
        self == Self::UnderWay(answer)
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

    /// Why a call has no answer when its time is over. `failure`: of an earlier request. `why`: if none has failed.
    pub fn out_of_time(self, failure: Option<RequestError>, why: Cause) -> RequestError {
        match (self, failure) {
            (Self::UnderWay(_), failure) => RequestError::Unanswered(failure.map_or(why, RequestError::into_cause)),
            (_, Some(failure)) => failure,
            (_, None) => RequestError::NotSent(why),
        }
    }

    /// A pause that is over ends.
    pub fn go_on(&mut self, now: Instant) {
        if self.is_due(now) {
            *self = Self::Waits;
        }
    }
}

/// The answer to a request, or why there is none.
#[derive(Debug)]
pub struct Answered {
    pub number: RequestNumber,
    /// The instant before it was sent: leases count from here (R5).
    pub sent: Instant,
    /// Of the server, when it was sent.
    pub epoch: Epoch,
    pub reply: Result<Reply, RequestError>,
}
