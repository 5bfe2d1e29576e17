//! The hold of an owner, from its grant to its end.

use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{Epoch, Seq};
use crate::chore::Leaving;
use crate::desk::Desk;
use crate::effect::{Effect, HoldId};
use crate::error::Ended;
use crate::event::{Lease, Scope, TaskId};
use crate::keys::place;
use crate::request::Request;
use crate::requests::release::Release;
use crate::stages::entry::Who;
use crate::stages::guards::Count;
use crate::time::{Instant, ServerTime};

#[derive(Debug, Clone, Hash)]
pub struct Hold {
    pub token: u64,
    /// The attempt that got it.
    pub attempt: Seq,
    /// The first guard's lease. Nested guards share it.
    pub lease: Lease,
    /// On the local clock, less the drift (R5). It never moves back.
    pub deadline: Instant,
    /// The longest lease that a request has asked for.
    pub longest: Duration,
    /// The latest time at which the server may serve a copy of the acquire. The end of the hold sets a tombstone until
    /// then (R3).
    pub copies_until: ServerTime,
    pub holder: Holder,
}

/// The call that asked for the hold.
#[derive(Debug, Clone, Hash)]
pub struct Holder {
    /// The terms of the attempt's place in the queue.
    pub terms: Arc<str>,
    pub task: TaskId,
    pub scope: Scope,
    pub began: Instant,
}

impl Hold {
    pub fn id(&self) -> HoldId {
        HoldId(self.attempt)
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    /// Sets the server's count. `Count::NONE` frees the lock.
    pub fn release_to(&self, Count { holds, weight }: Count, seq: Seq, who: &Who) -> Request {
        let copies_until = if holds == 0 { self.copies_until.0 } else { 0 };
        Request::Release(Release {
            keys: who.keys.clone(),
            owner: who.owner_id.clone(),
            token: self.token,
            holds,
            weight,
            seq: seq.0,
            attempt: self.attempt.0,
            copies_until,
            terms: self.holder.terms.clone(),
            is_handle: false,
        })
    }

    /// A lost hold leaves, with a new seq (R11).
    pub fn leave(&self, who: &Who, desk: &mut Desk<'_>) {
        let (seq, not_after) = (desk.next_seq(), desk.not_after(who.slot));
        let leaving = Leaving {
            owner: who.owner_id.clone(),
            seq,
            place: place(&who.owner_id, self.attempt.0, &self.holder.terms),
            copies_until: self.copies_until.max(not_after),
            lease: self.longest,
        };
        desk.leave(who.keys.clone(), who.slot, leaving);
    }

    pub fn ended(&self, ended: Ended, desk: &mut Desk<'_>) {
        desk.effects.push(Effect::Ended(self.id(), ended));
    }
}

/// How a hold begins.
pub struct Begun {
    pub token: u64,
    pub deadline: Instant,
    /// The epoch of the server that answered, or that pushed the grant.
    pub epoch: Epoch,
    pub set: LeaseSet,
}

/// Whether the server keeps the lease that the holder wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseSet {
    /// Yes: a request from this instant has set it.
    Wanted(Instant),
    /// No: it keeps the lease of a grant, which may be longer or shorter.
    OfGrant,
}
