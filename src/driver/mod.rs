//! Drives the state machine of `proto` for the locks of one client: one mutex around it, and one task that sends, hands in
//! answers, and keeps the timers.
//!
//! Under the mutex no IO is done and no code of the user runs: who is to be woken, what is to be logged and what is to be sent is
//! taken out, and done when the mutex is free.

mod after;
pub mod call;
pub mod client;
mod clock;
mod courier;
mod error;
pub mod guard;
pub mod hold;
pub mod lock;
mod relay;
mod report;
mod requests;
mod room;
mod settings;
mod shared;
mod slots;
pub mod task;
mod without_runtime;

/// Whether the machine has the locks of clients of one server.
pub fn is_wanted() -> bool {
    cfg!(feature = "_machine") && std::env::var_os("FAIRLOCK_MACHINE").is_some()
}
