//! The parts that one client shares: the scripts, the options, and the background tasks. It knows neither holds nor
//! waiters.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{Either, try_join_all};
use tokio::runtime::{EnterGuard, Handle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outcome::LockError;
use crate::store::SpawnHook;
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::error::RequestError;
use crate::store::options::Options;
use crate::store::runner::Runner;
use crate::store::runtime;

pub struct Context {
    pub runner: Runner,
    /// Cancelled by `close`: the client refuses new calls, and waits end.
    pub closing: CancellationToken,
    /// Cancelled when the client's runtime has ended: waits end, and the client can send nothing more.
    pub gone: CancellationToken,
    /// Cancelled with either: the client serves no more calls.
    pub over: CancellationToken,
    /// All background tasks, so that `close` can wait for them.
    pub tasks: TaskTracker,
    runtime: Handle,
    spawn_hook: Option<SpawnHook>,
    /// The number of backoffs so far, which seeds the next one.
    backoffs: AtomicU64,
    retry_seed: u64,
}

impl Context {
    pub fn new(runner: Runner, runtime: Handle, spawn_hook: Option<SpawnHook>) -> Self {
        let id = runner.client.id.bytes();
        let retry_seed = id.fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let closing = CancellationToken::new();
        Self {
            runner,
            over: closing.child_token(),
            closing,
            gone: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime,
            spawn_hook,
            backoffs: AtomicU64::new(1),
            retry_seed,
        }
    }

    pub fn options(&self) -> &Options {
        &self.runner.options
    }

    /// Whether the server is one of several.
    pub fn is_node(&self) -> bool {
        self.options().node.is_some()
    }

    pub fn operation_timeout(&self) -> Duration {
        self.options().operation_timeout
    }

    /// The pauses between tries of one request. The seed is the client's ID and a number that never repeats: clients do
    /// not retry in step, and the simulator, whose IDs count up, can repeat a run.
    pub fn backoff(&self) -> Backoff {
        let number = self.backoffs.fetch_add(1, Ordering::Relaxed);
        Backoff::retry(self.retry_seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Whether the runtime was shut down. A simulator ends tasks in a runtime that goes on.
    pub fn is_runtime_gone(&self) -> bool {
        runtime::is_gone(&self.runtime)
    }

    /// Whether the caller is in another runtime.
    pub fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() != self.runtime.id())
    }

    /// Until the returned value is dropped, timers belong to the client's own runtime. A timer of another runtime would
    /// end with that one.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Drives `work` for a caller. In a thread without a runtime its timers are those of the client's runtime. `None`:
    /// that runtime has ended.
    pub async fn drive<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(self.gone.run_until_cancelled(work));
        poll_fn(|context| {
            let _runtime = Handle::try_current().is_err().then(|| self.enter());
            work.as_mut().poll(context)
        })
        .await
    }

    /// Works inside the runtime, outside of it, and after its end, when it drops the future.
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

    /// Spawns a task that is not one of the client's own: a simulator has ended those.
    pub fn spawn_apart(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Spawns the driver's task, which outlives the others to serve `close`.
    pub fn spawn_driver(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(self.hooked(task));
    }

    /// Makes a request that waits for nothing but its answer.
    pub async fn ask<T>(&self, request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
        if self.closing.is_cancelled() {
            return Err(RequestError::Closed);
        }
        match self.drive(request).await {
            // The connection ends with the runtime, maybe before the client knows why.
            Some(Err(RequestError::Unanswered(_))) if self.is_runtime_gone() => Err(RequestError::RuntimeGone),
            Some(asked) => asked,
            None => Err(RequestError::RuntimeGone),
        }
    }

    /// Why the client serves no more calls. A closed client stays closed when its runtime ends.
    pub fn why_over(&self) -> LockError {
        if self.closing.is_cancelled() { LockError::Closed } else { LockError::RuntimeGone }
    }

    /// When no request sent so far can have an effect on the server any more: its tickets and leases have ended.
    pub fn forgotten_at(&self, lease: Duration) -> Instant {
        // The server may serve a request late, and begin its lease only then (R2). So the time-outs come on top.
        let options = self.options();
        now() + lease.max(options.waiter_ttl).max(options.first_lease()) + 2 * self.operation_timeout()
    }

    /// The longest round trip to a server. The client asks all of them at the same time.
    pub async fn ping(&self) -> Result<Duration, RequestError> {
        let runner = &self.runner;
        let pings = runner.store.seats().into_iter().filter_map(|seat| runner.store.server(seat)).map(|server| async {
            let asked = now();
            match runner.ask(server, &["PING"]).await {
                Ok((_, took)) => Ok(took),
                // A refusal is an answer, too: a user may lack the right to PING.
                Err(RequestError::Refused(refusal)) if refusal.is_about_rights() => {
                    Ok(now().saturating_duration_since(asked))
                }
                Err(error) => Err(error),
            }
        });
        let took = self.ask(try_join_all(pings)).await?;
        Ok(took.into_iter().max().unwrap_or_default())
    }

    /// Refuses new calls, and ends waits.
    pub fn begin_to_close(&self) {
        self.closing.cancel();
        // `wait` ends only on a closed tracker. It still accepts tasks.
        self.tasks.close();
    }

    /// Waits for the tasks, and ends the connection.
    pub async fn end(&self) {
        self.begin_to_close();
        let tasks = timeout(3 * self.operation_timeout(), self.tasks.wait());
        let _ = self.gone.run_until_cancelled(tasks).await;
        self.runner.store.close();
    }
}
