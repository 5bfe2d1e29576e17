//! A search for new bugs while there is time. Nothing depends on it: each seed that it finds becomes a scenario.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::outcome::Tally;
use crate::run::run;
use crate::{report, seed, threads};

/// Enough failed seeds: more would only repeat them.
const ENOUGH: usize = 3;

/// Seeds of each topology in turn, from `first` on.
pub fn hunt(first: u64, longest: Duration) -> bool {
    println!(
        "from seed {first} on; the same again: scripts/hunt --seed {first} --minutes {}",
        longest.as_secs_f64() / 60.0
    );
    let begun = Instant::now();
    let (seeds, failed) = (Mutex::new(seed::in_turn(first)), AtomicUsize::new(0));
    let next = || {
        let goes_on = begun.elapsed() < longest && failed.load(Ordering::Relaxed) < ENOUGH;
        seeds.lock().expect("no thread panics").next().filter(|_| goes_on)
    };
    let mut outcomes = threads::while_there_are(next, |seed| {
        let outcome = run(seed, false);
        failed.fetch_add(usize::from(!outcome.violations.is_empty()), Ordering::Relaxed);
        (seed, outcome)
    });
    outcomes.sort_by_key(|(seed, _)| *seed);
    let mut tally = Tally::default();
    outcomes.iter().for_each(|(seed, outcome)| tally.add(*seed, outcome));
    let failed = report::failures(outcomes.iter().map(|(seed, outcome)| (*seed, outcome)));
    tally.lines().iter().for_each(|line| println!("{line}"));
    println!("{} seeds in {:.0} s: {failed} failed", outcomes.len(), begun.elapsed().as_secs_f64());
    println!("{}", tally.all.json(begun.elapsed()));
    failed == 0
}
