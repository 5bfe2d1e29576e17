//! The arithmetic of deadlines. Pure: every instant and duration is an argument.

use std::time::Duration;

use crate::time::Instant;

/// The allowance for clocks that run at different speeds, and for rounding to milliseconds: 1 % + 2 ms
/// (R5). The Redlock page of the Redis documentation uses the same.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Until when a holder may rely on a lease, given the instant *before* it asked for it (R5).
///
/// The server counts from when it ran the script, which is later. So the lease never ends there before
/// it ends here.
pub fn deadline(asked: Instant, lease: Duration) -> Instant {
    asked + sure(lease)
}

/// The same for an answer with the time left of the lease. That may be more than the holder wanted, because a grant
/// can last longer than a short lease. The holder still relies on no more than it wanted: the server may serve an
/// unanswered renewal with the shorter lease after this answer, and then the lease ends earlier there (P1).
pub fn deadline_by_answer(asked: Instant, left: Duration, wanted: Duration) -> Instant {
    deadline(asked, left.min(wanted))
}

/// The lease that a holder may rely on for this long, but for the rounding. Never 0, which would end it.
pub fn lasting(time: Duration) -> Duration {
    let lease = time + Duration::from_millis(2);
    (lease + lease / 99).max(Duration::from_millis(1))
}

/// The local time within which `time` has surely not passed on the server.
pub fn sure(time: Duration) -> Duration {
    time.saturating_sub(drift(time))
}

/// When to renew a hold that began with a pushed grant. Most sections are shorter than this and need not renew at all.
/// `Floor::trust` has made sure that the grant lasts long enough.
pub fn first_renewal(now: Instant, deadline: Instant) -> Instant {
    now + FIRST_RENEWAL.min(deadline.since(now) / 8)
}

const FIRST_RENEWAL: Duration = Duration::from_millis(50);

/// When to renew a hold whose last renewal went out at `asked`.
pub fn next_renewal(asked: Instant, lease: Duration) -> Instant {
    asked + lease / 3
}

/// The pause after a renewal without an answer. Many retries fit into the remaining lease.
pub fn retry_pause(lease: Duration) -> Duration {
    (lease / 30).clamp(Duration::from_millis(1), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_counts_from_the_request_less_drift() {
        let asked = Instant::default();
        assert_eq!(deadline(asked, 10 * SECOND), asked + Duration::from_millis(9_898));
        assert_eq!(deadline(asked, Duration::from_millis(1)), asked, "drift never turns it negative");
    }

    #[test]
    fn what_is_left_of_a_lease_asks_for_no_more_than_it() {
        for lease in [Duration::from_millis(60), SECOND, 30 * SECOND, 86_400 * SECOND] {
            for passed in [Duration::ZERO, lease / 7, lease / 2] {
                let rest = sure(lease) - passed;
                assert!(sure(lasting(rest)) + Duration::from_micros(1) >= rest && lasting(rest) <= lease - passed);
            }
        }
        assert!(lasting(Duration::ZERO) >= Duration::from_millis(1));
    }

    /// Found by the simulator, seed 1882454637936791.
    #[test]
    fn a_holder_relies_on_no_more_than_it_wanted() {
        let asked = Instant::default();
        assert_eq!(deadline_by_answer(asked, 3 * SECOND, SECOND), deadline(asked, SECOND));
        assert_eq!(deadline_by_answer(asked, SECOND, 3 * SECOND), deadline(asked, SECOND));
    }

    /// Most sections are shorter and never renew.
    #[test]
    fn the_first_renewal_comes_after_50_ms_or_an_eighth_of_what_is_left() {
        let now = Instant::from_micros(60_000_000);
        assert_eq!(first_renewal(now, now + 3 * SECOND), now + FIRST_RENEWAL);
        assert_eq!(first_renewal(now, now + SECOND / 10), now + SECOND / 80);
    }

    #[test]
    fn renewal_leaves_time_for_retries() {
        let asked = Instant::default();
        for lease in [Duration::from_millis(60), SECOND, 30 * SECOND] {
            assert!(next_renewal(asked, lease) + 10 * retry_pause(lease) <= asked + lease);
        }
    }
}
