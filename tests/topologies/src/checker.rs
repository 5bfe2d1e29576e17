//! Finds forbidden behaviour in the observations of the clients.

use std::collections::BTreeMap;

use crate::record::{End, Hold, Record};
use crate::story;
use crate::testbed::{Nanos, note, to_ms};

/// A released name must be granted again within this time, counted from when its server grants again.
const GHOST: Nanos = 2_000_000_000;
/// A group without a grant for longer than this had an outage.
const OUTAGE: Nanos = 300_000_000;
/// A hold that began this long before the fault has surely reached the replicas.
const ESTABLISHED: Nanos = 1_000_000_000;

#[derive(Debug, Default)]
pub struct Findings {
    pub grants: usize,
    /// The number of lost holds, by kind of loss.
    pub losses: BTreeMap<String, u64>,
    /// The lost holds that began a second before the first fault.
    pub established_lost: u64,
    /// The time from the switch until the last of their holders was notified, in ms.
    pub told_after: u64,
    pub overlaps: Vec<String>,
    /// The time from the switch until two holders no longer relied on one lock, in ms.
    pub overlapped_until: u64,
    /// Writes that the resource refused although their hold looked valid: a later holder had already written.
    pub refused_while_valid: u64,
    /// Consecutive holds of a name without a greater token in the later one.
    pub tokens_back: u64,
    /// The longest time without a grant, for each group of names.
    pub stalls: BTreeMap<usize, u64>,
    /// The longest time without a grant of a single name.
    pub name_stall: u64,
    /// The same for names in a slot that moves: Redis itself makes them wait.
    pub moved_stall: u64,
    /// Released names that were not granted again within 2 s, although others of their group were.
    pub ghosts: Vec<String>,
}

/// `group`: names of the same group live on the same server.
pub fn check(record: &Record, group: &dyn Fn(&str) -> usize) -> Findings {
    let mut holds = record.holds();
    holds.sort_by_key(|hold| hold.start);
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    let mut grants: BTreeMap<usize, Vec<Nanos>> = BTreeMap::new();
    for hold in &holds {
        by_name.entry(&hold.name).or_default().push(hold);
        if is_work(&hold.name) {
            grants.entry(group(&hold.name)).or_default().push(hold.start);
        }
    }
    let window = record.window();
    let mut findings = Findings { grants: holds.len(), ..Findings::default() };
    findings.count_losses(&holds, record.first_fault());
    findings.told_after = record.switch().map_or(0, |switch| told_after(&holds, switch));
    let gaps: BTreeMap<_, _> = grants.iter().map(|(group, grants)| (*group, gaps(grants, window))).collect();
    for (group, gaps) in &gaps {
        let (from, to) = longest_gap(gaps);
        note(format!("group {group}: longest without a grant from {} to {}", story::at(from), story::at(to)));
        findings.stalls.insert(*group, to_ms(to - from));
    }
    for (name, holds) in by_name {
        findings.check_order(name, &holds, record.switch());
        let own_gaps = self::gaps(&holds.iter().map(|hold| hold.start).collect::<Vec<_>>(), window);
        Findings::note_gaps(name, &holds);
        if is_work(name) {
            findings.name_stall = findings.name_stall.max(longest(&own_gaps));
            findings.find_ghosts(name, &holds, window, &gaps[&group(name)]);
        } else if name.starts_with("moved:") {
            findings.moved_stall = findings.moved_stall.max(longest(&own_gaps));
        }
    }
    findings.refused_while_valid = record.counted("refused while valid");
    findings
}

/// The time from the switch until the last holder was notified of its loss, in ms.
fn told_after(holds: &[Hold], switch: Nanos) -> u64 {
    let lost = holds.iter().filter(|hold| matches!(hold.end, End::Lost(_)));
    lost.map(|hold| to_ms(hold.ended.saturating_sub(switch.max(hold.start)))).max().unwrap_or_default()
}

/// Grants between these two instants.
pub fn granted_between(record: &Record, (from, to): (Nanos, Nanos)) -> Vec<String> {
    let holds = record.holds();
    let within = holds.iter().filter(|hold| (from..to).contains(&hold.start));
    within.map(|hold| format!("{}: token {}, {} ms too early", hold.name, hold.token, to_ms(to - hold.start))).collect()
}

/// Some task always wants these names, so only they show stalls.
fn is_work(name: &str) -> bool {
    name.starts_with("work:")
}

