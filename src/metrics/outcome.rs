//! The outcomes that are counted apart.

/// How a call ended that got no lock, and was not dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub enum NotAcquired {
    /// Others had it, or were first, and the call was not to wait.
    Busy,
    /// The same, for the whole of the time that the call was to wait.
    TimedOut,
    /// Another error.
    Failed(Failure),
}

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Unreachable,
    Refused,
    QueueFull,
    /// The hold that it was to re-enter is lost.
    Lost,
    Closed,
    RuntimeGone,
    /// A name, lease or label that cannot be.
    Invalid,
}

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    Expired,
    Gone,
    Forced,
    Closed,
}
