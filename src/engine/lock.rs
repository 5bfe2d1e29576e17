//! The lock of one client at its server, by its name: what the public page and a quorum ask an engine for.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{self, Keys, Kind, LONGEST_NAME, Share, label_of, shared_terms};
use futures::FutureExt;
use futures::future::Either;
use tokio::task::unconstrained;
use tokio::time::sleep_until;

use super::Engine;
use super::acquire::{AcquireRequest, acquire};
use super::context::Context;
use super::error::LockError;
use super::guard::EngineGuard;
use super::hold::Hold;
use super::last_answer::too_late;
use super::observe::{self, ObservedCall};
use super::owner::Owner;
use super::task_or_thread::TaskOrThread;
use crate::metrics::LockMetrics;
use crate::store::clock::{is_over, now};
use crate::store::error::NameError;
use crate::store::options::{OptionsError, check_label};

#[derive(Clone)]
pub struct EngineLock {
    pub engine: Arc<Engine>,
    name: Arc<str>,
    keys: Result<Arc<Keys>, NameError>,
    /// How much of the name a call wants.
    share: Share,
    /// The error is boxed, because it is rare.
    pub lease: Result<LockLease, Box<OptionsError>>,
    /// Part of a call for several names.
    is_part: bool,
    /// The `<first lease>/<label>` suffix of this lock's places in the queue.
    terms: Result<Arc<str>, Box<OptionsError>>,
    pub metrics: LockMetrics,
}

impl EngineLock {
    /// A share of this name, used as that kind.
    pub fn new(kind: Kind, share: Share, engine: Arc<Engine>, name: &str) -> Self {
        let keys = match name.len() {
            0 => Err(NameError::Empty),
            length if length > LONGEST_NAME => Err(NameError::TooLong(length)),
            _ => Ok(Arc::new(Keys::of(kind, &engine.context.options().prefix, name))),
        };
        // That of the client, which was checked when it was built.
        let lease = Ok(LockLease { time: engine.context.options().lease, is_renewed: true });
        let terms = Ok(engine.context.runner.terms.clone());
        let metrics = engine.context.options().metrics.of_lock(name);
        let lock = Self { engine, name: name.into(), keys, share, lease, is_part: false, terms, metrics };
        if kind.is_shared() { lock.with_share(share) } else { lock }
    }

    /// How much of the name a call wants.
    pub fn weight(&self) -> u32 {
        self.share.weight
    }

