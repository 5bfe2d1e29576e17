//! The promises of docs/design.md (P1 to P10), against real servers that the tests start and stop.

mod all;
mod api;
#[cfg(feature = "embedded")]
mod at_rest;
mod bench;
mod busy;
mod cleanup;
mod closing;
mod cluster;
#[cfg(feature = "cli")]
mod command;
#[cfg(feature = "cli")]
mod command_edges;
mod connecting;
mod dead_waiters;
mod demoted;
#[cfg(feature = "embedded")]
mod differential;
#[cfg(feature = "cli")]
mod doctor;
mod errors;
mod exclusion;
mod extend;
mod fairness;
mod farewells;
mod faults;
mod fencing;
mod found;

#[cfg(feature = "embedded")]
mod grants;
mod guards;
#[cfg(feature = "cli")]
mod handle_command;
#[cfg(feature = "embedded")]
mod handles;
mod holders;
mod kept;
mod leaving;
mod listing;
mod logs;
#[cfg(feature = "metrics")]
mod metrics;
mod names;
mod not_ready;
mod other_clusters;
mod overload;
#[cfg(feature = "cli")]
mod pages;
#[cfg(feature = "embedded")]
mod permit_handles;
mod queue;
mod quorum;
mod recipes;
mod reentrance;
mod reentry;
mod refusals;
mod restarts;
#[cfg(feature = "embedded")]
mod resting;
mod runtimes;
mod rw_lock;
mod scripts;
mod scripts_shared;
mod semaphore;
mod sentinel;
mod silence;
mod slots;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod user_code;
mod wakeups;
mod weighted;
