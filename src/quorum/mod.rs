//! One lock over several independent masters: it lives on when a minority of them is lost.
//!
//! It is made of one [`Client`](crate::driver::client::Client) for each server. The servers know nothing of each other. How the lock is
//! taken, and why its tokens grow, is in `docs/design.md`, rules Q1 to Q11.

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
