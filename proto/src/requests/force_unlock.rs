//! force_unlock.lua: ends the present hold, or one of a shared name, and passes the lock on.

use std::sync::Arc;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForceUnlock {
    pub keys: Arc<Keys>,
    /// Ends only the hold with this token. `None`: any hold of a lock. A shared name needs a token.
    pub expected: Option<u64>,
    /// Server time in ms. A copy that runs later does nothing: it would end the lock of the next holder (decision 6).
    /// Set when the client sends the request.
    pub not_after: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForceUnlocked {
    Freed {
        more: bool,
    },
    /// There was no hold. For a shared name: no holder has this token.
    Free {
        more: bool,
    },
    /// The hold has another token, and goes on. Never for a shared name.
    Other,
    /// `not_after` has passed (R2).
    Late,
}

impl ScriptRequest for ForceUnlock {
    type Reply = ForceUnlocked;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let keys = client.queue_keys(&self.keys, None);
        let args = [
            arg("not_after", self.not_after.saturating_mul(1000)),
            arg("caller", &client.id),
            arg("expected", self.expected.map_or("".into(), Arg::from)),
            arg("settings", Arg::Channel(&client.settings)),
        ];
        Command::of(self.keys.kind, [ScriptName::ForceUnlock, ScriptName::SharedForceUnlock], keys, args)
    }
}

impl Decode for ForceUnlocked {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "freed" => {
                let _token = fields.token()?;
                Ok(Self::Freed { more: fields.flag()? })
            }
            "free" => Ok(Self::Free { more: fields.flag()? }),
            "other" => {
                let _token = fields.token()?;
                Ok(Self::Other)
            }
            "late" => Ok(Self::Late),
            _ => unknown_status(status),
        }
    }
}
