//! The server: its keys, and one function for each script in `lua/`, branch by branch. A script is
//! atomic, so each call is one step.

use crate::bounds::{Bounds, Fault};
use crate::ghost::{Event, EventSet, Ghost, Violation};
use crate::map::Map;
use crate::network::{
    Acquired, ClientId, HANDLE_SEQ, HANDLES, Holder, Left, Message, Nested, Network, OWNERS_OF_A_CLIENT, OwnerId,
    Passed, Poll, Polled, Push, Released, Renewed, Seq, Ticket, Time, Token,
};
use crate::rules::Rules;

/// The hash of a held lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lock {
    pub owner: OwnerId,
    pub holds: u8,
    /// `!attempt`: the last seq served (R1).
    pub attempt: Seq,
    pub token: Token,
    pub expires: Time,
}

/// A client in the sorted set. The sign of its score is `unreachable`: PUBLISH reached no subscriber, and the client
/// was not heard since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heard {
    pub until: Time,
    pub unreachable: bool,
}

/// The key `:tombstone:<owner>`: acquires of this owner up to `seq` are refused (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tombstone {
    pub seq: Seq,
    pub until: Time,
}

/// All keys of one name. `tickets`, `heard` and `skip` are one sorted set in Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<Lock>,
    /// The list of places, oldest first. It may contain dead ones.
    pub queue: Vec<Ticket>,
    /// When the caller of a ticket gives up.
    pub tickets: Map<Ticket, Time>,
    /// Until when a client is alive without being heard again.
    pub heard: Map<ClientId, Heard>,
    /// `!skip`: places at the head that belong to clients that were dead or unreachable, and were not heard since.
    pub skip: u8,
    /// When `skip` was counted. Kept only where the clock may go back.
    pub skip_at: Time,
    /// `!forgiven`: until then no client of this queue counts as dead whose deadline is not before `spent`.
    pub forgiven: Time,
    /// `!spent`: a client with an earlier deadline was forgiven the silence before, and was not heard since.
    pub spent: Time,
    /// The last token given out.
    pub token: Token,
    pub tombstones: Map<OwnerId, Tombstone>,
    /// The record of the last start is gone: the next script freezes (R14). Only with `Bounds::strict`.
    pub unbooted: bool,
    /// Until then the lock is not granted.
    pub frozen_until: Time,
}

impl Server {
    /// Without its data. Clients that are strict will see that the record is gone.
    pub fn restarted(bounds: &Bounds) -> Self {
        Self { unbooted: bounds.strict, ..Self::default() }
    }

    /// Expires keys. This does not pass on the lock: the next script that finds it free does.
    pub fn expire(&mut self, now: Time, bounds: &Bounds, events: &mut EventSet) {
        if self.lock.is_some_and(|lock| lock.expires <= now) {
            self.lock = None;
            events.add(Event::LeaseExpired);
        }
        self.tombstones.retain(|_, tombstone| tombstone.until > now);
        if self.frozen_until > 0 && self.frozen_until <= now {
            self.frozen_until = 0;
            events.add(Event::Thawed);
        }
        // It concerns no client any more: states that differ in it alone are one.
        if self.heard.iter().all(|(_, heard)| heard.until >= self.spent) {
            self.spent = 0;
        }
        // The keys of the queue outlive the last living client, and expire together.
        if self.last_heard().is_some_and(|last| last.max(self.forgiven) + bounds.queue_outlives < now) {
            self.queue.clear();
            self.forget_queue();
        }
    }

    /// The furthest deadline of a client: the client that was heard last has it.
    pub fn last_heard(&self) -> Option<Time> {
        self.heard.iter().map(|(_, heard)| heard.until).max()
    }

    /// Deletes the sorted set.
    pub fn forget_queue(&mut self) {
        self.tickets.clear();
        self.heard.clear();
        (self.skip, self.forgiven, self.spent) = (0, 0, 0);
    }

    pub fn held_by(&self, owner: OwnerId) -> Option<Lock> {
        self.lock.filter(|lock| lock.owner == owner)
    }

