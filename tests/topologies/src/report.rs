//! The results of a scenario, as a line and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::checker::Findings;
use crate::record::Record;
use crate::scenarios::Extent;

/// `--short` runs next to other tests, so there a figure passes up to this multiple of its reach.
pub const BUSY: u64 = 3;

#[derive(Debug)]
pub struct Report {
    pub figures: Vec<Figure>,
    /// Empty if the scenario passed.
    pub failures: Vec<String>,
    /// A figure passes up to this multiple of its reach.
    slack: u64,
}

#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    value: u64,
    /// The greatest value that the project wants.
    reach: Option<u64>,
}

impl Report {
    pub fn new(extent: Extent) -> Self {
        let slack = if extent == Extent::Short { BUSY } else { 1 };
        Self { figures: Vec::new(), failures: Vec::new(), slack }
    }

    pub fn figure(&mut self, name: &str, value: u64) -> &mut Self {
        self.add(Figure { name: name.to_owned(), value, reach: None })
    }

    fn add(&mut self, figure: Figure) -> &mut Self {
        self.figures.retain(|other| other.name != figure.name);
        self.figures.push(figure);
        self
    }

    /// Adds the results of a second part of the scenario, with `part` before their names.
    pub fn append(&mut self, part: &str, other: Self) -> &mut Self {
        self.failures.extend(other.failures.into_iter().map(|failure| format!("{part}: {failure}")));
        self.figures.extend(
            other.figures.into_iter().map(|figure| Figure { name: format!("{part}: {}", figure.name), ..figure }),
        );
        self
    }

    pub fn must(&mut self, is_so: bool, what: impl Into<String>) -> &mut Self {
        if !is_so {
            self.failures.push(what.into());
        }
        self
    }

    /// A figure that the project wants to be at most `reach`.
    pub fn reach(&mut self, name: &str, value: u64, reach: u64) -> &mut Self {
        let most = self.slack * reach;
        self.add(Figure { name: name.to_owned(), value, reach: Some(reach) });
        self.must(value <= most, format!("{name}: {value}, and at most {most} passes (the reach is {reach})"))
    }

    pub fn findings(&mut self, findings: &Findings, record: &Record) -> &mut Self {
        self.figure("grants", findings.grants as u64);
        self.figure("lost", findings.lost());
        self.figure("established lost", findings.established_lost);
        self.figure("overlaps", findings.overlaps.len() as u64);
        self.figure("tokens back", findings.tokens_back);
        self.figure("refused while valid", findings.refused_while_valid);
        self.figure("fenced off", record.counted("fenced off"));
        self.figure("stall ms", findings.stall());
        self.figure("stall of a name ms", findings.name_stall);
        self.figure("ghosts", findings.ghosts.len() as u64);
        let errors = record.counts("error").iter().chain(&record.counts("nested error")).map(|(_, count)| count).sum();
        self.figure("errors", errors);
        self.must(findings.grants > 0, "nothing was granted")
    }

