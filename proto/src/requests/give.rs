//! give.lua: makes another owner the holder under the same token.

use std::sync::Arc;
use std::time::Duration;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Command, ScriptName, arg, key};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Give {
    pub keys: Arc<Keys>,
    /// The owner that has the hold.
    pub from: Arc<str>,
    /// The seq of this request. If `from` got the hold by a later one, it keeps it.
    pub seq: u64,
    pub token: u64,
    /// The owner that gets the hold.
    pub to: Arc<str>,
    /// The seq under which `to` gets the hold. A retry repeats it (R1).
    pub attempt: u64,
    pub lease: Duration,
    /// See `keys::terms` and `keys::shared_terms`. The hold keeps its share.
    pub terms: Arc<str>,
    /// Server time in ms: a copy that runs later does nothing (R2). Set when the client sends the request.
    pub not_after: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gave {
    Given {
        lease_left: Duration,
        /// The weight of the hold. 0 for a lock.
        weight: u32,
    },
    /// Neither owner holds the lock under this token, and no copy of this request can change that.
    Lost,
    /// `not_after` has passed (R2), and the server has served no copy.
    Late,
}

impl ScriptRequest for Give {
    type Reply = Gave;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let Keys { kind, lock, tokens, .. } = &*self.keys;
        let keys = [key("lock", &**lock), key("tokens", tokens), key("tombstone", self.keys.tombstone(&self.to))];
        let args = [
            arg("not_after", self.not_after.saturating_mul(1000)),
            arg("from", &self.from),
            arg("seq", self.seq),
            arg("token", self.token),
            arg("to", &self.to),
            arg("attempt", self.attempt),
            arg("lease", self.lease),
            arg("terms", &self.terms),
            arg("token_ttl", client.token_ttl),
        ];
        Command::of(*kind, [ScriptName::Give, ScriptName::SharedGive], keys, args)
    }
}

impl Decode for Gave {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match status {
            "given" => Self::Given { lease_left: fields.millis()?, weight: fields.last_natural()? },
            // Asking again would get the same answer each time.
            "lost" | "left" | "stale" => Self::Lost,
            "late" => Self::Late,
            _ => return unknown_status(status),
        })
    }
}
