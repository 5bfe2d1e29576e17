//! What the server counts of a hold. It is set, never added to, so a retry does no harm (P4).

use std::time::Duration;

use crate::backoff::Backoff;
use crate::canonical::{RequestNumber, Seq};
use crate::desk::Desk;
use crate::effect::Request;
use crate::error::{Cause, RequestError};
use crate::node::Lane;
use crate::requests::acquire::{Acquire, Mode};
use crate::sending::Sending;
use crate::stages::attempt::Call;
use crate::stages::entry::Who;
use crate::stages::extending::Extending;
use crate::stages::guards::Count;
use crate::stages::hold::Hold;
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
pub enum Counting {
    Settled(Count),
    /// One more is asked for, for a nested call. Boxed, because it is rare: each owner would have room for it otherwise.
    Entering(Box<Entering>),
    /// A smaller number, or a smaller weight, is to be set.
    Setting(Setting),
    /// A new lease is asked for. It comes between no request about the number and its answer, which would find a later one served.
    Extending(Box<Extending>),
}

#[derive(Debug, Clone, Hash)]
pub struct Entering {
    /// `None`: it was given up. Its answer, or the next request, says what the server counts.
    pub call: Option<Call>,
    /// What the server counts without it.
    pub from: Count,
    pub retry: Retry,
    pub failure: Option<Cause>,
}

#[derive(Debug, Clone, Hash)]
pub struct Setting {
    pub to: Count,
    pub retry: Retry,
}

/// A request that is repeated with its seq until it is answered (R1).
#[derive(Debug, Clone, Hash)]
pub struct Retry {
    pub seq: Seq,
    pub sending: Sending,
    backoff: Backoff,
}

impl Retry {
    pub fn new(desk: &mut Desk<'_>) -> Self {
        let seq = desk.next_seq();
        Self { seq, sending: Sending::Waits, backoff: desk.backoff(seq) }
    }

    pub fn pause(&mut self, now: Instant) {
        self.sending = Sending::Pause(now + self.backoff.pause());
    }

    pub fn pause_after(&mut self, error: &RequestError, now: Instant) {
        self.sending = Sending::Pause(now + self.backoff.pause_after(error));
    }
}

impl Counting {
    pub fn awaits(&self, number: RequestNumber) -> bool {
        self.sending().is_some_and(|sending| sending.awaits(number))
    }

    fn sending(&self) -> Option<Sending> {
        match self {
            Self::Settled(_) => None,
            Self::Entering(entering) => Some(entering.retry.sending),
            Self::Setting(setting) => Some(setting.retry.sending),
            Self::Extending(extending) => Some(extending.retry.sending),
        }
    }

    pub fn wants(&self) -> Option<Lane> {
        match self {
            Self::Settled(_) => None,
            Self::Entering(entering) => entering.retry.sending.wants(Lane::Acquire),
            Self::Setting(setting) => setting.retry.sending.wants(Lane::Release),
            // Urgent as a renewal is (P8).
            Self::Extending(extending) => extending.retry.sending.wants(Lane::Urgent),
        }
    }

    pub fn due(&self) -> Option<Instant> {
        self.sending().and_then(Sending::due)
    }

    pub fn go_on(&mut self, now: Instant) {
        match self {
            Self::Settled(_) => {}
            Self::Entering(entering) => entering.retry.sending.go_on(now),
            Self::Setting(setting) => setting.retry.sending.go_on(now),
            Self::Extending(extending) => extending.retry.sending.go_on(now),
        }
    }
}

impl Setting {
    pub fn ask(&mut self, number: RequestNumber, hold: &Hold, who: &Who) -> Request {
        self.retry.sending = Sending::UnderWay(number);
        hold.release_to(self.to, self.retry.seq, who)
    }
}

impl Entering {
    pub fn new(call: Call, from: Count, desk: &mut Desk<'_>) -> Self {
        Self { call: Some(call), from, retry: Retry::new(desk), failure: None }
    }

    /// `lease`: what a request that is served sets.
    pub fn ask(
        &mut self,
        number: RequestNumber,
        hold: &Hold,
        lease: Duration,
        who: &Who,
        desk: &mut Desk<'_>,
    ) -> Request {
        self.retry.sending = Sending::UnderWay(number);
        Request::Acquire(Acquire {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            seq: self.retry.seq.0,
            mode: Mode::Nest(hold.token, self.from.holds),
            lease,
            terms: hold.holder.terms.clone(),
            not_after: desk.not_after(who.slot).0,
        })
    }
}
