//! When things are due, and which requests wait.

use std::collections::BTreeSet;

use crate::event::CallId;
use crate::node::{Asker, Lane, Place};
use crate::slab::Id;
use crate::time::Instant;

/// How many names, holds or timers one step attends to, and how many requests it sends, so that no caller waits long
/// for the machine. A timer that is due at once makes the next step continue.
pub const STEP: usize = 128;

/// The subject of a timer. Each has one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    Entry(Id),
    /// The limit of a call.
    Call(CallId),
    Queue(Id),
    Chore(Id),
    /// Work that an earlier step began.
    Work,
    /// The client stops waiting for unfinished releases and leaves.
    Closing,
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    /// Moves a timer. Its owner keeps the time of the timer in `planned`.
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

    /// Some of the due timers, in order. They remain until their owners move them.
    pub fn due(&self, now: Instant, count: usize) -> Vec<Timer> {
        self.0.iter().take_while(|(due, _)| *due <= now).take(count).map(|(_, timer)| *timer).collect()
    }
}

/// When the machine next attends to an asker, and the place where its request waits.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub struct Standing {
    pub planned: Option<Instant>,
    pub place: Option<Place>,
}

impl Standing {
    /// Whether nothing changes, as is usual: the asker wants no request, and its timer is the same.
    pub fn is_kept(self, due: Option<Instant>, wants: Option<Lane>) -> bool {
        self.planned == due && self.place.is_none() && wants.is_none()
    }
}

/// The timer and the lane that an asker wants.
pub struct Wish {
    pub timer: Timer,
    pub asker: Asker,
    pub slot: u16,
    pub due: Option<Instant>,
    pub wants: Option<Lane>,
}
