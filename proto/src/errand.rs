//! A question under way: the request that asks it, and the meaning of the answers.

use std::sync::Arc;

use crate::error::{Fault, RequestError};
use crate::event::CallId;
use crate::keys::Keys;
use crate::node::Lane;
use crate::question::{Finding, Question};
use crate::request::{Answer, Reply, Request};
use crate::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use crate::requests::inspect::Inspect;
use crate::requests::poll::Poll;
use crate::requests::raise::{Raise, Raised};
use crate::requests::release::Released;
use crate::requests::renew::{Only, Renew, Renewed};
use crate::requests::set_limit::{LimitSet, SetLimit};
use crate::sending::Asked;
use crate::time::ServerTime;

#[derive(Debug, Clone, Hash)]
pub struct Errand {
    pub call: CallId,
    pub question: Question,
}

/// How an errand goes on after an answer.
pub enum Next {
    Over(Result<Finding, RequestError>),
    /// The errand has ended and made room, so the client passes the name on.
    PassOn(Finding),
    Again(RequestError),
}

impl Errand {
    pub fn lane(&self) -> Lane {
        match self.question {
            Question::Extend { .. } | Question::Raise { .. } => Lane::Urgent,
            // An operator does not wait for thousands of calls.
            Question::Release { .. } | Question::ForceUnlock { .. } | Question::SetLimit { .. } => Lane::Release,
            Question::Probe => Lane::Cleanup,
            Question::Inspect { .. } => Lane::Read,
        }
    }

    pub fn request(&self, keys: Arc<Keys>, ServerTime(not_after): ServerTime) -> Request {
        match &self.question {
            Question::Inspect { most } => Request::Inspect(Inspect { keys, most: *most }),
            Question::ForceUnlock { expected } => {
                Request::ForceUnlock(ForceUnlock { keys, expected: *expected, not_after })
            }
            Question::SetLimit { limit } => Request::SetLimit(SetLimit { keys, limit: *limit, not_after }),
            Question::Extend { handle, lease } => {
                let (owner, token, lease) = (handle.owner.clone(), handle.token, *lease);
                Request::Renew(Renew { keys, owner, token, lease, only: Only::Longer, remember: true })
            }
            Question::Release { handle } => Request::Release(handle.release(keys)),
            Question::Raise { owner, token, floor } => {
                Request::Raise(Raise { keys, owner: owner.clone(), token: *token, floor: *floor })
            }
            Question::Probe => Request::Poll(Poll { keys, waits: false, names_ours: false, tickets: Vec::new() }),
        }
    }

    /// `earlier` has the outcome of the copies before.
    pub fn answered(&self, earlier: &Asked, reply: Reply) -> Next {
        let Reply { server_micros, answer } = reply;
        match answer {
            Answer::Inspected(inspected) => {
                let server_micros = server_micros.unwrap_or_default();
                Next::Over(Ok(Finding::Inspected { inspected, server_micros }))
            }
            // The request did nothing, and this answer has corrected our estimate of the server's clock.
            Answer::Forced(ForceUnlocked::Late) | Answer::LimitSet(LimitSet::Late) => {
                Next::Again(RequestError::NotSent(Fault::TooLate.into()))
            }
            Answer::Forced(ForceUnlocked::Freed { more }) | Answer::Released(Released::Freed { more, .. }) => {
                passing_on(Finding::Done, more)
            }
            Answer::LimitSet(LimitSet::Set { more }) => passing_on(Finding::Done, more),
            Answer::Forced(ForceUnlocked::Free { more }) => passing_on(Finding::Nothing, more),
            Answer::Released(Released::Gone { more }) => passing_on(not_there(earlier), more),
            Answer::Released(_) => Next::Over(Ok(not_there(earlier))),
            Answer::Renewed(Renewed::Renewed { .. }) | Answer::Raised(Raised::Raised) | Answer::Polled(_) => {
                Next::Over(Ok(Finding::Done))
            }
            Answer::Renewed(Renewed::Lost) if self.is_undecided(server_micros) => {
                Next::Again(RequestError::Unanswered(Fault::Undecided.into()))
            }
            _ => Next::Over(Ok(Finding::Nothing)),
        }
    }

    fn is_undecided(&self, server_micros: Option<i64>) -> bool {
        let Question::Extend { handle, .. } = &self.question else { return false };
        handle.is_undecided(server_micros.unwrap_or_default() / 1000)
    }

    /// Returns `Over` if another try cannot help, or would be wrong: a second run of a forced unlock could end the
    /// hold of the next owner (decision 6).
    pub fn failed(&self, earlier: &Asked, error: RequestError) -> Next {
        let is_over = match self.question {
            Question::Extend { .. } | Question::Release { .. } => error.is_final(),
            _ => true,
        };
        if is_over { Next::Over(Err(error.after(earlier.failure()))) } else { Next::Again(error) }
    }
}

/// An earlier copy without an answer may have given back the hold.
fn not_there(earlier: &Asked) -> Finding {
    if earlier.may_have_run() { Finding::Done } else { Finding::Nothing }
}

fn passing_on(finding: Finding, more: bool) -> Next {
    if more { Next::PassOn(finding) } else { Next::Over(Ok(finding)) }
}
