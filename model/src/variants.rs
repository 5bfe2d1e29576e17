//! The runs: the base variants, which must hold, and one for each dropped rule, which must not.

use crate::protocol::{Bounds, Sight};
use crate::rules::Rules;

pub struct Variant {
    pub name: &'static str,
    pub about: &'static str,
    pub rules: Rules,
    pub bounds: Bounds,
    /// `None`: all must hold. Otherwise the properties of which one must catch it.
    pub caught_by: Option<&'static [&'static str]>,
    /// What a base variant must have come across.
    pub sights: &'static [Sight],
}

/// Two clients with one attempt each, in a lossless but unordered network.
fn small() -> Bounds {
    Bounds {
        clients: 2,
        attempts: 1,
        entries: 0,
        copies: 2,
        in_flight: 4,
        end: 3,
        lease: 2,
        grant_ttl: 2,
        waiter_ttl: 2,
        patience: 1,
        trust: false,
        lossy: false,
        force_unlock: false,
        restart: false,
    }
}

fn base(name: &'static str, about: &'static str, bounds: Bounds, sights: &'static [Sight]) -> Variant {
    Variant { name, about, rules: Rules::default(), bounds, caught_by: None, sights }
}

pub fn all() -> Vec<Variant> {
    use Sight::*;
    vec![
        base("two", "2 clients, 2 attempts each, every grant confirmed", Bounds { attempts: 2, ..small() }, &[HandOver]),
        base("trust", "2 clients, trusted push", Bounds { trust: true, ..small() }, &[HandOver, HeldByTrust]),
    ]
}
