//! The promises of the design, each by its name, against real servers that the tests start and end.

mod api;
mod bench;
mod cleanup;
mod closing;
mod dead_waiters;
#[cfg(feature = "embedded")]
mod differential;
mod errors;
mod exclusion;
mod fairness;
mod faults;
mod found;
mod guards;
mod holders;
mod leaving;
mod reentrance;
mod runtimes;
mod scripts;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod wakeups;
