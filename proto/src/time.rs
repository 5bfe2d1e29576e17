//! Time in the machine: numbers that the driver passes in.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::Duration;

use crate::canonical::write_instant;
use crate::command::millis;

/// A local instant, in microseconds since a start that the driver chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(
    /// One more, so that `Option<Instant>` has the same size.
    NonZeroU64,
);

impl Instant {
    pub const fn from_micros(micros: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(micros))
    }

    pub const fn micros(self) -> u64 {
        self.0.get() - 1
    }

    /// The time from `earlier` until this instant, or 0 if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros().saturating_sub(earlier.micros()))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Self::from_micros(0)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self::from_micros(self.micros().saturating_sub(micros(duration)))
    }
}

impl Hash for Instant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        write_instant(state, self.micros());
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.micros() as f64 / 1e6)
    }
}

/// An instant by a server's clock, in milliseconds since 1970; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ServerTime(pub i64);

impl Add<Duration> for ServerTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }
}

impl Hash for ServerTime {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 == 0).hash(state);
        if self.0 != 0 {
            write_instant(state, self.0.saturating_mul(1000).cast_unsigned());
        }
    }
}

/// The machine's estimate of a server's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// In microseconds. `None` before the first answer with a time.
    offset: Option<i64>,
    /// When the client sent the request whose answer gave the offset.
    sent: Instant,
}

impl Clock {
    /// Learns from an answer with the server's time. The client sent its request at `sent`.
    ///
    /// The server read its clock later than that, so the estimate is ahead of the truth by up to the duration of the
    /// request. That is the safe side for R2: a `not_after` computed from it is never too early.
    pub fn learn(&mut self, sent: Instant, server_micros: i64) {
        // Answers may overtake each other, and an earlier one may come from another server.
        if sent >= self.sent {
            *self = Self { offset: Some(server_micros.saturating_sub_unsigned(sent.micros())), sent };
        }
    }

    /// The server's time at a local instant.
    pub fn at(&self, now: Instant) -> ServerTime {
        // 0 and not the local time: a server without tokens would give that as a token (P2).
        ServerTime(self.micros_at(now) / 1000)
    }

    /// The same in microseconds, the unit of tokens.
    pub fn micros_at(&self, now: Instant) -> i64 {
        self.offset.map_or(0, |offset| offset.saturating_add_unsigned(now.micros()))
    }
}

impl Hash for Clock {
    /// Skips the time of the answer, so that its age does not make a new state.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.offset.map(i64::to_ne_bytes).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by the simulator, seed 1795511960401.
    #[test]
    fn an_answer_that_is_read_late_replaces_no_later_one() {
        let mut clock = Clock::default();
        let at = |secs: u64| Instant::from_micros(secs * 1_000_000);
        assert_eq!(clock.at(at(11)), ServerTime(0));
        clock.learn(at(1), 1_000_000_000);
        assert_eq!(clock.at(at(11)), ServerTime(1_010_000));
        // Another server with a clock ahead answers, and then the client reads an earlier answer of the first one.
        clock.learn(at(5), 2_005_000_000);
        clock.learn(at(3), 1_002_000_000);
        assert_eq!(clock.at(at(11)), ServerTime(2_011_000));
        // The estimate follows a clock that jumps back.
        clock.learn(at(6), 1_006_000_000);
        assert_eq!(clock.at(at(11)), ServerTime(1_011_000));
    }
}
