//! With the feature `metrics`: the recorder's handles, which each client looks up once.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, NoopRecorder, Unit, with_recorder};

use super::outcome::NotAcquired;
use crate::sync::Mutex;

/// The maximum number of groups. A function that puts each name in a group of its own would fill the memory here and on
/// the server that stores the metrics.
const GROUPS: usize = 1000;
/// The label for everything else.
const OTHERS: &str = "other";

/// The known codes of refusals. A server's other texts get no series of their own.
const CODES: [&str; 16] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "ERR",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOBOOT",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGTYPE",
];

/// The description of each metric. docs/operating.md has the same list, which tests/house.rs compares.
const DESCRIPTIONS: [(Metric, &str, &str); 17] = [
    (Metric::Histogram, "fairlock_wait_seconds", "From the call to the lock, for calls that got it"),
    (Metric::Histogram, "fairlock_hold_seconds", "From the lock to its end: released or lost"),
    (Metric::Histogram, "fairlock_round_trip_seconds", "From a request to its answer"),
    (Metric::Counter, "fairlock_acquired_total", "Calls that got the lock, nested ones and attaches too"),
    (Metric::Counter, "fairlock_handed_over_total", "Those of them that got it out of the queue"),
    (Metric::Counter, "fairlock_busy_total", "Calls of try_lock that found it taken"),
    (Metric::Counter, "fairlock_timed_out_total", "Calls of lock_timeout that others kept from it for all their time"),
    (Metric::Counter, "fairlock_given_up_total", "Calls that were dropped before they had it"),
    (Metric::Counter, "fairlock_failed_total", "Calls that ended with another error"),
    (Metric::Counter, "fairlock_lost_total", "Holds that were lost while they were relied on"),
    (Metric::Counter, "fairlock_refused_total", "Requests that the server refused"),
    (Metric::Counter, "fairlock_reconnects_total", "Connections that were made again"),
    (Metric::Counter, "fairlock_polls_total", "Poll requests of waiting clients"),
    (Metric::Gauge, "fairlock_locks_held", "Holds of this process"),
    (Metric::Gauge, "fairlock_calls_waiting", "Calls that have not got their lock yet"),
    (Metric::Gauge, "fairlock_requests_in_flight", "Requests without an answer yet"),
    (Metric::Gauge, "fairlock_servers", "Servers by the state of their connection"),
];

enum Metric {
    Counter,
    Gauge,
    Histogram,
}

type GroupOf = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Metrics options of the builder.
#[derive(Clone, Default)]
pub struct MetricsOptions {
    group_of: Option<GroupOf>,
}

impl MetricsOptions {
    pub fn set_group_of(&mut self, group_of: impl Fn(&str) -> String + Send + Sync + 'static) {
        self.group_of = Some(Arc::new(group_of));
    }
}

impl fmt::Debug for MetricsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsOptions").field("groups", &self.group_of.is_some()).finish()
    }
}

/// The metrics of one client.
#[derive(Clone)]
pub struct Metrics(Arc<OfClient>);

struct OfClient {
    round_trip: Histogram,
    in_flight: Gauge,
    polls: Counter,
    reconnects: Counter,
    connected: Gauge,
    disconnected: Gauge,
    refused: [Counter; CODES.len()],
    refused_otherwise: Counter,
    /// For names without a group.
    locks: LockMetrics,
    group_of: Option<GroupOf>,
    groups: Mutex<BTreeMap<String, LockMetrics>>,
    /// The labels of all metrics of this client.
    labels: Vec<Label>,
}

/// The metrics of one group of locks.
#[derive(Clone)]
pub struct LockMetrics(Arc<OfLock>);

struct OfLock {
    wait: Histogram,
    hold: Histogram,
    acquired: Counter,
    handed_over: Counter,
    busy: Counter,
    timed_out: Counter,
    given_up: Counter,
    failed: [Counter; FAILURES.len()],
    lost: [Counter; LOSSES.len()],
    held: Gauge,
    waiting: Gauge,
}

