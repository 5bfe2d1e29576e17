//! Chooses the runs of `verify/corpus.txt`.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::{fs, io};

use crate::catalogue::is_of_the_machine;
use crate::corpus::{Corpus, Run};
use crate::seed::SHARED;
use crate::simulator::{Simulator, is_of_shared_names, is_of_the_quorum};
use crate::{Outcome, in_parallel};

/// Together, these seeds meet every kind of fault.
const SEEDS_OF_ALL_FAULTS: u64 = 150;
/// The same for seeds of shared names, which have the same faults and a few of their own.
const SHARED_SEEDS_OF_ALL_FAULTS: u64 = 40;
/// How many seeds meet a kind of fault, so that some still do after a change of the code has changed one of them.
const RUNS_PER_FAULT: usize = 3;

/// These find most mutants. The others come at the end, so that the file soon has the quick finds.
const FIRST_SEEDS: std::ops::Range<u64> = 1..50;

/// Finds a run for each of these mutants that its own run does not find, then runs for the faults. Writes the file
/// after each step, so that a user can stop this without losing the finds. Returns the mutants without a run.
pub fn choose(simulator: &Simulator, corpus: Corpus, mutants: &[&str], path: &Path) -> Outcome<Vec<String>> {
    let corpus = Mutex::new(corpus);
    let locked = || corpus.lock().unwrap_or_else(|broken| broken.into_inner());
    let take = |mutant: &str, found: Option<(Run, String)>| {
        let (run, violation) = found?;
        println!("{mutant:<48} {run}: {violation}");
        let mut corpus = locked();
        corpus.assign(mutant, Some(run));
        Some(fs::write(path, corpus.to_string()))
    };
    let left = in_parallel(mutants, |mutant| {
        let candidates = candidates(&locked(), mutant);
        let found = take(mutant, find(simulator, mutant, candidates)?).transpose()?;
        Ok(found.is_none().then_some(*mutant))
    })?;
    let left: Vec<_> = left.into_iter().flatten().collect();
    println!("{} are left, which need more seeds", left.len());
    let missed = in_parallel(&left, |mutant| {
        let found = take(mutant, simulator.search(mutant, FIRST_SEEDS.end..u64::MAX)?).transpose()?;
        if found.is_none() {
            println!("{mutant:<48} MISSED");
            locked().assign(mutant, None);
        }
        Ok(found.is_none().then(|| (*mutant).to_owned()))
    })?;
    let corpus = corpus.into_inner().unwrap_or_else(|broken| broken.into_inner());
    let (corpus, violated) = with_all_faults(simulator, corpus)?;
    fs::write(path, corpus.to_string())?;
    if !violated.is_empty() {
        return Err(format!(
            "the unmodified code breaks a promise in these runs of the corpus: {}",
            violated.join(", ")
        )
        .into());
    }
    Ok(missed.into_iter().flatten().collect())
}

/// The runs to try before a search: the mutant's own first, then the runs that find the most mutants of its kind.
fn candidates(corpus: &Corpus, mutant: &str) -> Vec<Run> {
    let alike = |names: &BTreeSet<String>| {
        let kind = |name: &str| (is_of_the_quorum(name), is_of_shared_names(name), is_of_the_machine(name));
        names.iter().filter(|name| kind(name) == kind(mutant)).count()
    };
    let mut others: Vec<_> = corpus.0.iter().filter(|(_, names)| !names.contains(mutant) && alike(names) > 0).collect();
    others.sort_by_key(|(_, names)| Reverse(alike(names)));
    corpus.of(mutant).chain(others.into_iter().map(|(run, _)| run)).cloned().collect()
}

fn find(simulator: &Simulator, mutant: &str, candidates: Vec<Run>) -> io::Result<Option<(Run, String)>> {
    for run in candidates {
        if let Some(violation) = simulator.finds(mutant, &run)? {
            return Ok(Some((run, violation)));
        }
    }
    simulator.search(mutant, FIRST_SEEDS)
}

