//! Why a request has no answer yet, for the caller who runs out of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::error::LockError;
use crate::store::error::{Cause, NoTime, RefusalKind, RequestError};
use crate::sync::Mutex;

/// One per owner and lock. All calls of the owner share it, since they take turns: a call that times out while another
/// one waits for a silent server must not report that others hold the lock.
#[derive(Debug, Default)]
pub struct LastError {
    /// How far the request of the present turn has come. One without an answer alone does not mean that
    /// another owner holds the lock.
    stage: AtomicU8,
    cause: Mutex<Option<Cause>>,
}

/// No request is without an answer.
const ANSWERED: u8 = 0;
/// A request waits until it may be sent.
const WAITING: u8 = 1;
/// It is on its way.
const SENT: u8 = 2;

#[derive(Debug, thiserror::Error)]
#[error("the request has no answer yet")]
pub struct NoAnswerYet;

/// Why a call without any time does not know whether others have the lock.
pub fn no_time() -> Cause {
    Arc::new(RequestError::NotSent(Arc::new(NoTime)))
}

/// Whether the call ran out of time without a fault: while it began, or while its request had no answer yet.
pub fn is_only_late(cause: &Cause) -> bool {
    match cause.downcast_ref() {
        Some(RequestError::NotSent(cause)) => cause.is::<NoTime>(),
        _ => cause.is::<NoAnswerYet>(),
    }
}

impl LastError {
    /// A request waits until it may be sent. Under load that may take longer than its caller waits.
    pub fn request_waits(&self) {
        self.stage.store(WAITING, Ordering::Relaxed);
    }

    pub fn request_sent(&self) {
        self.stage.store(SENT, Ordering::Relaxed);
    }

    pub fn answered(&self) {
        self.stage.store(ANSWERED, Ordering::Relaxed);
        self.set(None);
    }

    fn set(&self, cause: Option<Cause>) {
        *self.cause.lock() = cause;
    }

    /// Records a transient error; returns `Err` if the error ends the call.
    pub fn note(&self, error: RequestError) -> Result<(), LockError> {
        match error {
            RequestError::Refused(refusal) if refusal.kind() != RefusalKind::Passing => {
                // The server has answered, and another call of this owner may succeed.
                self.answered();
                return Err(refusal.into());
            }
            RequestError::Refused(refusal) => self.set(Some(Arc::new(refusal))),
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => self.set(Some(cause)),
            // These end every call, so there is nothing to keep for the next one.
            RequestError::Closed => return Err(LockError::Closed),
            RequestError::RuntimeGone => return Err(LockError::RuntimeGone),
            RequestError::Name(error) => return Err(LockError::Name(error)),
            RequestError::OtherKind { is, asked } => return Err(LockError::OtherKind { is, asked }),
            RequestError::SeveralServers => return Err(LockError::SeveralServers),
        }
        Ok(())
    }

    /// For a call that gives up now, after an error that was noted.
    pub fn unreachable(&self) -> LockError {
        LockError::Unreachable(self.cause().unwrap_or_else(|| Arc::new(NoAnswerYet)))
    }

    /// `why_not_sent`: for a request that still waits until it may be sent.
    pub fn get(&self, why_not_sent: impl FnOnce() -> Cause) -> Option<Cause> {
        // A first request that hangs has no cause yet. It must not look like a lock that others hold.
        self.cause().or_else(|| match self.stage.load(Ordering::Relaxed) {
            ANSWERED => None,
            WAITING => Some(why_not_sent()),
            _ => Some(Arc::new(NoAnswerYet)),
        })
    }

    fn cause(&self) -> Option<Cause> {
        self.cause.lock().clone()
    }
}
