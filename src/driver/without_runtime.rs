//! The deadlines of holds whose client has no runtime any longer.
//!
//! Such a hold is good until its lease ends, and its holder must be notified of that end (P8). No task is left to do it, and the
//! holder may wait in another runtime. So a thread does it; it ends with the last of these leases.

use std::thread;
use std::time::Instant;

use tokio::time::sleep_until;

use super::context::Context;
use crate::store::clock::now;

/// Called while the runtime is torn down. `next`: ends what is due, and returns when the next one is.
pub fn keep_time(context: &Context, holds: usize, next: impl Fn() -> Option<Instant> + Send + 'static) {
    if holds == 0 {
        return;
    }
    // A simulator ends the tasks of a client in a runtime that goes on, with a time of its own.
    if !context.is_runtime_gone() {
        return context.spawn_apart(watch_in_a_simulator(next));
    }
    tracing::warn!(target: "fairlock::client", holds, "the runtime of a client has ended: what it holds ends with its leases");
    let watch = thread::Builder::new().name("fairlock-deadlines".into()).spawn(move || watch(next));
    if let Err(error) = watch {
        tracing::warn!(target: "fairlock::client", %error, "no thread for the deadlines: `lost` does not resolve, `is_valid` still works");
    }
}

fn watch(next: impl Fn() -> Option<Instant>) {
    while let Some(next) = next() {
        thread::sleep(next.saturating_duration_since(now()));
    }
}

async fn watch_in_a_simulator(next: impl Fn() -> Option<Instant>) {
    while let Some(next) = next() {
        sleep_until(next.into()).await;
    }
}
