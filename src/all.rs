//! Several locks at once: all of them or none, without deadlock.

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all, select_all};

use crate::client::LockClient;
use crate::driver::limit::{is_only_late, no_answer_yet};
use crate::driver::lock::{Caller, IfBusy};
use crate::driver::task;
use crate::driver::task_or_thread::TaskOrThread;
use crate::driver::tried::Tried;
use crate::error::{HoldError, LockError, Loss, UnlockAllError, WithError};
use crate::guard::{Held, LockGuard};
use crate::lock::{FairLock, in_scope, with};
use crate::owner::{self, Owner};
use crate::store::clock::{is_over, now};

/// How many names a call tries at the same time. A larger set takes turns with the other calls of its client.
const AT_ONCE: usize = 64;

/// Takes several locks together: all of them or none. Made by [`LockClient::lock_all`]. Making one sends nothing to the
/// server.
///
/// # No deadlock
/// The call sorts the names, and counts a repeated name once. First it tries all names at the same time. If another
/// owner has one, the call keeps the names before it, releases the names after it, waits in that name's queue, and then
/// continues. So it only ever waits for a name that comes after all the names it holds, and such calls never wait for
/// each other in a circle.
///
/// That applies to this call alone. A task that already holds one of these locks, or any other, and then calls
/// `lock_all` can deadlock with another such task. Take all locks that a task needs in one call, and before any other
/// lock. In an [`owner::scope`](crate::owner::scope) the call re-enters a name that its owner already holds without
/// waiting, but the owner keeps that name while the call waits for the names before it.
///
/// # A call that is not polled
/// A task of the client makes the call, and continues even if you do not poll the future. If you do not poll it for 250
/// ms after the task has all locks, the client releases them, as for a single lock, and the call starts again at the
/// next poll.
///
/// # Semaphores and read-write locks
/// It takes plain locks only. This order does not include the permits or shares of a read-write lock that a task also
/// holds: take them after all of its locks, or never wait for a lock while it has them.
///
/// # Fairness
/// First come, first served for each name, from the time when the call waits for it. Calls for different sets may
/// succeed in another order than they came.
///
/// ```
/// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
/// let transfer = client.lock_all(["account:7", "account:3"]);
/// let guard = transfer.lock().await?;
/// for (name, token) in guard.tokens() {
///     println!("alone with {name}, token {token}");
/// }
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct LockAll {
    /// Sorted, each name once.
    locks: Arc<[FairLock]>,
}

/// The guards of a [`LockAll`], one for each name. They end with [`unlock`](Self::unlock), or when this is dropped.
///
/// A set has no `ended_token`: [`lost`](Self::lost) watches all names, and [`get`](Self::get) leads to the
/// [`ended_token`](crate::Held::ended_token) of one.
///
/// ```
/// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
/// let guard = client.lock_all(["account:7", "account:3"]).lock().await?;
/// tokio::select! {
///     () = transfer(guard.token("account:3"), guard.token("account:7")) => { guard.unlock().await?; }
///     (name, loss) = guard.lost() => eprintln!("stopped, {name}: {loss}"),
/// }
/// # Ok(()) }) }
/// # async fn transfer(from: Option<u64>, to: Option<u64>) {}
/// ```
#[must_use = "the locks are released when the guard is dropped"]
pub struct AllGuard {
    /// In the order of their names.
    guards: Vec<LockGuard>,
}

impl LockClient {
    /// Returns a [`LockAll`], which takes the locks of these names together. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let all = client.lock_all(["b", "a", "b"]);
    /// assert!(all.names().eq(["a", "b"]));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll::new(names.into_iter().map(|name| self.lock(name)))
    }
}

impl LockAll {
    /// All locks are of one client, and every client has the same order of names.
    fn new(locks: impl Iterator<Item = FairLock>) -> Self {
        let mut locks: Vec<FairLock> = locks.collect();
        locks.sort_by(|one, other| one.name().cmp(other.name()));
        locks.dedup_by(|one, other| one.name() == other.name());
        Self { locks: locks.into() }
    }

