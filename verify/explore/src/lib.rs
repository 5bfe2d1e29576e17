//! The state machine of fairlock-proto in a world without IO.

pub mod caller;
pub mod canonical;
pub mod changes;
pub mod checker;
pub mod coverage;
pub mod delay;
pub mod handles;
pub mod impossible;
pub mod names;
pub mod order;
pub mod search;
pub mod server;
pub mod table;
pub mod witness;
pub mod world;
