//! The messages in flight between clients and server, as a set. Any of them may arrive next, late,
//! or never, so reordering, delay and loss need no code of their own.

use crate::server::{Acquired, Left, Polled, Released, Renewed};

pub type ClientId = u8;
/// Number of a request, growing per client. A retry keeps the seq of its request (R1).
pub type Seq = u8;
pub type Token = u8;
/// A tick of the one clock. Clients read the server's time from it; the library's estimate of that
/// time is not modelled.
pub type Time = u8;

/// The hold that a nested acquire re-enters, and the count it expects there (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nested {
    pub token: Token,
    pub holds: u8,
}

/// A request of a client. `sent` is the time just before it was sent (R5). `copy` numbers the
/// retries, which are the same request otherwise (R1).
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Acquired(Acquired),
    Polled(Polled),
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
        from: ClientId,
        request: Request,
    },
    /// A reply echoes its request, so the client can tell which copy was answered.
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

/// A sorted list without duplicates, so that equal sets compare equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Network(Vec<Message>);

impl Network {
    pub fn send(&mut self, from: ClientId, request: Request) {
        self.insert(Message::ToServer { from, request });
    }

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

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }

    /// A caller that changes messages must keep their order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Message> {
        self.0.iter_mut()
    }

    /// Whether a matching request of this client, or the reply to one, is in flight.
    pub fn has_request(&self, client: ClientId, matches: impl Fn(&Request) -> bool) -> bool {
        self.of(client).any(|message| match message {
            Message::ToServer { request, .. } | Message::Reply { request, .. } => matches(request),
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
