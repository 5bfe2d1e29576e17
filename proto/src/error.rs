//! Why requests, calls and holds fail.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::held_by::HeldBy;
use crate::time::Instant;

/// An underlying error, for people to read. The machine never looks into it.
#[derive(Clone)]
pub struct Cause(pub Arc<dyn Error + Send + Sync>);

impl Cause {
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl Hash for Cause {
    /// All causes are alike: the machine behaves the same whatever their texts.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The causes that the machine itself produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    #[error("not connected yet")]
    NotConnected,
    #[error("the connection ended before the answer came")]
    Disconnected,
    #[error("no answer yet")]
    NoAnswerYet,
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("strict_restart: the server grants no lock for another {0:?}, because it may have forgotten one")]
    Frozen(Duration),
    #[error("the reply does not fit the request")]
    OtherReply,
    #[error("the request came too late to be served")]
    TooLate,
    #[error("the detach that made this handle had no answer, and may still be served")]
    Undecided,
    #[error("the client is closed")]
    Closed,
}

impl From<Fault> for Cause {
    fn from(fault: Fault) -> Self {
        Self::new(fault)
    }
}

/// The server has refused a request.
#[derive(Debug, Clone, Hash)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The whole server refuses for a reason that may pass, such as a failover. Nothing has run.
    ServerForNow,
    /// The same for the keys of one slot that is moving.
    SlotForNow,
    /// The server refuses until a person changes something. Nothing has run.
    Final,
    /// Part of a script has run.
    HalfWay,
    /// The same, because the user lost a right.
    HalfWayForRights,
}

impl Refusal {
    pub fn may_pass(&self) -> bool {
        matches!(self.kind, RefusalKind::ServerForNow | RefusalKind::SlotForNow)
    }

    pub fn needs_a_person(&self) -> bool {
        matches!(self.kind, RefusalKind::Final | RefusalKind::HalfWayForRights)
    }

    pub fn ran_in_part(&self) -> bool {
        matches!(self.kind, RefusalKind::HalfWay | RefusalKind::HalfWayForRights)
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Hash)]
pub enum RequestError {
    /// The client has not sent it, and never will.
    NotSent(Cause),
    /// The client sent it: the server may have served it, or may still serve it.
    Unanswered(Cause),
    Refused(Refusal),
    /// The client can send nothing any more.
    RuntimeGone,
}

impl RequestError {
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::NotSent(_) => false,
            Self::Unanswered(_) | Self::RuntimeGone => true,
            Self::Refused(refusal) => refusal.ran_in_part(),
        }
    }

    /// Whether another try of the same request is pointless.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.needs_a_person(),
            Self::RuntimeGone => true,
            _ => false,
        }
    }

    /// The error of a call whose earlier request failed with `earlier`. If the server may have served that one, the
    /// outcome is unknown.
    pub fn after(self, earlier: Option<&Self>) -> Self {
        let may_have_run = earlier.is_some_and(Self::may_have_run) && !self.may_have_run();
        if may_have_run { Self::Unanswered(self.into_cause()) } else { self }
    }

    /// How it ends a call for a guard. `None` if the reason may pass, and the call asks again.
    pub fn of_call(&self) -> Option<CallError> {
        match self {
            Self::NotSent(_) | Self::Unanswered(_) => None,
            Self::Refused(refusal) => (!refusal.may_pass()).then(|| CallError::Refused(refusal.clone())),
            Self::RuntimeGone => Some(CallError::RuntimeGone),
        }
    }

    pub fn into_cause(self) -> Cause {
        match self {
            Self::NotSent(cause) | Self::Unanswered(cause) => cause,
            Self::Refused(refusal) => refusal.cause,
            Self::RuntimeGone => Fault::Disconnected.into(),
        }
    }
}

/// The error for a reply that does not fit its request: the outcome is unknown.
pub fn other_reply() -> RequestError {
    RequestError::Unanswered(Fault::OtherReply.into())
}

