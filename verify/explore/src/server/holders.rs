//! The holders of a name, and its waiters.

use std::collections::BTreeMap;

use fairlock_proto::keys::Share;
use fairlock_proto::requests::renew::Only;

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

impl Holder {
    pub(super) fn renew(&mut self, until_us: u64, only: Only) {
        if only == Only::Attempt(self.seq) || self.until_us < until_us {
            self.until_us = until_us;
        }
        if let Only::Extend(seq) = only {
            self.seq = self.seq.max(seq);
        }
    }
}

/// The holders of a shared name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shared {
    /// Keyed by owner. An expired holder counts until a waiter needs its room.
    pub holders: BTreeMap<String, Holder>,
    /// No lease ends before this. `None`: there are no holders.
    pub soon_us: Option<u64>,
    /// When all holders end with their key.
    pub until_us: u64,
    /// The limit for all clients, if there is one.
    pub limit: Option<u32>,
}

impl Shared {
    pub(super) fn expire(&mut self, now_us: u64) {
        if self.until_us <= now_us {
            self.holders.clear();
        }
        self.end_if_free();
    }

    pub(super) fn end_if_free(&mut self) {
        if self.holders.is_empty() {
            (self.soon_us, self.until_us) = (None, 0);
        }
    }

    pub(super) fn used(&self) -> u32 {
        self.holders.values().map(|holder| holder.share.weight).sum()
    }

    /// Expired holders count until there is no room.
    pub(super) fn has_room(&mut self, share: Share, now_us: u64) -> bool {
        let has_room = |shared: &Self| shared.used() + share.weight <= shared.limit.unwrap_or(share.limit);
        if !has_room(self) && self.soon_us.is_some_and(|soon_us| soon_us <= now_us) {
            self.take_out_ended(now_us);
        }
        has_room(self)
    }

    pub(super) fn take_out_ended(&mut self, now_us: u64) {
        self.holders.retain(|_, holder| holder.until_us > now_us);
        self.soon_us = self.holders.values().map(|holder| holder.until_us).min();
    }

    /// Replaces an earlier hold of the owner.
    pub(super) fn let_in(&mut self, holder: Holder) {
        self.ends_at(holder.until_us);
        self.holders.insert(holder.owner.clone(), holder);
    }

    /// Records that a lease ends then.
    pub(super) fn ends_at(&mut self, until_us: u64) {
        self.soon_us = Some(self.soon_us.map_or(until_us, |soon_us| soon_us.min(until_us)));
    }

    /// A holder has a new end. The key of a single holder ends with it.
    pub(super) fn renewed(&mut self, until_us: u64) {
        self.ends_at(until_us);
        self.until_us = if self.holders.len() == 1 { until_us } else { self.until_us.max(until_us) };
    }

    /// Whether the owner has a hold from this attempt or a later one: a copy of its acquire has queued after it.
    pub(super) fn is_over(&self, Place { owner, seq, .. }: &Place, now_us: u64) -> bool {
        self.holders.get(owner).is_some_and(|holder| holder.seq >= *seq && holder.until_us > now_us)
    }
}
