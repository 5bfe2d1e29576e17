//! A lock by its name.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;

use crate::backend::{AnyGuard, AnyLock, acquire, each};
use crate::driver::context::Context;
use crate::driver::lock::{Caller, DrivenLock, IfBusy, LockLease};
use crate::driver::tried::Tried;
use crate::error::{LockError, RequestError, WithError};
use crate::guard::{Held, LockGuard};
use crate::owner::{self, Owner};
use crate::quorum::error::of_majority;
use crate::quorum::majority;
use crate::status::{LockStatus, ServerStatus, WAITERS_SHOWN};

/// A lock with a name. Making and cloning one is cheap, and sends nothing to the server.
///
/// # Fairness
/// The server serves waiters in the order in which it queued them, across all processes. The lock goes from holder to
/// waiter without being free in between. The server passes over a waiter whose connection is gone, and so does
/// [`try_lock`](Self::try_lock). Such a waiter keeps its place until its time to live ends.
///
/// # Calls
/// The futures of `lock`, `lock_timeout` and `try_lock` are `'static + Send`: `tokio::spawn(client.lock("a").lock())`
/// works. A call begins at the first poll of its future, and takes its owner, its task and its tracing span from there.
///
/// # On several servers
/// [`masters`](crate::masters) has a table of the promises. Differences in use:
/// - The first server that a client can use sets the order. Clients that cannot reach it wait at the next one; no order
///   holds between the two groups.
/// - Locking a free lock takes one round trip to all servers at the same time, and so does unlocking. Locking takes one
///   more if the client has seen that others want the lock, or if a server has given a later token than the others can
///   give. A server that does not answer costs a [`server_timeout`](crate::LockClientBuilder::server_timeout), once.
/// - Two `try_lock`s at the same instant may both be [`Busy`](Tried::Busy).
/// - With [`with_lease`](Self::with_lease), the lease begins at each server when that server grants it. If the servers
///   granted it at different times, less of it is left: [`valid_for`](Held::valid_for) returns how much. If it ends at
///   one server while the call waits at another, the call begins again: choose a lease that is longer than the waits.
/// - Requests without a promise, such as `status` and `force_unlock`, go to all servers at the same time, and wait an
///   operation time-out for a server that does not answer.
///
/// # Reentrance
/// Calls of one [`Owner`] re-enter; see [`owner::scope`] and [`with`](Self::with). Outside of a scope, each call has
/// its own owner and excludes all others, even in the same task.
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
    lock: AnyLock,
    refuses_self_wait: bool,
}

// Like `LockClient`, which has the reason.
impl UnwindSafe for FairLock {}
impl RefUnwindSafe for FairLock {}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.lock.each().first().and_then(|lock| lock.lease.as_ref().ok());
        f.debug_struct("FairLock").field("name", &self.name()).field("lease", &lease).finish()
    }
}

impl FairLock {
    pub(crate) fn new(lock: AnyLock) -> Self {
        Self { lock, refuses_self_wait: false }
    }

