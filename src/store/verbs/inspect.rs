//! inspect.lua: the holders of the name, and the queue. It changes nothing.

use std::time::Duration;

use crate::store::Priority;
use crate::store::call::{Call, SentKeys, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::{Keys, Share};
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("inspect", include_str!("../../../lua/inspect.lua"));
pub static SHARED: Script = Script::shared("shared/inspect", include_str!("../../../lua/shared/inspect.lua"));

#[derive(Debug, Clone, Copy)]
pub struct Inspect<'a> {
    pub keys: &'a Keys,
    /// How many waiters to name, and of a shared name how many holders.
    pub most: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// The holder of a lock, with what follows. Empty when it is free, and for a shared name.
    pub owner: String,
    pub holds: u32,
    pub token: u64,
    /// When the lock went from free to held, in server time since 1970.
    pub since: Duration,
    pub label: String,
    pub lease_left: Option<Duration>,
    /// Living waiters.
    pub waiters: u64,
    /// How much longer no lock is granted (`strict_restart`).
    pub frozen_for: Option<Duration>,
    pub queue: Vec<QueueEntry>,
    /// `None` for a lock.
    pub shared: Option<Shared>,
}

/// A shared name and its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shared {
    /// The weights of all holders together.
    pub used: u64,
    /// The limit that is set for all clients.
    pub set_limit: Option<u32>,
    /// The number of holders, with the ones that are not listed.
    pub holders: u64,
    /// The first of them to be granted, in this order.
    pub named: Vec<HolderEntry>,
}

/// One holder of a shared name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderEntry {
    pub owner: String,
    pub holds: u32,
    pub token: u64,
    /// When it was granted, in server time since 1970, as its token says.
    pub since: Duration,
    pub lease_left: Duration,
    pub share: Share,
    pub label: String,
}

/// One living ticket of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    pub ticket: String,
    pub deadline_in: Duration,
    pub label: String,
    /// The weight that it waits for. Only for shared names.
    pub share: Option<Share>,
}

impl Inspect<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Inspected>, RequestError> {
        let Keys { kind, lock, queue, deadlines, limit, .. } = self.keys;
        let admitted = runner.admit(lock, Priority::Question, Some(runner.limit())).await?;
        let keys = SentKeys::of([
            Some(key("lock", lock)),
            Some(key("queue", queue)),
            Some(key("deadlines", deadlines)),
            kind.is_shared().then_some(key("limit", limit)),
            runner.is_strict().then_some(key("boot", &runner.boot_key)),
        ]);
        // With a bound: Redis serves no one else while it runs a script.
        let args = [arg("kind", kind.format()), arg("most", self.most)];
        runner.run(admitted, Call::of(*kind, [&SCRIPT, &SHARED], &keys, &args)).await
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
        let mut inspected = Self {
            owner: fields.text()?.to_owned(),
            holds: fields.small()?,
            token: fields.token()?,
            since: Duration::from_secs(fields.natural()?) + Duration::from_micros(fields.natural()?),
            label: fields.text()?.to_owned(),
            lease_left: fields.millis_if_any()?,
            waiters: fields.natural()?,
            frozen_for: fields.millis_if_any()?,
            queue: Vec::new(),
            shared: None,
        };
        // The queue is the rest of the reply. An entry that is cut short is refused as malformed, not dropped.
        while !fields.is_empty() {
            inspected.queue.push(QueueEntry {
                ticket: fields.text()?.to_owned(),
                deadline_in: fields.millis()?,
                label: fields.text()?.to_owned(),
                share: None,
            });
        }
        Ok(inspected)
    }

    fn of_shared(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (used, set_limit, holders) = (fields.natural()?, fields.int()?, fields.natural()?);
        let set_limit = u32::try_from(set_limit).ok();
        let (waiters, frozen_for) = (fields.natural()?, fields.millis_if_any()?);
        let mut named = Vec::new();
        for _ in 0..fields.natural()? {
            let (owner, holds, token) = (fields.text()?.to_owned(), fields.small()?, fields.token()?);
            named.push(HolderEntry {
                owner,
                holds,
                token,
                since: Duration::from_micros(token),
                lease_left: fields.millis()?,
                share: Share { weight: fields.small()?, limit: fields.small()? },
                label: fields.text()?.to_owned(),
            });
        }
        let mut queue = Vec::new();
        while !fields.is_empty() {
            let (ticket, deadline_in) = (fields.text()?.to_owned(), fields.millis()?);
            let share = Share { weight: fields.small()?, limit: fields.small()? };
            queue.push(QueueEntry { ticket, deadline_in, label: fields.text()?.to_owned(), share: Some(share) });
        }
        let shared = Some(Shared { used, set_limit, holders, named });
        let (owner, label, since) = (String::new(), String::new(), Duration::ZERO);
        Ok(Self { owner, holds: 0, token: 0, since, label, lease_left: None, waiters, frozen_for, queue, shared })
    }
}
