//! The runs: the base runs, in which all properties hold, and one for each dropped rule, which must
//! break a property.

use crate::bounds::{Bounds, Fault};
use crate::ghost::Event;
use crate::protocol::Protocol;
use crate::rules::Rules;
use crate::run;

/// One run of the model.
pub type Variant = run::Variant<Protocol>;

/// Two clients with one attempt each, whose messages may be late without bound but are not lost. As
/// with the default options, a lease is longer than an acquire may be late.
const SMALL: Bounds = Bounds {
    clients: 2,
    owners: 2,
    attempts: 1,
    reentries: 0,
    detaches: 0,
    attaches: 0,
    extends: 0,
    extend_to: &[],
    retries: 1,
    timeouts: 0,
    in_flight: 3,
    end: 2,
    lease: 2,
    grant_ttl: [2, 2],
    waiter_ttl: 2,
    queue_outlives: 0,
    patience: 0,
    operation_timeout: 1,
    looks: 8,
    trust: false,
    lossy: false,
    revocations_arrive: false,
    begun: false,
    verifies_always: true,
    try_lock: false,
    gives_up: true,
    renews: true,
    deafens: 0,
    reconnects: 0,
    faults: &[],
    strict: false,
    settles: true,
};

/// The server forgets a grant, and all clients have `strict_restart` (R14).
const STRICT: Bounds =
    Bounds { faults: &[Fault::Restart, Fault::Flush], strict: true, retries: 0, in_flight: 2, end: 3, ..TRUST };

/// An owner starts again while the leave of its earlier attempt is in flight.
const TWO_ATTEMPTS: Bounds = Bounds { attempts: 2, ..SMALL };

/// An acquire may be as late as the options allow: a copy can be served after the lease that an
/// earlier copy got has expired.
const LATE_ACQUIRES: Bounds = Bounds { operation_timeout: 2, ..SMALL };

const TRUST: Bounds = Bounds { trust: true, ..SMALL };

/// A grant TTL above the waiters' time-to-live, as between clients with different settings.
const LONG_GRANTS: Bounds = Bounds { grant_ttl: [3, 3], ..TRUST };

/// Leases shorter than the grant TTL, as `with_lease` allows.
const SHORT_LEASES: Bounds = Bounds { lease: 1, waiter_ttl: 3, in_flight: 2, ..TRUST };

/// A hold is detached, and its handle is used by anybody.
const HANDLES: Bounds =
    Bounds { detaches: 1, attaches: 1, retries: 0, in_flight: 2, renews: false, settles: false, ..SMALL };

/// The same with one client, whose requests are repeated.
const REPEATED: Bounds = Bounds { clients: 1, owners: 1, retries: 1, in_flight: 3, ..HANDLES };

/// A hold is extended. Its first renewal may come late, since it began with a push or was named by a poll.
const EXTENDS: Bounds = Bounds {
    extends: 2,
    extend_to: &[1, 3],
    begun: true,
    retries: 1,
    settles: false,
    in_flight: 2,
    grant_ttl: [3, 3],
    waiter_ttl: 3,
    ..TRUST
};

/// The same with one client, which detaches and attaches what it has extended.
const EXTENDS_AROUND: Bounds = Bounds { extends: 2, extend_to: &[1, 3], ..REPEATED };

/// Extends between nested calls and releases.
const EXTENDS_NESTED: Bounds =
    Bounds { clients: 1, owners: 1, extends: 1, extend_to: &[3], in_flight: 3, lossy: true, ..NESTED };

/// A flush forgets an extended lease (R14).
const EXTENDS_STRICT: Bounds = Bounds {
    extends: 1,
    extend_to: &[3],
    faults: &[Fault::Flush],
    gives_up: false,
    renews: false,
    begun: true,
    settles: false,
    ..STRICT
};

/// Two levels of holds.
const NESTED: Bounds = Bounds { reentries: 1, end: 2, in_flight: 2, ..SMALL };

