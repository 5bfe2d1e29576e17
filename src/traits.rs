//! What a lock on one server and a lock on several have in common.

use std::future::Future;
use std::time::Duration;

use crate::error::{LockError, Loss, UnlockError};
use crate::guard::{LockGuard, Unlocked};
use crate::lock::FairLock;
use crate::quorum::{QuorumGuard, QuorumLock};

/// A lock on one server, [`FairLock`], or on several, [`QuorumLock`]: for code that works with both.
///
/// The methods are those of the types themselves, with the same costs, errors and cancel safety. It cannot be
/// implemented for others, so that it may get more methods.
///
/// ```
/// use fairlock::{Guard, Lock};
///
/// async fn next_token(lock: &impl Lock) -> Result<u64, Box<dyn std::error::Error>> {
///     let guard = lock.lock().await?;
///     let token = guard.token();
///     guard.unlock().await?;
///     Ok(token)
/// }
///
/// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use fairlock::{EmbeddedServer, LockClient, QuorumClient};
/// let servers = [0; 3].map(|_| EmbeddedServer::new());
/// let many = QuorumClient::builder().strict_restart(false).embedded(&servers)?;
/// let one = LockClient::embedded()?;
/// assert!(next_token(&one.lock("orders:42")).await? > 0);
/// assert!(next_token(&many.lock("orders:42")).await? > 0);
/// # Ok(()) }
/// # #[cfg(not(feature = "embedded"))] fn main() {}
/// ```
pub trait Lock: sealed::Sealed + Clone + Send + Sync + 'static {
    /// What a holder has in hand.
    type Guard: Guard;

    /// The name. No round trip.
    fn name(&self) -> &str;

    /// The same lock with a lease of its own, which is not renewed: see [`FairLock::with_lease`] and
    /// [`QuorumLock::with_lease`]. No round trip.
    #[must_use = "this makes a lock, it does not change one"]
    fn with_lease(&self, lease: Duration) -> Self;

    /// The same lock with a label for the calls made through it: see [`FairLock::labelled`] and
    /// [`QuorumLock::labelled`]. No round trip.
    #[must_use = "this makes a lock, it does not change one"]
    fn labelled(&self, label: &str) -> Self;

    /// Waits for the lock, without a time limit: see [`FairLock::lock`] and [`QuorumLock::lock`].
    ///
    /// # Errors
    /// See [`LockError`]. After an error nothing is held.
    fn lock(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;

    /// Takes the lock if it is free and nobody waits, else `None`: see [`FairLock::try_lock`] and
    /// [`QuorumLock::try_lock`].
    ///
    /// # Errors
    /// See [`LockError`]. After an error nothing is held.
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>, LockError>> + Send;

    /// Waits for at most that long: see [`FairLock::lock_timeout`] and [`QuorumLock::lock_timeout`].
    ///
    /// # Errors
    /// See [`LockError`]. After an error nothing is held.
    fn lock_timeout(&self, limit: Duration) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;

    /// Whether it can be had at all, by its name, lease and label. No round trip.
    #[doc(hidden)]
    fn check(&self) -> Result<(), LockError>;

    /// `try_lock` as a step of a call that has so much time: for [`LockAll`](crate::LockAll).
    #[doc(hidden)]
    fn try_lock_for(
        &self,
        longest: Option<Duration>,
    ) -> impl Future<Output = Result<Option<Self::Guard>, LockError>> + Send;

    /// The lock as one of several that a call takes together: what it has of them is to be kept while it is polled.
    #[doc(hidden)]
    #[must_use]
    fn as_part(&self) -> Self;
}

/// The guard of a [`Lock`]: [`LockGuard`] or [`QuorumGuard`]. Dropping it gives it back in the background.
///
/// ```
/// use fairlock::{Guard, Loss};
///
/// /// Stops the work when the lock is lost.
/// async fn guarded<T>(guard: &impl Guard, work: impl Future<Output = T>) -> Result<T, Loss> {
///     tokio::select! {
///         output = work => Ok(output),
///         loss = guard.lost() => Err(loss),
///     }
/// }
///
/// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = fairlock::LockClient::embedded()?;
/// let guard = client.lock("orders:42").lock().await?;
/// assert_eq!(guarded(&guard, async { "shipped" }).await, Ok("shipped"));
/// # Ok(()) }
/// # #[cfg(not(feature = "embedded"))] fn main() {}
/// ```
pub trait Guard: sealed::Sealed + Send + Sync + 'static {
    /// The name of the lock. No round trip.
    fn name(&self) -> &str;

    /// The fencing token, greater than that of every guard of this lock before it. No round trip.
    fn token(&self) -> u64;

    /// Whether the lock is surely held at this instant, by the local clock. No round trip.
    fn is_valid(&self) -> bool;

    /// For how long it surely is if no further renewal succeeds; zero when it is lost. No round trip.
    fn valid_for(&self) -> Duration;

    /// Resolves when it is lost, and says how. No round trip. Safe to drop and call again.
    fn lost(&self) -> impl Future<Output = Loss> + Send;

    /// Gives it back, and waits for the answer: see [`LockGuard::unlock`] and [`QuorumGuard::unlock`]. If the future is
    /// dropped, the background finishes it.
    ///
    /// # Errors
    /// See [`UnlockError`].
    fn unlock(self) -> impl Future<Output = Result<Unlocked, UnlockError>> + Send;

    /// The call that it is a part of is polled.
    #[doc(hidden)]
    fn keep(&self);

    /// That call has all parts.
    #[doc(hidden)]
    fn complete(&self);
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::FairLock {}
    impl Sealed for super::QuorumLock {}
    impl Sealed for super::LockGuard {}
    impl Sealed for super::QuorumGuard {}
}

macro_rules! lock {
    ($lock:ty, $guard:ty) => {
        impl Lock for $lock {
            type Guard = $guard;

            fn name(&self) -> &str {
                self.name()
            }

            fn with_lease(&self, lease: Duration) -> Self {
                self.with_lease(lease)
            }

            fn labelled(&self, label: &str) -> Self {
                self.labelled(label)
            }

            async fn lock(&self) -> Result<$guard, LockError> {
                self.lock().await
            }

            async fn try_lock(&self) -> Result<Option<$guard>, LockError> {
                self.try_lock().await
            }

            async fn lock_timeout(&self, limit: Duration) -> Result<$guard, LockError> {
                self.lock_timeout(limit).await
            }

            fn check(&self) -> Result<(), LockError> {
                self.check()
            }

            async fn try_lock_for(&self, longest: Option<Duration>) -> Result<Option<$guard>, LockError> {
                self.try_lock_for(longest).await
            }

            fn as_part(&self) -> Self {
                self.as_part()
            }
        }

        impl Guard for $guard {
            fn name(&self) -> &str {
                self.name()
            }

            fn token(&self) -> u64 {
                self.token()
            }

            fn is_valid(&self) -> bool {
                self.is_valid()
            }

            fn valid_for(&self) -> Duration {
                self.valid_for()
            }

            async fn lost(&self) -> Loss {
                self.lost().await
            }

            async fn unlock(self) -> Result<Unlocked, UnlockError> {
                self.unlock().await
            }

            fn keep(&self) {
                self.keep();
            }

            fn complete(&self) {
                self.complete();
            }
        }
    };
}

// In each of them `self.lock()` is the method of the type: those of a type go before those of a trait.
lock!(FairLock, LockGuard);
lock!(QuorumLock, QuorumGuard);
