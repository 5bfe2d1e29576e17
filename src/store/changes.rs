//! Notifies when a connection of a client is made, lost or closed.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Shared by all connections of one client.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicU64,
    /// Not a `watch` channel, for the reason that `Link` has.
    changed: Notify,
}

impl Changes {
    pub fn tell(&self) {
        // Before the waiters are woken, which read the number.
        self.count.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// How many there have been.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Resolves when there have been more than `seen`.
    pub async fn beyond(&self, seen: u64) {
        loop {
            // Register before looking: a change between the look and the await is not missed.
            let changed = self.changed.notified();
            if self.count() > seen {
                return;
            }
            changed.await;
        }
    }
}
