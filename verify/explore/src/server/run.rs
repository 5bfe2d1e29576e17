//! The common part of both kinds of scripts: places, deadlines, silences, tombstones.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlock_proto::command::millis;
use fairlock_proto::keys::{Share, share_of, ticket};
use fairlock_proto::requests::acquire::{Acquire, Acquired};
use fairlock_proto::requests::inspect::{HolderEntry, Inspect, Inspected, QueueEntry};
use fairlock_proto::requests::leave::Leave;
use fairlock_proto::requests::poll::Poll;
use fairlock_proto::requests::release::Release;

use super::holders::{Holder, Place};
use super::name::{Client, Message, Name, Text, TokenClock, Tombstone, client_of, whole};

/// One run of a script.
pub(super) struct Run<'a> {
    pub name: &'a mut Name,
    pub lock: String,
    pub client: &'a Client,
    /// The client that is reachable in any case, since it reads the reply.
    pub caller: &'a str,
    pub now_us: u64,
    pub reachable: &'a BTreeSet<String>,
    pub frozen_us: u64,
    pub token_clock: TokenClock,
    pub messages: &'a mut Vec<Message>,
}

/// A silence of all clients that the server forgives, see `lib/silence.lua`.
#[derive(Clone, Copy, Default)]
pub(super) struct Silence {
    forgiven_us: u64,
    spent_us: u64,
    is_new: bool,
}

/// The state of a place.
pub(super) enum Standing {
    Waits {
        /// Until when its client counts as alive.
        until_us: u64,
    },
    Unreachable,
    Dead,
}

impl Silence {
    fn lives_until(self, deadline_us: u64) -> u64 {
        if deadline_us >= self.spent_us { deadline_us.max(self.forgiven_us) } else { deadline_us }
    }
}

