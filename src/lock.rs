//! A lock by its name.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout_at};

use crate::acquire::{Trouble, Wish, acquire};
use crate::core::{Core, RETRY_PAUSE};
use crate::error::{ForceUnlockError, LockError, NameError, StatusError, TryLockError, WithError};
use crate::guard::{Held, LockGuard};
use crate::hold::Seat;
use crate::owner::{self, Owner};
use crate::store::keys::{Keys, LONGEST_NAME};
use crate::store::now;
use crate::store::reply::{ForceUnlocked, Inspected};

/// How many places of the queue [`FairLock::status`] shows.
const PLACES_SHOWN: u32 = 100;

/// A lock, by its name. Cheap to make and to clone; making one asks the server nothing.
///
/// # Fairness
/// Whoever the server queues first is served first, over all processes. The lock is handed from
/// holder to waiter without being free in between. `try_lock` takes it only if nobody waits. A
/// waiter whose connection is gone is passed over, and keeps its place until its time is up.
///
/// # Reentrance
/// Calls under one [`Owner`] re-enter; see [`owner::scope`] and [`with`](Self::with). Outside a
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
    core: Arc<Core>,
    name: Arc<str>,
    keys: Result<Arc<Keys>, NameError>,
    fixed_lease: Option<Duration>,
}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLock").field("name", &self.name).field("fixed_lease", &self.fixed_lease).finish()
    }
}

impl FairLock {
    pub(crate) fn new(core: Arc<Core>, name: &str) -> Self {
        let keys = match name.len() {
            0 => Err(NameError::Empty),
            length if length > LONGEST_NAME => Err(NameError::TooLong(length)),
            _ => Ok(Arc::new(Keys::new(&core.options.prefix, name))),
        };
        Self { core, name: name.into(), keys, fixed_lease: None }
    }

    /// The same lock with a lease of its own that is *not* renewed: the hold ends by itself after
    /// that time. For work with a known bound, and for holders that may hang.
    ///
    /// The lease must be at least the operation time-out; if not, acquiring says so.
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { fixed_lease: Some(lease), ..self.clone() }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the lock, for ever, first come first served. One round trip when it is free; when
    /// not, one more message when it is handed over, and a poll every `poll_interval`.
    ///
    /// It also waits for a server that cannot be reached; use [`lock_timeout`](Self::lock_timeout)
    /// to hear of that.
    ///
    /// # Errors
    /// See [`LockError`]; there is no `Timeout` here. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in the queue; a later call begins at the end. Whatever the
    /// server granted meanwhile is passed on in the background.
    pub async fn lock(&self) -> Result<LockGuard, LockError> {
        let guard = self.run(true, None).await?;
        // A wish to wait is not answered with "busy".
        guard.ok_or(LockError::Timeout)
    }

    /// Like [`lock`](Self::lock), for so long at the most.
    ///
    /// # Errors
    /// [`LockError::Timeout`] when others had it all the time, [`LockError::Unreachable`] when the
    /// server did not answer in that time.
    ///
    /// # Cancel safety
    /// As for `lock`.
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<LockGuard, LockError> {
        let limit = now().checked_add(timeout);
        let guard = self.run(true, limit).await?;
        guard.ok_or(LockError::Timeout)
    }

