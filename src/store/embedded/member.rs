//! A server as a node of a cluster, for simulators: which slots it serves, and how one moves.
//!
//! As in `getNodeByQuery` of Redis 7.0; `tests/it/slots.rs` runs every script against the real one.

use std::collections::BTreeMap;

use fairlock_emulator::{Keyspace, Moves};

use super::request::Request;
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::table::SlotRange;
use crate::store::connect_options::Address;
use crate::sync::Mutex;

/// Where a slot is, as one node knows it. Nodes are named by their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    /// The node that serves it.
    pub owner: String,
    /// The node that it is on its way to. Only its owner knows that.
    pub migrating: Option<String>,
    /// The node that it comes from. Only the node that is to get it knows that.
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

    /// The part of the names of the channels that belong to this node.
    pub fn tag(&self) -> String {
        self.address.replace(':', "/") + ":"
    }

    pub fn set(&self, slot: u16, knows: Slot) {
        self.slots.lock().insert(slot, knows);
    }

    /// As in CLUSTER SLOTS.
    pub fn ranges(&self) -> Vec<SlotRange> {
        let master = |slot: &Slot| address(&slot.owner);
        let range =
            |(number, slot): (&u16, &Slot)| Some(SlotRange { first: *number, last: *number, master: master(slot)? });
        self.slots.lock().iter().filter_map(range).collect()
    }

    /// Whether a script may run here; otherwise the error that redirects it.
    pub fn route(&self, request: &Request, keyspace: &Keyspace) -> Result<Moves, String> {
        let number = slot_of(request.keys.first().map_or("", String::as_str));
        let Some(slot) = self.slots.lock().get(&number).cloned() else {
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

/// Reads `host:port`.
pub fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some(Address::Tcp { host: host.to_owned(), port: port.parse().ok()? })
}
