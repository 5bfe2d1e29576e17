//! When a request may be sent to a server: limits for how many are in flight, and a gate that closes
//! while the server refuses.
//!
//! Callers may let their futures rest. So what others need is not kept in them: a slot or a probe ends when the
//! answer arrives or its time is over, and a turn that is not taken goes to the next one.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::task::{unconstrained, yield_now};
use tokio::time::{sleep_until, timeout_at};

use super::backoff::Backoff;
use super::clock::now;
use super::error::{Refusal, RefusalKind};
use super::runtime::log_line;
use crate::sync::Mutex;

/// When a request may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Renewals and polls: also while a new connection is being resumed.
    Urgent,
    /// Releases: as early, but apart, since callers send them.
    Release,
    /// Leaves: the same. There may be one for each of a hundred thousand waits that were given up together,
    /// and a renewal or a poll behind all of them would come too late (P8).
    Cleanup,
    /// New acquires: after that.
    Normal,
    /// Requests that a caller makes once, such as status and force_unlock: also after that.
    Question,
}

/// Requests in flight of each kind. Enough to keep a server busy, and few enough that a renewal
/// never waits behind more than a few milliseconds of work (P8).
pub const IN_FLIGHT: usize = 256;

/// How long a woken future may rest before its turn, or its probe, goes to another one.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// The limits and the gate of one server.
pub struct Admission {
    shared: Arc<RequestLimits>,
}

struct RequestLimits {
    /// Each has a limit of its own, so that any number of new acquires leaves room for renewals.
    lines: [RequestLimit; 4],
    /// Notified when a turn was given to one in line.
    given: Notify,
    /// Whether `gate` is closed, for the usual case without the mutex.
    refusing: AtomicBool,
    gate: Mutex<Option<Refusing>>,
    /// Notified when the gate opens and when a probe is over.
    changed: Notify,
    /// For the pauses between probes.
    seed: u64,
}

/// The server refuses. One request at a time, the probe, finds out whether it still does.
struct Refusing {
    refusal: Refusal,
    since: Instant,
    backoff: Backoff,
    next_probe: Instant,
    /// Until when the probe under way keeps others from probing.
    probing_until: Option<Instant>,
}

/// A limit, and its waiters: first come, first served.
struct RequestLimit(Mutex<Places>);

struct Places {
    /// 0 while others wait.
    free: usize,
    next_number: u64,
    waiting: BTreeMap<u64, Waker>,
    /// The numbers whose turn has come, and since when. They were woken.
    given: BTreeMap<u64, Instant>,
}

/// Waits for a slot.
struct AwaitedSlot<'a> {
    admission: &'a Admission,
    priority: Priority,
    number: Option<u64>,
}

/// A request from when it may be sent to its answer. As the waker of its future it hears when that has arrived.
pub struct InFlight {
    shared: Arc<RequestLimits>,
    pub priority: Priority,
    /// When its time is over.
    pub deadline: Instant,
    /// This request is the probe.
    probes: bool,
    /// It still has its place among the requests in flight.
    has_slot: AtomicBool,
    caller: AtomicWaker,
}

impl RequestLimit {
    fn new(limit: usize) -> Self {
        Self(Mutex::new(Places { free: limit, next_number: 0, waiting: BTreeMap::new(), given: BTreeMap::new() }))
    }

    /// Passes over those whose turn came before `since`. Returns how many, and when the first of the others got its turn.
    fn pass_over(&self, since: Instant) -> (usize, Option<Instant>) {
        let mut places = self.0.lock();
        let all = places.given.len();
        places.given.retain(|_, given| *given > since);
        (all - places.given.len(), places.given.values().min().copied())
    }
}

impl Places {
    /// Takes a slot, or the place in line that is `number` from then on.
    fn take(&mut self, number: &mut Option<u64>, waker: &Waker) -> bool {
        if let Some(mine) = *number {
            if self.given.remove(&mine).is_some() {
                *number = None;
                return true;
            }
            if let Some(known) = self.waiting.get_mut(&mine) {
                known.clone_from(waker);
                return false;
            }
            // It was passed over, and goes to the end of the line.
        }
        if self.free > 0 {
            self.free -= 1;
            *number = None;
            return true;
        }
        self.waiting.insert(self.next_number, waker.clone());
        *number = Some(self.next_number);
        self.next_number += 1;
        false
    }
}

/// Resolves when the slot is taken. Whoever took it gives it back.
impl Future for AwaitedSlot<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { admission, priority, number } = &mut *self;
        let is_taken = admission.shared.line(*priority).0.lock().take(number, context.waker());
        if is_taken { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for AwaitedSlot<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let shared = &self.admission.shared;
        let was_given = {
            let mut places = shared.line(self.priority).0.lock();
            places.waiting.remove(&number);
            places.given.remove(&number).is_some()
        };
        if was_given {
            shared.give_back(self.priority);
        }
    }
}

