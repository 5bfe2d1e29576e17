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

/// A read-write lock, by its name: many readers or one writer, over all processes. Cheap to make and to clone. Making one sends
/// nothing to the server. Made by [`LockClient::rw_lock`](crate::LockClient::rw_lock).
///
/// # Fairness
/// First come, first served, over all processes, for readers and writers alike. Readers that stand side by side in the queue enter
/// together. A reader waits behind a writer that came before it, so neither can starve. At most 1,024 readers read at a
/// time; more of them wait.
///
/// # Nesting
/// Calls in one [`owner::scope`](crate::owner::scope) have one owner:
/// - A read inside of its own read re-enters, past a writer that waits too.
/// - A read and a write inside of its own write re-enter. When the outer write guard ends first, the read that is left is a read.
/// - A write inside of its own read is [`LockError::WouldDeadlock`] at once: it would wait for itself, or overtake the writers
///   that wait.
///
/// Outside of a scope each call has an owner of its own. There a second read in one task waits behind a writer that waits for the
/// first one: run nested reads in a scope.
///
/// # Tokens
/// A writer's [token](Held::token) is greater than those of all guards before it. Let the resource remember the greatest token
/// of a writer, and refuse smaller ones: of writers, and of readers whose result has to be current. A reader's token
/// must not raise that mark, since readers with smaller tokens read at the same time.
///
/// # Where it runs
/// On a single server, with Sentinel and in a cluster. A client of [several masters](crate::masters) gets
/// [`LockError::SeveralServers`]. A lock, a semaphore and a read-write lock of one name have
/// nothing to do with each other.
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

/// One share of a [`FairRwLock`] beside other readers. It ends with [`unlock`](Self::unlock), or when it is dropped, which
/// releases it in the background.
///
/// Leases, losses and the end of the process are those of a [`LockGuard`](crate::LockGuard). The state of the hold is in
/// [`Held`], to which this dereferences. It must not be the only thing that keeps a write out after a loss: see
/// [Tokens](FairRwLock#tokens).
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard(RwGuard);

/// The only hold on a [`FairRwLock`], but for those nested in it. It ends with [`unlock`](Self::unlock), with
/// [`downgrade`](Self::downgrade), or when it is dropped, which releases it in the background.
///
/// Leases, losses and the end of the process are those of a [`LockGuard`](crate::LockGuard). The state of the hold is in
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

    /// The same lock with a lease of its own that is *not* renewed, as [`FairLock::with_lease`](crate::FairLock::with_lease). No
    /// round trip.
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

    /// The same lock with a lease of its own that *is* renewed, as
    /// [`FairLock::with_renewed_lease`](crate::FairLock::with_renewed_lease). No round trip.
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

    /// The same lock with a label for the calls made through it, as [`FairLock::labelled`](crate::FairLock::labelled). No round
    /// trip.
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

    /// The name. No round trip.
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
    /// One round trip if there is neither a writer nor a waiter. If not, one more message when it is handed over, and a poll every
    /// `poll_interval`, which all waiters of this client for this name share. It also waits for a server that cannot be reached.
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
    /// See [`LockError`]; `Timeout` does not occur here. After an error nothing is held.
    ///
    /// # Cancel safety
    /// As for [`FairLock::lock`](crate::FairLock::lock): dropping the future gives up the place in the queue, and a future that is kept
    /// has to be polled.
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard, LockError>> + Send + use<> {
        wait(&self.reads, None).map(|guard| guard.map(ReadGuard))
    }

    /// Like [`read`](Self::read), but for at most that long.
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
    /// Those of [`FairLock::lock_timeout`](crate::FairLock::lock_timeout).
    ///
    /// # Cancel safety
    /// As for `read`.
    pub fn read_timeout(&self, timeout: Duration) -> impl Future<Output = Result<ReadGuard, LockError>> + Send + use<> {
        wait(&self.reads, Some(timeout)).map(|guard| guard.map(ReadGuard))
    }

    /// Reads if there is no writer and no waiter that the server can reach, else [`Busy`](Tried::Busy). One round trip. It never queues.
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
    /// Those of [`FairLock::try_lock`](crate::FairLock::try_lock).
    ///
    /// # Cancel safety
    /// If the future is dropped, the background releases what it may have acquired.
    pub fn try_read(&self) -> impl Future<Output = Result<Tried<ReadGuard>, LockError>> + Send + use<> {
        take(&self.reads, IfBusy::Return(None)).map(|taken| Ok(taken?.map(ReadGuard)))
    }

    /// Reads, runs `section` in the owner's scope, and releases. Calls of this lock inside nest. Two round trips. A panic in the
    /// section releases too.
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
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with its output, if it ran but the lock was lost or
    /// the release has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases.
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

    /// As [`with_read`](Self::with_read), for a section that returns a `Result`: one `?` for both. Two round trips.
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
    /// As for [`FairLock::try_with`](crate::FairLock::try_with).
    ///
    /// # Cancel safety
    /// As for `with_read`.
    pub fn try_with_read<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with_read(section).map(WithError::flatten)
    }

    /// Waits until it may write, first come, first served, without a time limit. The cost is that of [`read`](Self::read).
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
    /// [`LockError::WouldDeadlock`] inside of a read of the same owner, and those of `read`.
    ///
    /// # Cancel safety
    /// As for `read`.
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard, LockError>> + Send + use<> {
        wait(&self.writes, None).map(|guard| guard.map(WriteGuard))
    }

    /// Like [`write`](Self::write), but for at most that long.
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
    /// [`LockError::WouldDeadlock`] inside of a read of the same owner, and those of `read_timeout`.
    ///
    /// # Cancel safety
    /// As for `read`.
    pub fn write_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<WriteGuard, LockError>> + Send + use<> {
        wait(&self.writes, Some(timeout)).map(|guard| guard.map(WriteGuard))
    }

    /// Writes if there is no reader and no writer, and no waiter that the server can reach is in the queue, else [`Busy`](Tried::Busy). One round trip. It
    /// never queues.
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
    /// [`LockError::WouldDeadlock`] inside of a read of the same owner, and those of `try_read`.
    ///
    /// # Cancel safety
    /// As for `try_read`.
    pub fn try_write(&self) -> impl Future<Output = Result<Tried<WriteGuard>, LockError>> + Send + use<> {
        take(&self.writes, IfBusy::Return(None)).map(|taken| Ok(taken?.map(WriteGuard)))
    }

    /// Writes, runs `section` in the owner's scope, and releases. Calls of this lock inside nest. Two round trips. A panic in the
    /// section releases too.
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
    /// Those of [`with_read`](Self::with_read).
    ///
    /// # Cancel safety
    /// As for `with_read`.
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

    /// As [`with_write`](Self::with_write), for a section that returns a `Result`: one `?` for both. Two round trips.
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
    /// As for [`FairLock::try_with`](crate::FairLock::try_with).
    ///
    /// # Cancel safety
    /// As for `with_write`.
    pub fn try_with_write<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with_write(section).map(WithError::flatten)
    }

    /// The readers or the writer, and the waiters, as of one instant on the server. Shows the first 100 readers and the first 100 waiters. One
    /// round trip.
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

    /// Ends the hold with this token, as [`status`](Self::status) shows it, notifies its client at once, and passes the lock on.
    /// Returns whether it was there. One round trip.
    ///
    /// For operators, and for holders that are known to be dead. A holder that is alive works on until the message reaches it.
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
    /// See [`RequestError`]. It may be called again with the same token.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
    pub async fn force_unlock_token(&self, token: u64) -> Result<bool, RequestError> {
        self.reads.at_server()?.force_unlock(Some(token)).await
    }
}

