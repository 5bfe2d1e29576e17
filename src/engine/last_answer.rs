//! Why a call that runs out of time has no lock: others have it, or the server did not answer (decision 42).

use std::sync::Arc;

use tokio::task::yield_now;

use super::error::LockError;
use crate::store::error::{Cause, Fault, RefusalKind, RequestError};
use crate::store::runner::Runner;
use crate::sync::Mutex;

/// The outcome of an owner's last request about a name. All calls of the owner share it, since they take turns: a
/// call that times out while another one waits for a silent server must not report that others hold the lock.
#[derive(Default)]
pub struct LastAnswer(Mutex<Known>);

#[derive(Clone, Default)]
enum Known {
    /// No answer, or one about this owner alone.
    #[default]
    Nothing,
    /// Others have the name, or are first in line.
    Others,
    /// The request failed.
    Failed(Cause),
}

/// For a call that had too little time for an answer.
pub fn no_answer_yet() -> Cause {
    Arc::new(Fault::NoAnswerYet)
}

/// Ends a call without any time. It lets other tasks run first: its error says that a retry may help, and a loop that tries
/// again at once would keep the thread for itself.
pub async fn too_late() -> LockError {
    yield_now().await;
    LockError::Unreachable(no_answer_yet())
}

/// Whether a call failed only because it had too little time.
pub fn is_only_late(cause: &Cause) -> bool {
    matches!(cause.downcast_ref(), Some(Fault::NoAnswerYet))
}

impl LastAnswer {
    fn set(&self, known: Known) {
        // Dropped when the lock is free: an error of a credentials provider is the user's.
        let _before = std::mem::replace(&mut *self.0.lock(), known);
    }

    /// A new call has its owner's turn, or an answer is about this owner alone.
    pub fn own(&self) {
        self.set(Known::Nothing);
    }

    pub fn others(&self) {
        self.set(Known::Others);
    }

    pub fn shows_others(&self) -> bool {
        matches!(*self.0.lock(), Known::Others)
    }

    pub fn has_failed(&self) -> bool {
        matches!(*self.0.lock(), Known::Failed(_))
    }

    /// Records a transient error; returns `Err` if the error ends the call.
    pub fn note(&self, error: RequestError) -> Result<(), LockError> {
        match error {
            RequestError::Refused(refusal) if refusal.kind() != RefusalKind::Passing => {
                // The server has answered, and another call of this owner may succeed.
                self.own();
                return Err(LockError::Refused(refusal));
            }
            RequestError::Refused(refusal) => self.set(Known::Failed(Arc::new(refusal))),
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => self.set(Known::Failed(cause)),
            // These end every call, so there is nothing to keep for the next one.
            RequestError::Closed => return Err(LockError::Closed),
            RequestError::RuntimeGone => return Err(LockError::RuntimeGone),
            RequestError::Name(error) => return Err(LockError::Name(error)),
            RequestError::SeveralServers => return Err(LockError::SeveralServers),
        }
        Ok(())
    }

    /// The error of a call about this lock that is out of time.
    pub fn out_of_time(&self, runner: &Runner, lock_key: &str) -> LockError {
        if let Some(left) = runner.frozen_for(lock_key) {
            return LockError::Unreachable(Arc::new(Fault::Frozen(left)));
        }
        if self.shows_others() { LockError::Timeout } else { LockError::Unreachable(self.cause(runner, lock_key)) }
    }

    /// Why there is no answer about this lock.
    pub fn cause(&self, runner: &Runner, lock_key: &str) -> Cause {
        match self.0.lock().clone() {
            Known::Failed(cause) => cause,
            Known::Nothing | Known::Others => runner.why_no_answer(lock_key),
        }
    }
}
