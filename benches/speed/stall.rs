//! Detects stalls of the machine, with a thread that sleeps and measures how long it slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(50);

/// If the machine stops for seconds, timeouts of seconds fail through no fault of the library.
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
                std::thread::sleep(SLEEP);
                let over = begun.elapsed().saturating_sub(SLEEP).as_millis();
                longest_ms.fetch_max(u64::try_from(over).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest_ms }
    }

    /// The longest stall since the last call.
    pub fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.swap(0, Ordering::Relaxed))
    }
}
