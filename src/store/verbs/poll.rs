//! poll.lua: a waiting client is heard, a free lock is passed on, and the answer has the holder of the lock and the
//! tickets that have no place (R8).

use std::time::Duration;

use crate::store::Priority;
use crate::store::call::{Arg, Call, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("poll", include_str!("../../../lua/poll.lua"));

#[derive(Debug, Clone, Copy)]
pub struct Poll<'a> {
    pub keys: &'a Keys,
    /// This client waits for the lock, and is heard. Without that the poll only passes a free lock on.
    pub waits: bool,
    /// To be looked for in the queue.
    pub tickets: &'a [String],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Polled {
    /// The lock is free, and a live ticket may wait behind the places that one call reads.
    pub more: bool,
    /// The server had not given this client up as dead.
    pub known: bool,
    /// How many wait, over all clients.
    pub places: u64,
    /// This client is first in line.
    pub first: bool,
    pub holder: Option<PolledHolder>,
    /// The lock is free, and the server grants nothing for this long (`strict_restart`).
    pub frozen_for: Option<Duration>,
    /// No grant that is made later has a token up to this one (R7).
    pub floor: u64,
    /// The indices of tickets that have no place.
    pub missing: Vec<usize>,
}

/// The holder, by the server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolledHolder {
    pub owner: String,
    /// The last request of this owner that was served.
    pub attempt: u64,
    pub token: u64,
    pub lease_left: Option<Duration>,
}

impl Poll<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Polled>, RequestError> {
        let Keys { lock, queue, deadlines, tokens, .. } = self.keys;
        // Urgent: a poll that waits behind new acquires could cost live waiters their place.
        let admitted = runner.admit(lock, Priority::Urgent, None).await?;
        let keys = [
            key("lock", lock),
            key("queue", queue),
            key("deadlines", deadlines),
            key("tokens", tokens),
            key("boot", &runner.boot_key),
        ];
        let mut args = Vec::with_capacity(3 + self.tickets.len());
        args.extend([
            // This client may be first in line. It reads the reply, so it counts as reachable even
            // while its subscription is down (decision 5).
            arg("caller", &runner.client),
            arg("waits", u64::from(self.waits)),
            arg("settings", Arg::Channel(&runner.settings)),
        ]);
        for ticket in self.tickets {
            args.push(arg("tickets", ticket));
        }
        let answer: Answer<Polled> = runner.run(admitted, Call::new(&SCRIPT, runner.keys(&keys), &args)).await?;
        // Indices stand for tickets. An index that was not sent shows that this is not the reply to this request.
        if answer.body.missing.iter().all(|index| *index < self.tickets.len()) {
            return Ok(answer);
        }
        Err(runner.distrust(lock, Malformed("a poll answers for tickets that it was not asked about".into())))
    }
}

impl Decode for Polled {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        if status != "polled" {
            return unknown_status(status);
        }
        let (more, known, places, first) = (fields.flag()?, fields.flag()?, fields.natural()?, fields.flag()?);
        let (owner, attempt, token) = (fields.text()?, fields.natural()?, fields.token()?);
        let (floor, lease_left) = (fields.token()?, fields.millis_if_any()?);
        // Without a holder the script answers the rest of the freeze in its place.
        let frozen_for = lease_left.filter(|_| token == 0);
        let holder = (token > 0).then(|| PolledHolder { owner: owner.to_owned(), attempt, token, lease_left });
        let mut missing = Vec::new();
        while !fields.is_empty() {
            // Lua counts from 1.
            let index = usize::try_from(fields.natural()?).ok().and_then(|number| number.checked_sub(1));
            missing.push(index.ok_or_else(|| Malformed("a ticket with the number 0".into()))?);
        }
        Ok(Self { more, known, places, first, holder, frozen_for, floor, missing })
    }
}
