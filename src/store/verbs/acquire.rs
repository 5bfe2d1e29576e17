//! acquire.lua: asks for the lock, or for one more hold on it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::store::admission::InFlight;
use crate::store::call::{Arg, Call, arg};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("acquire", include_str!("../../../lua/acquire.lua"));
pub static SHARED: Script = Script::shared("shared/acquire", include_str!("../../../lua/shared/acquire.lua"));

#[derive(Clone, Copy)]
pub struct Acquire<'a> {
    pub keys: &'a Keys,
    pub owner: &'a str,
    pub seq: u64,
    pub mode: Mode,
    pub lease: Duration,
    /// See `keys::terms`, and for a shared name `keys::shared_terms`.
    pub terms: &'a str,
}

/// How to handle a lock that is not free.
#[derive(Clone, Copy)]
pub enum Mode {
    /// Leave it.
    Try,
    /// Leave it. A free lock is taken under this token, if it is above the last one (Q3).
    Propose(u64),
    Queue,
    /// Re-enter the hold with this token, whose count is this.
    Nest(u64, u32),
}

impl Mode {
    /// `None`: it is not sent.
    fn text(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Try => Some("0".into()),
            Self::Propose(token) => Some(format!("0:{token}").into()),
            Self::Queue => None,
            // R1: how many holds there are already, not `one more`. A copy that is served twice then
            // counts once.
            Self::Nest(token, holds) => Some(format!("{holds}:{token}").into()),
        }
    }
}

pub enum Acquired {
    Held {
        token: u64,
        holds: u32,
        lease_left: Duration,
    },
    Queued {
        /// No grant that is made later has a token up to this one (R7).
        floor: u64,
        /// The rest of the holder's lease, or of the freeze (`strict_restart`). Of a shared name: until the first of the
        /// leases may end.
        lease_left: Option<Duration>,
        more: bool,
        /// The server had not given this client up as dead.
        known: bool,
    },
    /// Not free, and the mode was not to queue.
    Busy {
        more: bool,
    },
    /// As many as `max_waiters` wait.
    Full {
        waiters: u64,
        /// Another call may find room.
        more: bool,
    },
    /// The share weighs more than this limit, the client's own or the limit for all clients. The attempt has no place: a limit that
    /// is set below the weight of a waiter does not remove the waiter, and a limit of 0 refuses no call.
    TooHeavy {
        limit: u32,
    },
    /// The hold to re-enter is not there.
    Lost,
    /// `not_after` has passed (R2).
    Late,
    /// There is a tombstone, or a later attempt: this attempt is over on the server.
    Over,
}

impl Acquire<'_> {
    /// `copies_until` is set to the server time until which a copy of this request may be served,
    /// unless an answer proves that none is under way.
    pub async fn run(
        &self,
        runner: &Runner,
        admitted: Arc<InFlight>,
        copies_until: &mut i64,
    ) -> Result<Answer<Acquired>, RequestError> {
        let Keys { kind, lock, .. } = self.keys;
        // Only after admission, which may take long under load. A `not_after` from before could have
        // passed by the time that the request is sent (R2).
        let not_after = runner.not_after(lock);
        let mode = self.mode.text();
        // Named in each acquire, unlike in a release: this may be the late copy that has to find it
        // (R3).
        let tombstone = self.keys.tombstone(self.owner);
        let keys = runner.queue_keys(self.keys, Some(&tombstone));
        let args = [
            // In microseconds: a script has the time as a text with that many digits.
            arg("not_after", not_after.saturating_mul(1000)),
            arg("owner", self.owner),
            arg("seq", self.seq),
            arg("lease", self.lease),
            // The server keeps no settings: each request brings those of its client, so that clients
            // with different options work together.
            arg("terms", self.terms),
            arg("settings", Arg::Channel(&runner.settings)),
            arg("mode", mode.as_deref().unwrap_or_default()),
        ];
        let args = &args[..args.len() - usize::from(mode.is_none())];
        // Before the first await that may lose the answer: from here on a copy may be under way.
        let earlier = *copies_until;
        *copies_until = earlier.max(not_after);
        let outcome = runner.run(admitted, Call::of(*kind, [&SCRIPT, &SHARED], &keys, args)).await;
        // Any other outcome proves that no copy of this request is under way: it was answered, or not
        // sent. A future that is dropped above keeps the later time, and its leave then writes a
        // tombstone (R3).
        if !matches!(outcome, Err(RequestError::Unanswered(_))) {
            *copies_until = earlier;
        }
        outcome
    }
}

impl Decode for Acquired {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match status {
            "held" => Self::Held { token: fields.token()?, holds: fields.small()?, lease_left: fields.millis()? },
            "queued" => {
                let (floor, lease_left) = (fields.token()?, fields.millis_if_any()?);
                Self::Queued { floor, lease_left, more: fields.flag()?, known: fields.flag()? }
            }
            "busy" => Self::Busy { more: fields.flag()? },
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
    use crate::store::reply::ScriptReply;

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
