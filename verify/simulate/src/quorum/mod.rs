//! Runs with whole quorum clients: three or five servers that know nothing of each other, each with clock, faults and
//! restarts of its own.

mod actor;
pub mod checker;
pub mod master;
mod run;
pub mod trial;

pub use run::run;
