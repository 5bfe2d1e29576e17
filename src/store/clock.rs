//! Local time, and the server's clock as seen from here.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// The clock of the runtime. It is tokio's, so that paused time pauses this library too.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Whole milliseconds, as the scripts count.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The clock of one server.
#[derive(Debug)]
pub struct ServerClock {
    base: Instant,
    /// In microseconds.
    offset: AtomicI64,
}

impl ServerClock {
    pub fn new() -> Self {
        Self { base: now(), offset: AtomicI64::new(0) }
    }

    /// Learns from the TIME in a reply whose request was sent at `sent`.
    ///
    /// The server read its clock later than that, so the estimate is ahead of the truth by up to the
    /// duration of the request. That is the safe side for R2: a `not_after` computed from it is
    /// never too early, so a request that is sent in time is never refused as late.
    pub fn learn(&self, sent: Instant, seconds: i64, micros: i64) {
        // The latest reply replaces what was known, so the client follows a server whose clock jumps.
        // Relaxed: no other data depends on this number.
        self.offset.store(seconds * 1_000_000 + micros - self.local(sent), Ordering::Relaxed);
    }

    /// The server's time in milliseconds at a local instant.
    pub fn at(&self, instant: Instant) -> i64 {
        self.micros_at(instant) / 1000
    }

    /// 0: nothing was learnt yet.
    pub fn micros_at(&self, instant: Instant) -> i64 {
        match self.offset.load(Ordering::Relaxed) {
            // Not the local time: a quorum would propose it as a token, and servers without a token would give it (P2).
            0 => 0,
            offset => self.local(instant) + offset,
        }
    }

    fn local(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.base);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}
