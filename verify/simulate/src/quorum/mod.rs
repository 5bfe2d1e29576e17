//! Runs with whole quorum clients: three or five servers that do not know each other. Each has its own clock, faults
//! and restarts.

mod actor;
pub mod checker;
pub mod master;
mod run;
pub mod trial;

pub use run::run;
