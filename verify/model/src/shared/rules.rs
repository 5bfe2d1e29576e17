//! The rules of shared holds as switches. A base run has all of them on; a run that drops one must break a property.

macro_rules! rules {
    ($($(#[$about:meta])* $rule:ident,)*) => {
        /// One switch for each part of a rule. `true`: as in docs/design.md.
        #[derive(Debug, Clone)]
        pub struct Rules { $($(#[$about])* pub $rule: bool,)* }

        impl Default for Rules {
            fn default() -> Self {
                Self { $($rule: true,)* }
            }
        }
    };
}

rules! {
    /// A waiter is served only where it fits under its limit.
    fits_under_limit,
    /// `set_permits` counts for all clients, whatever limit they name.
    permits_win,
    /// Serving stops at the first waiter that does not fit.
    stops_at_first_misfit,
    /// A newcomer enters only if nobody waits.
    newcomers_queue,
    /// At most so many holders.
    holders_are_bounded,
    /// A full house is a reason to take out the ended.
    full_house_takes_out,
    /// Ended holders are taken out when somebody does not fit.
    ended_are_taken_out,
    /// Only those whose lease is over.
    only_the_ended,
    /// What is taken out is taken off `!used`.
    taking_out_counts,
    /// `!soon` gets smaller with a shorter lease: of a new holder, or of a first renewal.
    soon_with_new_holder,
    soon_with_renewal,
    /// Where the bound of a call left ended holders, `!soon` says so.
    soon_after_bound,
    /// The hash lives as long as the longest lease.
    longest_lease_kept,
    /// An unreachable waiter is passed over before it is asked whether it fits.
    unreachable_first,
    /// Each grant of a call has a token of its own.
    token_for_each_grant,
    /// What ends is taken out before others are served: the next ticket may be of the same owner.
    ends_before_serving,
    /// Passing on: by a leave of a mere place, by a shrink, by `set_permits`, by each poll, by a revocation.
    leave_of_place_passes_on,
    shrink_passes_on,
    permits_pass_on,
    poll_passes_on,
    revoke_passes_on,
    release_passes_on,
    /// A revocation ends one holder only.
    revokes_one,
    /// R1, set: a shrink sets the weight, it does not subtract.
    shrink_sets,
    /// The client counts less before the request is sent.
    shrinks_locally_first,
    r1_retry_is_served_once,
    r1_count_is_set,
    r2_not_after,
    r3_tombstone,
    r3_purge,
    /// R4, and decision 3 (an older hold ends with a new first one): for each owner.
    r4_renew_compares_token,
    r4_ends_compare_seq,
    r4_last_served_per_owner,
    d3_only_its_own,
    /// A place of an earlier attempt than its owner holds by is not served.
    stale_places_go,
    /// A grant to an owner that holds by an earlier attempt takes that one's place, and its units.
    grant_ends_older,
    r4_renew_only_extends,
    r5_deadline_from_request,
    r5_no_more_than_wanted,
    r7_floor,
    /// R7: the floor is that of the free lock, the last token given; not that of a holder.
    r7_floor_of_free_lock,
    r7_trust_from_poll,
    r7_push_says_real_time,
    r7_push_names_ticket,
    r7_confirm,
    /// R8: a poll names the asked tickets that have been granted.
    poll_names_granted,
    /// R8: the next tickets are asked for at once where all of these were granted.
    polls_next_block,
    r9_leave,
    r9_leave_passes_on,
    r10_clock_in_tokens,
    r11_leave_after_loss,
    r11_seq_at_the_loss,
    /// R16: a late detach takes nothing that its owner has attached since.
    r16_give_compares_seq,
    /// The guard is not valid while its detach is under way.
    r16_guard_ends_first,
    /// A copy of a detach does not bring back what was released.
    r16_released_for_good,
    /// An attach is refused when its owner has left.
    r16_attach_heeds_leave,
    /// After a detach the owner leaves, for copies of its acquire.
    r16_detach_leaves,
    /// What is given keeps its weight, whatever its new owner would ask for.
    r16_keeps_weight,
    /// Its new lease may be the first one to end.
    r16_lowers_soon,
    /// A refused detach says that its owner still has the hold: what a handle had may be over.
    r16_over_is_lost,
    /// An owner that is still counted gets nothing.
    r16_one_record,
    r14_freeze,
    r14_longest_lease,
    r14_acquire_heeds,
    r14_pass_on_heeds,
}
