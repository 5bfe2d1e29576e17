//! Why a request has no answer yet, for the caller who runs out of time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::LockError;
use crate::store::error::{Cause, RefusalKind, RequestError};

/// Of one owner at one lock. All its calls share it, since they take turns: a call that times out
/// while another one waits for a silent server must not say that the lock is held by others.
#[derive(Debug, Default)]
pub struct LastError {
    /// A request has no answer yet. That alone does not mean that another owner holds the lock.
    unanswered: AtomicBool,
    cause: Mutex<Option<Cause>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the request has no answer yet")]
struct NoAnswerYet;

impl LastError {
    pub fn request_sent(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    pub fn answered(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
        self.set(None);
    }

    fn set(&self, cause: Option<Cause>) {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = cause;
    }

    /// Keeps what may pass by itself; returns what ends the call.
    pub fn note(&self, error: RequestError) -> Result<(), LockError> {
        match error {
            RequestError::Refused(refusal) if refusal.kind() != RefusalKind::Passing => {
                // The server has answered, and another call of this owner may succeed.
                self.answered();
                return Err(LockError::Refused(refusal));
            }
            RequestError::Refused(refusal) => self.set(Some(Arc::new(refusal))),
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => self.set(Some(cause)),
            // These end every call, so there is nothing to keep for the next one.
            RequestError::Closed => return Err(LockError::Closed),
            RequestError::RuntimeGone => return Err(LockError::RuntimeGone),
            RequestError::Name(error) => return Err(LockError::Name(error)),
        }
        Ok(())
    }

    /// For a call that gives up now.
    pub fn unreachable(&self) -> LockError {
        LockError::Unreachable(self.get().unwrap_or_else(|| Arc::new(NoAnswerYet)))
    }

    pub fn get(&self) -> Option<Cause> {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A first request that hangs has no cause yet. It must not look like a lock that others hold
        // (A5).
        cause.or_else(|| self.unanswered.load(Ordering::Relaxed).then(|| Arc::new(NoAnswerYet) as Cause))
    }
}
