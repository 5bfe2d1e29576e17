//! The groups of rows. The rows of a group share their rounds.

mod dead;
mod fairness;
mod given_up;
mod hand_off;
mod held;
mod link;
mod memory;
mod names;
mod nested;
mod pairs;
mod quorum;
mod script_time;
mod waiting;

use futures::future::LocalBoxFuture;

use crate::{Bench, Outcome};

pub struct Group {
    pub what: &'static str,
    /// The names of its rows.
    pub names: Vec<String>,
    pub run: for<'a> fn(&'a mut Bench) -> LocalBoxFuture<'a, Outcome<()>>,
}

macro_rules! group {
    ($what:literal, $module:ident :: $run:ident, $names:expr) => {
        Group { what: $what, names: $names.into_iter().map(Into::into).collect(), run: |b| Box::pin($module::$run(b)) }
    };
}

pub fn groups() -> Vec<Group> {
    vec![
        group!("lock and unlock", pairs::alone, pairs::ALONE),
        group!("lock and unlock, many tasks", pairs::many, ["uncontended-1000"]),
        group!("nested", nested::run, ["nested"]),
        group!("hand-off", hand_off::latency, hand_off::names()),
        group!("hand-offs a second", hand_off::throughput, ["hand-offs-5000"]),
        group!("hand-off over a link of 10 ms", link::run, ["hand-off-10ms", "hand-off-vs-retry-10ms"]),
        group!("time of each script", script_time::run, script_time::names()),
        group!("dead waiters", dead::run, ["dead-waiters-10000", "dead-waiters-10000-call"]),
        group!("killed waiters", dead::killed, dead::KILLED),
        group!("waits that are given up", given_up::run, given_up::NAMES),
        group!("waiting", waiting::run, ["waiting-10000-client", "waiting-10000-redis", waiting::POLL]),
        group!("held", held::run, held::NAMES),
        group!("memory", memory::run, ["memory-held", "memory-waiting", "memory-churn"]),
        group!("names used once", names::run, ["names-1000000", "names-1000000-left"]),
        group!("fairness", fairness::run, fairness::NAMES),
        group!("quorum", quorum::pairs, quorum::PAIRS),
        group!("quorum, many tasks", quorum::competing, quorum::COMPETING),
        group!("quorum, faults", quorum::faults, quorum::FAULTS),
    ]
}