    /// The names in their order. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert!(client.lock_all(["b", "a"]).names().eq(["a", "b"]));
    /// # Ok(()) }) }
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(FairLock::name)
    }

    /// The same locks with a fixed lease, which the client does *not* renew, like [`FairLock::with_lease`]. No round
    /// trip.
    ///
    /// The lease of each name begins when the call acquires that name, so waiting for others uses it up. If one ends
    /// before the call has all locks, the call starts again at that name: choose a lease that is longer than the waits.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock_all(["a", "b"]).with_lease(Duration::from_secs(600)).lock().await?;
    /// assert!(guard.valid_for() > Duration::from_secs(500));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a set of locks, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { locks: self.locks.iter().map(|lock| lock.with_lease(lease)).collect() }
    }

    /// The same locks with their own lease, which the client renews, like [`FairLock::with_renewed_lease`]. No round
    /// trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock_all(["a", "b"]).with_renewed_lease(Duration::from_secs(5)).lock().await?;
    /// assert!(guard.valid_for() <= Duration::from_secs(5));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a set of locks, it does not change one"]
    pub fn with_renewed_lease(&self, lease: Duration) -> Self {
        Self { locks: self.locks.iter().map(|lock| lock.with_renewed_lease(lease)).collect() }
    }

    /// The same locks with a label for the calls made through them, like [`FairLock::labelled`]. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).labelled("job 17").lock().await?;
    /// let holder = client.lock("b").status().await?.holder.expect("it is held");
    /// assert_eq!(holder.label, "job 17");
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use = "this makes a set of locks, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        Self { locks: self.locks.iter().map(|lock| lock.labelled(label.as_ref())).collect() }
    }

    /// Waits for all of them, without a time limit.
    ///
    /// One round trip if all are free and there are at most 64. Otherwise, each name that another owner has costs a
    /// wait in its queue, and the free names between two of those cost a few round trips. In the meantime the client
    /// renews the names that the call already holds. If it loses one of them, the call starts again at that name.
    ///
    /// While the call waits for one name, others wait for the names that it already holds. An empty set returns its
    /// guard at once.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// assert!(client.lock("a").try_lock().await?.is_busy());
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error the call holds nothing.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, and releases the acquired names in the background.
    pub fn lock(&self) -> impl Future<Output = Result<AllGuard, LockError>> + Send + use<> {
        self.carry_out(None, Taking::lock)
    }

    /// Like [`lock`](Self::lock), with a limit on the time for the whole call.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use fairlock::LockError;
    /// use std::time::Duration;
    ///
    /// let other = client.lock("b").lock().await?;
    /// let outcome = client.lock_all(["a", "b"]).lock_timeout(Duration::from_secs(5)).await;
    /// assert!(matches!(outcome, Err(LockError::Timeout { .. })));
    /// # drop(other);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Timeout`] if others had one of the locks, [`LockError::Unreachable`] if the server did not answer
    /// in that time, and the other errors of [`LockError`].
    ///
    /// # Cancel safety
    /// The same as `lock`.
    pub fn lock_timeout(&self, timeout: Duration) -> impl Future<Output = Result<AllGuard, LockError>> + Send + use<> {
        self.carry_out(Some(timeout), Taking::lock)
    }

    /// Takes all of them if all are free and without waiters, else returns [`Busy`](Tried::Busy). One round trip, one
    /// more if it has to release some, and the same again for each further 64 names.
    ///
    /// Two calls at the same instant whose sets overlap may both be `Busy`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let other = client.lock("b").lock().await?;
    /// assert!(client.lock_all(["a", "b"]).try_lock().await?.is_busy());
    /// assert!(!client.lock("a").is_locked().await?);
    /// # drop(other);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` and `QueueFull` do not occur here. After an error the call holds nothing.
    ///
    /// # Cancel safety
    /// Dropping the future releases in the background any lock that the call may have acquired.
    pub fn try_lock(&self) -> impl Future<Output = Result<Tried<AllGuard>, LockError>> + Send + use<> {
        self.carry_out(None, Taking::try_lock)
    }

    /// Acquires all of them, runs `section` in the owner's scope with a view of each, in the order of their names, and
    /// then releases them. Lock calls inside re-enter. A panic in the section also releases them. Costs as much as
    /// [`lock`](Self::lock) and [`AllGuard::unlock`].
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let transfer = client.lock_all(["account:7", "account:3"]);
    /// let names = transfer.with(async |held| held.iter().map(|one| one.name().to_owned()).collect::<Vec<_>>()).await?;
    /// assert_eq!(names, ["account:3", "account:7"]);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with the output of the section, if it ran
    /// but the client lost one of the locks or got no answer to a release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section at its current point, and releases.
    pub fn with<F, R>(
        &self,
        section: F,
    ) -> impl Future<Output = Result<R::Output, WithError<R::Output, UnlockAllError>>> + use<F, R>
    where
        F: FnOnce(Vec<Held>) -> R,
        R: Future,
    {
        let split = |all: AllGuard| (all.guards.iter().map(|guard| guard.held()).collect(), all.unlock());
        in_scope(with(self.lock(), split, section))
    }

    /// Like [`with`](Self::with), for a section that returns a `Result`: one `?` for both.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let transfer = client.lock_all(["account:7", "account:3"]);
    /// let booked = transfer.try_with(async |_held| Ok::<_, fairlock::Error>("booked")).await;
    /// assert_eq!(booked.ok(), Some("booked"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The same as [`FairLock::try_with`].
    ///
    /// # Cancel safety
    /// The same as `with`.
    pub fn try_with<F, R, T, E>(&self, section: F) -> impl Future<Output = Result<T, E>> + use<F, R, T, E>
    where
        F: FnOnce(Vec<Held>) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<crate::Error>,
    {
        self.with(section).map(WithError::flatten)
    }

    /// Checks all names before the call takes any, since it could never have an invalid one.
    fn check(&self) -> Result<(), LockError> {
        self.locks.iter().try_for_each(FairLock::check)
    }

    /// Makes the call in a task of the client.
    fn carry_out<T, F, C>(
        &self,
        timeout: Option<Duration>,
        call: C,
    ) -> impl Future<Output = Result<T, LockError>> + Send + use<T, F, C>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LockError>> + Send + 'static,
        C: Fn(Taking) -> F + Send + Sync,
    {
        let all = self.clone();
        async move {
            all.check()?;
            // If the limit is too far away to be added, there is none.
            let limit = timeout.and_then(|timeout| now().checked_add(timeout));
            let taking = Taking { locks: all.locks, scope: owner::current(), task: TaskOrThread::current(), limit };
            // Without a name the call never waits.
            let Some(context) = taking.locks.first().and_then(FairLock::context) else { return call(taking).await };
            let late = || LockError::Unreachable(no_answer_yet());
            task::carry_out(&context, limit, late, || call(taking.clone())).await
        }
    }
}

