//! The arithmetic of deadlines, pure: every instant and duration comes in as an argument.

use std::time::{Duration, Instant};

/// What a clock may run wrong, and what a millisecond of rounding costs: 1 % + 2 ms (R5).
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Until when a holder may rely on a lease, given the instant *before* it asked for it (R5).
///
/// The server counts from when it ran the script, which is later: its end is never before ours.
pub(crate) fn deadline(asked: Instant, lease: Duration) -> Instant {
    asked + lease.saturating_sub(drift(lease))
}

/// The same for an answer that says how long the lease lasts, which may be longer than what was
/// wanted: a grant outlives a short lease. The holder relies on no more than it wanted, since a
/// renewal that sets the wanted lease may be under way and be served after the one that was answered.
pub(crate) fn told(asked: Instant, left: Duration, wanted: Duration) -> Instant {
    deadline(asked, left.min(wanted))
}

/// A grant as it is pushed: the lock under this token, for so long from when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) lease: Duration,
}

/// What a waiter knows from the last time the server told it that it is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queued {
    /// The instant before that question was sent.
    pub(crate) asked: Instant,
    /// The highest token the server had given by then.
    pub(crate) floor: u64,
}

impl Queued {
    /// R7: until when a pushed grant may be relied on without asking.
    ///
    /// A token above the floor proves that the grant came after the question, so the server keeps
    /// it until `asked + lease` at least. `None`: it proves nothing, or that instant is past, or so
    /// near that the hold would be lost before its first renewal is answered.
    pub(crate) fn trust(&self, grant: Grant, now: Instant) -> Option<Instant> {
        let until = deadline(self.asked, grant.lease);
        (grant.token > self.floor && now + grant.lease / 4 < until).then_some(until)
    }
}

/// When a hold that began by a pushed grant is to be renewed first: most sections are over by then,
/// and cost no renewal. The time of the grant that is left allows for it.
pub(crate) fn first_renewal(now: Instant, deadline: Instant) -> Instant {
    now + FIRST_RENEWAL.min(deadline.saturating_duration_since(now) / 8)
}

const FIRST_RENEWAL: Duration = Duration::from_millis(50);

/// When a hold that was renewed at `asked` is to be renewed next.
pub(crate) fn next_renewal(asked: Instant, lease: Duration) -> Instant {
    asked + lease / 3
}

/// How long to wait before asking again after a renewal without an answer.
pub(crate) fn retry_pause(lease: Duration) -> Duration {
    (lease / 30).clamp(Duration::from_millis(1), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_counts_from_the_question_and_less_drift() {
        let asked = Instant::now();
        assert_eq!(deadline(asked, 10 * SECOND), asked + Duration::from_millis(9_898));
        assert_eq!(deadline(asked, Duration::from_millis(1)), asked, "drift never turns it negative");
    }

    /// Found by the simulator, seed 1882454637936791.
    #[test]
    fn nobody_relies_on_more_than_was_wanted() {
        let asked = Instant::now();
        assert_eq!(told(asked, 3 * SECOND, SECOND), deadline(asked, SECOND));
        assert_eq!(told(asked, SECOND, 3 * SECOND), deadline(asked, SECOND));
    }

    #[test]
    fn a_push_is_trusted_only_above_the_floor_and_within_the_grant() {
        let asked = Instant::now();
        let queued = Queued { asked, floor: 7 };
        let grant = |token| Grant { token, lease: 3 * SECOND };
        let until = deadline(asked, 3 * SECOND);
        assert_eq!(queued.trust(grant(8), asked + SECOND), Some(until));
        assert_eq!(queued.trust(grant(7), asked + SECOND), None, "it may be older than the question");
        assert_eq!(queued.trust(grant(8), until), None, "it may be over");
        // Found by the simulator, seed 1882454557196303: a hold that was lost 2 ms after it began.
        assert_eq!(queued.trust(grant(8), until - SECOND / 2), None, "no time is left to renew it");
    }

    #[test]
    fn renewal_leaves_time_for_retries() {
        let asked = Instant::now();
        for lease in [Duration::from_millis(60), SECOND, 30 * SECOND] {
            assert!(next_renewal(asked, lease) + 10 * retry_pause(lease) <= asked + lease);
        }
    }
}
