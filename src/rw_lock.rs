//! A read-write lock by its name, and its guards.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use fairlock_proto::keys::Share;
use futures::FutureExt;

use crate::backend::{AnyGuard, AnyLock, acquire};
use crate::driver::lock::{DrivenLock, IfBusy, LockLease};
use crate::driver::tried::Tried;
use crate::error::{HoldError, LockError, Loss, RequestError, UnlockError, WithError};
use crate::guard::{Held, Unlocked};
use crate::lock::{caller, in_scope, with};
use crate::status::{RwLockStatus, WAITERS_SHOWN};

/// A read-write lock with a name: many readers or one writer across all processes. Making and cloning one is cheap, and
/// sends nothing to the server. [`LockClient::rw_lock`](crate::LockClient::rw_lock) makes one.
///
/// # Fairness
/// First come, first served, across all processes, for readers and writers alike. Readers next to each other in the
/// queue enter together. A reader waits for a writer that came before it, so neither can starve. At most 1,024 readers
/// read at a time; further readers wait.
///
/// # Nesting
/// Calls in one [`owner::scope`](crate::owner::scope) have one owner:
/// - A read inside a read re-enters, even past a waiting writer.
/// - A read or a write inside a write re-enters. If the outer write guard ends first, the remaining read is a read.
/// - A write inside a read is [`LockError::WouldDeadlock`] at once: it would wait for itself, or overtake the waiting
///   writers.
///
/// Outside of a scope, each call has its own owner. There, a second read in one task waits for a writer that waits for
/// the first read: run nested reads in a scope.
///
/// # Tokens
/// A writer's [token](Held::token) is greater than the tokens of all earlier guards. Let the resource remember the
/// greatest writer token, and refuse smaller tokens from writers, and from readers whose result has to be current. A
/// reader's token must not raise that mark, since readers with smaller tokens read at the same time.
///
/// # Where it runs
/// On a single server, with Sentinel and in a cluster. A client of [several masters](crate::masters) gets
/// [`LockError::SeveralServers`]. A lock, a semaphore and a read-write lock of one name are independent of each other.
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let document = client.rw_lock("document:7");
/// let reading = document.read().await?;
/// reading.unlock().await?;
/// let writing = document.write().await?;
/// writing.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairRwLock {
    reads: AnyLock,
    writes: AnyLock,
}

/// A share of a [`FairRwLock`], next to other readers. It ends with [`unlock`](Self::unlock), or when you drop the
/// guard, which releases it in the background.
///
/// Leases, losses and the end of the process work as in [`LockGuard`](crate::LockGuard). The state of the hold is in
/// [`Held`], to which this dereferences. After a loss, this guard must not be the only thing that keeps a write out:
/// see [Tokens](FairRwLock#tokens).
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard(RwGuard);

/// The only hold on a [`FairRwLock`], except for those nested in it. It ends with [`unlock`](Self::unlock), with
/// [`downgrade`](Self::downgrade), or when you drop the guard, which releases it in the background.
///
/// Leases, losses and the end of the process work as in [`LockGuard`](crate::LockGuard). The state of the hold is in
/// [`Held`], to which this dereferences.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WriteGuard(RwGuard);

/// A guard of either kind.
struct RwGuard {
    held: Held,
    guard: AnyGuard,
}

impl FairRwLock {
    pub(crate) fn new(reads: AnyLock, writes: AnyLock) -> Self {
        Self { reads, writes }
    }

    fn changed(&self, change: impl Fn(&DrivenLock) -> DrivenLock) -> Self {
        Self { reads: self.reads.changed(&change), writes: self.writes.changed(&change) }
    }

