//! Symmetry reduction, as in the lock's model: states that differ only in the numbering of tokens, seqs and polls are one.

use std::hash::{Hash, Hasher};

use super::handle::HandleStage;
use super::network::{
    Acquired, Answer, ClientId, HANDLES, Message, OwnerId, Place, Poll, Polled, Push, Released, Request, Seq, Token,
};
use super::owner::{Hold, Owner, Stage};
use super::protocol::State;
use super::server::Server;
use crate::canonical::{Number, Ranks};
use crate::network::OWNERS;

type Visitor<'a> = &'a mut dyn FnMut(Number<'_>);

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
        for (id, handle) in (HANDLES..).zip(handles) {
            visit(Number::Token(&mut handle.token));
            if let HandleStage::Releasing(request) = &mut handle.stage {
                request.visit_numbers(id, visit);
            }
        }
        for (id, owner) in (0..).zip(owners) {
            owner.visit_numbers(id, visit);
        }
        for (id, client) in (0..).zip(clients) {
            visit(Number::Poll(id, &mut client.next_poll));
            client.poll.iter_mut().for_each(|poll| visit_poll(poll, id, visit));
            client.answered.iter_mut().for_each(|(_, floor)| visit(Number::Token(floor)));
        }
        network.iter_mut().for_each(|message| message.visit_numbers(visit));
        ghost.admitted.iter_mut().for_each(|(token, _)| visit(Number::Token(token)));
        visit(Number::Token(&mut ghost.highest));
        visit(Number::Token(&mut ghost.exempt_up_to));
        visit(Number::Token(&mut ghost.revoked));
    }
}

impl Server {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        for (owner, holder) in self.holders.iter_mut() {
            visit(Number::Seq(*owner, &mut holder.attempt));
            visit(Number::Token(&mut holder.token));
        }
        visit(Number::Token(&mut self.token));
        self.queue.iter_mut().for_each(|ticket| visit(Number::Seq(ticket.owner, &mut ticket.seq)));
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

/// The first owner of a client has its number, and the others follow.
fn visit_poll(poll: &mut Poll, client: ClientId, visit: Visitor<'_>) {
    visit(Number::Poll(client, &mut poll.number));
    for (owner, seq) in (client..).zip(&mut poll.asked) {
        visit(Number::Seq(owner, seq));
    }
}

impl Request {
    fn visit_numbers(&mut self, owner: OwnerId, visit: Visitor<'_>) {
        let mut numbers = |token: Option<&mut Token>, seqs: [Option<&mut Seq>; 2]| {
            token.into_iter().for_each(|token| visit(Number::Token(token)));
            seqs.into_iter().flatten().for_each(|seq| visit(Number::Seq(owner, seq)));
        };
        match self {
            Self::Acquire { seq, nested, .. } => numbers(nested.as_mut().map(|it| &mut it.token), [Some(seq), None]),
            Self::Leave { seq, attempt, .. } => numbers(None, [Some(seq), Some(attempt)]),
            Self::Release { seq, token, attempt, .. } => numbers(Some(token), [Some(seq), Some(attempt)]),
            Self::Renew { token, only, .. } => numbers(Some(token), [Some(only), None]),
            Self::Give { seq, token, .. } => numbers(Some(token), [Some(seq), None]),
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
            Self::Acquired(Acquired::Held { token, .. } | Acquired::Queued { floor: token })
            | Self::Released(Released::Freed { token }) => visit(Number::Token(token)),
            _ => {}
        }
    }
}

impl Polled {
    fn visit_numbers(&mut self, visit: Visitor<'_>) {
        visit(Number::Token(&mut self.floor));
        for place in &mut self.places {
            if let Place::Granted { token, .. } = place {
                visit(Number::Token(token));
            }
        }
    }
}
