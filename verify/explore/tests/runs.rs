//! A few runs of the random world, and one search, in the profile of the tests. `scripts/explore` runs many.

use fairlock_explore::search::{self, Action, Search};
use fairlock_explore::world::World;

#[test]
fn random_runs_break_nothing() {
    for seed in 1..=100 {
        assert_eq!(World::new(seed).run(), Ok(()));
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

/// A nested call is answered while a renewal from before it is served late.
#[test]
fn a_trace_is_replayed_as_a_test() {
    let actions = [
        Action::Call(1),
        Action::Serve(0),
        Action::Hear(0),
        Action::Claim(1),
        Action::Time,
        Action::Call(0),
        Action::Delay(0),
        Action::Serve(0),
        Action::ServeLate(0),
        Action::Hear(0),
    ];
    let (story, broken) = named("nested").replay(&actions);
    assert_eq!(broken, [] as [&str; 0], "{story}");
    assert!(story.contains("Nest(1, 1)") && story.contains("holds: 2"), "{story}");
}
