//! Reports on failed runs.

use crate::outcome::Outcome;
use crate::run::run;
use crate::story;

/// Prints the violations of each failed seed, the story of the lock concerned, and how to replay it. Returns the number
/// of failed seeds.
pub fn failures<'a>(outcomes: impl IntoIterator<Item = (u64, &'a Outcome)>) -> usize {
    let failed = outcomes.into_iter().filter(|(_, outcome)| !outcome.violations.is_empty());
    failed.map(|(seed, _)| failure(seed)).count()
}

/// From a second run, because the first one did not record events.
fn failure(seed: u64) {
    let Outcome { violations, timeline, .. } = run(seed, true);
    // The others usually follow from the first one.
    for violation in violations.iter().take(1) {
        println!("\nseed {seed}: {violation}");
        story::about(violation, &timeline).iter().for_each(|line| println!("  {line}"));
    }
    violations.iter().for_each(|violation| println!("VIOLATED {violation}"));
    println!("replay: scripts/simulate --seed {seed}\n");
}

/// Whether a second run of a seed was the same as the first one.
pub fn is_repeated(seed: u64, first: &Outcome, second: &Outcome) -> bool {
    let same = first.fingerprint == second.fingerprint;
    if !same {
        println!("NOT REPEATED: the second run of seed {seed} had fingerprint {:016x}", second.fingerprint);
    }
    same
}
