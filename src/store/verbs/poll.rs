//! poll.lua: keeps the tickets of one client alive, passes a free lock on, and tells where each
//! ticket stands (R8). Without tickets it only passes the lock on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::Priority;
use crate::store::call::{Call, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::{Script, assemble};

pub static SCRIPT: Script = Script::new("poll", || assemble(include_str!("../../../lua/poll.lua")));

#[derive(Debug, Clone, Copy)]
pub struct Poll<'a> {
    pub keys: &'a Keys,
    /// Each with the lease that it wants.
    pub tickets: &'a [(String, Duration)],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Polled {
    pub more: bool,
    /// No grant that is made later has a token up to this one (R7).
    pub floor: u64,
    /// What is left of the holder's lease.
    pub lease_left: Option<Duration>,
    /// The first ticket of the queue, or nothing.
    pub first: String,
    /// By index: those of the tickets that are not just queued.
    pub statuses: BTreeMap<usize, TicketStatus>,
}

/// Where a ticket stands that is not just queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketStatus {
    Granted { token: u64, lease_left: Duration },
    Unknown,
}

impl Poll<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Polled>, RequestError> {
        let Keys { lock, queue, deadlines, tokens, .. } = self.keys;
        // Urgent: a poll that waits behind new acquires could cost live waiters their place.
        let admitted = runner.admit(lock, Priority::Urgent).await?;
        let options = &*runner.options;
        let keys = [key("lock", lock), key("queue", queue), key("deadlines", deadlines), key("tokens", tokens)];
        let mut args = Vec::with_capacity(5 + 2 * self.tickets.len());
        args.extend([
            arg("waiter_ttl", options.waiter_ttl),
            arg("grant_ttl", options.grant_ttl),
            arg("token_ttl", options.token_ttl),
            arg("channel", &runner.channel),
            // This client may be first in line. It reads the reply, so it counts as reachable even
            // while its subscription is down (decision 5).
            arg("caller", &runner.client),
        ]);
        for (ticket, lease) in self.tickets {
            args.extend([arg("tickets", ticket), arg("tickets", *lease)]);
        }
        let answer: Answer<Polled> = runner.run(admitted, Call::new(&SCRIPT, &keys, &args)).await?;
        // Indices stand for tickets. One that was not sent shows that this is not the reply to this
        // request: what it grants is not ours to take (P1).
        if answer.body.statuses.keys().all(|index| *index < self.tickets.len()) {
            return Ok(answer);
        }
        Err(runner.distrust(lock, Malformed("a poll answers for tickets that it was not asked about".into())))
    }
}

impl Decode for Polled {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        if status != "polled" {
            return unknown_status(status);
        }
        let mut polled = Self {
            more: fields.flag()?,
            floor: fields.token()?,
            lease_left: fields.millis_if_any()?,
            first: fields.text()?,
            statuses: BTreeMap::new(),
        };
        while !fields.is_empty() {
            let (index, status) = ticket_status(fields)?;
            polled.statuses.insert(index, status);
        }
        Ok(polled)
    }
}

fn ticket_status(fields: &mut Fields) -> Result<(usize, TicketStatus), Malformed> {
    // Lua counts from 1.
    let number = fields.natural()?;
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let index = index.ok_or_else(|| Malformed(format!("the ticket number {number}")))?;
    let status = fields.text()?;
    let (token, lease_left) = (fields.token()?, fields.millis()?);
    match status.as_str() {
        "granted" => Ok((index, TicketStatus::Granted { token, lease_left })),
        "unknown" => Ok((index, TicketStatus::Unknown)),
        _ => unknown_status(&status),
    }
}
