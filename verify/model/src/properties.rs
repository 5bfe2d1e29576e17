//! The promises, as far as a state can show them broken.

use std::collections::BTreeSet;

use stateright::Property;

use crate::client::{Client, Hold, Stage};
use crate::network::{ClientId, Seq};
use crate::protocol::{Protocol, State, Wrong};
use crate::server::Ticket;

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("P1 exclusion", exclusion),
        Property::always("P1 backed by the server", backed),
        Property::always("P2 tokens grow", tokens_grow),
        Property::always("P2 tokens are unique", tokens_are_unique),
        Property::always("P3 no overtaking", no_overtaking),
        Property::always("P3 served once", served_once),
        Property::always("P4 count exact", count_exact),
        Property::always("P5 nothing left behind", nothing_left_behind),
        Property::always("P9 a place is in the list", places_are_in_the_list),
        Property::always("P9 nobody waits unheard", nobody_waits_unheard),
    ]
}

fn clients(state: &State) -> impl Iterator<Item = (ClientId, &Client)> {
    (0..).zip(&state.clients)
}

fn holds(state: &State) -> impl Iterator<Item = (ClientId, &Hold)> {
    clients(state).filter_map(|(id, client)| match &client.stage {
        Stage::Holding(hold) => Some((id, hold)),
        _ => None,
    })
}

/// Those who believe, at this instant, that they hold the lock. Who held it when it was ended by
/// force, or when the server lost its data, may believe it for a while; nobody else may.
fn believers(state: &State) -> impl Iterator<Item = (ClientId, &Hold)> {
    holds(state).filter(|(_, hold)| hold.is_valid(state.now) && hold.token > state.ghost.excused)
}

/// P1: at most one has a guard and a deadline in the future.
fn exclusion(_: &Protocol, state: &State) -> bool {
    believers(state).count() <= 1
}

/// Why P1 holds, and stronger: what a client believes is so on the server, and lasts until then.
fn backed(_: &Protocol, state: &State) -> bool {
    believers(state).all(|(id, hold)| {
        let lock = state.server.held_by(id);
        lock.is_some_and(|lock| lock.token == hold.token && lock.expires >= hold.deadline)
    })
}

/// P2: each free -> held gives a greater token than all before it.
fn tokens_grow(_: &Protocol, state: &State) -> bool {
    state.ghost.wrong != Some(Wrong::TokenDidNotGrow)
}

/// P2, for all holds, valid or not.
fn tokens_are_unique(_: &Protocol, state: &State) -> bool {
    let tokens: BTreeSet<_> = holds(state).map(|(_, hold)| hold.token).collect();
    tokens.len() == holds(state).count()
}

/// P3: nobody takes a free lock past a live ticket of somebody else. (Grants go to the first live
/// ticket because `advance` looks at nothing else.)
fn no_overtaking(_: &Protocol, state: &State) -> bool {
    state.ghost.wrong != Some(Wrong::Overtaken)
}

/// P3: who owns the lock waits no more for the same attempt. The list may have a ticket twice
/// (decision 15), but only until one of its places is served.
fn served_once(_: &Protocol, state: &State) -> bool {
    let served = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    served.is_none_or(|ticket| !state.server.deadlines.contains_key(&ticket))
}

/// P4: a client that has nothing to say counts as many guards as the server does, whatever late
/// copies of its requests are still under way.
fn count_exact(_: &Protocol, state: &State) -> bool {
    holds(state).filter(|(_, hold)| hold.is_settled()).all(|(id, hold)| {
        let lock = state.server.held_by(id).filter(|lock| lock.token == hold.token);
        lock.is_none_or(|lock| lock.holds == hold.guards)
    })
}

/// P5, R9, R11: what the server has of a client, the client still wants, or a leave of it is not
/// answered yet. Copies that may be lost do not count.
fn nothing_left_behind(_: &Protocol, state: &State) -> bool {
    let wanted = |ticket: Ticket| {
        let client = &state.clients[usize::from(ticket.owner)];
        is_wanted(client, ticket.seq) || client.is_leaving(ticket.seq)
    };
    let owner = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    let live = state.server.deadlines.keys().filter(|ticket| state.server.is_alive(**ticket, state.now));
    owner.into_iter().chain(live.copied()).all(wanted)
}

/// The attempt itself, or the hold that came of it. A hold ends with a request that ends all the
/// owner has up to then, so it answers for later seqs too.
fn is_wanted(client: &Client, seq: Seq) -> bool {
    match &client.stage {
        Stage::Idle => false,
        Stage::Asking { seq: ours, .. } | Stage::Waiting { seq: ours, .. } => seq == *ours,
        Stage::Holding(hold) => seq >= hold.attempt,
    }
}

/// P9: who is alive has a place where `advance` can find it, or it would be told "queued" for ever.
fn places_are_in_the_list(_: &Protocol, state: &State) -> bool {
    state.server.deadlines.keys().all(|ticket| state.server.queue.contains(ticket))
}

/// P9: a waiter to whom nothing is under way can ask, whatever became of its pushes.
fn nobody_waits_unheard(protocol: &Protocol, state: &State) -> bool {
    clients(state).all(|(id, client)| {
        let waits = matches!(client.stage, Stage::Waiting { .. });
        let heard = state.network.of(id).next().is_some() || client.may_poll(id, &state.network, &protocol.rules);
        !waits || heard
    })
}
