//! A lock by its name.

use std::fmt;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::Either;
use tokio::time::sleep_until;

use crate::engine::Engine;
use crate::engine::acquire::{AcquireRequest, acquire};
use crate::engine::hold::Entry;
use crate::engine::last_error::no_time;
use crate::engine::observe::{self, Call};
use crate::engine::requests;
use crate::error::{LockError, NameError, RequestError, WithError};
use crate::guard::{Held, LockGuard};
use crate::metrics::LockMetrics;
use crate::owner::{self, Owner};
use crate::status::LockStatus;
use crate::store::clock::now;
use crate::store::keys::{self, Keys, LONGEST_NAME};
use crate::store::options::{OptionsError, check_label};

/// How many waiters [`FairLock::status`] shows.
const WAITERS_SHOWN: u32 = 100;

/// A lock, by its name. Cheap to make and to clone. Making one sends nothing to the server.
///
/// # Fairness
/// The waiter that the server queued first is served first, over all processes. The lock goes from
/// holder to waiter without being free in between. [`try_lock`](Self::try_lock) takes it only if it is
/// free and the queue is empty. A waiter whose connection is gone is passed over. It keeps its place
/// until its time to live is over.
///
/// # Reentrance
/// Calls under one [`Owner`] re-enter; see [`owner::scope`] and [`with`](Self::with). Outside of a
/// scope every call has an owner of its own and excludes all others, in the same task too.
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = client.lock("orders:42");
/// let guard = lock.lock().await?;
/// // … alone with order 42, here and on every other machine …
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairLock {
    engine: Arc<Engine>,
    name: Arc<str>,
    keys: Result<Arc<Keys>, NameError>,
    fixed_lease: Option<Duration>,
    /// One of those that a call takes together.
    is_part: bool,
    /// Of its places in the queue, with the label.
    terms: Result<Arc<str>, OptionsError>,
    metrics: LockMetrics,
}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLock").field("name", &self.name).field("fixed_lease", &self.fixed_lease).finish()
    }
}

