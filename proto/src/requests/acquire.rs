//! acquire.lua: asks for the lock, or for one more hold on it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::held_by::HeldBy;
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acquire {
    pub keys: Arc<Keys>,
    pub owner: Arc<str>,
    pub seq: u64,
    pub mode: Mode,
    pub lease: Duration,
    /// See `keys::terms`, and for a shared name `keys::shared_terms`.
    pub terms: Arc<str>,
    /// Server time in ms: a copy that runs later does nothing (R2). Set when the client sends the request.
    pub not_after: i64,
}

/// How to handle a lock that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Do not wait.
    Try,
    /// Do not wait. Take a free lock under this token, if it is above the last one (Q3).
    Propose(u64),
    Queue,
    /// Re-enter the hold with this token and this count.
    Nest(u64, u32),
}

impl Mode {
    /// `None` if the client sends no mode.
    fn text(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Try => Some("0".into()),
            Self::Propose(token) => Some(format!("0:{token}").into()),
            Self::Queue => None,
            // R1: how many holds there are already, not `one more`. So a copy that the server serves twice counts
            // once.
            Self::Nest(token, holds) => Some(format!("{holds}:{token}").into()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    Held {
        token: u64,
        holds: u32,
        lease_left: Duration,
    },
    Queued {
        /// Every later grant has a greater token (R7).
        floor: u64,
        /// The time left of the holder's lease, or of the freeze (`strict_restart`). For a shared name: until the
        /// first of the leases may end.
        lease_left: Option<Duration>,
        more: bool,
        /// The server had not given this client up as dead.
        known: bool,
        /// Another owner that has the lock.
        holder: Option<Box<HeldBy>>,
    },
    /// The lock is not free, and the mode was not to queue.
    Busy {
        more: bool,
        /// Another owner that has the lock.
        holder: Option<Box<HeldBy>>,
    },
    /// As many as `max_waiters` wait.
    Full {
        waiters: u64,
        /// Another call may find room.
        more: bool,
    },
    /// The share weighs more than this limit, the client's own or the limit for all clients. Only an attempt without a
    /// place gets this: a limit below the weight of a waiter does not remove the waiter, and a limit of 0 refuses no
    /// call.
    TooHeavy {
        limit: u32,
    },
    /// The hold to re-enter is not there.
    Lost,
    /// `not_after` has passed (R2).
    Late,
    /// There is a tombstone or a later attempt: this attempt has ended on the server.
    Over,
}

impl ScriptRequest for Acquire {
    type Reply = Acquired;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        // Each acquire names it, unlike a release: this may be the late copy that has to find it (R3).
        let tombstone = self.keys.tombstone(&self.owner);
        let keys = client.queue_keys(&self.keys, Some(tombstone));
        let args = [
            // In microseconds, because a script has the time as a text with that many digits.
            arg("not_after", self.not_after.saturating_mul(1000)),
            arg("owner", &self.owner),
            arg("seq", self.seq),
            arg("lease", self.lease),
            arg("terms", &self.terms),
            arg("settings", Arg::Channel(&client.settings)),
            self.mode.text().and_then(|mode| arg("mode", mode)),
        ];
        Command::of(self.keys.kind, [ScriptName::Acquire, ScriptName::SharedAcquire], keys, args)
    }
}

impl Decode for Acquired {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match status {
            "held" => Self::Held { token: fields.token()?, holds: fields.small()?, lease_left: fields.millis()? },
            "queued" => {
                let (floor, lease_left) = (fields.token()?, fields.millis_if_any()?);
                let (more, known) = (fields.flag()?, fields.flag()?);
                Self::Queued { floor, lease_left, more, known, holder: HeldBy::decode(lease_left, fields) }
            }
            "busy" => {
                let more = fields.flag()?;
                let lease_left = if fields.is_empty() { None } else { fields.millis_if_any()? };
                Self::Busy { more, holder: HeldBy::decode(lease_left, fields) }
            }
            "full" => Self::Full { waiters: fields.natural()?, more: fields.flag()? },
            "heavy" => Self::TooHeavy { limit: fields.small()? },
            "lost" => Self::Lost,
            "late" => Self::Late,
            // Asking again with this seq would get the same answer each time (R1).
            "left" | "stale" => Self::Over,
            _ => return unknown_status(status),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ScriptReply;

    #[test]
    fn a_malformed_reply_is_an_error_and_never_an_outcome() {
        let decode = |status, fields: &str| {
            let reply = ScriptReply::Text(fields.into());
            Acquired::decode(status, &mut Fields::new(&reply))
        };
        assert!(decode("held", "5 1 30").is_ok());
        assert!(decode("acquired", "5 1 30").is_err(), "the status is unknown");
        assert!(decode("held", "5 1").is_err(), "a value is missing");
        assert!(decode("held", "5 -1 30").is_err());
    }
}
