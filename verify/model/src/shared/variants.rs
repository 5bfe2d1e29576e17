//! The runs of shared holds: base runs, in which all properties hold, and one for each dropped rule.

use super::bounds::{Bounds, Fault};
use super::events::Event;
use super::protocol::Shared;
use crate::run;

pub type Variant = run::Variant<Shared>;

/// A semaphore of two units and two clients with one attempt each.
const SMALL: Bounds = Bounds {
    clients: 2,
    owners: 2,
    weights: [1, 2, 1, 1],
    limits: [2; 4],
    attempts: 1,
    reentries: 0,
    shrinks: 0,
    detaches: 0,
    attaches: 0,
    retries: 1,
    in_flight: 2,
    end: 2,
    lease: 2,
    last_lease: 2,
    handle_lease: None,
    grant_ttl: 2,
    waiter_ttl: 2,
    operation_timeout: 1,
    serves: 8,
    takes_out: 8,
    max_holders: 8,
    asks: 2,
    trust: true,
    lossy: false,
    begun: 0,
    tries: false,
    gives_up: true,
    renews: true,
    deafens: 0,
    permits: &[],
    faults: &[],
    strict: false,
    settles: true,
};

/// A semaphore of two units: one asks for both, and others for one each.
const THREE: Bounds =
    Bounds { clients: 3, owners: 3, weights: [1, 2, 1, 1], retries: 0, gives_up: false, renews: false, ..SMALL };

/// All is held, and the others are queued.
const BEGUN: Bounds = Bounds { clients: 4, owners: 4, begun: 4, weights: [2, 1, 1, 2], in_flight: 3, end: 1, ..THREE };

const TWO_ATTEMPTS: Bounds = Bounds { attempts: 2, retries: 0, ..SMALL };

/// An owner starts again while the leave of its earlier attempt is under way.
const AGAIN: Bounds = Bounds { attempts: 2, retries: 0, renews: false, end: 1, in_flight: 3, ..SMALL };

/// The same, where both fit.
const BESIDE: Bounds = Bounds { weights: [1; 4], ..AGAIN };

/// A reader, a writer that waits, and one level of nested reads.
const NESTED: Bounds = Bounds { reentries: 1, end: 1, ..SMALL };

/// A writer that downgrades, or a permit that shrinks.
const SHRINKS: Bounds = Bounds { shrinks: 1, weights: [2, 1, 1, 1], gives_up: false, ..SMALL };

/// What one holds is detached and attached again, by anybody.
const HANDLES: Bounds = Bounds {
    detaches: 1,
    attaches: 1,
    retries: 0,
    renews: false,
    gives_up: false,
    end: 1,
    lease: 1,
    last_lease: 1,
    ..SMALL
};

/// The same with one client, whose requests are repeated.
const REPEATED: Bounds =
    Bounds { clients: 1, owners: 1, gives_up: true, retries: 1, in_flight: 3, lease: 2, end: 2, ..HANDLES };

/// A handle has a shorter lease than its owner had.
const HANDLE_OVER: Bounds = Bounds { last_lease: 3, handle_lease: Some(1), ..REPEATED };

/// A permit shrinks before it is detached.
const HANDLE_SHRINKS: Bounds = Bounds { weights: [2, 1, 1, 1], shrinks: 1, lease: 2, last_lease: 2, ..HANDLES };

/// Two hold and one waits. The last one has a shorter lease, and gets in by attaching only.
const HANDLE_LEASES: Bounds = Bounds {
    clients: 4,
    owners: 4,
    weights: [1, 1, 1, 2],
    begun: 3,
    tries: true,
    in_flight: 1,
    lease: 3,
    end: 1,
    settles: false,
    ..HANDLES
};

/// The last one has a shorter lease, and attaches after that is over.
const HANDLE_AFTER: Bounds = Bounds { weights: [1; 4], lease: 3, end: 2, ..HANDLES };

/// Leases of different lengths, so that some are over while others go on.
const LEASES: Bounds = Bounds { weights: [1, 2, 1, 1], limits: [3; 4], lease: 3, last_lease: 1, renews: true, ..THREE };