fn wait(share: &AnyLock, at_most: Option<Duration>) -> impl Future<Output = Result<RwGuard, LockError>> + Send + use<> {
    // A request that waits is never answered with "busy".
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
    /// Sets a new lease from now on, as [`LockGuard::extend`](crate::LockGuard::extend). One round trip.
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
    /// Those of `LockGuard::extend`.
    ///
    /// # Cancel safety
    /// As for `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.0.guard.extend(lease).await
    }

    /// Releases this guard and waits for the server's answer. One round trip.
    ///
    /// [`Unlocked::Freed`]: the owner has no more of the lock. [`Unlocked::StillHeld`]: it has more guards.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let reading = client.rw_lock("document:7").read().await?;
    /// assert_eq!(reading.unlock().await?, fairlock::Unlocked::Freed);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Those of [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    /// Once called, the release is certain: if the future is dropped, the background finishes it.
    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        self.0.guard.unlock().await
    }

    /// Resolves when the hold is lost, with the cause: at its local deadline without any network, at once on a
    /// [`force_unlock_token`](FairRwLock::force_unlock_token). No round trip.
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
    /// Sets a new lease from now on, as [`LockGuard::extend`](crate::LockGuard::extend). One round trip.
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
    /// Those of `LockGuard::extend`.
    ///
    /// # Cancel safety
    /// As for `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.0.guard.extend(lease).await
    }

    /// Releases this guard and waits for the server's answer. One round trip.
    ///
    /// [`Unlocked::Freed`]: the owner has no more of the lock. [`Unlocked::StillHeld`]: it has more guards; if they only read,
    /// others may read beside them now. Such an unlock, or drop, waits for other calls of its own owner: a nested one whose future is
    /// kept and not polled delays it, for as long as that is kept, and others wait for a writer meanwhile.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let writing = client.rw_lock("document:7").write().await?;
    /// assert_eq!(writing.unlock().await?, fairlock::Unlocked::Freed);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Those of [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    /// Once called, the release is certain: if the future is dropped, the background finishes it.
    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        self.0.guard.unlock().await
    }

    /// Goes on as a reader, under the same token, and lets the readers in that are first in line. One round trip. No writer comes in
    /// between. While this owner has other guards that write, it stays a writer.
    ///
    /// It waits for the answer, at most for an operation time-out. Without one the client goes on trying in the background, and the
    /// other readers enter later: that is no error, also where the client's runtime has ended. It waits for other calls of its own owner: a nested one whose future is kept and not
    /// polled delays it, for as long as that is kept. A failover that loses what was written last counts a writer again until the guard
    /// ends: others wait, and nothing else is harmed.
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
    /// The loss, if the lock was lost before, or meanwhile. Then nothing is held.
    ///
    /// # Cancel safety
    /// If the future is dropped, the guard is dropped with it, and released.
    pub async fn downgrade(self) -> Result<ReadGuard, Loss> {
        self.0.guard.shrink_to(Share::READER.weight).await?;
        Ok(ReadGuard(self.0))
    }

    /// Resolves when the hold is lost, with the cause: at its local deadline without any network, at once on a
    /// [`force_unlock_token`](FairRwLock::force_unlock_token). No round trip.
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

// As a client is.
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
