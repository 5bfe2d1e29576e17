//! The server: its keys, and one function for each script of `lua/shared/`. A script is atomic, so each call is one step.

use super::bounds::Bounds;
use super::events::{Event, EventSet, Ghost, Violation};
use super::network::{
    Acquired, ClientId, FOREVER, HANDLE_SEQ, HANDLES, Message, Nested, Network, OWNERS_OF_A_CLIENT, OwnerId, Passed,
    Place, Poll, Polled, Push, Released, Renewed, Seq, Ticket, Time, Token, Weight,
};
use super::rules::Rules;
use crate::map::Map;

/// A field of the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    pub holds: u8,
    /// The last seq served of this owner (R1).
    pub attempt: Seq,
    pub token: Token,
    pub ends: Time,
    pub weight: Weight,
}

/// A client in the sorted set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heard {
    pub until: Time,
    /// No message reached it, and it was not heard since.
    pub unreachable: bool,
}

/// Acquires of this owner up to `seq` are refused (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tombstone {
    pub seq: Seq,
    pub until: Time,
}

/// All keys of one name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server {
    pub holders: Map<OwnerId, Holder>,
    /// `!used`: the sum of their weights.
    pub used: Weight,
    /// `!soon`: no holder ends before it.
    pub soon: Time,
    /// When the hash expires.
    pub expires: Time,
    /// `:limit`, which `set_permits` sets.
    pub limit: Option<Weight>,
    /// The places, oldest first. Each has its ticket.
    pub queue: Vec<Ticket>,
    pub heard: Map<ClientId, Heard>,
    pub token: Token,
    pub tombstones: Map<OwnerId, Tombstone>,
    /// The record of the last start is gone: the next script freezes (R14).
    pub unbooted: bool,
    pub frozen_until: Time,
}

impl Server {
    pub fn restarted(bounds: &Bounds) -> Self {
        Self {
            holders: Map::default(),
            used: 0,
            soon: FOREVER,
            expires: 0,
            limit: None,
            queue: Vec::new(),
            heard: Map::default(),
            token: 0,
            tombstones: Map::default(),
            unbooted: bounds.strict,
            frozen_until: 0,
        }
    }

    /// Expires keys. Single holders stay, although their lease is over.
    pub fn expire(&mut self, now: Time, events: &mut EventSet) {
        if !self.holders.is_empty() && self.expires <= now {
            self.holders.clear();
            self.used = 0;
            events.add(Event::HashExpired);
        }
        if self.holders.is_empty() {
            (self.soon, self.expires) = (FOREVER, 0);
        }
        // All that is over is alike.
        self.soon = self.soon.max(now);
        self.tombstones.retain(|_, tombstone| tombstone.until > now);
        if self.frozen_until > 0 && self.frozen_until <= now {
            self.frozen_until = 0;
            events.add(Event::Thawed);
        }
        if self.heard.iter().all(|(_, heard)| heard.until < now) {
            self.queue.clear();
            self.heard.clear();
        }
    }

    /// The weights of those whose lease is not over, and how many they are.
    pub fn living(&self, now: Time) -> (Weight, usize) {
        let living = || self.holders.iter().filter(move |(_, holder)| holder.ends > now);
        (living().map(|(_, holder)| holder.weight).sum(), living().count())
    }

    pub fn holder_under(&self, token: Token) -> Option<(OwnerId, Holder)> {
        self.holders.iter().find(|(_, holder)| holder.token == token).copied()
    }

    /// Until when a place lives, if it does.
    pub fn alive_until(&self, ticket: Ticket, now: Time, bounds: &Bounds) -> Option<Time> {
        let heard = self.heard.get(&bounds.client_of(ticket.owner))?;
        (heard.until > now).then_some(heard.until)
    }

    fn is_unreachable(&self, client: ClientId) -> bool {
        self.heard.get(&client).is_some_and(|heard| heard.unreachable)
    }
}

/// One run of a script, with the keys, the clock, and the messages it may publish.
pub struct Script<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub deaf: &'a [bool],
    pub server: &'a mut Server,
    pub network: &'a mut Network,
    pub ghost: &'a mut Ghost,
    pub events: &'a mut EventSet,
    /// Ended holders that the bound of this call has left.
    pub left_ended: bool,
}

