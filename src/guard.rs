//! The guard of a hold, and views of it.

use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::{AnyGuard, AnyHold, each};
use crate::error::{Ended, HoldError, Loss, UnlockError};
use crate::owner::Owner;

pub use crate::driver::outcome::Unlocked;

/// A hold on a lock. It ends with [`unlock`](Self::unlock), or when you drop the guard.
///
/// Dropping a guard hands the release to the client's background tasks. It does not block, and it works outside of a
/// runtime and in a panic, but it does not report the outcome. The guard carries its owner with it: it may leave its
/// scope, its task and its thread.
///
/// While the guard is alive, a watchdog renews the lease. A guard can still *lose* its hold: the server was out of
/// reach for a whole lease, the process paused, or an operator forced the lock. Work that goes on then may run next to
/// the next holder's. [`lost`](Self::lost) reports a loss at once. If the resource checks the [`token`](Held::token), a
/// loss does no harm.
///
/// The state of the hold is in [`Held`], to which a guard dereferences: `guard.token()`, `guard.is_valid()`. A guard
/// cannot be cloned, since two guards for one hold would release it twice. To let other code look at the hold, give it
/// a view from [`held`](Held::held).
///
/// ```compile_fail,E0599
/// # async fn example(client: fairlock::LockClient) -> Result<(), fairlock::LockError> {
/// let guard = client.lock("orders:42").lock().await?;
/// let second = guard.clone();
/// # Ok(()) }
/// ```
///
/// # At the end of the process
/// The release of a dropped guard needs the runtime. If `main` returns right after the drop, by its end, by `?` or by a
/// panic, the runtime may shut down first. The lock is then free when its lease ends, as after `std::process::exit`, an
/// abort or a kill, which run no destructors. To be sure, call [`unlock`](Self::unlock) or
/// [`LockClient::close`](crate::LockClient::close), or run the work in [`LockClient::run`](crate::LockClient::run).
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").lock().await?;
/// tokio::select! {
///     () = ship_the_order(guard.token()) => { guard.unlock().await?; }
///     loss = guard.lost() => eprintln!("stopped: {loss}"),
/// }
/// # Ok(()) }
/// # async fn ship_the_order(token: u64) {}
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    held: Held,
    guard: AnyGuard,
}

/// A view of a hold, for code that does not end it. A view does not keep the lock. [`held`](Self::held) makes another
/// one, cheaply.
///
/// ```
/// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
/// let guard = client.lock("orders:42").lock().await?;
/// let held = guard.held();
/// guard.unlock().await?;
/// assert!(!held.is_valid());
/// # Ok(()) }) }
/// ```
// Not `Clone`: `guard.clone()` would be a view of the hold, not a second guard.
pub struct Held {
    hold: AnyHold,
}

impl LockGuard {
    pub(crate) fn new(guard: AnyGuard) -> Self {
        Self { held: Held::new(guard.hold()), guard }
    }