    /// The same lock with its own lease, which the client does *not* renew. No round trip. See
    /// [`FairLock::with_lease`](crate::FairLock::with_lease).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let reading = client.rw_lock("document:7").with_lease(Duration::from_secs(600)).read().await?;
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(!reading.is_valid());
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.changed(|lock| lock.with_lease(LockLease { time: lease, is_renewed: false }))
    }

    /// The same lock with its own lease, which the client *does* renew. No round trip. See
    /// [`FairLock::with_renewed_lease`](crate::FairLock::with_renewed_lease).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let document = client.rw_lock("document:7").with_renewed_lease(Duration::from_secs(5));
    /// assert!(document.read().await?.valid_for() <= Duration::from_secs(5));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_renewed_lease(&self, lease: Duration) -> Self {
        self.changed(|lock| lock.with_lease(LockLease { time: lease, is_renewed: true }))
    }

    /// The same lock with a label for the calls made through it. No round trip. See
    /// [`FairLock::labelled`](crate::FairLock::labelled).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let reading = document.labelled("search").read().await?;
    /// assert_eq!(document.status().await?.readers[0].label, "search");
    /// # drop(reading);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        self.changed(|lock| lock.labelled(label.as_ref()))
    }

    /// The name of the lock. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.rw_lock("document:7").name(), "document:7");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.reads.name()
    }

    /// Waits until it may read, first come, first served, without a time limit.
    ///
    /// Costs one round trip if there is neither a writer nor a waiter. Otherwise it costs one more message when the
    /// server hands the lock over, and a poll every `poll_interval`, which all waiters of this client for this name
    /// share. The call also waits for a server that it cannot reach.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let (one, other) = (document.read().await?, document.read().await?);
    /// assert!(document.try_write().await?.is_busy());
    /// one.unlock().await?;
    /// other.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error, the call holds nothing.
    ///
    /// # Cancel safety
    /// Same as [`FairLock::lock`](crate::FairLock::lock): dropping the future gives up its place in the queue, and you
    /// have to keep polling it.
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard, LockError>> + Send + use<> {
        wait(&self.reads, None).map(|guard| guard.map(ReadGuard))
    }

    /// Like [`read`](Self::read), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let reading = client.rw_lock("document:7").read_timeout(Duration::from_secs(5)).await?;
    /// reading.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::lock_timeout`](crate::FairLock::lock_timeout).
    ///
    /// # Cancel safety
    /// Same as `read`.
    pub fn read_timeout(&self, timeout: Duration) -> impl Future<Output = Result<ReadGuard, LockError>> + Send + use<> {
        wait(&self.reads, Some(timeout)).map(|guard| guard.map(ReadGuard))
    }

    /// Acquires the lock for reading if there is neither a writer nor a waiter that the server can reach. Otherwise
    /// returns [`Busy`](Tried::Busy). One round trip. It never queues.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let writing = document.write().await?;
    /// assert!(document.try_read().await?.is_busy());
    /// # drop(writing);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::try_lock`](crate::FairLock::try_lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if it has acquired it.
    pub fn try_read(&self) -> impl Future<Output = Result<Tried<ReadGuard>, LockError>> + Send + use<> {
        take(&self.reads, IfBusy::Return(None)).map(|taken| Ok(taken?.map(ReadGuard)))
    }

    /// Acquires the lock for reading, runs `section` in the owner's scope, and releases the lock, even if the section
    /// panics. Reads inside the section re-enter. Two round trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let holds = document.with_read(async |held| held.holds()).await?;
    /// assert_eq!(holds, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with the section's output, if it ran but
    /// the client lost the lock, or the server did not confirm the release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases the lock.
    pub fn with_read<F, R>(
        &self,
        section: F,
    ) -> impl Future<Output = Result<R::Output, WithError<R::Output>>> + use<F, R>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        in_scope(with(self.read(), |guard| (guard.held(), guard.unlock()), section))
    }

    /// Like [`with_read`](Self::with_read), but for a section that returns a `Result`: one `?` handles both errors. Two
    /// round trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let text = document.try_with_read(async |_held| Ok::<_, fairlock::Error>("text")).await;
    /// assert_eq!(text.ok(), Some("text"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::try_with`](crate::FairLock::try_with).
    ///
    /// # Cancel safety
    /// Same as `with_read`.
    pub fn try_with_read<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with_read(section).map(WithError::flatten)
    }

    /// Waits until it may write, first come, first served, without a time limit. The cost is the same as for
    /// [`read`](Self::read).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let writing = document.write().await?;
    /// println!("alone with document 7, token {}", writing.token());
    /// writing.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::WouldDeadlock`] inside a read of the same owner, and the errors of `read`.
    ///
    /// # Cancel safety
    /// Same as `read`.
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard, LockError>> + Send + use<> {
        wait(&self.writes, None).map(|guard| guard.map(WriteGuard))
    }

    /// Like [`write`](Self::write), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use fairlock::LockError;
    /// use std::time::Duration;
    ///
    /// let document = client.rw_lock("document:7");
    /// let reading = document.read().await?;
    /// let writing = document.write_timeout(Duration::from_secs(5)).await;
    /// assert!(matches!(writing, Err(LockError::Timeout { .. })));
    /// # drop(reading);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::WouldDeadlock`] inside a read of the same owner, and the errors of `read_timeout`.
    ///
    /// # Cancel safety
    /// Same as `read`.
    pub fn write_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<WriteGuard, LockError>> + Send + use<> {
        wait(&self.writes, Some(timeout)).map(|guard| guard.map(WriteGuard))
    }

    /// Acquires the lock for writing if there is neither a reader nor a writer, and no waiter that the server can reach
    /// is in the queue. Otherwise returns [`Busy`](Tried::Busy). One round trip. It never queues.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// # use fairlock::Tried;
    /// let Tried::Acquired(writing) = document.try_write().await? else { return Ok(()) };
    /// writing.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::WouldDeadlock`] inside a read of the same owner, and the errors of `try_read`.
    ///
    /// # Cancel safety
    /// Same as `try_read`.
    pub fn try_write(&self) -> impl Future<Output = Result<Tried<WriteGuard>, LockError>> + Send + use<> {
        take(&self.writes, IfBusy::Return(None)).map(|taken| Ok(taken?.map(WriteGuard)))
    }

    /// Acquires the lock for writing, runs `section` in the owner's scope, and releases the lock, even if the section
    /// panics. Calls for this lock inside the section re-enter. Two round trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let inner = document.clone();
    /// // The same owner: a read inside of its write.
    /// document.with_write(async |_held| inner.read().await?.unlock().await.map_err(Box::<dyn std::error::Error>::from)).await??;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`with_read`](Self::with_read).
    ///
    /// # Cancel safety
    /// Same as `with_read`.
    pub fn with_write<F, R>(
        &self,
        section: F,
    ) -> impl Future<Output = Result<R::Output, WithError<R::Output>>> + use<F, R>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        in_scope(with(self.write(), |guard| (guard.held(), guard.unlock()), section))
    }

    /// Like [`with_write`](Self::with_write), but for a section that returns a `Result`: one `?` handles both errors.
    /// Two round trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let text = document.try_with_write(async |_held| Ok::<_, fairlock::Error>("text")).await;
    /// assert_eq!(text.ok(), Some("text"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`FairLock::try_with`](crate::FairLock::try_with).
    ///
    /// # Cancel safety
    /// Same as `with_write`.
    pub fn try_with_write<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with_write(section).map(WithError::flatten)
    }

    /// The readers or the writer, and the waiters, at one instant on the server. Shows the first 100 readers and the
    /// first 100 waiters. One round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let reading = document.read().await?;
    /// let status = document.status().await?;
    /// assert!(status.writer.is_none());
    /// assert_eq!(status.readers[0].token, reading.token());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<RwLockStatus, RequestError> {
        self.reads.at_server()?.inspect(WAITERS_SHOWN).await.map(RwLockStatus::new)
    }

    /// Ends the hold with this token, which [`status`](Self::status) shows, notifies its client at once, and passes the
    /// lock on. Returns whether there was such a hold. One round trip.
    ///
    /// For operators, and for a holder that you know is dead. A live holder keeps working until the message reaches it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let writing = document.write().await?;
    /// assert!(document.force_unlock_token(writing.token()).await?);
    /// assert_eq!(writing.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. You may call it again with the same token.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn force_unlock_token(&self, token: u64) -> Result<bool, RequestError> {
        self.reads.at_server()?.force_unlock(Some(token)).await
    }
}

