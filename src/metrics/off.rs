//! Without the feature `metrics`: nothing. Each method matches the method of that name in `on.rs`.

use std::time::Duration;
use std::time::Instant;

use super::outcome::NotAcquired;

// Not unit structs, so that the same code makes and drops these and the structs of `on.rs`.

#[derive(Debug, Clone, Default)]
pub struct MetricsOptions(());

#[derive(Debug, Clone, Default)]
pub struct Metrics(());

#[derive(Clone)]
pub struct LockMetrics(());

pub struct Counted(());

pub struct RequestMetrics(());

impl RequestMetrics {
    pub fn answered(&self, _now: impl FnOnce() -> Instant) {}
}

impl Metrics {
    pub fn new(_options: &MetricsOptions, _node: Option<&str>) -> Self {
        Self(())
    }

    pub fn of_lock(&self, _name: &str) -> LockMetrics {
        LockMetrics(())
    }

    pub fn request(&self, _now: impl FnOnce() -> Instant) -> RequestMetrics {
        RequestMetrics(())
    }

    pub fn refused(&self, _code: &str) {}

    pub fn polled(&self) {}

    pub fn reconnected(&self) {}

    pub fn connected(&self) -> Counted {
        Counted(())
    }

    pub fn disconnected(&self) -> Counted {
        Counted(())
    }
}

impl LockMetrics {
    pub fn wait_began(&self) {}

    pub fn acquired(&self, _waited: Option<Duration>, _handed_over: bool) {}

    pub fn given_up(&self) {}

    pub fn not_acquired(&self, _outcome: NotAcquired) {}

    pub fn hold_began(&self) {}

    pub fn hold_ended(&self, _held: impl FnOnce() -> Duration) {}

    pub fn hold_vanished(&self) {}

    pub fn lost(&self, _cause: &str) {}
}