    /// The same lock with its own lease, which the client does *not* renew: the hold ends after that time. For work of
    /// a known length, and for holders that may hang. No round trip.
    ///
    /// The hold ends at its holder's local deadline, which is 1 % and 2 ms before the lease ends on the server: with
    /// 600 s, the lock passes on after 594 s.
    ///
    /// The lease must be at least [`operation_timeout`](crate::LockClientBuilder::operation_timeout) and
    /// [`poll_interval`](crate::LockClientBuilder::poll_interval), and at most
    /// [`token_ttl`](crate::LockClientBuilder::token_ttl), 365 days and the longest lease of
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart). Otherwise acquiring fails with
    /// [`LockError::Lease`]. A nested call shares the lease of its hold: it neither extends a fixed lease nor stops the
    /// renewal of another. To extend a lease, call [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let report = client.lock("report").with_lease(Duration::from_secs(600));
    /// let guard = report.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(!guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        let lease = LockLease { time: lease, is_renewed: false };
        Self { lock: self.lock.changed(|lock| lock.with_lease(lease)), ..*self }
    }

    /// The same lock with its own lease, which the client *does* renew. It replaces [the client's
    /// lease](crate::LockClientBuilder::lease). For a lock whose waiters should not wait that long after a crash, or
    /// whose holder may pause for longer. No round trip.
    ///
    /// [`with_lease`](Self::with_lease) lists the bounds.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let leader = client.lock("leader").with_renewed_lease(Duration::from_secs(5));
    /// let guard = leader.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(guard.is_valid() && guard.valid_for() <= Duration::from_secs(5));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_renewed_lease(&self, lease: Duration) -> Self {
        let lease = LockLease { time: lease, is_renewed: true };
        Self { lock: self.lock.changed(|lock| lock.with_lease(lease)), ..*self }
    }

    /// The same lock with a label for the calls made through it, instead of the client's. [`status`](Self::status)
    /// shows the label while they wait and hold. No round trip.
    ///
    /// At most 256 bytes; otherwise acquiring fails with [`LockError::Label`]. A nested call keeps the label of the
    /// call that began the hold.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.labelled("job 17").lock().await?;
    /// assert_eq!(lock.status().await?.holder.map(|holder| holder.label), Some("job 17".into()));
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        Self { lock: self.lock.changed(|lock| lock.labelled(label.as_ref())), ..*self }
    }

    /// The same lock, but a task that holds it already gets [`LockError::SelfWait`] at once instead of waiting for
    /// itself. Without this, it waits until its hold ends, which a renewed hold does not do by itself; the client logs
    /// a warning after a whole lease. No round trip.
    ///
    /// The client checks the holds that it took outside of a [scope](crate::owner::scope), since nothing nests there.
    /// It distinguishes tasks by tokio's task ID, or by thread outside of tasks. So it also refuses branches of one
    /// task that rightly exclude each other, for example in a `join!` or a `select!`: spawn those branches, or do not
    /// use this. A hold belongs to the task that took it, even after its guard has moved to another task.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::LockError;
    ///
    /// let lock = client.lock("orders:42").refusing_self_wait();
    /// let guard = lock.lock().await?;
    /// assert!(matches!(lock.lock().await, Err(LockError::SelfWait)));
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn refusing_self_wait(&self) -> Self {
        Self { refuses_self_wait: true, lock: self.lock.clone() }
    }

    fn check_self_wait(&self) -> Result<(), LockError> {
        // A hold on several servers may be on any majority of them.
        let is_refused = self.refuses_self_wait && self.lock.each().iter().any(DrivenLock::is_held_by_this_task);
        if is_refused { Err(LockError::SelfWait) } else { Ok(()) }
    }

    /// The name of the lock. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.lock("orders:42").name(), "orders:42");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits for the lock, first come, first served, without a time limit.
    ///
    /// Costs one round trip if the lock is free. Otherwise it costs one more message when the server hands the lock
    /// over, and a poll every `poll_interval`, which all waiters of this client for this name share.
    ///
    /// The guard holds the lock: `let _ = lock.lock().await?;` drops it at once. See [`try_lock`](Self::try_lock).
    ///
    /// The call also waits for a server that it cannot reach. Use [`lock_timeout`](Self::lock_timeout) to learn of
    /// that.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// println!("alone with order 42, token {}", guard.token());
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error, the call holds nothing.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue; a later call begins at the end. If the server has granted
    /// the lock in the meantime, the client passes it on in the background.
    ///
    /// Keep polling the future. If nothing polls it when its turn comes, it delays the others by 250 ms, loses its
    /// place, and queues again at its next poll. So a future that you poll less often than that may never get the lock,
    /// not even a free one: spawn it, and await its handle.
    pub fn lock(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.wait(None)
    }

    /// Like [`lock`](Self::lock), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use fairlock::LockError;
    /// use std::time::Duration;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock_timeout(Duration::from_secs(5)).await?;
    /// let second = lock.lock_timeout(Duration::from_secs(5)).await;
    /// assert!(matches!(second, Err(LockError::Timeout { .. })));
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Timeout`] if the server's last answer showed that others had the lock, and no request has failed
    /// since. [`LockError::Unreachable`] otherwise, or if nothing polled this future when it could go on. Also the
    /// other errors of [`LockError`]. With [`Duration::ZERO`] the client asks nothing and knows nothing, and you get
    /// `Unreachable`: to ask once, use [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    /// Same as `lock`.
    pub fn lock_timeout(&self, timeout: Duration) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.wait(Some(timeout))
    }

    fn wait(&self, at_most: Option<Duration>) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        // The server never answers "busy" to a request that waits.
        self.take(IfBusy::Wait(at_most)).map(|taken| taken?.into_result().map_err(LockError::from))
    }

    /// Takes the lock if it is free and no waiter that the server can reach is in the queue. Otherwise returns
    /// [`Busy`](Tried::Busy), which may name the holder. One round trip. It never queues, and never overtakes such a
    /// waiter.
    ///
    /// <div class="warning">
    ///
    /// The guard holds the lock. These drop it at once, without a warning of the compiler: `let _ = …` (it warns with
    /// `#![warn(let_underscore_drop)]`), `let Tried::Acquired(_) = … else`, `matches!`, `is_busy()` or `is_ok()` on the
    /// call itself, a `map` that does not return the guard, and `lock().await?.token()`. And after
    /// `let _guard = lock.try_lock().await?;` you do not know whether you have the lock: match on the value.
    ///
    /// </div>
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::Tried;
    ///
    /// let lock = client.lock("nightly");
    /// let Tried::Acquired(guard) = lock.try_lock().await? else { return Ok(()) };
    /// assert!(lock.try_lock().await?.is_busy());
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` and `QueueFull` do not occur here. If the server does not answer within the
    /// operation time-out, you get an error, not `Busy`: the client undoes the request as soon as the server answers.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if it has acquired it.
    pub fn try_lock(&self) -> impl Future<Output = Result<Tried<LockGuard>, LockError>> + Send + use<> {
        self.take(IfBusy::Return(None))
    }

    /// The first poll decides who the caller is, by the scope that it runs in: the future may have been spawned (P4).
    fn take(&self, if_busy: IfBusy) -> impl Future<Output = Result<Tried<LockGuard>, LockError>> + Send + use<> {
        let lock = self.clone();
        async move {
            if let IfBusy::Wait(_) = if_busy {
                lock.check_self_wait()?;
            }
            Ok(acquire!(&lock.lock, caller(), if_busy).map(LockGuard::new))
        }
    }

    /// One step of a call that a task of the client makes for this caller.
    pub(crate) async fn take_for(&self, caller: Caller, if_busy: IfBusy) -> Result<Tried<LockGuard>, LockError> {
        Ok(acquire!(&self.lock, caller, if_busy).map(LockGuard::new))
    }

    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        self.lock.each().first().map(|lock| lock.context().clone())
    }

    /// Acquires the lock, runs `section` in the owner's scope, and releases the lock, even if the section panics. Calls
    /// for this lock inside the section re-enter. Two round trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("account:7");
    /// let inner = lock.clone();
    /// let holds = lock
    ///     .with(|_held| async move {
    ///         // The same owner: this re-enters and does not wait for itself.
    ///         Ok::<_, fairlock::LockError>(inner.lock().await?.holds())
    ///     })
    ///     .await??;
    /// assert_eq!(holds, 2);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with the section's output, if it ran but
    /// the client lost the lock, or the server did not confirm the release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases the lock.
    pub fn with<F, R>(&self, section: F) -> impl Future<Output = Result<R::Output, WithError<R::Output>>> + use<F, R>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        in_scope(with(self.lock(), |guard| (guard.held(), guard.unlock()), section))
    }

    /// Like [`with`](Self::with), but for a section that returns a `Result`: one `?` handles both errors. Two round
    /// trips.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// # async fn read_balance() -> Result<u64, std::io::Error> { Ok(7) }
    /// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// let account = client.lock("account:7");
    /// let balance = account.try_with(async |_held| Ok::<_, Box<dyn std::error::Error>>(read_balance().await?)).await?;
    /// assert_eq!(balance, 7);
    /// # Ok(()) }
    /// # example(client).await.map_err(|error| error.to_string())?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The section's error, if it returns one. Otherwise an [`Error`](crate::Error), if the section did not run, or if
    /// it ran but the client lost the lock, or the server did not confirm the release; the call then drops the
    /// section's output.
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

    /// Ends the current hold, notifies its client at once, and passes the lock on. Returns whether any server had a
    /// hold. One round trip.
    ///
    /// For operators, and for a holder that you know is dead. A live holder keeps working until the message reaches it:
    /// only its token, checked at the resource, keeps it out.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.force_unlock().await?);
    /// assert_eq!(guard.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`RequestError::Unanswered`] if the client sent it and got no answer; with several servers, if fewer than a
    /// majority answered. The client never retries it, since a second run could end the next holder's hold. The server
    /// may still run it for an [`operation_timeout`](crate::LockClientBuilder::operation_timeout), and end a hold that
    /// began in the meantime: use [`force_unlock_token`](Self::force_unlock_token), which ends no other hold.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn force_unlock(&self) -> Result<bool, RequestError> {
        forced(join_all(self.lock.each().iter().map(|lock| lock.force_unlock(None))).await)
    }

    /// Like [`force_unlock`](Self::force_unlock), but only if the hold has this token. Returns whether it had. With the
    /// token from [`status`](Self::status) you end the hold that it showed, and not the next holder's. One round trip;
    /// two with several servers.
    ///
    /// With several servers, a server that served the request late may show a greater token than the guard's. Then this
    /// returns `false` for the guard's token; [`force_unlock_shown`](Self::force_unlock_shown) ends the hold that
    /// `status` shows.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let shown = lock.lock().await?.token();
    /// let guard = lock.lock().await?;
    /// assert!(!lock.force_unlock_token(shown).await?);
    /// assert!(guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`force_unlock`](Self::force_unlock). With several servers, also the errors of [`status`](Self::status).
    /// You may call it again with the same token.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn force_unlock_token(&self, token: u64) -> Result<bool, RequestError> {
        if let Ok(one) = self.lock.at_server() {
            return one.force_unlock(Some(token)).await;
        }
        // Each server has its own token for the hold. The guard has the greatest token of the servers that count.
        let shown = self.status().await?;
        if shown.holder.as_ref().is_some_and(|holder| holder.token == token) {
            return self.force_unlock_shown(&shown).await;
        }
        of_majority(shown.servers.into_iter().map(|server| server.answer)).map(|_| false)
    }

    /// Like [`force_unlock`](Self::force_unlock), but ends at each server only the hold that this status shows there.
    /// So a caller that looked first does not take the lock away from the next holder. Returns whether one of these
    /// holds was still there. One round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let earlier = lock.lock().await?;
    /// let shown = lock.status().await?;
    /// earlier.unlock().await?;
    /// let guard = lock.lock().await?;
    /// assert!(!lock.force_unlock_shown(&shown).await?);
    /// assert!(guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Same as [`force_unlock`](Self::force_unlock). A server that did not answer for this status counts as unanswered
    /// here, too. You may call it again with the same status.
    ///
    /// # Cancel safety
    /// If you drop the future after its first poll, the call may have run.
    pub async fn force_unlock_shown(&self, shown: &LockStatus) -> Result<bool, RequestError> {
        let ending = self.lock.each().iter().zip(&shown.servers).map(|(lock, server)| async move {
            // A server that did not answer may have any hold, or none.
            match server.answer.as_ref().map_err(Clone::clone)?.holder.as_ref() {
                Some(holder) => lock.force_unlock(Some(holder.token)).await,
                None => Ok(false),
            }
        });
        forced(join_all(ending).await)
    }

    /// The holder and the queue at one instant on the server. Shows the first 100 waiters. One round trip. A server
    /// that refuses writes answers too, so after a failover the old master may answer, with its last state.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let status = lock.status().await?;
    /// let holder = status.holder.expect("it is held");
    /// println!("held by {} for another {:?}, {} waiting", holder.label, holder.lease_left, status.waiters);
    /// assert_eq!(holder.token, guard.token());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. With several servers, it fails if none of them answers; see [`LockStatus::is_known`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<LockStatus, RequestError> {
        self.inspect(WAITERS_SHOWN).await
    }

    /// Like `status`, with the first `most` waiters.
    async fn inspect(&self, most: u32) -> Result<LockStatus, RequestError> {
        let asking = self.lock.each().iter().enumerate().map(|(index, lock)| async move {
            let answer = lock.inspect(most).await.map(LockStatus::new);
            // After the answer: the request may have connected the server, and `same_as` compares only connected
            // servers.
            ServerStatus { address: lock.address().to_owned(), answer, same_as: self.lock.same_as(index) }
        });
        LockStatus::together(join_all(asking).await)
    }

    /// Whether the lock is held. One round trip. The answer may be outdated when you read it: to act on it, use
    /// [`try_lock`](Self::try_lock).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// assert!(!lock.is_locked().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. With several servers, it fails if fewer than a majority answer.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn is_locked(&self) -> Result<bool, RequestError> {
        let LockStatus { holder, servers, .. } = self.inspect(0).await?;
        of_majority(servers.into_iter().map(|server| server.answer))?;
        Ok(holder.is_some())
    }

    /// Whether any owner of this client holds the lock, in this task or in another, by the local clock less the drift.
    /// No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.is_held_here());
    /// guard.unlock().await?;
    /// assert!(!lock.is_held_here());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        self.counted(|_| true) > 0
    }

    /// How many guards the owner of this [scope](owner::scope) has on the lock, by the local clock less the drift: more
    /// than 0 if it holds the lock. Outside of a scope, each call has its own owner, so it is 0: see
    /// [`is_held_here`](Self::is_held_here). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// fairlock::owner::scope(async {
    ///     let outer = lock.lock().await?;
    ///     let inner = lock.lock().await?;
    ///     assert_eq!(lock.holds(), 2);
    ///     Ok::<_, fairlock::LockError>(())
    /// })
    /// .await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn holds(&self) -> u32 {
        owner::current().map_or(0, |owner| self.counted(|of| of == owner))
    }

    /// How many guards the holds of these owners have. With several servers, a hold counts if a majority has it.
    fn counted(&self, is_meant: impl Fn(Owner) -> bool) -> u32 {
        let (mut counts, mut servers): (BTreeMap<Owner, Vec<u32>>, _) = Default::default();
        for at in self.lock.each().iter() {
            servers += 1;
            for (owner, guards) in at.guards().into_iter().filter(|(owner, _)| is_meant(*owner)) {
                counts.entry(owner).or_default().push(guards);
            }
        }
        let count = |mut at_servers: Vec<u32>| {
            at_servers.sort_unstable_by(|one, other| other.cmp(one));
            at_servers.get(majority(servers) - 1).copied()
        };
        counts.into_values().filter_map(count).sum()
    }

    /// Checks the name, the lease and the label.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        each!(AnyLock, &self.lock, lock => lock.check())
    }
}

/// The caller, by the scope that this code runs in.
pub(crate) fn caller() -> Caller {
    Caller::of(owner::current())
}

/// Runs `work` in the caller's scope, or in a new one.
pub(crate) async fn in_scope<T>(work: impl Future<Output = T>) -> T {
    owner::current().unwrap_or_else(Owner::new).scope(work).await
}

/// Runs a section under the guard that `acquiring` returns. `split` makes the section's view of the guard, and the
/// unlock.
pub(crate) async fn with<G, H, U, T, S, F, R>(
    acquiring: impl Future<Output = Result<G, LockError>>,
    split: impl FnOnce(G) -> (H, U),
    section: F,
) -> Result<R::Output, WithError<R::Output, S>>
where
    U: Future<Output = Result<T, S>>,
    S: Error + 'static,
    F: FnOnce(H) -> R,
    R: Future,
{
    let (held, unlocking) = split(acquiring.await?);
    let output = section(held).await;
    match unlocking.await {
        Ok(_) => Ok(output),
        Err(source) => Err(WithError::Unlock { output, source }),
    }
}

/// The common result of a `force_unlock`: a majority of the servers has to answer.
fn forced(outcomes: Vec<Result<bool, RequestError>>) -> Result<bool, RequestError> {
    of_majority(outcomes).map(|were_held| were_held.contains(&true))
}
