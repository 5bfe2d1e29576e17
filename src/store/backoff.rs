//! How long to wait before connecting again.

use std::time::Duration;

use tokio::time::sleep;

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
/// A connection that died before this age is no proof of a server that works.
const YOUNG: Duration = Duration::from_secs(1);
/// The pause after a young connection died: it proves that the server can be reached at least.
const AFTER_A_YOUNG_ONE: Duration = Duration::from_millis(25);

/// No pause at first, then 20 ms, doubling up to 2 s. Each has jitter, so that a thousand clients do
/// not come back in step.
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Self {
        Self { next: Duration::ZERO }
    }

    /// A connection has ended after that time. A server that accepts and then closes at once must not
    /// be flooded with new connections.
    pub fn connection_lived_for(&mut self, life: Duration) {
        self.next = if life > YOUNG { Duration::ZERO } else { self.next.min(AFTER_A_YOUNG_ONE) };
    }

    pub async fn pause(&mut self) {
        sleep(self.next.mul_f64(0.5 + jitter())).await;
        self.next = (2 * self.next).clamp(SHORTEST, LONGEST);
    }
}

/// From 0 to 1. A fresh uuid is random enough to spread reconnects, and needs no further crate.
fn jitter() -> f64 {
    let [high, low, ..] = uuid::Uuid::new_v4().into_bytes();
    f64::from(u16::from_ne_bytes([high, low])) / f64::from(u16::MAX)
}
