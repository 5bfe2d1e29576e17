//! Findings of searches, as tests. `explore search` prints the line for a trace.
//!
//! A trace ends at the violation. After it, a replay delivers everything still under way, so that it also sees what a
//! fault leaves behind.

use fairlock_explore::search::Action::{self, *};
use fairlock_explore::search::all;

/// Checks that each action is possible and breaks nothing.
fn replay(name: &str, actions: &[Action]) {
    let (_, search) = all().into_iter().find(|(other, _)| *other == name).expect("there is such a search");
    let replayed = search.replay_to_the_end(actions);
    assert!(replayed.done >= actions.len(), "{:?} is not possible:\n{}", actions[replayed.done], replayed.story);
    assert_eq!(replayed.broken, None, "{}", replayed.story);
}

/// Found with the mutant `M-R3-a-copy-of-a-call-that-was-given-up`.
#[test]
fn a_call_that_is_dropped_while_its_request_is_under_way_leaves() {
    replay("one", &[Break(0), Call(0), Connect(0), Drop(0), Time, Serve(0), LoseAnswer(0)]);
}

/// Found with the mutant `M-R3-a-hold-forgets-its-copies`.
#[test]
fn a_copy_that_comes_after_the_release_finds_a_tombstone() {
    replay("one", &[Call(0), Break(0), Connect(0), Time, Serve(0), Hear(0), Time, Serve(0), Hear(0), ServeLate(0)]);
}

/// Found with the mutant `M-R11-a-lost-hold-does-not-leave`.
#[test]
fn a_hold_that_has_expired_leaves() {
    replay("one", &[Call(0), Serve(0), Hear(0), Claim(0), Break(0), Time, Time, Drop(0)]);
}

/// Found with the mutant `M-P1-a-hold-that-was-revoked-is-relied-on`.
#[test]
fn a_hold_that_was_revoked_is_lost() {
    replay("two-forces", &[Call(0), Call(1), Serve(1), Hear(1), Force, Serve(0), Hear(0), Hear(1)]);
}

/// Found with the mutant `M-R5-a-deadline-from-the-answer`.
#[test]
fn a_deadline_counts_from_the_request() {
    let before = [Call(0), Call(1), Serve(1), Serve(0), Hear(0), Time, Serve(0), Hear(0), Hear(1), Claim(1)];
    replay("fixed", &[&before[..], &[Time, Time, Serve(0), Hear(0)]].concat());
}

/// Found with the mutant `M-P4-a-nested-call-that-was-given-up-is-counted`.
#[test]
fn a_nested_call_that_was_given_up_is_not_counted() {
    replay("nested", &[Call(0), Call(1), Serve(0), Hear(0), Claim(0), Drop(1), Time, Time, Serve(0)]);
}

/// Found with the mutant `M-R3-a-copy-of-a-busy-call`.
#[test]
fn a_call_that_found_the_lock_busy_leaves_a_tombstone_for_its_copy() {
    let before = [Call(0), Call(1), Break(0), Connect(0), Serve(1), Hear(1), Claim(1), Time, Unlock(1)];
    replay("tries-breaks", &[&before[..], &[Serve(0), Hear(0), Serve(1), Hear(1), ServeLate(0)]].concat());
}

/// Found with the mutant `M-R1-a-release-has-the-seq-of-its-attempt`.
#[test]
fn a_release_is_later_than_the_nested_call_before_it() {
    let nested = [Call(0), Call(1), Serve(0), Hear(0), Claim(0), Unlock(0), Serve(0), Serve(0), Hear(0), Hear(0)];
    replay("again-beside", &nested);
}
