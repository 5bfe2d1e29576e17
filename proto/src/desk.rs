//! Everything that the parts of the machine share while they handle an event: the time, the numbers, the servers, and
//! the effects.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::canonical::{RequestNumber, Seq};
use crate::chore::Chores;
use crate::effect::{Effect, Note, Outcome};
use crate::error::{Cause, Fault};
use crate::event::{CallId, NodeId};
use crate::keys::Keys;
use crate::node::{Asker, Lane, Link, Node, Place};
use crate::queue::Queues;
use crate::released::BEHIND_AT_MOST;
use crate::sending::Asked;
use crate::settings::Settings;
use crate::slots::{Serving, Slots, Topology};
use crate::time::{Instant, ServerTime};
use crate::timers::{Standing, Timer, Timers, Wish};

/// How long a caller may leave a grant unclaimed.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// A timer that comes this much too late shows that the whole process paused, and not a caller alone.
pub const LATE: Duration = Duration::from_millis(50);

/// Everything that belongs to no single owner.
#[derive(Debug, Clone, Hash)]
pub struct Common {
    pub settings: Settings,
    pub slots: Slots,
    /// Each node at the index of its number.
    pub nodes: Vec<Node>,
    /// Has the waiting requests for slots whose server is unknown.
    nobody: Node,
    /// When the first node has something to do.
    pub node_due: Option<Instant>,
    pub queues: Queues,
    pub chores: Chores,
    pub timers: Timers,
    /// Nodes that may have a request to send in this step.
    ready: Vec<NodeId>,
    /// The seed of the pauses between tries, so that clients do not come back in step.
    seed: u64,
    last_seq: Seq,
    last_request: RequestNumber,
}

impl Common {
    pub fn new(settings: Settings, topology: Topology) -> Self {
        let client = settings.client.bytes();
        let seed = client.fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            nobody: Node::new(NodeId::NOBODY, settings.operation_timeout),
            settings,
            seed,
            slots: Slots::new(topology),
            nodes: Vec::new(),
            node_due: None,
            queues: Queues::default(),
            chores: Chores::default(),
            timers: Timers::default(),
            ready: Vec::new(),
            last_seq: Seq::default(),
            last_request: RequestNumber::default(),
        }
    }

    pub fn node(&mut self, id: NodeId) -> &mut Node {
        if id == NodeId::NOBODY {
            return &mut self.nobody;
        }
        if self.nodes.len() <= usize::from(id.0) {
            self.add_nodes(id);
        }
        &mut self.nodes[usize::from(id.0)]
    }

    #[cold]
    fn add_nodes(&mut self, last: NodeId) {
        let timeout = self.settings.operation_timeout;
        // The client checks a connection after an operation time-out, with a result within a second (decision 44).
        let behind = BEHIND_AT_MOST + timeout + Duration::from_secs(1);
        let known = self.nodes.len();
        self.nodes.extend((0..=last.0).skip(known).map(|number| Node::new(NodeId(number), behind)));
    }

    pub fn node_of(&mut self, slot: u16) -> &mut Node {
        let Serving { node, .. } = self.slots.serving(slot);
        self.node(node)
    }

    /// The node may have something to send.
    pub fn becomes_ready(&mut self, node: NodeId) {
        // Usually there is one node, and a cluster has few.
        if !self.ready.contains(&node) {
            self.ready.push(node);
        }
    }

    pub fn next_ready(&mut self) -> Option<NodeId> {
        self.ready.pop()
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub fn next_request(&mut self) -> RequestNumber {
        self.last_request.0 += 1;
        self.last_request
    }
}

/// One event's view of the shared state.
pub struct Desk<'a> {
    pub now: Instant,
    /// Whether the driver came in time. If the process paused, its callers had no chance to claim their grants.
    pub punctuality: Punctuality,
    pub common: &'a mut Common,
    pub effects: &'a mut Vec<Effect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Punctuality {
    InTime,
    Late,
}

