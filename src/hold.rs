//! What this process holds: how many guards, until when, and whether it is lost.
//!
//! A [`Seat`] is one owner at one lock, with a gate that lets one request at a time through to the
//! server; a [`Hold`] is what the owner has there between a free -> held and its end. Counts are
//! set on the server, never counted up or down there, so a retry does no harm (P4).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::core::{Core, Departure};
use crate::error::Loss;
use crate::owner::Owner;
use crate::store::keys::Keys;
use crate::store::now;
use crate::watchdog;

/// What something runs in. A task may change threads; what is no task is its thread's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Task(tokio::task::Id),
    Thread(ThreadId),
}

pub(crate) fn place() -> Place {
    tokio::task::try_id().map_or_else(|| Place::Thread(std::thread::current().id()), Place::Task)
}

/// One owner at one lock of one client.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) core: Arc<Core>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
    pub(crate) owner_id: Arc<str>,
    /// One request of this owner at a time; a request without an answer keeps it until the answer
    /// is known. Two branches of one scope meet here: the second waits, then re-enters.
    pub(crate) gate: Arc<Semaphore>,
    /// Whoever is through the gate waits in the queue, which may take long.
    pub(crate) queueing: AtomicBool,
    /// Weak: guards and releases under way keep a hold, the seat does not.
    hold: Mutex<Weak<Hold>>,
}

/// Lock key and owner number.
type Key = (Arc<str>, u64);

/// The seats in use.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    seats: Mutex<BTreeMap<Key, Weak<Seat>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these; if it did, the data would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seats {
    pub(crate) fn seat(&self, core: &Arc<Core>, keys: &Arc<Keys>, owner: Owner) -> Arc<Seat> {
        let mut seats = lock(&self.seats);
        let key: Key = (keys.lock.clone(), owner.number());
        if let Some(seat) = seats.get(&key).and_then(Weak::upgrade) {
            return seat;
        }
        let seat = Arc::new(Seat {
            core: core.clone(),
            keys: keys.clone(),
            owner,
            owner_id: core.owner_id(owner),
            gate: Arc::new(Semaphore::new(1)),
            queueing: AtomicBool::new(false),
            hold: Mutex::new(Weak::new()),
        });
        seats.insert(key, Arc::downgrade(&seat));
        seat
    }

    /// What this owner holds there.
    pub(crate) fn hold_of(&self, lock_key: &str, owner: Owner) -> Option<Arc<Hold>> {
        let seat = lock(&self.seats).get(&(lock_key.into(), owner.number())).and_then(Weak::upgrade);
        seat.and_then(|seat| seat.hold())
    }

    /// What owners of this client hold there, as far as they are among the oldest `most` who hold or
    /// want it.
    pub(crate) fn holds_at(&self, lock_key: &str, most: usize) -> Vec<Arc<Hold>> {
        let from: Key = (lock_key.into(), 0);
        let to = (from.0.clone(), u64::MAX);
        let oldest: Vec<_> =
            lock(&self.seats).range(from..=to).take(most).filter_map(|(_, seat)| seat.upgrade()).collect();
        oldest.iter().filter_map(|seat| seat.hold()).collect()
    }

    /// All holds of this client.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let seats: Vec<_> = lock(&self.seats).values().filter_map(Weak::upgrade).collect();
        seats.iter().filter_map(|seat| seat.hold()).collect()
    }

    /// The server says that this hold was ended by force.
    pub(crate) fn revoked(&self, lock_key: &str, owner_id: &str, token: u64) {
        let number = owner_id.rsplit(':').next().and_then(|number| number.parse().ok());
        let hold = number.and_then(|number| self.hold_of(lock_key, Owner::from_number(number)));
        if let Some(hold) = hold.filter(|hold| hold.token == token) {
            hold.lose(Loss::Forced);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let key = (self.keys.lock.clone(), self.owner.number());
        let mut seats = lock(&self.core.seats.seats);
        // A new seat may stand there already, made between our last reference and this line.
        if seats.get(&key).is_some_and(|seat| seat.strong_count() == 0) {
            seats.remove(&key);
        }
    }
}

impl Seat {
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        lock(&self.hold).upgrade()
    }
}

