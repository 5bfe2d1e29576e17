//! The messages in flight between clients and nodes.

use crate::network;

pub type ClientId = u8;
/// Its place in the order of the nodes (Q1).
pub type NodeId = u8;
/// Number of an attempt at one node, growing per client.
pub type Seq = u16;
pub type Token = u16;
/// A tick of the one true clock.
pub type Time = u8;

pub type Network = network::Network<Message>;

/// A request or its answer. An answer has the seq and the send time of its request (Q5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub client: ClientId,
    pub node: NodeId,
    pub seq: Seq,
    pub sent: Time,
    pub body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// Lock or try_lock. Sent again it polls: it asks whether its place in the queue was served.
    Acquire {
        waits: bool,
        /// The token that the node is to give if it can. 0: none.
        proposed: Token,
    },
    Raise {
        to: Token,
    },
    Renew,
    /// Ends all attempts up to the seq. It has no answer here: the client learns at once that it was served, and sends
    /// it again until then.
    Leave,

    Granted {
        token: Token,
    },
    Queued,
    Busy,
    Frozen,
    Raised,
    Renewed,
    /// Neither raised nor renewed: the client does not hold the lock there.
    NotHeld,
}

impl Body {
    pub fn is_request(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Raise { .. } | Self::Renew | Self::Leave)
    }
}