    /// Until when a ticket lives, if it does: its client is heard, and its caller has not given up.
    pub fn alive_until(&self, ticket: Ticket, now: Time, bounds: &Bounds) -> Option<Time> {
        let heard = self.heard.get(&bounds.client_of(ticket.owner))?;
        let until = self.lives_until(*heard).min(*self.tickets.get(&ticket)?);
        (until > now).then_some(until)
    }

    /// Whether it would live if it still had its ticket.
    pub fn alive_until_or_heard(&self, ticket: Ticket, now: Time, bounds: &Bounds) -> bool {
        let heard = self.heard.get(&bounds.client_of(ticket.owner));
        let has_time = self.tickets.get(&ticket).is_none_or(|give_up| *give_up > now);
        has_time && heard.is_none_or(|heard| self.lives_until(*heard) > now)
    }

    fn lives_until(&self, heard: Heard) -> Time {
        if heard.until >= self.spent { heard.until.max(self.forgiven) } else { heard.until }
    }

    pub fn is_unreachable(&self, client: ClientId) -> bool {
        self.heard.get(&client).is_some_and(|heard| heard.unreachable)
    }

    /// The tickets that live and have a place.
    pub fn waiting(&self, now: Time, bounds: &Bounds) -> impl Iterator<Item = Ticket> {
        self.queue.iter().copied().filter(move |ticket| self.alive_until(*ticket, now, bounds).is_some())
    }
}

/// One run of a script, with the keys, the clock, and the messages it may publish.
pub struct Script<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    /// Clients that no push reaches.
    pub deaf: &'a [bool],
    pub server: &'a mut Server,
    pub network: &'a mut Network,
    pub ghost: &'a mut Ghost,
    pub events: &'a mut EventSet,
}

