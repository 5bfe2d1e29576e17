//! poll.lua: keeps a waiting client alive, passes a free lock on, and returns the holder of the lock and the tickets
//! without a place (R8). For a shared name it returns which of the tickets hold it.

use std::sync::Arc;
use std::time::Duration;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::held_by::HeldBy;
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Poll {
    pub keys: Arc<Keys>,
    /// This client waits for the lock, and the poll keeps it alive. Otherwise the poll only passes a free lock on.
    pub waits: bool,
    /// Only for shared names: the answer names everything that this client holds there (R15), which costs a look at
    /// each of the holders. Not with `waits`.
    pub names_ours: bool,
    /// The tickets to look for in the queue.
    pub tickets: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Polled {
    /// The lock is free, and a live ticket may come after the places that one call reads.
    pub more: bool,
    /// The server had not given this client up as dead.
    pub known: bool,
    /// The number of waiters, over all clients.
    pub places: u64,
    /// This client is first in line.
    pub first: bool,
    /// The holder of a lock.
    pub holder: Option<PolledHolder>,
    /// The same for people to read, unless the holder got the lock by this poll.
    pub held_by: Option<Box<HeldBy>>,
    /// For a shared name, those of the requested tickets that hold it, in their order, and with `names_ours`
    /// everything that this client holds.
    pub granted: Vec<PolledHolder>,
    /// For a shared name, the time until the first of the leases may end and make room for a waiter.
    pub room_in: Option<Duration>,
    /// The lock is free, but the server grants nothing for this long (`strict_restart`). A shared name need not be
    /// free.
    pub frozen_for: Option<Duration>,
    /// Every later grant has a greater token (R7).
    pub floor: u64,
    /// The indices of tickets without a place. For a shared name: without a place or a hold.
    pub missing: Vec<usize>,
}

/// The holder, according to the server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolledHolder {
    pub owner: String,
    /// The last request of this owner that the server served.
    pub attempt: u64,
    pub token: u64,
    pub lease_left: Option<Duration>,
}

impl ScriptRequest for Poll {
    type Reply = Polled;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let keys = client.queue_keys(&self.keys, None);
        let waits = if self.names_ours { 2 } else { u32::from(self.waits) };
        let args = [
            // This client may be first in line. It reads the reply, so it counts as reachable even
            // while its subscription is down (decision 5).
            arg("caller", &client.id),
            arg("waits", waits),
            arg("settings", Arg::Channel(&client.settings)),
            arg("tickets", &self.tickets),
        ];
        Command::of(self.keys.kind, [ScriptName::Poll, ScriptName::SharedPoll], keys, args)
    }
}

impl Poll {
    /// An index means a ticket. If the client did not send that one, this is not the reply to this request.
    pub fn check(&self, polled: &Polled) -> Result<(), Malformed> {
        if polled.missing.iter().all(|index| *index < self.tickets.len()) {
            return Ok(());
        }
        Err(Malformed("a poll answers for tickets that it was not asked about".into()))
    }
}

impl Decode for Polled {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "polled" => Self::of_lock(fields),
            "shared" => Self::of_shared(fields),
            _ => unknown_status(status),
        }
    }
}

impl Polled {
    fn of_lock(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (more, known, places, first) = (fields.flag()?, fields.flag()?, fields.natural()?, fields.flag()?);
        let (owner, attempt, token) = (fields.text()?, fields.natural()?, fields.token()?);
        let (floor, lease_left) = (fields.token()?, fields.millis_if_any()?);
        // Without a holder, the script puts the time left of the freeze in this field.
        let frozen_for = lease_left.filter(|_| token == 0);
        let holder = (token > 0).then(|| PolledHolder { owner: owner.to_owned(), attempt, token, lease_left });
        let missing = (0..fields.natural()?).map(|_| index(fields.natural()?)).collect::<Result<_, _>>()?;
        let held_by = HeldBy::decode(lease_left, fields);
        let (granted, room_in) = (Vec::new(), None);
        Ok(Self { more, known, places, first, holder, held_by, granted, room_in, frozen_for, floor, missing })
    }

    fn of_shared(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (more, known, places, first) = (fields.flag()?, fields.flag()?, fields.natural()?, fields.flag()?);
        let (floor, room_in, frozen_for) = (fields.token()?, fields.millis_if_any()?, fields.millis_if_any()?);
        let (mut missing, mut granted, mut index) = (Vec::new(), Vec::new(), 0);
        let (holder, held_by) = (None, None);
        while !fields.is_empty() {
            match fields.text()? {
                "+" => {}
                "-" => missing.push(index),
                owner => granted.push(PolledHolder {
                    owner: owner.to_owned(),
                    attempt: fields.natural()?,
                    token: fields.token()?,
                    lease_left: fields.millis_if_any()?,
                }),
            }
            index += 1;
        }
        Ok(Self { more, known, places, first, holder, held_by, granted, room_in, frozen_for, floor, missing })
    }
}

/// Lua counts from 1.
fn index(number: u64) -> Result<usize, Malformed> {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index.ok_or_else(|| Malformed("a ticket with the number 0".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::{Field, Head, ScriptReply};

    #[test]
    fn an_answer_about_tickets_that_were_not_sent_is_refused() {
        let keys = Keys::new("fairlock", "x").into();
        let poll = Poll { keys, waits: true, names_ours: false, tickets: vec!["a:1:2".into()] };
        let check = |missing: &str| {
            let reply = ScriptReply::List(
                ["polled", "7", "1", "2500", "0", "1", "1", "0", "", "0", "", "0", "-1", "1", missing]
                    .map(|field| Field::Text(field.into()))
                    .into(),
            );
            let mut fields = Fields::new(&reply);
            let head = Head::decode(&mut fields)?;
            assert_eq!((head.request, head.server_ms()), (7, 1002));
            poll.check(&Polled::decode(head.status, &mut fields)?)
        };
        assert_eq!(check("1"), Ok(()));
        assert!(check("2").is_err() && check("0").is_err());
    }
}