    /// Takes the lock if it is free and nobody waits: `None` if not. One round trip; it never
    /// queues, and never overtakes.
    ///
    /// # Errors
    /// See [`TryLockError`]. No answer within the operation time-out is an error, not `None`:
    /// the request is taken back as soon as the server answers.
    ///
    /// # Cancel safety
    /// Dropping it releases what it may have acquired.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, TryLockError> {
        let limit = now() + self.core.patience();
        match self.run(false, Some(limit)).await {
            // Only a turn of this owner that takes its time ends here without trouble.
            Err(LockError::Timeout) => Ok(None),
            outcome => Ok(outcome?),
        }
    }

    /// Acquires, runs `section` in the owner's scope, releases: lock calls inside re-enter. Two
    /// round trips. A panic in the section releases too.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::FairLock) -> Result<(), Box<dyn std::error::Error>> {
    /// let total = lock
    ///     .with(|held| async move {
    ///         println!("token {}", held.token());
    ///         40 + 2
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run; [`WithError::Unlock`] with its output if
    /// it ran, but the lock was lost or the release has no answer.
    ///
    /// # Cancel safety
    /// Dropping it drops the section where it is and releases.
    pub async fn with<F, R>(&self, section: F) -> Result<R::Output, WithError<R::Output>>
    where
        F: FnOnce(Held) -> R,
        R: Future,
    {
        let me = owner::current().unwrap_or_else(Owner::new);
        me.scope(async {
            let guard = self.lock().await?;
            let output = section(guard.held()).await;
            match guard.unlock().await {
                Ok(_) => Ok(output),
                Err(source) => Err(WithError::Unlock { output, source }),
            }
        })
        .await
    }

    /// Ends whatever hold there is, tells its client at once, and passes the lock on. Returns
    /// whether it was held. One round trip.
    ///
    /// For operators, and for holders known to be dead. A holder that lives goes on working until
    /// it hears of it: only its token, checked at the resource, keeps it out.
    ///
    /// # Errors
    /// [`ForceUnlockError::Unknown`] when it was sent and not answered; it is never repeated by
    /// itself.
    ///
    /// # Cancel safety
    /// Dropped after the first poll, it may have run.
    pub async fn force_unlock(&self) -> Result<bool, ForceUnlockError> {
        if self.core.closing.is_cancelled() {
            return Err(ForceUnlockError::Closed);
        }
        let keys = self.keys()?;
        loop {
            let answer = self.core.scripts.force_unlock(keys, self.core.patience()).await?;
            let (held, more) = match answer.body {
                ForceUnlocked::Freed { more } => (true, more),
                ForceUnlocked::Free { more } => (false, more),
                // It ran nothing, and the answer has put our idea of the server's clock right.
                ForceUnlocked::Late => {
                    sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            if more {
                self.core.clear(keys);
            }
            return Ok(held);
        }
    }

    /// Who holds it and who waits, as of one instant on the server. One round trip; shows the
    /// first 100 places.
    ///
    /// # Errors
    /// See [`StatusError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> Result<LockStatus, StatusError> {
        let asked = now();
        self.inspect(PLACES_SHOWN).await.map(|inspected| LockStatus::new(asked, inspected))
    }

    /// Whether anybody holds it. One round trip. By the time you look at the answer it may be
    /// wrong: to act on it, use [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// See [`StatusError`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn is_locked(&self) -> Result<bool, StatusError> {
        self.inspect(0).await.map(|inspected| !inspected.owner.is_empty())
    }

    /// Whether the owner of this scope holds it for sure, or outside a scope any owner of this
    /// client. No round trip.
    #[must_use]
    pub fn held_by_me(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many guards the owner of this scope has on it, or outside a scope all owners of this
    /// client together. Lost ones do not count. No round trip.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let Ok(keys) = self.keys() else { return 0 };
        let seats = &self.core.seats;
        let holds = match owner::current() {
            Some(owner) => seats.hold_of(&keys.lock, owner).into_iter().collect(),
            None => seats.holds_at(&keys.lock, usize::MAX),
        };
        holds.iter().filter(|hold| hold.is_valid()).map(|hold| hold.live()).sum()
    }

    fn keys(&self) -> Result<&Arc<Keys>, NameError> {
        self.keys.as_ref().map_err(Clone::clone)
    }

    async fn inspect(&self, most: u32) -> Result<Inspected, StatusError> {
        if self.core.closing.is_cancelled() {
            return Err(StatusError::Closed);
        }
        let keys = self.keys()?;
        Ok(self.core.scripts.inspect(keys, most, self.core.patience()).await?.body)
    }

    fn wish(&self, wait: bool, scoped: bool) -> Result<Wish, LockError> {
        let options = &self.core.options;
        let lease = self.fixed_lease.unwrap_or(options.lease);
        options.check_lease("the lease of with_lease", lease).map_err(LockError::Lease)?;
        Ok(Wish { lease, watched: self.fixed_lease.is_none(), wait, scoped })
    }

    /// Who asks, and for what.
    fn ask(&self, wait: bool) -> Result<(Arc<Seat>, Wish), LockError> {
        let scope = owner::current();
        let wish = self.wish(wait, scope.is_some())?;
        let owner = scope.unwrap_or_else(Owner::new);
        Ok((self.core.seats.seat(&self.core, self.keys()?, owner), wish))
    }

    async fn run(&self, wait: bool, limit: Option<Instant>) -> Result<Option<LockGuard>, LockError> {
        let (seat, wish) = self.ask(wait)?;
        let trouble = Trouble::default();
        // `close` waits for this call too, so that what it leaves behind can still be sent.
        let _busy = self.core.tasks.token();
        // Pinned here: passed on by value it would be in this future twice.
        let acquiring = pin!(acquire(&seat, wish, &trouble));
        let hold = tokio::select! {
            biased;
            () = self.core.closing.cancelled() => Err(LockError::Closed),
            outcome = within(limit, acquiring) => outcome.unwrap_or_else(|| {
                Err(trouble.last().map_or(LockError::Timeout, LockError::Unreachable))
            }),
        };
        let guard = hold?.map(LockGuard::new);
        if guard.is_some() && self.core.closing.is_cancelled() {
            // Acquired after `close` had looked for holds; dropping the guard releases it.
            return Err(LockError::Closed);
        }
        Ok(guard)
    }
}

