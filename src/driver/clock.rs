//! Local time, as the machine counts it.

use std::time::{Duration, Instant};

use fairlock_proto::time::Instant as Moment;

use crate::store::clock::now;

/// The machine's clock starts here, not at zero, so that it can look back to before its start.
const START: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy)]
pub struct LocalClock {
    base: Instant,
}

impl LocalClock {
    pub fn new() -> Self {
        Self { base: now() }
    }

    pub fn now(self) -> Moment {
        self.moment(now())
    }

    pub fn moment(self, instant: Instant) -> Moment {
        let since = START + instant.saturating_duration_since(self.base);
        Moment::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub fn instant(self, moment: Moment) -> Instant {
        let since = Duration::from_micros(moment.micros()).saturating_sub(START);
        // This cannot overflow: times are at most 365 days.
        self.base.checked_add(since).unwrap_or(self.base)
    }
}
