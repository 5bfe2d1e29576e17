//! The messages between clients and server: a set, any of which may arrive next, late, or never.

use crate::network;
pub use crate::network::{
    ClientId, FOREVER, HANDLE_SEQ, HANDLES, OWNERS_OF_A_CLIENT, OwnerId, Seq, Ticket, Time, Token,
};

/// Units of a limit. A reader takes one, a writer all.
pub type Weight = u8;

pub type Network = network::Network<Message>;

/// The hold that a nested read re-enters, and the count it expects there (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nested {
    pub token: Token,
    pub holds: u8,
}

/// A request of an owner, as in the lock's model. Weight and limit of an acquire are those of its owner (`Bounds`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Acquire {
        seq: Seq,
        copy: u8,
        sent: Time,
        nested: Option<Nested>,
    },
    Leave {
        seq: Seq,
        attempt: Seq,
        copies_until: Time,
        copy: u8,
    },
    /// Sets holds and weight. With 0 holds it ends the hold.
    Release {
        seq: Seq,
        holds: u8,
        weight: Weight,
        token: Token,
        attempt: Seq,
        copies_until: Time,
        copy: u8,
    },
    Renew {
        token: Token,
        only: Seq,
        sent: Time,
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

/// One poll of a client: it asks for the first of its tickets that wait, as many as one poll carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Poll {
    pub number: Seq,
    pub sent: Time,
    /// The seqs of the client's owners that it asks for; 0 for the others.
    pub asked: [Seq; OWNERS_OF_A_CLIENT],
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
    },
    Busy,
    Lost,
    Refused,
}

/// What a poll learns of a ticket that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    NotAsked,
    Waits,
    Granted { token: Token, remaining: Time },
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Polled {
    pub floor: Token,
    pub places: [Place; OWNERS_OF_A_CLIENT],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Released {
    Freed { token: Token },
    Held { holds: u8, weight: Weight },
    Lost,
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
        weight: Weight,
    },
    Lost,
    /// The statuses late, left and stale.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Given(Passed),
    Acquired(Acquired),
    Left,
    Released(Released),
    Renewed(Renewed),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Push {
    Grant { seq: Seq, token: Token, lasts: Time },
    Revoked { token: Token },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    ToServer { from: OwnerId, request: Request },
    Reply { to: OwnerId, request: Request, answer: Answer },
    PollToServer { from: ClientId, poll: Poll },
    PollReply { to: ClientId, poll: Poll, answer: Polled },
    Pushed { to: OwnerId, push: Push },
}

impl Network {
    pub fn send(&mut self, from: OwnerId, request: Request) {
        self.insert(Message::ToServer { from, request });
    }

    /// Whether a matching request of this owner, or the reply to one, is in flight.
    pub fn carries(&self, owner: OwnerId, matches: impl Fn(&Request) -> bool) -> bool {
        self.iter().any(|message| match message {
            Message::ToServer { from, request } | Message::Reply { to: from, request, .. } => {
                *from == owner && matches(request)
            }
            _ => false,
        })
    }

    pub fn carries_poll(&self, client: ClientId, number: Seq) -> bool {
        self.iter().any(|message| match message {
            Message::PollToServer { from, poll } | Message::PollReply { to: from, poll, .. } => {
                *from == client && poll.number == number
            }
            _ => false,
        })
    }
}
