//! The outcomes with counters of their own.

/// How a call ended without a lock, if it was not dropped.
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub enum NotAcquired {
    /// Others had the lock, or were first, and the call was not to wait.
    Busy,
    /// The same, for the whole time that the call was to wait.
    TimedOut,
    /// Another error, by its label.
    Failed(&'static str),
}
