//! A small model of the scripts of `lua/`: what they do to the locks of one server, in a few lines each. Random sequences hold
//! it to the scripts themselves (`tests/lua.rs`).
//!
//! It leaves out what a few clients never meet:
//!
//! - the bounds of one call, so `more` is never set, and `!skip`, which notes 32 places that were passed over;
//! - places far from both ends, and tickets without a place or places without a ticket, which only they, a refused command or a
//!   hand make: it has one list for both;
//! - what `max_waiters` sweeps out before it refuses a place;
//! - the end of `token_ttl`, handles (`give`, and a release by handle), shared names, and formats of other versions.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use fairlock_proto::command::millis;
use fairlock_proto::effect::Request;
use fairlock_proto::event::{Answer, Reply};
use fairlock_proto::keys::{Keys, ticket};
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::leave::{Leave, Left};
use fairlock_proto::requests::poll::{Poll, Polled, PolledHolder};
use fairlock_proto::requests::release::{Release, Released};
use fairlock_proto::requests::renew::{Only, Renew, Renewed};

/// What one client brings along with each request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub id: String,
    pub waiter_ttl_ms: i64,
    pub max_waiters: usize,
}

/// A message to a client's channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub client: String,
    pub lock: String,
    pub text: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Text {
    Grant { token: u64, lease_ms: u64, ticket: String },
    Revoked { token: u64, owner: String },
}

/// Where tokens come from when they are not one more than the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenClock {
    /// The server's clock, as in the scripts.
    Time,
    /// How often it has lost its data: a search would never meet a state again by the clock.
    Losses(u64),
}

#[derive(Debug, Clone)]
pub struct Server {
    pub names: BTreeMap<String, Name>,
    pub reachable: BTreeSet<String>,
    pub frozen_until_us: u64,
    pub token_clock: TokenClock,
    /// The time of the script that runs.
    now_us: u64,
}

impl Hash for Server {
    /// For a search, which adds the times of its leases itself.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.names, &self.reachable).hash(state);
    }
}

/// What it keeps of time is in whole milliseconds, as at the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    pub holder: Option<Holder>,
    /// Oldest first.
    pub queue: Vec<Place>,
    /// Until when each client lives. They end with the queue.
    pub deadlines: BTreeMap<String, u64>,
    pub queue_until_us: u64,
    /// Until then no client counts as dead,
    pub forgiven_us: u64,
    /// but one with an earlier deadline than this.
    pub spent_us: u64,
    pub tombstones: BTreeMap<String, Tombstone>,
    pub last_token: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub owner: String,
    pub holds: u32,
    pub seq: u64,
    pub token: u64,
    pub until_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub owner: String,
    pub seq: u64,
    pub first_lease_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    pub seq: u64,
    pub until_us: u64,
}

impl Hash for Name {
    /// With times as they are: who compares states takes all times relative to one instant, see `search`.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let holder = self.holder.as_ref().map(|holder| (&holder.owner, holder.holds, holder.token));
        let queue: Vec<_> = self.queue.iter().map(|place| &place.owner).collect();
        (holder, queue, self.last_token).hash(state);
    }
}

impl Name {
    /// The instants at which something of it ends, in µs, and the seqs in it, for the canonical form of a search.
    pub fn times(&self) -> Vec<u64> {
        let holder = self.holder.iter().map(|holder| holder.until_us);
        let clients = self.deadlines.values().copied();
        let tombstones = self.tombstones.values().map(|tombstone| tombstone.until_us);
        holder.chain(clients).chain(tombstones).collect()
    }

    pub fn seqs(&self) -> Vec<(&str, u64)> {
        let holder = self.holder.iter().map(|holder| (&*holder.owner, holder.seq));
        let queue = self.queue.iter().map(|place| (&*place.owner, place.seq));
        let tombstones = self.tombstones.iter().map(|(owner, tombstone)| (&**owner, tombstone.seq));
        holder.chain(queue).chain(tombstones).collect()
    }