impl RequestLimits {
    fn line(&self, priority: Priority) -> &RequestLimit {
        let [urgent, release, cleanup, normal] = &self.lines;
        match priority {
            Priority::Urgent => urgent,
            Priority::Release => release,
            Priority::Cleanup => cleanup,
            // Questions share with acquires. Neither may use the room of renewals (decision 39).
            Priority::Normal | Priority::Question => normal,
        }
    }

    /// A slot goes to the next one in line.
    fn give_back(&self, priority: Priority) {
        let next = {
            let mut places = self.line(priority).0.lock();
            let next = places.waiting.pop_first();
            match &next {
                Some((number, _)) => drop(places.given.insert(*number, now())),
                None => places.free += 1,
            }
            next
        };
        // Woken after the lock is free: it looks at once.
        if let Some((_, waker)) = next {
            self.given.notify_one();
            waker.wake();
        }
    }

    /// The server refuses for a reason that may pass: from now on only probes are sent.
    fn refused(&self, refusal: &Refusal) {
        let mut gate = self.gate.lock();
        let closes = gate.is_none();
        let refusing = gate.get_or_insert_with(|| {
            let backoff = Backoff::retry(self.seed);
            Refusing { refusal: refusal.clone(), since: now(), backoff, next_probe: now(), probing_until: None }
        });
        // A restart may go from LOADING to READONLY. Callers that run out of time get the latest.
        refusing.refusal = refusal.clone();
        // Requests that were in flight when the gate closed are refused as well. They must not push the
        // next probe away.
        if now() >= refusing.next_probe {
            refusing.next_probe = now() + refusing.backoff.next_probe();
        }
        // Before the mutex is free, as in `served`. Otherwise the two could interleave and leave a flag that
        // contradicts the gate: requests would pass a closed gate, or look at an open one for each request.
        self.refusing.store(true, Ordering::Release);
        // The log's subscriber is the user's, and may take its time.
        drop(gate);
        // One line for each time that the gate closes. A line for each refusal would flood the log.
        if closes {
            log_line(|| {
                tracing::warn!(target: "fairlock::server", %refusal, "the server refuses requests; trying until it accepts them again");
            });
        }
    }

    /// The server has served a request.
    fn served(&self) {
        if !self.refusing.load(Ordering::Acquire) {
            return;
        }
        let mut gate = self.gate.lock();
        let over = gate.take();
        self.refusing.store(false, Ordering::Release);
        // Woken waiters lock the gate at once, so let go of it first.
        drop(gate);
        self.changed.notify_waiters();
        if let Some(refusing) = over {
            let after = now().saturating_duration_since(refusing.since);
            log_line(|| {
                tracing::info!(target: "fairlock::server", refusal = %refusing.refusal, ?after, "the server accepts requests again");
            });
        }
    }

    /// A probe keeps others from probing until then at the latest.
    fn end_probe(&self, until: Option<Instant>) {
        if let Some(refusing) = self.gate.lock().as_mut() {
            refusing.probing_until = until;
        }
        self.changed.notify_waiters();
    }
}