/// The times between grants, with the edges of the load.
fn gaps(grants: &[Nanos], (begun, ended): (Nanos, Nanos)) -> Vec<(Nanos, Nanos)> {
    let inside = grants.iter().copied().filter(|grant| (begun..ended).contains(grant));
    let edges: Vec<_> = std::iter::once(begun).chain(inside).chain([ended]).collect();
    edges.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn longest_gap(gaps: &[(Nanos, Nanos)]) -> (Nanos, Nanos) {
    gaps.iter().copied().max_by_key(|(from, to)| to - from).unwrap_or_default()
}

fn longest(gaps: &[(Nanos, Nanos)]) -> u64 {
    let (from, to) = longest_gap(gaps);
    to_ms(to - from)
}

impl Findings {
    pub fn lost(&self) -> u64 {
        self.losses.values().sum()
    }

    pub fn stall(&self) -> u64 {
        self.stalls.values().copied().max().unwrap_or_default()
    }

    fn count_losses(&mut self, holds: &[Hold], fault: Option<Nanos>) {
        for hold in holds {
            let End::Lost(loss) = &hold.end else { continue };
            note(format!(
                "{}: token {} was seen from {} to {}, and lost at {}: {loss}",
                hold.name,
                hold.token,
                story::at(hold.start),
                story::at(hold.last_valid),
                story::at(hold.ended)
            ));
            *self.losses.entry(loss.clone()).or_default() += 1;
            self.established_lost += u64::from(fault.is_none_or(|fault| hold.start + ESTABLISHED < fault));
        }
    }

    /// P1 and P2, over all holds of a name in the order in which they began.
    fn check_order(&mut self, name: &str, holds: &[&Hold], switch: Option<Nanos>) {
        // The hold so far that was valid for longest; the greatest token of finished holds.
        let mut last: Option<&Hold> = None;
        for (index, hold) in holds.iter().enumerate() {
            if let Some(last) = last.filter(|last| last.last_valid > hold.start) {
                let ms = to_ms(last.last_valid.min(hold.last_valid) - hold.start);
                let shown = format!("{name}: tokens {} and {} for {ms} ms", last.token, hold.token);
                self.overlaps.push(shown);
                let until = last.last_valid.min(hold.last_valid).saturating_sub(switch.unwrap_or(Nanos::MAX));
                self.overlapped_until = self.overlapped_until.max(to_ms(until));
            } else if index > 0 && last.is_some_and(|last| last.token >= hold.token) {
                self.tokens_back += 1;
            }
            if last.is_none_or(|last| last.last_valid < hold.last_valid) {
                last = Some(hold);
            }
        }
    }

    /// Notes long gaps in the story, with the hold before each gap.
    fn note_gaps(name: &str, holds: &[&Hold]) {
        for pair in holds.windows(2) {
            let ms = to_ms(pair[1].start.saturating_sub(pair[0].ended));
            if ms > 1000 {
                note(format!("{name}: {ms} ms without a holder, from token {} ({:?})", pair[0].token, pair[0].end));
            }
        }
    }

    fn find_ghosts(&mut self, name: &str, holds: &[&Hold], window: (Nanos, Nanos), outages: &[(Nanos, Nanos)]) {
        // What others of the name did meanwhile ends no ghost: only the end of the hold before does.
        for (index, hold) in holds.iter().enumerate() {
            let next = holds.get(index + 1).map_or(window.1, |next| next.start);
            let is_back = |(from, to): &&(Nanos, Nanos)| to - from >= OUTAGE && *to <= next;
            let back = outages.iter().filter(is_back).map(|(_, to)| *to).max().unwrap_or_default();
            let waited = next.saturating_sub(hold.ended.max(back));
            if waited > GHOST {
                self.ghosts.push(format!("{name}: token {}, {:?}, for {} ms", hold.token, hold.end, to_ms(waited)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;

    fn record(holds: &[(&str, u64, u64, u64)], end: End) -> Record {
        let record = Record::new(Resource::new());
        record.set_window(0, 9_100_000_000);
        for &(name, token, from, to) in holds {
            let (start, last_valid) = (from * 1_000_000, to * 1_000_000);
            let name = name.to_owned();
            record.add(Hold { name, token, start, last_valid, ended: last_valid, end: end.clone() });
        }
        record
    }

    #[test]
    fn finds_holds_at_the_same_time() {
        let record = record(&[("a", 1, 0, 10), ("a", 2, 9, 12), ("b", 3, 9, 10)], End::Freed);
        assert_eq!(check(&record, &|_| 0).overlaps, ["a: tokens 1 and 2 for 1 ms"]);
    }

    #[test]
    fn finds_a_hold_inside_of_another() {
        let record = record(&[("a", 1, 0, 10), ("a", 2, 2, 3), ("a", 3, 9, 12)], End::Freed);
        assert_eq!(check(&record, &|_| 0).overlaps.len(), 2);
    }

    #[test]
    fn finds_tokens_that_do_not_grow() {
        let record = record(&[("a", 2, 0, 1), ("a", 2, 2, 3), ("a", 1, 4, 5)], End::Freed);
        assert_eq!(check(&record, &|_| 0).tokens_back, 2);
    }

    #[test]
    fn tells_a_ghost_from_an_outage() {
        let all_stalled = record(&[("work:a", 1, 0, 1), ("work:b", 1, 0, 1), ("work:a", 2, 9000, 9001)], End::Freed);
        assert!(check(&all_stalled, &|_| 0).ghosts.is_empty());
        let busy = (1..90).map(|number| ("work:b", number, number * 100, number * 100 + 1));
        let holds: Vec<_> = [("work:a", 1, 0, 1), ("work:a", 2, 9000, 9001)].into_iter().chain(busy).collect();
        let found = check(&record(&holds, End::Freed), &|_| 0);
        assert_eq!(found.ghosts.len(), 1, "{found:?}");
    }

    #[test]
    fn measures_from_the_switch_when_a_loss_was_told_and_when_two_were_over() {
        let record = record(&[("a", 1, 0, 40), ("a", 2, 20, 50), ("b", 1, 30, 45)], End::Lost("gone".into()));
        record.switched(10_000_000);
        let found = check(&record, &|_| 0);
        assert_eq!((found.told_after, found.overlapped_until), (30, 30));
    }

    #[test]
    fn finds_grants_in_a_freeze() {
        let record = record(&[("a", 1, 0, 1), ("a", 2, 5, 6), ("a", 3, 10, 11)], End::Freed);
        let found = granted_between(&record, (5_000_000, 10_000_000));
        assert_eq!(found, ["a: token 2, 5 ms too early"]);
    }

    #[test]
    fn a_loss_of_a_fresh_hold_is_no_loss_of_an_established_one() {
        let record = record(&[("a", 1, 0, 10)], End::Lost("gone".into()));
        record.fault();
        let found = check(&record, &|_| 0);
        assert_eq!((found.lost(), found.established_lost), (1, 1));
    }
}
