//! What is under way between clients and server: a set. Anything in it may arrive next, late, or
//! never, so order, delay and loss need no further machinery.

use crate::server::{Acquired, Left, Polled, Released, Renewed};

pub type ClientId = u8;
/// Grows with each request of a client that has a number of its own.
pub type Seq = u8;
pub type Token = u8;
/// A tick of the clock that all share. Clients know the server's time: the library's estimate of
/// it is left out.
pub type Time = u8;

/// The hold that a nested acquire re-enters, and how many holds it expects there (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nested {
    pub token: Token,
    pub holds: u8,
}

/// What a client asks. `sent` is the instant before it was sent (R5); `copy` tells a retry, which
/// is otherwise the same request (R1), from the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Acquire {
        seq: Seq,
        copy: u8,
        sent: Time,
        nested: Option<Nested>,
    },
    Poll {
        seq: Seq,
        sent: Time,
    },
    /// `last`: until then a copy of the acquire may still be served; 0: none is under way (R3).
    Leave {
        seq: Seq,
        attempt: Seq,
        last: Time,
        copy: u8,
    },
    Release {
        seq: Seq,
        holds: u8,
        token: Token,
        attempt: Seq,
        last: Time,
        copy: u8,
    },
    /// `only`: sets the lease even if that is shorter, while nothing came after this seq; 0: never.
    Renew {
        token: Token,
        only: Seq,
        sent: Time,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Acquired(Acquired),
    Polled(Polled),
    Left(Left),
    Released(Released),
    Renewed(Renewed),
}

/// A message of the server to a client's channel: no answer to anything (P9: it is only a hint).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Push {
    /// The ticket of `seq` owns the lock under `token`, for `lasts` from when that was decided.
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
        from: ClientId,
        request: Request,
    },
    /// Every reply echoes its request, which is how a client knows its own (R1).
    Reply {
        to: ClientId,
        request: Request,
        answer: Answer,
    },
    Pushed {
        to: ClientId,
        push: Push,
    },
}

impl Message {
    pub fn client(&self) -> ClientId {
        match *self {
            Self::ToServer { from: client, .. } | Self::Reply { to: client, .. } | Self::Pushed { to: client, .. } => {
                client
            }
        }
    }
}

/// A sorted list without repetition: small, and equal states look equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Network(Vec<Message>);

impl Network {
    pub fn send(&mut self, from: ClientId, request: Request) {
        self.insert(Message::ToServer { from, request });
    }

    pub fn insert(&mut self, message: Message) {
        if let Err(place) = self.0.binary_search(&message) {
            self.0.insert(place, message);
        }
    }

    pub fn remove(&mut self, message: &Message) {
        if let Ok(place) = self.0.binary_search(message) {
            self.0.remove(place);
        }
    }

    pub fn retain(&mut self, keep: impl FnMut(&Message) -> bool) {
        self.0.retain(keep);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }

    /// Who changes messages keeps their order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Message> {
        self.0.iter_mut()
    }

    /// Whether such a request of this client is under way, or the reply to it.
    pub fn has(&self, client: ClientId, wanted: impl Fn(&Request) -> bool) -> bool {
        self.of(client).any(|message| match message {
            Message::ToServer { request, .. } | Message::Reply { request, .. } => wanted(request),
            Message::Pushed { .. } => false,
        })
    }

    pub fn of(&self, client: ClientId) -> impl Iterator<Item = &Message> {
        self.0.iter().filter(move |message| message.client() == client)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
