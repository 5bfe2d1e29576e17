//! The quorum: a lock over several servers, the nodes, each of which is one atomic lock with a lease and a queue. That the
//! protocol makes a server such a lock is what the rest of this package checks.

mod bounds;
mod client;
mod display;
mod events;
mod model;
mod network;
mod node;
mod properties;
mod protocol;
mod rules;
mod settle;
pub mod variants;