/// The series of `fairlock_failed_total` and `fairlock_lost_total`. All exist from the beginning.
const FAILURES: [&str; 7] = ["unreachable", "refused", "queue_full", "lost", "closed", "runtime_gone", "invalid"];
const LOSSES: [&str; 4] = ["expired", "gone", "forced", "closed"];

/// Increments the counter with this label.
fn count(labels: &[&str], counters: &[Counter], label: &str) {
    labels.iter().zip(counters).filter(|(known, _)| **known == label).for_each(|(_, counter)| counter.increment(1));
}

/// Adds one to a gauge until it is dropped.
pub struct Counted(Gauge);

/// A request without an answer yet.
pub struct RequestMetrics {
    metrics: Metrics,
    sent: Instant,
    _in_flight: Counted,
}

impl RequestMetrics {
    pub fn answered(&self, now: impl FnOnce() -> Instant) {
        self.metrics.0.round_trip.record(now().saturating_duration_since(self.sent));
    }
}

/// Looks up handles, all with the same labels.
struct Register<'a> {
    labels: &'a [Label],
}

/// The part of a program that a metric comes from, for recorders that filter by it.
static METADATA: Metadata<'static> = Metadata::new("fairlock", Level::INFO, Some(module_path!()));

impl Register<'_> {
    fn key(&self, name: &'static str, label: Option<(&'static str, &'static str)>) -> Key {
        let own = label.map(|(key, value)| Label::from_static_parts(key, value));
        Key::from_parts(name, self.labels.iter().cloned().chain(own).collect::<Vec<_>>())
    }

    fn counter(&self, name: &'static str) -> Counter {
        with_recorder(|recorder| recorder.register_counter(&self.key(name, None), &METADATA))
    }

    fn counter_of(&self, name: &'static str, key: &'static str, value: &'static str) -> Counter {
        with_recorder(|recorder| recorder.register_counter(&self.key(name, Some((key, value))), &METADATA))
    }

    fn gauge(&self, name: &'static str, label: Option<(&'static str, &'static str)>) -> Gauge {
        with_recorder(|recorder| recorder.register_gauge(&self.key(name, label), &METADATA))
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        with_recorder(|recorder| recorder.register_histogram(&self.key(name, None), &METADATA))
    }
}

fn describe() {
    with_recorder(|recorder| {
        for (kind, name, text) in DESCRIPTIONS {
            match kind {
                Metric::Counter => recorder.describe_counter(name.into(), Some(Unit::Count), text.into()),
                Metric::Gauge => recorder.describe_gauge(name.into(), Some(Unit::Count), text.into()),
                Metric::Histogram => recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into()),
            }
        }
    });
}

impl Metrics {
    /// `node`: the server that this client is for, if there are several.
    pub fn new(options: &MetricsOptions, node: Option<&str>) -> Self {
        describe();
        let labels: Vec<_> = node.map(|node| Label::new("node", node.to_owned())).into_iter().collect();
        let register = Register { labels: &labels };
        Self(Arc::new(OfClient {
            round_trip: register.histogram("fairlock_round_trip_seconds"),
            in_flight: register.gauge("fairlock_requests_in_flight", None),
            polls: register.counter("fairlock_polls_total"),
            reconnects: register.counter("fairlock_reconnects_total"),
            connected: register.gauge("fairlock_servers", Some(("state", "connected"))),
            disconnected: register.gauge("fairlock_servers", Some(("state", "disconnected"))),
            refused: CODES.map(|code| register.counter_of("fairlock_refused_total", "code", code)),
            refused_otherwise: register.counter_of("fairlock_refused_total", "code", OTHERS),
            locks: LockMetrics::new(&register),
            group_of: options.group_of.clone(),
            groups: Mutex::default(),
            labels,
        }))
    }

