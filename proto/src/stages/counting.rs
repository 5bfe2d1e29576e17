//! What the server counts of a hold. It is set, never added to, so a retry does no harm (P4).

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
    /// One more is asked for, for a nested call. Boxed, because it is rare: each owner would have room for it otherwise.
    Entering(Box<Entering>),
    /// A smaller number, or a smaller weight, is to be set.
    Setting(Box<Setting>),
    /// A new lease is asked for. It comes between no request about the number and its answer, which would find a later one served.
    Extending(Box<Extending>),
}

#[derive(Debug, Clone, Hash)]
pub struct Entering {
    pub call: Call,
    /// What the server counts without it.
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
    /// What the server counts meanwhile.
    pub count: Count,
    /// What the request that is under way asks for.
    pub lease: Duration,
    pub asked: Asked,
}

impl Counting {
    /// What is asked about it, and how urgently.
    pub fn asked(&mut self) -> Option<(&mut Asked, Lane)> {
        match self {
            Self::Settled(_) => None,
            Self::Entering(entering) => Some((&mut entering.asked, Lane::Acquire)),
            Self::Setting(setting) => Some((&mut setting.asked, Lane::Release)),
            // Urgent as a renewal is (P8).
            Self::Extending(extending) => Some((&mut extending.asked, Lane::Urgent)),
        }
    }
}

impl Entering {
    pub fn new(call: Call, from: Count, desk: &mut Desk<'_>) -> Self {
        Self { call, from, asked: desk.next_asked() }
    }

    /// `lease`: what a request that is served sets.
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
