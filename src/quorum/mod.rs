//! One lock over several independent masters: it lives on when a minority of them is lost.
//!
//! A [`QuorumClient`] is made of one [`LockClient`](crate::LockClient) for each server. The servers know nothing of each
//! other. How the lock is taken, and why its tokens grow, is in `docs/design.md`, rules Q1 to Q11.

mod acquire;
mod builder;
mod client;
mod contention;
mod context;
mod error;
mod guard;
mod hold;
mod lock;
mod nodes;
mod owners;
mod status;

pub use builder::QuorumClientBuilder;
pub use client::QuorumClient;
pub use guard::QuorumGuard;
pub use lock::QuorumLock;
pub use status::{NodeStatus, QuorumStatus};
