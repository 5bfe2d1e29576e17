//! raise.lua: makes every later token of a lock greater than a given one.

use std::sync::Arc;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Command, ScriptName, arg, key};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Raise {
    pub keys: Arc<Keys>,
    pub owner: Arc<str>,
    /// The hold's token.
    pub token: u64,
    pub floor: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Raised {
    Raised,
    Lost,
}

impl ScriptRequest for Raise {
    type Reply = Raised;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let keys = [key("lock", &*self.keys.lock), key("tokens", &self.keys.tokens)];
        let args = [
            arg("owner", &self.owner),
            arg("token", self.token),
            arg("floor", self.floor),
            arg("token_ttl", client.token_ttl),
        ];
        Command::new(ScriptName::Raise, keys, args)
    }
}

impl Decode for Raised {
    fn decode(status: &str, _: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "raised" => Ok(Self::Raised),
            "lost" => Ok(Self::Lost),
            _ => unknown_status(status),
        }
    }
}
