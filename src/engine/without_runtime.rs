//! The deadlines of holds whose client has no runtime any longer.
//!
//! Such a hold is good until its lease ends, and its holder must be notified of that end (P8). No task is left to do
//! it, and the holder may wait in another runtime. So a thread does it; it ends with the last of these leases.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::hold::{Hold, Holds};
use crate::store::clock::now;

/// How often the thread checks a hold whose detach rests: the deadline of that ends nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Called while the runtime is torn down. Starts a thread if there is something to watch.
pub fn watch_deadlines(holds: &Holds) {
    // Weak, so that the thread does not keep what its holder has given up.
    let held: Vec<_> = holds.owners.holds().iter().map(Arc::downgrade).collect();
    if held.is_empty() {
        return;
    }
    // A simulator ends the tasks of a client in a runtime that goes on, with a time of its own.
    if !holds.context.is_runtime_gone() {
        return holds.context.spawn_apart(watch_in_a_simulator(held));
    }
    tracing::warn!(target: "fairlock::client", holds = held.len(), "the runtime of a client has ended: what it holds ends with its leases");
    let watch = thread::Builder::new().name("fairlock-deadlines".into()).spawn(move || watch(held));
    if let Err(error) = watch {
        tracing::warn!(target: "fairlock::client", %error, "no thread for the deadlines: `lost` does not resolve, `is_valid` still works");
    }
}

fn watch(mut held: Vec<Weak<Hold>>) {
    // Without a runtime nothing is renewed, so no deadline moves while this sleeps.
    while let Some(next) = next_deadline(&mut held) {
        thread::sleep(next.saturating_duration_since(now()));
    }
}

async fn watch_in_a_simulator(mut held: Vec<Weak<Hold>>) {
    while let Some(next) = next_deadline(&mut held) {
        sleep_until(next.into()).await;
    }
}

/// Ends the holds that are due, and returns the time of the next one.
fn next_deadline(held: &mut Vec<Weak<Hold>>) -> Option<Instant> {
    let mut next: Option<Instant> = None;
    held.retain(|hold| {
        let Some(hold) = hold.upgrade() else { return false };
        // Without a guard: no answer to its release can come.
        hold.forget();
        let goes_on = hold.ended().is_none();
        if goes_on {
            let due = if hold.is_detaching() { hold.deadline().max(now() + LOOK_AGAIN) } else { hold.deadline() };
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        goes_on
    });
    next
}
