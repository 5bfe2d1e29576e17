//! Semaphores and read-write locks, beside locks, at one server. Their seeds are of a kind of their own.

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
