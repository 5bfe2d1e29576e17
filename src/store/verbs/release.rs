//! release.lua: sets the holds of an owner to a smaller number; 0 frees the lock and passes it on.

use std::time::Instant;

use crate::store::Priority;
use crate::store::call::{Arg, Call, arg};
use crate::store::error::RequestError;
use crate::store::keys::{Keys, place};
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("release", include_str!("../../../lua/release.lua"));
pub static SHARED: Script = Script::shared("shared/release", include_str!("../../../lua/shared/release.lua"));

pub struct Release<'a> {
    pub keys: &'a Keys,
    pub owner: &'a str,
    pub token: u64,
    /// How many holds remain.
    pub holds: u32,
    /// For a shared name, the weight that remains with them: at most what the owner has.
    pub weight: u32,
    /// The seq of this release. A retry repeats it (R1).
    pub seq: u64,
    /// The attempt that began the hold.
    pub attempt: u64,
    /// Server time until which a copy of the acquire may still be served; 0: none is under way.
    pub copies_until: i64,
    /// The terms of that attempt, see `keys::terms` and `keys::shared_terms`.
    pub terms: &'a str,
    /// A release by handle, which names the token. Then `copies_until` is that of the detach (R16).
    pub is_handle: bool,
}

#[derive(PartialEq, Eq)]
pub enum Released {
    Freed {
        token: u64,
        more: bool,
    },
    Held {
        holds: u32,
        /// The same for a shared name, whose waiters got what was released.
        more: bool,
    },
    Gone {
        more: bool,
    },
    /// Not held under this token, or a later request of the owner was served before.
    Lost,
}

impl Release<'_> {
    pub async fn run(&self, runner: &Runner, by: Instant) -> Result<Answer<Released>, RequestError> {
        let Keys { kind, lock, .. } = self.keys;
        // As early as a renewal: a release that waits makes others wait for a lock that is not in use.
        let admitted = runner.admit(lock, Priority::Release, Some(by)).await?;
        // The tombstone and the last argument are for the rare cases only; keys are known by their order.
        let (mut tombstone, mut special) = (String::new(), String::new());
        // A hold that remains is what such a copy would find.
        let is_late = self.copies_until > 0 && self.holds == 0;
        if is_late || self.is_handle || runner.is_strict() || kind.is_shared() {
            tombstone = self.keys.tombstone(self.owner);
        }
        if self.is_handle {
            special = format!("0:{}:{}", self.token, self.copies_until);
        } else if self.holds > 0 && kind.is_shared() {
            special = format!("{}:{}:{}", self.holds, self.token, self.weight);
        } else if self.holds > 0 {
            special = format!("{}:{}", self.holds, self.token);
        } else if is_late {
            // A late copy of the acquire may still queue or take the lock: it finds a tombstone (R3).
            special = format!("{} {}", self.copies_until, place(self.owner, self.attempt, self.terms));
        }
        // Left out and not sent empty: see `SentKeys`.
        let keys = runner.queue_keys(self.keys, Some(&*tombstone).filter(|tombstone| !tombstone.is_empty()));
        let args = [
            arg("owner", self.owner),
            arg("seq", self.seq),
            arg("settings", Arg::Channel(&runner.settings)),
            arg("special", &special),
        ];
        let unused = usize::from(special.is_empty());
        let call = Call::of(*kind, [&SCRIPT, &SHARED], &keys, &args[..args.len() - unused]);
        runner.run(admitted, call).await
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
