//! give.lua: makes another owner the holder under the same token.

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

pub static SCRIPT: Script = Script::new("give", include_str!("../../../lua/give.lua"));
pub static SHARED: Script = Script::shared("shared/give", include_str!("../../../lua/shared/give.lua"));

pub struct Give<'a> {
    pub keys: &'a Keys,
    /// The owner that has it.
    pub from: &'a str,
    /// The seq of this request: what `from` has got by a later one stays.
    pub seq: u64,
    pub token: u64,
    /// The owner that gets it.
    pub to: &'a str,
    /// The seq that it gets it with. A retry repeats it (R1).
    pub attempt: u64,
    pub lease: Duration,
    /// See `keys::terms` and `keys::shared_terms`. What is given keeps its share.
    pub terms: &'a str,
}

pub enum Gave {
    Given {
        lease_left: Duration,
        /// The weight of the hold. 0 for a lock.
        weight: u32,
    },
    /// Neither of the two holds the lock under this token, and no copy of this request can change that.
    Lost,
    /// `not_after` has passed (R2), and no copy was served.
    Late,
}

impl Give<'_> {
    /// Waits until it may be sent, and sends it.
    pub async fn send(
        &self,
        runner: &Runner,
        by: Option<Instant>,
        copies_until: &mut i64,
    ) -> Result<Answer<Gave>, RequestError> {
        let admitted = runner.admit(&self.keys.lock, Priority::Normal, by).await?;
        self.run(runner, admitted, copies_until).await
    }

    /// `copies_until` is set to the server time until which a copy of this request may be served, unless an answer proves
    /// that none is under way.
    pub async fn run(
        &self,
        runner: &Runner,
        admitted: Arc<InFlight>,
        copies_until: &mut i64,
    ) -> Result<Answer<Gave>, RequestError> {
        let Keys { kind, lock, tokens, .. } = self.keys;
        // After admission, as in an acquire (R2).
        let not_after = runner.not_after(lock);
        let tombstone = self.keys.tombstone(self.to);
        // As text: see renew.rs.
        let token = self.token.to_string();
        let keys = [key("lock", lock), key("tokens", tokens), key("tombstone", &tombstone)];
        let args = [
            arg("not_after", not_after.saturating_mul(1000)),
            arg("from", self.from),
            arg("seq", self.seq),
            arg("token", &token),
            arg("to", self.to),
            arg("attempt", self.attempt),
            arg("lease", self.lease),
            arg("terms", self.terms),
            arg("token_ttl", runner.options.token_ttl),
        ];
        let earlier = *copies_until;
        *copies_until = earlier.max(not_after);
        let outcome = runner.run(admitted, Call::of(*kind, [&SCRIPT, &SHARED], &keys, &args)).await;
        if !matches!(outcome, Err(RequestError::Unanswered(_))) {
            *copies_until = earlier;
        }
        outcome
    }
}

impl Decode for Gave {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match status {
            "given" => Self::Given { lease_left: fields.millis()?, weight: fields.last_natural()? },
            // Asking again would get the same answer each time.
            "lost" | "left" | "stale" => Self::Lost,
            "late" => Self::Late,
            _ => return unknown_status(status),
        })
    }
}
