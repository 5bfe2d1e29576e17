//! A small model of the scripts of `lua/`: what they do to the locks of one server, in a few lines each. Random sequences hold
//! it to the scripts themselves (`tests/it/explored.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    pub holder: Option<Holder>,
    /// Oldest first.
    pub queue: Vec<Place>,
    /// Until when each client lives, in ms. They end with the queue.
    deadlines: BTreeMap<String, i64>,
    queue_until_us: u64,
    forgiven: i64,
    spent: i64,
    tombstones: BTreeMap<String, Tombstone>,
    last_token: u64,
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
    first_lease_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tombstone {
    seq: u64,
    until_us: u64,
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
        let clients = self.deadlines.values().map(|until| until.cast_unsigned() * 1000);
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
        let lives = |place: &Place| {
            let until = self.deadlines.get(client_of(&place.owner)).copied().unwrap_or(0);
            until > (now_us / 1000).cast_signed()
        };
        self.holder.is_none() && !self.queue.iter().any(lives)
    }
}

fn client_of(owner: &str) -> &str {
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
        let answer = match request {
            Request::Acquire(acquire) => Answer::Acquired(run.acquire(acquire)),
            Request::Release(release) => Answer::Released(run.release(release)),
            Request::Renew(renew) => Answer::Renewed(run.renew(renew)),
            Request::Poll(poll) => Answer::Polled(Box::new(run.poll(poll))),
            Request::Leave(leave) => Answer::Left(run.leave(leave)),
        };
        Reply { server_micros: i64::try_from(now_us).ok(), answer }
    }

    /// Ends the present hold. Returns its token.
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
        (self.forgiven, self.spent) = (0, 0);
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
struct Found {
    winner: Option<Place>,
    /// Dead places at the head.
    cleared: usize,
    forgives: Option<(i64, i64)>,
}

