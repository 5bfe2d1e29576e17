//! Runs with whole quorum clients: three or five servers that know nothing of each other, each with clock, faults and
//! restarts of its own.

mod actor;
mod checker;
mod master;
mod run;
mod trial;

pub use run::run;

/// Which seeds are such runs. Not drawn, so that the others are what they would be without them.
pub fn is_chosen(seed: u64) -> bool {
    seed % EVERY == FIRST
}

const EVERY: u64 = 7;
const FIRST: u64 = 2;

/// The chosen seed with this number, counted from `first` on.
pub fn chosen(first: u64, number: u64) -> u64 {
    let ahead = (EVERY + FIRST - first % EVERY) % EVERY;
    first.wrapping_add(ahead + EVERY * number)
}

/// The kinds of faults that only these runs have.
pub const FAULTS: [&str; 10] = [
    "masters_down",
    "masters_frozen",
    "masters_emptied",
    "masters_put_back",
    "majorities_away",
    "partitions",
    "gates_apart",
    "minorities_away_in_calm",
    "losses_of_a_majority",
    "reentries_after_a_loss",
];
