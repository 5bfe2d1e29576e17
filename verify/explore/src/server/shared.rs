//! The scripts of semaphores and read-write locks.

use std::time::Duration;

use fairlock_proto::keys::{Share, ticket};
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::leave::{Leave, Left};
use fairlock_proto::requests::poll::{Poll, Polled, PolledHolder};
use fairlock_proto::requests::release::{Release, Released};
use fairlock_proto::requests::renew::{Renew, Renewed};
use fairlock_proto::requests::set_limit::{LimitSet, SetLimit};

use super::holders::{Holder, Place, Shared};
use super::name::client_of;
use super::run::{Run, Silence, Standing, is_usual, micros, share};

/// The result of a search through the queue.
#[derive(Default)]
struct Found {
    /// The holders after the winners have come in.
    shared: Shared,
    winners: Vec<Holder>,
    /// The places to remove, by index.
    gone: Vec<usize>,
    /// A waiter has no room, or the server is frozen, so a newcomer must not pass.
    stops: bool,
    /// The search stopped at another place of a winner's owner.
    more: bool,
    /// The silence that this search met and must note.
    silence: Silence,
}

impl Found {
    fn winner(&self, owner: &str, seq: u64) -> Option<&Holder> {
        self.winners.iter().find(|winner| winner.owner == owner && winner.seq == seq)
    }

    fn has_won(&self, owner: &str) -> bool {
        self.winners.iter().any(|winner| winner.owner == owner)
    }
}

