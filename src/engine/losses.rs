//! What the log says of losses: a line for each, but one line for all that a check of all holds finds. After
//! a flush or a restart without data they have one cause, and may be thousands.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::Loss;
use super::observe::{Who, millis};

#[derive(Debug, Default)]
pub struct Losses {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Checks of all holds that are under way.
    checks: u32,
    /// Lost since the first of them began.
    lost: Vec<Lost>,
}

/// A hold that was lost.
#[derive(Debug)]
pub struct Lost {
    name: Box<str>,
    owner: Box<str>,
    token: u64,
    held_ms: f64,
    loss: Loss,
}

impl Losses {
    /// All holds are checked until the returned value is dropped.
    pub fn check(&self) -> Check<'_> {
        self.state().checks += 1;
        Check(self)
    }

    /// A hold was lost while it had a guard.
    pub fn note(&self, lost: Lost) {
        {
            let mut state = self.state();
            // Also one that the watchdog finds meanwhile: it has the same cause.
            if state.checks > 0 {
                return state.lost.push(lost);
            }
        }
        // After the lock is free: a subscriber may take its time.
        lost.warn();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this; if it did, the data would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lost {
    pub fn new(who: &Who<'_>, token: u64, held: Duration, loss: Loss) -> Self {
        Self { name: who.name.into(), owner: who.owner.into(), token, held_ms: millis(held), loss }
    }

    pub fn warn(&self) {
        let Self { name, owner, token, held_ms, loss } = self;
        tracing::warn!(target: "fairlock::lock", %name, %owner, token, held_ms, %loss, "lost a lock");
    }

    /// Where a person need not look: another line tells of it, or nobody relied on it.
    pub fn debug(&self) {
        let Self { name, owner, token, held_ms, loss } = self;
        tracing::debug!(target: "fairlock::lock", %name, %owner, token, held_ms, %loss, "lost a lock");
    }
}

/// By a drop, so that what was found is also said when the check is cut off.
#[derive(Debug)]
pub struct Check<'a>(&'a Losses);

impl Drop for Check<'_> {
    fn drop(&mut self) {
        let lost = {
            let mut state = self.0.state();
            state.checks -= 1;
            // The last one says it for all.
            if state.checks > 0 { Vec::new() } else { std::mem::take(&mut state.lost) }
        };
        match lost.as_slice() {
            [] => {}
            [one] => one.warn(),
            all => {
                tracing::warn!(
                    target: "fairlock::lock",
                    holds = all.len(),
                    "lost locks: the server does not know them, as after a flush or a restart"
                );
                all.iter().for_each(Lost::debug);
            }
        }
    }
}
