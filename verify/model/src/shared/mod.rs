//! Shared holds: a semaphore, or a read-write lock as a semaphore whose writer takes all. Each holder has a weight and an end
//! of its own. What they share with the lock is modelled there: `!skip`, forgiven silences, doubt, and keys that are
//! deleted one by one are left out here.

mod bounds;
mod canonical;
mod detach;
mod display;
mod events;
mod handle;
mod model;
mod network;
mod owner;
mod poller;
mod properties;
mod protocol;
mod pruning;
mod rules;
mod server;
mod settle;
pub mod variants;
