//! The input of the machine.

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

/// A call for a guard, then that guard, then its unlock. The driver takes the numbers from a slab of its own, and
/// frees each with the last outcome or with [`Event::Gone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub Id);

/// One of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// A placeholder for an unknown server. It never connects.
    pub const NOBODY: Self = Self(u16::MAX);
}

/// One connection to a server. Its number never comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    pub node: NodeId,
    pub number: u32,
}

/// One request. Its number never comes again, so the machine recognises an answer that it does not wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub node: NodeId,
    pub number: RequestNumber,
}

#[derive(Debug)]
pub enum Event<'a> {
    Call(CallId, Want),
    /// Something other than the wait woke the task of a waiting call: the task has other work.
    Disturbed(CallId),
    /// The caller has read its grant.
    Claimed(CallId),
    /// The guard ends, and its caller waits for the outcome.
    Unlock(CallId),
    /// From now on the guard has at most this weight. The call waits until the server knows, and its outcome is like
    /// an unlock's.
    Shrink {
        call: CallId,
        guard: CallId,
        weight: u32,
    },
    /// Sets a new lease for a guard's hold, unless more is left.
    Extend {
        call: CallId,
        guard: CallId,
        lease: Duration,
    },
    /// Gives a guard's hold to a handle, if it is the only guard. The guard ends with the call.
    Detach {
        call: CallId,
        guard: CallId,
        lease: Duration,
    },
    /// Asks something about a name, once.
    Ask(CallId, Arc<Keys>, Question),
    /// The caller has dropped its future or its guard.
    Gone(CallId),
    /// A detach made this handle, and its caller has gone without reading it. No one else can give it back (P5).
    Unread(Box<Handle>),
    /// Each request gets one answer at most. A request without an answer causes no event: the machine has a time-out
    /// for it.
    Replied(RequestId, Result<Reply, RequestError>),
    Pushed(Connection, Push<'a>),
    Link(LinkEvent),
    /// [`Session::next_timer`](crate::session::Session::next_timer) is due.
    Time,
    Close,
    /// The runtime of the client has ended: the client can send nothing, and no answer will come.
    RuntimeGone,
}

#[derive(Debug, Clone)]
pub enum LinkEvent {
    Up {
        connection: Connection,
        /// The server's clock in microseconds since 1970, read when the client connected. Without it the server
        /// refuses the first request as late.
        server_micros: Option<i64>,
        /// With `strict_restart`: until when the server grants nothing.
        frozen_until: ServerTime,
    },
    Down(Connection, Cause),
    /// From now on the node serves these slots.
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
    /// How much of the name: 1 for a lock, the units of a reader or writer, or permits.
    pub weight: u32,
    /// The terms of its place in the queue.
    pub terms: Arc<str>,
    pub task: TaskId,
}

/// Which calls may re-enter the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// None: the owner is this call's alone.
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
    /// The call does not wait for others, and for the server until `limit`.
    Tries {
        limit: Instant,
        proposed: Option<u64>,
    },
    /// The call takes over the hold of a handle, and has until `limit`.
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
