//! The model: clients, nodes and what is in flight between them, and the actions possible in it.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use super::client::{self, Client, Slot, Stage};
use super::network::{Body, ClientId, Message, Network, NodeId, Time, Token};
use super::node::{self, Loss, Node};
use super::rules::Rules;
use super::{properties, settle};
use crate::events::{self, Reached};
use crate::run::Checked;

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub nodes: NodeId,
    pub clients: ClientId,
    /// Of each client: attempts, failures after which it tries again, and renewals.
    pub starts: u8,
    pub retries: u8,
    pub renewals: u8,
    /// Messages in flight at once.
    pub in_flight: usize,
    /// The last tick of the clock.
    pub end: Time,
    pub lease: Time,
    pub operation_timeout: Time,
    /// The greatest difference of two clocks, which only tokens show: all else counts durations.
    pub clocks_apart: Time,
    /// Which clocks are ahead when a run begins: a bit for each node, and a first state for each of these.
    pub clocks_ahead: &'static [u8],
    /// Whether tokens follow the clock. Only restarts need that; else it would only leave gaps between tokens.
    pub clock_runs: bool,
    /// All nodes are tried in the first round trip, not after the gate is held.
    pub at_once: bool,
    /// Nodes are asked for the token that the gate has given, or for that of a clock.
    pub proposes: bool,
    /// How far the first client takes that clock to be ahead of what it is.
    pub clock_seems_ahead: Time,
    /// Requests and answers may be lost; if not, they may only be late, without bound.
    pub lossy: bool,
    /// Messages may arrive twice.
    pub repeats: bool,
    /// A node without an answer may be given up though the answer is only late.
    pub impatient: bool,
    /// A leave is served as soon as it is sent, where the node can be reached.
    pub prompt_leaves: bool,
    /// Callers give up while they wait.
    pub gives_up: bool,
    /// Nodes that never run.
    pub dead: &'static [NodeId],
    /// Who cannot reach which node from the beginning on.
    pub cut: &'static [(ClientId, NodeId)],
    /// How often a path between a client and a node may break, and a node die.
    pub cuts: u8,
    pub deaths: u8,
    /// How often a node may restart, and what it may lose.
    pub restarts: u8,
    pub losses: &'static [Loss],
    /// How often force_unlock may end a hold on one node.
    pub forced: u8,
    /// Whether each state in which nothing is in flight is followed to its end.
    pub settles: bool,
}

impl Bounds {
    pub fn majority(&self) -> usize {
        usize::from(self.nodes) / 2 + 1
    }
}

/// Ghost variables: no client or node reads them, only the properties and the bounds of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The token of the last guard that was formed.
    pub last: Token,
    pub token_did_not_grow: bool,
    /// Clients whose hold was ended by force_unlock, and that need not be raised any more. They learn of it later.
    pub forced: Vec<ClientId>,
    /// A node has come back with a hold that was ended already.
    pub old_data: bool,
    cuts: u8,
    deaths: u8,
    restarts: u8,
    force_unlocks: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Guarded,
    GuardedWithoutANode,
    BusyLeftAlone,
    Queued,
    QueuedWithHold,
    ReleasedAbove,
    PassedOn,
    NodeSkipped,
    LateAcquire,
    ProposalTaken,
    ProposedTooFar,
    GivenAlike,
    RaisedHigher,
    RaiseRefused,
    Renewed,
    LeaseExpired,
    Failed,
    Lost,
    TakenIn,
    Frozen,
    Thawed,
    Forced,
    /// The property about waiters followed a state to its end.
    Settled,
}

impl events::Event for Event {
    fn number(self) -> u64 {
        self as u64
    }
}

pub type EventSet = events::EventSet<Event>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub network: Network,
    /// Who cannot reach which node.
    pub cut: Vec<(ClientId, NodeId)>,
    pub ghost: Ghost,
}

