//! The promises P1-P5 and P9 as properties of single states.

use std::collections::BTreeSet;

use stateright::Property;

use crate::bounds::Fault;
use crate::ghost::Violation;
use crate::handle::Handle;
use crate::network::{HANDLES, OwnerId, Seq, Ticket};
use crate::owner::{Hold, Owner, Stage};
use crate::protocol::{Protocol, State};
use crate::rules::Rules;
use crate::settle;

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("P1 exclusion", exclusion),
        Property::always("P1 backed by the server", backed),
        Property::always("P2 tokens grow", tokens_grow),
        Property::always("P2 tokens are unique", tokens_are_unique),
        Property::always("P3 no overtaking", no_overtaking),
        Property::always("P3 no place is lost", no_place_is_lost),
        Property::always("P3 served once", served_once),
        Property::always("P4 count exact", count_exact),
        Property::always("P5 nothing left behind", nothing_left_behind),
        Property::always("P9 tickets are queued", tickets_are_queued),
        Property::always("P9 waiters can poll", waiters_can_poll),
        Property::always("P9 no waiter is stuck", settle::no_waiter_is_stuck),
    ]
}

fn owners(state: &State) -> impl Iterator<Item = (OwnerId, &Owner)> {
    (0..).zip(&state.owners)
}

fn holds(state: &State) -> impl Iterator<Item = (OwnerId, &Hold)> {
    owners(state).filter_map(|(id, owner)| match &owner.stage {
        Stage::Holding(hold) => Some((id, hold)),
        _ => None,
    })
}

/// The clients that consider the lock theirs at this instant.
fn local_holders<'a>(rules: &'a Rules, state: &'a State) -> impl Iterator<Item = (OwnerId, &'a Hold)> {
    holds(state).filter(|(_, hold)| hold.is_valid(state.now, rules))
}

/// The handles on which somebody relies at this instant.
fn handles(state: &State) -> impl Iterator<Item = (OwnerId, &Handle)> {
    let relied_on = |handle: &&Handle| handle.is_relied_on(state.now) && handle.token > state.ghost.exempt_up_to;
    (HANDLES..).zip(&state.handles).filter(move |(_, handle)| relied_on(handle))
}

/// The same without holds that were ended by force_unlock or lost with the server's data: their clients learn of it
/// later.
fn known_holders<'a>(rules: &'a Rules, state: &'a State) -> impl Iterator<Item = (OwnerId, &'a Hold)> {
    local_holders(rules, state).filter(|(_, hold)| hold.token > state.ghost.exempt_up_to)
}

/// P1: at most one client has a guard whose deadline is in the future. With `strict_restart` what the server has
/// forgotten counts too (R14).
fn exclusion(protocol: &Protocol, state: &State) -> bool {
    let rules = &protocol.rules;
    let guards =
        if protocol.bounds.strict { local_holders(rules, state).count() } else { known_holders(rules, state).count() };
    guards + handles(state).count() <= 1
}

/// Implies P1: the server agrees with each local holder, at least until the local deadline (R5).
fn backed(protocol: &Protocol, state: &State) -> bool {
    let is_backed = |(id, handle): (OwnerId, &Handle)| {
        let lock = state.server.held_by(id);
        lock.is_some_and(|lock| lock.token == handle.token && lock.expires >= handle.until)
    };
    let mut handles = handles(state);
    handles.all(is_backed)
        && known_holders(&protocol.rules, state).all(|(id, hold)| {
            let lock = state.server.held_by(id);
            lock.is_some_and(|lock| lock.token == hold.token && lock.expires >= hold.deadline)
        })
}

/// P2: each free -> held gives a greater token than all before it.
fn tokens_grow(_: &Protocol, state: &State) -> bool {
    state.ghost.violation != Some(Violation::TokenDidNotGrow)
}

/// P2, for all holds that clients remember, valid or not.
fn tokens_are_unique(_: &Protocol, state: &State) -> bool {
    let tokens: BTreeSet<_> = holds(state).map(|(_, hold)| hold.token).collect();
    tokens.len() == holds(state).count()
}

