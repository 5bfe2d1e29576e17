//! A few runs of the random world, and one search, in the profile of the tests. `scripts/explore` runs many.

use fairlock_explore::names::Subject;
use fairlock_explore::search::{self, Search};
use fairlock_explore::world::World;

#[test]
fn random_runs_break_nothing() {
    for subject in [Subject::Locks, Subject::Kinds] {
        for seed in 1..=100 {
            assert_eq!(World::about(subject, seed).run(), Ok(()));
        }
    }
}

fn named(name: &str) -> Search {
    search::all().into_iter().find(|(of, _)| *of == name).map(|(_, search)| search).expect("it is a search")
}

#[test]
fn all_states_of_three_callers_are_safe() {
    let reached = named("three").run();
    assert!(reached.found.is_empty() && reached.states > 10_000, "{} states", reached.states);
}
