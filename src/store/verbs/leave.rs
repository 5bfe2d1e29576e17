//! leave.lua: ends one attempt, wherever it stands: queued, granted, held, or gone.

use crate::store::Priority;
use crate::store::call::{Arg, Call, arg};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("leave", include_str!("../../../lua/leave.lua"));
pub static SHARED: Script = Script::shared("shared/leave", include_str!("../../../lua/shared/leave.lua"));

pub struct Leave<'a> {
    pub keys: &'a Keys,
    pub owner: &'a str,
    /// Everything of the owner up to this seq ends (R4).
    pub seq: u64,
    /// The place in the queue that goes, see `Keys::place`. Empty: the attempt has none, because it was served.
    ///
    /// With the seq of the attempt, not of the leave: a lost hold leaves with a new seq (R11), but its ticket has
    /// the old one. With its terms, because LREM compares whole elements.
    pub place: &'a str,
    /// Server time until which a copy of an earlier request may still be served; 0: none is under
    /// way.
    pub copies_until: i64,
}

/// The reply: the server keeps nothing of the attempt.
pub struct Left {
    /// A live ticket may wait behind the places that one run reads.
    pub more: bool,
}

impl Leave<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Left>, RequestError> {
        let Keys { kind, lock, .. } = self.keys;
        // Early: what is left behind keeps others waiting (P5).
        let admitted = runner.admit(lock, Priority::Cleanup, None).await?;
        let tombstone = self.keys.tombstone(self.owner);
        let keys = runner.queue_keys(self.keys, Some(&tombstone));
        let args = [
            arg("copies_until", self.copies_until),
            arg("owner", self.owner),
            arg("seq", self.seq),
            arg("place", self.place),
            arg("settings", Arg::Channel(&runner.settings)),
        ];
        runner.run(admitted, Call::of(*kind, [&SCRIPT, &SHARED], &keys, &args)).await
    }
}

impl Decode for Left {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            // Both mean that nothing of the attempt is left (R4). A retry whose first copy was served
            // hears `gone`.
            "freed" => {
                let _token = fields.token()?;
                Ok(Self { more: fields.flag()? })
            }
            "gone" => Ok(Self { more: fields.flag()? }),
            _ => unknown_status(status),
        }
    }
}
