//! Pruning, as in the lock's model: messages and tombstones that can have no effect any longer are taken out of a state. Any
//! script may also pass on; a pruned message does not, but `Action::PassOn` is possible in its place.

use super::bounds::Bounds;
use super::events::{Event, EventSet};
use super::handle::Handle;
use super::network::{HANDLES, Message, OwnerId, Request, Seq, Ticket, Time, Token};
use super::owner::{Owner, Stage};
use super::poller::Client;
use super::protocol::State;
use super::rules::Rules;
use super::server::{Holder, Server};

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
            let holders = &server.holders;
            server.tombstones.retain(|owner, tombstone| {
                if *owner >= HANDLES {
                    let token = handles[usize::from(*owner - HANDLES)].token;
                    return holders.iter().any(|(_, holder)| holder.token == token);
                }
                acquire_may_come(*owner, tombstone.seq, &owners[usize::from(*owner)], network.iter())
            });
        }
    }

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
                handle.awaits(request) || server.holder_under(handle.token).is_some()
            }
            Message::Reply { to, request, .. } => owners[usize::from(*to)].awaits(request),
            Message::Pushed { to, push } => owners[usize::from(*to)].may_use(push, self.rules),
            Message::PollReply { to, poll, .. } => clients[usize::from(*to)].awaits(poll),
            // A late poll still keeps its client alive.
            Message::PollToServer { from, poll } => {
                let is_over = |owner: OwnerId| {
                    let has_place = server.queue.iter().any(|ticket| ticket.owner == owner);
                    let owner = owners.get(usize::from(owner));
                    !has_place && owner.is_none_or(|owner| owner.stage == Stage::Idle && !owner.may_start())
                };
                clients[usize::from(*from)].awaits(poll) || !self.bounds.owners_of(*from).all(is_over)
            }
            Message::ToServer { from, request } => {
                let owner = &owners[usize::from(*from)];
                match *request {
                    Request::Acquire { seq, sent, nested, .. } => {
                        let reenters = nested.is_none_or(|nested| {
                            held_under(*from, nested.token, server).is_some_and(|holder| holder.attempt <= seq)
                        });
                        !self.is_refused(*from, seq, sent, now, server, events) && (owner.awaits(request) || reenters)
                    }
                    // Tokens never come back (P2).
                    Request::Give { token, sent, .. } => {
                        let is_late = now > self.bounds.not_after(sent) && self.rules.r16_attach_heeds_leave;
                        owner.awaits(request) || !is_late && server.holder_under(token).is_some()
                    }
                    Request::Renew { token, .. } => {
                        let checked = self.rules.r4_renew_compares_token && self.rules.r4_renew_only_extends;
                        owner.awaits(request) || !checked || held_under(*from, token, server).is_some()
                    }
                    Request::Release { holds: 1.., seq, token, .. } => {
                        let sets =
                            |holder: &Holder| holder.attempt < seq || !self.rules.shrink_sets && holder.attempt == seq;
                        owner.awaits(request) || held_under(*from, token, server).as_ref().is_some_and(sets)
                    }
                    Request::Leave { .. } | Request::Release { .. } => true,
                }
            }
        }
    }

    /// R2, R3: refused whenever it arrives.
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
        let finds_something = server.holders.get(&from).is_some_and(|holder| holder.attempt <= seq)
            || server.queue.contains(&Ticket { owner: from, seq: attempt });
        !self.rules.r4_ends_compare_seq
            || !self.rules.r4_last_served_per_owner
            || owner.awaits(&request)
            || finds_something
            || acquire_may_come(from, seq, owner, in_flight.iter())
    }
}

fn held_under(owner: OwnerId, token: Token, server: &Server) -> Option<Holder> {
    server.holders.get(&owner).copied().filter(|holder| holder.token == token)
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
