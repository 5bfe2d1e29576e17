//! What one client counts and measures: the numbers alone, in no words of who waits or why.
//!
//! There are two of these rooms with the same methods. With the feature `metrics` they tell the recorder of the crate
//! `metrics`; without it there is nothing in them, and the calls compile to nothing.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;
mod outcome;

#[cfg(not(feature = "metrics"))]
pub use off::{Counted, LockMetrics, Metrics, MetricsOptions};
#[cfg(feature = "metrics")]
pub use on::{Counted, LockMetrics, Metrics, MetricsOptions};
pub use outcome::{Failure, LossCause, Outcome};

/// Whether somebody may look at the numbers. Without that no clock is read for them.
pub const ARE_ON: bool = cfg!(feature = "metrics");