/// Beside one that goes on, the last owner is granted, and renews to less.
const SHORTENS: Bounds =
    Bounds { clients: 4, owners: 4, weights: [1, 2, 2, 2], begun: 2, grant_ttl: 3, waiter_ttl: 3, end: 1, ..LEASES };

/// Clients with limits of their own.
const LIMITS: Bounds = Bounds { weights: [1, 1, 1, 1], limits: [1, 2, 3, 3], ..THREE };

/// `set_permits` pauses, lowers and ends.
const PERMITS: Bounds = Bounds { permits: &[Some(0), Some(1), None], end: 1, in_flight: 1, ..THREE };

/// Subscriptions break. A heavy one waits in front.
const DEAF: Bounds = Bounds { begun: 3, weights: [1, 2, 1, 1], deafens: 1, ..THREE };

/// Few waiters in a call, and few holders at all.
const BOUNDS: Bounds =
    Bounds { serves: 1, max_holders: 2, weights: [1; 4], limits: [4; 4], in_flight: 1, end: 2, ..BEGUN };
const FULL: Bounds = Bounds { serves: 8, clients: 3, owners: 3, begun: 3, renews: true, in_flight: 2, ..BOUNDS };

/// One ended holder in a call, where two have to go, and a third one goes on.
const TAKES_OUT: Bounds =
    Bounds { takes_out: 1, weights: [1, 1, 1, 2], limits: [3; 4], renews: true, in_flight: 1, end: 2, ..BEGUN };

/// A client with two owners, whose poll carries one ticket.
const BLOCKS: Bounds =
    Bounds { clients: 2, owners: 3, begun: 3, weights: [2, 1, 1, 1], asks: 1, end: 2, in_flight: 3, ..THREE };

const REVOKE: Bounds = Bounds { faults: &[Fault::Revoke], end: 1, ..THREE };

const STRICT: Bounds =
    Bounds { faults: &[Fault::Restart, Fault::Flush], strict: true, retries: 0, end: 3, gives_up: false, ..SMALL };

/// Grants that the client would rely on for longer than the server does.
const LONG_GRANTS: Bounds = Bounds { grant_ttl: 3, ..SMALL };
const SHORT_LEASES: Bounds = Bounds { lease: 1, last_lease: 1, waiter_ttl: 3, ..SMALL };

/// A grant ends unnoticed, and then another ticket of its client is answered.
const FLOOR: Bounds =
    Bounds { clients: 2, owners: 3, begun: 2, weights: [2, 2, 2, 2], attempts: 2, grant_ttl: 1, in_flight: 3, ..THREE };

/// The same beside a holder with an older token.
const OLD_HOLDER: Bounds =
    Bounds { clients: 3, owners: 4, begun: 3, weights: [1, 2, 2, 2], limits: [3; 4], lease: 3, last_lease: 3, ..FLOOR };

pub fn all() -> Vec<Variant> {
    let mut all = base();
    all.extend(dropped());
    all
}

