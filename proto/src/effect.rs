//! The output of the machine.

use std::sync::Arc;

use crate::canonical::Seq;
use crate::error::{CallError, Cause, ChangeError, Ended, Loss, Refusal, RequestError, UnlockError, Unlocked};
use crate::event::{CallId, Connection, NodeId, RequestId};
use crate::handle::Handle;
use crate::held_by::HeldBy;
use crate::keys::Keys;
use crate::question::Finding;
use crate::request::Request;
use crate::requests::poll::PolledHolder;
use crate::time::Instant;

/// An action for the driver, which carries them out in order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Send the request now, and only on this connection: the machine keeps the limits and the order.
    Send(RequestId, Connection, Request),
    /// Give the call its outcome. It replaces an outcome that the caller has not read.
    Tell(CallId, Outcome),
    /// A guard may rely on its hold until this instant.
    Valid(CallId, Instant),
    /// The hold of a guard is lost.
    Lost(CallId, Loss),
    /// Notify the watchers of a hold, once.
    Ended(HoldId, Ended),
    /// A request waits for this node. Connect, unless the driver is connecting already.
    Wanted(NodeId),
    /// An answer did not come in time: the connection may be half-open.
    Suspect(Connection),
    Note(Note),
    /// The client is closed. `unfinished` releases and leaves are unanswered.
    Closed {
        unfinished: usize,
    },
}

/// A hold of this client, named by the seq of the attempt that got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub Seq);

/// How a call got the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// The lock was free, or the owner had it already.
    AtOnce,
    /// From the queue.
    HandedOver,
}

#[derive(Debug, Clone)]
pub enum Outcome {
    /// The caller has to claim it within 250 ms, or the machine passes it over.
    Granted {
        token: u64,
        hold: HoldId,
        until: Instant,
        way: Way,
        /// How much of the name it has.
        weight: u32,
    },
    /// The lock is not free, and the call does not wait. With the holder, if the answer names it.
    Busy(Option<Box<HeldBy>>),
    Failed(CallError),
    /// The outcome of an extend.
    Extended(Result<(), ChangeError>),
    Detached(DetachOutcome),
    /// The outcome of a question.
    Answered(Result<Finding, RequestError>),
    /// The caller did not claim its grant in time. It may call again.
    PassedOver,
    Unlocked(Result<Unlocked, UnlockError>),
}

/// The outcome of a detach. Boxed, because it is rare: each caller has room for an outcome.
#[derive(Debug, Clone)]
pub enum DetachOutcome {
    Done(Box<Handle>),
    /// The guard keeps the hold.
    Refused(ChangeError),
    /// The handle has the hold, or the lock is free soon.
    Unanswered(Box<Handle>, Cause),
}

/// A line for the log.
#[derive(Debug, Clone)]
pub enum Note {
    /// The server has given the call a place in the queue.
    IsQueued(CallId),
    /// The server has answered a poll. `waiting`: calls of this client; `places`: calls of all clients.
    StillWaiting {
        keys: Arc<Keys>,
        waiting: usize,
        places: u64,
        holder: Option<PolledHolder>,
    },
    /// A renewal went unanswered. The client repeats it until the lease ends.
    CannotRenew(Arc<Keys>, Cause),
    /// A grant came too late to trust, and the question about it went unanswered. Polls ask it again.
    CannotConfirm(Arc<Keys>, Cause),
    /// A task waits for a lock that it holds itself.
    WaitsForItself(Arc<Keys>),
    /// A task outside of any scope waits for a lock that a scope has held for a whole lease.
    WaitsForAScope(Arc<Keys>),
    /// The lease ended because of `max_hold`.
    HeldForTooLong(Arc<Keys>),
    /// The server refuses a leave until a person changes something.
    CannotLeave(Arc<Keys>, Refusal),
    /// The server refuses everything. One request at a time finds out whether it still does.
    Refuses(NodeId, Refusal),
    AcceptsAgain(NodeId),
}
