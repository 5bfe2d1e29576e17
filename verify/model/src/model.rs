//! The protocol as states and actions, for searches and random walks.

use stateright::{Model, Property};

use crate::client::Client;
use crate::events::EventSet;
use crate::network::{Network, NodeId};
use crate::node::Node;
use crate::properties;
use crate::protocol::{Action, Ghost, Quorum, State};

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let bounds = &self.bounds;
        let node = |clocks: u8, id: NodeId| {
            let ahead = if clocks >> id & 1 == 1 { bounds.clocks_apart } else { 0 };
            Node::new(ahead, !bounds.dead.contains(&id), bounds)
        };
        let state = |clocks: &u8| State {
            now: 0,
            nodes: (0..bounds.nodes).map(|id| node(*clocks, id)).collect(),
            clients: (0..bounds.clients).map(|_| Client::new(bounds)).collect(),
            network: Network::default(),
            cut: bounds.cut.to_vec(),
            ghost: Ghost::default(),
        };
        bounds.clocks_ahead.iter().map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        if state.now < bounds.end {
            actions.push(Action::Tick);
        }
        (0..bounds.clients).for_each(|id| self.client_actions(state, id, actions));
        (0..bounds.nodes).for_each(|id| self.node_actions(state, id, actions));
        for message in state.network.iter() {
            if state.reaches(message.client, message.node) || !message.body.is_request() {
                actions.push(Action::Deliver(*message));
                if bounds.repeats {
                    actions.push(Action::DeliverCopy(*message));
                }
            }
            if bounds.lossy || !state.reaches(message.client, message.node) {
                actions.push(Action::LoseMessage(*message));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        let mut events = EventSet::default();
        self.apply(&mut state, action, &mut events);
        if self.bounds.prompt_leaves {
            self.deliver_leaves(&mut state, &mut events);
        }
        if self.bounds.cuts + self.bounds.deaths == 0 {
            self.skip_unreachable(&mut state, &mut events);
        }
        self.prune(&mut state, &mut events);
        if state.network.len() > self.bounds.in_flight {
            return None;
        }
        self.reached.note(events);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
