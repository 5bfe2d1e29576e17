//! Searches the states of fairlock's state machine.
//!
//!   explore world [FIRST [COUNT]]   random runs of locks, by seeds
//!   explore kinds [FIRST [COUNT]]   of all kinds of names, with changes of holds and with handles
//!   explore table [COUNT]           COUNT runs of each; prints which stages met which events, and checks that table
//!   explore story RUN SEED          one run of the world or of the kinds, and its events
//!   explore search [NAME...]        all states up to the bounds of these searches, or of all of them
//!
//! Exit code 1: something is broken. Prints the events that led to it, and then, after `VIOLATED`, the run and the
//! violation.

use std::process::ExitCode;
use std::time::Instant;

use fairlock_explore::coverage::Coverage;
use fairlock_explore::names::Subject;
use fairlock_explore::search::{self, Replayed, Search};
use fairlock_explore::world::World;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["world", numbers @ ..] => runs(Subject::Locks, numbers).map(drop),
        ["kinds", numbers @ ..] => runs(Subject::Kinds, numbers).map(drop),
        ["table", numbers @ ..] => table(number(numbers, 0, 5000)),
        ["story", "kinds", seed] => story(Subject::Kinds, number(&[seed], 0, 1)),
        ["story", "world", seed] => story(Subject::Locks, number(&[seed], 0, 1)),
        ["search", names @ ..] => run_searches(names),
        _ => Err(
            "explore world [FIRST [COUNT]] | kinds [FIRST [COUNT]] | table [COUNT] | story RUN SEED | search [NAME...]"
                .into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn number(words: &[&str], at: usize, default: u64) -> u64 {
    words.get(at).and_then(|word| word.parse().ok()).unwrap_or(default)
}

fn runs(subject: Subject, numbers: &[&str]) -> Result<Coverage, String> {
    let (first, count) = (number(numbers, 0, 1), number(numbers, 1, 1000));
    let (begun, mut steps, mut holds, mut coverage) = (Instant::now(), 0, 0, Coverage::default());
    for seed in first..first + count {
        let mut world = World::about(subject, seed);
        world.run().map_err(|broken| violated(&broken))?;
        (steps, holds) = (steps + world.steps, holds + world.checker.holds);
        coverage.add(&world.coverage);
    }
    let per_second = steps as f64 / begun.elapsed().as_secs_f64();
    println!("{count} runs, {steps} steps, {holds} holds, {per_second:.0} steps/s");
    Ok(coverage)
}

fn table(count: u64) -> Result<(), String> {
    let count = count.to_string();
    let mut coverage = runs(Subject::Locks, &["1", &count])?;
    coverage.add(&runs(Subject::Kinds, &["1", &count])?);
    println!("{}", coverage.table());
    let wrong = fairlock_explore::table::check(&coverage);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn story(subject: Subject, seed: u64) -> Result<(), String> {
    let mut world = World::about(subject, seed).with_story();
    let outcome = world.run();
    println!("{}", world.story());
    outcome.map_err(|broken| violated(&broken))
}

fn run_searches(names: &[&str]) -> Result<(), String> {
    let all = search::all().into_iter();
    let wanted: Vec<_> = all.filter(|(name, _)| names.is_empty() || names.contains(name)).collect();
    if wanted.is_empty() {
        return Err(format!("no search has one of the names {names:?}"));
    }
    wanted.into_iter().try_for_each(|(name, search)| run_search(name, search))
}

fn run_search(name: &str, search: Search) -> Result<(), String> {
    let begun = Instant::now();
    let reached = search.clone().run();
    println!("{name}: {} states, depth {}, {:.1?}", reached.states, reached.depth, begun.elapsed());
    let Some(found) = reached.found.first() else { return Ok(()) };
    let Replayed { story, broken, .. } = search.replay(&found.actions);
    println!("{story}");
    // A test for verify/explore/tests/replays.rs.
    println!("    replay({name:?}, &{:?});", found.actions);
    Err(violated(&format!("search {name}: {}", broken.unwrap_or(found.property))))
}

/// The run and the violation. `scripts/mutants` reads this line too.
fn violated(run_and_what: &str) -> String {
    format!("VIOLATED {run_and_what}")
}
