//! The messages in flight between clients and server, as a set. Any of them may arrive next, late,
//! or never, so reordering, delay and loss need no code of their own.

/// A client has one owner or more: `Bounds::client_of`.
pub type ClientId = u8;
pub type OwnerId = u8;
/// Number of a request, growing per owner. A retry keeps the seq of its request (R1).
pub type Seq = u8;
pub type Token = u16;
/// A tick of the one clock. Clients read the server's time from it; the library's estimate of that
/// time is not modelled.
pub type Time = u8;

/// One attempt in the queue. In the list it is a place: the waiter's grant TTL, which stands beside it there, is
/// `Bounds::grant_ttl` of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub owner: OwnerId,
    pub seq: Seq,
}

/// The hold that a nested acquire re-enters, and the count it expects there (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nested {
    pub token: Token,
    pub holds: u8,
}

/// A request of an owner. `sent` is the time just before it was sent (R5). `copy` numbers the
/// retries, which are the same request otherwise (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Acquire {
        seq: Seq,
        copy: u8,
        sent: Time,
        /// When the caller gives up, with the slack that the server adds; `FOREVER` if never.
        give_up: Time,
        nested: Option<Nested>,
    },
    /// `copies_until`: server time until which a copy of the acquire may still be served (R3); 0 if
    /// none is in flight.
    Leave {
        seq: Seq,
        attempt: Seq,
        copies_until: Time,
        copy: u8,
    },
    Release {
        seq: Seq,
        holds: u8,
        token: Token,
        attempt: Seq,
        copies_until: Time,
        copy: u8,
    },
    /// `only`: sets the lease even if that shortens it, as long as this seq is the last one served.
    /// 0: never shortens.
    Renew {
        token: Token,
        only: Seq,
        sent: Time,
    },
    /// `extend`: never shortens. It is its owner's last request from then on: none before it shortens the lease (R16).
    Extend {
        seq: Seq,
        token: Token,
        lease: Time,
        sent: Time,
        copy: u8,
    },
    /// Makes another owner the holder: `detach` if that is a handle, `attach` if the hold is taken from one.
    Give {
        from: OwnerId,
        to: OwnerId,
        seq: Seq,
        token: Token,
        sent: Time,
        copy: u8,
    },
}

/// The seq of all that a handle asks for.
pub const HANDLE_SEQ: Seq = 1;
/// The owners from here on are handles, which are no client's. Below are those of a model and the competitors that
/// `settle` adds.
pub const HANDLES: OwnerId = 8;
/// Greater than every owner.
pub const OWNERS: usize = 10;

pub const FOREVER: Time = Time::MAX;
/// Owners of one client.
pub const OWNERS_OF_A_CLIENT: usize = 2;

/// One poll of a name by a client (R8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Poll {
    /// Growing per client, so that a late answer is not taken for that to a later poll.
    pub number: Seq,
    pub sent: Time,
    /// The seqs of the client's owners that waited when it was sent; 0 for the others. Their tickets are
    /// in the request only if it `verifies`.
    pub waiting: [Seq; OWNERS_OF_A_CLIENT],
    pub verifies: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Acquired {
    Held {
        token: Token,
        holds: u8,
        remaining: Time,
    },
    /// Each later grant has a token above `floor` (R7).
    Queued {
        floor: Token,
        /// The client was in the sorted set already.
        known: bool,
    },
    /// Not free, and the caller does not wait.
    Busy,
    /// A nested acquire, but the owner does not hold under that token.
    Lost,
    /// The statuses late, left and stale: too late, behind a tombstone, or a later request of the
    /// owner was served.
    Refused,
}

/// The holder, as a poll names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub owner: OwnerId,
    pub attempt: Seq,
    pub token: Token,
    pub remaining: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Polled {
    pub holder: Option<Holder>,
    pub floor: Token,
    /// `advance` ended at its bound, so places behind it were not looked at.
    pub stopped: bool,
    /// The client was in the sorted set before.
    pub known: bool,
    /// The length of the list.
    pub places: u8,
    /// Which of the tickets in the request have no place.
    pub missing: [bool; OWNERS_OF_A_CLIENT],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Released {
    /// The lock was this owner's, under this token.
    Freed {
        token: Token,
    },
    Held {
        holds: u8,
    },
    /// The hold has another token, or a later request was served.
    Lost,
    /// There was nothing to end.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Renewed {
    Renewed { remaining: Time },
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passed {
    Given {
        remaining: Time,
    },
    Lost,
    /// The statuses late, left and stale.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Given(Passed),
    Acquired(Acquired),
    Left(Left),
    Released(Released),
    Renewed(Renewed),
}

/// A message published to a client's channel. It is only a hint: it may be lost (P9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Push {
    /// The ticket of `seq` owns the lock under `token`. The grant lasts for `lasts` ticks from when
    /// it was made, which is before the push arrives (R7).
    Grant {
        seq: Seq,
        token: Token,
        lasts: Time,
    },
    Revoked {
        token: Token,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    ToServer {
        from: OwnerId,
        request: Request,
    },
    /// A reply echoes its request, so the owner knows which copy was answered.
    Reply {
        to: OwnerId,
        request: Request,
        answer: Answer,
    },
    PollToServer {
        from: ClientId,
        poll: Poll,
    },
    PollReply {
        to: ClientId,
        poll: Poll,
        answer: Polled,
    },
    Pushed {
        to: OwnerId,
        push: Push,
    },
}

/// A sorted list without duplicates, so that equal sets compare equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Network<M = Message>(Vec<M>);

impl<M> Default for Network<M> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: Copy + Ord> Network<M> {
    pub fn insert(&mut self, message: M) {
        if let Err(index) = self.0.binary_search(&message) {
            self.0.insert(index, message);
        }
    }

    pub fn remove(&mut self, message: &M) {
        if let Ok(index) = self.0.binary_search(message) {
            self.0.remove(index);
        }
    }

    pub fn retain(&mut self, keep: impl FnMut(&M) -> bool) {
        self.0.retain(keep);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &M> {
        self.0.iter()
    }

    /// A caller that changes messages must keep their order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.0.iter_mut()
    }

    /// The first in the order of the list.
    pub fn first(&self) -> Option<M> {
        self.0.first().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Network {
    pub fn send(&mut self, from: OwnerId, request: Request) {
        self.insert(Message::ToServer { from, request });
    }

    /// Whether a matching request of this owner, or the reply to one, is in flight.
    pub fn has_request(&self, owner: OwnerId, matches: impl Fn(&Request) -> bool) -> bool {
        self.0.iter().any(|message| match message {
            Message::ToServer { from, request } | Message::Reply { to: from, request, .. } => {
                *from == owner && matches(request)
            }
            _ => false,
        })
    }

    /// Whether this poll, or the reply to it, is in flight.
    pub fn has_poll(&self, client: ClientId, number: Seq) -> bool {
        self.0.iter().any(|message| match message {
            Message::PollToServer { from, poll } | Message::PollReply { to: from, poll, .. } => {
                *from == client && poll.number == number
            }
            _ => false,
        })
    }
}
