//! Why a request has no answer yet, for the caller who runs out of time.

use std::sync::Arc;

use tokio::task::yield_now;

use super::error::LockError;
use crate::store::error::{Cause, Fault, RefusalKind, RequestError};
use crate::sync::Mutex;

/// One per owner and lock. All calls of the owner share it, since they take turns: a call that times out while another
/// one waits for a silent server must not report that others hold the lock.
#[derive(Default)]
pub struct LastError {
    state: Mutex<(Stage, Option<Cause>)>,
}

/// How far the request of the present turn has come. One without an answer alone does not mean that another owner holds
/// the lock.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No request is without an answer.
    #[default]
    Answered,
    /// A request waits until it may be sent.
    Waiting,
    /// It is on its way.
    Sent,
    /// It has an answer or a grant, and its future was not polled (P6).
    NotPolled,
    /// The server has granted it, and is asked whether that still holds.
    Unconfirmed,
}

/// Ends a call without any time, which does not know whether others have the lock. It lets other tasks run first: its error says
/// that a retry may help, and a loop that tries again at once would keep the thread for itself.
pub async fn out_of_time() -> LockError {
    yield_now().await;
    LockError::Unreachable(Arc::new(RequestError::NotSent(Arc::new(Fault::NoTime))))
}

/// Whether the call ran out of time without a fault: while it began, or while its request had no answer yet.
pub fn is_only_late(cause: &Cause) -> bool {
    match cause.downcast_ref() {
        Some(RequestError::NotSent(cause)) => matches!(cause.downcast_ref(), Some(Fault::NoTime)),
        _ => matches!(cause.downcast_ref(), Some(Fault::NoAnswerYet)),
    }
}

impl LastError {
    fn enter(&self, stage: Stage) {
        self.state.lock().0 = stage;
    }

    fn set(&self, cause: Cause) {
        // Dropped when the lock is free, here and below: an error of a credentials provider is the user's.
        let _before = self.state.lock().1.replace(cause);
    }

    /// A request waits until it may be sent. Under load that may take longer than its caller waits.
    pub fn request_waits(&self) {
        self.enter(Stage::Waiting);
    }

    pub fn request_sent(&self) {
        self.enter(Stage::Sent);
    }

    pub fn answered(&self) {
        let _before = std::mem::take(&mut *self.state.lock());
    }

    /// A poll for all waiters of the name was answered. `is_holder`: it says that this one has the name.
    pub fn polled(&self, is_holder: bool) {
        let says_nothing = match self.state.lock().0 {
            // It has lost its place by not being polled.
            Stage::NotPolled => true,
            Stage::Unconfirmed => is_holder,
            _ => false,
        };
        if !says_nothing {
            self.answered();
        }
    }

    /// The future could go on for a while, and others may have the lock only since it did not. Until it reads an answer
    /// or sends a request.
    pub fn not_polled(&self) {
        self.enter(Stage::NotPolled);
    }

    /// The grant is in doubt, and others may have the lock only since it was lost. Until there is an answer.
    pub fn unconfirmed(&self) {
        self.enter(Stage::Unconfirmed);
    }

    /// Records a transient error; returns `Err` if the error ends the call.
    pub fn note(&self, error: RequestError) -> Result<(), LockError> {
        match error {
            RequestError::Refused(refusal) if refusal.kind() != RefusalKind::Passing => {
                // The server has answered, and another call of this owner may succeed.
                self.answered();
                return Err(LockError::Refused(refusal));
            }
            RequestError::Refused(refusal) => self.set(Arc::new(refusal)),
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => self.set(cause),
            // These end every call, so there is nothing to keep for the next one.
            RequestError::Closed => return Err(LockError::Closed),
            RequestError::RuntimeGone => return Err(LockError::RuntimeGone),
            RequestError::Name(error) => return Err(LockError::Name(error)),
            RequestError::SeveralServers => return Err(LockError::SeveralServers),
        }
        Ok(())
    }

    /// For a call that gives up now, after an error that was noted.
    pub fn unreachable(&self) -> LockError {
        LockError::Unreachable(self.cause().unwrap_or_else(|| Arc::new(Fault::NoAnswerYet)))
    }

    /// `why_not_sent`: for a request that still waits until it may be sent.
    pub fn get(&self, why_not_sent: impl FnOnce() -> Cause) -> Option<Cause> {
        let (stage, cause) = self.state.lock().clone();
        // A first request that hangs has no cause yet. It must not look like a lock that others hold.
        cause.or_else(|| match stage {
            Stage::Answered => None,
            Stage::Waiting => Some(why_not_sent()),
            Stage::Sent => Some(Arc::new(Fault::NoAnswerYet)),
            Stage::NotPolled => Some(Arc::new(Fault::NotPolled)),
            Stage::Unconfirmed => Some(Arc::new(Fault::Unconfirmed)),
        })
    }

    /// Why the last request had no answer, if it had none.
    pub fn cause(&self) -> Option<Cause> {
        self.state.lock().1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A poll of before it had asked again made it say that others have the lock. Found by an attack.
    #[test]
    fn a_grant_in_doubt_stays_so_until_a_poll_says_that_another_has_the_lock() {
        let error = LastError::default();
        let said = || error.get(|| Arc::new(Fault::NoTime)).map(|cause| cause.to_string());
        error.unconfirmed();
        error.polled(true);
        assert_eq!(said(), Some(Fault::Unconfirmed.to_string()));
        error.polled(false);
        assert_eq!(said(), None);
        error.not_polled();
        error.polled(false);
        assert_eq!(said(), Some(Fault::NotPolled.to_string()));
    }
}
