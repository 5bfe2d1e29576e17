//! One lock over several independent masters. It survives the loss of a minority.
//!
//! It consists of one [`Client`](crate::driver::client::Client) for each server. The servers know nothing of each
//! other. Rules Q1 to Q11 in `docs/design.md` say how a call takes the lock, and why its tokens grow.

pub mod acquire;
mod contention;
pub mod context;
pub mod error;
pub mod guard;
pub mod hold;
pub mod lock;
pub mod nodes;
mod owners;

/// How many of these servers are a majority.
pub fn majority(servers: usize) -> usize {
    servers / 2 + 1
}