/// P3: no acquire takes a free lock, and no grant is made, while a ticket that came earlier is alive and its client
/// reachable.
fn no_overtaking(_: &Protocol, state: &State) -> bool {
    state.ghost.violation != Some(Violation::Overtaken)
}

/// P3: a ticket whose client is heard keeps its place until it is granted the lock or leaves, whatever else
/// happens.
fn no_place_is_lost(_: &Protocol, state: &State) -> bool {
    state.ghost.violation != Some(Violation::PlaceLost)
}

/// P3: an attempt that owns the lock no longer waits.
fn served_once(_: &Protocol, state: &State) -> bool {
    let served = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    served.is_none_or(|ticket| !state.server.tickets.contains_key(&ticket))
}

/// P4: at rest the server's count equals the number of guards. Late copies of earlier requests may
/// still be in flight and must not change that.
fn count_exact(_: &Protocol, state: &State) -> bool {
    holds(state).filter(|(_, hold)| hold.is_settled()).all(|(id, hold)| {
        let lock = state.server.held_by(id).filter(|lock| lock.token == hold.token);
        lock.is_none_or(|lock| lock.holds == hold.guards)
    })
}

/// P5, R9, R11: for each ticket or hold on the server, the client still wants it or retries a leave
/// that will end it. A copy in flight does not count as such a leave: it may be lost. Without the tombstones,
/// after FLUSHALL, a late acquire may leave something behind. It blocks others no longer than a grant, or a lease
/// ("P9 no waiter is stuck").
fn nothing_left_behind(protocol: &Protocol, state: &State) -> bool {
    if state.ghost.fault == Some(Fault::Flush) {
        return true;
    }
    let wanted = |ticket: Ticket| {
        if ticket.owner >= HANDLES {
            return state.handles[usize::from(ticket.owner - HANDLES)].is_wanted();
        }
        let owner = &state.owners[usize::from(ticket.owner)];
        is_wanted(owner, ticket.seq) || owner.is_leaving(ticket.seq)
    };
    let owner = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    let is_alive = |ticket: &&Ticket| state.server.alive_until(**ticket, state.now, &protocol.bounds).is_some();
    let live = state.server.tickets.keys().filter(is_alive);
    owner.into_iter().chain(live.copied()).all(wanted)
}

/// Whether the seq belongs to the current attempt or hold. A hold covers later seqs too: it ends
/// with a request that ends all of the owner's earlier ones.
fn is_wanted(owner: &Owner, seq: Seq) -> bool {
    match &owner.stage {
        Stage::Idle => false,
        Stage::Acquiring { seq: ours, .. } | Stage::Waiting { seq: ours, .. } => seq == *ours,
        Stage::Holding(hold) => seq >= hold.attempt,
    }
}

/// P9: each ticket has a place in the list, and only one. Without one `advance` would never find it, and a poll that
/// asks for it would not say so. And each place has its ticket, or the list would grow with every waiter that left.
fn tickets_are_queued(_: &Protocol, state: &State) -> bool {
    let places = |ticket: &Ticket| state.server.queue.iter().filter(|other| *other == ticket).count();
    let deleted = matches!(state.ghost.fault, Some(Fault::DeleteQueue | Fault::DeleteDeadlines));
    let mut tickets = state.server.tickets.keys();
    deleted || state.server.queue.len() == tickets.len() && tickets.all(|ticket| places(ticket) == 1)
}

/// P9: a waiter with no message in flight can poll, so a lost push never leaves it stuck.
fn waiters_can_poll(protocol: &Protocol, state: &State) -> bool {
    (0..).zip(&state.clients).all(|(id, client)| {
        let mut owners = protocol.bounds.owners_of(id).filter_map(|owner| state.owners.get(usize::from(owner)));
        let waits = owners.any(|owner| owner.waiting_seq().is_some());
        let in_flight = client.poll.is_some_and(|poll| state.network.has_poll(id, poll.number));
        !waits || in_flight || protocol.may_poll(state, id)
    })
}
