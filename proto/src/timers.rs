//! What is due when.

use std::collections::BTreeSet;

use crate::event::CallId;
use crate::slab::Id;
use crate::time::Instant;

/// How many names, holds or timers one step attends to, and how many requests it sends, so that no caller waits long for the
/// machine. A timer that is due at once has the next step do the rest.
pub const STEP: usize = 128;

/// What a timer is for. Each has one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    Entry(Id),
    /// The limit of a call.
    Call(CallId),
    Queue(Id),
    Chore(Id),
    /// Work that was begun in an earlier step.
    Work,
    /// The client does not wait any longer for what is unfinished.
    Closing,
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    /// Moves a timer. `planned` is where its owner keeps for when it is set.
    pub fn plan(&mut self, timer: Timer, planned: &mut Option<Instant>, due: Option<Instant>) {
        if *planned == due {
            return;
        }
        if let Some(before) = planned.take() {
            self.0.remove(&(before, timer));
        }
        if let Some(due) = due {
            self.0.insert((due, timer));
        }
        *planned = due;
    }

    pub fn next(&self) -> Option<Instant> {
        self.0.first().map(|(due, _)| *due)
    }

    /// Some of those that are due, in order. They stay set until their owners move them.
    pub fn due(&self, now: Instant, count: usize) -> Vec<Timer> {
        self.0.iter().take_while(|(due, _)| *due <= now).take(count).map(|(_, timer)| *timer).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
