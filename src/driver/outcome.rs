//! How locking, holding and unlocking can fail.

use std::time::Instant;

use super::tried::{Busy, HeldBy, at_last};
use crate::store::error::{Cause, NameError, Refusal, RequestError, SeveralServers};
use crate::store::options::OptionsError;

/// Why [`lock`](crate::FairLock::lock), [`lock_timeout`](crate::FairLock::lock_timeout),
/// [`try_lock`](crate::FairLock::try_lock), or a call of a [`FairSemaphore`](crate::FairSemaphore) or a
/// [`FairRwLock`](crate::FairRwLock), returned no guard.
///
/// The call holds nothing and keeps no place in the queue. If the server may have acted on a request, the client takes
/// that back in the background, even if it cannot reach the server now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The server's last answer about the name showed that others held the lock or were first, and no request of this
    /// owner has failed since. `try_lock` returns [`Tried::Busy`](crate::Tried::Busy) instead.
    #[error("not acquired in time: others held the lock or were ahead in the queue{}", at_last(holder.as_deref()))]
    Timeout {
        /// The holder, if that answer named it. Answers about semaphores and read-write locks do not, nor do
        /// answers to a wait at several servers.
        holder: Option<Box<HeldBy>>,
    },
    /// The owner has lost the hold that this call would have re-entered.
    #[error("the hold that this call would re-enter is lost: stop the outer work first")]
    Lost,
    /// This task holds the lock itself, outside of a scope, and the lock [refuses such
    /// waits](crate::FairLock::refusing_self_wait). The client sent nothing.
    #[error("this task would wait for a lock that it holds itself: run the work in owner::scope to re-enter it")]
    SelfWait,
    /// `max_waiters` callers wait already.
    #[error("the queue is full: {waiters} are waiting, as many as max_waiters allows")]
    #[non_exhaustive]
    QueueFull {
        /// How many callers wait.
        waiters: u64,
    },
    /// No lock can have this name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease of this lock does not fit the client's options.
    #[error("invalid lease: {0}")]
    Lease(OptionsError),
    /// The label of [`labelled`](crate::FairLock::labelled) is too long. The client sent nothing.
    #[error("invalid label: {0}")]
    Label(OptionsError),
    /// There was no answer in time, so the client does not know whether others hold the lock. The cause is the last
    /// error: why there is no connection, or a refusal that may pass. With
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart) it can be how long the server still grants nothing.
    #[error("no answer in time: {0}; if the server still grants the request, the client releases it")]
    Unreachable(Cause),
    /// The server refused the request for a permanent reason.
    #[error("the server refused: {0}{after}", after = after_acquire(.0))]
    Refused(Refusal),
    /// The call asked for no permits, for more than this client's own number (and then sent nothing), or for more than
    /// [`set_permits`](crate::FairSemaphore::set_permits) has set. It changed nothing.
    #[error("cannot acquire {wanted} of {permits} permits: ask for at least one, and for no more than there are")]
    #[non_exhaustive]
    Permits {
        /// How many permits the call asked for.
        wanted: u32,
        /// How many permits there are: this client's own number, or the number set for all clients.
        permits: u32,
    },
    /// The owner asked to write while it reads, so the write would wait for its own read. The client sent nothing.
    #[error("this owner has a read guard of this lock, and a write would wait for it: release the read first")]
    WouldDeadlock,
    /// Semaphores and read-write locks need one server, and this client has several masters. It sent nothing.
    #[error("semaphores and read-write locks need one server: several masters do not support them")]
    SeveralServers,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The client's runtime has ended, and the connection with it. If the call acquired anything, that ends with its
    /// lease. See [`LockClientBuilder::runtime`](crate::LockClientBuilder::runtime).
    #[error("the runtime of this client has ended: make the client in a runtime that lives longer")]
    RuntimeGone,
}

/// A call that waited reports `Busy` as a time-out.
impl From<Busy> for LockError {
    fn from(Busy { holder }: Busy) -> Self {
        Self::Timeout { holder }
    }
}

impl From<SeveralServers> for LockError {
    fn from(SeveralServers: SeveralServers) -> Self {
        Self::SeveralServers
    }
}

impl LockError {
    /// Whether others hold the lock or wait for it, and nothing is wrong. `try_lock` reports such cases as
    /// [`Tried::Busy`](crate::Tried::Busy).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// # let guard = client.lock("nightly").lock().await?;
    /// match client.lock("nightly").lock_timeout(std::time::Duration::from_secs(5)).await {
    ///     Ok(guard) => drop(guard),
    ///     Err(error) if error.is_busy() => println!("another machine does it"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::QueueFull { .. })
    }

    /// Whether the same call of the same client may succeed later without anyone's help: others have the lock now, or
    /// the client could not reach a server.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let guard = loop {
    ///     match client.lock("nightly").lock_timeout(Duration::from_secs(5)).await {
    ///         Err(error) if error.is_retryable() => eprintln!("once more: {error}"),
    ///         outcome => break outcome?,
    ///     }
    /// };
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_busy() || matches!(self, Self::Unreachable(_))
    }
}

/// How an owner lost a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended before the client could renew it: the server was out of reach, this process was paused, or the
    /// lease was a fixed one.
    #[error("its lease ended")]
    Expired,
    /// The server answered that this owner does not hold the lock: the lease ended there, or its data is gone.
    #[error("the server does not know the hold")]
    Gone,
    /// Someone called [`force_unlock`](crate::FairLock::force_unlock) for this lock.
    #[error("it was unlocked by force")]
    Forced,
    /// The client was closed while the guard was alive.
    #[error("the client was closed")]
    Closed,
}

