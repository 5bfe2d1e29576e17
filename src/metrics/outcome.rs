//! The outcomes that are counted apart.

/// How a call ended that got no lock, and was not dropped.
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub enum NotAcquired {
    /// Others had it, or were first, and the call was not to wait.
    Busy,
    /// The same, for the whole of the time that the call was to wait.
    TimedOut,
    /// Another error, by its label.
    Failed(&'static str),
}