    /// Nothing is held or waited for, but by clients that have been given up.
    pub fn is_free(&self, now_us: u64) -> bool {
        let lives = |place: &Place| self.deadline_of(place).unwrap_or(0) > now_us;
        self.holder.is_none() && !self.queue.iter().any(lives)
    }
}

pub fn client_of(owner: &str) -> &str {
    owner.split(':').next().unwrap_or_default()
}

impl Server {
    pub fn new(token_clock: TokenClock) -> Self {
        let (names, reachable) = (BTreeMap::new(), BTreeSet::new());
        Self { names, reachable, frozen_until_us: 0, token_clock, now_us: 0 }
    }

    /// Runs a request at this time of the server's clock. Messages are appended.
    pub fn run(&mut self, request: &Request, client: &Client, now_us: u64, messages: &mut Vec<Message>) -> Reply {
        let (Request::Acquire(Acquire { keys, .. })
        | Request::Release(Release { keys, .. })
        | Request::Renew(Renew { keys, .. })
        | Request::Poll(Poll { keys, .. })
        | Request::Leave(Leave { keys, .. })) = request;
        let mut run = self.begin(keys, client, now_us, messages);
        let tells_time = !matches!(request, Request::Release(release) if run.is_quick(release));
        let answer = match request {
            Request::Acquire(acquire) => Answer::Acquired(run.acquire(acquire)),
            Request::Release(release) => Answer::Released(run.release(release)),
            Request::Renew(renew) => Answer::Renewed(run.renew(renew)),
            Request::Poll(poll) => Answer::Polled(Box::new(run.poll(poll))),
            Request::Leave(leave) => Answer::Left(run.leave(leave)),
        };
        Reply { server_micros: tells_time.then_some(now_us.cast_signed()), answer }
    }

    /// Ends the present hold, and passes the lock on. Returns the token of the hold.
    pub fn force_unlock(
        &mut self,
        keys: &Keys,
        client: &Client,
        now_us: u64,
        messages: &mut Vec<Message>,
    ) -> Option<u64> {
        self.begin(keys, client, now_us, messages).force_unlock()
    }

    fn begin<'a>(
        &'a mut self,
        keys: &Keys,
        client: &'a Client,
        now_us: u64,
        messages: &'a mut Vec<Message>,
    ) -> Run<'a> {
        self.now_us = now_us;
        let lock = keys.lock.to_string();
        let name = self.names.entry(lock.clone()).or_default();
        name.expire(now_us);
        let (reachable, frozen_us) = (&self.reachable, self.frozen_until_us.saturating_sub(now_us));
        Run { name, lock, client, now_us, reachable, frozen_us, token_clock: self.token_clock, messages }
    }

    /// Whether it reaches the client of this owner, and has not given it up. A client without any place counts as alive.
    pub fn hears(&self, name: &Name, owner: &str, now_us: u64) -> bool {
        let client = client_of(owner);
        self.reachable.contains(client) && name.deadlines.get(client).is_none_or(|deadline| *deadline >= now_us + 1000)
    }

    /// Lets all end whose time is over.
    pub fn expire(&mut self, now_us: u64) {
        self.names.values_mut().for_each(|name| name.expire(now_us));
    }
}

impl Name {
    fn expire(&mut self, now_us: u64) {
        self.holder.take_if(|holder| holder.until_us <= now_us);
        self.tombstones.retain(|_, tombstone| tombstone.until_us > now_us);
        if self.queue_until_us <= now_us {
            self.end_queue();
        }
    }

    fn end_queue(&mut self) {
        self.queue.clear();
        self.deadlines.clear();
        (self.queue_until_us, self.forgiven_us, self.spent_us) = (0, 0, 0);
    }

    fn deadline_of(&self, place: &Place) -> Option<u64> {
        self.deadlines.get(client_of(&place.owner)).copied()
    }

