//! A command runs under a handle: its hold is extended, and a loss ends the command.

use std::time::Duration;

use fairlock::{HandleError, HoldHandle, LockClient};
use tokio::time::{Instant, sleep, timeout_at};

/// A loss is noticed after this time at the latest, or after a third of the lease: a handle's loss is not notified.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Extends the hold of a handle again and again. Returns when it is lost, or may be, and why. `extended`: before it was last asked for.
pub async fn until_lost(client: &LockClient, handle: &HoldHandle, extended: Instant) -> String {
    let lease = handle.lease();
    // As the library counts: from before the request, and clocks may differ by a hundredth.
    let sure = lease.saturating_sub(lease / 100);
    let mut until = extended.checked_add(sure).unwrap_or(extended);
    loop {
        sleep((lease / 3).min(LOOK_EVERY)).await;
        let asked = Instant::now();
        match timeout_at(until, client.extend(handle, lease)).await {
            Ok(Ok(())) => until = asked.checked_add(sure).unwrap_or(until),
            Ok(Err(HandleError::Lost)) => return HandleError::Lost.to_string(),
            // Asked again, until its lease is over.
            Ok(Err(_)) if Instant::now() < until => {}
            _ => return "its lease may be over, and the server does not answer".to_owned(),
        }
    }
}
