//! Deliberate bugs: each mutant of `mutants.txt` removes one rule from a copy of the code, and the simulator
//! must find it.
//!
//! `scripts/mutants` tries all of them, or those that are named. `scripts/mutants --sample N` tries N that are chosen at
//! random among those that are not rare, `scripts/mutants --check` only checks that each edit applies exactly once. Exit code 1: a mutant was
//! missed or does not apply.

mod catalogue;
mod sources;
mod tokens;
mod trial;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::process::ExitCode;

use catalogue::Mutant;
use sources::Sources;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const MUTANTS: &str = include_str!("../mutants.txt");

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

fn run(mut words: Vec<String>) -> Outcome<bool> {
    let check_only = words.iter().any(|word| word == "--check");
    words.retain(|word| word != "--check");
    let sample = match words.iter().position(|word| word == "--sample") {
        Some(index) => Some(words.drain(index..).nth(1).ok_or("--sample needs a number")?.parse::<usize>()?),
        None => None,
    };
    let mut mutants = Mutant::all(MUTANTS).map_err(|malformed| malformed.to_string())?;
    if let Some(unknown) = words.iter().find(|word| mutants.iter().all(|mutant| mutant.name != **word)) {
        let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
        return Err(format!("{unknown}: unknown; there are --check and the names {}", names.join(" ")).into());
    }
    mutants.retain(|mutant| words.is_empty() || words.contains(&mutant.name));
    if sample.is_some() {
        mutants.retain(|mutant| !mutant.is_rare);
    }
    let most = sample.unwrap_or(mutants.len());
    while mutants.len() > most {
        mutants.swap_remove(random_below(mutants.len()));
    }

    // All edits are checked before the first build, because builds are slow.
    let sources = Sources::read(Path::new(ROOT))?;
    let (mut applied, mut wrong) = (Vec::new(), 0);
    for mutant in mutants {
        match sources.with(&mutant) {
            Ok(changed) => applied.push((mutant, changed)),
            Err(why) => {
                print!("{why}");
                wrong += 1;
            }
        }
    }
    if check_only {
        println!("{} of {} mutants apply", applied.len(), applied.len() + wrong);
        return Ok(wrong == 0);
    }
    let caught = trial::all(Path::new(ROOT), &applied)?;
    let failed = applied.len() + wrong - caught;
    println!("{caught} passed, {failed} failed");
    Ok(failed == 0)
}

/// Differs from run to run, so that CI comes to all of them in a few days.
fn random_below(limit: usize) -> usize {
    // Keyed at random by the standard library.
    let random = RandomState::new().hash_one(limit);
    usize::try_from(random % limit as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies() {
        let sources = Sources::read(Path::new(ROOT)).expect("the sources are there");
        let mutants = Mutant::all(MUTANTS).unwrap_or_else(|malformed| panic!("{malformed}"));
        let wrong: String = mutants.iter().filter_map(|mutant| sources.with(mutant).err()).collect();
        assert!(wrong.is_empty(), "\n{wrong}");
    }
}
