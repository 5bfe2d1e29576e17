//! force_unlock.lua: ends the present hold, or one of a shared name, and passes the lock on.

use crate::store::Priority;
use crate::store::call::{Arg, Call, arg};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("force_unlock", include_str!("../../../lua/force_unlock.lua"));
pub static SHARED: Script = Script::shared("shared/force_unlock", include_str!("../../../lua/shared/force_unlock.lua"));

pub struct ForceUnlock<'a> {
    pub keys: &'a Keys,
    /// Only a hold under this token is ended. `None`: any. Of a shared name only the hold with this token can be ended.
    pub expected: Option<u64>,
}

pub enum ForceUnlocked {
    Freed {
        more: bool,
    },
    /// It was not held. Of a shared name: no holder has this token.
    Free {
        more: bool,
    },
    /// It is held under another token, and goes on. Never of a shared name.
    Other,
    /// `not_after` has passed (R2).
    Late,
}

impl ForceUnlock<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<ForceUnlocked>, RequestError> {
        let Keys { kind, lock, .. } = self.keys;
        // A single question passes a closed gate: a person asks it, and wants to see the refusal
        // (decision 40).
        let admitted = runner.admit(lock, Priority::Question, Some(runner.limit())).await?;
        let keys = runner.queue_keys(self.keys, None);
        let expected = self.expected.map(|token| token.to_string()).unwrap_or_default();
        let args = [
            // A copy that is served late would end the lock of the next holder (decision 6).
            arg("not_after", runner.not_after(lock).saturating_mul(1000)),
            arg("caller", &runner.client),
            arg("expected", &expected),
            arg("settings", Arg::Channel(&runner.settings)),
        ];
        runner.run(admitted, Call::of(*kind, [&SCRIPT, &SHARED], &keys, &args)).await
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