/// Long runs come first.
fn base() -> Vec<Variant> {
    use Event::*;
    let holds = Variant::holds;
    vec![
        holds("s-two", "2 clients, one of which takes all", SMALL, &[HandOver, HeldByTrust, RetryAnswered]),
        holds(
            "s-two-attempts",
            "the same, 2 attempts each",
            TWO_ATTEMPTS,
            &[HandOver, HeldByTrust, HeldByConfirm, HeldByPoll, LeftWhileHolding, LossReported],
        ),
        holds(
            "s-again",
            "2 clients with one unit each, which start again while their leaves are under way",
            AGAIN,
            &[OlderHoldEnded, StalePlace, HandOver],
        ),
        holds(
            "s-lossy",
            "2 clients, all messages are lost and repeated",
            Bounds { lossy: true, renews: false, end: 1, ..SMALL },
            &[HandOver, HeldByPoll, RetryAnswered, TombstoneRefused],
        ),
        holds("s-three", "3 clients, a heavy one among them", THREE, &[HeavyWaits, EnteredBeside, Settled]),
        holds("s-begun", "4 clients, of which 3 wait", BEGUN, &[ServedTogether, HeavyWaits, Settled]),
        holds(
            "s-nested",
            "a reader nests, past a writer that waits",
            NESTED,
            &[Nested, NestedPastAWaiter, RetryAnswered],
        ),
        holds("s-shrink", "a permit shrinks, requests repeated", SHRINKS, &[Shrunk, HandOver, RetryAnswered]),
        holds(
            "s-handles",
            "2 clients; what one holds is detached, and extended, released or attached by anybody",
            HANDLES,
            &[Detached, Attached, HandleExtended, HandleReleased, HandOver, EnteredBeside],
        ),
        holds(
            "s-handles-repeated",
            "the same with 1 client, requests are lost and repeated",
            Bounds { lossy: true, ..REPEATED },
            &[Detached, Attached, GiveRefused, HandleExtended, HandleReleased],
        ),
        holds(
            "s-handles-over",
            "1 client, whose handle has a shorter lease than it had; requests are lost and repeated",
            Bounds { lossy: true, ..HANDLE_OVER },
            &[Detached, Attached, GiveRefused, HandleExtended, HandleReleased],
        ),
        holds("s-handles-shrink", "a permit shrinks, and is detached", HANDLE_SHRINKS, &[Shrunk, Attached, HandOver]),
        holds(
            "s-handles-leases",
            "4 clients; the one that attaches has a shorter lease",
            HANDLE_LEASES,
            &[Detached, Attached, TakenOut],
        ),
        holds("s-leases", "3 clients with different leases", LEASES, &[TakenOut, LossReported, HashExpired]),
        holds("s-limits", "3 clients with different limits", LIMITS, &[EnteredBeside, Settled]),
        holds("s-permits", "3 clients, and set_permits", PERMITS, &[Paused, AboveLowered, Settled]),
        holds("s-deaf", "3 clients, a subscription breaks", DEAF, &[PassedOver, Settled]),
        holds("s-bounds", "4 clients, one waiter a call, two holders at most", BOUNDS, &[Stopped, FullHouse, Settled]),
        holds("s-takes-out", "4 clients, one ended holder a call", TAKES_OUT, &[Stopped, TakenOut, Settled]),
        holds("s-shortens", "4 clients, a first renewal shortens", SHORTENS, &[TakenOut, HeldByTrust, Settled]),
        holds(
            "s-floor",
            "a client with 2 waiters, grants end unnoticed",
            Bounds { end: 1, in_flight: 2, ..FLOOR },
            &[NoPlace, Settled],
        ),
        holds(
            "s-blocks",
            "a client with 2 waiters, whose polls carry one ticket",
            BLOCKS,
            &[NextBlock, HeldByPoll, Settled],
        ),
        holds(
            "s-tries",
            "2 clients, one of which never waits",
            Bounds { tries: true, ..TWO_ATTEMPTS },
            &[Busy, EnteredBeside],
        ),
        holds("s-revoke", "3 clients, one holder is revoked", REVOKE, &[Revoked, HandOver, Settled]),
        holds(
            "s-flush",
            "2 clients, FLUSHALL",
            Bounds { faults: &[Fault::Flush], retries: 0, ..SMALL },
            &[NoPlace, Settled],
        ),
        holds("s-strict", "2 clients with strict_restart, data is lost", STRICT, &[Frozen, Thawed, HandOver]),
        holds("s-long-grants", "2 clients, places end before grants would", LONG_GRANTS, &[HandOver, HeldByTrust]),
        holds("s-short-leases", "2 clients, leases end before grants do", SHORT_LEASES, &[HandOver, HeldByTrust]),
    ]
}

