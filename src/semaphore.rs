//! A semaphore by its name, and its permits.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use fairlock_proto::keys::Share;
use futures::FutureExt;

use crate::backend::{AnyGuard, AnyLock, acquire};
use crate::driver::lock::{Caller, IfBusy, LockLease};
use crate::driver::tried::Tried;
use crate::error::{HoldError, LockError, Loss, RequestError, UnlockError, WithError};
use crate::guard::Held;
use crate::lock::with;
use crate::status::{SemaphoreStatus, WAITERS_SHOWN};

/// A semaphore with a name: N permits across all processes. Making and cloning one is cheap, and sends nothing to the
/// server. [`LockClient::semaphore`](crate::LockClient::semaphore) makes one.
///
/// # Fairness
/// First come, first served, across all processes, like [`FairLock`](crate::FairLock). Callers that want fewer permits
/// do not overtake a caller that wants several: while it is first in line and too few permits are free, the others
/// wait. A released permit goes to the next in line without being free in between.
///
/// # How many permits
/// All clients have to name the same number. If they do not, as during a change of the configuration, the server judges
/// each call by the number that its own client has named; [`set_permits`](Self::set_permits) sets one number for all of
/// them. At most 1,024 callers hold permits of one name at a time; further callers wait.
///
/// # Owners and nesting
/// Permits do not nest: each call takes its own permits, even in one [`owner::scope`](crate::owner::scope). A task that
/// takes a permit while it holds others of the same semaphore may wait for itself.
///
/// # Tokens
/// The [token](Held::token) of a permit is its identity: [`status`](Self::status) shows it, and
/// [`force_unlock_token`](Self::force_unlock_token) takes it. Others hold permits at the same time, with smaller and
/// greater tokens. So a resource must not refuse a permit because it has seen a greater token.
///
/// # Where it runs
/// On a single server, with Sentinel and in a cluster. A client of [several masters](crate::masters) gets
/// [`LockError::SeveralServers`]. A lock, a semaphore and a read-write lock of one name are independent of each other.
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let gate = client.semaphore("render", 5);
/// let permit = gate.acquire().await?;
/// // … one of at most five that render, here and on every other machine …
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairSemaphore {
    lock: AnyLock,
    permits: u32,
}

/// One or several permits of a semaphore. They end with [`release`](Self::release), or when you drop the value, which
/// releases them in the background.
///
/// While it is alive, a watchdog renews the lease. You can lose permits as you can lose a lock: see
/// [`LockGuard`](crate::LockGuard). The state of the hold is in [`Held`], to which this dereferences: `permit.token()`,
/// `permit.is_valid()`. It has its own owner.
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = client.semaphore("render", 5).acquire().await?;
/// tokio::select! {
///     () = render() => permit.release().await?,
///     loss = permit.lost() => eprintln!("stopped: {loss}"),
/// }
/// # Ok(()) }
/// # async fn render() {}
/// ```
#[must_use = "the permits are released when this is dropped"]
pub struct Permit {
    held: Held,
    guard: AnyGuard,
}

impl FairSemaphore {
    pub(crate) fn new(lock: AnyLock, permits: u32) -> Self {
        Self { lock, permits }
    }

