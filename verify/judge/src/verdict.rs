//! The findings, and how much of the history the judge could use.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::history::{History, Hold, How, MS, NEVER, Time};
use crate::table::touches;

/// How many violations of each kind the report keeps. It counts all of them.
const KEPT: usize = 200;
/// What a machine that is busy with the campaign may add to any time.
pub const SLACK: Time = 750 * MS;

pub struct Violation {
    pub promise: &'static str,
    pub t: Time,
    pub text: String,
}

#[derive(Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    pub counts: BTreeMap<&'static str, usize>,
    /// For each promise: how much the judge checked, of how much.
    judged: BTreeMap<&'static str, (u64, u64)>,
    /// Losses by cause, and by single fault.
    pub losses: BTreeMap<&'static str, usize>,
    by_fault: BTreeMap<usize, usize>,
}

impl Verdict {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn broken(&mut self, promise: &'static str, t: Time, text: String) {
        let count = self.counts.entry(promise).or_default();
        *count += 1;
        if *count <= KEPT {
            self.violations.push(Violation { promise, t, text });
        }
    }

    pub fn judged(&mut self, promise: &'static str, part: u64, of: u64) {
        let judged = self.judged.entry(promise).or_default();
        *judged = (judged.0 + part, judged.1 + of);
    }

    pub fn loss(&mut self, history: &History, is_forced: bool, cause: Option<usize>) {
        let kind = cause.map_or("none", |fault| history.faults[fault].kind.as_str());
        let group = match kind {
            _ if is_forced => "force_unlock",
            "silent" | "one-way-out" | "one-way-in" | "cable" | "halves" | "ring" | "cut-server" => "partition",
            "stop-client" | "stop-server" => "SIGSTOP",
            "wipe-server" | "flush" | "flush-majority" => "lost data",
            "kill-server" | "failover" | "stray-master" => "failover or restart",
            "none" => "its own lease",
            _ => "other faults",
        };
        *self.losses.entry(group).or_default() += 1;
        if let (Some(fault), false) = (cause, is_forced) {
            *self.by_fault.entry(fault).or_default() += 1;
        }
    }

    /// Whether one of these promises is broken, or any if the list is empty.
    pub fn fails(&self, only: &[&str]) -> bool {
        self.counts.keys().any(|promise| only.is_empty() || only.contains(promise))
    }

    /// All figures, as one object.
    pub fn report(&self, history: &History) -> Value {
        let share = |(part, of): &(u64, u64)| if *of == 0 { 1.0 } else { round(*part as f64 / *of as f64) };
        let judged: BTreeMap<_, _> = self.judged.iter().map(|(promise, of)| (promise, share(of))).collect();
        let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
        history.faults.iter().for_each(|fault| *faults.entry(&fault.kind).or_default() += 1);
        let run = &history.run;
        json!({
            "topology": run.topology,
            "strict": run.strict,
            "seed": run.seed,
            "seconds": run.quiet.saturating_sub(run.began) / 1_000_000_000,
            "acquisitions": (0..history.holds.len()).filter(|hold| history.is_grant(*hold)).count(),
            "by_mode": by_mode(history),
            "handles": handles(history),
            "names": history.names.len(),
            "clients": history.clients.len(),
            "handovers": handovers(history),
            "in_faults": in_faults(history),
            "faults": faults,
            "lost": self.losses,
            "most_lost_by_one_fault": self.by_fault.values().max().copied().unwrap_or_default(),
            "stalled_ms": history.stalls.iter().map(|(from, to)| (to - from) / 1_000_000).sum::<u64>(),
            "torn_lines": history.torn,
            "judged": judged,
            "violations": self.counts,
        })
    }
}

fn round(share: f64) -> f64 {
    (share * 10_000.0).round() / 10_000.0
}

fn by_mode(history: &History) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    let granted = history.holds.iter().enumerate().filter(|(index, _)| history.is_grant(*index));
    granted.for_each(|(_, hold)| *counts.entry(history.calls[hold.call].mode).or_default() += 1);
    counts
}

/// The number of handles, and the outcomes of the calls with them.
fn handles(history: &History) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let detached = history.holds.iter().filter(|hold| hold.handle().is_some_and(|handle| handle.until > 0)).count();
    counts.insert("detached".to_owned(), detached);
    for call in history.calls.iter().filter(|call| call.handle_of.is_some()) {
        let how = if call.how == How::Attach { "attach" } else { "release" };
        let outcome = if call.hold.is_some() { "ok" } else { call.why.as_deref().unwrap_or("no answer") };
        *counts.entry(format!("{how} {outcome}")).or_default() += 1;
    }
    counts
}

/// Hand-overs of locks: a hold began while another process, which had the name before, was about to release it.
fn handovers(history: &History) -> usize {
    let mut count = 0;
    for mut held in history.by_name(&history.holds, |hold| hold.name) {
        let is_lock = |hold: &Hold| history.calls[hold.call].of == 1;
        held.retain(|hold| history.is_grant(*hold) && is_lock(&history.holds[*hold]));
        held.sort_by_key(|hold| history.holds[*hold].token);
        count += held
            .windows(2)
            .map(|pair| (&history.holds[pair[0]], &history.holds[pair[1]]))
            .filter(|(one, next)| one.client != next.client && history.calls[next.call].asked < one.free)
            .filter(|(one, _)| one.free != NEVER)
            .count();
    }
    count
}

/// Acquisitions during a fault that touches their client or server.
fn in_faults(history: &History) -> usize {
    let touched = |hold: &&crate::history::Hold| {
        let (shard, host) = (history.shard_of(hold.name), history.host_of(hold.client));
        let (from, to) = (history.calls[hold.call].asked, hold.free.min(hold.until));
        history.faults.iter().any(|fault| fault.from < to && fault.to > from && touches(fault, shard, Some(host)))
    };
    history.holds.iter().filter(touched).count()
}
