//! Calls with a limit.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::Either;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::outcome::LockError;
use crate::store::error::{Cause, Fault};

/// The cause for a call that had too little time for an answer.
pub fn no_answer_yet() -> Cause {
    Arc::new(Fault::NoAnswerYet)
}

/// Ends a call that has no time left. It lets other tasks run first: the error suggests a retry, and a loop that tries
/// again at once would keep the thread for itself.
pub async fn too_late() -> LockError {
    yield_now().await;
    LockError::Unreachable(no_answer_yet())
}

/// Whether a call failed only because it had too little time.
pub fn is_only_late(cause: &Cause) -> bool {
    matches!(cause.downcast_ref(), Some(Fault::NoAnswerYet))
}

/// Returns `None` if the time is up first.
pub fn within<F: Future>(limit: Option<Instant>, future: F) -> impl Future<Output = Option<F::Output>> {
    match limit {
        Some(limit) => Either::Left(until(limit, future)),
        None => Either::Right(future.map(Some)),
    }
}

async fn until<F: Future>(limit: Instant, future: F) -> Option<F::Output> {
    tokio::select! {
        // The time first, unlike in `tokio::time::timeout`: after it the client asks nothing more.
        biased;
        () = sleep_until(limit.into()) => None,
        output = future => Some(output),
    }
}
