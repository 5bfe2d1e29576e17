//! What a scenario found, as a line and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::checker::Findings;
use crate::record::Record;

/// A loaded machine may be this much slower than what the project wants to reach.
const SLACK: u64 = 3;

#[derive(Debug, Default)]
pub struct Report {
    pub figures: Vec<(String, u64)>,
    /// What should not be. Empty: passed.
    pub failures: Vec<String>,
}

impl Report {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn figure(&mut self, name: &str, value: u64) -> &mut Self {
        self.figures.retain(|(other, _)| other != name);
        self.figures.push((name.to_owned(), value));
        self
    }

    pub fn must(&mut self, is_so: bool, what: impl Into<String>) -> &mut Self {
        if !is_so {
            self.failures.push(what.into());
        }
        self
    }

    /// A figure in milliseconds that the project wants to be at most `reach`. Only several times as much fails, since
    /// a loaded machine must not.
    pub fn reach(&mut self, name: &str, ms: u64, reach: u64) -> &mut Self {
        self.figure(name, ms).must(ms <= SLACK * reach, format!("{name}: {ms} ms, and {reach} should be reached"))
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

    /// P5: what was released is free, also on a server that has not heard of it.
    pub fn must_have_no_ghosts(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.ghosts.is_empty(), format!("ghosts: {:#?}", findings.ghosts))
    }

    /// P2: tokens grow.
    pub fn must_keep_tokens(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.tokens_back == 0, "tokens went back")
    }

    /// P1: exclusion is promised here.
    pub fn must_exclude(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.overlaps.is_empty(), format!("overlaps: {:#?}", findings.overlaps));
        self.must(findings.refused_while_valid == 0, "the resource refused a valid holder")
    }

    /// No hold is lost, however young.
    pub fn must_lose_nothing(&mut self, findings: &Findings) -> &mut Self {
        self.must(findings.lost() == 0, format!("holds were lost: {:?}", findings.losses))
    }

    /// No hold is lost that the replicas surely knew of.
    pub fn must_keep_established(&mut self, findings: &Findings) -> &mut Self {
        let lost = findings.established_lost;
        self.must(lost == 0, format!("{lost} established holds were lost: {:?}", findings.losses))
    }

    pub fn line(&self) -> String {
        let shown = self.figures.iter().map(|(name, value)| format!("{name} {value}"));
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

    /// `passed`, `failed`.
    pub fn count(&self) -> (usize, usize) {
        let all = self.scenarios.values().flatten();
        let (passed, failed): (Vec<_>, Vec<_>) = all.partition(|report| report.failures.is_empty());
        (passed.len(), failed.len())
    }

    /// For each scenario its rounds, and for each figure the values of the rounds and their median.
    pub fn write(&self, server: &str, file: &Path) {
        let mut text = format!("{{\n  \"server\": \"{server}\",\n  \"scenarios\": {{");
        for (index, (name, reports)) in self.scenarios.iter().enumerate() {
            let failed = reports.iter().filter(|report| !report.failures.is_empty()).count();
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\n    \"{name}\": {{ \"rounds\": {}, \"failed\": {failed}", reports.len());
            for (figure, mut values) in values(reports) {
                let shown = values.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                values.sort_unstable();
                let median = values[values.len() / 2];
                let _ = write!(text, ",\n      \"{figure}\": {{ \"median\": {median}, \"rounds\": [{shown}] }}");
            }
            text.push_str(" }");
        }
        text.push_str("\n  }\n}\n");
        std::fs::create_dir_all(file.parent().expect("a file in a folder")).unwrap();
        std::fs::write(file, text).unwrap();
    }
}

fn values(reports: &[Report]) -> BTreeMap<&str, Vec<u64>> {
    let mut values: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (figure, value) in reports.iter().flat_map(|report| &report.figures) {
        values.entry(figure).or_default().push(*value);
    }
    values
}
