//! The only code that reports calls and holds: as spans and events of `tracing`, and as metrics.
//!
//! Spans are at DEBUG. With them off, as by default, a call pays for two comparisons. docs/operating.md lists all
//! events in a table, which tests/house.rs compares with the code.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock_proto::keys::label_of;
use futures::future::Either;
use tracing::{Id, Level, Span, field};

use super::outcome::{LockError, Loss};
use crate::metrics::{ARE_ON, LockMetrics, NotAcquired};
use crate::store::clock::now;
use crate::sync::Mutex;

/// The call or hold that a log line is about.
#[derive(Clone, Copy)]
pub struct Who<'a> {
    pub name: &'a str,
    pub owner: &'a str,
    /// The terms of the call, with its label: see `keys::terms`.
    pub terms: &'a str,
    /// One server of a quorum, which reports holds and losses once for all servers.
    pub is_node: bool,
}

/// A call that a log line may be about.
pub trait Named {
    fn who(&self) -> Who<'_>;
    fn began(&self) -> Instant;
}

impl Named for (Who<'_>, Instant) {
    fn who(&self) -> Who<'_> {
        self.0
    }

    fn began(&self) -> Instant {
        self.1
    }
}

impl<'a> Who<'a> {
    /// Name, owner and label.
    fn fields(&self) -> (&'a str, &'a str, &'a str) {
        // Reads the label only now: most calls are not logged.
        (self.name, self.owner, label_of(self.terms))
    }
}

/// A call for a lock, from its beginning to its end. Dropped earlier, it counts as given up.
pub struct ObservedCall<'a, W: Named> {
    /// Asked only for a log line: many calls may wait.
    about: W,
    metrics: &'a LockMetrics,
    /// Boxed: many calls may wait, and few have a span.
    span: Option<Box<Span>>,
    /// Whether to record the duration.
    is_timed: bool,
    is_over: bool,
}

impl<'a, W: Named> ObservedCall<'a, W> {
    pub fn begin(about: W, metrics: &'a LockMetrics) -> Self {
        metrics.wait_began();
        let is_told = is_told(&about.who());
        let span = || {
            let who = about.who();
            Box::new(tracing::debug_span!(
                target: "fairlock::lock",
                "lock",
                name = %who.name,
                owner = %who.owner,
                label = %label_of(who.terms),
                token = field::Empty,
                wait_ms = field::Empty,
            ))
        };
        let span = is_told.then(span);
        Self { about, metrics, span, is_timed: ARE_ON || is_told, is_over: false }
    }

    /// Runs the work of the call in its span. The caller pins the work, so that it is not moved into another future.
    pub fn drive<'s, F: Future>(&'s self, mut work: Pin<&'s mut F>) -> impl Future<Output = F::Output> {
        // Borrowed: if the user's subscriber panics as it closes the span, that must not drop a result on its way out.
        let Some(span) = &self.span else { return Either::Right(work) };
        Either::Left(Box::pin(poll_fn(move |context| {
            let entered = span.enter();
            let polled = work.as_mut().poll(context);
            // Here, not at the end of the block as in `Instrument`, for the same reason.
            drop(entered);
            polled
        })))
    }

    /// Whether the event is enabled.
    pub fn is_told(&self) -> bool {
        is_told(&self.about.who())
    }

    /// The call got the lock. `handed_over`: out of the queue.
    pub fn acquired(mut self, token: u64, handed_over: impl FnOnce() -> bool) {
        let waited = self.end();
        if !ARE_ON && !self.is_told() {
            return;
        }
        let handed_over = handed_over();
        self.metrics.acquired(waited, handed_over);
        if let Some(span) = &self.span {
            span.record("token", token);
        }
        if self.is_told() {
            let (name, owner, label) = self.about.who().fields();
            let wait_ms = waited.map(millis);
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, token, wait_ms, handed_over, "acquired");
        }
    }

    /// Others have the lock, and the call was not to wait.
    pub fn busy(mut self) {
        self.end();
        self.metrics.not_acquired(NotAcquired::Busy);
        if self.is_told() {
            let (name, owner, label) = self.about.who().fields();
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, "not free");
        }
    }

    pub fn failed(mut self, error: &LockError) {
        let waited = self.end();
        self.metrics.not_acquired(outcome(error));
        if self.is_told() {
            let (name, owner, label) = self.about.who().fields();
            let wait_ms = waited.map(millis);
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, wait_ms, %error, "not acquired");
        }
    }

    fn end(&mut self) -> Option<Duration> {
        self.is_over = true;
        let waited = self.is_timed.then(|| now().saturating_duration_since(self.about.began()));
        if let (Some(span), Some(waited), false) = (&self.span, waited, thread::panicking()) {
            span.record("wait_ms", millis(waited));
        }
        waited
    }
}

impl<W: Named> Drop for ObservedCall<'_, W> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let waited = self.end();
        self.metrics.given_up();
        if self.is_told() {
            let (name, owner, label) = self.about.who().fields();
            let wait_ms = waited.map(millis);
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, wait_ms, "gave up");
        }
    }
}

/// Counts a call that failed before it began.
pub fn refused_at_once(metrics: &LockMetrics, error: &LockError) {
    metrics.wait_began();
    metrics.not_acquired(outcome(error));
}

/// The caller's span, for a line that another task writes. Only the ID: the span ends with the call.
#[derive(Clone)]
pub struct CallerSpan(Option<Id>);

impl CallerSpan {
    fn current() -> Self {
        Self(Span::current().id())
    }

