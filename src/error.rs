//! What can go wrong, one enum for each operation.
//!
//! The variants keep three things apart, since a caller does a different thing for each: *somebody
//! else holds it*, *you lost it*, and *we do not know*. A failed connection is never reported as
//! "not acquired".

use std::sync::Arc;
use std::time::Instant;

use crate::store::redis::Fault;
use crate::store::{Source, StoreError};

pub use crate::options::OptionsError;
pub use crate::store::Refusal;

/// A shared cause: several waiting tasks may fail for the same one.
pub type Cause = Source;

/// Why there is no client.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Two settings do not fit together.
    #[error("these settings do not fit: {0}")]
    Options(#[from] OptionsError),
    /// It was called outside of a tokio runtime.
    #[error("there is no tokio runtime here: call it in one, with its time and io drivers enabled")]
    NoRuntime,
    /// The text is not a URL of Redis.
    #[error("not a Redis URL, such as redis://user:password@host:6379/0 or unix:///run/redis.sock: {0}")]
    Url(String),
    /// `rediss://` without the feature `tls`.
    #[error("rediss:// needs fairlock's feature `tls`: cargo add fairlock --features tls")]
    TlsNotBuilt,
    /// Nobody answers at that address.
    #[error("cannot reach the server; is it running at this address? ({0})")]
    Unreachable(#[source] Cause),
    /// User or password are wrong, or missing.
    #[error("the server does not accept the user or password of the URL: {0}")]
    Credentials(Refusal),
    /// The server is too old.
    #[error("the server is Redis {found}: upgrade it to Redis 7.0 or Valkey 7.2, or later")]
    TooOld {
        /// The version it names.
        found: String,
    },
    /// The server is a replica.
    #[error("the server is a read-only replica: connect to its primary")]
    ReadOnly,
    /// The server said no to something else.
    #[error("the server refused: {0}")]
    Refused(Refusal),
}

impl From<Fault> for ConnectError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Url(why) => Self::Url(why),
            #[cfg(not(feature = "tls"))]
            Fault::NoTls => Self::TlsNotBuilt,
            Fault::Credentials(refusal) => Self::Credentials(refusal),
            Fault::TooOld { found } => Self::TooOld { found },
            Fault::ReadOnly => Self::ReadOnly,
            Fault::Refused(refusal) => Self::Refused(refusal),
            other => Self::Unreachable(Arc::new(other)),
        }
    }
}

/// A name that no lock can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("a lock needs a name of at least one byte")]
    Empty,
    /// The name is longer than 1024 bytes.
    #[error("the name has {0} bytes; 1024 are allowed: use a hash of it")]
    TooLong(usize),
}

/// Why [`lock`](crate::FairLock::lock) and [`lock_timeout`](crate::FairLock::lock_timeout) did not
/// give a guard. Nothing is held and no place in the queue is kept: the client sees to that in the
/// background, also when the server cannot be reached now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Others held it, or were first, for the whole time.
    #[error("not acquired in time: others hold the lock or were first")]
    Timeout,
    /// This would have been one more hold on a lock that its owner has lost meanwhile.
    #[error("the hold that this call would re-enter is lost: stop the outer work first")]
    Lost,
    /// As many as `max_waiters` wait already.
    #[error("{waiters} are waiting, which is all that max_waiters allows")]
    QueueFull {
        /// How many wait.
        waiters: u64,
    },
    /// The name cannot be a lock's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease of this lock does not fit the client's settings.
    #[error("the lease does not fit: {0}")]
    Lease(OptionsError),
    /// The server gave no answer in time.
    #[error(
        "no answer from the server in time; the request may have run, and is taken back as soon as the server answers"
    )]
    Unreachable(#[source] Cause),
    /// The server said no, and changed nothing.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// Why [`try_lock`](crate::FairLock::try_lock) has no answer. That somebody else holds the lock is
/// not among these: it is `Ok(None)`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TryLockError {
    /// This would have been one more hold on a lock that its owner has lost meanwhile.
    #[error("the hold that this call would re-enter is lost: stop the outer work first")]
    Lost,
    /// The name cannot be a lock's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease of this lock does not fit the client's settings.
    #[error("the lease does not fit: {0}")]
    Lease(OptionsError),
    /// The server gave no answer in time.
    #[error(
        "no answer from the server in time; the request may have run, and is taken back as soon as the server answers"
    )]
    Unreachable(#[source] Cause),
    /// The server said no, and changed nothing.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended before it could be renewed: the server was out of reach, this process was
    /// paused, or the lease was a fixed one.
    #[error("its lease ended")]
    Expired,
    /// The server says that this owner does not hold it any more: it expired there, or its data
    /// is gone.
    #[error("the server does not know of it any more")]
    Gone,
    /// Somebody called [`force_unlock`](crate::FairLock::force_unlock).
    #[error("it was unlocked by force")]
    Forced,
    /// The client was closed while the guard was alive.
    #[error("the client was closed")]
    Closed,
}

