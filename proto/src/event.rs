//! What goes into the machine.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::canonical::RequestNumber;
use crate::error::{Cause, RequestError};
use crate::handle::Handle;
use crate::keys::Keys;
use crate::push::Push;
use crate::question::Question;
use crate::request::Reply;
use crate::slab::Id;
use crate::time::{Instant, ServerTime};

/// A call for a guard, then that guard, then its unlock. The driver takes the numbers from a slab of its own, and forgets one
/// with the last outcome or with [`Event::Gone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub Id);

/// One of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// A server that is never connected: of slots that none is known to have.
    pub const NOBODY: Self = Self(u16::MAX);
}

/// One connection to a server, which is never used again after it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    pub node: NodeId,
    pub number: u32,
}

/// One request. Its number is never used again, so an answer that nobody waits for is known by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub node: NodeId,
    pub number: RequestNumber,
}

#[derive(Debug)]
pub enum Event<'a> {
    Call(CallId, Want),
    /// The task of a waiting call was polled for another reason than the wait: it has other work.
    Disturbed(CallId),
    /// The caller has read that it was granted the lock.
    Claimed(CallId),
    /// The guard ends, and its caller waits for the outcome.
    Unlock(CallId),
    /// From now on the guard has so much of the name, if it had more. The call waits until the server knows that, with an
    /// outcome like that of an unlock.
    Shrink {
        call: CallId,
        guard: CallId,
        weight: u32,
    },
    /// A new lease for the hold of a guard, unless more is left of it.
    Extend {
        call: CallId,
        guard: CallId,
        lease: Duration,
    },
    /// The hold of a guard is given to a handle, if it is the only one. With the call the guard ends too.
    Detach {
        call: CallId,
        guard: CallId,
        lease: Duration,
    },
    /// Something about a name, once.
    Ask(CallId, Arc<Keys>, Question),
    /// The caller has dropped its future or its guard.
    Gone(CallId),
    /// A detach made this handle, and its caller has gone without reading of it: nobody else can give it back (P5).
    Unread(Box<Handle>),
    /// Each request is answered once at most. A request without an answer needs no event: it has a time-out here.
    Replied(RequestId, Result<Reply, RequestError>),
    Pushed(Connection, Push<'a>),
    Link(LinkEvent),
    /// [`Session::next_timer`](crate::session::Session::next_timer) is due.
    Time,
    Close,
    /// The runtime of the client has ended: nothing can be sent, and no answer will come.
    RuntimeGone,
}

#[derive(Debug, Clone)]
pub enum LinkEvent {
    Up {
        connection: Connection,
        /// The server's clock in microseconds since 1970, as it was asked for when the connection was made. Without it the first
        /// request is refused as late.
        server_micros: Option<i64>,
        /// With `strict_restart`: until when the server grants nothing.
        frozen_until: ServerTime,
    },
    Down(Connection, Cause),
    /// From now on these slots are the node's.
    Serves(NodeId, RangeInclusive<u16>),
}

/// What a call wants.
#[derive(Debug, Clone)]
pub struct Want {
    pub keys: Arc<Keys>,
    pub owner: u64,
    pub owner_id: Arc<str>,
    pub scope: Scope,
    pub manner: Manner,
    pub lease: Lease,
    /// How much of the name: 1 of a lock, the units of a reader or a writer, or permits.
    pub weight: u32,
    /// The terms of its place in the queue.
    pub terms: Arc<str>,
    pub task: TaskId,
}

/// Who may re-enter what a call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The owner is this call's alone.
    Call,
    /// All calls with this owner.
    Owner,
}

/// How long a call waits for others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Manner {
    Waits {
        limit: Option<Instant>,
    },
    /// Not at all, and for the server until then.
    Tries {
        limit: Instant,
        proposed: Option<u64>,
    },
    /// It takes what a handle holds, in the time until then.
    Attaches {
        limit: Instant,
        handle: Arc<Handle>,
    },
}

impl Manner {
    pub fn limit(&self) -> Option<Instant> {
        match self {
            Self::Waits { limit } => *limit,
            Self::Tries { limit, .. } | Self::Attaches { limit, .. } => Some(*limit),
        }
    }

    pub fn waits(&self) -> bool {
        matches!(self, Self::Waits { .. })
    }

    pub fn attaches(&self) -> bool {
        matches!(self, Self::Attaches { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lease {
    /// Renewed until the last guard has ended.
    Renewed(Duration),
    Fixed(Duration),
}

impl Lease {
    pub fn length(self) -> Duration {
        let (Self::Renewed(length) | Self::Fixed(length)) = self;
        length
    }

    pub fn is_renewed(self) -> bool {
        matches!(self, Self::Renewed(_))
    }
}

/// A task of the caller's runtime, or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId(pub u64);