impl State {
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[usize::from(node)]
    }

    pub fn reaches(&self, client: ClientId, node: NodeId) -> bool {
        self.node(node).alive && !self.cut.contains(&(client, node))
    }

    /// Whether a request or an answer of this attempt is on the way.
    fn has_message(&self, client: ClientId, node: NodeId, what: impl Fn(&Message) -> bool) -> bool {
        self.network.iter().any(|message| (message.client, message.node) == (client, node) && what(message))
    }

    pub fn may_give_up_node(&self, id: ClientId, node: NodeId, impatient: bool) -> bool {
        let client = &self.clients[usize::from(id)];
        let slot = client.slot(node);
        let unheard = |slot: Slot| {
            let seq = slot.seq();
            !self.reaches(id, node) || !self.has_message(id, node, |message| Some(message.seq) == seq)
        };
        match (client.stage, slot) {
            (_, Slot::Asked { sent, .. }) => unheard(slot) || impatient && self.now > sent,
            // No word of a place in the queue: its node is silent.
            (Stage::Taking, Slot::Queued { .. }) => !self.reaches(id, node),
            (Stage::Raising { .. }, Slot::Got { raised: false, .. }) => unheard(slot),
            _ => false,
        }
    }

    pub fn may_send_leave_again(&self, id: ClientId, node: NodeId) -> bool {
        let client = &self.clients[usize::from(id)];
        let is_leave = |message: &Message| message.body == Body::Leave;
        client.leaving[usize::from(node)] > 0 && self.reaches(id, node) && !self.has_message(id, node, is_leave)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(ClientId),
    Cancel(ClientId),
    GiveUpNode(ClientId, NodeId),
    Poll(ClientId, NodeId),
    Renew(ClientId),
    TakeIn(ClientId, NodeId),
    Unlock(ClientId),
    Lose(ClientId),
    LeaveAgain(ClientId, NodeId),
    Deliver(Message),
    /// The same, and a copy stays in flight.
    DeliverCopy(Message),
    LoseMessage(Message),
    Cut(ClientId, NodeId),
    Heal(ClientId, NodeId),
    Die(NodeId),
    /// With a clock that is so far ahead from then on.
    Restart(NodeId, Loss, Time),
    Save(NodeId),
    ForceUnlock(NodeId),
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Quorum {
    pub rules: Rules,
    pub bounds: Bounds,
    reached: Reached<Event>,
    guards: AtomicU64,
}

impl Quorum {
    pub fn note(&self, events: EventSet) {
        self.reached.note(events);
    }

    pub fn has_lost(&self, state: &State, id: ClientId) -> bool {
        state.clients[usize::from(id)].has_lost(state.now, &self.rules, &self.bounds)
    }

    /// Runs one step of a client.
    pub fn act(
        &self,
        state: &mut State,
        id: ClientId,
        events: &mut EventSet,
        step: impl FnOnce(&mut Client, &mut client::Context<'_>),
    ) {
        let State { now, clients, network, .. } = state;
        let (rules, bounds) = (&self.rules, &self.bounds);
        let client = &mut clients[usize::from(id)];
        let before = client.guard(rules, bounds);
        let mut cx = client::Context { id, rules, bounds, now: *now, network, events };
        step(client, &mut cx);
        if let (None, Some((token, _))) = (before, client.guard(rules, bounds)) {
            self.guards.fetch_add(1, Ordering::Relaxed);
            let exempt = state.ghost.forced.contains(&id);
            state.ghost.token_did_not_grow |= token <= state.ghost.last && !exempt;
            state.ghost.last = token;
        }
        if matches!(state.clients[usize::from(id)].stage, Stage::Idle | Stage::Failed) {
            state.ghost.forced.retain(|forced| *forced != id);
        }
    }

    pub fn at_node<T>(
        &self,
        state: &mut State,
        node: NodeId,
        events: &mut EventSet,
        step: impl FnOnce(&mut Node, &mut node::Context<'_>) -> T,
    ) -> T {
        let mut cx = node::Context { rules: &self.rules, bounds: &self.bounds, now: state.now, events };
        step(&mut state.nodes[usize::from(node)], &mut cx)
    }

    pub fn tick(&self, state: &mut State, events: &mut EventSet) {
        state.now += 1;
        for node in 0..self.bounds.nodes {
            self.at_node(state, node, events, Node::expire);
        }
    }

    pub fn deliver(&self, state: &mut State, message: Message, events: &mut EventSet) {
        let Message { client, node, seq, body, .. } = message;
        if !body.is_request() {
            self.act(state, client, events, |client, cx| client.on_answer(message, cx));
            return;
        }
        if let Some(body) = self.at_node(state, node, events, |node, cx| node.serve(message, cx)) {
            state.network.insert(Message { body, ..message });
        }
        if body == Body::Leave {
            state.clients[usize::from(client)].on_left(node, seq);
        }
    }

    /// Where no path breaks or heals, a connection that is refused is skipped at once (Q10).
    fn skip_unreachable(&self, state: &mut State, events: &mut EventSet) {
        for client in 0..self.bounds.clients {
            for node in 0..self.bounds.nodes {
                let is_asked = matches!(state.clients[usize::from(client)].slot(node), Slot::Asked { .. });
                if is_asked && !state.reaches(client, node) {
                    self.act(state, client, events, |client, cx| client.give_up_node(node, cx));
                }
            }
        }
        let State { nodes, cut, network, .. } = state;
        let is_cut = |message: &Message| cut.contains(&(message.client, message.node));
        network.retain(|message| nodes[usize::from(message.node)].alive && !is_cut(message));
    }

    fn deliver_leaves(&self, state: &mut State, events: &mut EventSet) {
        let is_leave = |message: &&Message| message.body == Body::Leave && state.reaches(message.client, message.node);
        let leaves: Vec<_> = state.network.iter().filter(is_leave).copied().collect();
        for leave in leaves {
            state.network.remove(&leave);
            self.deliver(state, leave, events);
        }
    }

    /// Drops messages that can have no effect any longer.
    fn prune(&self, state: &mut State, events: &mut EventSet) {
        let State { now, nodes, clients, network, .. } = state;
        network.retain(|message| {
            let Message { client, node, seq, sent, body } = *message;
            match body {
                Body::Acquire { .. } => {
                    let is_served = nodes[usize::from(node)].serves(client, seq, sent, *now, &self.bounds);
                    if !is_served {
                        events.add(Event::LateAcquire);
                    }
                    is_served
                }
                Body::Raise { .. } | Body::Renew | Body::Leave => true,
                _ => clients[usize::from(client)].slot(node).seq() == Some(seq),
            }
        });
    }

    fn restart(&self, state: &mut State, node: NodeId, loss: Loss, ahead: Time, events: &mut EventSet) {
        state.ghost.restarts += 1;
        state.ghost.old_data |= loss == Loss::Newest;
        // Its connections break: no request of before arrives.
        let arrives = |message: &Message| message.node != node || loss == Loss::Flush || !message.body.is_request();
        state.network.retain(arrives);
        self.at_node(state, node, events, |node, cx| node.restart(loss, ahead, cx));
    }

    /// A hold that ends so before it was raised is no excuse, where the raise tells its client.
    fn force_unlock(&self, state: &mut State, node: NodeId, events: &mut EventSet) {
        events.add(Event::Forced);
        state.ghost.force_unlocks += 1;
        if let Some(hold) = state.node(node).data.hold.filter(|hold| hold.raised || self.bounds.proposes) {
            state.ghost.forced.push(hold.client);
        }
        self.at_node(state, node, events, Node::free);
    }

    fn client_actions(&self, state: &State, id: ClientId, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let client = &state.clients[usize::from(id)];
        let mut offer = |may: bool, action: Action| {
            if may {
                actions.push(action);
            }
        };
        // Clients are interchangeable, and start in order, unless a path is cut.
        let in_turn = id == 0 || !bounds.cut.is_empty() || state.clients[usize::from(id) - 1].starts < bounds.starts;
        let holds = matches!(client.stage, Stage::Holding { .. });
        let takes = client.stage == Stage::Taking;
        offer(client.stage == Stage::Idle && client.starts > 0 && in_turn, Action::Start(id));
        offer(client.stage == Stage::Failed && client.retries > 0, Action::Start(id));
        offer(bounds.gives_up && takes, Action::Cancel(id));
        offer(holds, Action::Unlock(id));
        offer(self.has_lost(state, id), Action::Lose(id));
        let has_nodes = client.slots.iter().any(|slot| slot.is_got());
        offer(client.renewals > 0 && has_nodes && (takes || holds), Action::Renew(id));
        for node in 0..bounds.nodes {
            let slot = client.slot(node);
            offer(state.may_give_up_node(id, node, bounds.impatient), Action::GiveUpNode(id, node));
            offer(matches!(slot, Slot::Queued { .. }) && state.reaches(id, node), Action::Poll(id, node));
            offer(state.may_send_leave_again(id, node), Action::LeaveAgain(id, node));
            let may_take_in = !self.rules.q10_no_newcomers && holds && slot.seq().is_none();
            offer(may_take_in && state.reaches(id, node), Action::TakeIn(id, node));
            let cut = state.cut.contains(&(id, node));
            offer(state.ghost.cuts < bounds.cuts && !cut, Action::Cut(id, node));
            offer(cut && bounds.cuts > 0, Action::Heal(id, node));
        }
    }

    fn node_actions(&self, state: &State, id: NodeId, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let node = state.node(id);
        let mut offer = |may: bool, action: Action| {
            if may {
                actions.push(action);
            }
        };
        offer(node.alive && state.ghost.deaths < bounds.deaths, Action::Die(id));
        offer(node.alive && state.ghost.force_unlocks < bounds.forced && node.data.hold.is_some(), {
            Action::ForceUnlock(id)
        });
        let may_save = bounds.losses.contains(&Loss::Newest) && state.ghost.restarts < bounds.restarts;
        offer(node.alive && may_save && node.saved != node.data, Action::Save(id));
        if state.ghost.restarts < bounds.restarts && !bounds.dead.contains(&id) {
            for loss in bounds.losses {
                // A clock may be set meanwhile.
                for ahead in 0..=bounds.clocks_apart {
                    let is_extreme = ahead == 0 || ahead == bounds.clocks_apart;
                    let may_flush = node.alive && ahead == node.ahead || *loss != Loss::Flush;
                    offer(is_extreme && may_flush && (bounds.deaths > 0 || ahead == node.ahead), {
                        Action::Restart(id, *loss, ahead)
                    });
                }
            }
        }
    }
}

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

impl Quorum {
    pub fn apply(&self, state: &mut State, action: Action, events: &mut EventSet) {
        match action {
            Action::Tick => self.tick(state, events),
            Action::Start(id) => self.act(state, id, events, Client::start),
            Action::Cancel(id) => self.act(state, id, events, Client::cancel),
            Action::GiveUpNode(id, node) => self.act(state, id, events, |client, cx| client.give_up_node(node, cx)),
            Action::Poll(id, node) => self.act(state, id, events, |client, cx| client.poll(node, cx)),
            Action::Renew(id) => self.act(state, id, events, Client::renew),
            Action::TakeIn(id, node) => self.act(state, id, events, |client, cx| client.take_in(node, cx)),
            Action::Unlock(id) => self.act(state, id, events, Client::unlock),
            Action::Lose(id) => self.act(state, id, events, Client::lose),
            Action::LeaveAgain(id, node) => {
                self.act(state, id, events, |client, cx| client.send_leave_again(node, cx));
            }
            Action::Deliver(message) => {
                state.network.remove(&message);
                self.deliver(state, message, events);
            }
            Action::DeliverCopy(message) => self.deliver(state, message, events),
            Action::LoseMessage(message) => state.network.remove(&message),
            Action::Cut(client, node) => {
                state.ghost.cuts += 1;
                state.cut.push((client, node));
                state.cut.sort_unstable();
            }
            Action::Heal(client, node) => state.cut.retain(|cut| *cut != (client, node)),
            Action::Die(node) => {
                state.ghost.deaths += 1;
                state.nodes[usize::from(node)].alive = false;
                state.network.retain(|message| message.node != node || !message.body.is_request());
            }
            Action::Restart(node, loss, ahead) => self.restart(state, node, loss, ahead, events),
            Action::Save(node) => {
                let node = &mut state.nodes[usize::from(node)];
                node.saved = node.data.clone();
            }
            Action::ForceUnlock(node) => self.force_unlock(state, node, events),
        }
    }
}
