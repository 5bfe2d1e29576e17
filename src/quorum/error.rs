//! Why a quorum cannot serve.

use std::sync::Arc;
use std::time::Duration;

use super::majority;
use crate::store::error::{Cause, RequestError};

/// The client can use fewer than a majority of the servers now, or fewer have granted the lock.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", self.what(), self.more())]
pub struct NoQuorum {
    pub usable: usize,
    pub all: usize,
    pub majority: usize,
    /// How much longer each frozen server grants nothing.
    pub frozen_for: Vec<Duration>,
    /// The pairs of addresses that lead to one server.
    pub twins: Vec<(String, String)>,
    /// Why one of them did not serve.
    pub last: Option<Cause>,
}

impl NoQuorum {
    fn what(&self) -> String {
        let Self { usable, all, majority, .. } = self;
        if usable < majority {
            return format!("{usable} of {all} servers can be used, and {majority} are needed");
        }
        format!("fewer than {majority} of {all} servers have granted it")
    }

    fn more(&self) -> String {
        let frozen = self.frozen_for.iter().max().map(|longest| {
            let (count, seconds) = (self.frozen_for.len(), longest.as_secs_f64());
            format!("; {count} were started lately and grant nothing for {seconds:.1} s at most")
        });
        let twins = self.twins.iter().map(|(one, other)| format!("; {one} and {other} are one server"));
        let last = self.last.as_ref().map(|cause| format!("; one of them: {cause}"));
        frozen.into_iter().chain(twins).chain(last).collect()
    }
}

/// Fewer than a majority of the servers confirmed the request.
#[derive(Debug, thiserror::Error)]
#[error("confirmed by {confirmed} of the {majority} servers that are needed{}", self.more())]
pub struct TooFewAnswers {
    pub confirmed: usize,
    pub majority: usize,
    /// The error of one of the others, if known.
    pub last: Option<RequestError>,
}

impl TooFewAnswers {
    /// The error of a request that fewer than `majority` of several servers have confirmed. It is `NotSent` only if the
    /// client asked none of them: what one server says may not hold for the others. `None`: there is no error.
    pub fn error(errors: Vec<RequestError>, confirmed: usize, majority: usize) -> Option<RequestError> {
        let may_have_run = confirmed > 0 || errors.iter().any(RequestError::may_have_run);
        let last = RequestError::most_telling(errors.into_iter())?;
        let too_few = |last| RequestError::Unanswered(Arc::new(Self { confirmed, majority, last: Some(last) }));
        Some(if may_have_run { too_few(last) } else { last })
    }

    fn more(&self) -> String {
        self.last.as_ref().map(|error| format!("; one of the others: {error}")).unwrap_or_default()
    }
}

/// The answers, if a majority of these servers gave one. A single server's error stays as it is.
pub fn of_majority<T>(outcomes: impl IntoIterator<Item = Result<T, RequestError>>) -> Result<Vec<T>, RequestError> {
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push(error),
        }
    }
    let all = answers.len() + errors.len();
    if answers.len() >= majority(all) {
        return Ok(answers);
    }
    let error = if all == 1 { errors.pop() } else { TooFewAnswers::error(errors, answers.len(), majority(all)) };
    error.map_or(Ok(answers), Err)
}
