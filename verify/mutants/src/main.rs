//! Deliberate bugs: each mutant of `mutants.txt` removes one rule from a copy of the code, and the runs that
//! `verify/corpus.txt` names for it must find it.
//!
//! `scripts/mutants` tries all of them, or the named ones. To try all, the whole corpus must first pass with the
//! unmodified code. Exit code 1: that failed, or a mutant was missed or does not apply.
//! - `--check`: only checks that each edit applies exactly once, and that each mutant has a run in the corpus
//! - `--search`: seeds from 1 on instead of the corpus, for new mutants
//! - `--choose`, as `scripts/corpus`: writes the corpus again. A mutant keeps a run that finds it, but not with `--all`
//! - `--listed FILE`, as `scripts/mutate_proto`: the mutants of cargo-mutants (`proto.rs`)

mod catalogue;
mod choose;
mod corpus;
mod listed;
mod proto;
mod schemata;
/// The simulator's own file, which maps seeds to runs.
#[allow(dead_code, reason = "the simulator uses the rest of it")]
#[path = "../../simulate/src/seed.rs"]
mod seed;
mod simulator;
mod sources;
mod tokens;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, thread};

use catalogue::Mutant;
use corpus::{Corpus, Run};
use simulator::Simulator;
use sources::Sources;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus.txt");
const MUTANTS: &str = include_str!("../mutants.txt");
const OPTIONS: [&str; 4] = ["--check", "--search", "--choose", "--all"];

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(words: Vec<String>) -> Outcome<bool> {
    if let Some(("--listed", words)) = words.split_first().map(|(first, words)| (first.as_str(), words)) {
        return proto::run(Path::new(ROOT), words);
    }
    let (options, names): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| OPTIONS.contains(&word.as_str()));
    let has = |option: &str| options.iter().any(|given| given == option);
    let mutants = Mutant::all(MUTANTS).map_err(|malformed| malformed.to_string())?;
    let all: Vec<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(
            format!("{unknown}: unknown; there are {} and the names {}", OPTIONS.join(" "), all.join(" ")).into()
        );
    }
    let chosen: Vec<_> =
        all.iter().copied().filter(|name| names.is_empty() || names.iter().any(|one| one == name)).collect();

    let changed = schemata::all_in_one(&Sources::read(Path::new(ROOT))?, &mutants)?;
    let mut corpus = read_corpus()?;
    let wrong = corpus.wrong(&all);
    if has("--check") {
        wrong.iter().for_each(|wrong| println!("{wrong}"));
        println!("{} mutants apply", all.len());
        return Ok(wrong.is_empty());
    }
    let simulator = Simulator::build(Path::new(ROOT), &changed)?;
    if has("--choose") {
        corpus.0.retain(|run, _| !has("--all") || matches!(run, Run::Scenario(_)));
        corpus.0.values_mut().for_each(|names| names.retain(|name| all.contains(&name.as_str())));
        let missed = choose::choose(&simulator, corpus, &chosen, Path::new(CORPUS))?;
        println!("{} of {} have a run; without one: {}", chosen.len() - missed.len(), chosen.len(), missed.join(" "));
        return Ok(missed.is_empty());
    }
    if names.is_empty() && !has("--search") && !passes_unmodified(&simulator, &corpus)? {
        return Ok(false);
    }
    let results = in_parallel(&chosen, |mutant| {
        let found = if has("--search") {
            simulator.search(mutant, 1..u64::MAX)?
        } else {
            by_corpus(&simulator, &corpus, mutant)?
        };
        match &found {
            Some((run, violation)) => println!("caught  {mutant:<48} {run}: {violation}"),
            None => println!("MISSED  {mutant:<48} scripts/corpus looks for another run"),
        }
        Ok(found.is_some())
    })?;
    let caught = results.iter().filter(|caught| **caught).count();
    println!("{caught} passed, {} failed", results.len() - caught);
    Ok(caught == results.len())
}

fn read_corpus() -> Outcome<Corpus> {
    match fs::read_to_string(CORPUS) {
        Ok(text) => Ok(Corpus::parse(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Corpus::default()),
        Err(error) => Err(error.into()),
    }
}

fn passes_unmodified(simulator: &Simulator, corpus: &Corpus) -> Outcome<bool> {
    let explored: Vec<_> = corpus.0.keys().filter(|run| run.is_of_the_explorer()).collect();
    let violated = simulator.violated(&explored)?;
    violated.iter().for_each(|violated| println!("VIOLATED by the unmodified machine, {violated}"));
    Ok(simulator.passes_unmodified(Path::new(CORPUS))? && violated.is_empty())
}

/// The first of the mutant's runs that finds it.
fn by_corpus(simulator: &Simulator, corpus: &Corpus, mutant: &str) -> io::Result<Option<(Run, String)>> {
    for run in corpus.of(mutant) {
        if let Some(violation) = simulator.run(mutant, run)? {
            return Ok(Some((run.clone(), violation)));
        }
    }
    Ok(None)
}

/// Runs the task for each thing, one on each core at a time.
fn in_parallel<A: Sync, B: Send>(things: &[A], task: impl Fn(&A) -> io::Result<B> + Sync) -> io::Result<Vec<B>> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(thing) = things.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = task(thing);
                    results.lock().unwrap_or_else(|broken| broken.into_inner()).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|broken| broken.into_inner()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies() {
        let sources = Sources::read(Path::new(ROOT)).expect("the sources are there");
        let mutants = Mutant::all(MUTANTS).unwrap_or_else(|malformed| panic!("{malformed}"));
        let wrong = schemata::all_in_one(&sources, &mutants).err().unwrap_or_default();
        assert!(wrong.is_empty(), "\n{wrong}");
    }

    #[test]
    fn each_thing_is_done_once() {
        let mut done = in_parallel(&[1, 2, 3, 4, 5], |thing| Ok(thing * 2)).expect("no task fails");
        done.sort_unstable();
        assert_eq!(done, [2, 4, 6, 8, 10]);
    }
}
