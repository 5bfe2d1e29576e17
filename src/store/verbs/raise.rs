//! raise.lua: makes every later token of a lock greater than a given one.

use crate::store::Priority;
use crate::store::call::{Call, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("raise", include_str!("../../../lua/raise.lua"));

pub struct Raise<'a> {
    pub keys: &'a Keys,
    pub owner: &'a str,
    /// The hold's token.
    pub token: u64,
    pub floor: u64,
}

#[derive(PartialEq, Eq)]
pub enum Raised {
    Raised,
    Lost,
}

impl Raise<'_> {
    pub async fn run(&self, runner: &Runner) -> Result<Answer<Raised>, RequestError> {
        let Keys { lock, tokens, .. } = self.keys;
        // Urgent: the lock is held meanwhile, and others wait for it.
        let admitted = runner.admit(lock, Priority::Urgent, None).await?;
        // As texts, because raise.lua compares them so. Lua would round numbers on their way to text.
        let (token, floor) = (self.token.to_string(), self.floor.to_string());
        let keys = [key("lock", lock), key("tokens", tokens)];
        let args = [
            arg("owner", self.owner),
            arg("token", &token),
            arg("floor", &floor),
            arg("token_ttl", runner.options.token_ttl),
        ];
        runner.run(admitted, Call::new(&SCRIPT, &keys, &args)).await
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