fn dropped() -> Vec<Variant> {
    let drop = Variant::drops;
    vec![
        drop("s-limit", "a waiter is served whether it fits or not", SMALL, |r| r.fits_under_limit = false),
        drop("s-permits-win", "a client's own limit counts after set_permits", PERMITS, |r| r.permits_win = false),
        drop("s-misfit", "lighter ones are served past one that does not fit", BEGUN, |r| {
            r.stops_at_first_misfit = false;
        }),
        drop("s-newcomer", "a newcomer that fits enters past the queue", THREE, |r| r.newcomers_queue = false),
        drop("s-holders", "any number of holders", BOUNDS, |r| r.holders_are_bounded = false),
        drop("s-full-house", "only a lack of units is a reason to take out the ended", FULL, |r| {
            r.full_house_takes_out = false;
        }),
        drop("s-ended", "holders whose lease is over stay", LEASES, |r| r.ended_are_taken_out = false),
        drop("s-only-ended", "holders are taken out before their lease is over", LEASES, |r| r.only_the_ended = false),
        drop("s-used", "what is taken out still counts in !used", LEASES, |r| r.taking_out_counts = false),
        drop("s-soon-new", "a new holder with a shorter lease does not lower !soon", LEASES, |r| {
            r.soon_with_new_holder = false;
        }),
        drop("s-soon-renewal", "a first renewal that shortens does not lower !soon", SHORTENS, |r| {
            r.soon_with_renewal = false;
        }),
        drop("s-soon-bound", "a call that stops at its bound forgets the other ended ones", TAKES_OUT, |r| {
            r.soon_after_bound = false;
        }),
        drop("s-ttl", "the hash lives as long as the lease that was written last", LEASES, |r| {
            r.longest_lease_kept = false
        }),
        drop("s-unreachable", "an unreachable one in front blocks where it does not fit", DEAF, |r| {
            r.unreachable_first = false;
        }),
        drop("s-tokens", "one token for all grants of a call", BEGUN, |r| r.token_for_each_grant = false),
        drop("s-field", "the old field is deleted after the new one is set", AGAIN, |r| r.ends_before_serving = false),
        drop("s-stale", "a place behind a later attempt of its owner is served", AGAIN, |r| r.stale_places_go = false),
        drop("s-older", "a grant to an owner that holds does not free what it held", AGAIN, |r| {
            r.grant_ends_older = false
        }),
        drop(
            "s-leave-passes-on",
            "a place that leaves is no reason to serve",
            Bounds { gives_up: true, ..THREE },
            |r| r.leave_of_place_passes_on = false,
        ),
        drop("s-shrink-passes-on", "a shrink does not serve", SHRINKS, |r| r.shrink_passes_on = false),
        drop("s-permits-pass-on", "set_permits does not serve", PERMITS, |r| r.permits_pass_on = false),
        drop("s-poll-passes-on", "a poll does not serve", SMALL, |r| r.poll_passes_on = false),
        drop("s-revoke-passes-on", "a revocation does not serve", REVOKE, |r| r.revoke_passes_on = false),
        drop("s-release-passes-on", "a release does not serve", SMALL, |r| r.release_passes_on = false),
        drop("s-revoke-one", "a revocation ends all", REVOKE, |r| r.revokes_one = false),
        drop("s-shrink-sets", "a shrink subtracts", SHRINKS, |r| r.shrink_sets = false),
        drop("s-shrink-first", "a caller relies on the old weight until the answer", SHRINKS, |r| {
            r.shrinks_locally_first = false;
        }),
        drop("s-r1-retry", "a retry counts again", SMALL, |r| r.r1_retry_is_served_once = false),
        drop("s-r1-count", "a nested read adds to the count", NESTED, |r| r.r1_count_is_set = false),
        drop("s-r2", "an acquire is served even when it is late", SMALL, |r| r.r2_not_after = false),
        drop("s-r3-tombstone", "leave and release write no tombstone", SMALL, |r| r.r3_tombstone = false),
        drop("s-r3-purge", "leave and release leave the place", SMALL, |r| r.r3_purge = false),
        drop(
            "s-r4-renew-token",
            "renew and confirm compare only the owner",
            Bounds { operation_timeout: 2, in_flight: 3, ..SMALL },
            |r| {
                r.r4_renew_compares_token = false;
            },
        ),
        drop("s-r4-end-seq", "leave and release compare only the owner", TWO_ATTEMPTS, |r| {
            r.r4_ends_compare_seq = false
        }),
        drop("s-r4-per-owner", "seqs are compared with the last one served of anybody", BESIDE, |r| {
            r.r4_last_served_per_owner = false;
        }),
        drop("s-r4-renew-creates", "a renewal creates a hold", SMALL, |r| r.r4_renew_only_extends = false),
        drop("s-d3-all", "a new first hold ends those of others too", BESIDE, |r| r.d3_only_its_own = false),
        drop("s-r5", "deadlines count from the reply", SMALL, |r| r.r5_deadline_from_request = false),
        drop("s-r5-wanted", "a holder relies on the whole time of a grant", SHORT_LEASES, |r| {
            r.r5_no_more_than_wanted = false
        }),
        drop("s-r7-floor", "pushes are trusted with any token", FLOOR, |r| r.r7_floor = false),
        drop("s-r7-holder", "the floor is the token of a holder", OLD_HOLDER, |r| {
            r.r7_floor_of_free_lock = false;
        }),
        drop("s-r7-receipt", "trust counts from when the push arrived", SMALL, |r| r.r7_trust_from_poll = false),
        drop("s-r7-time", "the push names a longer time than the grant lasts", LONG_GRANTS, |r| {
            r.r7_push_says_real_time = false
        }),
        drop("s-r7-ticket", "a push serves any attempt of its owner", TWO_ATTEMPTS, |r| r.r7_push_names_ticket = false),
        drop("s-r7-confirm", "a late push is not confirmed", Bounds { trust: false, ..SMALL }, |r| {
            r.r7_confirm = false
        }),
        drop("s-poll-names", "a poll does not name what was granted", SMALL, |r| r.poll_names_granted = false),
        drop("s-next-block", "the next tickets are asked for a poll_interval later", BLOCKS, |r| {
            r.polls_next_block = false
        }),
        drop("s-r9-leave", "an attempt that is given up does not leave", SMALL, |r| r.r9_leave = false),
        drop("s-r9-pass-on", "a leave does not end a grant", SMALL, |r| r.r9_leave_passes_on = false),
        drop("s-r10", "tokens come from a counter only", Bounds { faults: &[Fault::Restart], ..SMALL }, |r| {
            r.r10_clock_in_tokens = false;
        }),
        drop("s-r11", "a lost hold does not leave", Bounds { limits: [3; 4], end: 3, ..SMALL }, |r| {
            r.r11_leave_after_loss = false
        }),
        drop("s-r11-seq", "the leave after a loss takes its seq late (A1)", TWO_ATTEMPTS, |r| {
            r.r11_seq_at_the_loss = false
        }),
        drop("s-r16-seq", "a late detach takes what its owner has attached since", REPEATED, |r| {
            r.r16_give_compares_seq = false
        }),
        drop("s-r16-guard", "a guard is valid while its detach is under way", REPEATED, |r| {
            r.r16_guard_ends_first = false
        }),
        drop("s-r16-leaves", "an owner does not leave after a detach", REPEATED, |r| r.r16_detach_leaves = false),
        drop("s-r16-release", "a copy of a detach brings back what was released", REPEATED, |r| {
            r.r16_released_for_good = false
        }),
        drop("s-r16-attach", "an attach is served although its owner has left", REPEATED, |r| {
            r.r16_attach_heeds_leave = false
        }),
        drop("s-r16-weight", "what is attached gets the weight that its owner asks for", HANDLE_SHRINKS, |r| {
            r.r16_keeps_weight = false
        }),
        drop("s-r16-soon", "an attach with a shorter lease does not lower !soon", HANDLE_LEASES, |r| {
            r.r16_lowers_soon = false
        }),
        drop("s-r16-over", "a late detach is refused though the lease of its handle is over", HANDLE_OVER, |r| {
            r.r16_over_is_lost = false
        }),
        drop("s-r16-record", "an owner whose ended hold is still counted attaches", HANDLE_AFTER, |r| {
            r.r16_one_record = false
        }),
        drop("s-r14", "a server without its data does not freeze", STRICT, |r| r.r14_freeze = false),
        drop("s-r14-short", "the freeze is shorter than the longest lease", STRICT, |r| r.r14_longest_lease = false),
        drop("s-r14-acquire", "an acquire enters in a freeze", STRICT, |r| r.r14_acquire_heeds = false),
        drop("s-r14-pass-on", "waiters are served in a freeze", STRICT, |r| r.r14_pass_on_heeds = false),
    ]
}
