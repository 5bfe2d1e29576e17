//! Renews a hold: when the next request is due, and which lease it asks for.

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
    /// The epoch of the server that last answered for the hold.
    checked: Epoch,
    /// When a request last renewed the server's memory of the token.
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

    /// Whether the server of this epoch may not know the hold.
    pub fn is_unchecked(&self, epoch: Epoch) -> bool {
        self.checked != epoch
    }

    /// Asks at once, unless a request is under way.
    pub fn check(&mut self) {
        self.sending.hurry();
    }

    /// The request that is due, or `None` if there is nothing to ask because `max_hold` has passed.
    pub fn ask(&mut self, number: RequestNumber, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Option<Request> {
        let (lease, only) = self.question(hold, who, desk)?;
        self.sending = Sending::UnderWay(number);
        let remember = self.remember(desk);
        let (keys, owner, token) = (who.keys.clone(), who.owner_id.clone(), hold.token);
        Some(Request::Renew(Renew { keys, owner, token, lease, only, remember }))
    }

    /// Whether the request that goes out now should renew the server's memory of the token.
    pub fn remember(&mut self, desk: &Desk<'_>) -> bool {
        let remember = self.remembered + desk.settings().token_ttl / 4 <= desk.now;
        if remember {
            self.remembered = desk.now;
        }
        remember
    }

    /// The lease that an extend asks for. It is never shorter than the holder's own lease: the next renewal comes only
    /// when that one needs it, and an extend takes the place of the first renewal, which would set that lease. But a
    /// hold with renewals ends with `max_hold` all the same.
    pub fn lease_to_extend(&self, wanted: Duration, hold: &Hold, desk: &Desk<'_>) -> Duration {
        let is_set = matches!(self.set, LeaseSet::Wanted(_));
        let own = if hold.lease.is_renewed() || !is_set { hold.lease.length() } else { wanted };
        wanted.max(own.min(held_for(hold, desk)))
    }

    /// The lease that a nested call asks for. Its answer counts as a renewal's, so it asks for the same lease, or for
    /// the time left if a renewal would ask for nothing. Never for less than is left: a key that has lost its time to
    /// live gets this lease.
    pub fn lease(&self, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Duration {
        let left = lease::lasting(hold.deadline.since(desk.now));
        self.question(hold, who, desk).map_or(left, |(lease, _)| lease.max(left))
    }

    fn question(&self, hold: &Hold, who: &Who, desk: &Desk<'_>) -> Option<(Duration, Only)> {
        // A server that took over may have forgotten the request that set the lease, so the client sets again the time
        // that the holder relies on (R5). A server that forgot nothing has that time already, and renew.lua never
        // shortens a lease.
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

    /// The server has answered that this much of the lease is `left`.
    pub fn answered(&mut self, sent: Instant, epoch: Epoch, left: Duration, hold: &mut Hold, desk: &Desk<'_>) {
        // Nothing extends a fixed lease, not even the rounding in answers to nested calls.
        if hold.lease.is_renewed() || self.set == LeaseSet::OfGrant {
            self.extended(sent, epoch, left.min(hold.lease.length()), hold, desk);
        } else {
            self.was_checked(sent, epoch, hold);
        }
    }

    /// The same for the lease of an extend.
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

    pub fn pause(&mut self, hold: &Hold) {
        let due = match self.set {
            LeaseSet::Wanted(sent) => next(hold.lease, sent),
            LeaseSet::OfGrant => None,
        };
        self.sending = pause(due, hold);
    }

    /// Stops waiting for the answer to the request that is under way.
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

    pub fn wait_for_deadline(&mut self, hold: &Hold) {
        self.sending = Sending::Pause(hold.deadline);
    }
}

fn next(lease: Lease, sent: Instant) -> Option<Instant> {
    lease.is_renewed().then(|| lease::next_renewal(sent, lease.length()))
}

/// A pause until the deadline at the latest, when the hold ends.
fn pause(due: Option<Instant>, hold: &Hold) -> Sending {
    Sending::Pause(due.map_or(hold.deadline, |due| due.min(hold.deadline)))
}

/// The end of `max_hold`, if there is one.
pub fn held_until(hold: &Hold, desk: &Desk<'_>) -> Option<Instant> {
    let longest = desk.settings().max_hold.filter(|_| hold.lease.is_renewed())?;
    Some(hold.holder.began + longest)
}

/// How much longer the client may renew it.
fn held_for(hold: &Hold, desk: &Desk<'_>) -> Duration {
    held_until(hold, desk).map_or(Duration::MAX, |until| until.since(desk.now))
}