/// How a hold ended; see [`Held::ended`](crate::Held::ended).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// It ended by a release: the last guard was unlocked or dropped before a loss. Normally the server has confirmed
    /// the release.
    Freed,
    /// A [handle](crate::HoldHandle) has the hold now, or the detach had no answer: see
    /// [`LockGuard::detach`](crate::LockGuard::detach). Also after an `unlock_at_least` that keeps the name.
    Detached,
    /// The owner lost it while a guard was alive.
    Lost(Loss),
}

impl Ended {
    /// The cause of the loss, or `None` if there was none.
    ///
    /// ```
    /// assert_eq!(fairlock::Ended::Freed.loss(), None);
    /// ```
    #[must_use]
    pub fn loss(self) -> Option<Loss> {
        match self {
            Self::Lost(loss) => Some(loss),
            Self::Freed | Self::Detached => None,
        }
    }
}

/// Why [`unlock`](crate::LockGuard::unlock) cannot confirm that the guard held the lock until now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The owner lost the lock before. Work done since [`lost`](crate::LockGuard::lost) resolved ran without it.
    #[error("the lock was lost before it was unlocked: {0}")]
    Lost(Loss),
    /// The server refuses the release. It still has the hold, unless the lease has ended or the refusal came from
    /// [inside a script](Refusal::in_script): then the lock may also be free, or another owner's already. The client
    /// keeps trying; at `until` the lease has ended anyway.
    #[error("the server refused the release, {after}: {refusal}", after = after_release(refusal))]
    #[non_exhaustive]
    Refused {
        /// The server's error.
        refusal: Refusal,
        /// From then on this guard certainly does not hold the lock: a lease, or 7 s (`waiter_ttl`) if that is longer,
        /// and two operation time-outs from now, since a renewal may still be under way.
        until: Instant,
    },
    /// The server did not answer. The client keeps trying; at `until` the lease has ended anyway.
    #[error("no answer to the release, and the client goes on trying until the lease ends: {cause}")]
    #[non_exhaustive]
    Unknown {
        /// From then on this guard certainly does not hold the lock: a lease, or 7 s (`waiter_ttl`) if that is longer,
        /// and two operation time-outs from now, since a renewal may still be under way.
        until: Instant,
        /// Why there is no answer.
        cause: Cause,
    },
    /// The client's runtime has ended, so the client cannot send the release. See
    /// [`LockClientBuilder::runtime`](crate::LockClientBuilder::runtime).
    #[error("the runtime of this client has ended: the lock is free when its lease ends")]
    #[non_exhaustive]
    RuntimeGone {
        /// From then on this guard certainly does not hold the lock: a lease, or 7 s (`waiter_ttl`) if that is longer,
        /// and two operation time-outs from now, since a renewal may still be under way.
        until: Instant,
    },
}

/// Why a guard or a permit could not [extend](crate::LockGuard::extend), [shrink](crate::Permit::shrink_to),
/// [detach](crate::LockGuard::detach) or [keep](crate::LockGuard::unlock_at_least) its hold. The hold is as it was,
/// unless the call takes the guard and gave it up.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The owner lost the hold before.
    #[error("the hold was already lost: {0}")]
    Lost(Loss),
    /// The lease does not fit the client's options, or `max_hold`. The client sent nothing.
    #[error("invalid lease: {0}")]
    Lease(OptionsError),
    /// Only `detach` and `unlock_at_least`: this many guards of its owner share the hold. Use the last one. The client
    /// sent no detach; `unlock_at_least` has ended the guard.
    #[error("{0} nested guards share this hold: use the last one")]
    Nested(u32),
    /// Only `shrink_to`: the call asked for none, or for more than there are. The client sent nothing.
    #[error("{permits} permits cannot shrink to {wanted}: release them, or acquire more by another call")]
    #[non_exhaustive]
    Permits {
        /// How many permits should remain.
        wanted: u32,
        /// How many permits there are.
        permits: u32,
    },
    /// Only `detach` and `unlock_at_least`: the client has [several servers](crate::masters). It sent nothing.
    #[error("a hold on several servers cannot be detached or kept")]
    SeveralServers,
    /// The request failed. After [`Unanswered`](RequestError::Unanswered) the server may have set the new lease all the
    /// same.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// For a call that takes the guard.
impl From<UnlockError> for HoldError {
    fn from(error: UnlockError) -> Self {
        match error {
            UnlockError::Lost(loss) => Self::Lost(loss),
            UnlockError::Refused { refusal, .. } => Self::Request(RequestError::Refused(refusal)),
            UnlockError::Unknown { cause, .. } => Self::Request(RequestError::Unanswered(cause)),
            UnlockError::RuntimeGone { .. } => Self::Request(RequestError::RuntimeGone),
        }
    }
}

/// What the client does after a refused acquire: if part of it has run, it takes that back.
fn after_acquire(refusal: &Refusal) -> &'static str {
    if refusal.in_script { ": what has run is taken back in the background" } else { "" }
}

/// What the client does after a refused release, of which it takes nothing back.
fn after_release(refusal: &Refusal) -> &'static str {
    if refusal.in_script {
        "which may have run in part: the lock may still be held, or be free or passed on already, and the client \
         goes on trying until the lease ends"
    } else {
        "and the client goes on trying until the lease ends"
    }
}

/// The outcome of an unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unlocked {
    /// The lock is free, or the next waiter has it already.
    Freed,
    /// The owner still holds the lock this many times.
    StillHeld(u32),
}
