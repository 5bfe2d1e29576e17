//! Forgetting: what is under way, or on the server, and can change nothing any more goes out of
//! the state. It keeps the space small and loses no behaviour. Where a dropped rule is what makes
//! a late message harmless, the message stays.
//!
//! A script may also pass a free lock on, whoever runs it. A forgotten one does not; `Clear` is
//! always on offer for that.

use crate::client::Client;
use crate::network::{ClientId, Message, Nested, Network, Request, Seq, Time, Token};
use crate::protocol::{Bounds, Seen, Sight, State};
use crate::rules::Rules;
use crate::server::{Lock, Server, Ticket};

pub struct Oblivion<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
}

impl Oblivion<'_> {
    pub fn forget(&self, state: &mut State, seen: &mut Seen) {
        let State { now, server, clients, network, .. } = state;
        network.retain(|message| self.may_arrive(message, *now, server, clients, seen));
        let late: Vec<_> = network.iter().copied().collect();
        network.retain(|message| self.may_end_something(message, server, clients, &late));
        if self.rules.r3_tombstone {
            server.tombstones.retain(|owner, tombstone| {
                may_be_asked_for(*owner, tombstone.seq, &clients[usize::from(*owner)], network)
            });
        }
    }

    /// Whether it has an effect on whom it reaches, as things are.
    fn may_arrive(&self, message: &Message, now: Time, server: &Server, clients: &[Client], seen: &mut Seen) -> bool {
        let client = &clients[usize::from(message.client())];
        match message {
            Message::Reply { request, .. } => client.awaits(request),
            Message::Pushed { push, .. } => client.may_care_for(push, self.rules),
            Message::ToServer { from, request } => match *request {
                Request::Acquire { seq, sent, nested, .. } => {
                    !self.is_refused(*from, seq, sent, now, server, seen)
                        && (client.awaits(request) || self.may_enter(*from, seq, nested, server))
                }
                Request::Renew { token, .. } => client.awaits(request) || self.may_renew(token, server),
                Request::Poll { seq, .. } => client.awaits(request) || has_place(*from, seq, server),
                Request::Release { holds: 1.., seq, token, .. } => {
                    client.awaits(request) || held_under(*from, token, server).is_some_and(|lock| lock.attempt < seq)
                }
                Request::Leave { .. } | Request::Release { .. } => true,
            },
        }
    }

    /// R2, R3: refused whenever it comes. Whoever still waits for the answer would only ask again.
    fn is_refused(&self, from: ClientId, seq: Seq, sent: Time, now: Time, server: &Server, seen: &mut Seen) -> bool {
        let not_after = self.bounds.not_after(sent);
        let buried = server.tombstones.get(&from).filter(|tombstone| tombstone.seq >= seq);
        let refused = buried.is_some_and(|tombstone| tombstone.until > not_after);
        if refused {
            seen.add(Sight::TombstoneRefused);
        }
        self.rules.r2_not_after && (now > not_after || refused)
    }

    /// A nested acquire that came too late for its hold answers "lost"; tokens do not come back.
    fn may_enter(&self, from: ClientId, seq: Seq, nested: Option<Nested>, server: &Server) -> bool {
        let Some(nested) = nested else { return true };
        held_under(from, nested.token, server).is_some_and(|lock| lock.attempt <= seq)
    }

    fn may_renew(&self, token: Token, server: &Server) -> bool {
        let checked = self.rules.r4_renew_compares_token && self.rules.r4_renew_only_extends;
        !checked || server.lock.is_some_and(|lock| lock.token == token)
    }

    /// A leave, or a release to 0, to which nothing is left to end, nor can come.
    fn may_end_something(&self, message: &Message, server: &Server, clients: &[Client], late: &[Message]) -> bool {
        let Message::ToServer { from, request } = *message else { return true };
        let (Request::Leave { seq, attempt, .. } | Request::Release { seq, attempt, holds: 0, .. }) = request else {
            return true;
        };
        let client = &clients[usize::from(from)];
        let there = server.held_by(from).is_some_and(|lock| lock.attempt <= seq)
            || server.deadlines.contains_key(&Ticket { owner: from, seq: attempt });
        !self.rules.r4_ends_compare_seq || client.awaits(&request) || there || asked_for(from, seq, client, late.iter())
    }
}

fn held_under(owner: ClientId, token: Token, server: &Server) -> Option<Lock> {
    server.held_by(owner).filter(|lock| lock.token == token)
}

fn has_place(owner: ClientId, seq: Seq, server: &Server) -> bool {
    let held = server.held_by(owner).is_some_and(|lock| lock.attempt == seq);
    held || server.deadlines.contains_key(&Ticket { owner, seq })
}

fn may_be_asked_for(owner: ClientId, up_to: Seq, client: &Client, network: &Network) -> bool {
    asked_for(owner, up_to, client, network.iter())
}

/// Whether an acquire of a seq up to this one is under way, or may be sent.
fn asked_for<'a>(owner: ClientId, up_to: Seq, client: &Client, mut network: impl Iterator<Item = &'a Message>) -> bool {
    let asks = |request: &Request| matches!(*request, Request::Acquire { seq, .. } if seq <= up_to);
    client.asks_up_to(up_to)
        || network.any(|message| match message {
            Message::ToServer { from, request } => *from == owner && asks(request),
            _ => false,
        })
}