impl Run<'_> {
    /// The live tickets of reachable clients, from the front, up to the first without room. `heard`: a client whose
    /// deadline this request will extend. `own`: the caller, which gets the lease that it asks for. `block`: see
    /// `met`; with 1 the search looks only at the first in line.
    fn look_for_room(&self, heard: Option<&str>, own: Option<&Acquire>, block: usize) -> Found {
        let mut found = Found { shared: self.name.shared.clone(), stops: self.frozen_us > 0, ..Found::default() };
        if found.stops {
            return found;
        }
        let (mut stop, most) = if block == 1 { (Some(0), 1) } else { (None, usize::MAX) };
        let (silence, mut dead) = (self.find_silence(), Vec::new());
        for (at, place) in self.name.queue.iter().enumerate().take(most) {
            match self.standing(place, heard, silence) {
                Standing::Waits { until_us } => {
                    let is_room = found.shared.has_room(place.share, self.now_us);
                    if !is_room || found.has_won(&place.owner) {
                        (found.stops, found.more, stop) = (true, is_room, Some(at));
                        break;
                    }
                    if !found.shared.is_over(place, self.now_us) {
                        let ends = self.grant_ends(place, until_us, own);
                        self.let_in(&mut found, &place.owner, place.seq, place.share, ends);
                    }
                    found.gone.append(&mut dead);
                    found.gone.push(at);
                }
                Standing::Dead if found.gone.len() + dead.len() == at => dead.push(at),
                Standing::Dead | Standing::Unreachable => {}
            }
        }
        // P3: the dead keep their places until a later waiter comes in.
        if !found.stops && found.shared.holders.is_empty() {
            found.gone = dead;
        }
        found.silence = self.met(silence, heard, stop, block);
        found
    }

    fn let_in(&self, found: &mut Found, owner: &str, seq: u64, share: Share, until_us: u64) {
        let token = self.next_token() + found.winners.len() as u64;
        let winner = Holder { owner: owner.to_owned(), holds: 1, seq, token, until_us, share };
        found.shared.let_in(winner.clone());
        found.winners.push(winner);
    }

    /// When a grant to this place ends: at its client's deadline at the latest (P6).
    fn grant_ends(&self, place: &Place, lives_until_us: u64, own: Option<&Acquire>) -> u64 {
        match own.filter(|own| *own.owner == *place.owner && own.seq == place.seq) {
            Some(own) => self.ends(micros(own.lease)),
            None => self.ends((place.first_lease_ms * 1000).min(lives_until_us - self.now_us)),
        }
    }

    /// Writes the result, and returns whether another call would find more. `own`: the caller, which needs no message.
    fn admit(&mut self, found: Found, own: Option<&Acquire>) -> bool {
        let Found { shared, winners, gone, more, silence, .. } = found;
        self.note(silence);
        let mut places = 0..;
        self.name.queue.retain(|_| places.next().is_none_or(|at| !gone.contains(&at)));
        if self.name.queue.is_empty() {
            self.name.end_queue();
        }
        self.name.shared = shared;
        let (shared, longest) = (&mut self.name.shared, winners.iter().map(|winner| winner.until_us).max());
        let before_us = if shared.holders.len() == winners.len() { 0 } else { shared.until_us };
        shared.until_us = longest.unwrap_or(shared.until_us).max(before_us);
        shared.end_if_free();
        self.name.last_token = winners.last().map_or(self.name.last_token, |winner| winner.token);
        let is_told = |winner: &&Holder| own.is_none_or(|own| *own.owner != *winner.owner || own.seq != winner.seq);
        winners.iter().filter(is_told).for_each(|winner| self.grant(winner));
        more
    }

    fn serve_waiters(&mut self, block: usize) -> bool {
        let found = self.look_for_room(None, None, block);
        self.admit(found, None)
    }

    fn living_share(&self, owner: &str) -> Option<&Holder> {
        self.name.shared.holders.get(owner).filter(|holder| holder.until_us > self.now_us)
    }

    /// When there may be room.
    fn room_in(&self) -> Option<Duration> {
        let soon_us = self.name.shared.soon_us?;
        Some(Duration::from_millis(soon_us.saturating_sub(self.now_us).div_ceil(1000)))
    }

    pub fn acquire_share(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, mode, terms, .. } = acquire;
        if self.is_late(acquire.not_after) {
            return Acquired::Late;
        }
        if self.has_left(owner, *seq) {
            return Acquired::Over;
        }
        match (mode, self.living_share(owner)) {
            (Mode::Nest(token, _), Some(holder)) if holder.token != *token => return Acquired::Lost,
            (Mode::Nest(..), None) => return Acquired::Lost,
            (_, Some(holder)) if holder.seq > *seq => return Acquired::Over,
            (_, Some(holder)) if holder.seq == *seq => return self.hold_share(acquire, holder.holds),
            (Mode::Nest(_, holds), _) => return self.hold_share(acquire, holds + 1),
            _ => {}
        }
        let share = share(terms);
        let most = self.name.shared.limit.unwrap_or(share.limit);
        if share.weight > most && most > 0 && !self.name.has_place(owner, *seq) {
            return Acquired::TooHeavy { limit: most };
        }
        // It asks for a first hold, so it has lost the earlier one.
        self.name.shared.holders.remove(&**owner);
        self.come_in_or_join(acquire, share)
    }

    fn hold_share(&mut self, acquire: &Acquire, holds: u32) -> Acquired {
        let until_us = self.ends(micros(acquire.lease));
        let shared = &mut self.name.shared;
        let Some(holder) = shared.holders.get_mut(&*acquire.owner) else { return Acquired::Lost };
        let until_us = holder.until_us.max(until_us);
        (holder.until_us, holder.holds, holder.seq) = (until_us, holds, acquire.seq);
        shared.until_us = shared.until_us.max(until_us);
        Acquired::Held { token: holder.token, holds, lease_left: self.left_until(until_us) }
    }

    fn come_in_or_join(&mut self, acquire: &Acquire, share: Share) -> Acquired {
        let Acquire { owner, seq, mode, lease, .. } = acquire;
        let waits = matches!(mode, Mode::Queue);
        let mut found = self.look_for_room(waits.then_some(&*self.client.id), Some(acquire), 2);
        if found.winner(owner, *seq).is_some() {
            self.hear();
        } else if !found.stops && !found.has_won(owner) && found.shared.has_room(share, self.now_us) {
            self.let_in(&mut found, owner, *seq, share, self.ends(micros(*lease)));
        }
        if let Some(token) = found.winner(owner, *seq).map(|winner| winner.token) {
            self.admit(found, Some(acquire));
            return Acquired::Held { token, holds: 1, lease_left: *lease };
        }
        if !waits {
            return Acquired::Busy { more: self.admit(found, None), holder: None };
        }
        let floor = self.next_token() + found.winners.len() as u64 - 1;
        // The next caller must not come before this one (P3).
        let (is_new, known) = (self.take_place(acquire), self.hear_and_keep());
        let more = self.admit(found, None);
        let lease_left = self.frozen_for().or_else(|| self.room_in());
        self.queued(acquire, is_new, Acquired::Queued { floor, lease_left, more, known, holder: None })
    }

    pub fn release_share(&mut self, release: &Release) -> Released {
        if release.holds > 0 {
            return self.lessen_share(release);
        }
        let (freed, block) = (self.released(release), if self.fills_the_room(release) { 1 } else { 2 });
        match &freed {
            Some(freed) => drop(self.name.shared.holders.remove(&freed.owner)),
            None if self.name.holder_of(&release.owner).is_none() => self.name.shared.take_out_ended(self.now_us),
            None => {}
        }
        self.bury(release);
        let more = self.serve_waiters(block);
        // A handle ends with its lease.
        match freed.filter(|freed| !release.is_handle || freed.until_us > self.now_us) {
            Some(Holder { token, .. }) => Released::Freed { token, more },
            None => Released::Gone { more },
        }
    }

    fn lessen_share(&mut self, release: &Release) -> Released {
        let Release { owner, token, holds, weight, seq, .. } = release;
        let Some(held) = self.living_share(owner).filter(|held| held.token == *token && held.seq <= *seq) else {
            return Released::Lost;
        };
        if held.seq == *seq {
            return Released::Held { holds: held.holds, more: false };
        }
        let is_same = |holder: &&mut Holder| holder.token == *token;
        if let Some(held) = self.name.shared.holders.get_mut(&**owner) {
            (held.holds, held.share.weight) = (*holds, held.share.weight.min(*weight));
        }
        let more = self.serve_waiters(2);
        // Only now, because a later place of the owner must still come in.
        if let Some(held) = self.name.shared.holders.get_mut(&**owner).filter(is_same) {
            held.seq = *seq;
        }
        Released::Held { holds: *holds, more }
    }

    /// Whether a usual release may look only at the first in line, because that waiter fills the room.
    fn fills_the_room(&self, release: &Release) -> bool {
        let shared = &self.name.shared;
        let ([first, second, ..], Some(ours)) = (&*self.name.queue, self.released(release)) else { return false };
        let used = shared.used() - ours.share.weight + first.share.weight;
        let is_of_all =
            shared.limit.is_some() || first.owner != second.owner && first.share.limit == second.share.limit;
        let is_full = used == shared.limit.unwrap_or(first.share.limit) && is_of_all;
        let is_new = !shared.holders.contains_key(&first.owner);
        let is_alive = self.name.deadline_of(first).is_some_and(|deadline| self.lives(deadline)) && self.reaches(first);
        let none_has_ended = shared.soon_us.is_some_and(|soon_us| soon_us > self.now_us);
        is_usual(release) && is_full && is_new && is_alive && none_has_ended
    }

    pub fn leave_share(&mut self, leave: &Leave) -> Left {
        let (is_ending, is_held) =
            (self.ours(&leave.owner, leave.seq).is_some(), self.name.holder_of(&leave.owner).is_some());
        let waits = Self::place_of(leave).is_some_and(|(owner, seq)| self.name.has_place(owner, seq));
        if is_ending {
            self.name.shared.holders.remove(&*leave.owner);
        } else if !is_held && !waits {
            self.name.shared.take_out_ended(self.now_us);
        }
        self.purge(leave);
        Left { more: self.serve_waiters(2) }
    }

    pub fn renew_share(&mut self, renew: &Renew) -> Renewed {
        let (until_us, now_us, shared) = (self.ends(micros(renew.lease)), self.now_us, &mut self.name.shared);
        match shared.holders.get_mut(&*renew.owner) {
            Some(holder) if holder.token == renew.token && holder.until_us > now_us => {
                holder.renew(until_us, renew.only);
                let until_us = holder.until_us;
                shared.renewed(until_us);
                Renewed::Renewed { lease_left: self.left_until(until_us) }
            }
            _ => Renewed::Lost,
        }
    }

    pub fn poll_shares(&mut self, poll: &Poll) -> Polled {
        let waits = self.waits(poll);
        let first = waits && self.is_first();
        let held: Vec<_> = poll.tickets.iter().map(|wanted| self.polled_share(wanted)).collect();
        let has_place: Vec<_> = poll.tickets.iter().map(|wanted| self.has_ticket(wanted)).collect();
        let is_ours = |holder: &&Holder| client_of(&holder.owner) == self.client.id && holder.until_us > self.now_us;
        let holders = self.name.shared.holders.values().filter(|_| poll.names_ours);
        let ours: Vec<_> = holders.filter(is_ours).map(|holder| self.entry(holder)).collect();
        let found = self.look_for_room(waits.then_some(&*self.client.id), None, 2);
        let known = waits && self.hear_and_keep();
        let floor = self.next_token() + found.winners.len() as u64 - 1;
        let (mut granted, mut missing) = (Vec::new(), Vec::new());
        for (at, wanted) in poll.tickets.iter().enumerate() {
            let winner = found.winners.iter().find(|winner| ticket(&winner.owner, winner.seq) == *wanted);
            match winner.map(|winner| self.winner_entry(winner)).or_else(|| held[at].clone()) {
                Some(entry) => granted.push(entry),
                None if !has_place[at] => missing.push(at),
                None => {}
            }
        }
        granted.extend(ours);
        let more = self.admit(found, None);
        let (places, room_in, frozen_for) = (self.name.queue.len() as u64, self.room_in(), self.frozen_for());
        Polled { more, known, places, first, holder: None, held_by: None, granted, room_in, frozen_for, floor, missing }
    }

    fn polled_share(&self, wanted: &str) -> Option<PolledHolder> {
        let (owner, _) = wanted.rsplit_once(':')?;
        let holder = self.living_share(owner).filter(|holder| ticket(owner, holder.seq) == wanted)?;
        Some(self.entry(holder))
    }

    fn entry(&self, holder: &Holder) -> PolledHolder {
        let Holder { owner, seq, token, until_us, .. } = holder;
        let lease_left = Some(self.left_now(*until_us));
        PolledHolder { owner: owner.clone(), attempt: *seq, token: *token, lease_left }
    }

    fn winner_entry(&self, winner: &Holder) -> PolledHolder {
        PolledHolder { lease_left: Some(self.left_until(winner.until_us)), ..self.entry(winner) }
    }

    pub fn give_share(&mut self, give: &Give) -> Gave {
        let Give { from, seq, token, to, attempt, lease, .. } = give;
        if let Some(held) = self.living_share(to).filter(|held| held.seq == *attempt && held.token == *token) {
            return Gave::Given { lease_left: self.left_now(held.until_us), weight: held.share.weight };
        }
        let Some(held) = self.living_share(from).filter(|held| held.token == *token).cloned() else {
            return Gave::Lost;
        };
        if self.name.shared.holders.contains_key(&**to) {
            return Gave::Lost;
        }
        if self.is_late(give.not_after) {
            return Gave::Late;
        }
        if self.has_left(to, *attempt) || held.seq > *seq {
            return Gave::Lost;
        }
        let until_us = self.ends(micros(*lease));
        let shared = &mut self.name.shared;
        shared.holders.remove(&**from);
        shared.let_in(Holder { owner: to.to_string(), holds: 1, seq: *attempt, until_us, ..held });
        shared.renewed(until_us);
        Gave::Given { lease_left: self.left_until(until_us), weight: held.share.weight }
    }

    /// Ends the hold with this token.
    pub fn force_share(&mut self, ForceUnlock { expected, not_after, .. }: &ForceUnlock) -> ForceUnlocked {
        if self.is_late(*not_after) {
            return ForceUnlocked::Late;
        }
        let is_meant = |holder: &&Holder| Some(holder.token) == *expected && holder.until_us > self.now_us;
        let Some(ended) = self.name.shared.holders.values().find(is_meant).cloned() else {
            self.name.shared.take_out_ended(self.now_us);
            return ForceUnlocked::Free { more: self.serve_waiters(2) };
        };
        self.name.shared.holders.remove(&ended.owner);
        self.revoke(&ended);
        ForceUnlocked::Freed { more: self.serve_waiters(2) }
    }

    pub fn set_limit(&mut self, SetLimit { limit, not_after, .. }: &SetLimit) -> LimitSet {
        if self.is_late(*not_after) {
            return LimitSet::Late;
        }
        self.name.shared.limit = *limit;
        LimitSet::Set { more: self.serve_waiters(2) }
    }
}
