//! Symmetry reduction: the protocol compares tokens and seqs, and uses their values in no other
//! way. Two states that differ only in these numbers therefore count as one: a fingerprint is the hash
//! of a canonical form, in which each number is replaced by its rank. The states themselves keep
//! their numbers.

use std::hash::{Hash, Hasher};

use crate::client::Client;
use crate::ghost::Ghost;
use crate::network::{
    Acquired, Answer, ClientId, Message, OWNERS, OwnerId, Poll, Polled, Push, Released, Request, Seq, Token,
};
use crate::owner::{Hold, Owner, Stage};
use crate::protocol::State;
use crate::server::Server;

/// A number that may be replaced. Seqs are ranked for each owner alone, polls for each client.
pub enum Number<'a> {
    Token(&'a mut Token),
    Seq(OwnerId, &'a mut Seq),
    Poll(ClientId, &'a mut Seq),
}

/// Called with each token and seq in a part of the state.
type Visitor<'a> = &'a mut dyn FnMut(Number<'_>);

/// The set of numbers in use, as bits, and the rank of each. 0 means "none" and stays 0.
#[derive(Clone, Copy)]
pub struct Ranks(u128);

impl Ranks {
    pub const NONE: Self = Self(1);

    pub fn insert(&mut self, number: impl Into<u32>) {
        self.0 |= 1 << number.into();
    }

    pub fn of(self, number: impl Into<u32>) -> u8 {
        (self.0 & ((1 << number.into()) - 1)).count_ones() as u8
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut copy = self.clone();
        // With the clock in the tokens (R10) the distance between two of them matters.
        copy.renumber(!copy.ghost.clock_in_tokens);
        let State { now, server, owners, handles, clients, network, ghost } = copy;
        (now, server, owners, handles, clients, network, ghost).hash(hasher);
    }
}

impl State {
    fn renumber(&mut self, tokens_too: bool) {
        let (mut tokens, mut seqs, mut polls) = (Ranks::NONE, [Ranks::NONE; OWNERS], [Ranks::NONE; 8]);
        self.visit_numbers(&mut |number| match number {
            Number::Token(token) if tokens_too => tokens.insert(*token),
            Number::Token(_) => {}
            Number::Seq(owner, seq) => seqs[usize::from(owner)].insert(*seq),
            Number::Poll(client, poll) => polls[usize::from(client)].insert(*poll),
        });
        self.visit_numbers(&mut |number| match number {
            Number::Token(token) if tokens_too => *token = tokens.of(*token).into(),
            Number::Token(_) => {}
            Number::Seq(owner, seq) => *seq = seqs[usize::from(owner)].of(*seq),
            Number::Poll(client, poll) => *poll = polls[usize::from(client)].of(*poll),
        });
    }

    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        let Self { server, owners, handles, clients, network, ghost, now: _ } = self;
        server.visit_numbers(visit);
        handles.iter_mut().for_each(|handle| visit(Number::Token(&mut handle.token)));
        for (id, owner) in (0..).zip(owners) {
            owner.visit_numbers(id, visit);
        }
        for (id, client) in (0..).zip(clients) {
            client.visit_numbers(id, visit);
        }
        // Ranks compare as the numbers did, so the messages stay sorted.
        network.iter_mut().for_each(|message| message.visit_numbers(visit));
        let Ghost { highest, exempt_up_to, kept, .. } = ghost;
        kept.iter_mut().for_each(|ticket| visit(Number::Seq(ticket.owner, &mut ticket.seq)));
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
        self.tickets.iter_mut().for_each(|(ticket, _)| visit(Number::Seq(ticket.owner, &mut ticket.seq)));
        self.tombstones.iter_mut().for_each(|(owner, tombstone)| visit(Number::Seq(*owner, &mut tombstone.seq)));
    }
}

impl Owner {
    fn visit_numbers(&mut self, id: OwnerId, visit: Visitor<'_>) {
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

/// The first owner of a client has its number, and the others follow (`Bounds::client_of`). A client with one owner
/// names 0 for the second.
fn visit_poll(poll: &mut Poll, client: ClientId, visit: Visitor<'_>) {
    visit(Number::Poll(client, &mut poll.number));
    for (owner, seq) in (client..).zip(&mut poll.waiting) {
        visit(Number::Seq(owner, seq));
    }
}

impl Client {
    fn visit_numbers(&mut self, id: ClientId, visit: Visitor<'_>) {
        visit(Number::Poll(id, &mut self.next_poll));
        self.poll.iter_mut().for_each(|poll| visit_poll(poll, id, visit));
        self.answered.iter_mut().for_each(|(_, floor)| visit(Number::Token(floor)));
    }
}

impl Request {
    fn visit_numbers(&mut self, client: OwnerId, visit: Visitor<'_>) {
        match self {
            Self::Acquire { seq, nested, .. } => {
                visit(Number::Seq(client, seq));
                nested.iter_mut().for_each(|nested| visit(Number::Token(&mut nested.token)));
            }
            Self::Leave { seq, attempt, .. } => {
                visit(Number::Seq(client, seq));
                visit(Number::Seq(client, attempt));
            }
            Self::Release { seq, token, attempt, .. } => {
                visit(Number::Seq(client, seq));
                visit(Number::Seq(client, attempt));
                visit(Number::Token(token));
            }
            Self::Give { seq, token, .. } | Self::Extend { seq, token, .. } => {
                visit(Number::Seq(client, seq));
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
            Self::PollToServer { from, poll } => visit_poll(poll, *from, visit),
            Self::PollReply { to, poll, answer } => {
                visit_poll(poll, *to, visit);
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
            Self::Acquired(Acquired::Held { token, .. } | Acquired::Queued { floor: token, .. })
            | Self::Released(Released::Freed { token }) => visit(Number::Token(token)),
            _ => {}
        }
    }
}

impl Polled {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        visit(Number::Token(&mut self.floor));
        if let Some(holder) = &mut self.holder {
            visit(Number::Seq(holder.owner, &mut holder.attempt));
            visit(Number::Token(&mut holder.token));
        }
    }
}
