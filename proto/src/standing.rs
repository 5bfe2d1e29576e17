//! When an asker is to be called next, and where it waits to send.

use crate::node::{Asker, Lane, Place};
use crate::time::Instant;
use crate::timers::Timer;

/// What an asker has of that now.
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