/// Why a call gives no guard. It leaves neither a hold nor a place.
#[derive(Debug, Clone, Hash)]
pub enum CallError {
    /// Others held the lock or were first, according to the last answer. With the holder, if the answer named it.
    Timeout(Option<Box<HeldBy>>),
    /// There was no answer in time.
    Unreachable(Cause),
    Refused(Refusal),
    QueueFull {
        waiters: u64,
    },
    /// It asks for more than the limit of the name.
    TooHeavy {
        limit: u32,
    },
    /// It wants more of the name than its owner holds, and would wait for that hold: a write inside a read.
    WouldDeadlock,
    /// The owner has lost the hold to re-enter.
    Lost,
    Closed,
    RuntimeGone,
}

/// Why an extend or a detach failed. The guard keeps its hold, or the hold is lost.
#[derive(Debug, Clone, Hash)]
pub enum ChangeError {
    /// This many guards share the hold: only the last one can be detached.
    Nested(u32),
    Lost(Loss),
    Request(RequestError),
}

impl ChangeError {
    /// The error of a call that would have entered the hold.
    pub fn of_call(&self) -> CallError {
        match self {
            Self::Request(RequestError::RuntimeGone) => CallError::RuntimeGone,
            _ => CallError::Lost,
        }
    }
}

/// How a hold got lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Its lease ended before it could be renewed.
    Expired,
    /// The server does not know it.
    Gone,
    /// A forced unlock ended it.
    Forced,
    /// The client was closed.
    Closed,
}

/// The outcome of an unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unlocked {
    Freed,
    /// This many guards are left.
    StillHeld(u32),
}

/// Why the lock may have been lost before the unlock.
#[derive(Debug, Clone, Hash)]
pub enum UnlockError {
    Lost(Loss),
    /// The client goes on releasing in the background. At `until` nothing of the hold is left.
    Refused {
        refusal: Refusal,
        until: Instant,
    },
    /// The same, without an answer.
    Unknown {
        until: Instant,
        cause: Cause,
    },
    RuntimeGone {
        until: Instant,
    },
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    Freed,
    Lost(Loss),
    /// The client released it in time, and the server's answer will never come.
    Unconfirmed,
    /// A handle has it.
    Detached,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [RefusalKind; 5] = [
        RefusalKind::ServerForNow,
        RefusalKind::SlotForNow,
        RefusalKind::Final,
        RefusalKind::HalfWay,
        RefusalKind::HalfWayForRights,
    ];

    fn refusal(kind: RefusalKind) -> Refusal {
        Refusal { kind, cause: Fault::NoAnswerYet.into() }
    }

    #[test]
    fn each_kind_of_refusal_passes_or_ran_in_part_or_needs_a_person() {
        assert_eq!(KINDS.map(|kind| refusal(kind).may_pass()), [true, true, false, false, false]);
        assert_eq!(KINDS.map(|kind| refusal(kind).needs_a_person()), [false, false, true, false, true]);
        assert_eq!(KINDS.map(|kind| refusal(kind).ran_in_part()), [false, false, false, true, true]);
    }

    #[test]
    fn what_a_person_has_to_mend_and_what_nobody_can_send_is_final() {
        assert_eq!(
            KINDS.map(|kind| RequestError::Refused(refusal(kind)).is_final()),
            [false, false, true, false, true]
        );
        assert!(RequestError::RuntimeGone.is_final());
        assert!(!RequestError::Unanswered(Fault::Closed.into()).is_final());
    }

    /// The error of the last request alone would say that the server served nothing.
    #[test]
    fn an_earlier_copy_that_may_have_run_leaves_the_outcome_unknown() {
        let [not_sent, unanswered] =
            [RequestError::NotSent, RequestError::Unanswered].map(|of| of(Fault::Closed.into()));
        let refused = RequestError::Refused(refusal(RefusalKind::Final));
        for last in [&not_sent, &refused] {
            assert!(!last.clone().after(None).may_have_run());
            assert!(!last.clone().after(Some(&not_sent)).may_have_run());
            assert!(matches!(last.clone().after(Some(&unanswered)), RequestError::Unanswered(_)));
        }
        let in_part = RequestError::Refused(refusal(RefusalKind::HalfWay));
        assert!(matches!(in_part.after(Some(&unanswered)), RequestError::Refused(_)), "it says so itself");
    }
}
