//! How long to wait before a request is sent again.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::error::{RefusalKind, RequestError};

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
/// While a slot moves: it may rest for a moment only between two moves.
const LONGEST_FOR_A_SLOT: Duration = Duration::from_millis(200);

/// Pauses that double from 20 ms to 2 s. Each has jitter, so that a thousand clients do not come back in step.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Hash for Backoff {
    /// Without the jitter, which would make every state a new one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.next.hash(state);
    }
}

impl Backoff {
    /// The same seed gives the same pauses, so that a run can be repeated.
    pub fn new(seed: u64) -> Self {
        Self { next: SHORTEST, random: seed }
    }

    /// The length of the next pause: half to one and a half of the nominal one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + self.jitter());
        self.next = (2 * self.next).min(LONGEST);
        pause.min(LONGEST)
    }

    /// The pause before a request that was not served is sent again.
    pub fn pause_after(&mut self, error: &RequestError) -> Duration {
        match error {
            RequestError::Refused(refusal) if refusal.kind == RefusalKind::SlotForNow => {
                let pause = self.pause().min(LONGEST_FOR_A_SLOT);
                self.next = self.next.min(LONGEST_FOR_A_SLOT);
                pause
            }
            // It waits at the closed gate, and must not sit out a pause while that opens for the others.
            RequestError::Refused(refusal) if refusal.kind == RefusalKind::ServerForNow => SHORTEST,
            _ => self.pause(),
        }
    }

    /// Between 0 and 1: SplitMix64, by Steele, Lea and Flood (2014).
    fn jitter(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}