/// The queue under faults: each request once, callers do not give up, and holders do not renew.
const QUEUE: Bounds = Bounds {
    retries: 0,
    in_flight: 2,
    end: 3,
    trust: true,
    gives_up: false,
    renews: false,
    verifies_always: false,
    ..SMALL
};

/// Two owners of one client wait, and a client beside it.
const SHARED: Bounds = Bounds { owners: 3, end: 2, ..QUEUE };

/// Subscriptions break.
const DEAF: Bounds = Bounds { clients: 3, owners: 3, deafens: 1, begun: true, end: 2, ..QUEUE };

/// A list that does not become empty with the first grant, which would reveal that a place is lost.
const CROWD: Bounds = Bounds { clients: 4, owners: 4, begun: true, end: 1, waiter_ttl: 3, ..QUEUE };
const CROWD_FORCE: Bounds = Bounds { faults: &[Fault::ForceUnlock], end: 0, revocations_arrive: true, ..CROWD };

/// Behind an unreachable client a dead one keeps its place, and comes alive again.
const CLOCK_BACK: Bounds = Bounds {
    faults: &[Fault::ClockBack],
    clients: 3,
    owners: 3,
    deafens: 1,
    waiter_ttl: 2,
    end: 2,
    verifies_always: true,
    ..CROWD
};

/// The server stands still, for less and for more than a waiter lives. All others wait for the first client.
const STALL: Bounds = Bounds {
    clients: 3,
    owners: 3,
    begun: true,
    faults: &[Fault::Stall(1), Fault::Stall(2), Fault::Stall(5)],
    waiter_ttl: 4,
    queue_outlives: 8,
    end: 1,
    ..QUEUE
};

/// `advance` looks at one place in a call.
const STOPS: Bounds = Bounds { clients: 3, owners: 3, looks: 1, begun: true, end: 2, ..QUEUE };

/// The server loses a key.
const DELETE: Bounds =
    Bounds { faults: &[Fault::DeleteLock, Fault::DeleteQueue, Fault::DeleteDeadlines], end: 2, ..QUEUE };

/// Nothing but doubt finds a lost place: as with more waiters than polls can ask for in reasonable time.
const DOUBT: Bounds = Bounds { faults: &[Fault::Flush, Fault::DeleteDeadlines, Fault::DeleteQueue], ..QUEUE };

const DOUBT_LOSSY: Bounds = Bounds { lossy: true, ..DOUBT };
const DOUBT_SHARED: Bounds = Bounds { owners: 3, end: 1, ..DOUBT };

pub fn all() -> Vec<Variant> {
    let mut all = base();
    all.extend(dropped());
    all
}

