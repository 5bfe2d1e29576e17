//! Follows a state to its end without further faults. Dead nodes stay dead.
//!
//! Messages arrive at once, holders renew and then unlock, and waiters poll. Each client that wants the lock must get
//! a guard. Waiters renew the nodes that they hold, so a circle of waits would never end. Afterwards no client may
//! hold a node.

use crate::client::{Client, Slot, Stage};
use crate::events::{Event, EventSet};
use crate::network::{ClientId, NodeId};
use crate::node::Node;
use crate::protocol::{Action, Quorum, State};

pub const NAME: &str = "P9 all are served";

/// Rounds after all freezes and leases have expired.
const ROUNDS: u8 = 10;

pub fn no_waiter_is_stuck(quorum: &Quorum, state: &State) -> bool {
    !quorum.bounds.settles || !state.network.is_empty() || all_are_served(quorum, state)
}

/// P9, Q1, Q6
pub fn all_are_served(quorum: &Quorum, state: &State) -> bool {
    let alive = state.nodes.iter().filter(|node| node.alive).count();
    if alive < quorum.bounds.majority() {
        return true;
    }
    let mut follow = Follow { quorum, state: state.clone(), events: EventSet::default() };
    follow.state.cut.clear();
    follow.state.clients.iter_mut().for_each(Client::allow_all);
    follow.deliver();
    let mut stuck: Vec<_> = follow.clients().filter(|id| follow.wants(*id)).collect();
    let bounds = &quorum.bounds;
    let rounds = ROUNDS + (bounds.lease + 2) * bounds.clients + bounds.lease + bounds.clocks_apart;
    for _ in 0..rounds {
        if stuck.is_empty() && follow.is_over() {
            break;
        }
        follow.round(&mut stuck);
    }
    follow.events.add(Event::Settled);
    quorum.reached.note(follow.events);
    stuck.is_empty() && follow.is_over()
}

struct Follow<'a> {
    quorum: &'a Quorum,
    state: State,
    events: EventSet,
}

impl Follow<'_> {
    fn clients(&self) -> std::ops::Range<ClientId> {
        0..self.quorum.bounds.clients
    }

    fn stage(&self, id: ClientId) -> Stage {
        self.state.clients[usize::from(id)].stage
    }

    fn wants(&self, id: ClientId) -> bool {
        matches!(self.stage(id), Stage::Taking | Stage::Raising { .. } | Stage::Failed)
    }

    /// All clients are done, and no live node has a holder.
    fn is_over(&self) -> bool {
        let is_free = |node: &Node| node.data.hold.is_none() && node.data.queue.is_empty();
        self.clients().all(|id| self.stage(id) == Stage::Idle)
            && self.state.nodes.iter().all(|node| !node.alive || is_free(node))
    }

    fn round(&mut self, stuck: &mut Vec<ClientId>) {
        for id in self.clients() {
            for node in 0..self.quorum.bounds.nodes {
                self.hear(id, node);
            }
            // Before the renewal, which may show that a node has lost its data.
            if matches!(self.stage(id), Stage::Holding { .. }) {
                stuck.retain(|other| *other != id);
            }
            self.renew(id);
            match self.stage(id) {
                Stage::Failed => self.step(Action::Start(id)),
                Stage::Holding { .. } => {
                    stuck.retain(|other| *other != id);
                    self.step(Action::Unlock(id));
                }
                _ => {}
            }
        }
        self.quorum.tick(&mut self.state, &mut self.events);
        self.deliver();
    }

    /// Gives up requests that will get no answer, polls, and sends leaves again.
    fn hear(&mut self, id: ClientId, node: NodeId) {
        if self.state.may_give_up_node(id, node, false) {
            self.step(Action::GiveUpNode(id, node));
        }
        if matches!(self.state.clients[usize::from(id)].slot(node), Slot::Queued { .. }) {
            self.step(Action::Poll(id, node));
        }
        if self.state.may_send_leave_again(id, node) {
            self.step(Action::LeaveAgain(id, node));
        }
    }

    fn renew(&mut self, id: ClientId) {
        if self.quorum.has_lost(&self.state, id) {
            self.step(Action::Lose(id));
        } else if matches!(self.stage(id), Stage::Taking | Stage::Raising { .. } | Stage::Holding { .. }) {
            self.step(Action::Renew(id));
        }
    }

    fn step(&mut self, action: Action) {
        self.quorum.apply(&mut self.state, action, &mut self.events);
        self.deliver();
    }

    /// Delivers all messages, but none to a dead node.
    fn deliver(&mut self) {
        while let Some(message) = self.state.network.first() {
            self.state.network.remove(&message);
            if self.state.reaches(message.client, message.node) || !message.body.is_request() {
                self.quorum.deliver(&mut self.state, message, &mut self.events);
            }
        }
    }
}
