//! The pairs of a stage and an event that cannot meet, with the reasons.

use crate::witness::StageName::{self, Asking, Confirming, Detaching, Idle, Lost, Queued, Releasing};

const NO_ENTRY: &str = "an owner with nothing at the server and no call has no entry, and no event finds it";
const NO_GUARD: &str = "a guard begins with the hold, and an unlock ends one";
const GUARDS_HAVE_ENDED: &str = "the last guard has ended, and its number is another call's or nobody's";
const GUARD_IS_SPENT: &str = "the guard is the detach's, and no other one shares the hold";
const NO_TIMER: &str = "nothing is due: what is left ends with its guards";

pub const IMPOSSIBLE: [(StageName, &str, &str); 38] = [
    (Idle, "Disturbed", NO_ENTRY),
    (Idle, "Claimed", NO_ENTRY),
    (Idle, "Unlock", NO_ENTRY),
    (Idle, "Shrink", NO_ENTRY),
    (Idle, "Extend", NO_ENTRY),
    (Idle, "Detach", NO_ENTRY),
    (Idle, "Up", NO_ENTRY),
    (Idle, "Down", NO_ENTRY),
    (Idle, "Serves", NO_ENTRY),
    (Idle, "Time", NO_ENTRY),
    (Idle, "Close", NO_ENTRY),
    (Idle, "RuntimeGone", NO_ENTRY),
    (Asking, "Claimed", NO_GUARD),
    (Asking, "Unlock", NO_GUARD),
    (Asking, "Shrink", NO_GUARD),
    (Asking, "Extend", NO_GUARD),
    (Asking, "Detach", NO_GUARD),
    (Queued, "Claimed", NO_GUARD),
    (Queued, "Unlock", NO_GUARD),
    (Queued, "Shrink", NO_GUARD),
    (Queued, "Extend", NO_GUARD),
    (Queued, "Detach", NO_GUARD),
    (Confirming, "Claimed", NO_GUARD),
    (Confirming, "Unlock", NO_GUARD),
    (Confirming, "Shrink", NO_GUARD),
    (Confirming, "Extend", NO_GUARD),
    (Confirming, "Detach", NO_GUARD),
    (Releasing, "Claimed", GUARDS_HAVE_ENDED),
    (Releasing, "Unlock", GUARDS_HAVE_ENDED),
    (Releasing, "Shrink", GUARDS_HAVE_ENDED),
    (Releasing, "Extend", GUARDS_HAVE_ENDED),
    (Releasing, "Detach", GUARDS_HAVE_ENDED),
    (Detaching, "Claimed", GUARD_IS_SPENT),
    (Detaching, "Unlock", GUARD_IS_SPENT),
    (Detaching, "Shrink", GUARD_IS_SPENT),
    (Detaching, "Extend", GUARD_IS_SPENT),
    (Detaching, "Detach", GUARD_IS_SPENT),
    (Lost, "Time", NO_TIMER),
];