/// What [`unlock`](crate::LockGuard::unlock) could not do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The lock was lost before: what was done since [`lost`](crate::Held::lost) resolved was done
    /// without it.
    #[error("the lock was lost before it was unlocked: {0}")]
    Lost(Loss),
    /// The server did not answer. The client goes on trying; at `until` the lease is over anyway.
    #[error("no answer to the release: the lock is free now or soon, at the latest when its lease ends")]
    Unknown {
        /// When the lock is surely not held by this guard any more.
        until: Instant,
    },
}

/// Why [`with`](crate::FairLock::with) did not end well.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WithError<T> {
    /// The lock was not acquired; the section did not run.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The section ran to its end, but the lock was not known to be held until then.
    #[error("the section ran, but: {source}")]
    Unlock {
        /// What the section returned.
        output: T,
        /// What is wrong with the lock.
        #[source]
        source: UnlockError,
    },
}

/// Why [`force_unlock`](crate::FairLock::force_unlock) has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ForceUnlockError {
    /// The name cannot be a lock's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It was sent, but no answer came. It is not repeated, since a second run could end the next
    /// holder's lock: look at [`status`](crate::FairLock::status), then decide.
    #[error("no answer: it may have run; look at status() before you repeat it")]
    Unknown(#[source] Cause),
    /// It was not sent: there is no connection.
    #[error("not sent: there is no connection to the server")]
    Unreachable(#[source] Cause),
    /// The server said no, and changed nothing.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// Why [`status`](crate::FairLock::status) and [`is_locked`](crate::FairLock::is_locked) have no
/// answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The name cannot be a lock's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The server gave no answer in time.
    #[error("no answer from the server in time")]
    Unreachable(#[source] Cause),
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// What [`close`](crate::LockClient::close) could not finish in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{unfinished} releases or leaves had no answer; their leases and places end by themselves")]
pub struct CloseError {
    /// How many.
    pub unfinished: usize,
}

impl From<LockError> for TryLockError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Lost => Self::Lost,
            LockError::Name(error) => Self::Name(error),
            LockError::Lease(error) => Self::Lease(error),
            LockError::Unreachable(cause) => Self::Unreachable(cause),
            LockError::Refused(refusal) => Self::Refused(refusal),
            LockError::Closed => Self::Closed,
            // Neither waits nor queues, so these do not come; if they do, they keep their words.
            waited @ (LockError::Timeout | LockError::QueueFull { .. }) => Self::Unreachable(Arc::new(waited)),
        }
    }
}

impl From<StoreError> for StatusError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotSent(cause) | StoreError::Unknown(cause) => Self::Unreachable(cause),
            StoreError::Refused(refusal) => Self::Refused(refusal),
            StoreError::Closed => Self::Closed,
        }
    }
}

impl From<StoreError> for ForceUnlockError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotSent(cause) => Self::Unreachable(cause),
            StoreError::Unknown(cause) => Self::Unknown(cause),
            StoreError::Refused(refusal) => Self::Refused(refusal),
            StoreError::Closed => Self::Closed,
        }
    }
}