/// One call.
#[derive(Clone)]
struct Taking {
    locks: Arc<[FairLock]>,
    /// The scope and the task of its caller.
    scope: Option<Owner>,
    task: TaskOrThread,
    limit: Option<Instant>,
}

impl Taking {
    fn caller(&self) -> Caller {
        Caller { task: self.task, ..Caller::of(self.scope) }
    }

    async fn try_lock(self) -> Result<Tried<AllGuard>, LockError> {
        let mut taken = AllGuard { guards: Vec::new() };
        for some in self.locks.chunks(AT_ONCE) {
            let tried = join_all(some.iter().map(|lock| lock.take_for(self.caller(), IfBusy::Return(None)))).await;
            let tried: Vec<_> = tried.into_iter().collect::<Result<_, _>>()?;
            let mut busy = None;
            for one in tried.into_iter().map(Tried::into_result) {
                match one {
                    Ok(guard) => taken.guards.push(guard),
                    Err(others) => drop(busy.get_or_insert(others)),
                }
            }
            if let Some(busy) = busy {
                // Before it returns, so that the task's next call does not find leftovers of this one. A release
                // without an answer continues in the background.
                let _ = taken.unlock().await;
                return Ok(Tried::Busy(busy));
            }
        }
        Ok(Tried::Acquired(taken))
    }

