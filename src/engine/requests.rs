//! Single requests that hold nothing and wait for nothing.

use std::pin::pin;
use std::sync::Arc;

use super::cleanup;
use super::context::Context;
use crate::store::error::RequestError;
use crate::store::keys::Keys;
use crate::store::verbs::force_unlock::{ForceUnlock, ForceUnlocked};
use crate::store::verbs::inspect::{Inspect, Inspected};

/// Ends the present hold. Returns whether there was one.
pub async fn force_unlock(context: &Arc<Context>, keys: &Arc<Keys>) -> Result<bool, RequestError> {
    let forcing = pin!(force(context, keys));
    context.drive(forcing).await.unwrap_or(Err(RequestError::RuntimeGone))
}

async fn force(context: &Arc<Context>, keys: &Arc<Keys>) -> Result<bool, RequestError> {
    if context.closing.is_cancelled() {
        return Err(RequestError::Closed);
    }
    let mut backoff = context.backoff();
    loop {
        // An error ends this. A second run could end the hold of the next owner (decision 6).
        let answer = (ForceUnlock { keys }).run(&context.runner).await?;
        let (held, more) = match answer.body {
            ForceUnlocked::Freed { more } => (true, more),
            ForceUnlocked::Free { more } => (false, more),
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

/// Who holds the lock, and the first `most` of those who wait.
pub async fn inspect(context: &Context, keys: &Keys, most: u32) -> Result<Inspected, RequestError> {
    if context.closing.is_cancelled() {
        return Err(RequestError::Closed);
    }
    let inspect = Inspect { keys, most };
    let asking = pin!(inspect.run(&context.runner));
    let answer = context.drive(asking).await.unwrap_or(Err(RequestError::RuntimeGone));
    Ok(answer?.body)
}
