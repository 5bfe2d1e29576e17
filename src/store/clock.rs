//! Local time, and this client's estimate of the server's clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// The runtime's clock. It is tokio's, so that paused time pauses this library too.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Whether a call's time has expired. `None`: unlimited.
pub fn is_over(limit: Option<Instant>) -> bool {
    limit.is_some_and(|limit| limit <= now())
}

pub struct ServerClock {
    base: Instant,
    /// In microseconds.
    offset: AtomicI64,
    /// The send time of the request whose answer gave the offset, in microseconds since `base`.
    sent: AtomicI64,
}

impl ServerClock {
    pub fn new() -> Self {
        Self { base: now(), offset: AtomicI64::new(0), sent: AtomicI64::new(0) }
    }

    /// Learns from the TIME in a reply. The client sent the request at `sent`.
    ///
    /// The server read its clock later, so the estimate is ahead by up to the duration of the request. That is safe
    /// for R2: a `not_after` computed from it is never too early, so the server never refuses a timely request as
    /// late.
    pub fn learn(&self, sent: Instant, seconds: i64, micros: i64) {
        let sent = self.local(sent);
        // Another server with another clock may have taken over. If a later request has already set the offset, this
        // answer proves nothing about the present.
        if self.sent.fetch_max(sent, Ordering::Relaxed) > sent {
            return;
        }
        // Follow the latest request, so that the client notices when the server's clock jumps. Relaxed: no other data
        // depends on these numbers, and the next answer corrects two that do not match.
        self.offset.store(seconds * 1_000_000 + micros - sent, Ordering::Relaxed);
    }

    /// The server's time in milliseconds at a local instant.
    pub fn at(&self, instant: Instant) -> i64 {
        self.micros_at(instant) / 1000
    }

    /// 0: the client has not learnt the server's time yet.
    pub fn micros_at(&self, instant: Instant) -> i64 {
        match self.offset.load(Ordering::Relaxed) {
            // Not the local time: a quorum would propose it as a token, and servers without a token would give it
            // (P2).
            0 => 0,
            offset => self.local(instant) + offset,
        }
    }

    fn local(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.base);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Found by the simulator, seed 1795511960401.
    #[test]
    fn an_answer_that_is_read_late_replaces_no_later_one() {
        let (clock, begun) = (ServerClock::new(), now());
        let at = |secs| begun + Duration::from_secs(secs);
        clock.learn(at(1), 1_000, 0);
        assert_eq!(clock.at(at(11)), 1_010_000);
        clock.learn(at(5), 2_005, 0);
        // The future of a call to the first one is polled again.
        clock.learn(at(3), 1_002, 0);
        assert_eq!(clock.at(at(11)), 2_011_000);
        // The client follows a clock that jumps back.
        clock.learn(at(6), 1_006, 0);
        assert_eq!(clock.at(at(11)), 1_011_000);
    }
}