    /// The same semaphore with its own lease, which the client does *not* renew: its permits end after that time. No
    /// round trip. See [`FairLock::with_lease`](crate::FairLock::with_lease).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let permit = client.semaphore("render", 5).with_lease(Duration::from_secs(600)).acquire().await?;
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(!permit.is_valid());
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a semaphore, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { lock: self.lock.changed(|lock| lock.with_lease(LockLease { time: lease, is_renewed: false })), ..*self }
    }

    /// The same semaphore with its own lease, which the client *does* renew. No round trip. See
    /// [`FairLock::with_renewed_lease`](crate::FairLock::with_renewed_lease).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 5).with_renewed_lease(Duration::from_secs(5));
    /// assert!(gate.acquire().await?.valid_for() <= Duration::from_secs(5));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a semaphore, it does not change one"]
    pub fn with_renewed_lease(&self, lease: Duration) -> Self {
        Self { lock: self.lock.changed(|lock| lock.with_lease(LockLease { time: lease, is_renewed: true })), ..*self }
    }

    /// The same semaphore with a label for the calls made through it. No round trip. See
    /// [`FairLock::labelled`](crate::FairLock::labelled).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.labelled("frame 17").acquire().await?;
    /// assert_eq!(gate.status().await?.holders[0].label, "frame 17");
    /// # drop(permit);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a semaphore, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        Self { lock: self.lock.changed(|lock| lock.labelled(label.as_ref())), ..*self }
    }

    /// The name of the semaphore. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.semaphore("render", 5).name(), "render");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits for one permit, first come, first served, without a time limit.
    ///
    /// Costs one round trip if a permit is available. Otherwise it costs one more message when the server hands the
    /// permit over, and a poll every `poll_interval`, which all waiters of this client for this name share. The call
    /// also waits for a server that it cannot reach.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 2);
    /// let (one, other) = (gate.acquire().await?, gate.acquire().await?);
    /// assert!(gate.try_acquire().await?.is_busy());
    /// one.release().await?;
    /// assert!(gate.try_acquire().await?.into_result().is_ok());
    /// # drop(other);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error, the call holds nothing.
    ///
    /// # Cancel safety
    /// Same as [`FairLock::lock`](crate::FairLock::lock): dropping the future gives up its place in the queue, and you
    /// have to keep polling it.
    pub fn acquire(&self) -> impl Future<Output = Result<Permit, LockError>> + Send + use<> {
        self.wait(1, None)
    }

    /// Waits for that many permits, all of them or none, as one [`Permit`]. The cost is the same as for
    /// [`acquire`](Self::acquire).
    ///
    /// While the call is first in line and too few permits are free, no later waiter gets any: so it gets them,
    /// whatever others want.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire_many(3).await?;
    /// assert_eq!(permit.weight(), 3);
    /// assert!(gate.try_acquire_many(3).await?.is_busy());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Permits`] for none, and for more than there are: as this client has named, or as
    /// [`set_permits`](Self::set_permits) has set. Also the errors of `acquire`.
    ///
    /// # Cancel safety
    /// Same as `acquire`.
    pub fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Permit, LockError>> + Send + use<> {
        self.wait(permits, None)
    }

    /// Like [`acquire`](Self::acquire), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use fairlock::LockError;
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 1);
    /// let permit = gate.acquire_timeout(Duration::from_secs(5)).await?;
    /// let second = gate.acquire_timeout(Duration::from_secs(5)).await;
    /// assert!(matches!(second, Err(LockError::Timeout { .. })));
    /// # drop(permit);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::lock_timeout`](crate::FairLock::lock_timeout).
    ///
    /// # Cancel safety
    /// Same as `acquire`.
    pub fn acquire_timeout(&self, timeout: Duration) -> impl Future<Output = Result<Permit, LockError>> + Send + use<> {
        self.wait(1, Some(timeout))
    }

    /// Like [`acquire_many`](Self::acquire_many), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 5);
    /// assert_eq!(gate.acquire_many_timeout(5, Duration::from_secs(5)).await?.weight(), 5);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The errors of `acquire_many` and `acquire_timeout`.
    ///
    /// # Cancel safety
    /// Same as `acquire`.
    pub fn acquire_many_timeout(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> impl Future<Output = Result<Permit, LockError>> + Send + use<> {
        self.wait(permits, Some(timeout))
    }

    /// Takes a permit if one is free and no waiter that the server can reach is in the queue. Otherwise returns
    /// [`Busy`](Tried::Busy). One round trip. It never queues.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 1);
    /// # use fairlock::Tried;
    /// let Tried::Acquired(permit) = gate.try_acquire().await? else { return Ok(()) };
    /// assert!(gate.try_acquire().await?.is_busy());
    /// permit.release().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::try_lock`](crate::FairLock::try_lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the permit in the background if it has acquired it.
    pub fn try_acquire(&self) -> impl Future<Output = Result<Tried<Permit>, LockError>> + Send + use<> {
        self.take(1, IfBusy::Return(None))
    }

    /// Like [`try_acquire`](Self::try_acquire), but for that many permits as one [`Permit`].
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let most = gate.try_acquire_many(4).await?.into_result().expect("there are five");
    /// assert!(gate.try_acquire_many(2).await?.is_busy());
    /// # drop(most);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The errors of `acquire_many` and `try_acquire`.
    ///
    /// # Cancel safety
    /// Same as `try_acquire`.
    pub fn try_acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Tried<Permit>, LockError>> + Send + use<> {
        self.take(permits, IfBusy::Return(None))
    }

    fn wait(
        &self,
        permits: u32,
        at_most: Option<Duration>,
    ) -> impl Future<Output = Result<Permit, LockError>> + Send + use<> {
        // The server never answers "busy" to a request that waits.
        self.take(permits, IfBusy::Wait(at_most)).map(|taken| taken?.into_result().map_err(LockError::from))
    }

    fn take(
        &self,
        permits: u32,
        if_busy: IfBusy,
    ) -> impl Future<Output = Result<Tried<Permit>, LockError>> + Send + use<> {
        let share = Share { weight: permits, limit: self.permits };
        let lock = if permits == 1 { self.lock.clone() } else { self.lock.changed(|lock| lock.with_share(share)) };
        async move {
            // A new owner, even in a scope: permits do not nest.
            Ok(acquire!(lock.of_one_server()?, Caller::of(None), if_busy).map(Permit::new))
        }
    }

    /// Acquires a permit, runs `section`, and releases the permit, even if the section panics. Two round trips. Unlike
    /// [`FairLock::with`](crate::FairLock::with) it makes no owner scope.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let is_valid = gate.with(async |held| held.is_valid()).await?;
    /// assert!(is_valid);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with the section's output, if it ran but
    /// the client lost the permit, or the server did not confirm the release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases the permit.
    pub fn with<F, R>(&self, section: F) -> impl Future<Output = Result<R::Output, WithError<R::Output>>> + use<F, R>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        // Opens no scope: permits do not nest.
        with(self.acquire(), |permit| (permit.held(), permit.release()), section)
    }

    /// Like [`with`](Self::with), but for a section that returns a `Result`: one `?` handles both errors. Two round
    /// trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let rendered = gate.try_with(async |_held| Ok::<_, fairlock::Error>("image")).await;
    /// assert_eq!(rendered.ok(), Some("image"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::try_with`](crate::FairLock::try_with).
    ///
    /// # Cancel safety
    /// Same as `with`.
    pub fn try_with<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with(section).map(WithError::flatten)
    }

    /// Sets the number of permits for all clients, whatever number each of them has named, until you set it to `None`.
    /// One round trip. A call still cannot ask for more permits than its own client has named.
    ///
    /// If there are more now, the next in line get them at once. If there are fewer, holders keep their permits, and
    /// the next in line wait until holders have released enough. A waiter for more than there are now waits on, and so
    /// do all waiters after it, until there are enough or it gives up. But if it has lost its place (its client was out
    /// of reach for a `waiter_ttl`, or nothing polled it when its turn came), it asks again and gets
    /// [`LockError::Permits`]. With `Some(0)` no caller gets a permit, and calls with a limit fail with
    /// [`LockError::Timeout`]: the gate is closed until you open it again.
    /// Unlike everything else of a name, this number does not expire. A server that loses its data loses it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// gate.set_permits(Some(1)).await?;
    /// let permit = gate.acquire().await?;
    /// assert!(gate.try_acquire().await?.is_busy());
    /// gate.set_permits(None).await?;
    /// assert!(gate.try_acquire().await?.into_result().is_ok());
    /// # drop(permit);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. Without an answer it may have run, and you may call it again. The server may also still
    /// run it for an [`operation_timeout`](crate::LockClientBuilder::operation_timeout), after a later call that sets
    /// another number: wait for that long before such a call, or look at [`status`](Self::status) after that time.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn set_permits(&self, permits: Option<u32>) -> Result<(), RequestError> {
        self.lock.at_server()?.set_limit(permits).await
    }

    /// The holders and the waiters at one instant on the server. Shows the first 100 of each. One round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire_many(2).await?;
    /// let status = gate.status().await?;
    /// assert_eq!((status.used, status.holders.len(), status.waiters), (2, 1, 0));
    /// assert_eq!(status.holders[0].token, permit.token());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<SemaphoreStatus, RequestError> {
        self.lock.at_server()?.inspect(WAITERS_SHOWN).await.map(SemaphoreStatus::new)
    }

    /// Ends the hold with this token, which [`status`](Self::status) shows, notifies its client at once, and passes its
    /// permits on. Returns whether there was such a hold. One round trip.
    ///
    /// For operators, and for a holder that you know is dead. A live holder keeps working until the message reaches it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire().await?;
    /// assert!(gate.force_unlock_token(permit.token()).await?);
    /// assert_eq!(permit.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. You may call it again with the same token.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn force_unlock_token(&self, token: u64) -> Result<bool, RequestError> {
        self.lock.at_server()?.force_unlock(Some(token)).await
    }
}