impl Run<'_> {
    /// The end of a lifetime that begins now, in µs. Redis counts from the start of the millisecond.
    pub fn ends(&self, lifetime_us: u64) -> u64 {
        whole(self.now_us) + whole(lifetime_us)
    }

    pub fn waiter_ttl_us(&self) -> u64 {
        self.client.waiter_ttl_ms.cast_unsigned() * 1000
    }

    pub fn next_token(&self) -> u64 {
        let clock = match self.token_clock {
            TokenClock::Time => self.now_us,
            TokenClock::Losses(losses) => losses * 1000,
        };
        clock.max(self.name.last_token + 1)
    }

    pub fn left_until(&self, until_us: u64) -> Duration {
        Duration::from_micros(until_us - whole(self.now_us))
    }

    /// How much longer the server grants nothing, or `None` if it is not frozen.
    pub fn frozen_for(&self) -> Option<Duration> {
        (self.frozen_us > 0).then(|| Duration::from_millis(self.frozen_us.div_ceil(1000)))
    }

    pub fn is_late(&self, not_after: i64) -> bool {
        not_after.saturating_mul(1000) < self.now_us.cast_signed()
    }

    pub fn has_left(&self, owner: &str, seq: u64) -> bool {
        self.name.tombstones.get(owner).is_some_and(|tombstone| tombstone.seq >= seq)
    }

    /// Extends the client's deadline. Returns false if the client was unknown or counted as dead.
    pub fn hear(&mut self) -> bool {
        let (silence, until) = (self.find_silence(), self.ends(self.waiter_ttl_us()));
        self.note(silence);
        let known = self.name.deadlines.insert(self.client.id.clone(), until);
        known.is_some_and(|deadline| silence.lives_until(deadline) > self.now_us)
    }

    /// The same, and extends the life of the queue.
    pub fn hear_and_keep(&mut self) -> bool {
        let (known, ttl) = (self.hear(), self.waiter_ttl_us());
        if self.name.queue_until_us < whole(self.now_us) + (60_000_000).max(ttl * 3 / 2) {
            self.name.queue_until_us = self.ends((90_000_000).max(2 * ttl));
        }
        known
    }

    pub fn find_silence(&self) -> Silence {
        let (now, ttl) = (self.now_us, self.waiter_ttl_us());
        let Name { forgiven_us, deadlines, .. } = &*self.name;
        if *forgiven_us > now {
            return self.noted_silence();
        }
        let heard = deadlines.values().copied().max().unwrap_or(0);
        if heard <= *forgiven_us || heard > now + ttl / 2 {
            return Silence::default();
        }
        Silence { forgiven_us: now + ttl - 1000, spent_us: *forgiven_us, is_new: true }
    }

    fn noted_silence(&self) -> Silence {
        let Name { forgiven_us, spent_us, .. } = *self.name;
        Silence { forgiven_us, spent_us, is_new: false }
    }

    pub fn note(&mut self, silence: Silence) {
        if silence.is_new {
            (self.name.forgiven_us, self.name.spent_us) = (whole(silence.forgiven_us), silence.spent_us);
        }
    }

    /// For at least a millisecond.
    pub fn lives(&self, until_us: u64) -> bool {
        until_us >= self.now_us + 1000
    }

    /// `heard`: a client whose deadline this request will extend.
    pub fn standing(&self, place: &Place, heard: Option<&str>, silence: Silence) -> Standing {
        let client = client_of(&place.owner);
        if heard == Some(client) {
            return Standing::Waits { until_us: self.now_us + self.waiter_ttl_us() };
        }
        let deadline = self.name.deadline_of(place).unwrap_or(0);
        let until_us = if self.is_overdue(place, heard) { silence.lives_until(deadline) } else { deadline };
        match self.lives(until_us) {
            true if self.reaches(place) => Standing::Waits { until_us },
            true => Standing::Unreachable,
            false => Standing::Dead,
        }
    }

    pub fn reaches(&self, place: &Place) -> bool {
        let client = client_of(&place.owner);
        client == self.caller || self.reachable.contains(client)
    }

    fn is_overdue(&self, place: &Place, heard: Option<&str>) -> bool {
        let is_heard = heard == Some(client_of(&place.owner));
        !is_heard && self.name.deadline_of(place).is_some_and(|deadline| !self.lives(deadline))
    }

    /// The silence, if the search must note it because it has read the deadline of an overdue client. It reads the
    /// deadlines of the first `block` places together, and all others together. `stop`: the last place that it looked
    /// at.
    pub fn met(&self, silence: Silence, heard: Option<&str>, stop: Option<usize>, block: usize) -> Silence {
        let queue = &self.name.queue;
        let seen = stop.and_then(|at| [block, 2].get(at).copied()).unwrap_or(queue.len());
        let is_met = queue.iter().take(seen).any(|place| self.is_overdue(place, heard));
        if is_met { silence } else { Silence::default() }
    }

    /// Returns true if the place is new.
    pub fn take_place(&mut self, Acquire { owner, seq, terms, .. }: &Acquire) -> bool {
        let is_new = !self.name.has_place(owner, *seq);
        if is_new {
            let (owner, seq, share, first_lease_ms) = (owner.to_string(), *seq, share(terms), first_lease_ms(terms));
            self.name.queue.push(Place { owner, seq, share, first_lease_ms });
        }
        is_new
    }

    /// The answer to a caller that has a place. Removes a new place beyond `max_waiters`.
    pub fn queued(&mut self, Acquire { owner, seq, .. }: &Acquire, is_new: bool, queued: Acquired) -> Acquired {
        let waiters = self.name.queue.len() - 1;
        if !is_new || waiters < self.client.max_waiters {
            return queued;
        }
        self.name.remove_place(owner, *seq);
        Acquired::Full { waiters: waiters as u64, more: false }
    }

    pub fn grant(&mut self, holder: &Holder) {
        let Holder { owner, seq, token, until_us, .. } = holder;
        let (lease_ms, ticket) = ((until_us - whole(self.now_us)) / 1000, ticket(owner, *seq));
        self.publish(owner, Text::Grant { token: *token, lease_ms, ticket });
    }

    pub fn revoke(&mut self, Holder { owner, token, .. }: &Holder) {
        self.publish(owner, Text::Revoked { token: *token, owner: owner.clone() });
    }

    fn publish(&mut self, owner: &str, text: Text) {
        self.messages.push(Message { client: client_of(owner).to_owned(), lock: self.lock.clone(), text });
    }

    /// Whether the script does not read the clock: the owner keeps guards of a lock, or the release is usual and
    /// no client waits.
    pub fn is_quick(&self, release: &Release) -> bool {
        let frees = self.name.queue.is_empty() && self.ours(&release.owner, release.seq).is_some();
        release.holds > 0 && !release.keys.kind.is_shared() || is_usual(release) && frees
    }

    /// The owner's hold, if a request up to this one made it.
    pub fn ours(&self, owner: &str, seq: u64) -> Option<&Holder> {
        self.name.holder_of(owner).filter(|holder| holder.seq <= seq)
    }

    /// The hold that this release ends. The token of a handle comes from outside.
    pub fn released(&self, Release { owner, seq, token, is_handle, .. }: &Release) -> Option<Holder> {
        self.ours(owner, *seq).filter(|holder| !is_handle || holder.token == *token).cloned()
    }

    /// Leaves a tombstone for copies of an acquire or a detach that may still be under way.
    pub fn bury(&mut self, release: &Release) {
        let Release { owner, seq, attempt, copies_until, is_handle, .. } = release;
        if !is_usual(release) {
            self.set_tombstone(owner, *seq, *copies_until);
        }
        if !is_usual(release) && !is_handle {
            self.name.remove_place(owner, *attempt);
        }
    }

    pub fn set_tombstone(&mut self, owner: &str, seq: u64, copies_until: i64) {
        let copies_until_us = copies_until.max(0).cast_unsigned().saturating_mul(1000);
        if copies_until_us < self.now_us {
            return;
        }
        let until_us = self.ends(copies_until_us - self.now_us + 1_000_000);
        let tombstone = self.name.tombstones.entry(owner.to_owned()).or_insert(Tombstone { seq, until_us });
        (tombstone.seq, tombstone.until_us) = (tombstone.seq.max(seq), tombstone.until_us.max(until_us));
    }

    /// The attempt whose place a leave names.
    pub fn place_of(leave: &Leave) -> Option<(&str, u64)> {
        let (owner, seq) = leave.place.split('/').next()?.rsplit_once(':')?;
        Some((owner, seq.parse().ok()?))
    }

    pub fn purge(&mut self, leave: &Leave) {
        self.set_tombstone(&leave.owner, leave.seq, leave.copies_until);
        if let Some((owner, seq)) = Self::place_of(leave) {
            self.name.remove_place(owner, seq);
        }
    }

    /// Whether the client waits, so that this poll extends its deadline.
    pub fn waits(&self, poll: &Poll) -> bool {
        poll.waits && !poll.names_ours && !self.name.queue.is_empty()
    }

    pub fn is_first(&self) -> bool {
        self.name.queue.first().is_some_and(|place| client_of(&place.owner) == self.client.id)
    }

    pub fn has_ticket(&self, wanted: &str) -> bool {
        self.name.queue.iter().any(|place| ticket(&place.owner, place.seq) == wanted)
    }

    pub fn inspect(&self, Inspect { keys, .. }: &Inspect) -> Inspected {
        let mut holders: Vec<_> = self.name.holders().filter(|holder| holder.until_us > self.now_us).collect();
        holders.sort_by_key(|holder| holder.token);
        let named = holders.iter().map(|holder| HolderEntry {
            owner: holder.owner.clone(),
            holds: holder.holds,
            token: holder.token,
            since: Duration::ZERO,
            lease_left: self.lease_of(holder, keys.kind.is_shared()),
            share: holder.share,
            label: String::new(),
        });
        let silence = self.noted_silence();
        let until_us = |place: &Place| silence.lives_until(self.name.deadline_of(place).unwrap_or(0));
        let living = || self.name.queue.iter().filter(|place| self.lives(until_us(place)));
        let queue = living().map(|place| QueueEntry {
            ticket: ticket(&place.owner, place.seq),
            deadline_in: self.left_now(until_us(place)),
            label: String::new(),
            share: place.share,
        });
        Inspected {
            holders: named.collect(),
            holding: holders.len() as u64,
            used: holders.iter().map(|holder| u64::from(holder.share.weight)).sum(),
            set_limit: self.name.shared.limit,
            waiters: living().count() as u64,
            frozen_for: self.frozen_for(),
            queue: queue.collect(),
        }
    }

    fn lease_of(&self, holder: &Holder, is_shared: bool) -> Duration {
        if is_shared { self.left_now(holder.until_us) } else { self.left_until(holder.until_us) }
    }

    /// By the exact time; the time to live of a key counts from the start of the millisecond.
    pub fn left_now(&self, until_us: u64) -> Duration {
        Duration::from_millis(until_us.saturating_sub(self.now_us) / 1000)
    }
}

/// It ends the hold, without a handle, and no late copy can come.
pub(super) fn is_usual(release: &Release) -> bool {
    !release.is_handle && release.holds == 0 && release.copies_until <= 0
}

pub(super) fn micros(duration: Duration) -> u64 {
    millis(duration).cast_unsigned() * 1000
}

/// The share that these terms ask for.
pub(super) fn share(terms: &str) -> Share {
    share_of(terms).unwrap_or(Share::LOCK)
}

/// The duration of a grant to a place with these terms.
fn first_lease_ms(terms: &str) -> u64 {
    let last = terms.split('/').next().and_then(|numbers| numbers.rsplit(',').next());
    last.and_then(|number| number.parse().ok()).unwrap_or(0)
}