    fn has_place(&self, owner: &str, seq: u64) -> bool {
        self.queue.iter().any(|place| place.owner == owner && place.seq == seq)
    }

    fn remove_place(&mut self, owner: &str, seq: u64) {
        self.queue.retain(|place| place.owner != owner || place.seq != seq);
        if self.queue.is_empty() {
            self.end_queue();
        }
    }
}

/// One run of a script.
struct Run<'a> {
    name: &'a mut Name,
    lock: String,
    client: &'a Client,
    now_us: u64,
    reachable: &'a BTreeSet<String>,
    frozen_us: u64,
    token_clock: TokenClock,
    messages: &'a mut Vec<Message>,
}

/// Who was found as the next in line.
#[derive(Default)]
struct Found {
    winner: Option<Place>,
    /// Until when its client lives.
    lives_until_us: u64,
    /// Dead places at the head.
    cleared: usize,
    /// A silence that is to be noted.
    silence: Option<Silence>,
}

/// For whom a silence of all clients is forgiven, see `lib/silence.lua`.
#[derive(Clone, Copy, Default)]
struct Silence {
    forgiven_us: u64,
    spent_us: u64,
    is_new: bool,
}

impl Silence {
    fn lives_until(self, deadline_us: u64) -> u64 {
        if deadline_us >= self.spent_us { deadline_us.max(self.forgiven_us) } else { deadline_us }
    }
}