impl Run<'_> {
    fn now_ms(&self) -> i64 {
        (self.now_us / 1000).cast_signed()
    }

    fn next_token(&self) -> u64 {
        let clock = match self.token_clock {
            TokenClock::Time => self.now_us,
            TokenClock::Losses(losses) => losses * 1000,
        };
        let current = self.name.holder.as_ref().map_or(0, |holder| holder.token);
        clock.max(self.name.last_token + 1).max(current + 1)
    }

    fn lease_left(&self) -> Option<std::time::Duration> {
        let holder = self.name.holder.as_ref()?;
        Some(whole_millis(holder.until_us - self.now_us))
    }

    fn acquire(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, mode, lease, .. } = acquire;
        if acquire.not_after < self.now_ms() {
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
        let found = self.look(waits.then(|| self.client.id.clone()));
        let is_first = found.winner.as_ref().is_some_and(|place| *place.owner == **owner && place.seq == *seq);
        if is_first || found.winner.is_none() && self.frozen_us == 0 {
            if is_first {
                self.hear(false);
            }
            let token = match acquire.mode {
                Mode::Propose(proposed) if found.winner.is_none() && self.may_give(proposed, acquire) => proposed,
                _ => token,
            };
            self.clear(&found);
            self.name.remove_place(owner, *seq);
            self.take(owner, *seq, token, self.now_us + micros(*lease));
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
        let frozen = (self.frozen_us > 0).then(|| whole_millis(self.frozen_us + 999));
        let lease_left = if won { self.lease_left() } else { frozen };
        Acquired::Queued { floor, lease_left, more, known }
    }

    fn may_give(&self, proposed: u64, acquire: &Acquire) -> bool {
        proposed > self.name.last_token && proposed <= self.now_us + micros(acquire.lease) && self.name.queue.is_empty()
    }

    fn held(&mut self, lease: std::time::Duration) -> Acquired {
        let (now_us, until_us) = (self.now_us, self.now_us + micros(lease));
        let Some(holder) = &mut self.name.holder else { return Acquired::Lost };
        holder.until_us = holder.until_us.max(until_us);
        Acquired::Held { token: holder.token, holds: holder.holds, lease_left: whole_millis(holder.until_us - now_us) }
    }

    fn join(&mut self, acquire: &Acquire) -> Acquired {
        let Acquire { owner, seq, terms, .. } = acquire;
        let (now_ms, client) = (self.now_ms(), self.client);
        let has_place = self.name.has_place(owner, *seq);
        // A client that was heard a moment ago is not heard again.
        let left = self.name.deadlines.get(&client.id).map_or(0, |until| until - now_ms);
        let is_fresh = left * 8 > client.waiter_ttl_ms * 7 && left <= client.waiter_ttl_ms && !has_place;
        if !has_place {
            let first_lease_ms = terms.split('/').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
            self.name.queue.push(Place { owner: owner.to_string(), seq: *seq, first_lease_ms });
        }
        let held_by_another = self.name.holder.as_ref().is_some_and(|holder| *holder.owner != **owner);
        let known = (is_fresh && held_by_another) || self.hear(self.name.queue.len() == 1 && !has_place);
        let waiters = self.name.queue.len() - 1;
        if !has_place && waiters >= client.max_waiters {
            self.name.remove_place(owner, *seq);
            return Acquired::Full { waiters: waiters as u64, more: false };
        }
        let floor = self.name.holder.as_ref().map_or(0, |holder| holder.token);
        Acquired::Queued { floor, lease_left: self.lease_left(), more: false, known }
    }

    /// Whether the client had not been given up as dead.
    fn hear(&mut self, is_alone: bool) -> bool {
        let (now, ttl) = (self.now_ms(), self.client.waiter_ttl_ms);
        let known = self.name.deadlines.get(&self.client.id).copied();
        let deadline = known.unwrap_or(0);
        let mut silence = (0, 0);
        if deadline - now <= ttl / 2 && !is_alone {
            let (forgiven, spent, is_new) = self.find_silence();
            silence = (forgiven, spent);
            if is_new {
                (self.name.forgiven, self.name.spent) = silence;
            }
        }
        self.name.deadlines.insert(self.client.id.clone(), now + ttl);
        if self.name.queue_until_us < self.now_us + 60_000_000 {
            self.name.queue_until_us = self.now_us + 90_000_000;
        }
        known.is_some() && lives_until(deadline, silence) > now
    }

    /// Until when no client counts as dead, which clients were forgiven before, and whether this is new.
    fn find_silence(&self) -> (i64, i64, bool) {
        let (now, ttl, Name { forgiven, spent, deadlines, .. }) =
            (self.now_ms(), self.client.waiter_ttl_ms, &*self.name);
        if *forgiven > now {
            return (*forgiven, *spent, false);
        }
        let heard = deadlines.values().copied().max().unwrap_or(0);
        if heard <= *forgiven || heard - now > ttl / 2 {
            return (0, 0, false);
        }
        (now + ttl - 1, *forgiven, true)
    }

    /// The first live ticket of a reachable client.
    fn look(&self, heard: Option<String>) -> Found {
        let mut found = Found { winner: None, cleared: 0, forgives: None };
        if self.frozen_us > 0 {
            return found;
        }
        let now = self.now_ms();
        for (at, place) in self.name.queue.iter().enumerate() {
            let client = client_of(&place.owner);
            let mut until = self.name.deadlines.get(client).copied().unwrap_or(0);
            if until - now < 1 && self.name.deadlines.contains_key(client) {
                let (forgiven, spent, is_new) = self.find_silence();
                until = lives_until(until, (forgiven, spent));
                found.forgives = is_new.then_some((forgiven, spent));
            }
            let is_heard = heard.as_deref() == Some(client);
            let lives = is_heard || until - now >= 1;
            if lives && (is_heard || client == self.client.id || self.reachable.contains(client)) {
                found.winner = Some(place.clone());
                break;
            }
            if !lives && found.cleared == at {
                found.cleared = at + 1;
            }
        }
        found
    }

    fn clear(&mut self, found: &Found) {
        if let Some((forgiven, spent)) = found.forgives {
            (self.name.forgiven, self.name.spent) = (forgiven, spent);
        }
        self.name.queue.drain(..found.cleared);
    }

    /// The winner gets the lock, and its client a message. Without one the lock is free.
    fn serve(&mut self, found: Found) {
        let (now, token) = (self.now_ms(), self.next_token());
        self.clear(&found);
        self.name.holder = None;
        if let Some(Place { owner, seq, first_lease_ms }) = found.winner {
            let client = client_of(&owner).to_owned();
            let mut until = self.name.deadlines.get(&client).copied().unwrap_or(0);
            until = lives_until(until, (self.name.forgiven.max(0), self.name.spent)).max(until);
            let lease = first_lease_ms.min(until - now).max(1);
            self.take(&owner, seq, token, self.now_us + lease.cast_unsigned() * 1000);
            let text = Text::Grant { token, lease_ms: lease.cast_unsigned(), ticket: ticket(&owner, seq) };
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
        self.pass_on(freed.is_some());
        freed.map_or(Released::Gone { more: false }, |token| Released::Freed { token, more: false })
    }

    /// `is_ending`: the present hold ends here.
    fn pass_on(&mut self, is_ending: bool) {
        if is_ending || self.name.holder.is_none() {
            let found = self.look(None);
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
            self.pass_on(ours);
        }
        Left { more: false }
    }

    fn set_tombstone(&mut self, owner: &str, seq: u64, copies_until: i64) {
        if copies_until < self.now_ms() {
            return;
        }
        let until_us = (copies_until + 1000).cast_unsigned() * 1000;
        let tombstone = self.name.tombstones.entry(owner.to_owned()).or_insert(Tombstone { seq, until_us });
        (tombstone.seq, tombstone.until_us) = (tombstone.seq.max(seq), tombstone.until_us.max(until_us));
    }

    fn renew(&mut self, renew: &Renew) -> Renewed {
        let (now_us, until_us) = (self.now_us, self.now_us + micros(renew.lease));
        match &mut self.name.holder {
            Some(holder) if *holder.owner == *renew.owner && holder.token == renew.token => {
                let may_shorten = matches!(renew.only, Only::Attempt(seq) if seq == holder.seq);
                if may_shorten || holder.until_us < until_us {
                    holder.until_us = until_us;
                }
                Renewed::Renewed { lease_left: whole_millis(holder.until_us - now_us) }
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
        let found = self.name.holder.is_none().then(|| self.look(waits.then(|| self.client.id.clone())));
        let known = waits && self.hear(false);
        let places = self.name.queue.len() as u64;
        let Some(found) = found else {
            return self.polled(known, places, first, missing, token - 1);
        };
        if self.frozen_us > 0 {
            let frozen_for = Some(whole_millis(self.frozen_us + 999));
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
        let holder = self.name.holder.clone()?;
        let (client, token) = (client_of(&holder.owner).to_owned(), holder.token);
        let text = Text::Revoked { token, owner: holder.owner };
        self.messages.push(Message { client, lock: self.lock.clone(), text });
        self.pass_on(true);
        Some(token)
    }
}

fn lives_until(deadline: i64, (forgiven, spent): (i64, i64)) -> i64 {
    if deadline >= spent { deadline.max(forgiven) } else { deadline }
}

fn micros(duration: std::time::Duration) -> u64 {
    millis(duration).cast_unsigned() * 1000
}

/// As PTTL rounds.
fn whole_millis(micros: u64) -> std::time::Duration {
    std::time::Duration::from_millis((micros + 500) / 1000)
}

impl Name {
    /// The same at a server whose clock is so much ahead.
    pub fn shifted(mut self, micros: u64) -> Self {
        let shift = |us: u64| us.wrapping_add(micros);
        let shift_ms = |ms: i64| ms + micros.cast_signed() / 1000;
        self.holder.iter_mut().for_each(|holder| holder.until_us = shift(holder.until_us));
        self.deadlines.values_mut().for_each(|until| *until = shift_ms(*until));
        self.tombstones.values_mut().for_each(|tombstone| tombstone.until_us = shift(tombstone.until_us));
        self.queue_until_us = shift(self.queue_until_us);
        (self.forgiven, self.spent) = (shift_ms(self.forgiven), shift_ms(self.spent));
        self
    }
}
