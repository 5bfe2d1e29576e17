//! inspect.lua: the holder and the queue. It changes nothing.

use std::time::Duration;

use crate::store::Priority;
use crate::store::call::{Call, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("inspect", include_str!("../../../lua/inspect.lua"));

#[derive(Debug, Clone, Copy)]
pub struct Inspect<'a> {
    pub keys: &'a Keys,
    /// How many waiters to name.
    pub most: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Empty when the lock is free.
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
}

/// One living ticket of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    pub ticket: String,
    pub deadline_in: Duration,
    pub label: String,
}

impl Inspect<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Inspected>, RequestError> {
        let Keys { lock, queue, deadlines, .. } = self.keys;
        let admitted = runner.admit(lock, Priority::Question, Some(runner.limit())).await?;
        let keys = [key("lock", lock), key("queue", queue), key("deadlines", deadlines), key("boot", &runner.boot_key)];
        // With a bound: Redis serves no one else while it runs a script.
        let args = [arg("most", self.most)];
        runner.run(admitted, Call::new(&SCRIPT, runner.keys(&keys), &args)).await
    }
}

impl Decode for Inspected {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        if status != "inspected" {
            return unknown_status(status);
        }
        let mut inspected = Self {
            owner: fields.text()?.to_owned(),
            holds: fields.holds()?,
            token: fields.token()?,
            since: Duration::from_secs(fields.natural()?) + Duration::from_micros(fields.natural()?),
            label: fields.text()?.to_owned(),
            lease_left: fields.millis_if_any()?,
            waiters: fields.natural()?,
            frozen_for: fields.millis_if_any()?,
            queue: Vec::new(),
        };
        // The queue is the rest of the reply. An entry that is cut short is refused as malformed, not dropped.
        while !fields.is_empty() {
            inspected.queue.push(QueueEntry {
                ticket: fields.text()?.to_owned(),
                deadline_in: fields.millis()?,
                label: fields.text()?.to_owned(),
            });
        }
        Ok(inspected)
    }
}
