//! The observations of a scenario's clients.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::resource::Resource;
use crate::testbed::{Nanos, now};

/// One hold, as observed by its holder.
#[derive(Debug, Clone)]
pub struct Hold {
    pub name: String,
    pub token: u64,
    /// It was valid at `start` and at `last_valid`, and at all checks between.
    pub start: Nanos,
    pub last_valid: Nanos,
    /// The end of the release, answered or not, or the time at which the holder noticed the loss.
    pub ended: Nanos,
    pub end: End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Freed,
    /// No answer to the release.
    Unknown,
    /// With the text of the `Loss`.
    Lost(String),
}

/// All tasks of a scenario write to it.
pub struct Record {
    pub resource: Resource,
    holds: Mutex<Vec<Hold>>,
    counts: Mutex<BTreeMap<String, u64>>,
    window: Mutex<(Nanos, Nanos)>,
    fault: Mutex<Option<Nanos>>,
    switch: Mutex<Option<Nanos>>,
}

impl Record {
    pub fn new(resource: Resource) -> Self {
        Self {
            resource,
            holds: Mutex::default(),
            counts: Mutex::default(),
            window: Mutex::new((now(), now())),
            fault: Mutex::default(),
            switch: Mutex::default(),
        }
    }

    pub fn add(&self, hold: Hold) {
        self.holds.lock().unwrap().push(hold);
    }

    pub fn count(&self, what: &str) {
        *self.counts.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    pub fn counted(&self, what: &str) -> u64 {
        self.counts.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    /// All counts whose names begin with `start`.
    pub fn counts(&self, start: &str) -> Vec<(String, u64)> {
        let counts = self.counts.lock().unwrap();
        let chosen = counts.iter().filter(|(what, _)| what.starts_with(start));
        chosen.map(|(what, count)| (what.clone(), *count)).collect()
    }

    pub fn holds(&self) -> Vec<Hold> {
        self.holds.lock().unwrap().clone()
    }

    /// The number of ended holds whose names begin with `start`.
    pub fn ended(&self, start: &str) -> usize {
        self.holds.lock().unwrap().iter().filter(|hold| hold.name.starts_with(start)).count()
    }

    /// The load begins now.
    pub fn open(&self) {
        *self.window.lock().unwrap() = (now(), Nanos::MAX);
    }

    /// The load ends now: later grants do not count for stalls.
    pub fn close(&self) {
        self.window.lock().unwrap().1 = now();
    }

    pub fn window(&self) -> (Nanos, Nanos) {
        *self.window.lock().unwrap()
    }

    #[cfg(test)]
    pub fn set_window(&self, begun: Nanos, ended: Nanos) {
        *self.window.lock().unwrap() = (begun, ended);
    }

    /// Notes the time of the first fault.
    pub fn fault(&self) -> Nanos {
        *self.fault.lock().unwrap().get_or_insert_with(now)
    }

    pub fn first_fault(&self) -> Option<Nanos> {
        *self.fault.lock().unwrap()
    }

    /// From this time on another server is the master.
    pub fn switched(&self, at: Nanos) {
        *self.switch.lock().unwrap() = Some(at);
    }

    pub fn switch(&self) -> Option<Nanos> {
        *self.switch.lock().unwrap()
    }
}
