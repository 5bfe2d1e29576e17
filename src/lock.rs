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

/// A lock, by its name. Cheap to make and to clone. Making one sends nothing to the server.
///
/// # Fairness
/// The waiter that the server queued first is served first, over all processes. The lock goes from
/// holder to waiter without being free in between. A waiter whose connection is gone is passed over, by
/// [`try_lock`](Self::try_lock) too. It keeps its place until its time to live is over.
///
/// # Calls
/// The futures of `lock`, `lock_timeout` and `try_lock` are `'static + Send`: `tokio::spawn(client.lock("a").lock())` works. A call
/// begins when its future is first polled. Its owner, its task and its tracing span are those of the first poll.
///
/// # On several servers
/// [`masters`](crate::masters) has a table of the promises. Differences in use:
/// - The order is that of the first server that a client can use. Clients that cannot reach it wait at the next one, and between
///   the two there is no order.
/// - Locking a free lock takes one round trip, and unlocking one, to all servers at the same time. Locking takes one more if
///   others were seen to want it, or if a server has given a later token than the others can give. A server that does not
///   answer costs a [`server_timeout`](crate::LockClientBuilder::server_timeout), once.
/// - Two `try_lock`s at the same instant may both be [`Busy`](Tried::Busy).
/// - With [`with_lease`](Self::with_lease) the lease begins at each server when that server grants. If they granted at
///   different times, less of it is left: [`valid_for`](Held::valid_for) returns how much. If it ends at one server while the call
///   waits at another one, the call begins again: choose a lease that is longer than the waits.
/// - Requests without a promise, such as `status` and `force_unlock`, go to all servers at the same time, and wait an
///   operation time-out for a server that does not answer.
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
    lock: AnyLock,
    refuses_self_wait: bool,
}