/// How a hold came to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) token: u64,
    /// The attempt that got it.
    pub(crate) attempt: u64,
    pub(crate) deadline: Instant,
    /// When the request that gave this deadline was sent; `None` for a trusted push, which is to
    /// be renewed soon.
    pub(crate) renewed: Option<Instant>,
    pub(crate) lease: Duration,
    /// Renewed by a watchdog until the last guard is gone.
    pub(crate) watched: bool,
    /// Server time until which a copy of the acquire may still be under way; 0: none.
    pub(crate) last_ms: i64,
    /// Outside a scope it is never re-entered, which may be a mistake worth a warning.
    pub(crate) scoped: bool,
}

/// Between free -> held and the end of it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) seat: Arc<Seat>,
    pub(crate) token: u64,
    pub(crate) attempt: u64,
    pub(crate) began: Instant,
    pub(crate) place: Place,
    pub(crate) scoped: bool,
    /// Somebody waited for this hold in the task that has it, and was told.
    pub(crate) warned: AtomicBool,
    /// Cancelled when the hold is lost.
    pub(crate) lost: CancellationToken,
    /// Cancelled by the final unlock: a renewal under way ends.
    pub(crate) done: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Guards alive.
    live: u32,
    /// Holds that the server counts; `None` while a request about it has no answer.
    on_server: Option<u32>,
    deadline: Instant,
    renewed: Option<Instant>,
    lease: Duration,
    watched: bool,
    /// Somebody has the loss as a token, or the watchdog sees to it.
    timed: bool,
    /// When the watchdog comes next.
    due: Option<Instant>,
    last_ms: i64,
    end: Option<End>,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Freed,
    Lost(Loss),
}

