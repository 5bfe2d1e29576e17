//! A lock on several masters, by its name.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::acquire::{Acquire, Told};
use super::context::Quorum;
use super::error::TooFewAnswers;
use super::guard::QuorumGuard;
use super::hold::Share;
use super::status::{NodeStatus, QuorumStatus};
use crate::engine::lock::EngineLock;
use crate::engine::observe::{self, Call};
use crate::error::{LockError, OptionsError, RequestError, WithError};
use crate::metrics::LockMetrics;
use crate::owner::{self, Owner};
use crate::status::{LockStatus, WAITERS_SHOWN};
use crate::store::clock::now;

/// A lock on a majority of several masters, by its name. Cheap to make and to clone.
///
/// It is used as a [`FairLock`](crate::FairLock). What differs:
/// - The order is that of the first server that its clients can use. Clients that cannot reach it wait at the next one, and
///   between the two there is no order.
/// - Locking a free lock takes one round trip, and unlocking one, to all servers at the same time. Locking takes one more
///   where others were seen to want it, and where a server has given a later token than the others can give.
/// - With [`with_lease`](Self::with_lease) the lease begins at each server when that one grants. Where that was not at the
///   same time, less of it is left: [`QuorumGuard::valid_for`] says how much.
///
/// ```no_run
/// # async fn example(client: fairlock::QuorumClient) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").lock().await?;
/// tokio::select! {
///     () = ship_the_order(guard.token()) => { guard.unlock().await?; }
///     loss = guard.lost() => eprintln!("stopped: {loss}"),
/// }
/// # Ok(()) }
/// # async fn ship_the_order(token: u64) {}
/// ```
#[derive(Clone)]
pub struct QuorumLock {
    quorum: Arc<Quorum>,
    name: Arc<str>,
    locks: Arc<[EngineLock]>,
    lease: Result<(), OptionsError>,
    metrics: LockMetrics,
}

impl fmt::Debug for QuorumLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumLock").field("name", &self.name).finish_non_exhaustive()
    }
}

impl QuorumLock {
    pub(crate) fn as_part(&self) -> Self {
        self.clone()
    }

    pub(super) fn new(quorum: Arc<Quorum>, name: &str) -> Self {
        let locks = quorum.nodes.all.iter().map(|node| EngineLock::new(node.engine.clone(), name)).collect();
        let metrics = quorum.metrics.of_lock(name);
        Self { quorum, name: name.into(), locks, lease: Ok(()), metrics }
    }

    fn with_each(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        Self { locks: self.locks.iter().map(change).collect(), ..self.clone() }
    }