/// The corpus with the seeds that it needs for all faults, and its runs in which the unmodified code breaks a promise.
fn with_all_faults(simulator: &Simulator, corpus: Corpus) -> io::Result<(Corpus, Vec<String>)> {
    let mut runs: BTreeSet<Run> = corpus.0.keys().cloned().collect();
    runs.extend((1..=SEEDS_OF_ALL_FAULTS).map(Run::Seed));
    runs.extend((1..=SHARED_SEEDS_OF_ALL_FAULTS).map(|seed| Run::Seed(SHARED + seed)));
    let runs: Vec<_> = runs.into_iter().collect();
    let met = in_parallel(&runs, |run| {
        let (violation, faults) = simulator.unmodified(run)?;
        if let Some(violation) = &violation {
            println!("VIOLATED by the unmodified code, {run}: {violation}");
        }
        Ok((run.clone(), faults, violation.is_some()))
    })?;
    let (violated, sound): (Vec<_>, Vec<_>) = met.into_iter().partition(|(.., violated)| *violated);
    let sound: Vec<_> = sound.into_iter().map(|(run, faults, _)| (run, faults)).collect();
    let corpus = covering(corpus, &sound);
    let violated = violated.iter().filter(|(run, ..)| corpus.0.contains_key(run));
    let violated = violated.map(|(run, ..)| run.to_string()).collect();
    Ok((corpus, violated))
}

/// Drops seeds without a mutant, and adds seeds until each kind of fault is met often enough, or as often as all runs
/// together meet it.
fn covering(mut corpus: Corpus, met: &[(Run, Vec<String>)]) -> Corpus {
    let has_names = |run: &Run| corpus.0.get(run).is_some_and(|names| !names.is_empty());
    let (mut chosen, mut others): (Vec<_>, Vec<_>) =
        met.iter().partition(|(run, _)| matches!(run, Run::Scenario(_)) || has_names(run));
    loop {
        let times = |fault: &String| chosen.iter().filter(|(_, faults)| faults.contains(fault)).count();
        let gain = |(run, faults): &(Run, Vec<String>)| {
            let gain = faults.iter().filter(|fault| times(fault) < RUNS_PER_FAULT).count();
            // Among equals, it prefers a seed of the corpus, and then the smallest.
            (gain, corpus.0.contains_key(run), Reverse(run.clone()))
        };
        match (0..others.len()).max_by_key(|index| gain(others[*index])) {
            Some(best) if gain(others[best]).0 > 0 => chosen.push(others.swap_remove(best)),
            _ => break,
        }
    }
    let added: Vec<_> = chosen.iter().map(|(run, _)| run).collect();
    corpus.0.retain(|run, names| !names.is_empty() || matches!(run, Run::Scenario(_)) || added.contains(&run));
    for run in added {
        corpus.0.entry(run.clone()).or_default();
    }
    corpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(text: &str) -> Corpus {
        Corpus::parse(text).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    #[test]
    fn the_own_run_is_tried_first_and_then_the_others_of_its_kind() {
        let corpus = corpus("1 R1\n2 Q1 Q2\n3\n4 R2 R3\n5 R4 Q3\n6 R5");
        assert_eq!(candidates(&corpus, "R5"), [6, 4, 1, 5].map(Run::Seed));
        assert_eq!(candidates(&corpus, "Q3"), [5, 2].map(Run::Seed));
    }

    #[test]
    fn seeds_are_added_until_each_fault_is_there_often_enough_and_others_go() {
        let met = |runs: &[(u64, &str)]| -> Vec<_> {
            runs.iter().map(|(seed, faults)| (Run::Seed(*seed), faults.split(' ').map(Into::into).collect())).collect()
        };
        // Seeds 1, 6 and 7, which have mutants, meet `a`; three others meet `b`; fewer than three meet `c`.
        let runs = [(1, "a"), (2, "a b"), (3, "b"), (4, "b"), (5, "b c"), (6, "a"), (7, "a"), (8, "b")];
        let chosen = covering(corpus("scenario x\n1 R1\n2\n6 R2\n7 R3\n8\n9"), &met(&runs));
        assert_eq!(chosen, corpus("scenario x\n1 R1\n2\n5\n6 R2\n7 R3\n8"));
    }
}
