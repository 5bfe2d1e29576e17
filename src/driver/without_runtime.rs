//! The deadlines of holds whose client has no runtime any longer.
//!
//! Such a hold is good until its lease ends, and its holder must be notified of that end (P8). No task is left to do it, and the
//! holder may wait in another runtime. So a thread does it; it ends with the last of these leases.

use std::sync::{Arc, Weak};
use std::thread;

use fairlock_proto::event::Event;
use tokio::time::sleep_until;

use super::Driver;
use crate::store::clock::now;

/// Called while the runtime is torn down. Starts a thread if there is something to watch.
pub fn keep_time(driver: &Arc<Driver>) {
    let holds = driver.shared.lock().held();
    if holds == 0 {
        return;
    }
    let context = driver.context();
    let driver = Arc::downgrade(driver);
    // A simulator ends the tasks of a client in a runtime that goes on, with a time of its own.
    if !context.is_runtime_gone() {
        return context.spawn_apart(watch_in_a_simulator(driver));
    }
    tracing::warn!(target: "fairlock::client", holds, "the runtime of a client has ended: what it holds ends with its leases");
    let watch = thread::Builder::new().name("fairlock-deadlines".into()).spawn(move || watch(&driver));
    if let Err(error) = watch {
        tracing::warn!(target: "fairlock::client", %error, "no thread for the deadlines: `lost` does not resolve, `is_valid` still works");
    }
}

fn watch(driver: &Weak<Driver>) {
    while let Some(next) = next_time(driver) {
        thread::sleep(next.saturating_duration_since(now()));
    }
}

async fn watch_in_a_simulator(driver: Weak<Driver>) {
    while let Some(next) = next_time(&driver) {
        sleep_until(next.into()).await;
    }
}

/// Ends the holds that are due, and returns when the next one is.
fn next_time(driver: &Weak<Driver>) -> Option<std::time::Instant> {
    let driver = driver.upgrade()?;
    driver.feed(Event::Time);
    let shared = driver.shared.lock();
    let next = shared.next_timer().filter(|_| shared.has_holds())?;
    Some(driver.clock.instant(next))
}