impl Desk<'_> {
    /// Greater than every seq before (R1).
    pub fn next_seq(&mut self) -> Seq {
        self.common.last_seq.0 += 1;
        self.common.last_seq
    }

    pub fn settings(&self) -> &Settings {
        &self.common.settings
    }

    pub fn tell(&mut self, call: CallId, outcome: Outcome) {
        self.effects.push(Effect::Tell(call, outcome));
    }

    pub fn note(&mut self, note: Note) {
        self.effects.push(Effect::Note(note));
    }

    /// A request with a new seq.
    pub fn next_asked(&mut self) -> Asked {
        let seq = self.next_seq();
        self.asked_with(seq)
    }

    pub fn asked_with(&self, seq: Seq) -> Asked {
        Asked::new(seq, self.backoff(seq))
    }

    /// Pauses between tries. The same seq gives the same pauses, so that a run can be repeated.
    fn backoff(&self, seq: Seq) -> Backoff {
        Backoff::new(self.common.seed ^ seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn serving(&self, slot: u16) -> Serving {
        self.common.slots.serving(slot)
    }

    /// The server time up to which the server may serve a request that goes out now (R2).
    pub fn not_after(&mut self, slot: u16) -> ServerTime {
        let (now, timeout) = (self.now, self.common.settings.operation_timeout);
        self.common.node_of(slot).clock.at(now) + timeout
    }

    /// When no request from before now can have an effect any more.
    pub fn forgotten_at(&self, lease: Duration) -> Instant {
        self.now + self.common.settings.longest_effect(lease)
    }

    /// Sets an asker's timer and place to its wish. The request goes out when its turn comes.
    pub fn keep(&mut self, standing: Standing, wish: Wish) -> Standing {
        let Standing { mut planned, place } = standing;
        self.common.timers.plan(wish.timer, &mut planned, wish.due);
        Standing { planned, place: self.keep_place(place, wish.asker, wish.slot, wish.wants) }
    }

    /// The same for the place alone.
    pub fn keep_place(
        &mut self,
        mut place: Option<Place>,
        asker: Asker,
        slot: u16,
        wants: Option<Lane>,
    ) -> Option<Place> {
        let Serving { node, .. } = self.serving(slot);
        if !place.is_some_and(|place| wants == Some(place.lane) && place.node == node) {
            self.stop_waiting(&mut place);
            place = wants.map(|lane| self.wait(node, lane, asker));
        }
        place
    }

    /// Drops the timer and the place of an asker.
    pub fn forget(&mut self, standing: Standing, timer: Timer) {
        let Standing { mut planned, mut place } = standing;
        self.common.timers.plan(timer, &mut planned, None);
        self.stop_waiting(&mut place);
    }

    fn wait(&mut self, node: NodeId, lane: Lane, asker: Asker) -> Place {
        let number = self.common.next_request();
        self.common.becomes_ready(node);
        let to = self.common.node(node);
        let place = to.wait(lane, number, asker);
        if matches!(to.link, Link::Down(_)) && node != NodeId::NOBODY {
            self.effects.push(Effect::Wanted(node));
        }
        place
    }

    fn stop_waiting(&mut self, place: &mut Option<Place>) {
        if let Some(place) = place.take() {
            self.common.node(place.node).stop_waiting(place);
        }
    }

    /// Why the server does not serve a call about this name, if no request has failed.
    pub fn why_no_answer(&mut self, slot: u16) -> Cause {
        self.common.node_of(slot).why_no_answer()
    }

    /// Why the server grants nothing now: it is frozen, or not connected.
    pub fn why_unserved(&mut self, slot: u16) -> Option<Cause> {
        let now = self.now;
        let node = self.common.node_of(slot);
        let frozen = node.frozen_for(now).map(|left| Fault::Frozen(left).into());
        frozen.or_else(|| if let Link::Down(cause) = &node.link { Some(cause.clone()) } else { None })
    }

    /// The server has answered that it keeps nothing of an owner at this name (R15).
    pub fn given_back(&mut self, keys: &Arc<Keys>, slot: u16, sent: Instant) {
        self.common.node_of(slot).released.note(keys, sent);
    }
}
