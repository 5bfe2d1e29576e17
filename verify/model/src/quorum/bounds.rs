//! The bounds of a run, and what a node may lose in it.

use super::network::{ClientId, NodeId, Time};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub nodes: NodeId,
    pub clients: ClientId,
    /// Each client's attempts, failures after which it tries again, and renewals.
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
    /// A leave is served at once if the node can be reached.
    pub prompt_leaves: bool,
    /// Callers give up while they wait.
    pub gives_up: bool,
    /// Nodes that never run.
    pub dead: &'static [NodeId],
    /// The clients that cannot reach a node from the beginning on.
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

/// What a node loses with a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    Nothing,
    /// All since it was last saved.
    Newest,
    All,
    /// All, without a restart: FLUSHALL. What is in flight still arrives.
    Flush,
}
