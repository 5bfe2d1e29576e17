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

pub struct Inspect<'a> {
    pub keys: &'a Keys,
    /// How many waiters to name, and of a shared name how many holders.
    pub most: u32,
}

pub struct Inspected {
    /// The holder of a lock, or the holders of a shared name that were granted first, in this order.
    pub holders: Vec<HolderEntry>,
    /// Their number, with the ones that are not listed.
    pub holding: u64,
    /// The weights of all holders together.
    pub used: u64,
    /// The limit that is set for all clients. `None` for a lock.
    pub set_limit: Option<u32>,
    /// Living waiters.
    pub waiters: u64,
    /// How much longer no lock is granted (`strict_restart`).
    pub frozen_for: Option<Duration>,
    pub queue: Vec<QueueEntry>,
}

pub struct HolderEntry {
    pub owner: String,
    pub holds: u32,
    pub token: u64,
    /// When it was granted, in server time since 1970. Of a shared name its token says that.
    pub since: Duration,
    pub lease_left: Duration,
    pub share: Share,
    pub label: String,
}

/// One living ticket of the queue.
pub struct QueueEntry {
    pub ticket: String,
    pub deadline_in: Duration,
    pub label: String,
    /// What it waits for.
    pub share: Share,
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
        let args = [arg("most", self.most)];
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
        let holder = HolderEntry {
            owner: fields.text()?.to_owned(),
            holds: fields.small()?,
            token: fields.token()?,
            since: Duration::from_secs(fields.natural()?) + Duration::from_micros(fields.natural()?),
            label: fields.text()?.to_owned(),
            lease_left: fields.millis_if_any()?.unwrap_or_default(),
            share: Share::LOCK,
        };
        // Without an owner it is free.
        let holders: Vec<_> = Some(holder).filter(|holder| !holder.owner.is_empty()).into_iter().collect();
        let (waiters, frozen_for) = (fields.natural()?, fields.millis_if_any()?);
        let mut queue = Vec::new();
        // The queue is the rest of the reply. An entry that is cut short is refused as malformed, not dropped.
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
