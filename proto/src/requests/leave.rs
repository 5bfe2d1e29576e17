//! leave.lua: ends one attempt in any state: queued, granted, held, or gone.

use std::sync::Arc;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leave {
    pub keys: Arc<Keys>,
    pub owner: Arc<str>,
    /// Everything of the owner up to this seq ends (R4).
    pub seq: u64,
    /// The place to remove from the queue, see `keys::place`. Empty if the server has served the attempt.
    ///
    /// It has the seq of the attempt, not of the leave: a lost hold leaves with a new seq (R11), but its ticket has
    /// the old one. It has the terms, because LREM compares whole elements.
    pub place: String,
    /// Server time until which the server may still serve a copy of an earlier request; 0 if none is under way.
    pub copies_until: i64,
}

/// The reply: the server keeps nothing of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Left {
    /// A live ticket may come after the places that one run reads.
    pub more: bool,
}

impl ScriptRequest for Leave {
    type Reply = Left;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let keys = client.queue_keys(&self.keys, Some(self.keys.tombstone(&self.owner)));
        let args = [
            arg("copies_until", self.copies_until),
            arg("owner", &self.owner),
            arg("seq", self.seq),
            arg("place", &self.place),
            arg("settings", Arg::Channel(&client.settings)),
        ];
        Command::of(self.keys.kind, [ScriptName::Leave, ScriptName::SharedLeave], keys, args)
    }
}

impl Decode for Left {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            // Both mean that nothing of the attempt is left (R4). A retry gets `gone` if the server served the first
            // copy.
            "freed" => {
                let _token = fields.token()?;
                Ok(Self { more: fields.flag()? })
            }
            "gone" => Ok(Self { more: fields.flag()? }),
            _ => unknown_status(status),
        }
    }
}
