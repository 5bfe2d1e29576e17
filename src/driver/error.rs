//! Turns the errors of the machine into public ones, and the errors of the store into those that the machine reads.

use std::sync::Arc;

use fairlock_proto::error::{self as machine, Cause, RefusalKind};

use super::clock::LocalClock;
use super::outcome::{Ended, HoldError, LockError, Loss, UnlockError, Unlocked};
use super::tried::Busy;
use crate::store::error::{self as store, Fault, Refusal, RequestError};
use crate::store::runner::Runner;

/// Why a request failed, for the machine.
pub fn of_request(error: RequestError) -> machine::RequestError {
    match error {
        RequestError::NotSent(cause) => machine::RequestError::NotSent(Cause(cause)),
        RequestError::Unanswered(cause) => machine::RequestError::Unanswered(Cause(cause)),
        RequestError::Refused(refusal) => machine::RequestError::Refused(of_refusal(refusal)),
        RequestError::RuntimeGone => machine::RequestError::RuntimeGone,
        // The client sent nothing.
        RequestError::Name(_) | RequestError::SeveralServers | RequestError::Closed => {
            machine::RequestError::NotSent(Cause(Arc::new(error)))
        }
    }
}

fn of_refusal(refusal: Refusal) -> machine::Refusal {
    let kind = match refusal.kind() {
        store::RefusalKind::Passing if refusal.is_of_a_slot() => RefusalKind::SlotForNow,
        store::RefusalKind::Passing => RefusalKind::ServerForNow,
        store::RefusalKind::Final => RefusalKind::Final,
        store::RefusalKind::Unknown if refusal.is_about_rights() => RefusalKind::HalfWayForRights,
        store::RefusalKind::Unknown => RefusalKind::HalfWay,
    };
    machine::Refusal { kind, cause: Cause(Arc::new(refusal)) }
}

/// The refusal that the store read.
pub fn refusal(refusal: &machine::Refusal) -> Refusal {
    let read = refusal.cause.0.downcast_ref::<Refusal>().cloned();
    // A refusal has no other origin.
    read.unwrap_or_else(|| Refusal::new("ERR", &refusal.cause.0.to_string()))
}

/// Replaces a fault of the machine by the store's, which is the same or tells more.
pub fn cause(cause: Cause, runner: &Runner, lock_key: &str) -> store::Cause {
    // This is the fault of the connection that ended. By now the store may know why there is no new one.
    match cause.0.downcast_ref() {
        Some(Fault::NotConnected | Fault::Disconnected) => return runner.why_no_answer(lock_key),
        Some(Fault::NoAnswer(_)) if !runner.is_connected(lock_key) => return runner.why_no_answer(lock_key),
        _ => {}
    }
    match cause.0.downcast_ref() {
        Some(machine::Fault::NotConnected | machine::Fault::Disconnected | machine::Fault::NoAnswerYet) => {
            runner.why_no_answer(lock_key)
        }
        Some(machine::Fault::NoAnswer(within)) => Arc::new(Fault::NoAnswer(*within)),
        Some(machine::Fault::Frozen(left)) => Arc::new(Fault::Frozen(*left)),
        Some(machine::Fault::TooLate) => Arc::new(Fault::TooLate),
        Some(machine::Fault::Undecided) => Arc::new(Fault::Undecided),
        Some(machine::Fault::Closed) => Arc::new(RequestError::Closed),
        Some(machine::Fault::OtherReply) | None => cause.0,
    }
}

/// `weight`: how much the call wanted.
pub fn of_call(error: machine::CallError, weight: u32, runner: &Runner, lock_key: &str) -> LockError {
    match error {
        machine::CallError::Timeout(holder) => LockError::from(Busy::of(holder)),
        machine::CallError::Unreachable(why) => LockError::Unreachable(cause(why, runner, lock_key)),
        machine::CallError::Refused(refused) => LockError::Refused(refusal(&refused)),
        machine::CallError::QueueFull { waiters } => LockError::QueueFull { waiters },
        machine::CallError::TooHeavy { limit } => LockError::Permits { wanted: weight, permits: limit },
        machine::CallError::WouldDeadlock => LockError::WouldDeadlock,
        machine::CallError::Lost => LockError::Lost,
        machine::CallError::Closed => LockError::Closed,
        machine::CallError::RuntimeGone => LockError::RuntimeGone,
    }
}

pub fn of_unlock(
    outcome: Result<machine::Unlocked, machine::UnlockError>,
    clock: LocalClock,
    runner: &Runner,
    lock_key: &str,
) -> Result<Unlocked, UnlockError> {
    match outcome {
        Ok(machine::Unlocked::Freed) => Ok(Unlocked::Freed),
        Ok(machine::Unlocked::StillHeld(guards)) => Ok(Unlocked::StillHeld(guards)),
        Err(machine::UnlockError::Lost(lost)) => Err(UnlockError::Lost(loss(lost))),
        Err(machine::UnlockError::Refused { refusal: refused, until }) => {
            Err(UnlockError::Refused { refusal: refusal(&refused), until: clock.instant(until) })
        }
        Err(machine::UnlockError::Unknown { until, cause: why }) => {
            let (until, cause) = (clock.instant(until), cause(why, runner, lock_key));
            // The refusal may pass, but did not do so in time.
            Err(match cause.downcast_ref::<Refusal>().cloned() {
                Some(refusal) => UnlockError::Refused { refusal, until },
                None => UnlockError::Unknown { until, cause },
            })
        }
        Err(machine::UnlockError::RuntimeGone { until }) => {
            Err(UnlockError::RuntimeGone { until: clock.instant(until) })
        }
    }
}

/// The error of a request that a caller waits for.
pub fn of_asked(error: machine::RequestError, runner: &Runner, lock_key: &str) -> RequestError {
    match error {
        machine::RequestError::NotSent(why) => RequestError::NotSent(cause(why, runner, lock_key)),
        machine::RequestError::Unanswered(why) => RequestError::Unanswered(cause(why, runner, lock_key)),
        machine::RequestError::Refused(refused) => RequestError::Refused(refusal(&refused)),
        machine::RequestError::RuntimeGone => RequestError::RuntimeGone,
    }
}

pub fn of_change(error: machine::ChangeError, runner: &Runner, lock_key: &str) -> HoldError {
    match error {
        machine::ChangeError::Nested(guards) => HoldError::Nested(guards),
        machine::ChangeError::Lost(lost) => HoldError::Lost(loss(lost)),
        machine::ChangeError::Request(error) => HoldError::Request(of_asked(error, runner, lock_key)),
    }
}

pub const CLOSED: Ended = Ended::Lost(Loss::Closed);
pub const FORCED: Ended = Ended::Lost(Loss::Forced);

pub fn loss(loss: machine::Loss) -> Loss {
    match loss {
        machine::Loss::Expired => Loss::Expired,
        machine::Loss::Gone => Loss::Gone,
        machine::Loss::Forced => Loss::Forced,
        machine::Loss::Closed => Loss::Closed,
    }
}

pub fn ended(ended: machine::Ended) -> Ended {
    match ended {
        // The hold was valid when its owner released it.
        machine::Ended::Freed | machine::Ended::Unconfirmed => Ended::Freed,
        machine::Ended::Detached => Ended::Detached,
        machine::Ended::Lost(lost) => Ended::Lost(loss(lost)),
    }
}
