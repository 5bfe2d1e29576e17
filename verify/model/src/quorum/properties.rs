//! The promises as properties of single states.

use stateright::Property;

use super::network::{ClientId, NodeId};
use super::protocol::{Quorum, State};
use super::settle;

pub fn all() -> Vec<Property<Quorum>> {
    vec![
        Property::always("P1 exclusion", exclusion),
        Property::always("P2 tokens grow", tokens_grow),
        Property::always("P2 the valid guard has the greatest token", greatest_token),
        Property::always("P5 nothing left behind", nothing_left_behind),
        Property::always(settle::NAME, settle::no_waiter_is_stuck),
    ]
}

/// Clients with a guard that is valid at this instant. One whose raised hold was ended by force_unlock learns of it
/// later.
fn valid<'a>(quorum: &'a Quorum, state: &'a State) -> impl Iterator<Item = ClientId> + 'a {
    let Quorum { rules, bounds, .. } = quorum;
    let is_valid = |id: &ClientId| state.clients[usize::from(*id)].is_valid(state.now, rules, bounds);
    (0..bounds.clients).filter(is_valid).filter(|id| !state.ghost.forced.contains(id))
}

/// P1
fn exclusion(quorum: &Quorum, state: &State) -> bool {
    valid(quorum, state).count() <= 1
}

/// P2: a guard has a greater token than all that were formed before it, when it is formed.
fn tokens_grow(_: &Quorum, state: &State) -> bool {
    !state.ghost.token_did_not_grow
}

/// P2: no guard is valid after another one was formed: a resource that has seen the other's token would refuse it.
fn greatest_token(quorum: &Quorum, state: &State) -> bool {
    valid(quorum, state).all(|id| {
        let guard = state.clients[usize::from(id)].guard(&quorum.rules, &quorum.bounds);
        guard.is_none_or(|(token, _)| token >= state.ghost.last)
    })
}

/// P5, Q6: for each hold and each place in a queue its client still wants it, or leaves again until it is ended. After a
/// node came back with old data a hold may be left until its lease is over (settle.rs).
fn nothing_left_behind(_: &Quorum, state: &State) -> bool {
    let is_wanted = |node: NodeId, client: ClientId, seq| state.clients[usize::from(client)].answers_for(node, seq);
    let is_tidy = |(id, node): (NodeId, &super::node::Node)| {
        let holds = node.data.hold.iter().map(|hold| (hold.client, hold.seq));
        holds.chain(node.data.queue.iter().copied()).all(|(client, seq)| is_wanted(id, client, seq))
    };
    state.ghost.old_data || (0..).zip(&state.nodes).all(is_tidy)
}