    /// The same lock with a lease of its own that is *not* renewed, as
    /// [`FairLock::with_lease`](crate::FairLock::with_lease). No round trip.
    ///
    /// It has the same limits, and may not be longer than [`longest_lease`](crate::QuorumClientBuilder::longest_lease);
    /// otherwise acquiring fails with [`LockError::Lease`].
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// use std::time::Duration;
    ///
    /// let report = client.lock("report").with_lease(Duration::from_secs(20));
    /// let guard = report.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(20)).await;
    /// assert!(!guard.is_valid());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn with_lease(&self, lease: Duration) -> Self {
        let longest = self.quorum.longest_lease;
        let lease_fits = if lease <= longest {
            Ok(())
        } else {
            Err(OptionsError::TooShort {
                larger: "longest_lease",
                larger_value: longest,
                smaller: "the lease of with_lease",
                smaller_value: lease,
                reason: "a restarted server would grant a lock that it has forgotten, and that is still held",
            })
        };
        Self { lease: lease_fits, ..self.with_each(|lock| lock.with_lease(lease)) }
    }

    /// The same lock with a label for the calls made through it, as
    /// [`FairLock::labelled`](crate::FairLock::labelled). No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.labelled("job 17").lock().await?;
    /// let status = lock.status().await;
    /// assert_eq!(status.holder().map(|holder| holder.label.as_str()), Some("job 17"));
    /// # drop(guard);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use = "this makes a lock, it does not change one"]
    pub fn labelled(&self, label: impl AsRef<str>) -> Self {
        self.with_each(|lock| lock.labelled(label.as_ref()))
    }

    /// The name. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// assert_eq!(client.lock("orders:42").name(), "orders:42");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the lock, without a time limit, also for a majority that can be used.
    ///
    /// One round trip to all servers if it is free; two for a while after others were seen to want it; one more if their
    /// tokens differ. If others wait, first come, first served at the first server that can be used.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// println!("alone with order 42, token {}, on the servers {:?}", guard.token(), guard.nodes());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]; `Timeout` does not occur here. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, and what was granted meanwhile, at all servers.
    pub async fn lock(&self) -> Result<QuorumGuard, LockError> {
        let guard = self.run(async |asking| self.acquire(asking).await.map(Some)).await?;
        // It has a guard, or an error.
        guard.ok_or(LockError::Timeout)
    }

    /// Like [`lock`](Self::lock), but for at most that long.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
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
    /// [`LockError::Timeout`] if others had the lock, [`LockError::Unreachable`] if fewer than a majority of the servers
    /// could be used at the end, or had not answered yet, and the others of [`LockError`].
    ///
    /// # Cancel safety
    /// As for `lock`.
    pub async fn lock_timeout(&self, limit: Duration) -> Result<QuorumGuard, LockError> {
        let guard = self.run(async |asking| within(limit, asking, self.acquire(asking)).await.map(Some)).await?;
        guard.ok_or(LockError::Timeout)
    }

    /// Takes the lock if it is free and nobody waits, else `None`. One round trip to all servers, two if their tokens
    /// differ. It never queues.
    ///
    /// Two calls at the same instant may see each other and both return `None`.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("nightly");
    /// let Some(guard) = lock.try_lock().await? else { return Ok(()) };
    /// assert!(lock.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// See [`LockError`]. [`LockError::Unreachable`]: fewer than a majority of the servers answered.
    ///
    /// # Cancel safety
    /// If the future is dropped, the background releases what it may have acquired.
    pub async fn try_lock(&self) -> Result<Option<QuorumGuard>, LockError> {
        self.run(async |asking| self.try_acquire(asking).await).await
    }

    /// The same as a step of a call that has so much time, with the errors of [`lock_timeout`](Self::lock_timeout).
    pub(crate) async fn try_lock_for(&self, longest: Option<Duration>) -> Result<Option<QuorumGuard>, LockError> {
        let Some(longest) = longest else { return self.try_lock().await };
        self.run(async |asking| within(longest, asking, self.try_acquire(asking)).await).await
    }

    /// Acquires the lock, runs `section` in the owner's scope, and releases, as
    /// [`FairLock::with`](crate::FairLock::with). `section` is given the fencing token. Two round trips; three where
    /// others were seen to want it. A panic in the section releases too.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("account:7");
    /// let inner = lock.clone();
    /// let (outer, nested) = lock
    ///     .with(|token| async move {
    ///         // The same owner: this re-enters and does not wait for itself.
    ///         Ok::<_, fairlock::LockError>((token, inner.lock().await?.token()))
    ///     })
    ///     .await??;
    /// assert_eq!(outer, nested);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`WithError::Lock`] if the section did not run. [`WithError::Unlock`], with its output, if it ran but the lock was
    /// lost or the release has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section where it is, and releases.
    pub async fn with<F, R>(&self, section: F) -> Result<R::Output, WithError<R::Output>>
    where
        F: FnOnce(u64) -> R,
        R: Future,
    {
        let owner = owner::current().unwrap_or_else(Owner::new);
        owner
            .scope(async {
                let guard = self.lock().await?;
                let output = section(guard.token()).await;
                match guard.unlock().await {
                    Ok(_) => Ok(output),
                    Err(source) => Err(WithError::Unlock { output, source }),
                }
            })
            .await
    }

    /// Ends the present hold at all servers. Returns whether there was one at any of them. One round trip to all servers;
    /// one that does not answer takes an operation time-out.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.force_unlock().await?);
    /// assert_eq!(guard.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`FairLock::force_unlock`](crate::FairLock::force_unlock), if fewer than a majority of the servers answered:
    /// the hold may go on then. [`RequestError::Unanswered`] if it may have run at one of them.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run at any of them.
    pub async fn force_unlock(&self) -> Result<bool, RequestError> {
        self.forced(join_all(self.locks.iter().map(|lock| lock.force_unlock(None))).await)
    }

    /// Like [`force_unlock`](Self::force_unlock), but at each server only the hold that it has in this status. So who looked
    /// first does not take the lock away from the next holder. Returns whether one of them was still there. One round trip
    /// to all servers; one that does not answer takes an operation time-out.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let earlier = lock.lock().await?;
    /// let shown = lock.status().await;
    /// earlier.unlock().await?;
    /// let guard = lock.lock().await?;
    /// assert!(!lock.force_unlock_shown(&shown).await?);
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`force_unlock`](Self::force_unlock).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, it may have run at any of them.
    pub async fn force_unlock_shown(&self, shown: &QuorumStatus) -> Result<bool, RequestError> {
        let ending = self.locks.iter().zip(&shown.nodes).map(|(lock, node)| async move {
            let holder = node.status.as_ref().ok().and_then(|status| status.holder.as_ref());
            match holder {
                Some(holder) => lock.force_unlock(Some(holder.token)).await,
                None => Ok(false),
            }
        });
        self.forced(join_all(ending).await)
    }

    fn forced(&self, outcomes: Vec<Result<bool, RequestError>>) -> Result<bool, RequestError> {
        let majority = self.quorum.nodes.majority();
        let may_have_run = outcomes.iter().any(|outcome| outcome.as_ref().map_or_else(may_have_run, |_| true));
        let (answers, errors): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        let (confirmed, was_held) = (answers.len(), answers.iter().any(|answer| matches!(answer, Ok(true))));
        match errors.into_iter().find_map(Result::err) {
            // Not the error of one of them, which may say that nothing was sent.
            Some(error) if confirmed < majority && may_have_run => {
                Err(RequestError::Unanswered(Arc::new(TooFewAnswers { confirmed, majority, last: Some(error) })))
            }
            Some(error) if confirmed < majority => Err(error),
            _ => Ok(was_held),
        }
    }

    /// What each server knows: who holds the lock there and who waits. One round trip to all servers; one that does not
    /// answer takes an operation time-out.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let status = lock.status().await;
    /// for node in &status.nodes {
    ///     println!("{}: {:?}", node.address, node.status);
    /// }
    /// assert!(status.holder().is_some());
    /// # drop(guard);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn status(&self) -> QuorumStatus {
        let nodes = &self.quorum.nodes;
        let asking = nodes.all.iter().zip(self.locks.iter()).enumerate().map(|(index, (node, lock))| async move {
            let status = lock.inspect(WAITERS_SHOWN).await.map(LockStatus::new);
            // After the answer: with it, the server may have been connected.
            NodeStatus { address: node.address.clone(), status, same_as: nodes.same_as(index) }
        });
        QuorumStatus { nodes: join_all(asking).await }
    }

    /// Whether it can be had at all, by its name, lease and label.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let lease = self.lease.clone().map_err(LockError::Lease);
        let checked = lease.and_then(|()| self.locks.iter().try_for_each(EngineLock::valid));
        checked.inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    fn asking<'a>(&'a self, told: &'a Told) -> Acquire<'a> {
        let scope = owner::current();
        let turn = scope.map(|owner| self.quorum.owners.turn(&self.name, owner));
        let owner = scope.unwrap_or_else(Owner::new);
        let metrics = &self.metrics;
        let (quorum, name, locks) = (&self.quorum, &self.name, &self.locks);
        Acquire { quorum, name, locks, owner, turn, began: now(), told, metrics }
    }

    /// `None`: it was not to wait.
    async fn run(
        &self,
        call: impl AsyncFnOnce(&Acquire<'_>) -> Result<Option<QuorumGuard>, LockError>,
    ) -> Result<Option<QuorumGuard>, LockError> {
        self.check()?;
        let told = Told::default();
        let asking = self.asking(&told);
        let owner_id = self.quorum.id_of(asking.owner);
        let told_of = Call::begin(asking.who(&owner_id), &self.metrics);
        let calling = pin!(async {
            tokio::select! {
                // In this order: a closed client has no usable server, and the call would wait for one.
                biased;
                ended = self.quorum.ended() => Err(ended),
                outcome = call(&asking) => outcome,
            }
        });
        let outcome = told_of.drive(calling).await;
        match &outcome {
            Ok(Some(guard)) => {
                if told_of.is_told() {
                    guard.show();
                }
                told_of.acquired(guard.token(), || told.is_of_others());
            }
            Ok(None) => told_of.busy(),
            Err(error) => told_of.failed(error),
        }
        outcome
    }

    async fn acquire(&self, asking: &Acquire<'_>) -> Result<QuorumGuard, LockError> {
        let in_use = self.quorum.enter(&self.name);
        let guard = |taken| QuorumGuard::new(self.quorum.clone(), in_use, taken);
        let Some(turn) = asking.turn.clone() else { return asking.wait().await.map(guard) };
        let mut held = turn.hold.lock().await;
        let mut backoff = self.quorum.backoff();
        while let Some(share) = held.upgrade().and_then(Share::of) {
            if let Some(taken) = asking.reenter(share).await? {
                return Ok(guard(taken));
            }
            backoff.pause().await;
        }
        let taken = asking.wait().await?;
        *held = Arc::downgrade(taken.0.hold());
        Ok(guard(taken))
    }

    async fn try_acquire(&self, asking: &Acquire<'_>) -> Result<Option<QuorumGuard>, LockError> {
        let in_use = self.quorum.enter(&self.name);
        let guard = |taken| QuorumGuard::new(self.quorum.clone(), in_use, taken);
        let Some(turn) = asking.turn.clone() else { return Ok(asking.take().await?.map(guard)) };
        // Another branch of this scope acquires it now, so it is not free.
        let Ok(mut held) = turn.hold.try_lock() else { return Ok(None) };
        if let Some(share) = held.upgrade().and_then(Share::of) {
            return asking.reenter(share).await?.map(guard).map(Some).ok_or_else(|| asking.unreachable());
        }
        let Some(taken) = asking.take().await? else { return Ok(None) };
        *held = Arc::downgrade(taken.0.hold());
        Ok(Some(guard(taken)))
    }
}

/// Whether a request with this error has, or may have, changed something.
fn may_have_run(error: &RequestError) -> bool {
    match error {
        RequestError::Unanswered(_) => true,
        RequestError::Refused(refusal) => refusal.in_script,
        _ => false,
    }
}

/// Runs the call for so long at most.
async fn within<T>(
    limit: Duration,
    asking: &Acquire<'_>,
    call: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    // Kept until it is known how far it was.
    let mut call = pin!(call);
    tokio::select! {
        // The time first, as for one server: what its caller has given up is not sent.
        biased;
        () = sleep(limit) => Err(asking.out_of_time()),
        outcome = &mut call => outcome,
    }
}
