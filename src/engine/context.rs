//! The shared parts of one client: the scripts, the options, numbers that are used once, and
//! the tasks in the background. It knows neither holds nor waiters.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock_proto::keys::Keys;
use futures::FutureExt;
use futures::future::Either;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{Semaphore, SetOnce};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::LockError;
use super::farewells::Farewells;
use crate::store::SpawnHook;
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::error::RequestError;
use crate::store::options::Options;
use crate::store::runner::Runner;
use crate::store::runtime;

/// How many refused leaves are sent again, or pause for that, at a time.
const REFUSED_LEAVES: usize = 64;

pub struct Context {
    pub runner: Runner,
    /// Cancelled by `close`: new calls are refused and waits end.
    pub closing: CancellationToken,
    /// How many requests had no answer when it was closed.
    pub unfinished: SetOnce<usize>,
    /// Cancelled when the runtime of the client has ended: waits end, and nothing more can be sent.
    pub gone: CancellationToken,
    /// Cancelled with either: no call can be served any longer.
    pub over: CancellationToken,
    /// Everything in the background, so that `close` can wait for it.
    pub tasks: TaskTracker,
    pub farewells: Farewells,
    /// Leaves that are refused until a person helps, as it seems, and are sent again.
    pub refused_leaves: Semaphore,
    /// Since the last of them that was accepted.
    pub is_told_of_refused_leaves: AtomicBool,
    runtime: Handle,
    spawn_hook: Option<SpawnHook>,
    seq: AtomicU64,
    /// Made of the client's id once: each lock and unlock has a backoff, and few of them use it.
    retry_seed: u64,
}

impl Context {
    pub fn new(runner: Runner, runtime: Handle, spawn_hook: Option<SpawnHook>) -> Self {
        let id = runner.client.id.bytes();
        let retry_seed = id.fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        // After an operation time-out the supervisor pings, and has an answer within a second (decision 44).
        let closing = CancellationToken::new();
        let farewells = Farewells::new(runner.options.operation_timeout + Duration::from_secs(1));
        Self {
            runner,
            over: closing.child_token(),
            closing,
            unfinished: SetOnce::new(),
            gone: CancellationToken::new(),
            tasks: TaskTracker::new(),
            farewells,
            refused_leaves: Semaphore::new(REFUSED_LEAVES),
            is_told_of_refused_leaves: AtomicBool::new(false),
            runtime,
            spawn_hook,
            seq: AtomicU64::new(1),
            retry_seed,
        }
    }

    pub fn options(&self) -> &Options {
        &self.runner.options
    }

    /// Whether its server is one of several.
    pub fn is_node(&self) -> bool {
        self.options().node.is_some()
    }

    pub fn operation_timeout(&self) -> Duration {
        self.options().operation_timeout
    }

    /// A request that was sent then has released what an owner had at this lock (R15).
    pub fn given_back(&self, keys: &Keys, sent: Instant) {
        self.farewells.note(keys, sent, |lock_key| self.runner.is_connected(lock_key));
    }

    /// Strictly growing: greater than every seq that the server has seen from this client (R1).
    pub fn next_seq(&self) -> u64 {
        // Relaxed is enough. Where the order of two numbers matters, a turn or a lock stands between
        // them.
        self.seq.fetch_add(1, Ordering::Relaxed)
    }

    /// The pauses between tries of one request. Seeded by the client's id and a number that is used
    /// once: clients do not retry in step, and the simulator, whose ids count up, can repeat a run.
    pub fn backoff(&self) -> Backoff {
        Backoff::retry(self.retry_seed ^ self.next_seq().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Whether the runtime was shut down. A simulator ends tasks in a runtime that goes on.
    pub fn is_runtime_gone(&self) -> bool {
        runtime::is_gone(&self.runtime)
    }

    /// Whether the caller is in another runtime.
    pub fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() != self.runtime.id())
    }

    /// Until this is dropped, timers are those of its own runtime: what began in another one would end with that.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Works inside the runtime, outside of it, and after it is gone, when the future is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Not `tokio::spawn`: a guard may be dropped in a thread without a runtime.
        self.tasks.spawn_on(self.hooked(task), &self.runtime);
    }

    fn hooked(&self, task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send + 'static {
        match &self.spawn_hook {
            None => Either::Left(task),
            Some(hook) => Either::Right(hook(task.boxed())),
        }
    }

    /// `close` waits for all tasks and loses what is held, so a task that serves the client must end before.
    pub fn spawn_until_closing(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.spawn(async move {
            let _ = closing.run_until_cancelled(task).await;
        });
    }

    /// Not as one of the client's own tasks, which a simulator has ended.
    pub fn spawn_apart(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// For the driver of the machine, which outlives the others: it serves `close`.
    pub fn spawn_driver(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(self.hooked(task));
    }

    /// For `close` itself, which waits for all other tasks.
    pub fn spawn_unwatched(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// A request that waits for nothing but its answer.
    pub async fn ask<T>(&self, request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
        if self.closing.is_cancelled() {
            return Err(RequestError::Closed);
        }
        match self.gone.run_until_cancelled(request).await {
            // The connection ends with the runtime, and may do so before the client knows why.
            Some(Err(RequestError::Unanswered(_))) if self.is_runtime_gone() => Err(RequestError::RuntimeGone),
            Some(asked) => asked,
            None => Err(RequestError::RuntimeGone),
        }
    }

    /// Why no call can be served any longer. A client that was closed stays so when its runtime ends.
    pub fn why_over(&self) -> LockError {
        let is_gone = self.gone.is_cancelled() && !self.closing.is_cancelled();
        if is_gone { LockError::RuntimeGone } else { LockError::Closed }
    }

    /// When nothing that was sent until now can have an effect on the server: its tickets and leases
    /// are over.
    pub fn forgotten_at(&self, lease: Duration) -> Instant {
        self.forgotten_after(now(), lease)
    }

    /// The same for what was sent until then.
    pub fn forgotten_after(&self, sent: Instant, lease: Duration) -> Instant {
        // A request on its way may be served late and begin its lease only then (R2). So the time-outs
        // come on top.
        let options = self.options();
        sent + lease.max(options.waiter_ttl).max(options.first_lease()) + 2 * self.operation_timeout()
    }
}
