//! A new lease for a hold, by a request of its own (`extend`).

use std::time::Duration;

use crate::canonical::RequestNumber;
use crate::desk::Desk;
use crate::effect::{Outcome, Request};
use crate::error::{ChangeError, RequestError};
use crate::requests::renew::{Only, Renew};
use crate::sending::Sending;
use crate::stages::counting::Retry;
use crate::stages::entry::Who;
use crate::stages::guards::Count;
use crate::stages::hold::Hold;
use crate::stages::line::Change;

#[derive(Debug, Clone, Hash)]
pub struct Extending {
    pub change: Change,
    /// What the server counts meanwhile.
    pub count: Count,
    /// What the request that is under way asks for.
    pub asked: Duration,
    pub retry: Retry,
    pub failure: Option<RequestError>,
}

impl Extending {
    pub fn new(change: Change, count: Count, desk: &mut Desk<'_>) -> Self {
        Self { change, count, asked: change.lease, retry: Retry::new(desk), failure: None }
    }

    pub fn ask(&mut self, number: RequestNumber, lease: Duration, remember: bool, hold: &Hold, who: &Who) -> Request {
        (self.retry.sending, self.asked) = (Sending::UnderWay(number), lease);
        let (keys, owner, token) = (who.keys.clone(), who.owner_id.clone(), hold.token);
        Request::Renew(Renew { keys, owner, token, lease, only: Only::Extend(self.retry.seq.0), remember })
    }

    pub fn tell(&self, outcome: Result<(), ChangeError>, desk: &mut Desk<'_>) {
        desk.tell(self.change.id, Outcome::Extended(outcome));
    }

    /// A request had no answer. `Err`: none can help.
    pub fn failed(&mut self, error: RequestError, desk: &Desk<'_>) -> Result<(), RequestError> {
        self.retry.pause_after(&error, desk.now);
        error.unless_final(&mut self.failure)
    }

    /// Its time is over.
    pub fn time_out(&self, who: &Who, desk: &mut Desk<'_>) {
        let why = desk.why_no_answer(who.slot);
        let error = self.retry.sending.out_of_time(self.failure.clone(), why);
        self.tell(Err(ChangeError::Request(error)), desk);
    }
}
