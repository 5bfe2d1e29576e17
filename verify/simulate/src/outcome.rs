//! The results of one run, and of many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::faults::{FAULTS, QUORUM_FAULTS, SHARED_FAULTS};
use crate::seed::Topology;

#[derive(Default)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub grants: u64,
    /// Guards of a quorum.
    pub guards: u64,
    pub handed_over: u64,
    pub expiries: u64,
    pub sections: u64,
    pub ghosts: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub virtual_time: Duration,
    pub fingerprint: u64,
    pub timeline: Vec<String>,
}

#[derive(Default)]
pub struct Totals {
    seeds: u64,
    grants: u64,
    guards: u64,
    handed_over: u64,
    expiries: u64,
    sections: u64,
    ghosts: u64,
    faults: BTreeMap<&'static str, u64>,
    violations: u64,
    virtual_seconds: f64,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.grants += outcome.grants;
        self.guards += outcome.guards;
        self.handed_over += outcome.handed_over;
        self.expiries += outcome.expiries;
        self.sections += outcome.sections;
        self.ghosts += outcome.ghosts;
        self.violations += outcome.violations.len() as u64;
        self.virtual_seconds += outcome.virtual_time.as_secs_f64();
        for (kind, count) in &outcome.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }

    pub fn json(&self, wall: Duration) -> String {
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("\"{kind}\":{count}")).collect();
        format!(
            "{{\"seeds\":{},\"grants\":{},\"guards\":{},\"handed_over\":{},\"sections\":{},\"expiries\":{},\"ghosts\":{},\"faults\":{{{}}},\
             \"violations\":{},\"virtual_seconds\":{:.0},\"wall_seconds\":{:.1}}}",
            self.seeds,
            self.grants,
            self.guards,
            self.handed_over,
            self.sections,
            self.expiries,
            self.ghosts,
            faults.join(","),
            self.violations,
            self.virtual_seconds,
            wall.as_secs_f64()
        )
    }
}

/// The totals of each topology, and of all.
#[derive(Default)]
pub struct Tally {
    each: BTreeMap<Topology, Totals>,
    pub all: Totals,
}

impl Tally {
    pub fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.each.entry(Topology::of(seed)).or_default().add(outcome);
        self.all.add(outcome);
    }

    /// The kinds of faults that no run met, although runs of that kind can have them.
    pub fn missing(&self) -> Vec<&'static str> {
        let met = |kinds: &[Topology]| -> BTreeSet<&str> {
            let of_kind = self.each.iter().filter(|(topology, _)| kinds.contains(topology));
            of_kind.flat_map(|(_, totals)| totals.faults.keys().copied()).collect()
        };
        let others = met(&[Topology::OneServer, Topology::Cluster]);
        let (quorums, shared) = (met(&[Topology::Quorum]), met(&[Topology::Shared]));
        let missing = FAULTS.into_iter().filter(|kind| !others.contains(kind));
        let missing = missing.chain(QUORUM_FAULTS.into_iter().filter(|kind| !quorums.contains(kind)));
        missing.chain(SHARED_FAULTS.into_iter().filter(|kind| !shared.contains(kind))).collect()
    }

    /// For people: one line for each topology, and its faults below it.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (topology, totals) in &self.each {
            let Totals { seeds, grants, guards, sections, handed_over, expiries, .. } = totals;
            let (name, hours) = (topology.name(), totals.virtual_seconds / 3600.0);
            let guards = if *guards > 0 { format!(" for {guards} guards") } else { String::new() };
            lines.push(format!(
                "{name:10}  {seeds} seeds, {hours:.1} hours of virtual time: {grants} grants{guards}, {handed_over} handed \
                 over, {expiries} expired; {sections} sections"
            ));
            let mut line = String::new();
            for (kind, count) in &totals.faults {
                if line.len() > 100 {
                    lines.push(format!("            {}", std::mem::take(&mut line)));
                }
                line += &format!("{} {count}  ", kind.replace('_', " "));
            }
            lines.push(format!("            {line}"));
        }
        lines
    }
}
