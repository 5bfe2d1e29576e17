//! When a request may be sent to a server: limits for how many are in flight, and a gate that closes
//! while the server refuses.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{sleep_until, timeout_at};

use super::backoff::Backoff;
use super::clock::now;
use super::error::{Refusal, RefusalKind};

/// When a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Renewals, releases and polls: also while a new connection is being resumed.
    Urgent,
    /// Leaves: as early, but apart. There may be one for each of a hundred thousand waits that were given up together,
    /// and a renewal or a poll behind all of them would come too late (P8).
    Cleanup,
    /// New acquires: after that.
    Normal,
    /// What a caller asks once, such as status and force_unlock: also after that.
    Question,
}

/// Requests in flight of each priority. Enough to keep a server busy, and few enough that a renewal
/// never waits behind more than a few milliseconds of work (P8).
pub const IN_FLIGHT: usize = 256;

/// After that long the next request probes although the last probe is not over.
const LONGEST_PROBE: Duration = Duration::from_secs(5);

/// The limits and the gate of one server.
#[derive(Debug)]
pub struct Admission {
    /// Each priority has its own limit, so that any number of new acquires leaves room for renewals.
    urgent: Slots,
    cleanup: Slots,
    normal: Slots,
    /// Whether `gate` is closed, for the usual case without the mutex.
    refusing: AtomicBool,
    gate: Mutex<Option<Refusing>>,
    /// Notified when the gate opens and when a probe is over.
    changed: Notify,
    /// Of the pauses between probes.
    seed: u64,
}

/// The server refuses. One request at a time, the probe, finds out whether it still does.
#[derive(Debug)]
struct Refusing {
    refusal: Refusal,
    since: Instant,
    backoff: Backoff,
    next_probe: Instant,
    /// When the probe under way counts as given up: its future may never be polled again.
    probing_until: Option<Instant>,
}

/// A request may be sent. Held until its reply is there.
#[derive(Debug)]
pub struct Permit<'a> {
    admission: &'a Admission,
    /// This request is the probe.
    probes: bool,
    _slot: Slot<'a>,
}

/// The limit of one priority.
#[derive(Debug)]
struct Slots {
    free: Semaphore,
    since: Instant,
    /// When a slot was last taken or given back, in milliseconds after `since`.
    moved: AtomicU64,
}

/// A place among the requests in flight.
#[derive(Debug)]
pub struct Slot<'a> {
    slots: &'a Slots,
    /// `None` for a request that goes beyond the limit.
    _permit: Option<SemaphorePermit<'a>>,
}

impl Slots {
    fn new(limit: usize) -> Self {
        Self { free: Semaphore::new(limit), since: now(), moved: AtomicU64::new(0) }
    }

    /// First come, first served. A request whose future is not polled keeps its slot although its reply
    /// is there, and a task may hold many such futures while it waits for this one. So when no slot was
    /// given back for `stuck_after`, one request at a time goes beyond the limit.
    async fn take(&self, stuck_after: Duration) -> Slot<'_> {
        // The semaphore hands what is given back to those in line first. So this finds a slot only
        // when no one waits, and overtakes no one.
        if let Ok(permit) = self.free.try_acquire() {
            return self.taken(Some(permit));
        }
        // Pinned, so that the place in line is kept from one look to the next.
        let mut permit = pin!(self.free.acquire());
        loop {
            // Looked up anew in each round: every slot that was given back since then moves it on.
            let stuck_at = self.since + Duration::from_millis(self.moved.load(Ordering::Relaxed)) + stuck_after;
            tokio::select! {
                // In a fixed order, so that a simulated run can be repeated. A slot comes first: the
                // limit is passed only when there is none.
                biased;
                // An error would mean that the semaphore is closed, which it never is.
                permit = &mut permit => return self.taken(permit.ok()),
                () = sleep_until(stuck_at.into()) => {
                    if self.moved_before(stuck_after) {
                        return self.taken(None);
                    }
                }
            }
        }
    }

    fn taken<'a>(&'a self, permit: Option<SemaphorePermit<'a>>) -> Slot<'a> {
        Slot { slots: self, _permit: permit }
    }

    /// Whether no slot moved for that long. If so, it counts as a move: others wait again.
    fn moved_before(&self, stuck_after: Duration) -> bool {
        let (moved, now) = (self.moved.load(Ordering::Relaxed), self.elapsed_ms());
        let is_stuck = u128::from(now.saturating_sub(moved)) >= stuck_after.as_millis();
        // Many wait, and look at the same moment. The exchange succeeds for one of them only.
        is_stuck && self.moved.compare_exchange(moved, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // Also for a request beyond the limit: its end shows that requests do end, so the others can
        // wait for a slot again.
        self.slots.moved.store(self.slots.elapsed_ms(), Ordering::Relaxed);
    }
}

impl Admission {
    /// `limit`: of each priority. Clients with different seeds do not probe in step.
    pub fn new(limit: usize, seed: u64) -> Self {
        Self {
            urgent: Slots::new(limit),
            cleanup: Slots::new(limit),
            normal: Slots::new(limit),
            refusing: AtomicBool::new(false),
            gate: Mutex::new(None),
            changed: Notify::new(),
            seed,
        }
    }