impl Script<'_> {
    /// lua/boot.lua, before the first script that finds no record.
    pub fn boot(&mut self) {
        if std::mem::take(&mut self.server.unbooted) && self.rules.r14_freeze {
            let longest = self.bounds.lease.max(self.bounds.last_lease);
            let longest = if self.rules.r14_longest_lease { longest } else { longest - 1 };
            self.server.frozen_until = self.now + longest;
            self.events.add(Event::Frozen);
        }
    }

    fn is_frozen(&self) -> bool {
        self.server.frozen_until > self.now
    }

    /// acquire.lua
    pub fn acquire(&mut self, owner: OwnerId, seq: Seq, sent: Time, nested: Option<Nested>) -> Acquired {
        if self.rules.r2_not_after && self.now > self.bounds.not_after(sent) {
            return Acquired::Refused;
        }
        if self.server.tombstones.get(&owner).is_some_and(|tombstone| tombstone.seq >= seq) {
            self.events.add(Event::TombstoneRefused);
            return Acquired::Refused;
        }
        match nested {
            Some(nested) => self.reenter(owner, seq, nested),
            None => self.acquire_first(owner, seq),
        }
    }

    /// Past all waiters: its units are counted already.
    fn reenter(&mut self, owner: OwnerId, seq: Seq, nested: Nested) -> Acquired {
        let holder = self.living(owner).filter(|holder| holder.token == nested.token);
        let Some(holder) = holder else { return Acquired::Lost };
        if holder.attempt > seq {
            return Acquired::Refused;
        }
        let holds = match (self.rules.r1_count_is_set, holder.attempt == seq) {
            (true, true) => holder.holds,
            (true, false) => nested.holds + 1,
            (false, _) => holder.holds + 1,
        };
        self.events.add(if holder.attempt == seq { Event::RetryAnswered } else { Event::Nested });
        if !self.server.queue.is_empty() {
            self.events.add(Event::NestedPastAWaiter);
        }
        self.put(owner, Holder { holds, attempt: seq, ..holder });
        self.reply_held(owner)
    }

    /// A hold whose lease is over is none, whether it was taken out or not.
    fn living(&self, owner: OwnerId) -> Option<Holder> {
        self.server.holders.get(&owner).copied().filter(|holder| holder.ends > self.now)
    }

    /// The seq with which a request of this owner is compared.
    fn last_served(&self, owner: OwnerId) -> Option<Seq> {
        let holder = self.server.holders.get(&owner)?;
        if self.rules.r4_last_served_per_owner {
            return Some(holder.attempt);
        }
        self.server.holders.iter().map(|(_, holder)| holder).max_by_key(|holder| holder.token).map(|last| last.attempt)
    }

    fn acquire_first(&mut self, owner: OwnerId, seq: Seq) -> Acquired {
        let floor = self.floor();
        let ticket = Ticket { owner, seq };
        let client = self.bounds.client_of(owner);
        let last = self.last_served(owner);
        let is_over = self.living(owner).is_none();
        if last == Some(seq) && !is_over {
            self.events.add(Event::RetryAnswered);
            if !self.rules.r1_retry_is_served_once {
                self.server.used += self.bounds.weight(owner);
            }
            return self.reply_held(owner);
        }
        if last.is_some_and(|last| last > seq) && !is_over {
            return Acquired::Refused;
        }
        if last.is_some() {
            // The owner asks for a first hold, so its earlier one is over (decision 3).
            self.events.add(Event::OlderHoldEnded);
            self.end(owner);
            if !self.rules.d3_only_its_own {
                self.server.holders.clear();
                self.server.used = 0;
            }
        }
        if self.server.queue.contains(&ticket) {
            self.hear(client);
        }
        let stopped = self.serve(Some(client));
        if self.server.holders.get(&owner).is_some_and(|holder| holder.attempt == seq) {
            return self.reply_held(owner);
        }
        // P3: behind the bound of `serve` a waiter may stand.
        let is_open = !(stopped || self.is_frozen() && self.rules.r14_acquire_heeds);
        let is_alone =
            !self.server.queue.iter().any(|other| other.owner != owner && self.may_be_served(*other, client));
        if is_open && (is_alone || !self.rules.newcomers_queue) && self.make_room(owner) {
            self.record_overtaking(owner, self.server.queue.clone(), Some(client));
            self.purge(ticket);
            if !self.server.holders.is_empty() {
                self.events.add(Event::EnteredBeside);
            }
            let lease = self.bounds.lease(owner);
            let token = self.admit(ticket, lease, self.server.token + 1);
            return Acquired::Held { token, holds: 1, remaining: lease };
        }
        if !self.bounds.waits(owner) {
            self.events.add(Event::Busy);
            return Acquired::Busy;
        }
        self.hear(client);
        if !self.server.queue.contains(&ticket) {
            self.server.queue.push(ticket);
        }
        Acquired::Queued { floor }
    }

    /// R7: of a free lock, the last token given before this call.
    fn floor(&self) -> Token {
        if self.rules.r7_floor_of_free_lock {
            return self.server.token;
        }
        let first = self.server.holders.iter().map(|(_, holder)| holder.token).min();
        first.unwrap_or(self.server.token)
    }

    fn hear(&mut self, client: ClientId) {
        let until = self.now + self.bounds.waiter_ttl;
        self.server.heard.insert(client, Heard { until, unreachable: false });
    }

    /// Does not shorten the lease: the holder may already rely on the longer one (P1).
    fn reply_held(&mut self, owner: OwnerId) -> Acquired {
        self.extend(owner);
        let Some(Holder { token, holds, ends, .. }) = self.server.holders.get(&owner).copied() else {
            return Acquired::Lost;
        };
        Acquired::Held { token, holds, remaining: ends - self.now }
    }

    fn extend(&mut self, owner: OwnerId) {
        let Some(holder) = self.server.holders.get(&owner).copied() else { return };
        let ends = holder.ends.max(self.now + self.bounds.lease(owner));
        self.put(owner, Holder { ends, ..holder });
    }

    /// poll.lua
    pub fn poll(&mut self, client: ClientId, poll: Poll) -> Polled {
        let floor = self.floor();
        if !self.server.queue.is_empty() {
            self.hear(client);
        }
        self.serve_if(self.rules.poll_passes_on, Some(client));
        let mut places = [Place::NotAsked; OWNERS_OF_A_CLIENT];
        for (index, owner) in self.bounds.owners_of(client).enumerate() {
            let ticket = Ticket { owner, seq: poll.asked[index] };
            if ticket.seq > 0 {
                places[index] = self.place_of(ticket);
            }
        }
        Polled { floor, places }
    }

    fn place_of(&self, ticket: Ticket) -> Place {
        let holder = self.living(ticket.owner).filter(|holder| holder.attempt == ticket.seq);
        match holder {
            Some(Holder { token, ends, .. }) if self.rules.poll_names_granted => {
                Place::Granted { token, remaining: ends - self.now }
            }
            Some(_) => Place::Waits,
            None if self.server.queue.contains(&ticket) => Place::Waits,
            None => Place::Missing,
        }
    }

    /// poll.lua for a client that waits for nothing. Returns whether it ended at a bound.
    pub fn pass_on(&mut self, caller: Option<ClientId>) -> bool {
        self.serve_if(true, caller)
    }

    /// At the end of a script that may have made room. Returns whether it ended at a bound.
    fn serve_if(&mut self, passes_on: bool, caller: Option<ClientId>) -> bool {
        let stopped = passes_on && self.serve(caller);
        if !stopped {
            self.check_served(caller);
        }
        stopped
    }

    /// leave.lua
    pub fn leave(&mut self, owner: OwnerId, seq: Seq, attempt: Seq, copies_until: Time) {
        self.write_tombstone(owner, seq, copies_until);
        self.purge(Ticket { owner, seq: attempt });
        let ours = self.is_ended_by(owner, seq) && self.rules.r9_leave_passes_on;
        if ours {
            self.events.add(Event::LeftWhileHolding);
        }
        self.end_and_serve(ours.then_some(owner), ours || self.rules.leave_of_place_passes_on, owner);
    }

    /// release.lua: sets holds and weight.
    #[allow(clippy::too_many_arguments, reason = "as many as the script has")]
    pub fn release(
        &mut self,
        owner: OwnerId,
        seq: Seq,
        (holds, weight): (u8, Weight),
        token: Token,
        attempt: Seq,
        copies_until: Time,
    ) -> Released {
        if holds > 0 {
            return self.release_some(owner, seq, (holds, weight), token);
        }
        if copies_until > 0 {
            self.write_tombstone(owner, seq, copies_until);
            self.purge(Ticket { owner, seq: attempt });
        }
        let held = self.living(owner);
        let ours = self.is_ended_by(owner, seq);
        self.end_and_serve(ours.then_some(owner), self.rules.release_passes_on, owner);
        match held {
            Some(holder) if ours && holder.ends > self.now => Released::Freed { token: holder.token },
            _ => Released::Gone,
        }
    }

    fn end_and_serve(&mut self, ending: Option<OwnerId>, passes_on: bool, caller: OwnerId) {
        let caller = Some(self.bounds.client_of(caller));
        let Some(owner) = ending.filter(|_| !self.rules.ends_before_serving) else {
            ending.into_iter().for_each(|owner| self.end(owner));
            self.serve_if(passes_on, caller);
            return;
        };
        // As the lock's scripts write it, the new field and then the end of the old one: here that may be one field.
        if let Some(holder) = self.server.holders.remove(&owner) {
            self.server.used -= holder.weight;
        }
        self.serve_if(passes_on, caller);
        self.server.holders.remove(&owner);
    }

    fn release_some(&mut self, owner: OwnerId, seq: Seq, (holds, weight): (u8, Weight), token: Token) -> Released {
        let holder = self.living(owner);
        let Some(holder) = holder.filter(|holder| holder.token == token && holder.attempt <= seq) else {
            return Released::Lost;
        };
        // R1: a retry finds what it would set.
        let is_retry = holder.attempt == seq;
        let (holds, weight) = if is_retry { (holder.holds, holder.weight) } else { (holds, weight) };
        if is_retry {
            self.events.add(Event::RetryAnswered);
        } else if weight < holder.weight {
            self.events.add(Event::Shrunk);
        }
        let fewer =
            if self.rules.shrink_sets { holder.weight - weight } else { u8::from(self.bounds.weight(owner) > 1) };
        self.server.used = self.server.used.saturating_sub(fewer);
        self.put(owner, Holder { holds, weight, attempt: seq, ..holder });
        let caller = Some(self.bounds.client_of(owner));
        self.serve_if(self.rules.shrink_passes_on, caller);
        Released::Held { holds, weight }
    }

    /// R4: a request ends what the owner has from requests up to its seq.
    fn is_ended_by(&self, owner: OwnerId, seq: Seq) -> bool {
        self.last_served(owner).is_some_and(|last| last <= seq || !self.rules.r4_ends_compare_seq)
    }

    /// renew.lua
    pub fn renew(&mut self, owner: OwnerId, token: Token, only: Seq) -> Renewed {
        let lease = self.bounds.lease(owner);
        let held = self.living(owner);
        match held.filter(|holder| holder.token == token || !self.rules.r4_renew_compares_token) {
            Some(holder) if holder.attempt == only => {
                let ends = self.now + lease;
                self.put(owner, Holder { ends, ..holder });
                if self.rules.soon_with_renewal {
                    self.server.soon = self.server.soon.min(ends);
                }
                Renewed::Renewed { remaining: lease }
            }
            Some(_) => {
                self.extend(owner);
                let ends = self.server.holders.get(&owner).map_or(0, |holder| holder.ends);
                Renewed::Renewed { remaining: ends - self.now }
            }
            None if !self.rules.r4_renew_only_extends && held.is_none() => {
                self.end(owner);
                let weight = self.bounds.weight(owner);
                self.server.used += weight;
                self.put(owner, Holder { holds: 1, attempt: only, token, ends: self.now + lease, weight });
                self.server.soon = self.server.soon.min(self.now + lease);
                Renewed::Renewed { remaining: lease }
            }
            None => Renewed::Lost,
        }
    }

    /// give.lua
    pub fn give(&mut self, from: OwnerId, to: OwnerId, seq: Seq, sent: Time, token: Token) -> Passed {
        let attempt = if to >= HANDLES { HANDLE_SEQ } else { seq };
        // R1: before what refuses a copy, which says then that none was served.
        if let Some(holder) = self.living(to).filter(|holder| holder.token == token && holder.attempt == attempt) {
            return Passed::Given { remaining: holder.ends - self.now, weight: holder.weight };
        }
        let is_counted = self.server.holders.get(&to).is_some() && self.rules.r16_one_record;
        let given = self.living(from).filter(|holder| holder.token == token && !is_counted);
        // Before what refuses a copy: what a copy was given may be over.
        if given.is_none() && self.rules.r16_over_is_lost {
            return Passed::Lost;
        }
        let heeds = if to >= HANDLES { self.rules.r16_released_for_good } else { self.rules.r16_attach_heeds_leave };
        let has_left = self.server.tombstones.get(&to).is_some_and(|tombstone| tombstone.seq >= attempt);
        if heeds && (self.now > self.bounds.not_after(sent) || has_left) {
            self.events.add(Event::GiveRefused);
            return Passed::Refused;
        }
        let Some(holder) = given else { return Passed::Lost };
        if holder.attempt > seq && self.rules.r16_give_compares_seq && from < HANDLES {
            self.events.add(Event::GiveRefused);
            return Passed::Refused;
        }
        self.events.add(if to >= HANDLES { Event::Detached } else { Event::Attached });
        let weight = if self.rules.r16_keeps_weight { holder.weight } else { self.bounds.weight(to) };
        let remaining = self.bounds.lease(to);
        let ends = self.now + remaining;
        self.server.holders.remove(&from);
        if self.rules.r16_lowers_soon {
            self.server.soon = self.server.soon.min(ends);
        }
        self.put(to, Holder { holds: 1, attempt, token, ends, weight });
        Passed::Given { remaining, weight }
    }

    /// revoke.lua: ends the hold under this token.
    pub fn revoke(&mut self, token: Token) {
        let Some((owner, _)) = self.server.holder_under(token) else { return };
        self.events.add(Event::Revoked);
        // A handle is no client's.
        if !self.is_deaf(owner) && owner < HANDLES {
            self.network.insert(Message::Pushed { to: owner, push: Push::Revoked { token } });
        }
        self.end(owner);
        if !self.rules.revokes_one {
            self.server.holders.clear();
            self.server.used = 0;
        }
        self.serve_if(self.rules.revoke_passes_on, None);
    }

    /// set_permits
    pub fn set_permits(&mut self, limit: Option<Weight>) {
        self.server.limit = limit;
        if limit == Some(0) {
            self.events.add(Event::Paused);
        }
        if limit.is_some_and(|limit| limit < self.server.used) {
            self.events.add(Event::AboveLowered);
        }
        self.serve_if(self.rules.permits_pass_on, None);
    }

    fn is_deaf(&self, owner: OwnerId) -> bool {
        self.deaf.get(usize::from(self.bounds.client_of(owner))).is_some_and(|deaf| *deaf)
    }

    fn purge(&mut self, ticket: Ticket) {
        if self.rules.r3_purge {
            self.server.queue.retain(|other| *other != ticket);
        }
        self.forget_empty_queue();
    }

    fn forget_empty_queue(&mut self) {
        if self.server.queue.is_empty() {
            self.server.heard.clear();
        }
    }

    fn write_tombstone(&mut self, owner: OwnerId, seq: Seq, copies_until: Time) {
        if !self.rules.r3_tombstone || copies_until < self.now.max(1) {
            return;
        }
        let old = self.server.tombstones.get(&owner).copied().unwrap_or(Tombstone { seq, until: 0 });
        let tombstone = Tombstone { seq: old.seq.max(seq), until: old.until.max(copies_until + 1) };
        self.server.tombstones.insert(owner, tombstone);
    }
}

