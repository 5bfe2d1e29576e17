//! The rules that a run can drop. A base run has all of them; a run without one must break a property.

/// A part of a rule of docs/design.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Q1: a client that queues at a node holds no node above it.
    Q1WaitsPointUpwards,
    /// Q1, Q2: a client queues at one node at a time, and only tries the others.
    Q1QueuesAtOne,
    /// Q3: the client raises the nodes.
    Q3Raise,
    /// Q3: before it has a guard, not when that ends.
    Q3RaiseBeforeGuard,
    /// Q3: each node acknowledges the raise for itself.
    Q3EachAcknowledges,
    /// Q3: a node that the caller does not hold under its token refuses the raise.
    Q3WhileHeld,
    /// Q3: a node gives a proposed token only if it is above its last one.
    Q3ProposedAbove,
    /// Q4: the fencing token is the greatest of all nodes.
    Q4GreatestToken,
    /// Q4: more than half of the nodes must count.
    Q4Majority,
    /// Q5: a deadline counts from before the request.
    Q5DeadlineFromRequest,
    /// Q5: a guard is valid until the m-th largest deadline.
    Q5MthDeadline,
    /// Q6: a client that fails leaves its nodes.
    Q6Leave,
    /// Q6: it also leaves the nodes that did not answer.
    Q6LeaveUnanswered,
    /// Q8: a node that may have lost its data freezes.
    Q8Freeze,
    /// Q8: for the longest lease.
    Q8LongestLease,
    /// Q8: for the greatest difference of two clocks.
    Q8Clocks,
    /// Q8: a node gives a proposed token only if it is at most a lease ahead of its clock.
    Q8ProposedNear,
    /// Q9: tokens come from the clock, so they grow over a restart.
    Q9ClockInTokens,
    /// Q10: a hold does not take in nodes that come back.
    Q10NoNewcomers,
    /// Q10: a guard that is no longer valid stays lost.
    LossIsFinal,
}

/// All rules except some.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    dropped: &'static [Rule],
}

impl Rules {
    pub const ALL: Self = Self::without(&[]);

    pub const fn without(dropped: &'static [Rule]) -> Self {
        Self { dropped }
    }

    pub fn has(self, rule: Rule) -> bool {
        !self.dropped.contains(&rule)
    }
}