    /// Another share of a shared name.
    pub fn with_share(&self, share: Share) -> Self {
        let first_lease = self.engine.context.options().first_lease();
        let terms = self.terms.clone().map(|terms| shared_terms(share, first_lease, label_of(&terms)).into());
        Self { share, terms, ..self.clone() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the server without the password.
    pub fn address(&self) -> &str {
        &self.engine.context.options().address
    }

    pub fn with_lease(&self, lease: LockLease) -> Self {
        let checked = self.engine.context.options().check_lease("the lease of this lock", lease.time);
        Self { lease: checked.map(|()| lease).map_err(Box::new), ..self.clone() }
    }

    pub fn labelled(&self, label: &str) -> Self {
        let first_lease = self.engine.context.options().first_lease();
        let is_shared = self.keys.as_ref().is_ok_and(|keys| keys.kind.is_shared());
        let terms = || match is_shared {
            true => shared_terms(self.share, first_lease, label),
            false => keys::terms(first_lease, label),
        };
        let terms = check_label(label).map(|()| terms().into()).map_err(Box::new);
        Self { terms, ..self.clone() }
    }

    /// The same lock as one of several that a call takes together.
    pub fn as_part(&self) -> Self {
        Self { is_part: true, ..self.clone() }
    }

    /// The suffix of its places, with the label.
    pub fn terms(&self) -> &str {
        self.terms.as_deref().unwrap_or_default()
    }

    /// Whether it can be had at all, by its name, lease and label.
    pub fn check(&self) -> Result<(), LockError> {
        self.valid().inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    pub fn valid(&self) -> Result<(), LockError> {
        self.checked().map(drop)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.engine.context
    }

    pub fn keys(&self) -> Result<&Arc<Keys>, NameError> {
        self.keys.as_ref().map_err(Clone::clone)
    }

    /// What a call needs. The first refusal is returned here: `with_lease` and its like have no error to return.
    pub fn checked(&self) -> Result<(&Arc<Keys>, &Arc<str>, LockLease), LockError> {
        let lease = self.lease.as_ref().map_err(|error| LockError::Lease((**error).clone()))?;
        let terms = self.terms.as_ref().map_err(|error| LockError::Label((**error).clone()))?;
        let keys = self.keys()?;
        let Share { weight, limit } = self.share;
        if weight == 0 || weight > limit {
            return Err(LockError::Permits { wanted: weight, permits: limit });
        }
        Ok((keys, terms, *lease))
    }

    /// The request of this caller.
    fn request(&self, caller: Caller, wait: bool, proposed: u64) -> Result<AcquireRequest<'_>, LockError> {
        let (keys, terms, lease) = self.checked()?;
        let client = &self.engine.context.runner.client.id;
        let entry = self.engine.holds.owners.entry(keys, caller.owner, client);
        Ok(AcquireRequest {
            engine: &self.engine,
            entry,
            lease: lease.time,
            watched: lease.is_renewed,
            is_part: self.is_part,
            limit: (!wait).then(|| self.engine.context.runner.limit()),
            proposed,
            attach: None,
            scoped: caller.scoped,
            share: self.share,
            began: caller.began,
            terms,
            metrics: self.metrics.clone(),
        })
    }

    /// `None`: the lock is not free, and the call does not wait.
    // No `async fn`, which would keep room for its arguments for as long as it waits.
    pub fn acquire(
        &self,
        caller: Caller,
        wait: bool,
        proposed: u64,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<Option<EngineGuard>, LockError>> {
        // A time-out that is too long to be added is as good as none.
        let limit = timeout.and_then(|timeout| now().checked_add(timeout));
        let request = self.request(caller, wait, proposed);
        match request.inspect_err(|error| observe::refused_at_once(&self.metrics, error)) {
            Ok(request) => Either::Left(ask(request, limit)),
            Err(error) => Either::Right(ready(Err(error))),
        }
    }

    /// Takes what a handle holds. `None`: this owner holds the lock or waits for it already.
    pub async fn attach(&self, caller: Caller, detached: &Handle) -> Result<Option<EngineGuard>, LockError> {
        let request = AcquireRequest { attach: Some(detached), ..self.request(caller, false, 0)? };
        ask(request, None).await
    }

    /// The holds of all owners of this client here.
    pub fn holds(&self) -> Vec<Arc<Hold>> {
        let all = |keys: &Arc<Keys>| self.engine.holds.owners.holds_at(&keys.lock, usize::MAX);
        self.keys().map_or_else(|_| Vec::new(), all)
    }
}

/// How long a lock is held, and whether the watchdog renews that.
#[derive(Debug, Clone, Copy)]
pub struct LockLease {
    pub time: Duration,
    pub is_renewed: bool,
}

/// On whose behalf a call is made.
#[derive(Clone, Copy)]
pub struct Caller {
    pub owner: Owner,
    /// It may be re-entered.
    pub scoped: bool,
    /// When it called. A call for several servers may come to this one later.
    pub began: Instant,
    /// Where it called. Another task may make the call for it.
    pub task: TaskOrThread,
}

impl Caller {
    /// `scope`: the owner of the scope in which it is made.
    pub fn of(scope: Option<Owner>) -> Self {
        Self {
            owner: scope.unwrap_or_else(Owner::new),
            scoped: scope.is_some(),
            began: now(),
            task: TaskOrThread::current(),
        }
    }
}

// No `async fn`, which would have room for its arguments twice, and waiters are many.
fn ask(
    request: AcquireRequest<'_>,
    limit: Option<Instant>,
) -> impl Future<Output = Result<Option<EngineGuard>, LockError>> {
    // A task that has done much already asks now, and not at its next turn, when others have come (P3).
    unconstrained(async move {
        // Before the work, and so dropped after it: what is given up was left first.
        let call = ObservedCall::begin(&request, &request.metrics);
        // Pinned here: passed on by value, it would be in this future twice.
        let acquiring = pin!(async {
            let hold = acquire(&request).await?;
            let is_writer = request.share == Share::WRITER;
            // Here: where the user's subscriber panics behind this, the guard is dropped, and releases.
            Ok(hold.map(|hold| EngineGuard::new(request.engine.clone(), hold, is_writer, request.is_part)))
        });
        // Before it is polled: then nothing was asked, so nothing is known of others.
        let is_late = is_over(limit);
        let guard = tokio::select! {
            // In this order. `close` has withdrawn the wait, so its future may have nothing left to
            // wait for.
            biased;
            () = request.engine.context.over.cancelled() => Err(request.engine.context.why_over()),
            error = too_late(), if is_late => Err(error),
            outcome = within(limit, call.drive(acquiring)), if !is_late => outcome.unwrap_or_else(|| Err(request.out_of_time())),
        };
        let context = &request.engine.context;
        let outcome = match guard {
            // Acquired while the client was being closed, or after those were counted whose deadlines a
            // thread watches. Dropping the guard releases it.
            Ok(Some(_)) if context.over.is_cancelled() => Err(context.why_over()),
            outcome => outcome,
        };
        match &outcome {
            Ok(Some(guard)) => {
                let hold = &guard.hold;
                if call.is_told() {
                    hold.holding.show(&hold.who(), hold.token);
                }
                // A nested call got it from its own owner.
                call.acquired(hold.token, || hold.live() == 1 && hold.was_queued);
            }
            Ok(None) => call.busy(),
            Err(error) => call.failed(error),
        }
        outcome
    })
}

/// `None` when the time is up first.
pub fn within<F: Future>(limit: Option<Instant>, future: F) -> impl Future<Output = Option<F::Output>> {
    match limit {
        // Boxed: the many calls that wait without a limit need no room for a timer.
        Some(limit) => Either::Left(Box::pin(until(limit, future))),
        None => Either::Right(future.map(Some)),
    }
}

async fn until<F: Future>(limit: Instant, future: F) -> Option<F::Output> {
    tokio::select! {
        // The time first, unlike in `tokio::time::timeout`. Calls that give up together pass their slots on to each other,
        // and none of them may send a request any longer (decision 39).
        biased;
        () = sleep_until(limit.into()) => None,
        output = future => Some(output),
    }
}