fn wait(share: &AnyLock, at_most: Option<Duration>) -> impl Future<Output = Result<RwGuard, LockError>> + Send + use<> {
    // The server never answers "busy" to a request that waits.
    take(share, IfBusy::Wait(at_most)).map(|taken| taken?.into_result().map_err(LockError::from))
}

fn take(share: &AnyLock, if_busy: IfBusy) -> impl Future<Output = Result<Tried<RwGuard>, LockError>> + Send + use<> {
    let share = share.clone();
    async move { Ok(acquire!(share.of_one_server()?, caller(), if_busy).map(RwGuard::new)) }
}

impl RwGuard {
    fn new(guard: AnyGuard) -> Self {
        Self { held: Held::new(guard.hold()), guard }
    }
}

impl ReadGuard {
    /// Sets a new lease that counts from now. One round trip. See [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let document = client.rw_lock("document:7").with_lease(Duration::from_secs(60));
    /// let guard = document.read().await?;
    /// guard.extend(Duration::from_secs(600)).await?;
    /// assert!(guard.valid_for() > Duration::from_secs(500));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as `LockGuard::extend`.
    ///
    /// # Cancel safety
    /// Same as `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.0.guard.extend(lease).await
    }

    /// Releases this guard and waits for the server's answer. One round trip.
    ///
    /// Returns [`Unlocked::Freed`] if this was the owner's last guard of the lock, and [`Unlocked::StillHeld`] if the
    /// owner has more guards.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let reading = client.rw_lock("document:7").read().await?;
    /// assert_eq!(reading.unlock().await?, fairlock::Unlocked::Freed);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    /// The release is certain once you call this: if you drop the future, the client finishes it in the background.
    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        self.0.guard.unlock().await
    }

    /// Resolves when the client loses the hold, with the cause: at its local deadline without any network, and at once
    /// after a [`force_unlock_token`](FairRwLock::force_unlock_token). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let reading = document.read().await?;
    /// document.force_unlock_token(reading.token()).await?;
    /// assert_eq!(reading.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.0.held.lost_in_hand().await
    }
}

