//! Semaphores and read-write locks, next to locks, at one server. They have their own kind of seeds.

mod actor;
mod around;
mod checker;
mod handles;
mod keys;
mod posted;
mod run;
mod trial;

pub use around::AroundShared;
pub use checker::Claim;
pub use run::run;
pub use trial::Trial;
