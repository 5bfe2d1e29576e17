//! A lock by its name.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::engine::Engine;
use crate::engine::acquire::{AcquireRequest, acquire};
use crate::engine::hold::Entry;
use crate::engine::requests;
use crate::error::{LockError, NameError, RequestError, WithError};
use crate::guard::{Held, LockGuard};
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
    /// Of its places in the queue, with the label.
    terms: Result<Arc<str>, OptionsError>,
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
        Self { engine, name: name.into(), keys, fixed_lease: None, terms }
    }

    /// The same lock with a lease of its own that is *not* renewed: the hold ends by itself after that
    /// time. For work of a known length, and for holders that may hang. No round trip.
    ///
    /// The lease must be at least the operation time-out; otherwise acquiring fails with
    /// [`LockError::Lease`].
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
    pub async fn lock(&self) -> Result<LockGuard, LockError> {
        let guard = self.run(true, None).await?;
        // A request that waits is never answered with "busy".
        guard.ok_or(LockError::Timeout)
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
    /// server did not answer in that time, and the others of [`LockError`].
    ///
    /// # Cancel safety
    /// As for `lock`.
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<LockGuard, LockError> {
        let guard = self.run(true, Some(timeout)).await?;
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
        self.run(false, None).await
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
        requests::force_unlock(&self.engine.context, self.keys()?).await
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
        let asked = now();
        let inspected = requests::inspect(&self.engine.context, self.keys()?, WAITERS_SHOWN).await?;
        Ok(LockStatus::new(asked, inspected))
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
        Ok(!inspected.owner.is_empty())
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

    fn keys(&self) -> Result<&Arc<Keys>, NameError> {
        self.keys.as_ref().map_err(Clone::clone)
    }

    fn request(&self, wait: bool, scoped: bool) -> Result<AcquireRequest, LockError> {
        let options = self.engine.context.options();
        let lease = self.fixed_lease.unwrap_or(options.lease);
        // Here and not in `with_lease`, which has no error to return.
        options.check_lease("the lease of with_lease", lease).map_err(LockError::Lease)?;
        let terms = self.terms.clone().map_err(LockError::Label)?;
        Ok(AcquireRequest { lease, watched: self.fixed_lease.is_none(), wait, scoped, terms })
    }

    /// Who asks, and for what.
    fn prepare(&self, wait: bool) -> Result<(Arc<Entry>, AcquireRequest), LockError> {
        let scope = owner::current();
        let request = self.request(wait, scope.is_some())?;
        let owner = scope.unwrap_or_else(Owner::new);
        let client = &self.engine.context.runner.client;
        Ok((self.engine.holds.owners.entry(self.keys()?, owner, client), request))
    }

    async fn run(&self, wait: bool, timeout: Option<Duration>) -> Result<Option<LockGuard>, LockError> {
        let acquiring = pin!(self.acquire(wait, timeout));
        self.engine.context.drive(acquiring).await.unwrap_or(Err(LockError::RuntimeGone))
    }

    async fn acquire(&self, wait: bool, timeout: Option<Duration>) -> Result<Option<LockGuard>, LockError> {
        // A time-out that is too long to be added is as good as none.
        let limit = timeout.and_then(|timeout| now().checked_add(timeout));
        let (entry, request) = self.prepare(wait)?;
        let context = &self.engine.context;
        // Pinned here: passed on by value, it would be in this future twice.
        let watched = request.watched;
        let acquiring = pin!(acquire(&self.engine, &entry, request));
        let hold = tokio::select! {
            // In this order. `close` has withdrawn the wait, so its future may have nothing left to
            // wait for.
            biased;
            () = context.closing.cancelled() => Err(LockError::Closed),
            () = context.gone.cancelled() => Err(LockError::RuntimeGone),
            // Out of time. While the server is silent that does not mean that others hold the lock
            // (decision 42).
            outcome = within(limit, acquiring) => outcome.unwrap_or_else(|| {
                Err(entry.why_no_answer(&context.runner).map_or(LockError::Timeout, LockError::Unreachable))
            }),
        };
        let guard = hold?.map(|hold| LockGuard::new(self.engine.clone(), hold, watched));
        // Acquired while the client was being closed, or after those were counted whose deadlines a
        // thread watches. Dropping the guard gives it back.
        match guard {
            Some(_) if context.closing.is_cancelled() => Err(LockError::Closed),
            Some(_) if context.gone.is_cancelled() => Err(LockError::RuntimeGone),
            guard => Ok(guard),
        }
    }
}

/// `None` when the time is up first.
async fn within<F: Future>(limit: Option<Instant>, future: F) -> Option<F::Output> {
    match limit {
        // Boxed: the many calls that wait without a limit need no room for a timer.
        Some(limit) => Box::pin(until(limit, future)).await,
        None => Some(future.await),
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