    /// Waits, first come, first served, until fewer requests are in flight.
    pub async fn slot(&self, priority: Priority, operation_timeout: Duration) -> Slot<'_> {
        // Longer than any request whose future is polled keeps its slot.
        let stuck_after = 2 * operation_timeout + Duration::from_secs(1);
        match priority {
            Priority::Urgent => self.urgent.take(stuck_after).await,
            Priority::Cleanup => self.cleanup.take(stuck_after).await,
            // Questions share with acquires. Neither may use the room of renewals (decision 39).
            Priority::Normal | Priority::Question => self.normal.take(stuck_after).await,
        }
    }

    /// Waits until the gate is open, or this request may probe. At the deadline it fails with what the
    /// server said last, and nothing was sent.
    pub async fn pass<'a>(&'a self, slot: Slot<'a>, deadline: Instant) -> Result<Permit<'a>, Refusal> {
        let mut probes = false;
        while self.refusing.load(Ordering::Acquire) {
            // Register before looking: a change between the look and the await is not missed.
            let changed = self.changed.notified();
            match self.try_pass() {
                Pass::Open => break,
                Pass::Probe => {
                    probes = true;
                    break;
                }
                Pass::Wait { until, refusal } => {
                    // Wake at `until` too, and not only when notified. The future of the probe may
                    // never be polled again, and then it never says that it is over.
                    let woken = timeout_at(until.min(deadline).into(), changed).await.is_ok();
                    // One that was woken looks again even at its deadline: the gate may just have
                    // opened.
                    if !woken && now() >= deadline {
                        return Err(refusal);
                    }
                }
            }
        }
        Ok(Permit { admission: self, probes, _slot: slot })
    }

    /// Passes also while the gate is closed.
    pub fn pass_unchecked<'a>(&'a self, slot: Slot<'a>) -> Permit<'a> {
        Permit { admission: self, probes: false, _slot: slot }
    }

    /// What the server said last, while the gate is closed.
    pub fn refusal(&self) -> Option<Refusal> {
        self.gate().as_ref().map(|refusing| refusing.refusal.clone())
    }

    fn try_pass(&self) -> Pass {
        let mut gate = self.gate();
        let Some(refusing) = gate.as_mut() else { return Pass::Open };
        // A probe that is under way notifies when it is over.
        let until = refusing.probing_until.unwrap_or(refusing.next_probe).max(refusing.next_probe);
        if now() >= until {
            // Set while the mutex is held, so that one request alone becomes the probe (decision 40).
            refusing.probing_until = Some(now() + LONGEST_PROBE);
            return Pass::Probe;
        }
        Pass::Wait { until, refusal: refusing.refusal.clone() }
    }

    /// The server refuses for a reason that may pass: from now on only probes are sent.
    fn refused(&self, refusal: &Refusal) {
        let mut gate = self.gate();
        let refusing = gate.get_or_insert_with(|| {
            // One line for each time that the gate closes. A line for each refusal would flood the
            // log.
            tracing::warn!(target: "fairlock::server", %refusal, "the server refuses requests; trying until it accepts them again");
            let backoff = Backoff::retry(self.seed);
            Refusing { refusal: refusal.clone(), since: now(), backoff, next_probe: now(), probing_until: None }
        });
        // A restart may go from LOADING to READONLY. Callers who run out of time are told the latest.
        refusing.refusal = refusal.clone();
        // Requests that were in flight when the gate closed are refused as well. They must not push the
        // next probe away.
        if now() >= refusing.next_probe {
            refusing.next_probe = now() + refusing.backoff.next();
        }
        // Before the mutex is free, as in `served`. Otherwise the two could interleave and leave a
        // flag that says the opposite of the gate: requests would pass a closed gate, or look at an
        // open one for each request.
        self.refusing.store(true, Ordering::Release);
    }

    /// The server has served a request.
    fn served(&self) {
        if !self.refusing.load(Ordering::Acquire) {
            return;
        }
        let mut gate = self.gate();
        if let Some(refusing) = gate.take() {
            let after = now().saturating_duration_since(refusing.since);
            tracing::info!(target: "fairlock::server", refusal = %refusing.refusal, ?after, "the server accepts requests again");
        }
        self.refusing.store(false, Ordering::Release);
        // Those who are woken lock the gate at once, so let go of it first.
        drop(gate);
        self.changed.notify_waiters();
    }

    fn gate(&self) -> MutexGuard<'_, Option<Refusing>> {
        // No code panics while it holds this; if it did, the data would still be whole.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Pass {
    Open,
    Probe,
    Wait { until: Instant, refusal: Refusal },
}

impl Permit<'_> {
    pub fn is_of(&self, admission: &Admission) -> bool {
        std::ptr::eq(self.admission, admission)
    }

    /// What the server said: opens or closes the gate.
    pub fn answered(&self, refusal: Option<&Refusal>) {
        match refusal {
            // TRYAGAIN is about the keys of one lock: it must not hold up requests for the others.
            Some(refusal) if refusal.kind() == RefusalKind::Passing && refusal.is_of_the_whole_server() => {
                self.admission.refused(refusal);
            }
            // A final refusal such as WRONGTYPE is about this request. It shows that the server
            // serves.
            _ => self.admission.served(),
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.probes {
            return;
        }
        // Also when the probe had no answer or its caller gave up: the next request probes.
        if let Some(refusing) = self.admission.gate().as_mut() {
            refusing.probing_until = None;
        }
        self.admission.changed.notify_waiters();
    }
}
