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
    retries: 1,
    in_flight: 2,
    end: 2,
    lease: 2,
    last_lease: 2,
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

pub fn all() -> Vec<Variant> {
    let mut all = base();
    all.extend(dropped());
    all
}

fn base() -> Vec<Variant> {
    use Event::*;
    let holds = Variant::holds;
    vec![holds("s-two", "2 clients, one of which takes all", SMALL, &[HandOver, HeldByTrust, RetryAnswered])]
}

fn dropped() -> Vec<Variant> {
    let drop = Variant::drops;
    let _ = Fault::Revoke;
    vec![drop("s-limit", "a waiter is served whether it fits or not", SMALL, |r| r.fits_under_limit = false)]
}
