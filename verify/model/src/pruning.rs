//! Pruning: messages and tombstones that can have no effect any longer are taken out of a state.
//! This keeps the state space small and loses no behaviour. Where only a rule makes a late message
//! harmless, and the run drops that rule, the message stays.
//!
//! Any script may also pass on a free lock. A pruned message does not, but `Action::PassOn` is
//! always possible in its place.

use crate::bounds::Bounds;
use crate::client::Client;
use crate::ghost::{Event, EventSet};
use crate::handle::Handle;
use crate::network::{HANDLES, Message, Nested, OwnerId, Request, Seq, Ticket, Time, Token};
use crate::owner::{Owner, Stage};
use crate::protocol::State;
use crate::rules::Rules;
use crate::server::{Lock, Server};

pub struct Pruning<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
}

impl Pruning<'_> {
    pub fn prune(&self, state: &mut State, events: &mut EventSet) {
        let State { now, server, owners, handles, clients, network, .. } = state;
        network.retain(|message| self.has_effect(message, *now, server, (owners, handles), clients, events));
        let in_flight: Vec<_> = network.iter().copied().collect();
        network.retain(|message| self.may_end_something(message, server, owners, &in_flight));
        if self.rules.r3_tombstone {
            // A tombstone matters only to an acquire that it would refuse.
            let lock = server.lock;
            server.tombstones.retain(|owner, tombstone| {
                if *owner >= HANDLES {
                    let token = handles[usize::from(*owner - HANDLES)].token;
                    return lock.is_some_and(|lock| lock.token == token);
                }
                acquire_may_come(*owner, tombstone.seq, &owners[usize::from(*owner)], network.iter())
            });
        }
    }

    /// Whether the message can change anything at its destination, now or later.
    fn has_effect(
        &self,
        message: &Message,
        now: Time,
        server: &Server,
        (owners, handles): (&[Owner], &[Handle]),
        clients: &[Client],
        events: &mut EventSet,
    ) -> bool {
        match message {
            Message::Reply { to, request, .. } if *to >= HANDLES => handles[usize::from(to - HANDLES)].awaits(request),
            Message::ToServer { from, request } if *from >= HANDLES => {
                let handle = handles[usize::from(from - HANDLES)];
                handle.awaits(request) || is_held_under(handle.token, server)
            }
            Message::Reply { to, request, .. } => owners[usize::from(*to)].awaits(request),
            Message::Pushed { to, push } => owners[usize::from(*to)].may_use(push, self.rules),
            Message::PollReply { to, poll, .. } => clients[usize::from(*to)].awaits(poll),
            // A late poll still keeps its client alive, as long as that has or may get a ticket.
            Message::PollToServer { from, poll } => {
                let is_over = |owner: OwnerId| {
                    let has_ticket = server.tickets.keys().any(|ticket| ticket.owner == owner);
                    let owner = owners.get(usize::from(owner));
                    !has_ticket && owner.is_none_or(|owner| owner.stage == Stage::Idle && !owner.may_start())
                };
                clients[usize::from(*from)].awaits(poll) || !self.bounds.owners_of(*from).all(is_over)
            }
            Message::ToServer { from, request } => {
                let owner = &owners[usize::from(*from)];
                match *request {
                    Request::Acquire { seq, sent, nested, .. } => {
                        !self.is_refused(*from, seq, sent, now, server, events)
                            && (owner.awaits(request) || self.may_reenter(*from, seq, nested, server))
                    }
                    // Tokens never come back (P2).
                    Request::Give { token, sent, .. } => {
                        let is_late = now > self.bounds.not_after(sent) && self.rules.r16_attach_heeds_leave;
                        owner.awaits(request) || !is_late && is_held_under(token, server)
                    }
                    Request::Renew { token, .. } | Request::Extend { token, .. } => {
                        owner.awaits(request) || self.may_renew(token, server)
                    }
                    Request::Release { holds: 1.., seq, token, .. } => {
                        owner.awaits(request) || held_under(*from, token, server).is_some_and(|lock| lock.attempt < seq)
                    }
                    Request::Leave { .. } | Request::Release { .. } => true,
                }
            }
        }
    }

    /// R2, R3: refused whenever it arrives. A client that still awaits the answer only retries.
    fn is_refused(
        &self,
        from: OwnerId,
        seq: Seq,
        sent: Time,
        now: Time,
        server: &Server,
        events: &mut EventSet,
    ) -> bool {
        let not_after = self.bounds.not_after(sent);
        let tombstone = server.tombstones.get(&from).filter(|tombstone| tombstone.seq >= seq);
        let refused = tombstone.is_some_and(|tombstone| tombstone.until > not_after);
        if refused {
            events.add(Event::TombstoneRefused);
        }
        self.rules.r2_not_after && (now > not_after || refused)
    }

    /// A nested acquire finds "lost" once the token of its hold is gone: tokens never come back (P2).
    fn may_reenter(&self, from: OwnerId, seq: Seq, nested: Option<Nested>, server: &Server) -> bool {
        let Some(nested) = nested else { return true };
        let is_stale = |lock: Lock| lock.attempt > seq && self.rules.r16_extend_compares_seq;
        held_under(from, nested.token, server).is_some_and(|lock| !is_stale(lock))
    }

    fn may_renew(&self, token: Token, server: &Server) -> bool {
        let checked = self.rules.r4_renew_compares_token && self.rules.r4_renew_only_extends;
        !checked || server.lock.is_some_and(|lock| lock.token == token)
    }

    /// False for a leave, or a release to 0, that would find nothing to end, however late it comes.
    fn may_end_something(&self, message: &Message, server: &Server, owners: &[Owner], in_flight: &[Message]) -> bool {
        let Message::ToServer { from, request } = *message else { return true };
        let (Request::Leave { seq, attempt, .. } | Request::Release { seq, attempt, holds: 0, .. }) = request else {
            return true;
        };
        if from >= HANDLES {
            return true;
        }
        let owner = &owners[usize::from(from)];
        let finds_something = server.held_by(from).is_some_and(|lock| lock.attempt <= seq)
            || server.tickets.contains_key(&Ticket { owner: from, seq: attempt })
            || server.queue.contains(&Ticket { owner: from, seq: attempt });
        !self.rules.r4_ends_compare_seq
            || owner.awaits(&request)
            || finds_something
            || acquire_may_come(from, seq, owner, in_flight.iter())
    }
}

fn is_held_under(token: Token, server: &Server) -> bool {
    server.lock.is_some_and(|lock| lock.token == token)
}

fn held_under(owner: OwnerId, token: Token, server: &Server) -> Option<Lock> {
    server.held_by(owner).filter(|lock| lock.token == token)
}

/// Whether an acquire with a seq up to `up_to` is in flight or may still be sent.
fn acquire_may_come<'a>(
    id: OwnerId,
    up_to: Seq,
    owner: &Owner,
    mut in_flight: impl Iterator<Item = &'a Message>,
) -> bool {
    let acquires = |request: &Request| match *request {
        Request::Acquire { seq, .. } => seq <= up_to,
        Request::Give { to, seq, .. } => to == id && seq <= up_to,
        _ => false,
    };
    owner.may_send_acquire(up_to)
        || in_flight.any(|message| match message {
            Message::ToServer { from, request } => *from == id && acquires(request),
            _ => false,
        })
}
