//! Compares the pairs that the random world meets with the possible ones, and its transitions with the list on
//! fairlock-proto's page.

use std::collections::BTreeSet;

use crate::coverage::{Coverage, KINDS};
use crate::impossible::IMPOSSIBLE;
use crate::witness::StageName;

const PAGE: &str = include_str!("../../../proto/src/lib.rs");

/// Returns the differences, line by line.
pub fn check(coverage: &Coverage) -> Vec<String> {
    let pairs = StageName::ALL.into_iter().flat_map(|stage| KINDS.map(|kind| (stage, kind)));
    let mut wrong: Vec<_> = pairs.filter_map(|(stage, kind)| check_pair(coverage, stage, kind)).collect();
    let (seen, listed) = (coverage.arrows(), listed());
    wrong.extend(seen.difference(&listed).map(|arrow| format!("{arrow} is not listed in proto/src/lib.rs")));
    wrong.extend(
        listed.difference(&seen).map(|arrow| format!("{arrow} is listed in proto/src/lib.rs, and was not seen")),
    );
    wrong
}

fn check_pair(coverage: &Coverage, stage: StageName, kind: &str) -> Option<String> {
    let met = coverage.met.iter().any(|((of, with), times)| *of == stage && *with == kind && *times > 0);
    let impossible = IMPOSSIBLE.iter().find(|(of, with, _)| *of == stage && *with == kind);
    match impossible {
        None if !met => Some(format!("{stage:?} was not met by {kind}")),
        Some((.., reason)) if met => Some(format!("{stage:?} was met by {kind}, although {reason}")),
        _ => None,
    }
}

fn listed() -> BTreeSet<String> {
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix("//! ")?.split_once(" -> "));
    let of_stages = lines.filter(|(from, _)| StageName::ALL.iter().any(|stage| format!("{stage:?}") == *from));
    of_stages.flat_map(|(from, to)| to.split(", ").map(move |to| format!("{from} -> {to}"))).collect()
}
