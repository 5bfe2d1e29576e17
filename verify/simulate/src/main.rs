//! Searches for bugs: whole clients on an embedded server, on one thread and in virtual time, under every fault that
//! the server's hooks allow. One seed decides a whole run, and whether it uses a single server, a cluster or a quorum.
//! A scenario is a run with written steps.
//!
//! ```text
//! scripts/simulate --corpus verify/corpus.txt
//! scripts/simulate --scenario a-place-that-comes-back-to-a-closed-client
//! scripts/simulate --seed 7
//! scripts/hunt --minutes 10
//! ```
//!
//! - `--corpus FILE`: the seeds of the file and all scenarios, which are deterministic (see corpus.rs)
//! - `--scenario NAME`: one scenario, with its story
//! - `--scenarios`: all scenarios, with their names
//! - `--seed N`: one seed, twice, with all its events; both runs must be the same
//! - `--seed N --seeds K`: K seeds from this one on
//! - `--seed N --seeds K --list`: the same, and for each seed a line with the faults that it meets
//! - `--hunt --minutes M`: as many seeds of each kind as time allows, from a random one or from `--seed N` on
//!
//! The last line is one JSON object. Exit code 1: a run broke a promise, or the corpus does not meet every fault.

mod actor;
mod asked;
mod checker;
mod closing;
mod cluster;
mod corpus;
mod faults;
mod hunt;
mod keys;
mod outcome;
mod quorum;
mod report;
mod run;
mod scenario;
mod seed;
mod shared;
mod sightings;
mod site;
mod story;
mod threads;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use outcome::Tally;
use run::run;

#[derive(Default)]
struct Args {
    seed: Option<u64>,
    seeds: Option<u64>,
    minutes: Option<f64>,
    corpus: Option<String>,
    scenario: Option<String>,
    scenarios: bool,
    hunt: bool,
    list: bool,
}

impl Args {
    fn parse() -> Result<Self, String> {
        let mut args = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            let mut value = || words.next().ok_or(format!("{option} needs a value"));
            let number = |value: String| value.parse().map_err(|_| format!("{value}: not a number"));
            match option.as_str() {
                "--seed" => args.seed = Some(number(value()?)?),
                "--seeds" => args.seeds = Some(number(value()?)?),
                "--minutes" => args.minutes = Some(value()?.parse().map_err(|_| "--minutes: not a number")?),
                "--corpus" => args.corpus = Some(value()?),
                "--scenario" => args.scenario = Some(value()?),
                "--scenarios" => args.scenarios = true,
                "--hunt" => args.hunt = true,
                "--list" => args.list = true,
                _ => return Err(format!("{option}: unknown; the head of verify/simulate/src/main.rs has all options")),
            }
        }
        Ok(args)
    }

    fn run(self) -> Result<bool, String> {
        let minutes = self.minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes));
        match (self.corpus, self.scenario, self.seed) {
            (Some(file), ..) => corpus::check(&file),
            (_, Some(name), _) => scenario::tell(&name),
            _ if self.scenarios => Ok(scenario::tell_all()),
            (.., seed) if self.hunt => {
                let minutes = minutes.ok_or("--hunt needs --minutes")?;
                Ok(hunt::hunt(seed.unwrap_or_else(seed::random), minutes))
            }
            (.., Some(first)) => Ok(match self.seeds {
                None => replay(first),
                Some(seeds) => soak(first, seeds, self.list),
            }),
            _ => Err("--corpus, --scenario, --scenarios, --seed or --hunt".to_owned()),
        }
    }
}

fn main() -> ExitCode {
    match Args::parse().and_then(Args::run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("simulate: {wrong}");
            ExitCode::from(2)
        }
    }
}

/// Runs one seed twice and prints its events. Both runs must have the same fingerprint.
fn replay(seed: u64) -> bool {
    let begun = Instant::now();
    let outcome = run(seed, true);
    let again = run(seed, false);
    outcome.timeline.iter().for_each(|line| println!("{line}"));
    outcome.violations.iter().for_each(|violation| println!("VIOLATED {violation}"));
    println!("seed {seed}: fingerprint {:016x}", outcome.fingerprint);
    let same = report::is_repeated(seed, &outcome, &again);
    let mut tally = Tally::default();
    tally.add(seed, &outcome);
    println!("{}", tally.all.json(begun.elapsed()));
    outcome.violations.is_empty() && same
}

/// Runs these seeds and reports all of them.
fn soak(first: u64, seeds: u64, lists: bool) -> bool {
    let begun = Instant::now();
    let seeds: Vec<_> = (first..first.saturating_add(seeds)).collect();
    let outcomes = threads::each(&seeds, |seed| {
        let begun = Instant::now();
        (run(*seed, false), begun.elapsed())
    });
    let mut tally = Tally::default();
    for (seed, (outcome, took)) in seeds.iter().zip(&outcomes) {
        tally.add(*seed, outcome);
        if lists {
            let faults: Vec<_> = outcome.faults.keys().copied().collect();
            println!("seed {seed}: grants {}, ms {}, faults {}", outcome.grants, took.as_millis(), faults.join(" "));
        }
    }
    let failed = report::failures(seeds.iter().copied().zip(outcomes.iter().map(|(outcome, _)| outcome)));
    println!("{}", tally.all.json(begun.elapsed()));
    failed == 0
}