// As a client is.
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

    /// The same lock with a lease of its own that is *not* renewed: the hold ends after that time. For work of a known
    /// length, and for holders that may hang. No round trip.
    ///
    /// It ends at the local deadline of its holder, 1 % and 2 ms before the lease does on the server: 600 s pass on after 594 s.
    ///
    /// The lease must be at least [`operation_timeout`](crate::LockClientBuilder::operation_timeout) and
    /// [`poll_interval`](crate::LockClientBuilder::poll_interval), and at most
    /// [`token_ttl`](crate::LockClientBuilder::token_ttl), 365 days and the longest lease of
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart); otherwise acquiring fails with
    /// [`LockError::Lease`]. A nested call shares the lease of its hold: it neither extends a fixed one nor ends the renewal of
    /// another. What extends it is [`LockGuard::extend`](crate::LockGuard::extend).
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

    /// The same lock with a lease of its own that *is* renewed, instead of [the
    /// client's](crate::LockClientBuilder::lease). For one lock whose waiters should not wait that long after a crash,
    /// or whose holder may stand still for longer. No round trip.
    ///
    /// [`with_lease`](Self::with_lease) has the bounds.
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

    /// The same lock with a label for the calls made through it, instead of the client's: what
    /// [`status`](Self::status) shows of them while they wait and hold. No round trip.
    ///
    /// At most 256 bytes; otherwise acquiring fails with [`LockError::Label`]. A nested call keeps the
    /// label of the call that began the hold.
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

    /// The same lock, where a task that would wait for what it holds itself gets [`LockError::SelfWait`] at once. Without this
    /// it waits until the lease of its hold is over, and a warning is logged. No round trip.
    ///
    /// It looks at the holds of this client that were taken outside of a [scope](crate::owner::scope), where nothing nests. What a task
    /// is, tokio says; outside of tasks it is the thread. So it also refuses branches of one task that exclude each other rightly, as
    /// in a `join!` or a `select!`: spawn those, or do without this. A hold counts as that of the task
    /// that took it, also after its guard was moved into another one.
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
        // A hold on several servers may have any majority.
        let is_refused = self.refuses_self_wait && self.lock.each().iter().any(DrivenLock::is_held_by_this_task);
        if is_refused { Err(LockError::SelfWait) } else { Ok(()) }
    }

    /// The name. No round trip.
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
    /// One round trip if it is free. If not, one more message when it is handed over, and a poll every
    /// `poll_interval`, which all waiters of this client for this name share.
    ///
    /// The guard holds the lock: `let _ = lock.lock().await?;` drops it at once. See [`try_lock`](Self::try_lock).
    ///
    /// It also waits for a server that cannot be reached. Use [`lock_timeout`](Self::lock_timeout) to
    /// hear of that.
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
    /// See [`LockError`]; `Timeout` does not occur here. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; a later call begins at the end. If the
    /// server granted the lock meanwhile, the background passes it on.
    ///
    /// A future that is kept has to be polled. If it is not when its turn comes, it costs the others 250 ms, loses its place, and
    /// queues again when it is polled. So a future that is polled less often than that may never get the lock, not even a free one:
    /// spawn it, and await its handle.
    pub fn lock(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.wait(None)
    }

    /// Like [`lock`](Self::lock), but for at most that long.
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
    /// [`LockError::Timeout`] if others had the lock all the time, [`LockError::Unreachable`] if the
    /// server did not answer in that time or this future was not polled when it could go on, and the others of
    /// [`LockError`]. With [`Duration::ZERO`] nothing is asked, and nothing is known: `Unreachable`. To ask once, use
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    /// As for `lock`.
    pub fn lock_timeout(&self, timeout: Duration) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.wait(Some(timeout))
    }

    fn wait(&self, at_most: Option<Duration>) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        // A request that waits is never answered with "busy".
        self.take(IfBusy::Wait(at_most)).map(|taken| taken?.into_result().map_err(LockError::from))
    }

    /// Takes the lock if it is free and no waiter that the server can reach is in the queue, else [`Busy`](Tried::Busy), which says
    /// who has it. One round trip. It never queues, and never overtakes such a waiter.
    ///
    /// <div class="warning">
    ///
    /// The guard holds the lock. `let _ = lock.try_lock().await?;` drops it at once, and the compiler does not warn: give it a name, such as
    /// `_guard`. `#![warn(let_underscore_drop)]` makes the compiler warn.
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
    /// See [`LockError`]; `Timeout` and `QueueFull` do not occur here. No answer within the operation
    /// time-out is an error, not `Busy`: the request is taken back as soon as the server answers.
    ///
    /// # Cancel safety
    /// If the future is dropped, the background releases what it may have acquired.
    pub fn try_lock(&self) -> impl Future<Output = Result<Tried<LockGuard>, LockError>> + Send + use<> {
        self.take(IfBusy::Return(None))
    }

    /// The caller is whoever polls the future first, in its scope: it may have been spawned (P4).
    fn take(&self, if_busy: IfBusy) -> impl Future<Output = Result<Tried<LockGuard>, LockError>> + Send + use<> {
        let lock = self.clone();
        async move {
            if let IfBusy::Wait(_) = if_busy {
                lock.check_self_wait()?;
            }
            Ok(acquire!(&lock.lock, caller(), if_busy).map(LockGuard::new))
        }
    }

    /// A step of a call that a task of the client makes for this caller.
    pub(crate) async fn take_for(&self, caller: Caller, if_busy: IfBusy) -> Result<Tried<LockGuard>, LockError> {
        Ok(acquire!(&self.lock, caller, if_busy).map(LockGuard::new))
    }

    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        self.lock.each().first().map(|lock| lock.context().clone())
    }

    /// Acquires the lock, runs `section` in the owner's scope, and releases. Lock calls inside
    /// re-enter. Two round trips. A panic in the section releases too.
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
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with its output, if it
    /// ran but the lock was lost or the release has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases.
    pub fn with<F, R>(&self, section: F) -> impl Future<Output = Result<R::Output, WithError<R::Output>>> + use<F, R>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        in_scope(with(self.lock(), |guard| (guard.held(), guard.unlock()), section))
    }

    /// As [`with`](Self::with), for a section that returns a `Result`: one `?` for both. Two round trips.
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
    /// That of the section, if it has one. Else an [`Error`](crate::Error), if the section did not run, or if it ran but the lock was lost or the
    /// release has no answer; its output is dropped then.
    ///
    /// # Cancel safety
    /// As for `with`.
    pub fn try_with<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Held) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with(section).map(WithError::flatten)
    }

    /// Ends the present hold, notifies its client at once, and passes the lock on. Returns whether there was a hold, at
    /// any of several servers. One round trip.
    ///
    /// For operators, and for holders that are known to be dead. A holder that is alive goes on working
    /// until the message reaches it: only its token, checked at the resource, keeps it out.
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
    /// [`RequestError::Unanswered`] if it was sent and not answered, by a majority of several. It is never retried
    /// automatically, since a second run could end the next holder's lock. For an
    /// [`operation_timeout`](crate::LockClientBuilder::operation_timeout) it may still run, and end what the next holder has got by then: use
    /// [`force_unlock_token`](Self::force_unlock_token), which ends no other hold.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
    pub async fn force_unlock(&self) -> Result<bool, RequestError> {
        forced(join_all(self.lock.each().iter().map(|lock| lock.force_unlock(None))).await)
    }

    /// Like [`force_unlock`](Self::force_unlock), but only if the hold has this token. Returns whether it had. With
    /// the token from [`status`](Self::status) you take away the hold that it showed, and not the next holder's. One round
    /// trip.
    ///
    /// On several servers, a server that served the request late may show a greater token than the guard's. Then this returns `false`
    /// for the guard's token; [`force_unlock_shown`](Self::force_unlock_shown) takes the hold that `status` shows.
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
    /// Those of [`force_unlock`](Self::force_unlock); of several servers, where it takes two round trips, those of
    /// [`status`](Self::status) as well. It may be called again with the same token.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
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

    /// Like [`force_unlock`](Self::force_unlock), but at each server only the hold that it has in this status. So who looked
    /// first does not take the lock away from the next holder. Returns whether one of them was still there. One round trip.
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
    /// Those of [`force_unlock`](Self::force_unlock). A server without an answer in this status counts as one here, too. It may be
    /// called again with the same status.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run.
    pub async fn force_unlock_shown(&self, shown: &LockStatus) -> Result<bool, RequestError> {
        let ending = self.lock.each().iter().zip(&shown.servers).map(|(lock, server)| async move {
            // What a server has that did not answer is not known.
            match server.answer.as_ref().map_err(Clone::clone)?.holder.as_ref() {
                Some(holder) => lock.force_unlock(Some(holder.token)).await,
                None => Ok(false),
            }
        });
        forced(join_all(ending).await)
    }

    /// The holder and the queue, as of one instant on the server. Shows the first 100 waiters. One round trip. A server
    /// that refuses writes answers too, so after a failover the old master may, with its last state.
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
    /// See [`RequestError`]. With several servers: if none of them answers; see [`LockStatus::is_known`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<LockStatus, RequestError> {
        self.inspect(WAITERS_SHOWN).await
    }

    /// With the first `most` waiters.
    async fn inspect(&self, most: u32) -> Result<LockStatus, RequestError> {
        let asking = self.lock.each().iter().enumerate().map(|(index, lock)| async move {
            let answer = lock.inspect(most).await.map(LockStatus::new);
            // After the answer: with it, the server may have been connected.
            ServerStatus { address: lock.address().to_owned(), answer, same_as: self.lock.same_as(index) }
        });
        LockStatus::together(join_all(asking).await)
    }

    /// Whether the lock is held. One round trip. The answer may be outdated when you read it: to act
    /// on it, use [`try_lock`](Self::try_lock).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// assert!(!lock.is_locked().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. Of several servers: if fewer than a majority answer.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn is_locked(&self) -> Result<bool, RequestError> {
        let LockStatus { holder, servers, .. } = self.inspect(0).await?;
        of_majority(servers.into_iter().map(|server| server.answer))?;
        Ok(holder.is_some())
    }

    /// Whether any owner of this client holds the lock, by the local clock less the drift: this task, or another one.
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

    /// How many guards the owner of this [scope](owner::scope) has on the lock, by the local clock less the drift: not 0 if it holds the lock.
    /// Outside of a scope each call has an owner of its own, so there it is 0: see [`is_held_here`](Self::is_held_here). No round trip.
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

    /// How many guards there are on the holds of these owners. Of several servers a majority has to have the hold.
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

    /// Whether it can be had at all, by its name, lease and label.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        each!(AnyLock, &self.lock, lock => lock.check())
    }
}

/// The caller, by the scope that is polled now.
pub(crate) fn caller() -> Caller {
    Caller::of(owner::current())
}

/// In the scope of its caller, or in one of its own.
pub(crate) async fn in_scope<T>(work: impl Future<Output = T>) -> T {
    owner::current().unwrap_or_else(Owner::new).scope(work).await
}

/// Runs a section under what `acquiring` gives. `split`: the view of the guard, and its unlock.
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
