//! The server's count of a hold. Requests set it and never add to it, so a retry does no harm (P4).

use std::time::Duration;

use crate::desk::Desk;
use crate::effect::Outcome;
use crate::error::ChangeError;
use crate::node::Lane;
use crate::request::Request;
use crate::requests::acquire::{Acquire, Mode};
use crate::requests::renew::{Only, Renew};
use crate::sending::Asked;
use crate::stages::attempt::Call;
use crate::stages::entry::Who;
use crate::stages::guards::Count;
use crate::stages::hold::Hold;
use crate::stages::line::Change;

#[derive(Debug, Clone, Hash)]
pub enum Counting {
    Settled(Count),
    /// A nested call asks for one more. Boxed, because it is rare: each owner would have room for it otherwise.
    Entering(Box<Entering>),
    /// The client sets a smaller number or a smaller weight.
    Setting(Box<Setting>),
    /// An extend asks for a new lease. It never comes between a request about the number and its answer, because that
    /// request would find a later one served.
    Extending(Box<Extending>),
}

#[derive(Debug, Clone, Hash)]
pub struct Entering {
    pub call: Call,
    /// The server's count without it.
    pub from: Count,
    pub asked: Asked,
}

#[derive(Debug, Clone, Hash)]
pub struct Setting {
    pub to: Count,
    pub asked: Asked,
}

/// A new lease for a hold, by a request of its own (`extend`).
#[derive(Debug, Clone, Hash)]
pub struct Extending {
    pub change: Change,
    /// The server's count in the meantime.
    pub count: Count,
    /// The lease that the request under way asks for.
    pub lease: Duration,
    pub asked: Asked,
}

impl Counting {
    /// The request about it, and its lane.
    pub fn asked(&mut self) -> Option<(&mut Asked, Lane)> {
        match self {
            Self::Settled(_) => None,
            Self::Entering(entering) => Some((&mut entering.asked, Lane::Acquire)),
            Self::Setting(setting) => Some((&mut setting.asked, Lane::Release)),
            // As urgent as a renewal (P8).
            Self::Extending(extending) => Some((&mut extending.asked, Lane::Urgent)),
        }
    }
}

impl Entering {
    pub fn new(call: Call, from: Count, desk: &mut Desk<'_>) -> Self {
        Self { call, from, asked: desk.next_asked() }
    }

    /// The request sets `lease` if the server serves it.
    pub fn ask(&self, hold: &Hold, lease: Duration, who: &Who, desk: &mut Desk<'_>) -> Request {
        Request::Acquire(Acquire {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            seq: self.asked.seq.0,
            mode: Mode::Nest(hold.token, self.from.holds),
            lease,
            terms: hold.holder.terms.clone(),
            not_after: desk.not_after(who.slot).0,
        })
    }
}

impl Extending {
    pub fn new(change: Change, count: Count, desk: &mut Desk<'_>) -> Self {
        Self { change, count, lease: change.lease, asked: desk.next_asked() }
    }

    pub fn ask(&mut self, lease: Duration, remember: bool, hold: &Hold, who: &Who) -> Request {
        self.lease = lease;
        let (keys, owner, token) = (who.keys.clone(), who.owner_id.clone(), hold.token);
        Request::Renew(Renew { keys, owner, token, lease, only: Only::Extend(self.asked.seq.0), remember })
    }

    pub fn tell(&self, outcome: Result<(), ChangeError>, desk: &mut Desk<'_>) {
        desk.tell(self.change.id, Outcome::Extended(outcome));
    }
}
