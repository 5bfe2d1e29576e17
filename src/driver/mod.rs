//! Drives the state machine of `proto` for the locks of one client: one mutex around it, and one task that sends, hands in
//! answers, and keeps the timers.
//!
//! Under the mutex no IO is done and no code of the user runs: who is to be woken, what is to be logged and what is to be sent is
//! taken out, and done when the mutex is free.

mod after;
pub mod call;
pub mod client;
mod clock;
pub mod context;
mod courier;
pub mod detached;
mod error;
pub mod guard;
pub mod hold;
pub mod limit;
pub mod listing;
pub mod lock;
pub mod observe;
pub mod outcome;
pub mod owner;
mod relay;
mod report;
mod requests;
mod room;
mod settings;
mod shared;
mod slots;
pub mod task;
pub mod task_or_thread;
pub mod tried;
mod without_runtime;