impl Admission {
    /// `limit`: of each line. Clients with different seeds do not probe in step.
    pub fn new(limit: usize, seed: u64) -> Self {
        let shared = RequestLimits {
            lines: std::array::from_fn(|_| RequestLimit::new(limit)),
            given: Notify::new(),
            refusing: AtomicBool::new(false),
            gate: Mutex::new(None),
            changed: Notify::new(),
            seed,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Passes over waiters that do not take their turn. Never ends.
    pub async fn watch(&self) {
        let shared = &self.shared;
        loop {
            shared.given.notified().await;
            let mut first = Some(now());
            while let Some(given) = first.take() {
                sleep_until((given + PATIENCE).into()).await;
                // If the whole runtime stood still, the woken waiters look first.
                yield_now().await;
                let since = now() - PATIENCE;
                for priority in [Priority::Urgent, Priority::Release, Priority::Cleanup, Priority::Normal] {
                    let (passed_over, next) = shared.line(priority).pass_over(since);
                    first = first.into_iter().chain(next).min();
                    (0..passed_over).for_each(|_| shared.give_back(priority));
                }
            }
        }
    }

    /// Waits until the gate is open, or a probe is due. At the deadline it fails with the server's last refusal.
    pub async fn open(&self, deadline: Instant) -> Result<(), Refusal> {
        let shared = &self.shared;
        while self.is_closed() {
            // Register before looking: a change between the look and the await is not missed.
            let changed = shared.changed.notified();
            let Some((until, refusal)) = self.closed_until() else { break };
            let woken = timeout_at(until.min(deadline).into(), changed).await.is_ok();
            // A woken waiter looks again even at its deadline: the gate may just have opened.
            if !woken && now() >= deadline {
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn closed_until(&self) -> Option<(Instant, Refusal)> {
        let gate = self.shared.gate.lock();
        gate.as_ref()
            .filter(|refusing| now() < refusing.until())
            .map(|refusing| (refusing.until(), refusing.refusal.clone()))
    }

    /// A slot among the requests in flight, for a request that is sent at once; to be dropped if that is not possible
    /// any more. Without a limit (`by`) the time for it begins now. `None`: the gate was closed meanwhile.
    pub async fn enter(&self, priority: Priority, timeout: Duration, by: Option<Instant>) -> Option<Arc<InFlight>> {
        AwaitedSlot { admission: self, priority, number: None }.await;
        let deadline = by.unwrap_or_else(|| now() + timeout);
        let (shared, has_slot, caller) = (self.shared.clone(), AtomicBool::new(true), AtomicWaker::new());
        // Made first: dropped, it gives the slot back.
        let mut in_flight = InFlight { shared, priority, deadline, probes: false, has_slot, caller };
        // A single question is not retried, so that it may be asked at any time.
        if priority != Priority::Question {
            in_flight.probes = self.try_pass(timeout)?;
        }
        Some(Arc::new(in_flight))
    }

    /// Whether only probes pass.
    pub fn is_closed(&self) -> bool {
        self.shared.refusing.load(Ordering::Acquire)
    }

    /// The server's last refusal, while the gate is closed.
    pub fn refusal(&self) -> Option<Refusal> {
        self.shared.gate.lock().as_ref().map(|refusing| refusing.refusal.clone())
    }

    /// Whether the request that passes is the probe. `None`: none may pass.
    fn try_pass(&self, timeout: Duration) -> Option<bool> {
        if !self.is_closed() {
            return Some(false);
        }
        let mut gate = self.shared.gate.lock();
        let Some(refusing) = gate.as_mut() else { return Some(false) };
        if now() < refusing.until() {
            return None;
        }
        // Set while the mutex is held, so that one request alone becomes the probe (decision 40).
        refusing.probing_until = Some(now() + timeout);
        Some(true)
    }
}

impl Refusing {
    /// The earliest time of the next probe.
    fn until(&self) -> Instant {
        self.probing_until.map_or(self.next_probe, |until| until.max(self.next_probe))
    }
}

impl InFlight {
    pub fn is_of(&self, admission: &Admission) -> bool {
        Arc::ptr_eq(&self.shared, &admission.shared)
    }

    /// Drives the request to its end. Its slot is released when it is woken: its answer is there, or its time is over.
    ///
    /// Pinned by the caller: passed on by value, it would be in the caller's future twice.
    pub fn run<F: Future>(self: &Arc<Self>, request: Pin<&mut F>) -> impl Future<Output = F::Output> {
        // Otherwise it could also be woken because its task has done much already, before it was sent.
        let mut request = unconstrained(request);
        let waker = Waker::from(self.clone());
        poll_fn(move |context| {
            self.caller.register(context.waker());
            request.poll_unpin(&mut Context::from_waker(&waker))
        })
    }

    /// Reads the server's answer: opens or closes the gate.
    pub fn answered(&self, refusal: Option<&Refusal>) {
        match refusal {
            // A question does not wait at the gate.
            _ if self.priority == Priority::Question => {}
            // TRYAGAIN is about the keys of one lock: it must not hold up requests for the others.
            Some(refusal) if refusal.kind() == RefusalKind::Passing && !refusal.is_of_a_slot() => {
                self.shared.refused(refusal);
            }
            // Such as NOPERM: the server looks at these before it looks at what it refuses to all.
            Some(refusal) if !refusal.in_script => {}
            // Only the probe's answer counts: an earlier request may have its answer read after the first refusal.
            _ if self.probes => self.shared.served(),
            _ => {}
        }
    }

    /// The first time only.
    fn give_back(&self) -> bool {
        let is_first = self.has_slot.swap(false, Ordering::AcqRel);
        if is_first {
            self.shared.give_back(self.priority);
        }
        is_first
    }
}

impl Wake for InFlight {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.give_back() && self.probes {
            // Its caller has the answer, and is to read it.
            self.shared.end_probe(Some(now() + PATIENCE));
        }
        self.caller.wake();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.give_back();
        if self.probes {
            // Also when the probe had no answer or its caller gave up: the next request probes.
            self.shared.end_probe(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It opened the gate, and the log said that the server accepts requests again. Found by an attack.
    #[tokio::test]
    async fn an_answer_from_before_a_refusal_that_is_read_behind_it_does_not_open_the_gate() {
        let (admission, second) = (Admission::new(9, 1), Duration::from_secs(1));
        let before = admission.enter(Priority::Normal, second, None).await.unwrap();
        let refused = admission.enter(Priority::Normal, second, None).await.unwrap();
        refused.answered(Some(&Refusal::new("NOREPLICAS", "too few replicas")));
        before.answered(None);
        assert!(admission.is_closed());
        admission.open(now() + 9 * second).await.unwrap();
        admission.enter(Priority::Normal, second, None).await.unwrap().answered(None);
        assert!(!admission.is_closed());
    }
}