impl Run<'_> {
    /// When something ends that has so long to live, in µs: Redis counts from the millisecond.
    fn ends(&self, lifetime_us: u64) -> u64 {
        whole(self.now_us) + whole(lifetime_us)
    }

    fn waiter_ttl_us(&self) -> u64 {
        self.client.waiter_ttl_ms.cast_unsigned() * 1000
    }

    fn next_token(&self) -> u64 {
        let clock = match self.token_clock {
            TokenClock::Time => self.now_us,
            TokenClock::Losses(losses) => losses * 1000,
        };
        let current = self.name.holder.as_ref().map_or(0, |holder| holder.token);
        clock.max(self.name.last_token + 1).max(current + 1)
    }

    fn left_until(&self, until_us: u64) -> Duration {
        Duration::from_micros(until_us - whole(self.now_us))
    }

    fn lease_left(&self) -> Option<Duration> {
        self.name.holder.as_ref().map(|holder| self.left_until(holder.until_us))
    }

    /// For so long the server grants nothing. It may be over.
    fn frozen_for(&self) -> Option<Duration> {
        (self.frozen_us > 0).then(|| Duration::from_millis(self.frozen_us.div_ceil(1000)))
    }

    fn acquire(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, mode, lease, .. } = acquire;
        if acquire.not_after.saturating_mul(1000) < self.now_us.cast_signed() {
            return Acquired::Late;
        }
        if self.name.tombstones.get(&**owner).is_some_and(|tombstone| tombstone.seq >= *seq) {
            return Acquired::Over;
        }
        let ours = self.name.holder.as_ref().is_some_and(|holder| *holder.owner == **owner);
        if let Mode::Nest(token, holds) = mode {
            return self.nest(acquire, *token, *holds);
        }
        let waits = matches!(mode, Mode::Queue);
        match &self.name.holder {
            Some(_) if !ours && waits => return self.join(acquire),
            Some(_) if !ours => return Acquired::Busy { more: false },
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

    /// The lock is free, or its holder asks for a first hold: it has lost the earlier one.
    fn take_or_join(&mut self, acquire: &Acquire, waits: bool) -> Acquired {
        let Acquire { owner, seq, lease, .. } = acquire;
        let token = self.next_token();
        let found = self.look(waits.then(|| self.client.id.clone()), 2);
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
            return Acquired::Busy { more: false };
        }
        // The caller must not stand before the winner (P3).
        let joined = self.join(acquire);
        let won = found.winner.is_some();
        self.serve(found);
        let Acquired::Queued { more, known, .. } = joined else { return joined };
        let floor = if won { token } else { token - 1 };
        let lease_left = if won { self.lease_left() } else { self.frozen_for() };
        Acquired::Queued { floor, lease_left, more, known }
    }

    /// Only in the usual case: nothing is left of anyone.
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
        let Acquire { owner, seq, terms, .. } = acquire;
        let client = self.client;
        let has_place = self.name.has_place(owner, *seq);
        // A client that was heard a moment ago is not heard again.
        let deadline = self.name.deadlines.get(&client.id).copied().unwrap_or(0);
        let (left, ttl) = (deadline.saturating_sub(self.now_us), self.waiter_ttl_us());
        let is_fresh = left * 8 > ttl * 7 && left <= ttl && !has_place;
        if !has_place {
            let first_lease_ms = terms.split('/').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
            self.name.queue.push(Place { owner: owner.to_string(), seq: *seq, first_lease_ms });
        }
        let held_by_another = self.name.holder.as_ref().is_some_and(|holder| *holder.owner != **owner);
        let known = (is_fresh && held_by_another) || self.hear_and_keep();
        let waiters = self.name.queue.len() - 1;
        if !has_place && waiters >= client.max_waiters {
            self.name.remove_place(owner, *seq);
            return Acquired::Full { waiters: waiters as u64, more: false };
        }
        let floor = self.name.holder.as_ref().map_or(0, |holder| holder.token);
        Acquired::Queued { floor, lease_left: self.lease_left(), more: false, known }
    }

    /// Whether the client had not been given up as dead.
    fn hear(&mut self) -> bool {
        let (silence, until) = (self.find_silence(), self.ends(self.waiter_ttl_us()));
        self.note(silence);
        let known = self.name.deadlines.insert(self.client.id.clone(), until);
        known.is_some_and(|deadline| silence.lives_until(deadline) > self.now_us)
    }

    /// The same, and the queue lives on.
    fn hear_and_keep(&mut self) -> bool {
        let (known, ttl) = (self.hear(), self.waiter_ttl_us());
        if self.name.queue_until_us < whole(self.now_us) + (60_000_000).max(ttl * 3 / 2) {
            self.name.queue_until_us = self.ends((90_000_000).max(2 * ttl));
        }
        known
    }

    fn find_silence(&self) -> Silence {
        let (now, ttl) = (self.now_us, self.waiter_ttl_us());
        let Name { forgiven_us, spent_us, deadlines, .. } = &*self.name;
        if *forgiven_us > now {
            return Silence { forgiven_us: *forgiven_us, spent_us: *spent_us, is_new: false };
        }
        let heard = deadlines.values().copied().max().unwrap_or(0);
        if heard <= *forgiven_us || heard > now + ttl / 2 {
            return Silence::default();
        }
        Silence { forgiven_us: now + ttl - 1000, spent_us: *forgiven_us, is_new: true }
    }

    fn note(&mut self, silence: Silence) {
        if silence.is_new {
            (self.name.forgiven_us, self.name.spent_us) = (whole(silence.forgiven_us), silence.spent_us);
        }
    }

    /// The first live ticket of a reachable client. `heard`: a client that is about to be heard. The clients of `block` places at the
    /// head are looked up together, and a silence is noted if one of them is overdue.
    fn look(&self, heard: Option<String>, block: usize) -> Found {
        let mut found = Found::default();
        if self.frozen_us > 0 {
            return found;
        }
        let (silence, queue) = (self.find_silence(), &self.name.queue);
        let mut seen = queue.len();
        for (at, place) in queue.iter().enumerate() {
            let is_heard = heard.as_deref() == Some(client_of(&place.owner));
            let until = if is_heard { self.now_us + self.waiter_ttl_us() } else { self.lives_until(place, silence) };
            if self.lives(until) && (is_heard || self.reaches(place)) {
                (found.winner, found.lives_until_us) = (Some(place.clone()), until);
                seen = [block, 2].get(at).copied().unwrap_or(seen);
                break;
            }
            if !self.lives(until) && found.cleared == at {
                found.cleared = at + 1;
            }
        }
        let is_overdue = |place: &Place| self.name.deadline_of(place).is_some_and(|deadline| !self.lives(deadline));
        found.silence = queue.iter().take(seen).any(is_overdue).then_some(silence);
        found
    }

    /// For a millisecond at least.
    fn lives(&self, until_us: u64) -> bool {
        until_us >= self.now_us + 1000
    }

    fn lives_until(&self, place: &Place, silence: Silence) -> u64 {
        match self.name.deadline_of(place) {
            Some(deadline) if !self.lives(deadline) => silence.lives_until(deadline),
            deadline => deadline.unwrap_or(0),
        }
    }

    fn reaches(&self, place: &Place) -> bool {
        let client = client_of(&place.owner);
        client == self.client.id || self.reachable.contains(client)
    }

    fn clear(&mut self, found: &Found) {
        self.note(found.silence.unwrap_or_default());
        self.name.queue.drain(..found.cleared);
    }

    /// The winner gets the lock, and its client a message. Without one the lock is free.
    fn serve(&mut self, found: Found) {
        let token = self.next_token();
        self.clear(&found);
        self.name.holder = None;
        if let Some(Place { owner, seq, first_lease_ms }) = found.winner {
            let client = client_of(&owner).to_owned();
            let lease_ms = first_lease_ms.min((found.lives_until_us - self.now_us) / 1000);
            self.take(&owner, seq, token, self.ends(lease_ms * 1000));
            let text = Text::Grant { token, lease_ms, ticket: ticket(&owner, seq) };
            self.messages.push(Message { client, lock: self.lock.clone(), text });
            self.name.remove_place(&owner, seq);
        }
        if self.name.queue.is_empty() {
            self.name.end_queue();
        }
    }

    fn take(&mut self, owner: &str, seq: u64, token: u64, until_us: u64) {
        self.name.last_token = token;
        self.name.holder = Some(Holder { owner: owner.to_owned(), holds: 1, seq, token, until_us });
    }

    /// It does not look at the clock: the owner keeps holds, or nobody waits.
    fn is_quick(&self, release: &Release) -> bool {
        let ours = |holder: &Holder| *holder.owner == *release.owner && holder.seq <= release.seq;
        let frees = self.name.queue.is_empty() && self.name.holder.as_ref().is_some_and(ours);
        release.holds > 0 || release.copies_until <= 0 && frees
    }

    fn release(&mut self, release: &Release) -> Released {
        let Release { owner, seq, token, holds, .. } = release;
        let ours = self.name.holder.as_mut().filter(|holder| *holder.owner == **owner);
        if *holds > 0 {
            return match ours {
                Some(holder) if holder.token == *token && holder.seq <= *seq => {
                    if holder.seq < *seq {
                        (holder.holds, holder.seq) = (*holds, *seq);
                    }
                    Released::Held { holds: holder.holds, more: false }
                }
                _ => Released::Lost,
            };
        }
        let freed = ours.filter(|holder| holder.seq <= *seq).map(|holder| holder.token);
        if release.copies_until > 0 {
            self.set_tombstone(owner, *seq, release.copies_until);
            self.name.remove_place(owner, release.attempt);
        }
        // A usual release looks at the first in line alone.
        let block = if freed.is_some() && release.copies_until <= 0 { 1 } else { 2 };
        self.pass_on(freed.is_some(), block);
        freed.map_or(Released::Gone { more: false }, |token| Released::Freed { token, more: false })
    }

    /// `is_ending`: the present hold ends here.
    fn pass_on(&mut self, is_ending: bool, block: usize) {
        if is_ending || self.name.holder.is_none() {
            let found = self.look(None, block);
            self.serve(found);
        }
    }

    fn leave(&mut self, leave: &Leave) -> Left {
        let Leave { owner, seq, place, copies_until, .. } = leave;
        let ours = self.name.holder.as_ref().is_some_and(|holder| *holder.owner == **owner && holder.seq <= *seq);
        self.set_tombstone(owner, *seq, *copies_until);
        let left = place.split('/').next().and_then(|ticket| ticket.rsplit_once(':'));
        if let Some((owner, Ok(seq))) = left.map(|(owner, seq)| (owner, seq.parse())) {
            self.name.remove_place(owner, seq);
        }
        if ours || !self.name.queue.is_empty() {
            self.pass_on(ours, 2);
        }
        Left { more: false }
    }

    fn set_tombstone(&mut self, owner: &str, seq: u64, copies_until: i64) {
        let copies_until_us = copies_until.max(0).cast_unsigned().saturating_mul(1000);
        if copies_until_us < self.now_us {
            return;
        }
        let until_us = self.ends(copies_until_us - self.now_us + 1_000_000);
        let tombstone = self.name.tombstones.entry(owner.to_owned()).or_insert(Tombstone { seq, until_us });
        (tombstone.seq, tombstone.until_us) = (tombstone.seq.max(seq), tombstone.until_us.max(until_us));
    }

    fn renew(&mut self, renew: &Renew) -> Renewed {
        let until_us = self.ends(micros(renew.lease));
        match &mut self.name.holder {
            Some(holder) if *holder.owner == *renew.owner && holder.token == renew.token => {
                let may_shorten = matches!(renew.only, Only::Attempt(seq) if seq == holder.seq);
                if may_shorten || holder.until_us < until_us {
                    holder.until_us = until_us;
                }
                if let Only::Extend(seq) = renew.only {
                    holder.seq = holder.seq.max(seq);
                }
                let until_us = holder.until_us;
                Renewed::Renewed { lease_left: self.left_until(until_us) }
            }
            _ => Renewed::Lost,
        }
    }

    fn poll(&mut self, poll: &Poll) -> Polled {
        let waits = poll.waits && !self.name.queue.is_empty();
        let first = waits && self.name.queue.first().is_some_and(|place| client_of(&place.owner) == self.client.id);
        let is_missing =
            |wanted: &&String| !self.name.queue.iter().any(|place| ticket(&place.owner, place.seq) == **wanted);
        let missing =
            poll.tickets.iter().enumerate().filter(|(_, wanted)| is_missing(wanted)).map(|(at, _)| at).collect();
        let token = self.next_token();
        let found = self.name.holder.is_none().then(|| self.look(waits.then(|| self.client.id.clone()), 2));
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
        Polled { more: false, known, places, first, holder, granted, room_in, frozen_for, floor, missing }
    }

    fn force_unlock(&mut self) -> Option<u64> {
        let holder = self.name.holder.clone();
        if let Some(Holder { owner, token, .. }) = &holder {
            let text = Text::Revoked { token: *token, owner: owner.clone() };
            self.messages.push(Message { client: client_of(owner).to_owned(), lock: self.lock.clone(), text });
        }
        self.pass_on(holder.is_some(), 2);
        holder.map(|holder| holder.token)
    }
}

fn micros(duration: Duration) -> u64 {
    millis(duration).cast_unsigned() * 1000
}

/// The whole milliseconds of it.
fn whole(micros: u64) -> u64 {
    micros / 1000 * 1000
}

impl Name {
    /// The same at another server, whose clock differs: keys keep what they have left to live, and values stay as they are.
    pub fn moved(mut self, from_us: u64, to_us: u64) -> Self {
        self.expire(from_us);
        let shift = |us: u64| (us + whole(to_us)).saturating_sub(whole(from_us));
        self.holder.iter_mut().for_each(|holder| holder.until_us = shift(holder.until_us));
        self.tombstones.values_mut().for_each(|tombstone| tombstone.until_us = shift(tombstone.until_us));
        self.queue_until_us = shift(self.queue_until_us);
        self
    }
}
