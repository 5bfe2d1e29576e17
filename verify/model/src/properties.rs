//! The promises as properties of single states.

use stateright::Property;

use crate::network::{ClientId, NodeId};
use crate::node::Node;
use crate::protocol::{Quorum, State};
use crate::settle;

pub fn all() -> Vec<Property<Quorum>> {
    vec![
        Property::always("P1 exclusion", exclusion),
        Property::always("P2 tokens grow", tokens_grow),
        Property::always("P2 the valid guard has the greatest token", greatest_token),
        Property::always("P5 nothing left behind", nothing_left_behind),
        Property::always(settle::NAME, settle::no_waiter_is_stuck),
    ]
}

/// Clients with a valid guard, without those whose raised hold a force_unlock has ended: they learn of it later.
fn valid<'a>(quorum: &'a Quorum, state: &'a State) -> impl Iterator<Item = ClientId> + 'a {
    let Quorum { rules, bounds, .. } = quorum;
    let is_valid = |id: &ClientId| state.clients[usize::from(*id)].is_valid(state.now, *rules, bounds);
    (0..bounds.clients).filter(is_valid).filter(|id| !state.ghost.forced.contains(id))
}

/// P1
fn exclusion(quorum: &Quorum, state: &State) -> bool {
    valid(quorum, state).count() <= 1
}

/// P2: a new guard has a greater token than every guard before it.
fn tokens_grow(_: &Quorum, state: &State) -> bool {
    !state.ghost.token_did_not_grow
}

/// P2: no guard stays valid after another one forms: a resource that has seen the later token would refuse it.
fn greatest_token(quorum: &Quorum, state: &State) -> bool {
    valid(quorum, state).all(|id| {
        let guard = state.clients[usize::from(id)].guard(quorum.rules, &quorum.bounds);
        guard.is_none_or(|(token, _)| token >= state.ghost.last)
    })
}

/// P5, Q6: the client of each hold and of each place in a queue still wants it, or sends leaves until it ends. A node
/// that came back with old data may keep a hold until its lease expires (settle.rs).
fn nothing_left_behind(_: &Quorum, state: &State) -> bool {
    let is_wanted = |node: NodeId, client: ClientId, seq| state.clients[usize::from(client)].answers_for(node, seq);
    let is_tidy = |(id, node): (NodeId, &Node)| {
        let holds = node.data.hold.iter().map(|hold| (hold.client, hold.seq));
        holds.chain(node.data.queue.iter().copied()).all(|(client, seq)| is_wanted(id, client, seq))
    };
    state.ghost.old_data || (0..).zip(&state.nodes).all(is_tidy)
}
