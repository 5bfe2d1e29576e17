//! set_limit.lua: sets the limit of a semaphore for all clients, and serves the waiters that it has room for.

use crate::store::Priority;
use crate::store::call::{Arg, Call, arg};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SHARED: Script = Script::shared("shared/set_limit", include_str!("../../../lua/shared/set_limit.lua"));

pub struct SetLimit<'a> {
    /// The keys of a semaphore.
    pub keys: &'a Keys,
    /// `None`: each client's own limit counts again. 0: no waiter is served.
    pub limit: Option<u32>,
}

pub enum LimitSet {
    Set {
        /// Another call would serve more waiters: poll.
        more: bool,
    },
    /// `not_after` has passed (R2).
    Late,
}

impl SetLimit<'_> {
    /// May be repeated: a second run sets the same.
    pub async fn run(&self, runner: &Runner) -> Result<Answer<LimitSet>, RequestError> {
        let lock = &self.keys.lock;
        let admitted = runner.admit(lock, Priority::Question, Some(runner.limit())).await?;
        let keys = runner.queue_keys(self.keys, None);
        let permits = self.limit.map(|limit| limit.to_string()).unwrap_or_default();
        let args = [
            // A copy that is served late would undo what another client has set since.
            arg("not_after", runner.not_after(lock).saturating_mul(1000)),
            arg("caller", &runner.client),
            arg("permits", &permits),
            arg("settings", Arg::Channel(&runner.settings)),
        ];
        runner.run(admitted, Call::new(&SHARED, &keys, &args)).await
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
