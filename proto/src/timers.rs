//! What is due when, and what waits to be sent.

use std::collections::BTreeSet;

use crate::event::CallId;
use crate::node::{Asker, Lane, Place};
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
}

/// When an asker is to be called next, and where it waits to send.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub struct Standing {
    pub planned: Option<Instant>,
    pub place: Option<Place>,
}

impl Standing {
    /// Whether nothing is to be done, as is usual: no request is wanted, and the timer is the same.
    pub fn is_kept(self, due: Option<Instant>, wants: Option<Lane>) -> bool {
        self.planned == due && self.place.is_none() && wants.is_none()
    }
}

/// What an asker wants of that.
pub struct Wish {
    pub timer: Timer,
    pub asker: Asker,
    pub slot: u16,
    pub due: Option<Instant>,
    pub wants: Option<Lane>,
}