impl Permit {
    pub(crate) fn new(guard: AnyGuard) -> Self {
        Self { held: Held::new(guard.hold()), guard }
    }

    pub(crate) fn into_guard(self) -> AnyGuard {
        self.guard
    }

    /// How many permits this is. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.semaphore("render", 5).acquire_many(3).await?.weight(), 3);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.guard.weight()
    }

    /// Releases all but that many permits. One round trip.
    ///
    /// It waits for the answer, but at most for an operation time-out. If none comes, the client keeps trying in the
    /// background, and the others get the permits later. This is not an error, even if the client's runtime has ended:
    /// then the others get them when the lease ends. A failover that loses the last writes makes the larger number count
    /// again until the permit ends: others wait, and nothing else suffers.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire_many(5).await?;
    /// permit.shrink_to(1).await?;
    /// assert!(gate.try_acquire_many(4).await?.into_result().is_ok());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`HoldError::Lost`] if the client lost the permits before this call or during it. [`HoldError::Permits`] for
    /// none, and for more than there are. To release all of them, use [`release`](Self::release); to get more, wait for
    /// them with another call.
    ///
    /// # Cancel safety
    /// The change is certain from the first poll on: if you drop the future, the client finishes it in the background.
    pub async fn shrink_to(&self, permits: u32) -> Result<(), HoldError> {
        let weight = self.weight();
        if permits == 0 || permits > weight {
            return Err(HoldError::Permits { wanted: permits, permits: weight });
        }
        self.guard.shrink_to(permits).await.map_err(HoldError::Lost)
    }

    /// Sets a new lease that counts from now. One round trip. See [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 5).with_lease(Duration::from_secs(60));
    /// let permit = gate.acquire().await?;
    /// permit.extend(Duration::from_secs(600)).await?;
    /// assert!(permit.valid_for() > Duration::from_secs(500));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as `LockGuard::extend`.
    ///
    /// # Cancel safety
    /// Same as `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.guard.extend(lease).await
    }

    /// Releases the permits and waits for the server's answer. One round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 1);
    /// gate.acquire().await?.release().await?;
    /// assert!(gate.try_acquire().await?.into_result().is_ok());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    /// The release is certain once you call this: if you drop the future, the client finishes it in the background.
    pub async fn release(self) -> Result<(), UnlockError> {
        self.guard.unlock().await.map(drop)
    }

    /// Releases, but keeps the permits taken until the hold has lasted that long. That needs neither this process nor a
    /// renewal. Use it for short jobs on machines whose clocks differ: a late machine finds them taken. One round trip.
    ///
    /// The time counts from when this process learned that it has the permits. Waiters get them up to a
    /// [`poll_interval`](crate::LockClientBuilder::poll_interval) later. `status` shows them as held, and
    /// [`force_unlock_token`](FairSemaphore::force_unlock_token) frees them. `at_least` may be as short as you like: if
    /// that time has passed, this is [`release`](Self::release). [`max_hold`](crate::LockClientBuilder::max_hold) does
    /// not limit it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 1);
    /// gate.acquire().await?.release_at_least(Duration::from_secs(30)).await?;
    /// assert!(gate.try_acquire().await?.is_busy());
    /// tokio::time::sleep(Duration::from_secs(31)).await;
    /// assert!(!gate.try_acquire().await?.is_busy());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HoldError`]:
    /// - [`Lost`](HoldError::Lost): others may have had the permits in the meantime.
    /// - [`Lease`](HoldError::Lease): the time is longer than [`token_ttl`](crate::LockClientBuilder::token_ttl), 365
    ///   days, or the longest lease of [`strict_restart`](crate::LockClientBuilder::strict_restart).
    /// - [`Request`](HoldError::Request): the server refused, or did not answer within the operation time-out.
    ///
    /// After any error the permits are free earlier, or when their lease ends.
    ///
    /// # Cancel safety
    /// If you drop the future before it is done, the client releases the permits at once, in the background.
    pub async fn release_at_least(self, at_least: Duration) -> Result<(), HoldError> {
        self.guard.unlock_at_least(at_least).await
    }

    /// Resolves when the client loses the permits, with the cause: at their local deadline without any network, and at
    /// once after a [`force_unlock_token`](FairSemaphore::force_unlock_token). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire().await?;
    /// gate.force_unlock_token(permit.token()).await?;
    /// assert_eq!(permit.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.held.lost_in_hand().await
    }
}

impl Deref for Permit {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

// Like `LockClient`, which has the reason.
impl UnwindSafe for FairSemaphore {}
impl RefUnwindSafe for FairSemaphore {}
impl UnwindSafe for Permit {}
impl RefUnwindSafe for Permit {}

impl fmt::Debug for FairSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairSemaphore").field("name", &self.name()).field("permits", &self.permits).finish()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("weight", &self.weight()).field("held", &self.held).finish()
    }
}
