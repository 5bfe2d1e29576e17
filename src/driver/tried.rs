//! The outcome of a call that does not wait.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlock_proto::held_by as machine;

/// The outcome of a call that does not wait, such as `try_lock`.
///
/// ```
/// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
/// use fairlock::Tried;
///
/// match client.lock("nightly").try_lock().await? {
///     Tried::Acquired(guard) => guard.unlock().await.map(drop)?,
///     Tried::Busy(busy) => println!("not tonight: {busy}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped gives up what it holds: keep it for as long as the work takes"]
pub enum Tried<G> {
    /// It was free. The guard holds it.
    Acquired(G),
    /// Others have it or are first, or the server is [frozen](crate::LockClientBuilder::strict_restart) after a restart.
    /// The call has taken nothing, and keeps no place in the queue.
    Busy(Busy),
}

impl<G> Tried<G> {
    /// Returns the guard, or [`Busy`] as an error: `lock.try_lock().await?.into_result()?`.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// # async fn work(client: fairlock::LockClient) -> Result<(), fairlock::Error> {
    /// let guard = client.lock("nightly").try_lock().await?.into_result()?;
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// # work(client).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`Busy`] if others have it or are first.
    pub fn into_result(self) -> Result<G, Busy> {
        match self {
            Self::Acquired(guard) => Ok(guard),
            Self::Busy(busy) => Err(busy),
        }
    }

    /// Whether others have it or are first.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("nightly");
    /// let guard = lock.lock().await?;
    /// assert!(lock.try_lock().await?.is_busy());
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    /// Applies `change` to the guard. A `change` that does not return the guard drops it, which ends the hold.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let tried = client.lock("nightly").try_lock().await?;
    /// let (token, guard) = tried.map(|guard| (guard.token(), guard)).into_result()?;
    /// # assert!(token > 0);
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn map<T>(self, change: impl FnOnce(G) -> T) -> Tried<T> {
        match self {
            Self::Acquired(guard) => Tried::Acquired(change(guard)),
            Self::Busy(busy) => Tried::Busy(busy),
        }
    }
}

/// Others have it or are first.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("others hold it or are ahead in the queue{}", at_last(self.holder.as_deref()))]
#[non_exhaustive]
pub struct Busy {
    /// The holder of the lock, if the answer names it. The answer does not name it while the server passes the lock on,
    /// if another call of the same owner waits, or for a semaphore or a read-write lock, which may have many holders.
    pub holder: Option<Box<HeldBy>>,
}

impl From<Option<Box<HeldBy>>> for Busy {
    fn from(holder: Option<Box<HeldBy>>) -> Self {
        Self { holder }
    }
}

impl Busy {
    pub(crate) fn of(held_by: Option<Box<machine::HeldBy>>) -> Self {
        Self { holder: held_by.map(|held_by| Box::new(HeldBy::of(*held_by))) }
    }
}

/// The holder of a lock, as the server named it to another owner. Since that answer, which may be a
/// [`poll_interval`](crate::LockClientBuilder::poll_interval) old, others may have got the lock.
/// [`status`](crate::FairLock::status) returns more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// The label of its client, or of its call ([`FairLock::labelled`](crate::FairLock::labelled)).
    pub label: String,
    /// Its fencing token.
    pub token: u64,
    /// When its hold began, by the server's clock.
    pub since: SystemTime,
    /// How much of its lease was left at the time of the answer. A renewal may have extended it since.
    pub lease_left: Duration,
}

impl HeldBy {
    fn of(held_by: machine::HeldBy) -> Self {
        let machine::HeldBy { label, token, since, lease_left } = held_by;
        let since = granted_at(since);
        Self { label: label.into(), token, since, lease_left: lease_left.unwrap_or_default() }
    }
}

/// When the server granted a hold, from the time since 1970 in its key. A damaged key may contain any number.
pub fn granted_at(since: Duration) -> SystemTime {
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, token, lease_left, .. } = self;
        write!(f, "{label:?} has it, with token {token} and {} ms of its lease left", lease_left.as_millis())
    }
}

/// The end of an error's text: the holder, by the last answer.
pub(crate) fn at_last(holder: Option<&HeldBy>) -> String {
    holder.map(|holder| format!("; by the last answer {holder}")).unwrap_or_default()
}
