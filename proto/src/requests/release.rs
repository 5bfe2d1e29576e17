//! release.lua: sets the holds of an owner to a smaller number; 0 frees the lock and passes it on.

use std::sync::Arc;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg};
use crate::keys::{Keys, place};
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Release {
    pub keys: Arc<Keys>,
    pub owner: Arc<str>,
    pub token: u64,
    /// How many holds remain.
    pub holds: u32,
    /// For a shared name, the weight that remains, at most the present one.
    pub weight: u32,
    /// The seq of this release. A retry repeats it (R1).
    pub seq: u64,
    /// The attempt that began the hold.
    pub attempt: u64,
    /// Server time until which the server may still serve a copy of the acquire; 0 if none is under way.
    pub copies_until: i64,
    /// The terms of that attempt, see `keys::terms` and `keys::shared_terms`.
    pub terms: Arc<str>,
    /// A release by handle, which names the token. Then `copies_until` is about copies of the detach (R16).
    pub is_handle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Released {
    Freed {
        token: u64,
        more: bool,
    },
    Held {
        holds: u32,
        /// The same as in `Freed`. Only for a shared name, whose waiters got the released share.
        more: bool,
    },
    Gone {
        more: bool,
    },
    /// The owner does not hold the lock under this token, or the server served a later request of the owner before.
    Lost,
}

impl ScriptRequest for Release {
    type Reply = Released;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let kind = self.keys.kind;
        // Only rare cases need the tombstone and the last argument. Scripts know keys by their order.
        let (mut tombstone, mut special) = (None, None);
        // If a hold remains, a late copy of the acquire finds it instead of a tombstone.
        let is_late = self.copies_until > 0 && self.holds == 0;
        if is_late || self.is_handle || client.is_strict() || kind.is_shared() {
            tombstone = Some(self.keys.tombstone(&self.owner));
        }
        if self.is_handle {
            special = Some(format!("0:{}:{}", self.token, self.copies_until));
        } else if self.holds > 0 && kind.is_shared() {
            special = Some(format!("{}:{}:{}", self.holds, self.token, self.weight));
        } else if self.holds > 0 {
            special = Some(format!("{}:{}", self.holds, self.token));
        } else if is_late {
            // A late copy of the acquire might queue or take the lock: it has to find a tombstone (R3).
            special = Some(format!("{} {}", self.copies_until, place(&self.owner, self.attempt, &self.terms)));
        }
        let keys = client.queue_keys(&self.keys, tombstone);
        let args = [
            arg("owner", &self.owner),
            arg("seq", self.seq),
            arg("settings", Arg::Channel(&client.settings)),
            special.and_then(|special| arg("special", special)),
        ];
        Command::of(kind, [ScriptName::Release, ScriptName::SharedRelease], keys, args)
    }
}

impl Decode for Released {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match status {
            "freed" => Self::Freed { token: fields.token()?, more: fields.flag()? },
            "held" => Self::Held { holds: fields.small()?, more: fields.last_natural()? == 1 },
            "gone" => Self::Gone { more: fields.flag()? },
            // Either way this request set no count.
            "lost" | "stale" => Self::Lost,
            _ => return unknown_status(status),
        })
    }
}
