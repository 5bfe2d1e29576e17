//! The messages in flight between clients and nodes, as a set. Any of them may arrive next, late or never, so
//! reordering, delay and loss need no code.

pub type ClientId = u8;
/// The node's place in the order (Q1).
pub type NodeId = u8;
/// The number of an attempt at one node. It grows with each request of a client.
pub type Seq = u16;
pub type Token = u16;
/// A tick of the one true clock.
pub type Time = u8;

/// A request or its answer. An answer carries the seq and the send time of its request (Q5).
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
    /// Waits or only tries. A repeated one is a poll: it asks whether the node has served its place in the queue.
    Acquire {
        waits: bool,
        /// The token that the node should give if it can. 0: none.
        proposed: Token,
    },
    Raise {
        to: Token,
    },
    Renew,
    /// Ends all attempts up to the seq. It has no answer here: the client sends it again until the node serves it, and
    /// learns that at once.
    Leave,

    Granted {
        token: Token,
    },
    Queued,
    Busy,
    Frozen,
    Raised,
    Renewed,
    /// The answer to a raise or a renewal if the client does not hold the lock there.
    NotHeld,
}

impl Body {
    pub fn is_request(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Raise { .. } | Self::Renew | Self::Leave)
    }
}

/// A sorted list without duplicates, so that equal sets compare equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Network(Vec<Message>);

impl Network {
    pub fn insert(&mut self, message: Message) {
        if let Err(index) = self.0.binary_search(&message) {
            self.0.insert(index, message);
        }
    }

    pub fn remove(&mut self, message: &Message) {
        if let Ok(index) = self.0.binary_search(message) {
            self.0.remove(index);
        }
    }

    pub fn retain(&mut self, keep: impl FnMut(&Message) -> bool) {
        self.0.retain(keep);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }

    /// The first message in the order of the list.
    pub fn first(&self) -> Option<Message> {
        self.0.first().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
