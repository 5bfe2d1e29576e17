//! The protocol as a model that can be searched and walked at random.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use super::bounds::Bounds;
use super::client::Client;
use super::events::{Event, EventSet};
use super::network::{Network, NodeId};
use super::node::Node;
use super::protocol::{Action, Ghost, Quorum, State};
use super::rules::Rules;
use super::{properties, settle};
use crate::checked::Checked;
use crate::events::Reached;

impl Checked for Quorum {
    type Rules = Rules;
    type Bounds = Bounds;
    type Event = Event;

    fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, reached: Reached::default(), guards: AtomicU64::new(0) }
    }

    fn reached(&self) -> EventSet {
        self.reached.all()
    }

    fn set_bound(bounds: &mut Bounds, option: &str, value: u8) {
        match option {
            "--time" => bounds.end = value,
            "--attempts" => bounds.starts = value,
            "--retries" => bounds.retries = value,
            "--clients" => bounds.clients = value,
            "--in-flight" => bounds.in_flight = usize::from(value),
            _ => {}
        }
    }

    const KINDS: &'static [f32] = &[1.0, 8.0, 0.5, 0.15, 0.3, 0.7, 3.0];

    fn kind(action: &Action) -> usize {
        match action {
            Action::Tick => 0,
            Action::Deliver(_) => 1,
            Action::LoseMessage(_) | Action::DeliverCopy(_) => 2,
            Action::Cut(..) | Action::Die(_) | Action::Restart(..) | Action::Save(_) | Action::ForceUnlock(_) => 3,
            Action::GiveUpNode(..) | Action::Cancel(_) => 4,
            Action::Unlock(_) => 5,
            _ => 6,
        }
    }

    fn guards(&self) -> u64 {
        self.guards.load(Ordering::Relaxed)
    }

    fn broken_at_the_end(&self, state: &State) -> Option<&'static str> {
        (!settle::all_are_served(self, state)).then_some(settle::NAME)
    }
}

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
        self.note(events);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
