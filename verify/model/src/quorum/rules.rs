//! The rules of the quorum as switches. A base run has all of them on; a run that drops one must break a property.

/// One switch for each part of a rule. `true`: as in docs/design.md.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Q1: who queues at a node holds nothing above it.
    pub q1_waits_point_upwards: bool,
    /// Q1, Q2: a client queues at one node at a time and only tries the others.
    pub q1_queues_at_one: bool,
    /// Q3: the nodes are raised.
    pub q3_raise: bool,
    /// Q3: before there is a guard, not when it ends.
    pub q3_raise_before_guard: bool,
    /// Q3: each node acknowledges the raise for itself.
    pub q3_each_acknowledges: bool,
    /// Q3: a node that the caller does not hold under its token refuses the raise.
    pub q3_while_held: bool,
    /// Q3: a node gives a proposed token only if it is above its last one.
    pub q3_proposed_above: bool,
    /// Q4: the fencing token is the greatest of all nodes got.
    pub q4_greatest_token: bool,
    /// Q4: more than half of the nodes have to count.
    pub q4_majority: bool,
    /// Q5: a deadline counts from before the request was sent.
    pub q5_deadline_from_request: bool,
    /// Q5: a guard is valid until the m-th largest deadline.
    pub q5_mth_deadline: bool,
    /// Q6: what was got is left after a failure.
    pub q6_leave: bool,
    /// Q6: nodes that did not answer are left too.
    pub q6_leave_unanswered: bool,
    /// Q8: a node that may have lost its data freezes.
    pub q8_freeze: bool,
    /// Q8: for the longest lease.
    pub q8_longest_lease: bool,
    /// Q8: for the greatest difference of two clocks.
    pub q8_clocks: bool,
    /// Q8: a node gives a proposed token only if it is ahead of its clock by a lease at most.
    pub q8_proposed_near: bool,
    /// Q9: tokens come from the clock, so that they grow over a restart.
    pub q9_clock_in_tokens: bool,
    /// Q10: nodes that come back are not taken into a hold.
    pub q10_no_newcomers: bool,
    /// A guard whose validity has passed is lost for good.
    pub loss_is_final: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            q1_waits_point_upwards: true,
            q1_queues_at_one: true,
            q3_raise: true,
            q3_raise_before_guard: true,
            q3_each_acknowledges: true,
            q3_while_held: true,
            q3_proposed_above: true,
            q4_greatest_token: true,
            q4_majority: true,
            q5_deadline_from_request: true,
            q5_mth_deadline: true,
            q6_leave: true,
            q6_leave_unanswered: true,
            q8_freeze: true,
            q8_longest_lease: true,
            q8_clocks: true,
            q8_proposed_near: true,
            q9_clock_in_tokens: true,
            q10_no_newcomers: true,
            loss_is_final: true,
        }
    }
}
