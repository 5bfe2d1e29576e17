//! The data of one name on a server, and the messages to its clients.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use super::holders::{Holder, Place, Shared};

/// A client's part of each request.
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

/// The source of tokens that are not one more than the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenClock {
    /// The server's clock, as in the scripts.
    Time,
    /// The number of data losses. With the clock, a search would never meet a state twice.
    Losses(u64),
}

/// Keeps times in whole milliseconds, as the server does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    /// `None` for a shared name.
    pub holder: Option<Holder>,
    /// Empty for a lock.
    pub shared: Shared,
    /// Oldest first.
    pub queue: Vec<Place>,
    /// Until when each client is alive. They end with the queue.
    pub deadlines: BTreeMap<String, u64>,
    pub queue_until_us: u64,
    /// Until then no client counts as dead,
    pub forgiven_us: u64,
    /// except a client with an earlier deadline than this.
    pub spent_us: u64,
    pub tombstones: BTreeMap<String, Tombstone>,
    pub last_token: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    pub seq: u64,
    pub until_us: u64,
}

impl Hash for Name {
    /// Without times and seqs, which a search adds in their canonical form.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let holders: Vec<_> = self.holders().map(|it| (&it.owner, it.holds, it.token, it.share)).collect();
        let queue: Vec<_> = self.queue.iter().map(|place| (&place.owner, place.share)).collect();
        (holders, queue, self.last_token, self.shared.limit).hash(state);
    }
}

impl Name {
    /// For a shared name, expired holders too: see [`Shared::holders`].
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holder.iter().chain(self.shared.holders.values())
    }

    /// The instants at which something of it ends, in µs. Searches need these and `seqs` for their canonical form.
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

    /// Whether it is free: no client holds it, and only dead clients wait for it.
    pub fn is_free(&self, now_us: u64) -> bool {
        let lives = |place: &Place| self.deadline_of(place).unwrap_or(0) > now_us;
        let is_held = self.holder.is_some() || self.shared.holders.values().any(|holder| holder.until_us > now_us);
        !is_held && !self.queue.iter().any(lives)
    }
}

pub fn client_of(owner: &str) -> &str {
    owner.split(':').next().unwrap_or_default()
}

impl Name {
    pub(super) fn expire(&mut self, now_us: u64) {
        self.holder.take_if(|holder| holder.until_us <= now_us);
        self.shared.expire(now_us);
        self.tombstones.retain(|_, tombstone| tombstone.until_us > now_us);
        if self.queue_until_us <= now_us {
            self.end_queue();
        }
    }

    pub(super) fn end_queue(&mut self) {
        self.queue.clear();
        self.deadlines.clear();
        (self.queue_until_us, self.forgiven_us, self.spent_us) = (0, 0, 0);
    }

    pub(super) fn deadline_of(&self, place: &Place) -> Option<u64> {
        self.deadlines.get(client_of(&place.owner)).copied()
    }

    pub(super) fn has_place(&self, owner: &str, seq: u64) -> bool {
        self.queue.iter().any(|place| place.owner == owner && place.seq == seq)
    }

    pub(super) fn remove_place(&mut self, owner: &str, seq: u64) {
        self.queue.retain(|place| place.owner != owner || place.seq != seq);
        if self.queue.is_empty() {
            self.end_queue();
        }
    }

    pub(super) fn holder_of(&self, owner: &str) -> Option<&Holder> {
        self.holders().find(|holder| holder.owner == owner)
    }

    /// The name after its move to another server, whose clock differs: keys keep their time to live, and values do not
    /// change.
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

/// Rounds down to whole milliseconds.
pub(super) fn whole(micros: u64) -> u64 {
    micros / 1000 * 1000
}