// Who may enter.
impl Script<'_> {
    /// `set_permits` wins over what clients name.
    pub fn limit(&self, owner: OwnerId) -> Weight {
        let set = self.server.limit.filter(|_| self.rules.permits_win);
        set.unwrap_or(self.bounds.limit(owner))
    }

    fn fits(&self, owner: OwnerId) -> bool {
        let within = self.server.used + self.bounds.weight(owner) <= self.limit(owner);
        (within || !self.rules.fits_under_limit) && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.rules.holders_are_bounded && self.server.holders.iter().count() >= self.bounds.max_holders
    }

    /// Whether the owner fits, after the ended have been taken out if it does not.
    fn make_room(&mut self, owner: OwnerId) -> bool {
        if self.fits(owner) {
            return true;
        }
        let looks = !self.is_full() || self.rules.full_house_takes_out;
        if self.is_full() {
            self.events.add(Event::FullHouse);
        }
        if self.rules.ended_are_taken_out && looks && self.now >= self.server.soon {
            self.left_ended = self.take_out_ended();
        }
        self.fits(owner)
    }

    /// Returns whether it ended at its bound, as far as `!soon` says so.
    fn take_out_ended(&mut self) -> bool {
        let all_go = !self.rules.only_the_ended;
        let is_ended = |holder: &Holder| all_go || holder.ends <= self.now;
        let ended: Vec<_> =
            self.server.holders.iter().filter(|(_, holder)| is_ended(holder)).map(|(owner, _)| *owner).collect();
        for owner in ended.iter().take(self.bounds.takes_out) {
            self.events.add(Event::TakenOut);
            let used = self.server.used;
            self.end(*owner);
            if !self.rules.taking_out_counts {
                self.server.used = used;
            }
        }
        let stopped = ended.len() > self.bounds.takes_out;
        let left = self.server.holders.iter().map(|(_, holder)| holder.ends);
        let soonest = match self.rules.soon_after_bound {
            true => left.min(),
            false => left.filter(|ends| *ends > self.now).min(),
        };
        self.server.soon = soonest.unwrap_or(FOREVER);
        if stopped {
            self.events.add(Event::Stopped);
        }
        stopped && self.rules.soon_after_bound
    }

    /// Takes a holder out.
    fn end(&mut self, owner: OwnerId) {
        if let Some(holder) = self.server.holders.remove(&owner) {
            self.server.used = self.server.used.saturating_sub(holder.weight);
            self.set_lifetime(0);
        }
    }

    /// Writes a field of the hash.
    fn put(&mut self, owner: OwnerId, holder: Holder) {
        self.server.holders.insert(owner, holder);
        self.set_lifetime(holder.ends);
    }

    fn set_lifetime(&mut self, written: Time) {
        let longest = self.server.holders.iter().map(|(_, holder)| holder.ends).max().unwrap_or(0);
        if self.rules.longest_lease_kept {
            self.server.expires = longest;
        } else if written > 0 {
            self.server.expires = written;
        }
    }

    fn may_be_served(&self, ticket: Ticket, caller: ClientId) -> bool {
        self.lives_and_is_reached(ticket, Some(caller)).is_some()
    }

    fn lives_and_is_reached(&self, ticket: Ticket, caller: Option<ClientId>) -> Option<Time> {
        let client = self.bounds.client_of(ticket.owner);
        let alive_until = self.server.alive_until(ticket, self.now, self.bounds)?;
        let reached = !self.server.is_unreachable(client) && (!self.is_deaf(ticket.owner) || caller == Some(client));
        reached.then_some(alive_until)
    }

    /// Serves waiters from the front, as long as they fit. Returns whether it ended at a bound, and more could be served.
    fn serve(&mut self, caller: Option<ClientId>) -> bool {
        if self.is_frozen() && self.rules.r14_pass_on_heeds {
            return false;
        }
        let first_token = self.server.token + 1;
        let (mut at, mut served) = (0, 0);
        let stopped = loop {
            let Some(ticket) = self.server.queue.get(at).copied() else { break false };
            // A copy that came behind a later attempt of its owner. A grant would take that one's place.
            let last = self.living(ticket.owner).map(|holder| holder.attempt);
            if last.is_some_and(|last| last > ticket.seq) && self.rules.stale_places_go {
                self.events.add(Event::StalePlace);
                self.server.queue.remove(at);
                continue;
            }
            if self.rules.unreachable_first && !self.is_served_at(ticket, &mut at, caller) {
                continue;
            }
            if served == self.bounds.serves {
                self.events.add(Event::Stopped);
                break true;
            }
            if !self.make_room(ticket.owner) {
                if self.server.used < self.limit(ticket.owner) {
                    self.events.add(Event::HeavyWaits);
                }
                if self.rules.stops_at_first_misfit {
                    break self.left_ended;
                }
                at += 1;
                continue;
            }
            if !self.rules.unreachable_first && !self.is_served_at(ticket, &mut at, caller) {
                continue;
            }
            let token = if self.rules.token_for_each_grant { self.server.token + 1 } else { first_token };
            self.grant(ticket, at, caller, token);
            served += 1;
        };
        if served > 1 {
            self.events.add(Event::ServedTogether);
        }
        self.forget_empty_queue();
        stopped
    }

    /// Whether this place may be served. If not, it is passed over, or taken out if it is dead and the first.
    fn is_served_at(&mut self, ticket: Ticket, at: &mut usize, caller: Option<ClientId>) -> bool {
        if self.lives_and_is_reached(ticket, caller).is_some() {
            return true;
        }
        let client = self.bounds.client_of(ticket.owner);
        if self.server.alive_until(ticket, self.now, self.bounds).is_none() && *at == 0 {
            self.server.queue.remove(0);
            self.events.add(Event::DeadCleared);
            return false;
        }
        if let Some(heard) = self.server.heard.get(&client).copied().filter(|_| self.is_deaf(ticket.owner)) {
            self.server.heard.insert(client, Heard { unreachable: true, ..heard });
        }
        *at += 1;
        false
    }

    fn grant(&mut self, ticket: Ticket, at: usize, caller: Option<ClientId>, token: Token) {
        let Some(alive_until) = self.lives_and_is_reached(ticket, caller) else { return };
        let before = self.server.queue[..at].to_vec();
        self.record_overtaking(ticket.owner, before, caller);
        self.server.queue.remove(at);
        if at > 0 {
            self.events.add(Event::PassedOver);
        }
        // P6: a grant ends with its client's deadline.
        let lease = self.bounds.grant_ttl.min(alive_until - self.now);
        let lasts = if self.rules.r7_push_says_real_time { lease } else { self.bounds.grant_ttl };
        let token = self.admit(ticket, lease, token);
        if !self.is_deaf(ticket.owner) {
            let push = Push::Grant { seq: ticket.seq, token, lasts };
            self.network.insert(Message::Pushed { to: ticket.owner, push });
        }
        self.events.add(Event::HandOver);
    }

    /// The only place where a holder comes to be.
    fn admit(&mut self, ticket: Ticket, lease: Time, token: Token) -> Token {
        let Ticket { owner, seq: attempt } = ticket;
        let token =
            if self.rules.r10_clock_in_tokens { token.max(self.bounds.clock_for_tokens(self.now)) } else { token };
        let (weight, ends) = (self.bounds.weight(owner), self.now + lease);
        // Of an attempt that its owner has given up: its leave is under way (decision 3).
        if let Some(older) = self.server.holders.get(&owner).filter(|_| self.rules.grant_ends_older) {
            self.events.add(Event::OlderHoldEnded);
            self.server.used = self.server.used.saturating_sub(older.weight);
        }
        self.server.used += weight;
        if self.rules.soon_with_new_holder || self.server.soon == FOREVER {
            self.server.soon = self.server.soon.min(ends);
        }
        self.put(owner, Holder { holds: 1, attempt, token, ends, weight });
        self.server.token = token;
        if token <= self.ghost.highest {
            self.ghost.violation = Some(Violation::TokenDidNotGrow);
        }
        self.ghost.highest = self.ghost.highest.max(token);
        // What the rules say, whether the run keeps them or not.
        let limit = self.server.limit.unwrap_or(self.bounds.limit(owner));
        self.ghost.admitted.insert(token, limit);
        token
    }

    /// P3: nobody is served past a waiter that could be.
    fn record_overtaking(&mut self, owner: OwnerId, before: Vec<Ticket>, caller: Option<ClientId>) {
        let is_passed = |ticket: Ticket| ticket.owner != owner && self.lives_and_is_reached(ticket, caller).is_some();
        if before.into_iter().any(is_passed) {
            self.ghost.violation = Some(Violation::Overtaken);
        }
    }

    /// R6: the first waiter does not fit then.
    fn check_served(&mut self, caller: Option<ClientId>) {
        if self.is_frozen() {
            return;
        }
        let mut reached =
            self.server.queue.iter().filter(|ticket| self.lives_and_is_reached(**ticket, caller).is_some());
        let Some(first) = reached.next().copied() else { return };
        let (used, holders) = self.server.living(self.now);
        let limit = self.server.limit.unwrap_or(self.bounds.limit(first.owner));
        let fits = used + self.bounds.weight(first.owner) <= limit && holders < self.bounds.max_holders;
        if fits {
            self.ghost.violation = Some(Violation::NotServed);
        }
    }
}