impl FairLock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let keys = match name.len() {
            0 => Err(NameError::Empty),
            length if length > LONGEST_NAME => Err(NameError::TooLong(length)),
            _ => Ok(Arc::new(Keys::new(&engine.context.options().prefix, name))),
        };
        let terms = Ok(engine.context.runner.terms.clone());
        let metrics = engine.context.options().metrics.of_lock(name);
        Self { engine, name: name.into(), keys, fixed_lease: None, is_part: false, terms, metrics }
    }

    /// The same lock with a lease of its own that is *not* renewed: the hold ends by itself after that
    /// time. For work of a known length, and for holders that may hang. No round trip.
    ///
    /// The lease must be at least [`operation_timeout`](crate::LockClientBuilder::operation_timeout) and
    /// [`poll_interval`](crate::LockClientBuilder::poll_interval), and at most
    /// [`token_ttl`](crate::LockClientBuilder::token_ttl), 365 days and the longest lease of
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart); otherwise acquiring fails with
    /// [`LockError::Lease`]. A nested call shares the lease of its hold: it neither extends a fixed one nor ends the renewal of
    /// another.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// use std::time::Duration;
    ///
    /// let report = client.lock("report").with_lease(Duration::from_secs(600));
    /// let guard = report.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(!guard.is_valid());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { fixed_lease: Some(lease), ..self.clone() }
    }

    /// The same lock with a label for the calls made through it, instead of the client's: what
    /// [`status`](Self::status) shows of them while they wait and hold. No round trip.
    ///
    /// At most 256 bytes; otherwise acquiring fails with [`LockError::Label`]. A nested call keeps the
    /// label of the call that began the hold.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.labelled("job 17").lock().await?;
    /// assert_eq!(lock.status().await?.holder.map(|holder| holder.label), Some("job 17".into()));
    /// # drop(guard);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        let options = self.engine.context.options();
        let terms = check_label(label.as_ref()).map(|()| keys::terms(options.grant_ttl, label.as_ref()).into());
        Self { terms, ..self.clone() }
    }

    /// The name. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// assert_eq!(client.lock("orders:42").name(), "orders:42");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the lock, first come, first served, without a time limit.
    ///
    /// One round trip if it is free. If not, one more message when it is handed over, and a poll every
    /// `poll_interval`, which all waiters of this client for this name share.
    ///
    /// It also waits for a server that cannot be reached. Use [`lock_timeout`](Self::lock_timeout) to
    /// hear of that.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// println!("alone with order 42, token {}", guard.token());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; a later call begins at the end. If the
    /// server granted the lock meanwhile, the background passes it on.
    ///
    /// A future that is kept has to be polled. If it is not when its turn comes, it costs the others 250 ms, loses its place, and
    /// queues again when it is polled. If it rests while its very first request is under way, and that gets a free lock, others wait
    /// for a whole lease.
    pub async fn lock(&self) -> Result<LockGuard, LockError> {
        self.lock_as(Caller::current()).await
    }

    /// Like [`lock`](Self::lock), but for at most that long.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// use fairlock::LockError;
    /// use std::time::Duration;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock_timeout(Duration::from_secs(5)).await?;
    /// let second = lock.lock_timeout(Duration::from_secs(5)).await;
    /// assert!(matches!(second, Err(LockError::Timeout)));
    /// # drop(guard);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`LockError::Timeout`] if others had the lock all the time, [`LockError::Unreachable`] if the
    /// server did not answer in that time, and the others of [`LockError`]. With [`Duration::ZERO`] nothing is
    /// asked, and nothing is known: `Unreachable`. To ask once, use [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    /// As for `lock`.
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<LockGuard, LockError> {
        let guard = self.acquire(Caller::current(), true, 0, Some(timeout)).await?;
        guard.ok_or(LockError::Timeout)
    }

    /// Takes the lock if it is free and the queue is empty, else `None`. One round trip. It never
    /// queues and never overtakes.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("nightly");
    /// let Some(guard) = lock.try_lock().await? else { return Ok(()) };
    /// assert!(lock.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` and `QueueFull` do not occur here. No answer within the operation
    /// time-out is an error, not `None`: the request is taken back as soon as the server answers.
    ///
    /// # Cancel safety
    /// If the future is dropped, the background releases what it may have acquired.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, LockError> {
        self.try_lock_as(Caller::current(), 0).await
    }

    /// `lock` on behalf of this caller.
    pub(crate) fn lock_as(&self, caller: Caller) -> impl Future<Output = Result<LockGuard, LockError>> {
        // A request that waits is never answered with "busy".
        self.acquire(caller, true, 0, None).map(|guard| guard?.ok_or(LockError::Timeout))
    }

    /// `try_lock` on behalf of this caller. A first hold gets the proposed token, if it is above the last one (Q3).
    pub(crate) fn try_lock_as(
        &self,
        caller: Caller,
        proposed: u64,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> {
        self.acquire(caller, false, proposed, None)
    }

    /// The same as a step of a call that has so much time, with the errors of [`lock_timeout`](Self::lock_timeout).
    pub(crate) async fn try_lock_for(&self, longest: Option<Duration>) -> Result<Option<LockGuard>, LockError> {
        self.acquire(Caller::current(), false, 0, longest).await
    }

    /// Acquires the lock, runs `section` in the owner's scope, and releases. Lock calls inside
    /// re-enter. Two round trips. A panic in the section releases too.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("account:7");
    /// let inner = lock.clone();
    /// let holds = lock
    ///     .with(|_held| async move {
    ///         // The same owner: this re-enters and does not wait for itself.
    ///         Ok::<_, fairlock::LockError>(inner.lock().await?.holds())
    ///     })
    ///     .await??;
    /// assert_eq!(holds, 2);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with its output, if it
    /// ran but the lock was lost or the release has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases.
    pub async fn with<F, R>(&self, section: F) -> Result<R::Output, WithError<R::Output>>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        let owner = owner::current().unwrap_or_else(Owner::new);
        owner
            .scope(async {
                let guard = self.lock().await?;
                let output = section(guard.held()).await;
                match guard.unlock().await {
                    Ok(_) => Ok(output),
                    Err(source) => Err(WithError::Unlock { output, source }),
                }
            })
            .await
    }

    /// Ends the present hold, tells its client at once, and passes the lock on. Returns whether there
    /// was a hold. One round trip.
    ///
    /// For operators, and for holders that are known to be dead. A holder that is alive goes on working
    /// until the message reaches it: only its token, checked at the resource, keeps it out.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.force_unlock().await?);
    /// assert_eq!(guard.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`RequestError::Unanswered`] if it was sent and not answered. It is never repeated by itself,
    /// since a second run could end the next holder's lock: look at [`status`](Self::status), then
    /// decide.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
    pub async fn force_unlock(&self) -> Result<bool, RequestError> {
        requests::force_unlock(&self.engine.context, self.keys()?, None).await
    }

    /// Like [`force_unlock`](Self::force_unlock), but only if the hold has this token. Returns whether it had. Who looked
    /// at [`status`](Self::status) first takes away the hold that was shown, and not that of the next holder. One round
    /// trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// let shown = lock.lock().await?.token();
    /// let guard = lock.lock().await?;
    /// assert!(!lock.force_unlock_token(shown).await?);
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`force_unlock`](Self::force_unlock). It may be called again with the same token.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
    pub async fn force_unlock_token(&self, token: u64) -> Result<bool, RequestError> {
        requests::force_unlock(&self.engine.context, self.keys()?, Some(token)).await
    }

    /// Who holds the lock and who waits, as of one instant on the server. Shows the first 100 waiters.
    /// One round trip. A server that refuses writes answers too, so after a failover the old master may, with what it
    /// knew last.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let status = lock.status().await?;
    /// let holder = status.holder.expect("it is held");
    /// println!("held by {} for another {:?}, {} waiting", holder.label, holder.lease_left, status.waiters);
    /// assert_eq!(holder.token, guard.token());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<LockStatus, RequestError> {
        let answer = requests::inspect(&self.engine.context, self.keys()?, WAITERS_SHOWN).await?;
        Ok(LockStatus::new(answer))
    }

    /// Whether the lock is held. One round trip. The answer may be outdated when you read it: to act
    /// on it, use [`try_lock`](Self::try_lock).
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// assert!(!lock.is_locked().await?);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn is_locked(&self) -> Result<bool, RequestError> {
        let inspected = requests::inspect(&self.engine.context, self.keys()?, 0).await?;
        Ok(!inspected.body.owner.is_empty())
    }

    /// Whether the owner of this scope surely holds the lock, by the local clock. Outside of a scope:
    /// whether any owner of this client does. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.held_by_me());
    /// guard.unlock().await?;
    /// assert!(!lock.held_by_me());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn held_by_me(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many guards the owner of this scope has on the lock. Outside of a scope: all owners of this
    /// client together. Lost holds do not count. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> { let client = fairlock::LockClient::embedded()?;
    /// let lock = client.lock("orders:42");
    /// fairlock::owner::scope(async {
    ///     let outer = lock.lock().await?;
    ///     let inner = lock.lock().await?;
    ///     assert_eq!(lock.hold_count(), 2);
    ///     Ok::<_, fairlock::LockError>(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let Ok(keys) = self.keys() else { return 0 };
        let owners = &self.engine.holds.owners;
        let holds = match owner::current() {
            Some(owner) => owners.hold_of(&keys.lock, owner).into_iter().collect(),
            None => owners.holds_at(&keys.lock, usize::MAX),
        };
        holds.iter().filter(|hold| hold.is_valid()).map(|hold| hold.live()).sum()
    }

    /// Whether the server serves locks: unlike [`is_locked`](Self::is_locked) it is refused where `lock` would be. One
    /// round trip.
    pub(crate) async fn probe(&self) -> Result<(), RequestError> {
        requests::probe(&self.engine.context, self.keys()?).await
    }

    /// Whether this owner waits behind others, as the server has said. No round trip.
    pub(crate) fn is_behind_others(&self, owner: Owner) -> bool {
        let runner = &self.engine.context.runner;
        self.entry_of(owner).is_some_and(|entry| entry.is_queueing() && entry.why_no_answer(runner).is_none())
    }

    /// Resolves when no other call of this owner, nor its release, has its turn at the server.
    pub(crate) async fn own_turn(&self, owner: Owner) {
        if let Some(entry) = self.entry_of(owner).filter(|entry| !entry.is_queueing()) {
            // Never closed. The turn is given back at once.
            let _ = entry.turn.acquire().await;
        }
    }

    /// What this owner has or wants here now.
    fn entry_of(&self, owner: Owner) -> Option<Arc<Entry>> {
        self.keys().ok().and_then(|keys| self.engine.holds.owners.entry_of(&keys.lock, owner))
    }

    /// Whether it can be had at all, by its name, lease and label.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.valid().inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    pub(crate) fn valid(&self) -> Result<(), LockError> {
        self.request(Caller::current(), false, 0).map(drop)
    }

    fn keys(&self) -> Result<&Arc<Keys>, NameError> {
        self.keys.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn as_part(&self) -> Self {
        Self { is_part: true, ..self.clone() }
    }

    /// Who asks, and for what.
    fn request(&self, caller: Caller, wait: bool, proposed: u64) -> Result<AcquireRequest<'_>, LockError> {
        let options = self.engine.context.options();
        let lease = self.fixed_lease.unwrap_or(options.lease);
        // Here and not in `with_lease`, which has no error to return.
        options.check_lease("the lease of with_lease", lease).map_err(LockError::Lease)?;
        let terms = self.terms.clone().map_err(LockError::Label)?;
        let client = &self.engine.context.runner.client;
        Ok(AcquireRequest {
            engine: &self.engine,
            entry: self.engine.holds.owners.entry(self.keys()?, caller.owner, client),
            lease,
            watched: self.fixed_lease.is_none(),
            is_part: self.is_part,
            limit: (!wait).then(|| self.engine.context.runner.limit()),
            proposed,
            scoped: caller.scoped,
            began: caller.began,
            terms,
            metrics: self.metrics.clone(),
        })
    }

    // No `async fn`, which would keep room for its arguments for as long as it waits.
    fn acquire(
        &self,
        caller: Caller,
        wait: bool,
        proposed: u64,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> {
        // A time-out that is too long to be added is as good as none.
        let limit = timeout.and_then(|timeout| now().checked_add(timeout));
        let request = self.request(caller, wait, proposed);
        match request.inspect_err(|error| observe::refused_at_once(&self.metrics, error)) {
            Ok(request) => Either::Left(async move { self.ask(&request, limit).await }),
            Err(error) => Either::Right(ready(Err(error))),
        }
    }

    async fn ask(&self, request: &AcquireRequest<'_>, limit: Option<Instant>) -> Result<Option<LockGuard>, LockError> {
        let (entry, context) = (&request.entry, &self.engine.context);
        // Before the work, and so dropped after it: what is given up was left first.
        let call = Call::begin(entry.who(&request.terms, context), &self.metrics);
        // Pinned here: passed on by value, it would be in this future twice.
        let acquiring = pin!(acquire(request));
        // Before it is polled: then nothing was asked, so nothing is known of others.
        let is_late = limit.is_some_and(|limit| limit <= now());
        let hold = tokio::select! {
            // In this order. `close` has withdrawn the wait, so its future may have nothing left to
            // wait for.
            biased;
            () = context.over.cancelled() => Err(context.why_over()),
            () = ready(()), if is_late => Err(LockError::Unreachable(no_time())),
            // Out of time. While the server is silent that does not mean that others hold the lock
            // (decision 42).
            outcome = within(limit, call.drive(acquiring)) => outcome.unwrap_or_else(|| {
                Err(entry.why_unknown(&context.runner).map_or(LockError::Timeout, LockError::Unreachable))
            }),
        };
        let outcome = match hold.map(|hold| hold.map(|hold| LockGuard::new(self.engine.clone(), hold))) {
            // Acquired while the client was being closed, or after those were counted whose deadlines a
            // thread watches. Dropping the guard gives it back.
            Ok(Some(_)) if context.over.is_cancelled() => Err(context.why_over()),
            outcome => outcome,
        };
        match &outcome {
            Ok(Some(guard)) => {
                if call.is_told() {
                    guard.show();
                }
                // A nested call got it from its own owner.
                call.acquired(guard.token(), || guard.holds() == 1 && guard.was_handed_over());
            }
            Ok(None) => call.busy(),
            Err(error) => call.failed(error),
        }
        outcome
    }

    /// With the label of the calls made through it.
    pub(crate) fn terms(&self) -> &str {
        self.terms.as_deref().unwrap_or_default()
    }
}

/// On whose behalf a call is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub owner: Owner,
    /// It may be re-entered.
    pub scoped: bool,
    /// When it called. A call for several servers may come to this one later.
    pub began: Instant,
}

impl Caller {
    pub fn current() -> Self {
        let scope = owner::current();
        Self { owner: scope.unwrap_or_else(Owner::new), scoped: scope.is_some(), began: now() }
    }
}

/// `None` when the time is up first.
fn within<F: Future>(limit: Option<Instant>, future: F) -> impl Future<Output = Option<F::Output>> {
    match limit {
        // Boxed: the many calls that wait without a limit need no room for a timer.
        Some(limit) => Either::Left(Box::pin(until(limit, future))),
        None => Either::Right(future.map(Some)),
    }
}

/// Looks at the time first, unlike `tokio::time::timeout`: when many callers give up together, the slot
/// of one that is dropped passes to the next, which must not send a request that its caller has given
/// up as well.
async fn until<F: Future>(limit: Instant, future: F) -> Option<F::Output> {
    tokio::select! {
        // The time first. Calls that give up together pass their slots on to each other, and none of
        // them may send a request any longer (decision 39).
        biased;
        () = sleep_until(limit.into()) => None,
        output = future => Some(output),
    }
}
