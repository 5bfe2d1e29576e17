//! How long to wait before sending a request again.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::error::{RefusalKind, RequestError};

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
/// While a slot moves: between two moves it may stay in one place only for a moment.
const LONGEST_FOR_A_SLOT: Duration = Duration::from_millis(200);

/// Pauses that double from 20 ms to 2 s, with jitter so that a thousand clients do not come back in step.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Hash for Backoff {
    /// Skips the jitter, which would make every state a new one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.next.hash(state);
    }
}

impl Backoff {
    /// The same seed gives the same pauses, so that a run can be repeated.
    pub fn new(seed: u64) -> Self {
        Self { next: SHORTEST, random: seed }
    }

    /// The length of the next pause: 0.5 to 1.5 times the nominal one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + self.jitter());
        self.next = (2 * self.next).min(LONGEST);
        pause.min(LONGEST)
    }

    /// The pause before the client repeats a request that the server did not serve.
    pub fn pause_after(&mut self, error: &RequestError) -> Duration {
        match error {
            RequestError::Refused(refusal) if refusal.kind == RefusalKind::SlotForNow => {
                let pause = self.pause().min(LONGEST_FOR_A_SLOT);
                self.next = self.next.min(LONGEST_FOR_A_SLOT);
                pause
            }
            // The request waits at the closed gate. It must not still pause when the gate opens for the others.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Fault, Refusal};

    fn pauses(error: &RequestError) -> Vec<Duration> {
        let mut backoff = Backoff::new(7);
        (0..20).map(|_| backoff.pause_after(error)).collect()
    }

    fn refused(kind: RefusalKind) -> RequestError {
        RequestError::Refused(Refusal { kind, cause: Fault::NoAnswerYet.into() })
    }

    #[test]
    fn pauses_grow_as_long_as_their_reason_allows() {
        assert!(pauses(&refused(RefusalKind::ServerForNow)).iter().all(|pause| *pause == SHORTEST));
        for (error, longest) in [
            (refused(RefusalKind::SlotForNow), LONGEST_FOR_A_SLOT),
            (refused(RefusalKind::HalfWay), LONGEST),
            (RequestError::Unanswered(Fault::NoAnswerYet.into()), LONGEST),
        ] {
            let pauses = pauses(&error);
            assert!(pauses[0] <= 2 * SHORTEST && pauses.iter().all(|pause| *pause <= longest), "{pauses:?}");
            assert!(pauses[10..].iter().all(|pause| *pause >= longest / 2), "{pauses:?}");
        }
    }

    #[test]
    fn pauses_after_a_slot_has_moved_begin_short() {
        let mut backoff = Backoff::new(7);
        for _ in 0..20 {
            backoff.pause_after(&refused(RefusalKind::SlotForNow));
        }
        assert!(backoff.pause() <= LONGEST_FOR_A_SLOT * 3 / 2);
    }

    /// A thousand clients that lost one server come back over the whole range, and none twice after the same pause.
    #[test]
    fn pauses_are_spread_evenly_from_half_to_one_and_a_half() {
        let (mut counts, tenth) = ([0; 10], SHORTEST / 10);
        for seed in 0..1000 {
            let mut backoff = Backoff::new(seed);
            for _ in 0..2 {
                backoff.next = SHORTEST;
                let above = backoff.pause().checked_sub(SHORTEST / 2).expect("at least half");
                counts[(above.as_nanos() / tenth.as_nanos()) as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (150..250).contains(count)), "{counts:?}");
    }
}