    /// `None`: the log does not mention calls.
    pub fn of(who: &Who<'_>) -> Option<Self> {
        is_told(who).then(Self::current)
    }

    pub fn in_line(&self, who: &Who<'_>) {
        let (name, owner, label) = who.fields();
        tracing::debug!(target: "fairlock::lock", parent: self.0.clone(), %name, %owner, %label, "waits in the queue");
    }
}

/// A hold, from its beginning to its end.
pub struct Holding {
    metrics: LockMetrics,
    /// Boxed: there are many holds, and few have a span.
    span: Mutex<Option<Box<Span>>>,
    is_over: AtomicBool,
}

impl Holding {
    pub fn begin(metrics: LockMetrics) -> Self {
        metrics.hold_began();
        Self { metrics, span: Mutex::default(), is_over: AtomicBool::new(false) }
    }

    /// Opens the hold's span, as a child of the caller's span: the span of the call has ended.
    pub fn show(&self, who: &Who<'_>, token: u64) {
        // A nested call comes here again. A hold that has ended already has no end to report.
        if !is_told(who) || self.is_over.load(Ordering::Relaxed) {
            return;
        }
        if self.span.lock().is_some() {
            return;
        }
        let span = tracing::debug_span!(
            target: "fairlock::lock",
            "hold",
            name = %who.name,
            owner = %who.owner,
            label = %label_of(who.terms),
            token,
            held_ms = field::Empty,
            end = field::Empty,
        );
        // Made before the mutex is taken, and the old span is dropped when it is free: the log is user code.
        let before = self.span.lock().replace(Box::new(span));
        drop(before);
    }

    /// Reports a release that the server has confirmed.
    pub fn freed(&self, who: &Who<'_>, token: u64, held: impl Fn() -> Duration) {
        if self.over(&held, "released") && is_told(who) {
            let ((name, owner, label), held_ms) = (who.fields(), millis(held()));
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, token, held_ms, "released");
        }
    }

    /// Reports that a handle has the hold now.
    pub fn detached(&self, who: &Who<'_>, token: u64, held: impl Fn() -> Duration) {
        if self.over(&held, "detached") && is_told(who) {
            let ((name, owner, label), held_ms) = (who.fields(), millis(held()));
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, token, held_ms, "detached");
        }
    }

    /// Reports a release whose outcome will stay unknown.
    pub fn forgotten(&self, who: &Who<'_>, token: u64, held: impl Fn() -> Duration) {
        if self.over(&held, "released without an answer") && is_told(who) {
            let ((name, owner, label), held_ms) = (who.fields(), millis(held()));
            tracing::debug!(target: "fairlock::lock", %name, %owner, %label, token, held_ms, "released without an answer");
        }
    }

    /// Counts the loss of a hold that a guard relied on; [`Lost`] logs it. Returns false if the hold's end was reported
    /// before.
    pub fn lost(&self, held: impl Fn() -> Duration, loss: Loss, was_relied_on: bool) -> bool {
        let is_first = self.over(&held, "lost");
        if is_first && was_relied_on {
            self.metrics.lost(match loss {
                Loss::Expired => "expired",
                Loss::Gone => "gone",
                Loss::Forced => "forced",
                Loss::Closed => "closed",
            });
        }
        is_first
    }

    /// Returns true only the first time. A lost hold may be released later, and the other way round.
    fn over(&self, held: &impl Fn() -> Duration, end: &str) -> bool {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.metrics.hold_ended(held);
        // Now, because watchers may keep the hold for long.
        let span = self.span.lock().take();
        if let Some(span) = span {
            span.record("held_ms", millis(held())).record("end", end);
        }
        true
    }
}

/// The log line of a lost hold.
pub struct Lost<'a> {
    pub who: Who<'a>,
    pub token: u64,
    pub held: Duration,
    pub loss: Loss,
}

impl Lost<'_> {
    pub fn warn(&self) {
        let Self { who: Who { name, owner, .. }, token, held, loss } = self;
        tracing::warn!(target: "fairlock::lock", %name, %owner, token, held_ms = millis(*held), %loss, "lost a lock");
    }

    /// At DEBUG: another line reports the loss, or no guard relied on the hold.
    pub fn debug(&self) {
        let Self { who: Who { name, owner, .. }, token, held, loss } = self;
        tracing::debug!(target: "fairlock::lock", %name, %owner, token, held_ms = millis(*held), %loss, "lost a lock");
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // The runtime ended before an answer came, so the duration of the hold is unknown.
        if !self.is_over.load(Ordering::Relaxed) {
            self.metrics.hold_vanished();
        }
    }
}

/// Not in a panic: it may be the subscriber's, and a second one would end the process.
fn is_told(who: &Who<'_>) -> bool {
    !who.is_node && !thread::panicking() && tracing::enabled!(target: "fairlock::lock", Level::DEBUG)
}

/// Milliseconds, to the microsecond.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn outcome(error: &LockError) -> NotAcquired {
    NotAcquired::Failed(match error {
        LockError::Timeout { .. } => return NotAcquired::TimedOut,
        LockError::Lost => "lost",
        LockError::QueueFull { .. } => "queue_full",
        LockError::SelfWait
        | LockError::WouldDeadlock
        | LockError::Name(_)
        | LockError::Lease(_)
        | LockError::Label(_)
        | LockError::Permits { .. }
        | LockError::SeveralServers => "invalid",
        LockError::Unreachable(_) => "unreachable",
        LockError::Refused(_) => "refused",
        LockError::Closed => "closed",
        LockError::RuntimeGone => "runtime_gone",
    })
}
