//! What a handle says, and why a hold has none, or no new lease.

use std::time::Duration;

use fairlock_proto::keys::{Kind, LONGEST_NAME};

use super::error::Loss;
use crate::store::error::RequestError;
use crate::store::options::OptionsError;

/// What a handle says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detached {
    pub kind: Kind,
    pub name: String,
    /// Made for this handle: `<client id>-<seq>:0`.
    pub owner: String,
    pub token: u64,
    pub lease: Duration,
    /// Server time until which a copy of the detach may still be served; 0: it was answered.
    pub copies_until: i64,
}

/// In ms of the server's clock: the year 5138.
const LATEST: i64 = 99_999_999_999_999;

impl Detached {
    /// Whether a handle can say this. A client's owner in it would take the hold away from a guard without a notice: by a forced
    /// unlock it would be (R16).
    pub fn is_of_a_handle(&self) -> bool {
        let number = self.owner.strip_suffix(":0").and_then(|owner| owner.rsplit_once('-')).map(|(_, number)| number);
        number.is_some_and(|number| number.parse::<u64>().is_ok())
            && self.kind != Kind::RwLock
            && (1..=LONGEST_NAME).contains(&self.name.len())
            && (0..=LATEST).contains(&self.copies_until)
    }

    /// R16: the server found nothing at `server_ms`; whether it may still serve a copy of the detach after that.
    pub fn is_undecided(&self, server_ms: i64) -> bool {
        (1..=self.copies_until).contains(&server_ms)
    }
}

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
