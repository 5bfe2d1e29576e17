//! Tokens and seqs are names that are only ever compared. States that differ in nothing but the
//! numbers, since in one of them something came and went that nobody remembers, are one state:
//! they have the same fingerprint. The states themselves keep their numbers.

use std::hash::{Hash, Hasher};

use crate::client::{Client, Hold, Stage};
use crate::network::{Answer, ClientId, Message, Push, Request, Seq, Token};
use crate::protocol::{Ghost, State};
use crate::server::{Acquired, Polled, Released, Server};

/// What a walk over all names is shown.
pub enum Name<'a> {
    Token(&'a mut Token),
    Seq(ClientId, &'a mut Seq),
}

/// A walk over the names in something.
type Walk<'a> = &'a mut dyn FnMut(Name<'_>);

/// The numbers in use, and the place of each among them. 0 means "none" and stays 0.
#[derive(Clone, Copy)]
struct Ranks(u128);

impl Ranks {
    const NONE: Self = Self(1);

    fn note(&mut self, number: u8) {
        self.0 |= 1 << number;
    }

    fn of(self, number: u8) -> u8 {
        (self.0 & ((1 << number) - 1)).count_ones() as u8
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut copy = self.clone();
        // With a clock in the tokens their distances matter.
        if !copy.ghost.clock_in_tokens {
            copy.rename();
        }
        let State { now, server, clients, network, ghost } = copy;
        (now, server, clients, network, ghost).hash(hasher);
    }
}

impl State {
    fn rename(&mut self) {
        let (mut tokens, mut seqs) = (Ranks::NONE, [Ranks::NONE; 8]);
        self.walk(&mut |name| match name {
            Name::Token(token) => tokens.note(*token),
            Name::Seq(client, seq) => seqs[usize::from(client)].note(*seq),
        });
        self.walk(&mut |name| match name {
            Name::Token(token) => *token = tokens.of(*token),
            Name::Seq(client, seq) => *seq = seqs[usize::from(client)].of(*seq),
        });
    }

    fn walk(&mut self, walk: Walk<'_>) {
        let Self { server, clients, network, ghost, now: _ } = self;
        server.walk(walk);
        for (id, client) in (0..).zip(clients) {
            client.walk(id, walk);
        }
        // The order of the messages stays: new numbers compare as the old ones did.
        network.iter_mut().for_each(|message| message.walk(walk));
        let Ghost { highest, excused, .. } = ghost;
        walk(Name::Token(highest));
        walk(Name::Token(excused));
    }
}

impl Server {
    fn walk(&mut self, walk: Walk<'_>) {
        if let Some(lock) = &mut self.lock {
            walk(Name::Seq(lock.owner, &mut lock.attempt));
            walk(Name::Token(&mut lock.token));
        }
        walk(Name::Token(&mut self.token));
        self.queue.iter_mut().for_each(|ticket| walk(Name::Seq(ticket.owner, &mut ticket.seq)));
        self.deadlines.iter_mut().for_each(|(ticket, _)| walk(Name::Seq(ticket.owner, &mut ticket.seq)));
        self.tombstones.iter_mut().for_each(|(owner, tombstone)| walk(Name::Seq(*owner, &mut tombstone.seq)));
    }
}

impl Client {
    fn walk(&mut self, id: ClientId, walk: Walk<'_>) {
        walk(Name::Seq(id, &mut self.next_seq));
        match &mut self.stage {
            Stage::Idle => {}
            Stage::Asking { seq, request, .. } => {
                walk(Name::Seq(id, seq));
                request.walk(id, walk);
            }
            Stage::Waiting { seq, floor, confirming, .. } => {
                walk(Name::Seq(id, seq));
                walk(Name::Token(floor));
                confirming.iter_mut().for_each(|request| request.walk(id, walk));
            }
            Stage::Holding(Hold { attempt, token, pending, .. }) => {
                walk(Name::Seq(id, attempt));
                walk(Name::Token(token));
                pending.iter_mut().for_each(|request| request.walk(id, walk));
            }
        }
        self.leaving.iter_mut().for_each(|request| request.walk(id, walk));
        if let Some((attempt, _)) = &mut self.unsent {
            walk(Name::Seq(id, attempt));
        }
    }
}

impl Request {
    fn walk(&mut self, client: ClientId, walk: Walk<'_>) {
        match self {
            Self::Acquire { seq, nested, .. } => {
                walk(Name::Seq(client, seq));
                nested.iter_mut().for_each(|nested| walk(Name::Token(&mut nested.token)));
            }
            Self::Poll { seq, .. } => walk(Name::Seq(client, seq)),
            Self::Leave { seq, attempt, .. } => {
                walk(Name::Seq(client, seq));
                walk(Name::Seq(client, attempt));
            }
            Self::Release { seq, token, attempt, .. } => {
                walk(Name::Seq(client, seq));
                walk(Name::Seq(client, attempt));
                walk(Name::Token(token));
            }
            Self::Renew { token, only, .. } => {
                walk(Name::Seq(client, only));
                walk(Name::Token(token));
            }
        }
    }
}

impl Message {
    fn walk(&mut self, walk: Walk<'_>) {
        match self {
            Self::ToServer { from, request } => request.walk(*from, walk),
            Self::Reply { to, request, answer } => {
                request.walk(*to, walk);
                answer.walk(walk);
            }
            Self::Pushed { to, push: Push::Grant { seq, token, .. } } => {
                walk(Name::Seq(*to, seq));
                walk(Name::Token(token));
            }
            Self::Pushed { push: Push::Revoked { token }, .. } => walk(Name::Token(token)),
        }
    }
}

impl Answer {
    fn walk(&mut self, walk: Walk<'_>) {
        match self {
            Self::Acquired(Acquired::Held { token, .. } | Acquired::Queued { floor: token })
            | Self::Polled(Polled::Granted { token, .. } | Polled::Queued { floor: token })
            | Self::Released(Released::Freed { token }) => walk(Name::Token(token)),
            _ => {}
        }
    }
}
