//! Logs lost holds: a line for each, unless many come together. After a flush or a restart without data they have one
//! cause, and may be thousands.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::context::Context;
use super::error::Loss;
use super::observe::{Who, millis};
use crate::sync::Mutex;

/// Losses within this time share one line.
const TOGETHER: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Losses {
    untold: Mutex<Untold>,
}

#[derive(Default)]
struct Untold {
    first: Option<Lost>,
    others: usize,
}

/// A hold that was lost.
pub struct Lost {
    name: Box<str>,
    owner: Box<str>,
    token: u64,
    held_ms: f64,
    loss: Loss,
}

impl Losses {
    /// A hold was lost while it had a guard.
    pub fn note(self: &Arc<Self>, context: &Context, lost: Lost) {
        if context.gone.is_cancelled() {
            // No task is left that could log it later.
            return lost.warn();
        }
        if let Some(lost) = self.keep_the_first(lost) {
            return lost.debug();
        }
        let (losses, closing) = (self.clone(), context.closing.clone());
        context.spawn(async move {
            let _ = closing.run_until_cancelled(sleep(TOGETHER)).await;
            losses.tell();
        });
    }

    /// Returns the loss if it is not the first.
    fn keep_the_first(&self, lost: Lost) -> Option<Lost> {
        let mut untold = self.untold.lock();
        if untold.first.is_some() {
            untold.others += 1;
            return Some(lost);
        }
        untold.first = Some(lost);
        None
    }

    fn tell(&self) {
        // The lock is free again before the log is written: a subscriber may take its time.
        let Untold { first, others } = std::mem::take(&mut *self.untold.lock());
        match first {
            Some(lost) if others == 0 => lost.warn(),
            Some(lost) => {
                tracing::warn!(
                    target: "fairlock::lock",
                    holds = others + 1,
                    loss = %lost.loss,
                    "lost locks: as after a flush, a restart or a long silence"
                );
                lost.debug();
            }
            None => {}
        }
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

    /// At DEBUG: another line reports it, or it was not relied on.
    pub fn debug(&self) {
        let Self { name, owner, token, held_ms, loss } = self;
        tracing::debug!(target: "fairlock::lock", %name, %owner, token, held_ms, %loss, "lost a lock");
    }
}
