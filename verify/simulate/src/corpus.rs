//! The runs that gate a change: fixed seeds and all scenarios. They are deterministic.
//!
//! A line of the file is a run and the mutants that it is there for: `SEED mutant…` or `scenario NAME mutant…`. A `#`
//! begins a comment. This program ignores the mutants: scripts/mutants runs the line under each of them.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::outcome::Tally;
use crate::run::run;
use crate::{report, scenario, threads};

#[derive(Default, Debug, PartialEq)]
struct Corpus {
    seeds: Vec<u64>,
    /// Scenarios with mutants. All scenarios run anyway.
    scenarios: BTreeSet<String>,
}

impl Corpus {
    fn parse(text: &str) -> Result<Self, String> {
        let mut corpus = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let wrong = |what: &str| format!("line {number}: {what}: {line}");
            match words.next() {
                // `search`, `world` and `kinds` are runs of verify/explore.
                None | Some("search" | "world" | "kinds") => continue,
                Some("scenario") => {
                    let name = words.next().ok_or_else(|| wrong("no name"))?;
                    corpus.scenarios.insert(name.to_owned());
                }
                Some(seed) => {
                    let seed = seed.parse().map_err(|_| wrong("neither a seed nor a scenario"))?;
                    if corpus.seeds.contains(&seed) {
                        return Err(wrong("twice"));
                    }
                    corpus.seeds.push(seed);
                }
            }
            let is_name = |word: &str| word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
            if !words.all(is_name) {
                return Err(wrong("the names of mutants have letters, digits and dashes"));
            }
        }
        Ok(corpus)
    }
}

/// Runs all of it. Fails if a run breaks a promise, if no seed meets some kind of fault, or if the first seed gives two
/// different runs.
pub fn check(file: &str) -> Result<bool, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let corpus = Corpus::parse(&text).map_err(|wrong| format!("{file}, {wrong}"))?;
    let unknown: Vec<_> = corpus.scenarios.iter().filter(|name| !scenario::exists(name)).collect();
    if !unknown.is_empty() {
        return Err(format!("{file}: there are no scenarios {unknown:?}"));
    }
    let begun = Instant::now();
    // The first one once more, at the end.
    let runs: Vec<_> = corpus.seeds.iter().chain(corpus.seeds.first()).copied().collect();
    let mut outcomes = threads::each(&runs, |seed| run(*seed, false));
    let again = outcomes.pop();
    let mut tally = Tally::default();
    corpus.seeds.iter().zip(&outcomes).for_each(|(seed, outcome)| tally.add(*seed, outcome));
    let failed = report::failures(corpus.seeds.iter().copied().zip(&outcomes));
    let first = outcomes.first().zip(again.as_ref());
    let is_repeated = first.is_some_and(|(first, again)| report::is_repeated(corpus.seeds[0], first, again));
    let scenarios = scenario::tell_all();
    let missing = tally.missing();
    tally.lines().iter().for_each(|line| println!("{line}"));
    println!("{} seeds in {:.0} s: {failed} failed", outcomes.len(), begun.elapsed().as_secs_f64());
    if !missing.is_empty() {
        println!("TOO QUIET: no seed meets {}", missing.join(" "));
    }
    println!("{}", tally.all.json(begun.elapsed()));
    Ok(failed == 0 && is_repeated && scenarios && missing.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_run_and_its_mutants() {
        let corpus = Corpus::parse("# all\n17 R7-floor P3-x # why\n\nscenario a-b Q1-c\n9\nsearch two M-d\n");
        let scenarios = BTreeSet::from(["a-b".to_owned()]);
        assert_eq!(corpus, Ok(Corpus { seeds: vec![17, 9], scenarios }));
        for wrong in ["x17", "scenario", "17 R7_floor", "5\n5"] {
            assert!(Corpus::parse(wrong).is_err(), "{wrong}");
        }
    }
}
