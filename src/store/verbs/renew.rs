//! renew.lua: gives the holder its lease anew; also the confirmation of a grant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::Priority;
use crate::store::admission::InFlight;
use crate::store::call::{Call, arg, key};
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::reply::{Decode, Fields, Malformed, unknown_status};
use crate::store::runner::{Answer, Runner};
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("renew", include_str!("../../../lua/renew.lua"));
pub static SHARED: Script = Script::shared("shared/renew", include_str!("../../../lua/shared/renew.lua"));

pub struct Renew<'a> {
    pub keys: &'a Keys,
    pub owner: &'a str,
    pub token: u64,
    pub lease: Duration,
    pub only: Only,
    /// Also keeps the memory of the token, which must outlive a long hold (P2).
    pub remember: bool,
}

/// Whether the lease may also get shorter, see renew.lua.
#[derive(Clone, Copy)]
pub enum Only {
    Longer,
    /// As long as no request was served after this attempt.
    Attempt(u64),
    /// Longer only, and no request before this one makes it shorter any more.
    Extend(u64),
}

pub enum Renewed {
    Renewed { lease_left: Duration },
    Lost,
}

impl Renew<'_> {
    pub async fn run(&self, runner: &Runner, by: Option<Instant>) -> Result<Answer<Renewed>, RequestError> {
        // Urgent: new acquires must never make a holder lose its lock (P8).
        let admitted = runner.admit(&self.keys.lock, Priority::Urgent, by).await?;
        // Boxed: of 100,000 renewals that are due together, few are sent at a time.
        Box::pin(self.send(runner, admitted)).await
    }

    async fn send(&self, runner: &Runner, admitted: Arc<InFlight>) -> Result<Answer<Renewed>, RequestError> {
        let Keys { kind, lock, tokens, .. } = self.keys;
        // As text, because renew.lua compares it with the text in the hash. Lua would round a number
        // on its way to text.
        let token = self.token.to_string();
        let only = match self.only {
            Only::Longer => "0".into(),
            Only::Attempt(seq) => seq.to_string(),
            Only::Extend(seq) => format!("+{seq}"),
        };
        let keys = [key("lock", lock), key("tokens", tokens)];
        let args = [
            arg("owner", self.owner),
            arg("token", &token),
            arg("lease", self.lease),
            arg("only", &only),
            arg("token_ttl", runner.options.token_ttl),
        ];
        // With one key as a rule: a cluster that moves a slot refuses a script over several keys when one is absent.
        let unused = usize::from(!self.remember);
        let (keys, args) = (&keys[..keys.len() - unused], &args[..args.len() - unused]);
        let call = Call::of(*kind, [&SCRIPT, &SHARED], keys, args);
        runner.run(admitted, call).await
    }
}

impl Decode for Renewed {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "renewed" => Ok(Self::Renewed { lease_left: fields.millis()? }),
            "lost" => Ok(Self::Lost),
            _ => unknown_status(status),
        }
    }
}
