//! The counters and measurements of one client: only the numbers.
//!
//! Two modules have the same methods. With the feature `metrics` they report to the recorder of the crate `metrics`.
//! Without it they are empty, and the calls compile to nothing.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;
mod outcome;

#[cfg(not(feature = "metrics"))]
pub use off::RequestMetrics;
#[cfg(not(feature = "metrics"))]
pub use off::{Counted, LockMetrics, Metrics, MetricsOptions};
#[cfg(feature = "metrics")]
pub use on::RequestMetrics;
#[cfg(feature = "metrics")]
pub use on::{Counted, LockMetrics, Metrics, MetricsOptions};
pub use outcome::NotAcquired;

/// Whether anyone can read the numbers. If not, the client reads no clock for them.
pub const ARE_ON: bool = cfg!(feature = "metrics");
