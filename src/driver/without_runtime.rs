//! The deadlines of holds whose client has lost its runtime.
//!
//! Such a hold is good until its lease ends, and its holder must learn of that end (P8). No task is left to notify it,
//! and the holder may wait in another runtime. So a thread does it, and ends with the last of these leases.

use std::thread;
use std::time::Instant;

use tokio::time::sleep_until;

use super::context::Context;
use crate::store::clock::now;

/// Called while the runtime shuts down. `next` ends the holds that are due, and returns when the next one is.
pub fn keep_time(context: &Context, holds: usize, next: impl Fn() -> Option<Instant> + Send + 'static) {
    if holds == 0 {
        return;
    }
    // A simulator ends the tasks of a client in a runtime that goes on, with its own time.
    if !context.is_runtime_gone() {
        return context.spawn_apart(watch_in_a_simulator(next));
    }
    tracing::warn!(target: "fairlock::client", holds, "the runtime of a client has ended: its holds end with their leases");
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