impl WriteGuard {
    /// Sets a new lease that counts from now. One round trip. See [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let document = client.rw_lock("document:7").with_lease(Duration::from_secs(60));
    /// let guard = document.write().await?;
    /// guard.extend(Duration::from_secs(600)).await?;
    /// assert!(guard.valid_for() > Duration::from_secs(500));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as `LockGuard::extend`.
    ///
    /// # Cancel safety
    /// Same as `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.0.guard.extend(lease).await
    }

    /// Releases this guard and waits for the server's answer. One round trip.
    ///
    /// Returns [`Unlocked::Freed`] if this was the owner's last guard of the lock, and [`Unlocked::StillHeld`] if the
    /// owner has more guards. If those only read, others may now read at the same time.
    ///
    /// An unlock, or drop, that leaves only reads waits for other calls of the same owner: a nested call delays it
    /// while you keep the nested future without polling it, and until then others wait for a writer.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let writing = client.rw_lock("document:7").write().await?;
    /// assert_eq!(writing.unlock().await?, fairlock::Unlocked::Freed);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    /// The release is certain once you call this: if you drop the future, the client finishes it in the background.
    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        self.0.guard.unlock().await
    }

    /// Turns the writer into a reader under the same token, and lets in the readers that are first in line. One round
    /// trip. No writer comes in between. While this owner has other guards that write, it stays a writer.
    ///
    /// It waits for the answer, but at most for an operation time-out. If none comes, the client keeps trying in the
    /// background, and the other readers enter later. This is not an error, even if the client's runtime has ended. It
    /// also waits for other calls of the same owner: a nested call delays it while you keep the nested future without
    /// polling it. A failover that loses the last writes makes the writer count again until the guard ends: others
    /// wait, and nothing else suffers.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let reading = document.write().await?.downgrade().await?;
    /// assert!(document.try_read().await?.into_result().is_ok());
    /// assert!(document.try_write().await?.is_busy());
    /// reading.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The loss, if the client lost the lock before this call or during it. The caller then holds nothing.
    ///
    /// # Cancel safety
    /// If you drop the future, the guard goes with it, and the client releases the lock.
    pub async fn downgrade(self) -> Result<ReadGuard, Loss> {
        self.0.guard.shrink_to(Share::READER.weight).await?;
        Ok(ReadGuard(self.0))
    }

    /// Resolves when the client loses the hold, with the cause: at its local deadline without any network, and at once
    /// after a [`force_unlock_token`](FairRwLock::force_unlock_token). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// let writing = document.write().await?;
    /// document.force_unlock_token(writing.token()).await?;
    /// assert_eq!(writing.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.0.held.lost_in_hand().await
    }
}

impl Deref for ReadGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0.held
    }
}

impl Deref for WriteGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0.held
    }
}

// Like `LockClient`, which has the reason.
impl UnwindSafe for FairRwLock {}
impl RefUnwindSafe for FairRwLock {}
impl UnwindSafe for RwGuard {}
impl RefUnwindSafe for RwGuard {}

impl fmt::Debug for FairRwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairRwLock").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadGuard").field(&self.0.held).finish()
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteGuard").field(&self.0.held).finish()
    }
}