    /// The metrics of the group that this name is in.
    pub fn of_lock(&self, name: &str) -> LockMetrics {
        let client = &self.0;
        let Some(group_of) = &client.group_of else { return client.locks.clone() };
        // The function is user code, like the recorder below: a panic in it ends no call, and neither runs under the
        // mutex.
        let group = catch_unwind(AssertUnwindSafe(|| group_of(name))).unwrap_or_else(|_| OTHERS.to_owned());
        let group = {
            let groups = client.groups.lock();
            let group = if groups.len() < GROUPS || groups.contains_key(&group) { group } else { OTHERS.to_owned() };
            if let Some(known) = groups.get(&group) {
                return known.clone();
            }
            group
        };
        let own = Label::new("lock", group.clone());
        let labels: Vec<_> = client.labels.iter().cloned().chain([own]).collect();
        let new = LockMetrics::new(&Register { labels: &labels });
        client.groups.lock().entry(group).or_insert(new).clone()
    }

    /// The request is in flight until this is dropped.
    pub fn request(&self, now: impl FnOnce() -> Instant) -> RequestMetrics {
        RequestMetrics { metrics: self.clone(), sent: now(), _in_flight: Counted::new(&self.0.in_flight) }
    }

    pub fn refused(&self, code: &str) {
        let known = CODES.iter().position(|known| *known == code).and_then(|index| self.0.refused.get(index));
        known.unwrap_or(&self.0.refused_otherwise).increment(1);
    }

    pub fn polled(&self) {
        self.0.polls.increment(1);
    }

    pub fn reconnected(&self) {
        self.0.reconnects.increment(1);
    }

    pub fn connected(&self) -> Counted {
        Counted::new(&self.0.connected)
    }

    pub fn disconnected(&self) -> Counted {
        Counted::new(&self.0.disconnected)
    }
}

impl Default for Metrics {
    /// Before the client connects: reports to no recorder.
    fn default() -> Self {
        metrics::with_local_recorder(&NoopRecorder, || Self::new(&MetricsOptions::default(), None))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("labels", &self.0.labels).finish_non_exhaustive()
    }
}

impl LockMetrics {
    fn new(register: &Register<'_>) -> Self {
        Self(Arc::new(OfLock {
            wait: register.histogram("fairlock_wait_seconds"),
            hold: register.histogram("fairlock_hold_seconds"),
            acquired: register.counter("fairlock_acquired_total"),
            handed_over: register.counter("fairlock_handed_over_total"),
            busy: register.counter("fairlock_busy_total"),
            timed_out: register.counter("fairlock_timed_out_total"),
            given_up: register.counter("fairlock_given_up_total"),
            failed: FAILURES.map(|error| register.counter_of("fairlock_failed_total", "error", error)),
            lost: LOSSES.map(|cause| register.counter_of("fairlock_lost_total", "cause", cause)),
            held: register.gauge("fairlock_locks_held", None),
            waiting: register.gauge("fairlock_calls_waiting", None),
        }))
    }

    /// A call begins. One of the next three methods ends it.
    pub fn wait_began(&self) {
        self.0.waiting.increment(1.0);
    }

    pub fn acquired(&self, waited: Option<Duration>, handed_over: bool) {
        self.0.waiting.decrement(1.0);
        self.0.acquired.increment(1);
        if handed_over {
            self.0.handed_over.increment(1);
        }
        if let Some(waited) = waited {
            self.0.wait.record(waited);
        }
    }

    pub fn given_up(&self) {
        self.0.waiting.decrement(1.0);
        self.0.given_up.increment(1);
    }

    pub fn not_acquired(&self, outcome: NotAcquired) {
        self.0.waiting.decrement(1.0);
        match outcome {
            NotAcquired::Busy => self.0.busy.increment(1),
            NotAcquired::TimedOut => self.0.timed_out.increment(1),
            NotAcquired::Failed(error) => count(&FAILURES, &self.0.failed, error),
        }
    }

    /// A new hold begins. Nested holds are parts of it.
    pub fn hold_began(&self) {
        self.0.held.increment(1.0);
    }

    pub fn hold_ended(&self, held: impl FnOnce() -> Duration) {
        self.0.held.decrement(1.0);
        self.0.hold.record(held());
    }

    /// The hold is gone, and nobody knows how it ended.
    pub fn hold_vanished(&self) {
        self.0.held.decrement(1.0);
    }

    pub fn lost(&self, cause: &str) {
        count(&LOSSES, &self.0.lost, cause);
    }
}

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
