//! Drives the state machine of `proto` for the locks of one client. A mutex protects the machine, and one task sends
//! requests, hands in answers, and keeps the timers.
//!
//! No IO and no user code runs under the mutex. A step only collects wakers, log lines and requests; the driver handles
//! them when the mutex is free.

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
