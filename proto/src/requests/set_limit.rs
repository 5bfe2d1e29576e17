//! set_limit.lua: sets the limit of a semaphore for all clients, and serves the waiters that it has room for.

use std::sync::Arc;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetLimit {
    /// The keys of a semaphore.
    pub keys: Arc<Keys>,
    /// `None`: each client's own limit counts again. 0: the server serves no waiter.
    pub limit: Option<u32>,
    /// Server time in ms. A copy that runs later does nothing: it would undo a later limit from another client. Set
    /// when the client sends the request.
    pub not_after: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitSet {
    Set {
        /// Another call would serve more waiters: poll.
        more: bool,
    },
    /// `not_after` has passed (R2).
    Late,
}

impl ScriptRequest for SetLimit {
    type Reply = LimitSet;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let keys = client.queue_keys(&self.keys, None);
        let args = [
            arg("not_after", self.not_after.saturating_mul(1000)),
            arg("caller", &client.id),
            arg("permits", self.limit.map_or("".into(), Arg::from)),
            arg("settings", Arg::Channel(&client.settings)),
        ];
        Command::new(ScriptName::SharedSetLimit, keys, args)
    }
}

impl Decode for LimitSet {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "set" => Ok(Self::Set { more: fields.flag()? }),
            "late" => Ok(Self::Late),
            _ => unknown_status(status),
        }
    }
}