/// Long runs come first, so that both threads of `run_all` finish at about the same time.
fn base() -> Vec<Variant> {
    use Event::*;
    let holds = Variant::holds;
    let doubt_only = |name, about, bounds, events| {
        let rules = Rules { rotation: false, ..Rules::default() };
        Variant { rules, ..Variant::holds(name, about, bounds, events) }
    };
    vec![
        holds(
            "nested",
            "2 clients, 2 levels of holds, requests repeated",
            NESTED,
            &[Nested, RetryAnswered, HandOver, HeldByConfirm, LeaseExpired],
        ),
        holds(
            "nested-lossy",
            "the same, requests and replies are lost too",
            Bounds { lossy: true, end: 1, ..NESTED },
            &[Nested, RetryAnswered, HandOver, HeldByConfirm, LeaseExpired],
        ),
        holds(
            "handles",
            "2 clients; what one holds is detached, and extended, released or attached by anybody, also twice",
            HANDLES,
            &[Detached, Attached, GiveRefused, HandleExtended, HandleReleased, HandOver, LeaseExpired],
        ),
        holds(
            "handles-repeated",
            "the same with 1 client, requests are lost and repeated",
            Bounds { lossy: true, ..REPEATED },
            &[Detached, Attached, GiveRefused, HandleExtended, HandleReleased, LeaseExpired],
        ),
        holds(
            "handles-force",
            "the same, force_unlock once",
            Bounds { faults: &[Fault::ForceUnlock], end: 1, settles: true, ..HANDLES },
            &[Detached, Attached, HandleExtended, HandOver],
        ),
        holds(
            "extend",
            "2 clients extend what they hold, twice, beside a late first renewal, requests repeated",
            EXTENDS,
            &[Extended, ExtendedLate, Shortened, NotShortened, HandOver, LeaseExpired],
        ),
        holds(
            "extend-detach",
            "1 client extends, detaches and attaches, requests repeated",
            EXTENDS_AROUND,
            &[Extended, ExtendedLate, Detached, Attached, GiveRefused, LeaseExpired],
        ),
        holds(
            "extend-nested",
            "1 client extends between 2 levels of holds, requests are lost and repeated",
            EXTENDS_NESTED,
            &[Extended, ExtendedLate, Nested, RetryAnswered, LeaseExpired],
        ),
        holds(
            "extend-strict",
            "2 clients with strict_restart extend, FLUSHALL",
            EXTENDS_STRICT,
            &[Extended, Frozen, Thawed],
        ),
        holds(
            "lossy",
            "2 clients, pushes are trusted, all messages are lost and repeated",
            Bounds { lossy: true, in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, RetryAnswered, TombstoneRefused, LeaseExpired],
        ),
        holds(
            "two",
            "2 clients, 2 attempts each, every grant confirmed",
            Bounds { retries: 0, in_flight: 2, ..TWO_ATTEMPTS },
            &[HandOver, HeldByConfirm, HeldByPoll, LeaseExpired, LeftWhileOwner, LossReported],
        ),
        holds(
            "trust",
            "2 clients, pushes are trusted (R7)",
            Bounds { end: 3, in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, HeldByConfirm, LeaseExpired, RetryAnswered, TombstoneRefused],
        ),
        holds(
            "long-grants",
            "the same, where tickets expire before grants would",
            LONG_GRANTS,
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "short-grants",
            "the same, where grants expire before tickets and leases do",
            Bounds { lease: 3, waiter_ttl: 3, in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "short-leases",
            "the same, where leases expire before grants do",
            SHORT_LEASES,
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "patient",
            "the same, where an acquire may be as late as a lease is long",
            Bounds { trust: true, ..LATE_ACQUIRES },
            &[HandOver, HeldByTrust, LeaseExpired, TombstoneRefused],
        ),
        holds(
            "three",
            "3 clients, pushes are trusted",
            Bounds { clients: 3, owners: 3, retries: 0, in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "tries",
            "2 clients, one of which never waits (try_lock), 2 attempts each",
            Bounds { try_lock: true, in_flight: 2, ..TWO_ATTEMPTS },
            &[Busy, HandOver, LeaseExpired, TombstoneRefused],
        ),
        holds(
            "force",
            "2 clients, force_unlock once; the hold it ends is exempt from P1",
            Bounds { faults: &[Fault::ForceUnlock], in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, LossReported],
        ),
        holds("deaf", "3 clients, a subscription breaks", DEAF, &[Unreachable, PassedOver, Settled]),
        holds(
            "deaf-bound",
            "the same, where advance looks at one place in a call",
            Bounds { looks: 1, gives_up: true, ..DEAF },
            &[Unreachable, Skipped, Stopped, SkipReset, LeftFromSkipped],
        ),
        holds("shared", "2 clients, one of them with 2 owners", SHARED, &[TrustedByName, NoPlace, Settled]),
        holds(
            "shared-lossy",
            "the same, all messages are lost",
            Bounds { lossy: true, begun: true, ..SHARED },
            &[TrustedByName, NoPlace, Doubted, DoubtEnded, Settled],
        ),
        holds(
            "silent",
            "2 clients, one of which is not heard for long",
            Bounds { end: 5, ..QUEUE },
            &[NoPlace, Forgiven, Settled],
        ),
        holds(
            "reconnect",
            "2 clients, a connection breaks, its requests arrive late",
            Bounds { reconnects: 1, deafens: 1, in_flight: 3, end: 2, ..QUEUE },
            &[NoPlace, DoubtEnded, Unreachable, Settled],
        ),
        holds(
            "flush",
            "2 clients, FLUSHALL",
            Bounds { faults: &[Fault::Flush], retries: 1, end: 2, ..QUEUE },
            &[NoPlace, UnknownHold, Settled],
        ),
        holds(
            "delete",
            "2 clients, one with 2 owners, one key is deleted",
            Bounds { owners: 3, begun: true, ..DELETE },
            &[NoPlace, FreeLockTold, ListGone, Settled],
        ),
        holds(
            "force-queue",
            "2 clients, one with 2 owners, force_unlock of a grant",
            Bounds { faults: &[Fault::ForceUnlock], begun: true, end: 1, ..SHARED },
            &[NoPlace, Settled],
        ),
        holds(
            "clock",
            "3 clients, the server's clock steps",
            Bounds { clients: 3, owners: 3, begun: true, faults: &[Fault::ClockStep], end: 2, ..QUEUE },
            &[NoPlace, DeadCleared, Settled],
        ),
        holds("clock-back", "3 clients, the server's clock goes back", CLOCK_BACK, &[Unreachable, Settled]),
        holds(
            "stall",
            "3 clients, the server stands still for less or for more than a waiter lives",
            STALL,
            &[Forgiven, HandOver, LeaseExpired, Settled],
        ),
        holds(
            "unequal",
            "2 clients with grant TTLs of 1 and 2",
            Bounds { grant_ttl: [1, 2], ..QUEUE },
            &[HandOver, NoPlace, Settled],
        ),
        holds(
            "limited",
            "2 clients whose callers wait for a limited time",
            Bounds { patience: 2, gives_up: true, settles: false, ..QUEUE },
            &[HandOver, DeadCleared],
        ),
        doubt_only("doubt", "2 clients, only doubt verifies; keys are lost", DOUBT, &[Doubted, DoubtEnded, Settled]),
        doubt_only("doubt-lossy", "the same, messages are lost", DOUBT_LOSSY, &[Doubted, DoubtEnded, Settled]),
        doubt_only(
            "doubt-gaps",
            "4 clients, only doubt verifies; grants are short",
            Bounds { grant_ttl: [1, 1], ..CROWD },
            &[Doubted, DoubtEnded, Settled],
        ),
        doubt_only(
            "doubt-force",
            "4 clients, only doubt verifies; force_unlock of grants",
            CROWD_FORCE,
            &[Doubted, DoubtEnded, Settled],
        ),
        doubt_only("doubt-shared", "the same, one client with 2 owners", DOUBT_SHARED, &[Doubted, DoubtEnded, Settled]),
        holds(
            "restart",
            "2 clients, the server loses its data once; holds from before are exempt from P1",
            Bounds { faults: &[Fault::Restart], retries: 0, in_flight: 2, ..TRUST },
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "strict",
            "2 clients with strict_restart, the server loses its data once; P1 covers all holds",
            STRICT,
            &[HandOver, HeldByTrust, LeaseExpired, Frozen, Thawed],
        ),
    ]
}

/// Some do not forgive a silence either: else no client would count as dead in so few ticks.
fn dropped() -> Vec<Variant> {
    let drop = Variant::drops;
    vec![
        drop("r1-retry", "a retry counts again", SMALL, |r| r.r1_retry_is_served_once = false),
        drop("r1-count", "a nested acquire adds to the count", NESTED, |r| r.r1_count_is_set = false),
        drop("r2", "an acquire is served even when it is late", SMALL, |r| r.r2_not_after = false),
        drop("r3-tombstone", "leave and release write no tombstone", SMALL, |r| r.r3_tombstone = false),
        drop("r3-purge", "leave and release leave the ticket in the queue", SMALL, |r| r.r3_purge = false),
        drop("r4-renew-token", "renew and confirm compare only the owner", LATE_ACQUIRES, |r| {
            r.r4_renew_compares_token = false
        }),
        drop("r4-end-seq", "leave and release compare only the owner", TWO_ATTEMPTS, |r| r.r4_ends_compare_seq = false),
        drop("r4-renew-creates", "a renewal creates a hold", SMALL, |r| r.r4_renew_only_extends = false),
        drop("r16-seq", "a late detach takes what its owner has attached since", REPEATED, |r| {
            r.r16_give_compares_seq = false
        }),
        drop("r16-guard", "a guard is valid while its detach is under way", REPEATED, |r| {
            r.r16_guard_ends_first = false
        }),
        drop("r16-leaves", "an owner does not leave after a detach", REPEATED, |r| r.r16_detach_leaves = false),
        drop("r16-release", "a copy of a detach brings back what was released", REPEATED, |r| {
            r.r16_released_for_good = false
        }),
        drop("r16-attach", "an attach is served although its owner has left", REPEATED, |r| {
            r.r16_attach_heeds_leave = false
        }),
        drop("r16-extend-last", "a late first renewal cuts the lease of an extend", EXTENDS, |r| {
            r.r16_extend_is_last = false
        }),
        drop("r16-extend-longer", "an extend shortens", EXTENDS, |r| r.r16_extend_lengthens = false),
        drop("r16-extend-late", "a late extend becomes the last request again", EXTENDS_NESTED, |r| {
            r.r16_extend_compares_seq = false
        }),
        drop("r16-over", "a late detach is refused though the lease of its handle is over", EXTENDS_AROUND, |r| {
            r.r16_over_is_lost = false
        }),
        drop("r5", "deadlines count from the reply", SMALL, |r| r.r5_deadline_from_request = false),
        drop("r5-wanted", "a holder relies on the whole time of a grant", SHORT_LEASES, |r| {
            r.r5_no_more_than_wanted = false
        }),
        drop("r6", "a freed lock is not passed on: the next acquire takes it", SMALL, |r| r.r6_hand_over = false),
        drop("r7-floor", "pushes are trusted with any token", Bounds { attempts: 2, ..QUEUE }, |r| r.r7_floor = false),
        drop("r7-receipt", "trust counts from when the push arrived", TRUST, |r| r.r7_trust_from_poll = false),
        drop("r7-time", "the push names a longer time than the grant lasts", LONG_GRANTS, |r| {
            r.r7_push_says_real_time = false
        }),
        drop("r7-ticket", "a push serves any attempt of its owner", Bounds { trust: true, ..TWO_ATTEMPTS }, |r| {
            r.r7_push_names_ticket = false;
        }),
        drop("r7-confirm", "a late push is not confirmed", SMALL, |r| r.r7_confirm = false),
        drop("r8", "waiters do not poll", SMALL, |r| r.r8_poll = false),
        drop("r9-leave", "an attempt that is given up does not leave", SMALL, |r| r.r9_leave = false),
        drop("r9-pass-on", "a leave does not pass on a grant", SMALL, |r| r.r9_leave_passes_on = false),
        drop("r10", "tokens come from a counter only", Bounds { faults: &[Fault::Restart], ..SMALL }, |r| {
            r.r10_clock_in_tokens = false;
        }),
        drop("r11", "a lost hold does not leave", SMALL, |r| r.r11_leave_after_loss = false),
        drop("r11-seq", "the leave after a loss takes its seq late (A1)", TWO_ATTEMPTS, |r| {
            r.r11_seq_at_the_loss = false
        }),
        drop("r14", "a server without its data does not freeze", STRICT, |r| r.r14_freeze = false),
        drop("r14-short", "the freeze is shorter than the longest lease", STRICT, |r| r.r14_longest_lease = false),
        drop("r14-extend", "the freeze is shorter than the lease of an extend", EXTENDS_STRICT, |r| {
            r.r14_covers_extends = false
        }),
        drop("r14-acquire", "an acquire takes a free lock in a freeze", STRICT, |r| r.r14_acquire_heeds = false),
        drop("r14-pass-on", "a poll or a leave passes a lock on in a freeze", STRICT, |r| r.r14_pass_on_heeds = false),
        drop(
            "r7-name-floor",
            "the floor of an older answer goes with a poll's send time",
            Bounds { attempts: 2, ..QUEUE },
            |r| {
                r.r7_floor_of_that_poll = false;
            },
        ),
        drop("no-verify", "no rotation and no doubt", QUEUE, |r| {
            (r.rotation, r.doubt) = (false, false);
        }),
        drop(
            "grant-ttl",
            "the grant TTL of the client that frees the lock",
            Bounds { grant_ttl: [1, 2], ..CROWD },
            |r| {
                (r.rotation, r.grant_ttl_of_waiter) = (false, false);
            },
        ),
        drop("trim-tickets", "dead places are taken out without their tickets", STOPS, |r| {
            (r.trim_takes_tickets, r.silence_is_forgiven) = (false, false);
        }),
        drop("purge-place", "a ticket is taken out without its place", Bounds { gives_up: true, ..QUEUE }, |r| {
            r.purge_takes_place = false;
        }),
        drop("d1", "a message is published before it is known who can be reached", DEAF, |r| {
            r.reached_before_told = false;
        }),
        drop("d2", "the places of the dead go after a silence of all", STALL, |r| r.silence_is_forgiven = false),
        drop("skip-heard", "a client that is heard again does not reset !skip", DEAF, |r| {
            r.skip_reset_when_heard = false;
        }),
        drop(
            "skip-purge",
            "a ticket that leaves does not lower !skip",
            Bounds { gives_up: true, deafens: 1, ..STOPS },
            |r| {
                r.purge_lowers_skip = false;
            },
        ),
        drop("skip-trim", "dead places taken off the head do not lower !skip", STOPS, |r| {
            (r.trim_lowers_skip, r.silence_is_forgiven) = (false, false);
        }),
        drop("skip-clock", "!skip is believed after the clock went back", CLOCK_BACK, |r| {
            (r.skip_has_time, r.silence_is_forgiven) = (false, false);
        }),
        drop(
            "list-gone",
            "an enqueue leaves tickets without a list alone",
            Bounds { owners: 3, faults: &[Fault::DeleteQueue], end: 1, ..QUEUE },
            |r| {
                r.enqueue_clears_leftovers = false;
            },
        ),
        drop(
            "take-purges",
            "a repeated acquire does not hear its client, and leaves its ticket where it takes the lock",
            Bounds { retries: 1, ..DEAF },
            |r| {
                (r.acquire_hears_first, r.direct_take_purges) = (false, false);
            },
        ),
        drop("doubt-sent", "doubt ends when a verification is sent, though its answer may be lost", DOUBT_LOSSY, |r| {
            (r.rotation, r.doubt_until_answered, r.doubt_unanswered) = (false, false, false);
        }),
        drop("doubt-asking", "a verification ends the doubt about those it did not ask for", DOUBT_SHARED, |r| {
            (r.rotation, r.doubt_covers_asking) = (false, false);
        }),
        drop("doubt-unknown", "not being known is no reason to doubt", DOUBT, |r| {
            (r.rotation, r.doubt_unknown) = (false, false);
        }),
        drop("doubt-gap", "a gap between polls is no reason to doubt", Bounds { grant_ttl: [1, 1], ..CROWD }, |r| {
            (r.rotation, r.doubt_gap) = (false, false);
        }),
        drop("doubt-revoked", "a revocation is no reason to doubt", CROWD_FORCE, |r| {
            (r.rotation, r.doubt_revoked) = (false, false);
        }),
        drop("doubt-unanswered", "a poll without an answer is no reason to doubt", DOUBT_LOSSY, |r| {
            (r.rotation, r.doubt_unanswered) = (false, false);
        }),
        drop("doubt-enqueue", "an enqueue that finds its client unknown is no reason to doubt", DOUBT_SHARED, |r| {
            (r.rotation, r.doubt_enqueue) = (false, false);
        }),
        drop("doubt-reconnect", "a reconnect is no reason to doubt", Bounds { reconnects: 1, ..DOUBT }, |r| {
            (r.rotation, r.doubt_reconnect) = (false, false);
        }),
    ]
}