    /// P5: a released name is free, even on a server that missed the release.
    pub fn must_have_no_ghosts(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.ghosts.is_empty(), format!("ghosts: {:#?}", findings.ghosts))
    }

    /// P2: tokens grow.
    pub fn must_keep_tokens(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.tokens_back == 0, "tokens went back")
    }

    /// P1: this scenario promises exclusion.
    pub fn must_exclude(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.overlaps.is_empty(), format!("overlaps: {:#?}", findings.overlaps));
        self.must(findings.refused_while_valid == 0, "the resource refused a valid holder")
    }

    /// No holder loses its hold, however young.
    pub fn must_lose_nothing(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.lost() == 0, format!("holds were lost: {:?}", findings.losses))
    }

    /// For holders whose hold the new master did not know: they were notified, and rely on it no longer.
    pub fn must_tell(&mut self, findings: &Findings) -> &mut Self {
        self.figure("young lost", findings.lost() - findings.established_lost);
        self.reach("told of a loss after ms", findings.told_after, 1000);
        self.reach("two at once until ms", findings.overlapped_until, 1000)
    }

    /// For a master that failed. `detected_ms` is the topology's own part of the stall: from the fault until most
    /// Sentinels, or nodes of the cluster, named another master.
    pub fn must_recover(&mut self, findings: &Findings, detected_ms: u64) -> &mut Self {
        self.figure("switched after ms", detected_ms);
        self.reach("stall behind the switch ms", findings.name_stall.saturating_sub(detected_ms), 1000);
        self.must_tell(findings)
    }

    /// No holder loses a hold that had surely reached the replicas.
    pub fn must_keep_established(&mut self, findings: &Findings) -> &mut Self {
        let lost = findings.established_lost;
        self.must(lost == 0, format!("{lost} established holds were lost: {:?}", findings.losses))
    }

    pub fn line(&self) -> String {
        let shown = self.figures.iter().map(|figure| match figure.reach {
            Some(reach) => format!("{} {} (reach {reach})", figure.name, figure.value),
            None => format!("{} {}", figure.name, figure.value),
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// The reports of all rounds, by scenario.
#[derive(Default)]
pub struct Summary {
    scenarios: BTreeMap<String, Vec<Report>>,
}

impl Summary {
    pub fn add(&mut self, scenario: &str, report: Report) {
        self.scenarios.entry(scenario.to_owned()).or_default().push(report);
    }

    /// The numbers of passed and failed reports.
    pub fn count(&self) -> (usize, usize) {
        let all = self.scenarios.values().flatten();
        let (passed, failed): (Vec<_>, Vec<_>) = all.partition(|report| report.failures.is_empty());
        (passed.len(), failed.len())
    }

    /// For each scenario its rounds, and for each figure its values in the rounds and their median.
    pub fn write(&self, server: &str, file: &Path) {
        let mut text = format!("{{\n  \"server\": \"{server}\",\n  \"scenarios\": {{");
        for (index, (name, reports)) in self.scenarios.iter().enumerate() {
            let failed = reports.iter().filter(|report| !report.failures.is_empty()).count();
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\n    \"{name}\": {{ \"rounds\": {}, \"failed\": {failed}", reports.len());
            for (figure, values) in values(reports) {
                let _ = write!(text, ",\n      \"{figure}\": {{ {} }}", values.json());
            }
            text.push_str(" }");
        }
        text.push_str("\n  }\n}\n");
        std::fs::create_dir_all(file.parent().expect("a file in a folder")).unwrap();
        std::fs::write(file, text).unwrap();
    }
}

/// One figure in all rounds.
#[derive(Default)]
struct Values {
    rounds: Vec<u64>,
    reach: Option<u64>,
}

impl Values {
    fn json(&self) -> String {
        let mut sorted = self.rounds.clone();
        sorted.sort_unstable();
        let rounds = self.rounds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let reach = self.reach.map_or_else(String::new, |reach| format!(", \"reach\": {reach}"));
        format!("\"median\": {}{reach}, \"rounds\": [{rounds}]", sorted[sorted.len() / 2])
    }
}

fn values(reports: &[Report]) -> BTreeMap<&str, Values> {
    let mut values: BTreeMap<&str, Values> = BTreeMap::new();
    for figure in reports.iter().flat_map(|report| &report.figures) {
        let of_all = values.entry(&figure.name).or_default();
        of_all.rounds.push(figure.value);
        of_all.reach = figure.reach.or(of_all.reach);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_reach_fails_and_in_short_form_only_what_is_far_beyond() {
        let fails = |extent, value| !Report::new(extent).reach("stall ms", value, 1000).failures.is_empty();
        assert_eq!([1000, 1001].map(|value| fails(Extent::Full, value)), [false, true]);
        assert_eq!([1001, 3000, 3001].map(|value| fails(Extent::Short, value)), [false, false, true]);
    }
}