impl Script<'_> {
    /// lua/boot.lua, which runs before the first script that finds no record. A holder from before it may rely on
    /// its lease for that long.
    pub fn boot(&mut self) {
        if std::mem::take(&mut self.server.unbooted) && self.rules.r14_freeze {
            let lease = self.bounds.lease;
            let covered = if self.rules.r14_covers_extends { self.bounds.longest_lease() } else { lease };
            let longest = if self.rules.r14_longest_lease { covered } else { lease - 1 };
            self.server.frozen_until = self.now + longest;
            self.events.add(Event::Frozen);
        }
    }

    fn is_frozen(&self) -> bool {
        self.server.frozen_until > self.now
    }

    /// lua/acquire.lua
    pub fn acquire(&mut self, owner: OwnerId, seq: Seq, sent: Time, give_up: Time, nested: Option<Nested>) -> Acquired {
        if self.rules.r2_not_after && self.now > self.bounds.not_after(sent) {
            return Acquired::Refused;
        }
        if self.server.tombstones.get(&owner).is_some_and(|tombstone| tombstone.seq >= seq) {
            self.events.add(Event::TombstoneRefused);
            return Acquired::Refused;
        }
        match nested {
            Some(nested) => self.reenter(owner, seq, nested),
            None => self.acquire_first(owner, seq, give_up),
        }
    }

    fn reenter(&mut self, owner: OwnerId, seq: Seq, nested: Nested) -> Acquired {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == nested.token) else {
            return Acquired::Lost;
        };
        if lock.attempt > seq {
            return Acquired::Refused;
        }
        // R1: set the count, never add to it, or a retry would count twice.
        let holds = match (self.rules.r1_count_is_set, lock.attempt == seq) {
            (true, true) => lock.holds,
            (true, false) => nested.holds + 1,
            (false, _) => lock.holds + 1,
        };
        if lock.attempt == seq {
            self.events.add(Event::RetryAnswered);
        }
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        self.reply_held()
    }

    fn acquire_first(&mut self, owner: OwnerId, seq: Seq, give_up: Time) -> Acquired {
        let ticket = Ticket { owner, seq };
        let client = self.bounds.client_of(owner);
        if let Some(lock) = self.server.held_by(owner) {
            if lock.attempt == seq {
                self.events.add(Event::RetryAnswered);
                if !self.rules.r1_retry_is_served_once {
                    self.server.lock = Some(Lock { holds: lock.holds + 1, ..lock });
                }
                return self.reply_held();
            }
            if lock.attempt > seq {
                return Acquired::Refused;
            }
            // The owner asks for a first hold, so its earlier one is over (decision 3).
            self.server.lock = None;
        }
        // A client whose ticket asks again is heard first, as in a poll: `advance` must not find it dead.
        let mut known = None;
        if self.server.tickets.contains_key(&ticket) && !self.server.queue.is_empty() {
            if self.server.alive_until(ticket, self.now, self.bounds).is_none() {
                self.events.add(Event::AskedAgainDead);
            }
            if self.rules.acquire_hears_first {
                known = Some(self.hear(client));
            }
        }
        let mut stopped = false;
        // R14: a free lock counts as held.
        let is_frozen = self.is_frozen() && self.rules.r14_acquire_heeds;
        if self.server.lock.is_none() && self.rules.r6_hand_over && !is_frozen {
            stopped = self.advance(Some(client));
            if self.server.held_by(owner).is_some_and(|lock| lock.attempt == seq) {
                return self.reply_held();
            }
        }
        // P3: where `advance` stopped at its bound, a living ticket may wait behind it.
        if self.server.lock.is_none() && !stopped && !is_frozen {
            self.record_overtaking(owner);
            // It does not wait any more. Its ticket would come alive again when its client is heard.
            if self.rules.direct_take_purges {
                self.purge(ticket);
            }
            let token = self.hold(ticket, self.bounds.lease);
            return Acquired::Held { token, holds: 1, remaining: self.bounds.lease };
        }
        if !self.bounds.waits(owner) {
            self.events.add(Event::Busy);
            return Acquired::Busy;
        }
        if self.server.queue.is_empty() && self.rules.enqueue_clears_leftovers {
            // The list was deleted by hand: tickets without it have no place.
            self.server.forget_queue();
        }
        let had = self.hear(client);
        self.enqueue(ticket, give_up);
        let floor = self.server.lock.map_or(self.server.token, |lock| lock.token);
        Acquired::Queued { floor, known: known.unwrap_or(had) }
    }

    /// The client is alive, whatever it was before. Returns whether it was known.
    fn hear(&mut self, client: ClientId) -> bool {
        self.forgive_a_silence();
        let before = self.server.heard.get(&client).copied();
        let is_alive = before.is_some_and(|heard| heard.until > self.now);
        if !is_alive || self.server.is_unreachable(client) {
            if before.is_some() && self.server.skip > 0 {
                self.events.add(Event::SkipReset);
            }
            if self.rules.skip_reset_when_heard {
                self.server.skip = 0;
            }
        }
        let until = self.now + self.bounds.waiter_ttl;
        self.server.heard.insert(client, Heard { until, unreachable: false });
        if self.rules.known_means_alive { is_alive } else { before.is_some() }
    }

    /// If no client was heard for half a `waiter_ttl`, the server or the network stood still, and no client counts as
    /// dead: each client once, until it is heard again.
    fn forgive_a_silence(&mut self) {
        let Some(last) = self.server.last_heard() else { return };
        let waiter_ttl = self.bounds.waiter_ttl;
        let is_silent = last <= self.now + waiter_ttl - waiter_ttl / 2;
        let before = self.server.forgiven;
        if self.rules.silence_is_forgiven && is_silent && before <= self.now && last >= before {
            self.server.spent = if self.rules.clients_are_forgiven_once { before } else { 0 };
            self.server.forgiven = self.now + waiter_ttl;
            self.server.skip = 0;
            self.events.add(Event::Forgiven);
        }
    }

    /// Does not shorten the lease: the holder may already rely on the longer one (P1).
    fn reply_held(&mut self) -> Acquired {
        let lease = self.bounds.lease;
        let (token, remaining) = self.extend(lease);
        let holds = self.server.lock.map_or(0, |lock| lock.holds);
        Acquired::Held { token, holds, remaining }
    }

    /// Extends the lock to `lease` from now at least. Returns its token and remaining time.
    fn extend(&mut self, lease: Time) -> (Token, Time) {
        let Some(lock) = &mut self.server.lock else { return (0, 0) };
        lock.expires = lock.expires.max(self.now + lease);
        (lock.token, lock.expires - self.now)
    }

    /// One place for each ticket.
    fn enqueue(&mut self, ticket: Ticket, give_up: Time) {
        if self.server.tickets.contains_key(&ticket) {
            self.events.add(Event::RetryAnswered);
        } else {
            self.server.queue.push(ticket);
        }
        self.server.tickets.insert(ticket, give_up);
    }

    /// lua/poll.lua
    pub fn poll(&mut self, client: ClientId, poll: Poll) -> Polled {
        // Renew before passing on: a client that polls is alive, even if its deadline just passed
        // (decision 5).
        let known = match self.server.queue.is_empty() {
            true => self.server.heard.contains_key(&client),
            false => self.hear(client),
        };
        let stopped = self.pass_on(Some(client));
        let mut missing = [false; OWNERS_OF_A_CLIENT];
        for (index, owner) in self.bounds.owners_of(client).enumerate() {
            let seq = poll.waiting[index];
            let placed = !self.server.queue.is_empty() && self.server.tickets.contains_key(&Ticket { owner, seq });
            missing[index] = poll.verifies && seq > 0 && !placed;
        }
        if self.server.queue.is_empty() {
            if !self.server.tickets.is_empty() {
                self.events.add(Event::ListGone);
            }
            self.server.forget_queue();
        }
        let holder = self.server.lock.map(|Lock { owner, attempt, token, expires, .. }| Holder {
            owner,
            attempt,
            token,
            remaining: expires - self.now,
        });
        let floor = holder.map_or(self.server.token, |holder| holder.token);
        let places = self.server.queue.len() as u8;
        Polled { holder, floor, stopped, known, places, missing }
    }

    /// lua/poll.lua without a client: passes on a free lock. Returns whether `advance` ended at its bound.
    pub fn pass_on(&mut self, caller: Option<ClientId>) -> bool {
        let is_frozen = self.is_frozen() && self.rules.r14_pass_on_heeds;
        self.server.lock.is_none() && self.rules.r6_hand_over && !is_frozen && self.advance(caller)
    }

    /// lua/leave.lua
    pub fn leave(&mut self, owner: OwnerId, seq: Seq, attempt: Seq, copies_until: Time) -> Left {
        self.write_tombstone(owner, seq, copies_until);
        self.purge(Ticket { owner, seq: attempt });
        let ours = self.is_ended_by(owner, seq) && self.rules.r9_leave_passes_on;
        if ours {
            self.events.add(Event::LeftWhileOwner);
            self.server.lock = None;
        }
        self.pass_on(Some(self.bounds.client_of(owner)));
        Left::Done
    }

    /// lua/release.lua
    pub fn release(
        &mut self,
        owner: OwnerId,
        seq: Seq,
        holds: u8,
        token: Token,
        attempt: Seq,
        copies_until: Time,
    ) -> Released {
        if holds > 0 {
            return self.release_some(owner, seq, holds, token);
        }
        if copies_until > 0 {
            self.write_tombstone(owner, seq, copies_until);
            self.purge(Ticket { owner, seq: attempt });
        }
        let lock = self.server.lock;
        let ours = self.is_ended_by(owner, seq);
        if ours {
            self.server.lock = None;
        }
        self.pass_on(Some(self.bounds.client_of(owner)));
        match lock {
            Some(lock) if ours => Released::Freed { token: lock.token },
            _ => Released::Gone,
        }
    }

    fn release_some(&mut self, owner: OwnerId, seq: Seq, holds: u8, token: Token) -> Released {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == token && lock.attempt <= seq) else {
            return Released::Lost;
        };
        // R1: a retry finds the count that it would set.
        let holds = if lock.attempt == seq { lock.holds } else { holds };
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        Released::Held { holds }
    }

    /// R4: a request ends what the owner has from requests up to its seq. A late copy must not end
    /// a later attempt.
    fn is_ended_by(&self, owner: OwnerId, seq: Seq) -> bool {
        self.server.held_by(owner).is_some_and(|lock| lock.attempt <= seq || !self.rules.r4_ends_compare_seq)
    }

    /// lua/renew.lua
    pub fn renew(&mut self, owner: OwnerId, token: Token, only: Seq) -> Renewed {
        let lease = self.bounds.lease;
        let ours = self.server.held_by(owner);
        match ours.filter(|lock| lock.token == token || !self.rules.r4_renew_compares_token) {
            Some(lock) if lock.attempt == only => {
                if self.now + lease < lock.expires {
                    self.events.add(Event::Shortened);
                }
                self.server.lock = Some(Lock { expires: self.now + lease, ..lock });
                Renewed::Renewed { remaining: lease }
            }
            Some(_) => {
                if only > 0 {
                    self.events.add(Event::NotShortened);
                }
                Renewed::Renewed { remaining: self.extend(lease).1 }
            }
            None if self.server.lock.is_none() && !self.rules.r4_renew_only_extends => {
                let expires = self.now + lease;
                self.server.lock = Some(Lock { owner, holds: 1, attempt: only, token, expires });
                Renewed::Renewed { remaining: lease }
            }
            None => Renewed::Lost,
        }
    }

    /// lua/renew.lua with `+seq`
    pub fn renew_as_last(&mut self, owner: OwnerId, seq: Seq, token: Token, lease: Time) -> Renewed {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == token) else { return Renewed::Lost };
        let until = self.now + lease;
        let expires = if self.rules.r16_extend_lengthens { lock.expires.max(until) } else { until };
        let is_later = seq > lock.attempt || !self.rules.r16_extend_compares_seq;
        self.events.add(if seq > lock.attempt { Event::Extended } else { Event::ExtendedLate });
        let attempt = if is_later && self.rules.r16_extend_is_last { seq } else { lock.attempt };
        self.server.lock = Some(Lock { attempt, expires, ..lock });
        Renewed::Renewed { remaining: expires - self.now }
    }

    /// lua/give.lua
    pub fn give(&mut self, from: OwnerId, to: OwnerId, seq: Seq, sent: Time, token: Token) -> Passed {
        let attempt = if to >= HANDLES { HANDLE_SEQ } else { seq };
        let remaining = self.bounds.lease;
        let current = self.server.lock.filter(|lock| lock.token == token);
        // R1: before what refuses a copy, which says then that none was served. What a copy was given may be over, too.
        if current.is_none() && self.rules.r16_over_is_lost {
            return Passed::Lost;
        }
        if let Some(lock) = current.filter(|lock| lock.owner == to && lock.attempt == attempt) {
            return Passed::Given { remaining: lock.expires - self.now };
        }
        let heeds = if to >= HANDLES { self.rules.r16_released_for_good } else { self.rules.r16_attach_heeds_leave };
        let has_left = self.server.tombstones.get(&to).is_some_and(|tombstone| tombstone.seq >= attempt);
        if heeds && (self.now > self.bounds.not_after(sent) || has_left) {
            return self.refuse_give();
        }
        let Some(lock) = current.filter(|lock| lock.owner == from) else { return Passed::Lost };
        if lock.attempt > seq && self.rules.r16_give_compares_seq && from < HANDLES {
            return self.refuse_give();
        }
        self.events.add(if to >= HANDLES { Event::Detached } else { Event::Attached });
        self.server.lock = Some(Lock { owner: to, holds: 1, attempt, token, expires: self.now + remaining });
        Passed::Given { remaining }
    }

    fn refuse_give(&mut self) -> Passed {
        self.events.add(Event::GiveRefused);
        Passed::Refused
    }

    /// lua/force_unlock.lua
    pub fn force_unlock(&mut self) {
        if let Some(lock) = self.server.lock.take()
            && !self.is_deaf(lock.owner)
            // Nobody hears for a handle.
            && lock.owner < HANDLES
        {
            self.network.insert(Message::Pushed { to: lock.owner, push: Push::Revoked { token: lock.token } });
        }
        self.pass_on(None);
    }

    fn is_deaf(&self, owner: OwnerId) -> bool {
        self.deaf.get(usize::from(self.bounds.client_of(owner))).is_some_and(|deaf| *deaf)
    }

    /// lua/lib/purge.lua: takes a ticket out of the queue, and its place (R3).
    fn purge(&mut self, ticket: Ticket) {
        if !self.rules.r3_purge {
            return;
        }
        self.server.tickets.remove(&ticket);
        if !self.rules.purge_takes_place {
            return;
        }
        if let Some(index) = self.server.queue.iter().rposition(|other| *other == ticket) {
            self.server.queue.remove(index);
            if index < usize::from(self.server.skip) {
                self.events.add(Event::LeftFromSkipped);
            }
            // LREM does not say where it found the place. Where that was one of the skipped, all behind it
            // move up; skipping one less is right in each case.
            if self.rules.purge_lowers_skip {
                self.server.skip = self.server.skip.saturating_sub(1);
            }
        }
        if self.server.queue.is_empty() {
            self.server.forget_queue();
        }
    }

    /// lua/lib/purge.lua: late copies of acquires up to `seq` find the tombstone until one tick after
    /// `copies_until` (R3). After that R2 refuses them.
    fn write_tombstone(&mut self, owner: OwnerId, seq: Seq, copies_until: Time) {
        if !self.rules.r3_tombstone || copies_until < self.now.max(1) {
            return;
        }
        // An earlier tombstone is never shortened (A7).
        let old = self.server.tombstones.get(&owner).copied().unwrap_or(Tombstone { seq, until: 0 });
        let tombstone = Tombstone { seq: old.seq.max(seq), until: old.until.max(copies_until + 1) };
        self.server.tombstones.insert(owner, tombstone);
    }

    /// lua/lib/advance.lua: the first ticket that is alive and whose client is reachable gets the lock (R6).
    /// Passed-over tickets keep their places. Requires a free lock. Returns whether it ended at its bound, and not at a
    /// winner or at the end of the queue.
    fn advance(&mut self, caller: Option<ClientId>) -> bool {
        self.forgive_a_silence();
        // The clock went back: what was dead then may be alive now.
        if self.server.skip_at > self.now && self.rules.skip_has_time {
            self.server.skip = 0;
        }
        let first = usize::from(self.server.skip);
        if first > 0 && first < self.server.queue.len() {
            self.events.add(Event::Skipped);
        }
        let mut at = first;
        let mut winner = false;
        let mut stopped = false;
        while let Some(ticket) = self.server.queue.get(at).copied() {
            stopped = at - first == self.bounds.looks;
            if stopped {
                self.events.add(Event::Stopped);
                break;
            }
            winner = self.serve(ticket, at, caller);
            if winner {
                break;
            }
            at += 1;
        }
        self.server.skip = at as u8;
        if self.bounds.faults.contains(&Fault::ClockBack) {
            self.server.skip_at = self.now;
        }
        if winner {
            let ticket = self.server.queue.remove(at);
            self.server.tickets.remove(&ticket);
            if at > 0 {
                self.events.add(Event::PassedOver);
            }
        }
        self.clear_dead();
        if self.server.queue.is_empty() {
            self.server.forget_queue();
        }
        stopped
    }

    /// Grants the lock to this ticket if it lives and its client is reachable.
    fn serve(&mut self, ticket: Ticket, at: usize, caller: Option<ClientId>) -> bool {
        let client = self.bounds.client_of(ticket.owner);
        let Some(alive_until) = self.server.alive_until(ticket, self.now, self.bounds) else { return false };
        if self.server.is_unreachable(client) {
            return false;
        }
        // PUBSUB NUMSUB, before anything is written for it: a replica that was the primary until a moment ago repeats
        // to its own subscribers what is published here, which does not count.
        if self.is_deaf(ticket.owner) && caller != Some(client) {
            if !self.rules.reached_before_told {
                self.tell(ticket, alive_until - self.now, self.next_token());
            }
            if let Some(heard) = self.server.heard.get(&client).copied() {
                self.server.heard.insert(client, Heard { unreachable: true, ..heard });
                self.events.add(Event::Unreachable);
            }
            return false;
        }
        let before = self.server.queue[..at].to_vec();
        if before.into_iter().any(|other| self.may_be_served(other, caller)) {
            self.ghost.violation = Some(Violation::Overtaken);
        }
        self.grant(ticket, alive_until, caller);
        true
    }

    /// P3: no other ticket may be served before this one.
    fn may_be_served(&self, ticket: Ticket, caller: Option<ClientId>) -> bool {
        let client = self.bounds.client_of(ticket.owner);
        self.server.alive_until(ticket, self.now, self.bounds).is_some()
            && !self.server.is_unreachable(client)
            && (!self.is_deaf(ticket.owner) || caller == Some(client))
    }

    /// Takes dead places off the head of the list, with their tickets; a bounded number in a call.
    fn clear_dead(&mut self) {
        let is_dead = |ticket: &&Ticket| self.server.alive_until(**ticket, self.now, self.bounds).is_none();
        let dead = self.server.queue.iter().take(self.bounds.looks).take_while(is_dead).count();
        for ticket in self.server.queue.drain(..dead) {
            if self.rules.trim_takes_tickets {
                self.server.tickets.remove(&ticket);
            }
            self.events.add(Event::DeadCleared);
        }
        if self.rules.trim_lowers_skip {
            self.server.skip = self.server.skip.saturating_sub(dead as u8);
        }
    }

    fn grant(&mut self, ticket: Ticket, alive_until: Time, caller: Option<ClientId>) {
        let client = self.bounds.client_of(ticket.owner);
        let grant_ttl = match caller {
            Some(caller) if !self.rules.grant_ttl_of_waiter => self.bounds.grant_ttl(caller),
            _ => self.bounds.grant_ttl(client),
        };
        // Capped by the deadlines of client and ticket, so dead waiters do not add up (P6, decision 1).
        let lease = grant_ttl.min(alive_until - self.now);
        let token = self.hold(ticket, lease);
        // The push names the duration, since the cap is not known to the waiter (R7).
        let lasts = if self.rules.r7_push_says_real_time { lease } else { grant_ttl };
        if !self.is_deaf(ticket.owner) {
            self.tell(ticket, lasts, token);
        }
        self.events.add(Event::HandOver);
    }

    fn tell(&mut self, ticket: Ticket, lasts: Time, token: Token) {
        let push = Push::Grant { seq: ticket.seq, token, lasts };
        self.network.insert(Message::Pushed { to: ticket.owner, push });
    }

    /// The only transition from free to held.
    fn hold(&mut self, ticket: Ticket, lease: Time) -> Token {
        let token = self.next_token();
        let Ticket { owner, seq: attempt } = ticket;
        self.server.lock = Some(Lock { owner, holds: 1, attempt, token, expires: self.now + lease });
        self.server.token = token;
        if token <= self.ghost.highest {
            self.ghost.violation = Some(Violation::TokenDidNotGrow);
        }
        self.ghost.highest = self.ghost.highest.max(token);
        token
    }

    /// R10: the clock keeps tokens growing after the stored one is lost.
    fn next_token(&self) -> Token {
        let stored = self.server.token + 1;
        if self.rules.r10_clock_in_tokens { stored.max(self.bounds.clock_for_tokens(self.now)) } else { stored }
    }

    /// Records a violation of P3: an acquire takes a free lock past a ticket of another owner that could be
    /// served.
    fn record_overtaking(&mut self, owner: OwnerId) {
        let caller = Some(self.bounds.client_of(owner));
        let queue = self.server.queue.clone();
        if queue.into_iter().any(|ticket| ticket.owner != owner && self.may_be_served(ticket, caller)) {
            self.ghost.violation = Some(Violation::Overtaken);
        }
    }
}