/// `None` when the time is up first.
async fn within<F: Future>(limit: Option<Instant>, future: F) -> Option<F::Output> {
    match limit {
        // In a box: the many who wait without a limit need no timer.
        Some(limit) => Box::pin(timeout_at(limit.into(), future)).await.ok(),
        None => Some(future.await),
    }
}

/// Who holds a lock and who waits, as of one instant on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The holder, if any.
    pub holder: Option<Holder>,
    /// Those who wait, first in line first; at most 100.
    pub queue: Vec<Waiting>,
    /// How many tickets there are, those beyond the first 100 and those about to expire included.
    pub waiters: u64,
}

/// A holder, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `<client uuid>:<number>`
    pub owner: String,
    /// Its holds, nested ones included.
    pub holds: u32,
    /// Its fencing token.
    pub token: u64,
    /// The label of its client.
    pub label: String,
    /// When its lease ends unless it renews it.
    pub lease_left: Duration,
}

/// A waiter, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// 1 is next.
    pub place: usize,
    /// `<client uuid>:<number>`
    pub owner: String,
    /// The label of its client.
    pub label: String,
    /// When its place is lost unless it is heard of, on this machine's clock.
    pub deadline: Instant,
}

impl LockStatus {
    fn new(asked: Instant, inspected: Inspected) -> Self {
        let holder = (!inspected.owner.is_empty()).then(|| Holder {
            owner: inspected.owner,
            holds: inspected.holds,
            token: inspected.token,
            label: inspected.label,
            lease_left: inspected.lease_left.unwrap_or_default(),
        });
        let waiting = |(index, waiter): (usize, crate::store::reply::InspectedWaiter)| Waiting {
            place: index + 1,
            owner: waiter.ticket.rsplit_once(':').map_or_else(String::new, |(owner, _)| owner.to_owned()),
            label: waiter.label,
            deadline: asked + waiter.deadline_in,
        };
        let queue = inspected.queue.into_iter().enumerate().map(waiting).collect();
        Self { holder, queue, waiters: inspected.waiters }
    }
}
