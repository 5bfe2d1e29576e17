//! The scripts of locks.

use std::time::Duration;

use fairlock_proto::keys::Share;
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::leave::{Leave, Left};
use fairlock_proto::requests::poll::{Poll, Polled, PolledHolder};
use fairlock_proto::requests::raise::{Raise, Raised};
use fairlock_proto::requests::release::{Release, Released};
use fairlock_proto::requests::renew::{Renew, Renewed};

use super::holders::{Holder, Place};
use super::name::Name;
use super::run::{Run, Silence, Standing, is_usual, micros};

/// The result of a search for the next in line.
#[derive(Default)]
struct Found {
    winner: Option<Place>,
    /// Until when its client counts as alive.
    lives_until_us: u64,
    /// Dead places at the head.
    cleared: usize,
    /// The silence that this search met and must note.
    silence: Silence,
}

impl Run<'_> {
    fn lease_left(&self) -> Option<Duration> {
        self.name.holder.as_ref().map(|holder| self.left_until(holder.until_us))
    }

    pub fn acquire(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, mode, lease, .. } = acquire;
        if self.is_late(acquire.not_after) {
            return Acquired::Late;
        }
        if self.has_left(owner, *seq) {
            return Acquired::Over;
        }
        let ours = self.name.holder.as_ref().is_some_and(|holder| *holder.owner == **owner);
        if let Mode::Nest(token, holds) = mode {
            return self.nest(acquire, *token, *holds);
        }
        let waits = matches!(mode, Mode::Queue);
        match &self.name.holder {
            Some(_) if !ours && waits => return self.join(acquire),
            Some(_) if !ours => return Acquired::Busy { more: false, holder: None },
            Some(holder) if holder.seq == *seq => return self.held(*lease),
            Some(holder) if holder.seq > *seq => return Acquired::Over,
            _ => {}
        }
        self.take_or_join(acquire, waits)
    }

    fn nest(&mut self, acquire: &Acquire, token: u64, holds: u32) -> Acquired {
        match &mut self.name.holder {
            Some(holder) if *holder.owner == *acquire.owner && holder.token == token => {
                if holder.seq > acquire.seq {
                    return Acquired::Over;
                }
                if holder.seq < acquire.seq {
                    (holder.holds, holder.seq) = (holds + 1, acquire.seq);
                }
                self.held(acquire.lease)
            }
            _ => Acquired::Lost,
        }
    }

    /// The lock is free, or its holder asks for a first hold because it has lost the earlier one.
    fn take_or_join(&mut self, acquire: &Acquire, waits: bool) -> Acquired {
        let Acquire { owner, seq, lease, .. } = acquire;
        let token = self.next_token();
        let found = self.look(waits.then_some(&*self.client.id), 2);
        let is_first = found.winner.as_ref().is_some_and(|place| *place.owner == **owner && place.seq == *seq);
        if is_first || found.winner.is_none() && self.frozen_us == 0 {
            if is_first {
                self.hear();
            }
            let token = match acquire.mode {
                Mode::Propose(proposed) if self.may_give(proposed, acquire) => proposed,
                _ => token,
            };
            self.clear(&found);
            self.name.remove_place(owner, *seq);
            self.take(owner, *seq, token, self.ends(micros(*lease)));
            return self.held(*lease);
        }
        if !waits {
            self.serve(found);
            return Acquired::Busy { more: false, holder: None };
        }
        // The caller must not come before the winner (P3).
        let joined = self.join(acquire);
        let won = found.winner.is_some();
        self.serve(found);
        let Acquired::Queued { more, known, .. } = joined else { return joined };
        let floor = if won { token } else { token - 1 };
        let lease_left = if won { self.lease_left() } else { self.frozen_for() };
        Acquired::Queued { floor, lease_left, more, known, holder: None }
    }

    /// Whether the lock may use a proposed token: only if it has no holder, queue or tombstone.
    fn may_give(&self, proposed: u64, Acquire { owner, lease, .. }: &Acquire) -> bool {
        let Name { holder, queue, tombstones, last_token, .. } = &*self.name;
        let is_usual = holder.is_none() && queue.is_empty() && !tombstones.contains_key(&**owner);
        is_usual && proposed > *last_token && proposed <= self.now_us + micros(*lease)
    }

    fn held(&mut self, lease: Duration) -> Acquired {
        let until_us = self.ends(micros(lease));
        let Some(holder) = &mut self.name.holder else { return Acquired::Lost };
        holder.until_us = holder.until_us.max(until_us);
        let (token, holds, until_us) = (holder.token, holder.holds, holder.until_us);
        Acquired::Held { token, holds, lease_left: self.left_until(until_us) }
    }

    fn join(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, .. } = acquire;
        // A client that sent a request a moment ago gets no new deadline.
        let deadline = self.name.deadlines.get(&self.client.id).copied().unwrap_or(0);
        let (left, ttl) = (deadline.saturating_sub(self.now_us), self.waiter_ttl_us());
        let is_fresh = left * 8 > ttl * 7 && left <= ttl && !self.name.has_place(owner, *seq);
        let is_new = self.take_place(acquire);
        let held_by_another = self.name.holder.as_ref().is_some_and(|holder| *holder.owner != **owner);
        let known = (is_fresh && held_by_another) || self.hear_and_keep();
        let floor = self.name.holder.as_ref().map_or(0, |holder| holder.token);
        let lease_left = self.lease_left();
        self.queued(acquire, is_new, Acquired::Queued { floor, lease_left, more: false, known, holder: None })
    }

    /// The first live ticket of a reachable client. `heard`: a client whose deadline this request will extend.
    /// `block`: see `met`.
    fn look(&self, heard: Option<&str>, block: usize) -> Found {
        let mut found = Found::default();
        if self.frozen_us > 0 {
            return found;
        }
        let (silence, mut stop) = (self.find_silence(), None);
        for (at, place) in self.name.queue.iter().enumerate() {
            match self.standing(place, heard, silence) {
                Standing::Waits { until_us } => {
                    (found.winner, found.lives_until_us) = (Some(place.clone()), until_us);
                    stop = Some(at);
                    break;
                }
                Standing::Dead if found.cleared == at => found.cleared = at + 1,
                Standing::Dead | Standing::Unreachable => {}
            }
        }
        found.silence = self.met(silence, heard, stop, block);
        found
    }

    fn clear(&mut self, found: &Found) {
        self.note(found.silence);
        self.name.queue.drain(..found.cleared);
    }

    /// The winner gets the lock, and its client a message. Without a winner the lock is free.
    fn serve(&mut self, found: Found) {
        let token = self.next_token();
        self.clear(&found);
        self.name.holder = None;
        if let Some(Place { owner, seq, first_lease_ms, .. }) = found.winner {
            let lease_ms = first_lease_ms.min((found.lives_until_us - self.now_us) / 1000);
            let holder = self.take(&owner, seq, token, self.ends(lease_ms * 1000));
            self.grant(&holder);
            self.name.remove_place(&owner, seq);
        }
        if self.name.queue.is_empty() {
            self.name.end_queue();
        }
    }

    fn take(&mut self, owner: &str, seq: u64, token: u64, until_us: u64) -> Holder {
        let holder = Holder { owner: owner.to_owned(), holds: 1, seq, token, until_us, share: Share::LOCK };
        self.name.last_token = token;
        self.name.holder.insert(holder).clone()
    }

    pub fn release(&mut self, release: &Release) -> Released {
        let Release { owner, seq, token, holds, .. } = release;
        if *holds > 0 {
            let ours = self.name.holder.as_mut().filter(|holder| *holder.owner == **owner && holder.token == *token);
            let Some(holder) = ours.filter(|holder| holder.seq <= *seq) else { return Released::Lost };
            if holder.seq < *seq {
                (holder.holds, holder.seq) = (*holds, *seq);
            }
            return Released::Held { holds: holder.holds, more: false };
        }
        let freed = self.released(release);
        self.bury(release);
        // A usual release looks only at the first in line.
        let block = if freed.is_some() && is_usual(release) { 1 } else { 2 };
        self.pass_on(freed.is_some(), block);
        freed.map_or(Released::Gone { more: false }, |holder| Released::Freed { token: holder.token, more: false })
    }

    /// `is_ending`: the present hold ends here.
    fn pass_on(&mut self, is_ending: bool, block: usize) {
        if is_ending || self.name.holder.is_none() {
            let found = self.look(None, block);
            self.serve(found);
        }
    }

    pub fn leave(&mut self, leave: &Leave) -> Left {
        let is_ending = self.ours(&leave.owner, leave.seq).is_some();
        self.purge(leave);
        if is_ending || !self.name.queue.is_empty() {
            self.pass_on(is_ending, 2);
        }
        Left { more: false }
    }

    pub fn renew(&mut self, renew: &Renew) -> Renewed {
        let until_us = self.ends(micros(renew.lease));
        match &mut self.name.holder {
            Some(holder) if *holder.owner == *renew.owner && holder.token == renew.token => {
                holder.renew(until_us, renew.only);
                let until_us = holder.until_us;
                Renewed::Renewed { lease_left: self.left_until(until_us) }
            }
            _ => Renewed::Lost,
        }
    }

    pub fn give(&mut self, give: &Give) -> Gave {
        let Give { from, seq, token, to, attempt, lease, .. } = give;
        let Some(holder) = self.name.holder.clone().filter(|holder| holder.token == *token) else { return Gave::Lost };
        if *holder.owner == **to && holder.seq == *attempt {
            return Gave::Given { lease_left: self.left_until(holder.until_us), weight: 0 };
        }
        if self.is_late(give.not_after) {
            return Gave::Late;
        }
        if self.has_left(to, *attempt) || *holder.owner != **from || holder.seq > *seq {
            return Gave::Lost;
        }
        let until_us = self.ends(micros(*lease));
        self.name.holder = Some(Holder { owner: to.to_string(), holds: 1, seq: *attempt, until_us, ..holder });
        Gave::Given { lease_left: self.left_until(until_us), weight: 0 }
    }

    pub fn poll(&mut self, poll: &Poll) -> Polled {
        let waits = self.waits(poll);
        let first = waits && self.is_first();
        let is_missing = |(_, wanted): &(usize, &String)| !self.has_ticket(wanted);
        let missing = poll.tickets.iter().enumerate().filter(is_missing).map(|(at, _)| at).collect();
        let token = self.next_token();
        let found = self.name.holder.is_none().then(|| self.look(waits.then_some(&*self.client.id), 2));
        let known = waits && self.hear_and_keep();
        let places = self.name.queue.len() as u64;
        let Some(found) = found else {
            return self.polled(known, places, first, missing, token - 1);
        };
        if self.frozen_us > 0 {
            let frozen_for = self.frozen_for();
            return Polled { frozen_for, ..self.polled(known, places, first, missing, token - 1) };
        }
        self.serve(found);
        let places = self.name.queue.len() as u64;
        self.polled(known, places, first, missing, token - 1)
    }

    fn polled(&self, known: bool, places: u64, first: bool, missing: Vec<usize>, floor: u64) -> Polled {
        let holder = self.name.holder.as_ref().map(|holder| PolledHolder {
            owner: holder.owner.clone(),
            attempt: holder.seq,
            token: holder.token,
            lease_left: self.lease_left(),
        });
        let floor = holder.as_ref().map_or(floor, |holder| holder.token);
        let (granted, room_in, frozen_for) = (Vec::new(), None, None);
        Polled {
            more: false,
            known,
            places,
            first,
            holder,
            held_by: None,
            granted,
            room_in,
            frozen_for,
            floor,
            missing,
        }
    }

    pub fn raise(&mut self, Raise { owner, token, floor, .. }: &Raise) -> Raised {
        let holder = self.name.holder.as_ref();
        if !holder.is_some_and(|holder| *holder.owner == **owner && holder.token == *token) {
            return Raised::Lost;
        }
        self.name.last_token = self.name.last_token.max(*floor);
        Raised::Raised
    }

    pub fn force_unlock(&mut self, ForceUnlock { expected, not_after, .. }: &ForceUnlock) -> ForceUnlocked {
        if self.is_late(*not_after) {
            return ForceUnlocked::Late;
        }
        let Some(holder) = self.name.holder.clone() else {
            self.pass_on(false, 2);
            return ForceUnlocked::Free { more: false };
        };
        if expected.is_some_and(|expected| expected != holder.token) {
            return ForceUnlocked::Other;
        }
        self.revoke(&holder);
        self.pass_on(true, 2);
        ForceUnlocked::Freed { more: false }
    }
}
