//! Why a hold has no handle, or no new lease.

use fairlock_proto::handle::Handle;

use super::outcome::Loss;
use crate::store::error::{Cause, RequestError};
use crate::store::options::OptionsError;

/// Why [`LockGuard::extend`](crate::LockGuard::extend) did not set a new lease. The guard has the lease that it had.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lease does not fit the client's options, or `max_hold`.
    #[error("the lease does not fit: {0}")]
    Lease(OptionsError),
    /// The lock was lost before.
    #[error("the lock was lost before it was extended: {0}")]
    Lost(Loss),
    /// The request failed. After [`Unanswered`](RequestError::Unanswered) the server may have set the lease all the same.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why a hold was not detached: nothing has happened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DetachRefusal {
    /// This many guards of its owner share it. Detach the last one.
    #[error("{0} nested guards share this hold: detach the last one")]
    Nested(u32),
    /// The client has [several servers](crate::masters).
    #[error("what is held on several servers cannot be detached")]
    SeveralServers,
    /// The lease does not fit the client's options.
    #[error("the lease does not fit: {0}")]
    Lease(OptionsError),
    /// The lock was lost before.
    #[error("the lock was lost before it was detached: {0}")]
    Lost(Loss),
    /// Nothing was sent in time, or the server refused.
    #[error(transparent)]
    Request(RequestError),
}

/// How a detach ended.
pub enum DetachOutcome<G> {
    Detached(Handle),
    /// The guard is as before.
    Refused(G, DetachRefusal),
    /// The handle has the hold, or it is free.
    Unanswered(Handle, Cause),
}

impl<G> DetachOutcome<G> {
    /// The same with another kind of guard.
    pub fn of<T>(self, guard: impl FnOnce(G) -> T) -> DetachOutcome<T> {
        match self {
            Self::Detached(handle) => DetachOutcome::Detached(handle),
            Self::Refused(refused, why) => DetachOutcome::Refused(guard(refused), why),
            Self::Unanswered(handle, cause) => DetachOutcome::Unanswered(handle, cause),
        }
    }
}
