//! The outcome of a detach.

use fairlock_proto::handle::Handle;

use super::outcome::HoldError;
use crate::store::error::Cause;

pub enum DetachOutcome<G> {
    Detached(Handle),
    /// The guard is as before.
    Refused(G, HoldError),
    /// The handle has the hold, or the name is free.
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
