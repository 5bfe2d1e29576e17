//! A hold, as its guards and watchers see it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock_proto::event::{Lease, Manner, Scope, Want};
use fairlock_proto::keys::Keys;
use fairlock_proto::time::Instant as Moment;
use tokio_util::sync::CancellationToken;

use super::clock::LocalClock;
use super::observe::{Holding, Named, Who};
use super::outcome::{Ended, Loss};
use super::owner::Owner;
use super::task_or_thread::TaskOrThread;
use crate::metrics::LockMetrics;
use crate::sync::Mutex;

/// A call: its caller, and the lock that it asks for.
pub struct About {
    pub keys: Arc<Keys>,
    pub owner: Owner,
    pub owner_id: Arc<str>,
    pub terms: Arc<str>,
    pub metrics: LockMetrics,
    pub began: Instant,
    pub scope: Scope,
    pub task: TaskOrThread,
    pub manner: Manner,
    pub lease: Lease,
    /// How much of the name it wants.
    pub weight: u32,
    /// The server is one of a quorum, which logs calls and holds for all its servers.
    pub is_node: bool,
}

impl About {
    pub fn want(&self) -> Want {
        let Self { keys, owner, owner_id, terms, scope, task, manner, lease, weight, .. } = self;
        Want {
            keys: keys.clone(),
            owner: owner.number(),
            owner_id: owner_id.clone(),
            scope: *scope,
            manner: manner.clone(),
            lease: *lease,
            weight: *weight,
            terms: terms.clone(),
            task: task.id(),
        }
    }
}

impl Named for Arc<About> {
    fn who(&self) -> Who<'_> {
        Who { name: &self.keys.name, owner: &self.owner_id, terms: &self.terms, is_node: self.is_node }
    }

    fn began(&self) -> Instant {
        self.began
    }
}

pub struct DrivenHold {
    pub token: u64,
    /// The call that began the hold.
    pub entry: Arc<About>,
    /// Made by the first watcher: most holds have none.
    watchers: Mutex<Option<Box<Watchers>>>,
    began: Moment,
    clock: LocalClock,
    /// Atomic, so that `is_valid` takes no mutex.
    deadline: AtomicU64,
    end: OnceLock<Ended>,
    guards: AtomicU32,
    holding: OnceLock<Holding>,
}

/// Whom to notify when a hold ends.
#[derive(Default)]
struct Watchers {
    /// Cancelled at the end.
    over: CancellationToken,
    /// Called at the end, in the thread that handled the event.
    at_end: Option<Box<dyn FnOnce() + Send>>,
}

/// See [`DrivenHold::is_not_relied_on`].
pub struct Unreliable<'a>(&'a DrivenHold);

impl Drop for Unreliable<'_> {
    fn drop(&mut self) {
        self.0.guards.fetch_add(1, Ordering::Relaxed);
    }
}

impl DrivenHold {
    pub fn begin(token: u64, entry: Arc<About>, now: Moment, deadline: Moment, clock: LocalClock) -> Self {
        Self {
            token,
            entry,
            watchers: Mutex::default(),
            began: now,
            clock,
            deadline: AtomicU64::new(deadline.micros()),
            end: OnceLock::new(),
            guards: AtomicU32::new(0),
            holding: OnceLock::new(),
        }
    }

    /// By the machine's word the hold is good until `deadline`.
    pub fn extends(&self, deadline: Moment) {
        self.deadline.fetch_max(deadline.micros(), Ordering::Relaxed);
    }

    pub fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    pub fn valid_for(&self) -> Duration {
        let deadline = Moment::from_micros(self.deadline.load(Ordering::Relaxed));
        let left = deadline.since(self.clock.now());
        // Without a guard nobody relies on the hold.
        if self.end.get().is_some() || self.live() == 0 { Duration::ZERO } else { left }
    }

    /// Makes the hold invalid. The driver notifies its watchers when the mutex is free.
    pub fn ends(&self, end: Ended) {
        let _ = self.end.set(end);
    }

    pub fn notify_watchers(&self) {
        let notified = self.watchers.lock().as_mut().map(|watchers| (watchers.over.clone(), watchers.at_end.take()));
        if let Some((over, at_end)) = notified {
            over.cancel();
            at_end.into_iter().for_each(|at_end| at_end());
        }
    }

    /// Calls `at_end` when the hold ends, if it has not ended yet.
    pub fn at_end(&self, at_end: impl FnOnce() + Send + 'static) {
        self.watchers.lock().get_or_insert_default().at_end = Some(Box::new(at_end));
    }

    /// Cancelled when the hold has ended.
    pub fn over_token(&self) -> CancellationToken {
        let over = self.watchers.lock().get_or_insert_default().over.clone();
        // The hold may have ended before it had a watcher.
        if self.end.get().is_some() {
            over.cancel();
        }
        over
    }

    pub async fn until_ended(&self) -> Ended {
        self.over_token().cancelled().await;
        self.end.get().copied().unwrap_or(Ended::Freed)
    }

    /// A caller has claimed the hold.
    pub fn is_claimed(&self) {
        self.guards.fetch_add(1, Ordering::Relaxed);
        self.holding.get_or_init(|| Holding::begin(self.entry.metrics.clone()));
    }

    /// One guard less relies on the hold, until the returned value is dropped.
    pub fn is_not_relied_on(&self) -> Unreliable<'_> {
        self.is_given_up();
        Unreliable(self)
    }

    pub fn is_given_up(&self) {
        self.guards.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many guards share the hold.
    pub fn live(&self) -> u32 {
        self.guards.load(Ordering::Relaxed)
    }

    /// How the hold ended, if it has.
    pub fn end(&self) -> Option<Ended> {
        self.end.get().copied()
    }

    /// The same, even if the machine does not know yet that the deadline has passed: the process may have been paused.
    pub fn end_by_now(&self) -> Option<Ended> {
        let is_overdue = || self.live() > 0 && !self.is_valid();
        self.end().or_else(|| is_overdue().then_some(Ended::Lost(Loss::Expired)))
    }

    /// `None`: nobody has claimed the hold.
    pub fn holding(&self) -> Option<&Holding> {
        self.holding.get()
    }

    pub fn held_for(&self) -> Duration {
        self.clock.now().since(self.began)
    }

    /// Opens the hold's span.
    pub fn show(&self) {
        self.holding().into_iter().for_each(|holding| holding.show(&self.entry.who(), self.token));
    }
}
