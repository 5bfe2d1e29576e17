//! A small model of the scripts of `lua/`: what they do to the names of one server, in a few lines each. Random sequences hold
//! it to the scripts themselves (`tests/lua.rs`). `lock` has what is of locks, `shared` what is of semaphores and read-write
//! locks, and `run` what both have in common.
//!
//! It leaves out what a few clients never meet:
//!
//! - the bounds of one call, and `!skip`, which notes 32 places that were passed over. So `more` is set for one reason alone: an
//!   owner has two tickets at a shared name;
//! - places far from both ends, and tickets without a place or places without a ticket, which only they, a refused command or a
//!   hand make: it has one list for both;
//! - what `max_waiters` sweeps out before it refuses a place;
//! - a token that is proposed to a shared name: only locks are held on several servers;
//! - the end of `token_ttl`, and formats of other versions;
//! - the labels of holders and waiters, and when a hold was granted: an inspection answers without them.

mod lock;
mod run;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use fairlock_proto::effect::Request;
use fairlock_proto::event::{Answer, Reply};
use fairlock_proto::keys::Share;
use fairlock_proto::requests::release::Release;
use fairlock_proto::requests::renew::Only;

pub use self::shared::Shared;

use self::run::{Run, whole};

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

/// The token of the hold that a `force_unlock` has ended.
pub fn revoked(messages: &[Message]) -> Option<u64> {
    messages.iter().find_map(|message| match message.text {
        Text::Revoked { token, .. } => Some(token),
        Text::Grant { .. } => None,
    })
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
    /// Of a lock.
    pub holder: Option<Holder>,
    /// Of a semaphore or a read-write lock.
    pub shared: Shared,
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
    pub share: Share,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub owner: String,
    pub seq: u64,
    pub share: Share,
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
        let holders: Vec<_> = self.holders().map(|it| (&it.owner, it.holds, it.token, it.share)).collect();
        let queue: Vec<_> = self.queue.iter().map(|place| (&place.owner, place.share)).collect();
        (holders, queue, self.last_token, self.shared.limit).hash(state);
    }
}

impl Name {
    /// Of a shared name also ones whose lease is over, see [`Shared`].
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holder.iter().chain(self.shared.holders.values())
    }

    /// The instants at which something of it ends, in µs, and the seqs in it, for the canonical form of a search.
    pub fn times(&self) -> Vec<u64> {
        let holders = self.holders().map(|holder| holder.until_us);
        let shared = self.shared.soon_us.into_iter().flat_map(|soon_us| [soon_us, self.shared.until_us]);
        let clients = self.deadlines.values().copied();
        let tombstones = self.tombstones.values().map(|tombstone| tombstone.until_us);
        holders.chain(shared).chain(clients).chain(tombstones).collect()
    }

    pub fn seqs(&self) -> Vec<(&str, u64)> {
        let holders = self.holders().map(|holder| (&*holder.owner, holder.seq));
        let queue = self.queue.iter().map(|place| (&*place.owner, place.seq));
        let tombstones = self.tombstones.iter().map(|(owner, tombstone)| (&**owner, tombstone.seq));
        holders.chain(queue).chain(tombstones).collect()
    }

    /// Nothing is held or waited for, but by clients that have been given up.
    pub fn is_free(&self, now_us: u64) -> bool {
        let lives = |place: &Place| self.deadline_of(place).unwrap_or(0) > now_us;
        let is_held = self.holder.is_some() || self.shared.holders.values().any(|holder| holder.until_us > now_us);
        !is_held && !self.queue.iter().any(lives)
    }
}

impl Holder {
    fn renew(&mut self, until_us: u64, only: Only) {
        if only == Only::Attempt(self.seq) || self.until_us < until_us {
            self.until_us = until_us;
        }
        if let Only::Extend(seq) = only {
            self.seq = self.seq.max(seq);
        }
    }
}

pub fn client_of(owner: &str) -> &str {
    owner.split(':').next().unwrap_or_default()
}

impl Server {
    pub fn new(token_clock: TokenClock) -> Self {
        let (names, reachable) = (BTreeMap::new(), BTreeSet::new());
        Self { names, reachable, frozen_until_us: 0, token_clock }
    }

    /// Runs a request at this time of the server's clock. Messages are appended.
    pub fn run(&mut self, request: &Request, client: &Client, now_us: u64, messages: &mut Vec<Message>) -> Reply {
        let (keys, is_shared) = (request.keys(), request.keys().kind.is_shared());
        let lock = keys.lock.to_string();
        let name = self.names.entry(lock.clone()).or_default();
        name.expire(now_us);
        let (reachable, frozen_us) = (&self.reachable, self.frozen_until_us.saturating_sub(now_us));
        let caller = match request {
            Request::Release(Release { owner, .. }) => client_of(owner),
            _ => &client.id,
        };
        let token_clock = self.token_clock;
        let mut run = Run { name, lock, client, caller, now_us, reachable, frozen_us, token_clock, messages };
        let tells_time = !matches!(request, Request::Release(release) if run.is_quick(release));
        let answer = match request {
            Request::Acquire(it) if is_shared => Answer::Acquired(run.acquire_share(it)),
            Request::Acquire(it) => Answer::Acquired(run.acquire(it)),
            Request::Release(it) if is_shared => Answer::Released(run.release_share(it)),
            Request::Release(it) => Answer::Released(run.release(it)),
            Request::Renew(it) if is_shared => Answer::Renewed(run.renew_share(it)),
            Request::Renew(it) => Answer::Renewed(run.renew(it)),
            Request::Poll(it) if is_shared => Answer::Polled(Box::new(run.poll_shares(it))),
            Request::Poll(it) => Answer::Polled(Box::new(run.poll(it))),
            Request::Leave(it) if is_shared => Answer::Left(run.leave_share(it)),
            Request::Leave(it) => Answer::Left(run.leave(it)),
            Request::Give(it) if is_shared => Answer::Gave(run.give_share(it)),
            Request::Give(it) => Answer::Gave(run.give(it)),
            Request::ForceUnlock(it) if is_shared => Answer::Forced(run.force_share(it)),
            Request::ForceUnlock(it) => Answer::Forced(run.force_unlock(it)),
            Request::SetLimit(it) => Answer::LimitSet(run.set_limit(it)),
            Request::Inspect(it) => Answer::Inspected(Box::new(run.inspect(it))),
        };
        Reply { server_micros: tells_time.then_some(now_us.cast_signed()), answer }
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
        self.shared.expire(now_us);
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

    fn holder_of(&self, owner: &str) -> Option<&Holder> {
        self.holders().find(|holder| holder.owner == owner)
    }

    /// The same at another server, whose clock differs: keys keep what they have left to live, and values stay as they are.
    pub fn moved(mut self, from_us: u64, to_us: u64) -> Self {
        self.expire(from_us);
        let shift = |us: u64| (us + whole(to_us)).saturating_sub(whole(from_us));
        self.holder.iter_mut().for_each(|holder| holder.until_us = shift(holder.until_us));
        self.shared.until_us = shift(self.shared.until_us);
        self.tombstones.values_mut().for_each(|tombstone| tombstone.until_us = shift(tombstone.until_us));
        self.queue_until_us = shift(self.queue_until_us);
        self
    }
}