    /// Waits for a name only while it holds nothing but names before it. The names of all clients have one order, so in
    /// a chain of waiting calls, the call with the last name waits for a holder that does not wait.
    async fn lock(self) -> Result<AllGuard, LockError> {
        let mut taken = AllGuard { guards: Vec::new() };
        let (mut at_once, mut saw_others) = (AT_ONCE, false);
        loop {
            if taken.give_back_after_a_loss() {
                at_once = 1;
            }
            let ahead = self.locks.get(taken.guards.len()..).unwrap_or_default();
            if ahead.is_empty() {
                return Ok(taken);
            }
            let ahead = ahead.iter().take(at_once);
            let tried = join_all(ahead.map(|lock| lock.take_for(self.caller(), IfBusy::Return(self.left())))).await;
            match taken.take_in(tried) {
                None => at_once = (2 * at_once).min(AT_ONCE),
                Some(Refused::Failed(error)) if is_final(&error) || is_over(self.limit) => {
                    return Err(told(error, saw_others));
                }
                Some(refused) => {
                    saw_others |= matches!(refused, Refused::Busy);
                    self.wait_for_next(&mut taken).await.map_err(|error| told(error, saw_others))?;
                    // Others probably want the next names too. A try that the call takes back is lost work, so it tries
                    // one name, and more with each success: it never loses more tries than have succeeded.
                    at_once = 1;
                }
            }
        }
    }

    /// Waits for the first name that it does not hold. Returns without it after the loss of another name.
    async fn wait_for_next(&self, taken: &mut AllGuard) -> Result<(), LockError> {
        let Some(next) = self.locks.get(taken.guards.len()) else { return Ok(()) };
        tokio::select! {
            // First: the call must wait for a lost name before this one.
            biased;
            () = taken.one_ended() => {}
            guard = next.take_for(self.caller(), IfBusy::Wait(self.left())) => taken.guards.extend(guard?.into_result()),
        }
        Ok(())
    }

    fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_duration_since(now()))
    }
}

