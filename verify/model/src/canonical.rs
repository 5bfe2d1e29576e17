//! Symmetry reduction: the protocol compares tokens and seqs, and uses their values in no other
//! way. Two states that differ only in these numbers therefore count as one: a fingerprint is the hash
//! of a canonical form, in which each number is replaced by its rank. The states themselves keep
//! their numbers.

use std::hash::{Hash, Hasher};

use crate::client::{Client, Hold, Stage};
use crate::network::{Answer, ClientId, Message, Push, Request, Seq, Token};
use crate::protocol::{Ghost, State};
use crate::server::{Acquired, Polled, Released, Server};

/// A number that may be replaced. Seqs are ranked for each client by itself.
pub enum Number<'a> {
    Token(&'a mut Token),
    Seq(ClientId, &'a mut Seq),
}

/// Called with each token and seq in a part of the state.
type Visitor<'a> = &'a mut dyn FnMut(Number<'_>);

/// The set of numbers in use, as bits, and the rank of each. 0 means "none" and stays 0.
#[derive(Clone, Copy)]
struct Ranks(u128);

impl Ranks {
    const NONE: Self = Self(1);

    fn insert(&mut self, number: u8) {
        self.0 |= 1 << number;
    }

    fn of(self, number: u8) -> u8 {
        (self.0 & ((1 << number) - 1)).count_ones() as u8
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut copy = self.clone();
        // With the clock in the tokens (R10) the distance between two of them matters.
        if !copy.ghost.clock_in_tokens {
            copy.renumber();
        }
        let State { now, server, clients, network, ghost } = copy;
        (now, server, clients, network, ghost).hash(hasher);
    }
}

impl State {
    fn renumber(&mut self) {
        let (mut tokens, mut seqs) = (Ranks::NONE, [Ranks::NONE; 8]);
        self.visit_numbers(&mut |number| match number {
            Number::Token(token) => tokens.insert(*token),
            Number::Seq(client, seq) => seqs[usize::from(client)].insert(*seq),
        });
        self.visit_numbers(&mut |number| match number {
            Number::Token(token) => *token = tokens.of(*token),
            Number::Seq(client, seq) => *seq = seqs[usize::from(client)].of(*seq),
        });
    }

    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        let Self { server, clients, network, ghost, now: _ } = self;
        server.visit_numbers(visit);
        for (id, client) in (0..).zip(clients) {
            client.visit_numbers(id, visit);
        }
        // Ranks compare as the numbers did, so the messages stay sorted.
        network.iter_mut().for_each(|message| message.visit_numbers(visit));
        let Ghost { highest, exempt_up_to, .. } = ghost;
        visit(Number::Token(highest));
        visit(Number::Token(exempt_up_to));
    }
}

impl Server {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        if let Some(lock) = &mut self.lock {
            visit(Number::Seq(lock.owner, &mut lock.attempt));
            visit(Number::Token(&mut lock.token));
        }
        visit(Number::Token(&mut self.token));
        self.queue.iter_mut().for_each(|ticket| visit(Number::Seq(ticket.owner, &mut ticket.seq)));
        self.deadlines.iter_mut().for_each(|(ticket, _)| visit(Number::Seq(ticket.owner, &mut ticket.seq)));
        self.tombstones.iter_mut().for_each(|(owner, tombstone)| visit(Number::Seq(*owner, &mut tombstone.seq)));
    }
}

impl Client {
    fn visit_numbers(&mut self, id: ClientId, visit: Visitor<'_>) {
        visit(Number::Seq(id, &mut self.next_seq));
        match &mut self.stage {
            Stage::Idle => {}
            Stage::Acquiring { seq, request, .. } => {
                visit(Number::Seq(id, seq));
                request.visit_numbers(id, visit);
            }
            Stage::Waiting { seq, floor, confirming, .. } => {
                visit(Number::Seq(id, seq));
                visit(Number::Token(floor));
                confirming.iter_mut().for_each(|request| request.visit_numbers(id, visit));
            }
            Stage::Holding(Hold { attempt, token, pending, .. }) => {
                visit(Number::Seq(id, attempt));
                visit(Number::Token(token));
                pending.iter_mut().for_each(|request| request.visit_numbers(id, visit));
            }
        }
        self.leaving.iter_mut().for_each(|request| request.visit_numbers(id, visit));
        if let Some((attempt, _)) = &mut self.unsent_leave {
            visit(Number::Seq(id, attempt));
        }
    }
}

impl Request {
    fn visit_numbers(&mut self, client: ClientId, visit: Visitor<'_>) {
        match self {
            Self::Acquire { seq, nested, .. } => {
                visit(Number::Seq(client, seq));
                nested.iter_mut().for_each(|nested| visit(Number::Token(&mut nested.token)));
            }
            Self::Poll { seq, .. } => visit(Number::Seq(client, seq)),
            Self::Leave { seq, attempt, .. } => {
                visit(Number::Seq(client, seq));
                visit(Number::Seq(client, attempt));
            }
            Self::Release { seq, token, attempt, .. } => {
                visit(Number::Seq(client, seq));
                visit(Number::Seq(client, attempt));
                visit(Number::Token(token));
            }
            Self::Renew { token, only, .. } => {
                visit(Number::Seq(client, only));
                visit(Number::Token(token));
            }
        }
    }
}

impl Message {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        match self {
            Self::ToServer { from, request } => request.visit_numbers(*from, visit),
            Self::Reply { to, request, answer } => {
                request.visit_numbers(*to, visit);
                answer.visit_numbers(visit);
            }
            Self::Pushed { to, push: Push::Grant { seq, token, .. } } => {
                visit(Number::Seq(*to, seq));
                visit(Number::Token(token));
            }
            Self::Pushed { push: Push::Revoked { token }, .. } => visit(Number::Token(token)),
        }
    }
}

impl Answer {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        match self {
            Self::Acquired(Acquired::Held { token, .. } | Acquired::Queued { floor: token })
            | Self::Polled(Polled::Granted { token, .. } | Polled::Queued { floor: token })
            | Self::Released(Released::Freed { token }) => visit(Number::Token(token)),
            _ => {}
        }
    }
}
