//! Single requests that hold nothing and wait for nothing.

use std::time::Duration;

use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::inspect::{Inspect, Inspected};
use fairlock_proto::requests::set_limit::{LimitSet, SetLimit};
use futures::future::try_join_all;

use super::cleanup;
use super::context::Context;
use super::lock::EngineLock;
use crate::store::clock::now;
use crate::store::error::RequestError;
use crate::store::runner::Answer;

impl EngineLock {
    /// Ends the present hold, if it has the expected token. Returns whether there was one. One round trip.
    pub async fn force_unlock(&self, expected: Option<u64>) -> Result<bool, RequestError> {
        let (context, keys) = (&self.engine.context, self.keys()?);
        let mut backoff = context.backoff();
        let mut force = ForceUnlock { keys: keys.clone(), expected, not_after: 0 };
        loop {
            // An error ends this. A second run could end the hold of the next owner (decision 6).
            let answer = context.ask(context.runner.force_unlock(&mut force)).await?;
            let (held, more) = match answer.body {
                ForceUnlocked::Freed { more } => (true, more),
                ForceUnlocked::Free { more } => (false, more),
                ForceUnlocked::Other => (false, false),
                // It did nothing, so it may be repeated. The answer has corrected our estimate of the
                // server's clock.
                ForceUnlocked::Late => {
                    backoff.pause().await;
                    continue;
                }
            };
            if more {
                cleanup::pass_on(context, keys);
            }
            return Ok(held);
        }
    }

    /// Sets the limit of a shared name for all clients; `None`: that of each client counts. One round trip.
    pub async fn set_limit(&self, limit: Option<u32>) -> Result<(), RequestError> {
        let (context, keys) = (&self.engine.context, self.keys()?);
        let mut backoff = context.backoff();
        let mut set = SetLimit { keys: keys.clone(), limit, not_after: 0 };
        loop {
            let answer = context.ask(context.runner.set_limit(&mut set)).await?;
            match answer.body {
                LimitSet::Set { more } => {
                    if more {
                        cleanup::pass_on(context, keys);
                    }
                    return Ok(());
                }
                // The answer has corrected our estimate of the server's clock.
                LimitSet::Late => backoff.pause().await,
            }
        }
    }

    /// The holder, and the first `most` waiters. One round trip.
    pub async fn inspect(&self, most: u32) -> Result<Answer<Inspected>, RequestError> {
        let (context, keys) = (&self.engine.context, self.keys()?);
        context.ask(context.runner.inspect(&Inspect { keys: keys.clone(), most })).await
    }
}

/// The longest round trip to a server. All are asked at the same time.
pub async fn ping(context: &Context) -> Result<Duration, RequestError> {
    let runner = &context.runner;
    let pings = runner.store.seats().into_iter().filter_map(|seat| runner.store.server(seat)).map(|server| async {
        let asked = now();
        match runner.ask(server, &["PING"]).await {
            Ok((_, took)) => Ok(took),
            // An answer too. A user may lack the right to PING.
            Err(RequestError::Refused(refusal)) if refusal.is_about_rights() => {
                Ok(now().saturating_duration_since(asked))
            }
            Err(error) => Err(error),
        }
    });
    let took = context.ask(try_join_all(pings)).await?;
    Ok(took.into_iter().max().unwrap_or_default())
}
