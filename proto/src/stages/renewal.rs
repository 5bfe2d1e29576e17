//! Renewing a hold: when its next request is due, and what it asks.

use std::time::Duration;

use crate::canonical::{Epoch, RequestNumber};
use crate::desk::Desk;
use crate::event::Lease;
use crate::lease;
use crate::request::Request;
use crate::requests::renew::{Only, Renew};
use crate::sending::Sending;
use crate::stages::entry::Who;
use crate::stages::hold::{Hold, LeaseSet};
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
pub struct Renewal {
    pub sending: Sending,
    set: LeaseSet,
    /// Of the server that last answered for the hold.
    checked: Epoch,
    /// When a request last kept the memory of the token.
    remembered: Instant,
}

impl Renewal {
    pub fn begin(hold: &Hold, set: LeaseSet, epoch: Epoch, now: Instant) -> Self {
        let due = match set {
            LeaseSet::OfGrant => Some(lease::first_renewal(now, hold.deadline)),
            LeaseSet::Wanted(sent) => next(hold.lease, sent),
        };
        Self { sending: pause(due, hold), set, checked: epoch, remembered: now }
    }

    /// The server that has the lock now may not know the hold.
    pub fn is_unchecked(&self, epoch: Epoch) -> bool {
        self.checked != epoch
    }

    /// Asks at once, unless a request is under way.
    pub fn check(&mut self) {
        self.sending.hurry();
    }

    /// The request that is due. `None`: there is nothing to ask, as `max_hold` is over.
    pub fn ask(&mut self, number: RequestNumber, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Option<Request> {
        let (lease, only) = self.question(hold, who, desk)?;
        self.sending = Sending::UnderWay(number);
        let remember = self.remember(desk);
        let (keys, owner, token) = (who.keys.clone(), who.owner_id.clone(), hold.token);
        Some(Request::Renew(Renew { keys, owner, token, lease, only, remember }))
    }

    /// Whether the request that is about to be sent keeps the memory of the token.
    pub fn remember(&mut self, desk: &Desk<'_>) -> bool {
        let remember = self.remembered + desk.settings().token_ttl / 4 <= desk.now;
        if remember {
            self.remembered = desk.now;
        }
        remember
    }

    /// The lease that an extend asks for. Never shorter than what the holder has asked for: the next renewal comes only then,
    /// and the first one, which would set that lease, goes with an extend. But a hold that is renewed ends with `max_hold` all
    /// the same.
    pub fn lease_to_extend(&self, wanted: Duration, hold: &Hold, desk: &Desk<'_>) -> Duration {
        let is_set = matches!(self.set, LeaseSet::Wanted(_));
        let own = if hold.lease.is_renewed() || !is_set { hold.lease.length() } else { wanted };
        wanted.max(own.min(held_for(hold, desk)))
    }

    /// The lease that a nested call asks for: that of a renewal, since its answer counts as one. Where that has nothing to ask it
    /// is what is left. Never less: a key that has lost its time to live gets this one.
    pub fn lease(&self, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Duration {
        let left = lease::lasting(hold.deadline.since(desk.now));
        self.question(hold, who, desk).map_or(left, |(lease, _)| lease.max(left))
    }

    fn question(&self, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Option<(Duration, Only)> {
        // A server that took over may have forgotten the request that set the lease. What the holder relies on is set again
        // (R5); where nothing was forgotten the server has that, and renew.lua never shortens a lease.
        let left = lease::lasting(hold.deadline.since(desk.now));
        let wanted = hold.lease.length().min(held_for(hold, desk));
        let is_unchecked = self.is_unchecked(desk.serving(who.slot).epoch);
        match self.set {
            LeaseSet::OfGrant => Some((wanted.max(left.min(hold.lease.length())), Only::Attempt(hold.attempt.0))),
            LeaseSet::Wanted(_) if hold.lease.is_renewed() && !wanted.is_zero() => {
                Some((if is_unchecked { wanted.max(left) } else { wanted }, Only::Longer))
            }
            // A fixed lease is not extended.
            LeaseSet::Wanted(_) => is_unchecked.then_some((left, Only::Longer)),
        }
    }

    /// The server has answered that so much of the lease is left.
    pub fn answered(&mut self, sent: Instant, epoch: Epoch, left: Duration, hold: &mut Hold, desk: &Desk<'_>) {
        // A fixed lease is not extended, not even by what the answers to nested calls round up.
        if hold.lease.is_renewed() || self.set == LeaseSet::OfGrant {
            self.extended(sent, epoch, left.min(hold.lease.length()), hold, desk);
        } else {
            self.was_checked(sent, epoch, hold);
        }
    }

    /// The same for a lease that was asked for beside the renewals.
    pub fn extended(&mut self, sent: Instant, epoch: Epoch, left: Duration, hold: &mut Hold, desk: &Desk<'_>) {
        let told = lease::deadline(sent, left);
        hold.deadline = hold.deadline.max(told.min(held_until(hold, desk).unwrap_or(told)));
        self.was_checked(sent, epoch, hold);
    }

    fn was_checked(&mut self, sent: Instant, epoch: Epoch, hold: &Hold) {
        self.checked = self.checked.max(epoch);
        // Answers may overtake each other.
        if !matches!(self.set, LeaseSet::Wanted(last) if last > sent) {
            self.set = LeaseSet::Wanted(sent);
        }
        if !self.sending.is_under_way() {
            self.pause(hold);
        }
    }

    /// Until the next renewal is due.
    pub fn pause(&mut self, hold: &Hold) {
        let due = match self.set {
            LeaseSet::Wanted(sent) => next(hold.lease, sent),
            LeaseSet::OfGrant => None,
        };
        self.sending = pause(due, hold);
    }

    /// An answer to the request that is under way is not waited for any longer.
    pub fn unanswered(&mut self) {
        if self.sending.is_under_way() {
            self.sending = Sending::Waits;
        }
    }

    /// The outcome is unknown: only the deadline ends the hold (R12).
    pub fn retry(&mut self, hold: &Hold, now: Instant) {
        let pause = now + lease::retry_pause(hold.lease.length());
        self.sending = Sending::Pause(pause.min(hold.deadline));
    }

    /// Nothing more is asked before the deadline.
    pub fn wait_for_deadline(&mut self, hold: &Hold) {
        self.sending = Sending::Pause(hold.deadline);
    }
}

fn next(lease: Lease, sent: Instant) -> Option<Instant> {
    lease.is_renewed().then(|| lease::next_renewal(sent, lease.length()))
}

/// At the deadline at the latest, where the hold is lost.
fn pause(due: Option<Instant>, hold: &Hold) -> Sending {
    Sending::Pause(due.map_or(hold.deadline, |due| due.min(hold.deadline)))
}

/// The end of `max_hold`, if there is one.
pub fn held_until(hold: &Hold, desk: &Desk<'_>) -> Option<Instant> {
    let longest = desk.settings().max_hold.filter(|_| hold.lease.is_renewed())?;
    Some(hold.holder.began + longest)
}

/// For how long it may be renewed yet.
fn held_for(hold: &Hold, desk: &Desk<'_>) -> Duration {
    held_until(hold, desk).map_or(Duration::MAX, |until| until.since(desk.now))
}