    /// Releases this hold and waits for the server's answer. One round trip.
    ///
    /// Returns [`Unlocked::Freed`] if the lock is free or the next waiter has it already, and [`Unlocked::StillHeld`]
    /// if the owner has more guards.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::{Unlocked, owner};
    ///
    /// let lock = client.lock("orders:42");
    /// owner::scope(async {
    ///     let outer = lock.lock().await?;
    ///     let inner = lock.lock().await?;
    ///     assert_eq!(inner.unlock().await?, Unlocked::StillHeld(1));
    ///     assert_eq!(outer.unlock().await?, Unlocked::Freed);
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// })
    /// .await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`UnlockError::Lost`] if the client lost the lock before. A loss while nothing polls this future may count as a
    /// release or as a loss. [`UnlockError::Unknown`] if the server did not answer within the operation time-out, and
    /// [`UnlockError::Refused`] if it refused: the client keeps trying if that can help. [`UnlockError::RuntimeGone`]
    /// if the client's runtime has ended.
    ///
    /// # Cancel safety
    /// The release is certain once you call this: if you drop the future, the client finishes it in the background.
    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        self.guard.unlock().await
    }

    /// Unlocks, but keeps the name taken until the hold has lasted that long. That needs neither this process nor a
    /// renewal. Use it for short jobs on machines whose clocks differ: a late machine finds the name taken. One round
    /// trip.
    ///
    /// The time counts from when this process learned that it has the lock. Waiters get the lock up to a
    /// [`poll_interval`](crate::LockClientBuilder::poll_interval) later. `status` shows it as held, and `force_unlock`
    /// frees it. `at_least` may be as short as you like: if that time has passed, this is [`unlock`](Self::unlock).
    /// [`max_hold`](crate::LockClientBuilder::max_hold) does not limit it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let nightly = client.lock("nightly");
    /// let guard = nightly.lock().await?;
    /// guard.unlock_at_least(Duration::from_secs(30)).await?;
    /// assert!(nightly.try_lock().await?.is_busy());
    /// tokio::time::sleep(Duration::from_secs(31)).await;
    /// assert!(!nightly.try_lock().await?.is_busy());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HoldError`]:
    /// - [`Lost`](HoldError::Lost): others may have had the lock in the meantime. If an answer got lost, it may also mean
    ///   that the time has passed.
    /// - [`Lease`](HoldError::Lease): the time is longer than [`token_ttl`](crate::LockClientBuilder::token_ttl), 365
    ///   days, or the longest lease of [`strict_restart`](crate::LockClientBuilder::strict_restart).
    /// - [`Nested`](HoldError::Nested): other guards share the hold, and keep it. This guard has ended.
    /// - [`SeveralServers`](HoldError::SeveralServers): the client has several servers.
    /// - [`Request`](HoldError::Request): the server refused, or did not answer within the operation time-out.
    ///
    /// After any other error the lock is free earlier, or when its lease ends.
    ///
    /// # Cancel safety
    /// If you drop the future before it is done, the client releases the lock at once, in the background.
    pub async fn unlock_at_least(self, at_least: Duration) -> Result<(), HoldError> {
        self.guard.unlock_at_least(at_least).await
    }

    /// Resolves when the client loses the hold, with the cause: at its local deadline without any network, and at once
    /// after a `force_unlock`. No round trip.
    ///
    /// While this guard is alive, its hold cannot end in another way. In a task that outlives the guard, use
    /// [`Held::ended`].
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?;
    /// assert_eq!(guard.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.lost_in_hand().await
    }

    /// The servers of this guard whose lease has not expired, as indices from 0 into the list that
    /// [`connect`](crate::LockClient::connect) got. With one server this is `[0]` until the client loses the hold. No
    /// round trip.
    ///
    /// A hold stays on the servers that it began on: a lost server does not come back into it. A nested guard does
    /// without servers that the client cannot use when it takes the guard.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// let client = fairlock::LockClient::builder().without_strict_restart().embedded(&servers)?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.servers(), [0, 1, 2]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn servers(&self) -> Vec<usize> {
        self.guard.servers()
    }

    pub(crate) fn any(&self) -> &AnyGuard {
        &self.guard
    }

    pub(crate) fn into_any(self) -> AnyGuard {
        self.guard
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Held {
    pub(crate) fn new(hold: AnyHold) -> Self {
        Self { hold }
    }

    /// For a guard that is alive: its hold can end only by a loss.
    pub(crate) async fn lost_in_hand(&self) -> Loss {
        match self.ended().await {
            Ended::Lost(loss) => loss,
            Ended::Freed | Ended::Detached => std::future::pending().await,
        }
    }

    /// Returns a view of the hold for other code. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let held = guard.held();
    /// let worker = tokio::spawn(async move { held.is_valid() });
    /// assert!(worker.await?);
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn held(&self) -> Self {
        Self { hold: self.hold.clone() }
    }

    /// The fencing token of this hold. It is greater than the token of every earlier hold of this lock, and the same
    /// for all nested guards. No round trip.
    ///
    /// A resource that remembers the greatest token and refuses smaller ones is safe from a holder that has lost the
    /// lock and does not know it yet. Nothing else makes it safe. Claim the resource with the token before you read:
    /// see [the guide](crate::guide#fencing). The token is below 2^53, so it fits an `i64` and a JSON number.
    ///
    /// The token of a [`Permit`](crate::Permit) or of a reader is only an identity: others hold the name at the same
    /// time, with smaller and greater tokens. See [`FairSemaphore`](crate::FairSemaphore#tokens) and
    /// [`FairRwLock`](crate::FairRwLock#tokens).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let first = lock.lock().await?;
    /// let token = first.token();
    /// first.unlock().await?;
    /// assert!(lock.lock().await?.token() > token);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        each!(AnyHold, &self.hold, hold => hold.token)
    }

    /// Whether the hold is valid at this instant, by the local clock less the drift. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert!(guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    /// How long the hold stays valid if no further renewal succeeds; zero after a loss. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert!(guard.valid_for() > Duration::from_secs(20));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        each!(AnyHold, &self.hold, hold => hold.valid_for())
    }

    /// Resolves when the hold has ended, and returns how. No round trip.
    ///
    /// [`Ended::Freed`] when the server, or a majority of several, has confirmed the release of the last guard. If the
    /// confirmation never comes, this resolves when the client stops asking: the hold was good when its guard released
    /// it. [`Ended::Lost`] at the local deadline without any network, and at once after a `force_unlock`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let held = guard.held();
    /// let monitor = tokio::spawn(async move {
    ///     if let Some(loss) = held.ended().await.loss() {
    ///         eprintln!("stop the work: {loss}");
    ///     }
    /// });
    /// guard.unlock().await?;
    /// monitor.await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn ended(&self) -> Ended {
        each!(AnyHold, &self.hold, hold => hold.until_ended().await)
    }

    /// A cancellation token, for code that takes one. The client cancels it when it loses the hold. No round trip.
    ///
    /// The client also cancels it at the release: later work is not under the lock either, and nothing waits for the
    /// token forever. [`ended`](Self::ended) distinguishes the two.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let token = guard.held().ended_token();
    /// let work = token.run_until_cancelled(async { "done" }).await;
    /// assert_eq!(work, Some("done"));
    /// guard.unlock().await?;
    /// token.cancelled().await; // a moment after the unlock
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn ended_token(&self) -> CancellationToken {
        // A child: a caller that cancels it must not end the wait of all others.
        each!(AnyHold, &self.hold, hold => hold.over_token()).child_token()
    }

    /// How many guards share this hold: 1, and one more for each nested guard. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.holds(), 1);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn holds(&self) -> u32 {
        each!(AnyHold, &self.hold, hold => hold.live())
    }

    /// The owner of the hold. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::Owner;
    ///
    /// let me = Owner::new();
    /// let guard = me.scope(async { client.lock("orders:42").lock().await }).await?;
    /// assert_eq!(guard.owner(), me);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        each!(AnyHold, &self.hold, hold => hold.entry.owner)
    }

    /// The ID of that owner, which [`status`](crate::FairLock::status) shows. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// assert_eq!(lock.status().await?.holder.map(|holder| holder.owner).as_deref(), Some(guard.owner_id()));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn owner_id(&self) -> &str {
        each!(AnyHold, &self.hold, hold => &hold.entry.owner_id)
    }

    /// The name of the lock. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.lock("orders:42").lock().await?.name(), "orders:42");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        each!(AnyHold, &self.hold, hold => &hold.entry.keys.name)
    }
}

// Like `LockClient`, which has the reason.
impl UnwindSafe for LockGuard {}
impl RefUnwindSafe for LockGuard {}
impl UnwindSafe for Held {}
impl RefUnwindSafe for Held {}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(&self.held, f.debug_struct("LockGuard"))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(self, f.debug_struct("Held"))
    }
}

fn describe(held: &Held, mut debug: fmt::DebugStruct<'_, '_>) -> fmt::Result {
    debug
        .field("name", &held.name())
        .field("owner", &held.owner())
        .field("token", &held.token())
        .field("valid_for", &held.valid_for())
        .finish()
}