impl Hold {
    /// A hold with its first guard's count, and the watchdog's eye on it if it is to be renewed.
    pub(crate) fn begin(seat: &Arc<Seat>, origin: Origin) -> Arc<Self> {
        let hold = Arc::new(Self {
            seat: seat.clone(),
            token: origin.token,
            attempt: origin.attempt,
            began: now(),
            place: place(),
            scoped: origin.scoped,
            warned: AtomicBool::new(false),
            lost: CancellationToken::new(),
            done: CancellationToken::new(),
            state: Mutex::new(State {
                live: 1,
                on_server: Some(1),
                deadline: origin.deadline,
                renewed: origin.renewed,
                lease: origin.lease,
                watched: origin.watched,
                timed: origin.watched,
                due: None,
                last_ms: origin.last_ms,
                end: None,
            }),
        });
        *lock(&seat.hold) = Arc::downgrade(&hold);
        if origin.watched || origin.renewed.is_none() {
            seat.core.watchdog.watch(&hold);
        }
        hold
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    pub(crate) fn valid_for(&self) -> Duration {
        let state = lock(&self.state);
        // With the last guard its release is on its way, and the next holder may be in already.
        let over = state.end.is_some() || state.live == 0;
        if over { Duration::ZERO } else { state.deadline.saturating_duration_since(now()) }
    }

    /// How it ended, as far as can be told here and now: a deadline that has passed needs nobody
    /// to notice it.
    pub(crate) fn end(&self) -> Option<End> {
        let (end, overdue) = {
            let state = lock(&self.state);
            (state.end, state.deadline <= now())
        };
        if end.is_none() && overdue {
            self.lose(Loss::Expired);
            return lock(&self.state).end;
        }
        end
    }

    /// How it ended, if anybody has found out.
    pub(crate) fn ended(&self) -> Option<End> {
        lock(&self.state).end
    }

    pub(crate) fn live(&self) -> u32 {
        lock(&self.state).live
    }

    pub(crate) fn deadline(&self) -> Instant {
        lock(&self.state).deadline
    }

    pub(crate) fn lease(&self) -> Duration {
        lock(&self.state).lease
    }

    /// When the last good renewal was sent.
    pub(crate) fn renewed(&self) -> Option<Instant> {
        lock(&self.state).renewed
    }

    /// The server has given this lease to a request sent at `sent`, until `deadline` here.
    pub(crate) fn extend(&self, sent: Instant, deadline: Instant) {
        let mut state = lock(&self.state);
        // An answer that was overtaken by a later one takes nothing back.
        state.deadline = state.deadline.max(deadline);
        state.renewed = state.renewed.max(Some(sent));
    }

    /// One more guard, on a lease that is at least the one it asked for. False when the hold was
    /// lost while the answer was on its way.
    #[must_use]
    pub(crate) fn enter(self: &Arc<Self>, on_server: u32, lease: Duration, watched: bool) -> bool {
        let start = {
            let mut state = lock(&self.state);
            if state.end.is_some() {
                return false;
            }
            state.live += 1;
            state.on_server = Some(on_server);
            state.lease = state.lease.max(lease);
            let start = watched && !state.watched;
            state.watched |= watched;
            state.timed |= watched;
            start
        };
        if start {
            self.seat.core.watchdog.watch(self);
        }
        true
    }

    /// Whether the watchdog keeps it: it is not over, its lease not a fixed one, max_hold not reached.
    pub(crate) fn is_renewed(&self) -> bool {
        let may_go_on = self.renewed_until().is_none_or(|last| now() < last);
        let state = lock(&self.state);
        state.watched && state.end.is_none() && may_go_on && !self.done.is_cancelled()
    }

    /// Whether its lease is not a fixed one.
    pub(crate) fn is_watched(&self) -> bool {
        lock(&self.state).watched
    }

    /// When max_hold is reached, if there is one.
    pub(crate) fn renewed_until(&self) -> Option<Instant> {
        self.seat.core.options.max_hold.map(|longest| self.began + longest)
    }

    /// When the watchdog is to come, in place of what was said before, which is returned. `None`: it
    /// need not come, the hold is over.
    pub(crate) fn set_due(&self, due: Instant) -> Option<Option<Instant>> {
        let mut state = lock(&self.state);
        let wanted = state.end.is_none() && !self.done.is_cancelled();
        wanted.then(|| state.due.replace(due))
    }

    /// The watchdog need not come any more.
    pub(crate) fn dismiss(&self) {
        self.done.cancel();
        let due = lock(&self.state).due.take();
        if let Some(due) = due {
            self.seat.core.watchdog.forget(due, self.attempt);
        }
    }

    /// One guard less; the server is told by a release.
    pub(crate) fn leave(&self) {
        lock(&self.state).live -= 1;
    }

    /// The holds to tell the server of, or `None` if it knows.
    pub(crate) fn unsettled(&self) -> Option<u32> {
        let state = lock(&self.state);
        (state.on_server != Some(state.live)).then_some(state.live)
    }

    /// A request about the count is under way: until its answer nobody knows it.
    pub(crate) fn unsure(&self) {
        lock(&self.state).on_server = None;
    }

    pub(crate) fn settle(&self, on_server: u32) {
        lock(&self.state).on_server = Some(on_server);
    }

    pub(crate) fn last_ms(&self) -> i64 {
        lock(&self.state).last_ms
    }

    /// The server has freed it at our word.
    pub(crate) fn freed(&self) {
        lock(&self.state).end.get_or_insert(End::Freed);
        self.dismiss();
    }

    /// Tells the holder, once, and sends the leave of R11, so that no late copy of its acquire
    /// brings the hold back.
    pub(crate) fn lose(&self, loss: Loss) {
        let core = &self.seat.core;
        let departure = {
            let mut state = lock(&self.state);
            if state.end.is_some() {
                return;
            }
            // Before anybody can see the end and begin anew: a later attempt of this owner has a
            // greater seq, and survives the leave.
            let seq = core.next_seq();
            state.end = Some(End::Lost(loss));
            let last_ms = state.last_ms.max(core.scripts.not_after());
            Departure { seq, attempt: self.attempt, last_ms, lease: state.lease }
        };
        self.dismiss();
        self.lost.cancel();
        tracing::warn!(name = %self.seat.keys.name, token = self.token, %loss, "lost a lock");
        core.leave(&self.seat, departure);
    }

    /// Sees to it that `lost` is cancelled at the deadline, if nothing does already.
    pub(crate) fn time(self: &Arc<Self>) {
        let start = !std::mem::replace(&mut lock(&self.state).timed, true);
        if start {
            self.seat.core.spawn(watchdog::expire(self.clone()));
        }
    }

    /// Whether its own task might wait for it by mistake, and was not told.
    pub(crate) fn is_open_to_a_warning(&self) -> bool {
        !self.scoped && self.is_valid() && !self.warned.load(Ordering::Relaxed)
    }
}
