//! The rules of the protocol as switches. A base run has all of them on; a run that drops one must
//! break a property.

/// One switch for each part of a rule. `true`: as in docs/design.md.
#[derive(Debug, Clone)]
pub struct Rules {
    /// R1: a retry of the seq served last gets the same answer and does not count again.
    pub r1_retry_is_served_once: bool,
    /// R1: a nested acquire sets the count to the expected one plus one; it never adds.
    pub r1_count_is_set: bool,
    /// R2: an acquire that arrives after its `not_after` is refused.
    pub r2_not_after: bool,
    /// R3: leave and release write a tombstone when a copy of the acquire may be in flight.
    pub r3_tombstone: bool,
    /// R3: leave and release take the ticket of their attempt out of the queue.
    pub r3_purge: bool,
    /// R4: renew and confirm compare the token as well as the owner.
    pub r4_renew_compares_token: bool,
    /// R4: leave and release end nothing with a later seq than their own.
    pub r4_ends_compare_seq: bool,
    /// R16: a late copy of a detach takes nothing that its owner has attached since.
    pub r16_give_compares_seq: bool,
    /// R16: the guard ends before the request is sent that makes the handle the owner.
    pub r16_guard_ends_first: bool,
    /// R16: what is released by its handle does not come back by a late copy of the detach.
    pub r16_released_for_good: bool,
    /// R16: an attach is served at most as late as an acquire, and not after its owner has left.
    pub r16_attach_heeds_leave: bool,
    /// R16: an owner whose hold was detached leaves, if a copy of its acquire may come.
    pub r16_detach_leaves: bool,
    /// R16: a refused detach says that its owner still has the hold: what a handle had may be over.
    pub r16_over_is_lost: bool,
    /// R16: no request before an extend shortens the lease any more.
    pub r16_extend_is_last: bool,
    /// R16: an extend never shortens.
    pub r16_extend_lengthens: bool,
    /// R16: a late copy of an extend does not become the last request again.
    pub r16_extend_compares_seq: bool,
    /// R4: a renewal never creates a hold.
    pub r4_renew_only_extends: bool,
    /// R5: a deadline counts from before the request was sent, not from the reply.
    pub r5_deadline_from_request: bool,
    /// R5: a holder relies on no more than the lease it wanted, even when its grant lasts longer. A
    /// confirm or first renewal that shortens the lease may be served after the answer (S2).
    pub r5_no_more_than_wanted: bool,
    /// R6: the script that frees the lock passes it on, and an acquire never takes a free lock past
    /// the queue.
    pub r6_hand_over: bool,
    /// R7: a push is ignored unless its token is above the one named by the last answer "queued":
    /// otherwise it is older than that answer.
    pub r7_floor: bool,
    /// R7: trust ends one grant time after the last poll was sent, not after the push arrived.
    pub r7_trust_from_poll: bool,
    /// R7: any answered poll of the name renews the trust of all its waiters.
    pub r7_trust_from_any_poll: bool,
    /// R7: with the send time of a poll goes the floor of its answer, not an older one.
    pub r7_floor_of_that_poll: bool,
    /// R7: the push names the real duration of the grant, after the cap by the ticket's deadline.
    pub r7_push_says_real_time: bool,
    /// R7: a push serves only the attempt whose ticket it names, not a later one of its owner.
    pub r7_push_names_ticket: bool,
    /// R7: a push that cannot be trusted is confirmed by a round trip.
    pub r7_confirm: bool,
    /// R8: waiters poll.
    pub r8_poll: bool,
    /// R8: every second poll asks for each ticket, without a reason to doubt.
    pub rotation: bool,
    /// R8: in doubt the next poll asks for all tickets.
    pub doubt: bool,
    /// R8: doubt ends when a verification that was sent after it arose is answered, not when it is sent.
    pub doubt_until_answered: bool,
    // Reasons to doubt.
    pub doubt_reconnect: bool,
    pub doubt_unknown: bool,
    pub doubt_places: bool,
    pub doubt_gap: bool,
    pub doubt_push: bool,
    pub doubt_revoked: bool,
    pub doubt_unanswered: bool,
    pub doubt_enqueue: bool,
    pub doubt_unanswered_enqueue: bool,
    /// Doubt ends by a verification of all that wait when it is answered, and lasts while an acquire has no
    /// answer.
    pub doubt_covers_asking: bool,
    /// A free lock after a poll that did not stop means that no waiter of this client has a place.
    pub free_lock_tells: bool,
    /// A client leaves a hold of its own of which none of its attempts knows.
    pub leave_unknown_holds: bool,
    /// "Known" says that the client was alive, not only that it was in the sorted set.
    pub known_means_alive: bool,
    /// A grant lasts for the waiter's grant TTL, not for that of the client which frees the lock.
    pub grant_ttl_of_waiter: bool,
    /// Dead places leave the list together with their tickets.
    pub trim_takes_tickets: bool,
    /// A ticket that leaves takes its place out of the list.
    pub purge_takes_place: bool,
    /// `!skip` goes when a client is heard that was dead or unreachable.
    pub skip_reset_when_heard: bool,
    /// `!skip` gets smaller when a ticket leaves.
    pub purge_lowers_skip: bool,
    /// `!skip` gets smaller by the dead places taken off the head of the list.
    pub trim_lowers_skip: bool,
    /// `!skip` counts only until the clock goes back.
    pub skip_has_time: bool,
    /// An enqueue that finds no list clears the tickets that are left of it.
    pub enqueue_clears_leftovers: bool,
    /// An acquire that is repeated hears its client before it passes on.
    pub acquire_hears_first: bool,
    /// An acquire that takes a free lock takes its own ticket out of the queue.
    pub direct_take_purges: bool,
    /// A silence of all clients is forgiven.
    pub silence_is_forgiven: bool,
    /// To each of them once, until it is heard again.
    pub clients_are_forgiven_once: bool,
    /// A client that cannot be reached gets no message.
    pub reached_before_told: bool,
    /// R9: an attempt that is given up leaves.
    pub r9_leave: bool,
    /// R9: a leave that finds its attempt granted frees the lock and passes it on.
    pub r9_leave_passes_on: bool,
    /// R10: the clock keeps tokens growing when the stored one is lost.
    pub r10_clock_in_tokens: bool,
    /// R11: a lost hold leaves too.
    pub r11_leave_after_loss: bool,
    /// R11: the leave of a lost hold takes its seq before the owner can start again. Taken later, it
    /// would end the owner's next hold (A1).
    pub r11_seq_at_the_loss: bool,
    /// R14: a server that may have forgotten a grant freezes.
    pub r14_freeze: bool,
    /// R14: for the longest lease.
    pub r14_longest_lease: bool,
    /// R14: which may be that of an extend.
    pub r14_covers_extends: bool,
    /// R14: while it is frozen an acquire takes nothing, and nothing is passed on.
    pub r14_acquire_heeds: bool,
    pub r14_pass_on_heeds: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            r1_retry_is_served_once: true,
            r1_count_is_set: true,
            r2_not_after: true,
            r3_tombstone: true,
            r3_purge: true,
            r4_renew_compares_token: true,
            r4_ends_compare_seq: true,
            r16_give_compares_seq: true,
            r16_guard_ends_first: true,
            r16_released_for_good: true,
            r16_attach_heeds_leave: true,
            r16_detach_leaves: true,
            r16_over_is_lost: true,
            r16_extend_is_last: true,
            r16_extend_lengthens: true,
            r16_extend_compares_seq: true,
            r4_renew_only_extends: true,
            r5_deadline_from_request: true,
            r5_no_more_than_wanted: true,
            r6_hand_over: true,
            r7_floor: true,
            r7_trust_from_poll: true,
            r7_push_says_real_time: true,
            r7_push_names_ticket: true,
            r7_confirm: true,
            r8_poll: true,
            r7_trust_from_any_poll: true,
            r7_floor_of_that_poll: true,
            rotation: true,
            doubt: true,
            doubt_until_answered: true,
            doubt_reconnect: true,
            doubt_unknown: true,
            doubt_places: true,
            doubt_gap: true,
            doubt_push: true,
            doubt_revoked: true,
            doubt_unanswered: true,
            doubt_enqueue: true,
            doubt_unanswered_enqueue: true,
            doubt_covers_asking: true,
            free_lock_tells: true,
            leave_unknown_holds: true,
            known_means_alive: true,
            grant_ttl_of_waiter: true,
            trim_takes_tickets: true,
            purge_takes_place: true,
            skip_reset_when_heard: true,
            purge_lowers_skip: true,
            trim_lowers_skip: true,
            skip_has_time: true,
            enqueue_clears_leftovers: true,
            acquire_hears_first: true,
            direct_take_purges: true,
            silence_is_forgiven: true,
            clients_are_forgiven_once: true,
            reached_before_told: true,
            r9_leave: true,
            r9_leave_passes_on: true,
            r10_clock_in_tokens: true,
            r11_leave_after_loss: true,
            r11_seq_at_the_loss: true,
            r14_freeze: true,
            r14_longest_lease: true,
            r14_covers_extends: true,
            r14_acquire_heeds: true,
            r14_pass_on_heeds: true,
        }
    }
}
