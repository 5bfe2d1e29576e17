//! How long to wait before trying again.

use std::time::Duration;

use tokio::time::sleep;

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
/// A connection that died before this age does not prove that the server works.
const YOUNG: Duration = Duration::from_secs(1);
/// The pause after a young connection died. At least the client could reach the server.
const AFTER_A_YOUNG_ONE: Duration = Duration::from_millis(25);

/// Pauses that double from 20 ms to 2 s. Jitter keeps a thousand clients from coming back in step.
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    /// For connections: the first try is immediate.
    pub fn reconnect() -> Self {
        // Random, since the simulator does not use this: there, `Faults` decides when to reconnect.
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self { next: Duration::ZERO, random: seed }
    }

    /// For requests: the first pause is about 20 ms. The same seed gives the same pauses, so that the simulator can
    /// repeat a run.
    pub fn retry(seed: u64) -> Self {
        Self { next: SHORTEST, random: seed }
    }

    /// A connection has ended after this time. If a server accepts and closes at once, the client must not flood it
    /// with new connections.
    pub fn connection_lived_for(&mut self, life: Duration) {
        self.next = if life > YOUNG { Duration::ZERO } else { self.next.min(AFTER_A_YOUNG_ONE) };
    }

    /// The length of the next pause: half to one and a half times the nominal one.
    pub fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + self.jitter());
        // Zero doubled stays zero: the clamp makes the second pause longer than the first.
        self.next = (2 * self.next).clamp(SHORTEST, LONGEST);
        pause.min(LONGEST)
    }

    pub async fn pause(&mut self) {
        sleep(self.next()).await;
    }

    /// From 0 to 1: splitmix64, by Sebastiano Vigna.
    fn jitter(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The upper 53 bits: as many as an f64 holds exactly.
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds_and_are_the_same_for_the_same_seed() {
        let pauses = |seed| {
            let mut backoff = Backoff::retry(seed);
            (0..12).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        let some = pauses(7);
        assert!(some[0] >= SHORTEST / 2 && some[0] <= 2 * SHORTEST, "{some:?}");
        assert!(some[8..].iter().all(|pause| *pause >= LONGEST / 2 && *pause <= LONGEST), "{some:?}");
        assert_eq!(some, pauses(7));
        assert_ne!(some, pauses(8));
    }
}
