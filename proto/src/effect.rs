//! What comes out of the machine.

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

/// To be done by the driver, in their order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Now, and by this connection alone: the machine keeps the limits and the order.
    Send(RequestId, Connection, Request),
    /// Replaces what the caller has not read yet.
    Tell(CallId, Outcome),
    /// A guard may rely on its hold until then.
    Valid(CallId, Instant),
    /// The hold of a guard is lost.
    Lost(CallId, Loss),
    /// For the watchers of a hold, once.
    Ended(HoldId, Ended),
    /// A request waits for a connection to it: it is to be made, if none is being made.
    Wanted(NodeId),
    /// An answer did not come in time: the connection may be half-open.
    Suspect(Connection),
    Note(Note),
    /// The client is closed. So many holds and leaves have had no answer.
    Closed {
        unfinished: usize,
    },
}

/// A hold of this client. It is the seq of the attempt that got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub Seq);

/// How a call came to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// It was free, or the owner's already.
    AtOnce,
    /// Out of the queue.
    HandedOver,
}

#[derive(Debug, Clone)]
pub enum Outcome {
    /// To be claimed within 250 ms, or it is passed over.
    Granted {
        token: u64,
        hold: HoldId,
        until: Instant,
        way: Way,
        /// What it has of the name.
        weight: u32,
    },
    /// Not free, and the call does not wait. Who has it, where the answer says so.
    Busy(Option<Box<HeldBy>>),
    Failed(CallError),
    /// Of a hold.
    Extended(Result<(), ChangeError>),
    Detached(DetachOutcome),
    /// Of what was asked once.
    Answered(Result<Finding, RequestError>),
    /// It was granted the lock and did not claim that in time. The caller may call again.
    PassedOver,
    Unlocked(Result<Unlocked, UnlockError>),
}

/// What a detach came to. Boxed, because it is rare: each caller has room for an outcome.
#[derive(Debug, Clone)]
pub enum DetachOutcome {
    Done(Box<Handle>),
    /// The guard has the hold as before.
    Refused(ChangeError),
    /// The handle has it, or it is free soon.
    Unanswered(Box<Handle>, Cause),
}

/// A line for the log.
#[derive(Debug, Clone)]
pub enum Note {
    /// The server has given the call a place in the queue.
    IsQueued(CallId),
    /// A poll was answered. `waiting`: calls of this client; `places`: those of all clients.
    StillWaiting {
        keys: Arc<Keys>,
        waiting: usize,
        places: u64,
        holder: Option<PolledHolder>,
    },
    /// A renewal had no answer. It is repeated until the lease ends.
    CannotRenew(Arc<Keys>, Cause),
    /// A grant came too late to be trusted, and the question about it had no answer. Polls ask it again.
    CannotConfirm(Arc<Keys>, Cause),
    /// A task waits for a lock that it holds itself.
    WaitsForItself(Arc<Keys>),
    /// A task outside of any scope waits for a lock that a scope has held for a whole lease.
    WaitsForAScope(Arc<Keys>),
    /// The lease ended because of `max_hold`.
    HeldForTooLong(Arc<Keys>),
    /// A leave is refused until a person changes something.
    CannotLeave(Arc<Keys>, Refusal),
    /// The server refuses everything. One request at a time finds out whether it still does.
    Refuses(NodeId, Refusal),
    AcceptsAgain(NodeId),
}
