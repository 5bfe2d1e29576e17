//! Whether the machine stood still: a thread that sleeps, and notices when it slept too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(50);

/// A library with time-outs of seconds is not to blame for a machine that stops for seconds.
pub struct Stalls {
    longest_ms: Arc<AtomicU64>,
}

impl Stalls {
    pub fn watch() -> Self {
        let longest_ms = Arc::new(AtomicU64::new(0));
        let seen = Arc::downgrade(&longest_ms);
        std::thread::spawn(move || {
            while let Some(longest_ms) = seen.upgrade() {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                let over = begun.elapsed().saturating_sub(NAP).as_millis();
                longest_ms.fetch_max(u64::try_from(over).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest_ms }
    }

    /// Since it was asked before.
    pub fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.swap(0, Ordering::Relaxed))
    }
}
