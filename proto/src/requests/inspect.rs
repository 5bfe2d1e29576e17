//! inspect.lua: the holders of the name, and the queue. It changes nothing.

use std::sync::Arc;
use std::time::Duration;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Command, ScriptName, arg, key};
use crate::keys::{Keys, Share};
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Inspect {
    pub keys: Arc<Keys>,
    /// How many waiters to list, and for a shared name how many holders.
    pub most: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Inspected {
    /// The holder of a lock, or the first holders of a shared name, in the order of their grants.
    pub holders: Vec<HolderEntry>,
    /// The number of holders, with the ones that are not listed.
    pub holding: u64,
    /// The weights of all holders together.
    pub used: u64,
    /// The limit for all clients, if there is one. `None` for a lock.
    pub set_limit: Option<u32>,
    /// Live waiters.
    pub waiters: u64,
    /// How much longer the server grants no lock (`strict_restart`).
    pub frozen_for: Option<Duration>,
    pub queue: Vec<QueueEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderEntry {
    pub owner: String,
    pub holds: u32,
    pub token: u64,
    /// When the server granted it, in server time since 1970. For a shared name, taken from the token.
    pub since: Duration,
    pub lease_left: Duration,
    pub share: Share,
    pub label: String,
}

/// One live ticket of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueEntry {
    pub ticket: String,
    pub deadline_in: Duration,
    pub label: String,
    /// The share that it waits for.
    pub share: Share,
}

impl ScriptRequest for Inspect {
    type Reply = Inspected;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let Keys { kind, lock, queue, deadlines, limit, .. } = &*self.keys;
        let keys = [
            key("lock", &**lock),
            key("queue", queue),
            key("deadlines", deadlines),
            key("limit", limit).filter(|_| kind.is_shared()),
            client.boot_key.as_ref().and_then(|boot| key("boot", boot)),
        ];
        // Bounded, because Redis serves no one else while it runs a script.
        let args = [arg("most", self.most)];
        Command::of(*kind, [ScriptName::Inspect, ScriptName::SharedInspect], keys, args)
    }
}

impl Decode for Inspected {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "inspected" => Self::of_lock(fields),
            "shared" => Self::of_shared(fields),
            _ => unknown_status(status),
        }
    }
}

impl Inspected {
    fn of_lock(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let holder = HolderEntry {
            owner: fields.text()?.to_owned(),
            holds: fields.small()?,
            token: fields.token()?,
            since: Duration::from_secs(fields.natural()?) + Duration::from_micros(fields.natural()?),
            label: fields.text()?.to_owned(),
            lease_left: fields.millis_if_any()?.unwrap_or_default(),
            share: Share::LOCK,
        };
        // Without an owner the lock is free.
        let holders: Vec<_> = Some(holder).filter(|holder| !holder.owner.is_empty()).into_iter().collect();
        let (waiters, frozen_for) = (fields.natural()?, fields.millis_if_any()?);
        let mut queue = Vec::new();
        // The queue is everything that is left. An incomplete entry is an error, not the end of it.
        while !fields.is_empty() {
            let (ticket, deadline_in) = (fields.text()?.to_owned(), fields.millis()?);
            queue.push(QueueEntry { ticket, deadline_in, label: fields.text()?.to_owned(), share: Share::LOCK });
        }
        let holding = holders.len() as u64;
        Ok(Self { holders, holding, used: holding, set_limit: None, waiters, frozen_for, queue })
    }

    fn of_shared(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (used, set_limit, holding) = (fields.natural()?, fields.int()?, fields.natural()?);
        let set_limit = u32::try_from(set_limit).ok();
        let (waiters, frozen_for) = (fields.natural()?, fields.millis_if_any()?);
        let (mut holders, mut queue) = (Vec::new(), Vec::new());
        for _ in 0..fields.natural()? {
            let (owner, holds, token) = (fields.text()?.to_owned(), fields.small()?, fields.token()?);
            holders.push(HolderEntry {
                owner,
                holds,
                token,
                since: Duration::from_micros(token),
                lease_left: fields.millis()?,
                share: Share { weight: fields.small()?, limit: fields.small()? },
                label: fields.text()?.to_owned(),
            });
        }
        while !fields.is_empty() {
            let (ticket, deadline_in) = (fields.text()?.to_owned(), fields.millis()?);
            let share = Share { weight: fields.small()?, limit: fields.small()? };
            queue.push(QueueEntry { ticket, deadline_in, label: fields.text()?.to_owned(), share });
        }
        Ok(Self { holders, holding, used, set_limit, waiters, frozen_for, queue })
    }
}
