//! The runs: the base runs, in which all properties hold, and one for each dropped rule, which must
//! break a property.

use crate::protocol::{Bounds, Event, Fault};
use crate::rules::Rules;

/// One run of the model.
#[derive(Debug, Clone)]
pub struct Variant {
    pub name: &'static str,
    pub about: &'static str,
    pub rules: Rules,
    pub bounds: Bounds,
    pub expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// All properties hold, and the run reaches all these events.
    Holds(&'static [Event]),
    /// The dropped rule breaks a property.
    Caught,
}

/// Two clients with one attempt each, whose messages may be late without bound but are not lost. As
/// with the default options, a lease is longer than an acquire may be late.
const SMALL: Bounds = Bounds {
    clients: 2,
    owners: 2,
    attempts: 1,
    reentries: 0,
    retries: 1,
    timeouts: 0,
    in_flight: 3,
    end: 3,
    lease: 2,
    grant_ttl: [2, 2],
    waiter_ttl: 2,
    patience: 0,
    operation_timeout: 1,
    looks: 8,
    trust: false,
    lossy: false,
    try_lock: false,
    deafens: 0,
    reconnects: 0,
    faults: &[],
    settles: true,
};

/// An owner starts again while the leave of its earlier attempt is in flight.
const TWO_ATTEMPTS: Bounds = Bounds { attempts: 2, ..SMALL };

/// An acquire may be as late as the options allow: a copy can be served after the lease that an
/// earlier copy got has expired.
const LATE_ACQUIRES: Bounds = Bounds { operation_timeout: 2, ..SMALL };

const TRUST: Bounds = Bounds { trust: true, ..SMALL };

/// A grant TTL above the waiters' time-to-live, as between clients with different settings.
const LONG_GRANTS: Bounds = Bounds { grant_ttl: [3, 3], ..TRUST };

/// Leases shorter than the grant TTL, as `with_lease` allows.
const SHORT_LEASES: Bounds = Bounds { lease: 1, waiter_ttl: 3, ..TRUST };

/// Two levels of holds.
const NESTED: Bounds = Bounds { reentries: 1, end: 2, ..SMALL };

pub fn all() -> Vec<Variant> {
    let mut all = base();
    all.extend(dropped());
    all
}

/// Long runs come first, so that both threads of `run_all` finish at about the same time.
fn base() -> Vec<Variant> {
    use Event::*;
    let holds = |name, about, bounds, events| {
        let rules = Rules::default();
        Variant { name, about, rules, bounds, expect: Expect::Holds(events) }
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
            Bounds { lossy: true, in_flight: 2, ..NESTED },
            &[Nested, RetryAnswered, HandOver, HeldByConfirm, LeaseExpired],
        ),
        holds(
            "lossy",
            "2 clients, pushes are trusted, all messages are lost and repeated",
            Bounds { lossy: true, ..TRUST },
            &[HandOver, HeldByTrust, RetryAnswered, TombstoneRefused, LeaseExpired],
        ),
        holds(
            "two",
            "2 clients, 2 attempts each, every grant confirmed",
            Bounds { retries: 0, ..TWO_ATTEMPTS },
            &[HandOver, HeldByConfirm, HeldByPoll, LeaseExpired, LeftWhileOwner, LossReported],
        ),
        holds(
            "trust",
            "2 clients, pushes are trusted (R7)",
            Bounds { end: 4, ..TRUST },
            &[HandOver, HeldByTrust, HeldByConfirm, LeaseExpired, RetryAnswered, TombstoneRefused, FloorRefused],
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
            Bounds { lease: 3, waiter_ttl: 3, ..TRUST },
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
            Bounds { clients: 3, owners: 3, retries: 0, end: 2, ..TRUST },
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
        holds(
            "tries",
            "2 clients, one of which never waits (try_lock), 2 attempts each",
            Bounds { try_lock: true, end: 2, ..TWO_ATTEMPTS },
            &[Busy, HandOver, LeaseExpired, TombstoneRefused],
        ),
        holds(
            "force",
            "2 clients, force_unlock once; the hold it ends is exempt from P1",
            Bounds { faults: &[Fault::ForceUnlock], ..TRUST },
            &[HandOver, HeldByTrust, LossReported],
        ),
        holds(
            "restart",
            "2 clients, the server loses its data once; holds from before are exempt from P1",
            Bounds { faults: &[Fault::Restart], ..TRUST },
            &[HandOver, HeldByTrust, LeaseExpired],
        ),
    ]
}

fn dropped() -> Vec<Variant> {
    let drop = |name, about, bounds, change: fn(&mut Rules)| {
        let mut rules = Rules::default();
        change(&mut rules);
        Variant { name, about, rules, bounds, expect: Expect::Caught }
    };
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
        drop("r5", "deadlines count from the reply", SMALL, |r| r.r5_deadline_from_request = false),
        drop("r5-wanted", "a holder relies on the whole time of a grant", SHORT_LEASES, |r| {
            r.r5_no_more_than_wanted = false
        }),
        drop("r6", "a freed lock is not passed on: the next acquire takes it", SMALL, |r| r.r6_hand_over = false),
        drop("r7-floor", "pushes are trusted with any token", TRUST, |r| r.r7_floor = false),
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
    ]
}
