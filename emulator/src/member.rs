//! A server as a node of a cluster: the slots that it serves, and how a slot moves.
//!
//! Follows `getNodeByQuery` of Redis 7.0; fairlock's `tests/it/slots.rs` runs every script against the real one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::keyspace::{Keyspace, Moves};
use crate::request::Request;
use crate::sync::lock;

/// Where a slot is, as one node knows it. Addresses identify the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    /// The node that serves the slot.
    pub owner: String,
    /// The node to which the slot moves. Only its owner knows it.
    pub migrating: Option<String>,
    /// The node from which the slot comes. Only the node that will get the slot knows it.
    pub importing: Option<String>,
}

/// A node's view of its cluster.
pub struct Member {
    pub address: String,
    slots: Mutex<BTreeMap<u16, Slot>>,
}

impl Member {
    pub fn new(address: String) -> Self {
        Self { address, slots: Mutex::default() }
    }

    pub fn set(&self, slot: u16, knows: Slot) {
        lock(&self.slots).insert(slot, knows);
    }

    /// The numbers of the slots, with the addresses of the nodes that serve them.
    pub fn slots(&self) -> Vec<(u16, String)> {
        lock(&self.slots).iter().map(|(number, slot)| (*number, slot.owner.clone())).collect()
    }

    /// Whether a script may run here. Otherwise returns the error that redirects it.
    pub fn route(&self, request: &Request, keyspace: &Keyspace) -> Result<Moves, String> {
        let number = request.slot;
        let Some(slot) = lock(&self.slots).get(&number).cloned() else {
            return Err("CLUSTERDOWN Hash slot not served".into());
        };
        let is_ours = slot.owner == self.address;
        let missing = request.keys.iter().filter(|key| !keyspace.has(key.as_bytes())).count();
        let try_again = || Err("TRYAGAIN Multiple keys request during rehashing of slot".into());
        match slot {
            Slot { migrating: Some(_), .. } if is_ours && missing > 0 && missing < request.keys.len() => try_again(),
            Slot { migrating: Some(target), .. } if is_ours && missing > 0 => Err(format!("ASK {number} {target}")),
            Slot { importing: Some(_), .. }
                if request.asking && Moves::Comes.is_elsewhere(request.keys.len(), missing) =>
            {
                try_again()
            }
            Slot { importing: Some(_), .. } if request.asking => Ok(Moves::Comes),
            Slot { owner, .. } if !is_ours => Err(format!("MOVED {number} {owner}")),
            Slot { migrating, .. } => Ok(if migrating.is_some() { Moves::Leaves } else { Moves::Rests }),
        }
    }
}