impl AllGuard {
    /// The names in their order. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert!(client.lock_all(["b", "a"]).lock().await?.names().eq(["a", "b"]));
    /// # Ok(()) }) }
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.guards.iter().map(|guard| guard.name())
    }

    /// The guard of one name. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// assert!(guard.get("a").is_some_and(|a| a.is_valid()) && guard.get("c").is_none());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&LockGuard> {
        let index = self.guards.binary_search_by(|guard| guard.name().cmp(name)).ok()?;
        self.guards.get(index)
    }

    /// The fencing token of one name: see [`Held::token`](crate::Held::token). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert!(client.lock_all(["a", "b"]).lock().await?.token("b") > Some(0));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn token(&self, name: &str) -> Option<u64> {
        self.get(name).map(|guard| guard.token())
    }

    /// Each name with its fencing token. A resource checks the token of its own name; tokens of different names are not
    /// comparable. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// for (name, token) in client.lock_all(["a", "b"]).lock().await?.tokens() {
    ///     println!("{name}: {token}");
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// Whether this guard holds all names at this instant, by the local clock less the drift. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// client.lock("b").force_unlock().await?;
    /// guard.lost().await;
    /// assert!(!guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_valid())
    }

    /// How long this guard holds all names if no further renewal succeeds; zero after the loss of one, and unlimited
    /// without a name. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// assert!(client.lock_all(["a", "b"]).lock().await?.valid_for() > Duration::from_secs(20));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.guards.iter().map(|guard| guard.valid_for()).min().unwrap_or(Duration::MAX)
    }

    /// Sets a new lease from now on for all of them, like [`LockGuard::extend`]. One round trip, for all at the same
    /// time.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock_all(["a", "b"]).with_lease(Duration::from_secs(60)).lock().await?;
    /// guard.extend(Duration::from_secs(600)).await?;
    /// assert!(guard.valid_for() > Duration::from_secs(500));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The errors of `LockGuard::extend`; if several names fail, the error of the first name. The others may have the
    /// new lease.
    ///
    /// # Cancel safety
    /// The same as `LockGuard::extend`.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        join_all(self.guards.iter().map(|guard| guard.extend(lease))).await.into_iter().collect()
    }

    /// Resolves with the name when the guard loses one of them. The guard keeps the others until it is dropped. No
    /// round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// client.lock("b").force_unlock().await?;
    /// assert_eq!(guard.lost().await, ("b", fairlock::Loss::Forced));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub fn lost(&self) -> impl Future<Output = (&str, Loss)> + Send {
        let losses: Vec<_> =
            self.guards.iter().map(|guard| guard.lost().map(|loss| (guard.name(), loss)).boxed()).collect();
        first_of(losses)
    }

    /// Releases all of them at the same time, the last name first, and waits for the answers. One round trip for up to
    /// 256 names, the number of requests that a client can have under way; more for more names.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// client.lock("b").force_unlock().await?;
    /// let error = guard.unlock().await.expect_err("one was lost");
    /// assert_eq!(error.failed[0].0, "b");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`UnlockAllError`] lists each name that was already lost, and each whose release the server did not answer or
    /// refused. The client keeps trying if that can help.
    ///
    /// # Cancel safety
    /// Once called, the releases are certain: the client finishes them in the background if you drop the future.
    pub async fn unlock(mut self) -> Result<(), UnlockAllError> {
        // The last name first: a waiter for the first name goes on to the others, and finds them free.
        let releasing = std::mem::take(&mut self.guards).into_iter().rev().map(|guard| async {
            let name = guard.name().to_owned();
            Some((name, guard.unlock().await.err()?))
        });
        let mut failed: Vec<_> = join_all(releasing).await.into_iter().flatten().collect();
        failed.reverse();
        match failed.first() {
            None => Ok(()),
            Some((_, first)) => Err(UnlockAllError { first: first.clone(), failed }),
        }
    }

    /// The single guards, in the order of their names, for releasing them one by one. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock_all(["a", "b"]).lock().await?;
    /// for guard in guard.into_guards() {
    ///     guard.unlock().await?;
    /// }
    /// # Ok(()) }) }
    /// ```
    #[must_use = "the locks are released when the guards are dropped"]
    pub fn into_guards(mut self) -> Vec<LockGuard> {
        std::mem::take(&mut self.guards)
    }

    /// Keeps the guards up to the first name that was not acquired, and releases those after it.
    fn take_in(&mut self, tried: Vec<Result<Tried<LockGuard>, LockError>>) -> Option<Refused> {
        let (mut above, mut refused) = (Self { guards: Vec::new() }, None);
        for outcome in tried {
            match outcome {
                Ok(Tried::Acquired(guard)) if refused.is_none() => self.guards.push(guard),
                Ok(Tried::Acquired(guard)) => above.guards.push(guard),
                Ok(Tried::Busy(_)) => refused = refused.or(Some(Refused::Busy)),
                // An error that waiting cannot fix counts at any name: the call does not wait for the names before it.
                Err(error) if refused.is_none() || is_final(&error) => refused = Some(Refused::Failed(error)),
                Err(_) => {}
            }
        }
        refused
    }

    /// Resolves when a hold has ended. The caller relies on none until the call has all, so it does not report a loss.
    async fn one_ended(&self) {
        first_of(self.guards.iter().map(|guard| guard.ended().boxed()).collect()).await;
    }

    /// After the loss of a name, releases it and the names after it, since the call must wait for it before them.
    fn give_back_after_a_loss(&mut self) -> bool {
        let Some(lost) = self.guards.iter().position(|guard| !guard.is_valid()) else { return false };
        drop(Self { guards: self.guards.split_off(lost) });
        true
    }
}

impl Drop for AllGuard {
    fn drop(&mut self) {
        // The last name first, as in `unlock`.
        while let Some(guard) = self.guards.pop() {
            drop(guard);
        }
    }
}

impl fmt::Debug for AllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tokens()).finish()
    }
}

/// Why the call did not acquire all the names that it tried.
enum Refused {
    /// Other owners have the first name that it did not acquire, or wait for it.
    Busy,
    Failed(LockError),
}

/// The output of the first to complete. Never completes if there are none.
async fn first_of<T>(futures: Vec<BoxFuture<'_, T>>) -> T {
    match futures.is_empty() {
        true => pending().await,
        false => select_all(futures).await.0,
    }
}

/// Whether waiting longer cannot fix it.
fn is_final(error: &LockError) -> bool {
    !matches!(error, LockError::Unreachable(_) | LockError::Timeout { .. })
}

/// The error to return. A call that has waited for others may time out while its next request is under way. That does
/// not mean that the server is silent (decision 42).
fn told(error: LockError, saw_others: bool) -> LockError {
    match error {
        LockError::Unreachable(cause) if saw_others && is_only_late(&cause) => LockError::Timeout { holder: None },
        error => error,
    }
}
