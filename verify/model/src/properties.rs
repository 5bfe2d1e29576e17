//! The promises P1-P5 and P9 as properties of single states.

use std::collections::BTreeSet;

use stateright::Property;

use crate::client::{Client, Hold, Stage};
use crate::network::{ClientId, Seq};
use crate::protocol::{Protocol, State, Violation};
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
        Property::always("P9 live tickets are queued", live_tickets_are_queued),
        Property::always("P9 waiters can poll", waiters_can_poll),
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

/// The clients that consider the lock theirs at this instant. Holds that were ended by force_unlock
/// or lost with the server's data are exempt: their clients learn of it later.
fn local_holders(state: &State) -> impl Iterator<Item = (ClientId, &Hold)> {
    holds(state).filter(|(_, hold)| hold.is_valid(state.now) && hold.token > state.ghost.exempt_up_to)
}

/// P1: at most one client has a guard whose deadline is in the future.
fn exclusion(_: &Protocol, state: &State) -> bool {
    local_holders(state).count() <= 1
}

/// Implies P1: the server agrees with each local holder, at least until the local deadline (R5).
fn backed(_: &Protocol, state: &State) -> bool {
    local_holders(state).all(|(id, hold)| {
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

/// P3: no acquire takes a free lock while another owner has a live ticket. (`advance` itself serves
/// the first live ticket by construction.)
fn no_overtaking(_: &Protocol, state: &State) -> bool {
    state.ghost.violation != Some(Violation::Overtaken)
}

/// P3: an attempt that owns the lock no longer waits. The list may hold two entries of one ticket
/// (decision 15), but serving one of them makes the other dead.
fn served_once(_: &Protocol, state: &State) -> bool {
    let served = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    served.is_none_or(|ticket| !state.server.deadlines.contains_key(&ticket))
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
/// that will end it. A copy in flight does not count as such a leave: it may be lost.
fn nothing_left_behind(_: &Protocol, state: &State) -> bool {
    let wanted = |ticket: Ticket| {
        let client = &state.clients[usize::from(ticket.owner)];
        is_wanted(client, ticket.seq) || client.is_leaving(ticket.seq)
    };
    let owner = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
    let live = state.server.deadlines.keys().filter(|ticket| state.server.is_alive(**ticket, state.now));
    owner.into_iter().chain(live.copied()).all(wanted)
}

/// Whether the seq belongs to the current attempt or hold. A hold covers later seqs too: it ends
/// with a request that ends all of the owner's earlier ones.
fn is_wanted(client: &Client, seq: Seq) -> bool {
    match &client.stage {
        Stage::Idle => false,
        Stage::Acquiring { seq: ours, .. } | Stage::Waiting { seq: ours, .. } => seq == *ours,
        Stage::Holding(hold) => seq >= hold.attempt,
    }
}

/// P9: each live ticket has an entry in the list. Without one `advance` would never find it, and
/// its polls would be answered "queued" until the client gives up.
fn live_tickets_are_queued(_: &Protocol, state: &State) -> bool {
    state.server.deadlines.keys().all(|ticket| state.server.queue.contains(ticket))
}

/// P9: a waiter with no message in flight can poll, so a lost push never leaves it stuck.
fn waiters_can_poll(protocol: &Protocol, state: &State) -> bool {
    clients(state).all(|(id, client)| {
        let waiting = matches!(client.stage, Stage::Waiting { .. });
        let not_stuck = state.network.of(id).next().is_some() || client.may_poll(id, &state.network, &protocol.rules);
        !waiting || not_stuck
    })
}
