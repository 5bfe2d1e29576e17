//! The protocol: clients, nodes, the messages in flight between them, and the possible actions.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bounds::{Bounds, Loss};
use crate::client::{self, Client, Slot, Stage};
use crate::events::{Event, EventSet, Reached};
use crate::network::{Body, ClientId, Message, Network, NodeId, Time, Token};
use crate::node::{self, Node};
use crate::rules::{Rule, Rules};

/// Ghost variables: no client or node reads them, only the properties and the bounds of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The token of the last guard.
    pub last: Token,
    pub token_did_not_grow: bool,
    /// Clients whose hold a force_unlock ended after its raise, if it needed one. They learn of it later.
    pub forced: Vec<ClientId>,
    /// A node has come back with older data, and perhaps with a hold that had ended.
    pub old_data: bool,
    cuts: u8,
    deaths: u8,
    restarts: u8,
    force_unlocks: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub network: Network,
    /// The pairs of a client and a node that cannot reach each other.
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
            // A silent node does not report a place in its queue either.
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
    /// Delivers it, and keeps a copy in flight.
    DeliverCopy(Message),
    LoseMessage(Message),
    Cut(ClientId, NodeId),
    Heal(ClientId, NodeId),
    Die(NodeId),
    /// Its clock is this far ahead afterwards.
    Restart(NodeId, Loss, Time),
    Save(NodeId),
    ForceUnlock(NodeId),
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Quorum {
    pub rules: Rules,
    pub bounds: Bounds,
    pub reached: Reached,
    pub guards: AtomicU64,
}

impl Quorum {
    pub fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, reached: Reached::default(), guards: AtomicU64::new(0) }
    }

    pub fn has_lost(&self, state: &State, id: ClientId) -> bool {
        state.clients[usize::from(id)].has_lost(state.now, self.rules, &self.bounds)
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
        let (rules, bounds) = (self.rules, &self.bounds);
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
        let mut cx = node::Context { rules: self.rules, bounds: &self.bounds, now: state.now, events };
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

    /// In runs whose paths neither break nor heal, clients immediately skip a node that they cannot reach (Q10).
    pub fn skip_unreachable(&self, state: &mut State, events: &mut EventSet) {
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

    pub fn deliver_leaves(&self, state: &mut State, events: &mut EventSet) {
        let is_leave = |message: &&Message| message.body == Body::Leave && state.reaches(message.client, message.node);
        let leaves: Vec<_> = state.network.iter().filter(is_leave).copied().collect();
        for leave in leaves {
            state.network.remove(&leave);
            self.deliver(state, leave, events);
        }
    }

    /// Drops messages that can no longer have an effect.
    pub fn prune(&self, state: &mut State, events: &mut EventSet) {
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
        // The node's connections break, so no earlier request arrives.
        let arrives = |message: &Message| message.node != node || loss == Loss::Flush || !message.body.is_request();
        state.network.retain(arrives);
        self.at_node(state, node, events, |node, cx| node.restart(loss, ahead, cx));
    }

    /// A hold that ends this way before its raise is not exempt, since the raise fails.
    fn force_unlock(&self, state: &mut State, node: NodeId, events: &mut EventSet) {
        events.add(Event::Forced);
        state.ghost.force_unlocks += 1;
        if let Some(hold) = state.node(node).data.hold.filter(|hold| hold.raised || self.bounds.proposes) {
            state.ghost.forced.push(hold.client);
        }
        self.at_node(state, node, events, Node::free);
    }

    pub fn client_actions(&self, state: &State, id: ClientId, actions: &mut Vec<Action>) {
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
            let may_take_in = !self.rules.has(Rule::Q10NoNewcomers) && holds && slot.seq().is_none();
            offer(may_take_in && state.reaches(id, node), Action::TakeIn(id, node));
            let cut = state.cut.contains(&(id, node));
            offer(state.ghost.cuts < bounds.cuts && !cut, Action::Cut(id, node));
            offer(cut && bounds.cuts > 0, Action::Heal(id, node));
        }
    }

    pub fn node_actions(&self, state: &State, id: NodeId, actions: &mut Vec<Action>) {
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
                // The restart may set the clock.
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
