//! The bounds of a run, and the losses of a node.

use crate::network::{ClientId, NodeId, Time};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub nodes: NodeId,
    pub clients: ClientId,
    /// How many attempts each client makes, how often it retries after a failure, and how often it renews.
    pub starts: u8,
    pub retries: u8,
    pub renewals: u8,
    /// The most messages in flight at once.
    pub in_flight: usize,
    /// The last tick of the clock.
    pub end: Time,
    pub lease: Time,
    pub operation_timeout: Time,
    /// The greatest difference between two clocks. Only tokens depend on it: everything else counts durations.
    pub clocks_apart: Time,
    /// Which clocks are ahead at the beginning: one bit per node. Each entry is another first state.
    pub clocks_ahead: &'static [u8],
    /// Whether tokens follow the clock. Only runs with restarts need that: in others it would leave gaps between
    /// tokens.
    pub clock_runs: bool,
    /// Clients try all nodes in the first round trip, not only after they hold the gate.
    pub at_once: bool,
    /// Clients propose a token to the nodes: the gate's, or one from the clock.
    pub proposes: bool,
    /// How far the first client overestimates that clock.
    pub clock_seems_ahead: Time,
    /// Requests and answers may be lost. Otherwise they may only be late, without bound.
    pub lossy: bool,
    /// Messages may arrive twice.
    pub repeats: bool,
    /// A client may give up a node whose answer is only late.
    pub impatient: bool,
    /// A reachable node serves a leave at once.
    pub prompt_leaves: bool,
    /// Callers may give up while they wait.
    pub gives_up: bool,
    /// Nodes that never run.
    pub dead: &'static [NodeId],
    /// The pairs of a client and a node that cannot reach each other at the beginning.
    pub cut: &'static [(ClientId, NodeId)],
    /// How often a path between a client and a node may break, and how often a node may die.
    pub cuts: u8,
    pub deaths: u8,
    /// How often a node may restart, and its possible losses.
    pub restarts: u8,
    pub losses: &'static [Loss],
    /// How often force_unlock may end a hold on one node.
    pub forced: u8,
    /// Whether the run follows each state without messages in flight to its end.
    pub settles: bool,
}

impl Bounds {
    pub fn majority(&self) -> usize {
        usize::from(self.nodes) / 2 + 1
    }
}

/// A node's loss at a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    Nothing,
    /// Everything since it last wrote its data to disk.
    Newest,
    All,
    /// Everything, without a restart: FLUSHALL. Requests in flight still arrive.
    Flush,
}
