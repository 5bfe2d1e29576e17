//! The runs: base runs, in which all properties hold, and a run for each dropped rule, which must break a property.

use crate::bounds::{Bounds, Loss};
use crate::events::Event::{self, *};
use crate::rules::Rule::*;
use crate::run::Run;

/// Two clients with one attempt each on three nodes. The tokens of some nodes are far ahead of the others' tokens.
const SMALL: Bounds = Bounds {
    nodes: 3,
    clients: 2,
    starts: 1,
    retries: 0,
    renewals: 0,
    in_flight: 3,
    end: 3,
    lease: 2,
    operation_timeout: 1,
    clocks_apart: 1,
    clocks_ahead: &[0b001],
    clock_runs: false,
    at_once: false,
    proposes: false,
    clock_seems_ahead: 0,
    lossy: false,
    repeats: false,
    impatient: false,
    prompt_leaves: true,
    gives_up: false,
    dead: &[],
    cut: &[],
    cuts: 0,
    deaths: 0,
    restarts: 0,
    losses: &[],
    forced: 0,
    settles: true,
};

/// The first client cannot reach the last node.
const SKIPS: Bounds = Bounds { cut: &[(0, 2)], ..SMALL };

/// The first client reaches only its gate.
const FAILS: Bounds = Bounds { retries: 1, cut: &[(0, 1), (0, 2)], ..SMALL };

/// A client may give up a node whose answer is only late.
const IMPATIENT: Bounds = Bounds { impatient: true, ..SMALL };

/// force_unlock on one node. These rules do not cover its effect on waiters.
const FORCE: Bounds = Bounds { forced: 1, end: 2, settles: false, ..SMALL };

/// A majority of five without a node to spare: two never run.
const TWO_DEAD: Bounds = Bounds { nodes: 5, dead: &[3, 4], cut: &[(1, 0)], clocks_ahead: &[0], ..SMALL };

/// One of five nodes never runs, and the clients have different gates.
const TWO_GATES: Bounds =
    Bounds { nodes: 5, dead: &[4], cut: &[(1, 0)], clocks_ahead: &[0], in_flight: 4, end: 0, ..SMALL };

/// The clients share one node, and one of the nodes restarts without its data.
const RESTART: Bounds = Bounds {
    restarts: 1,
    losses: &[Loss::All],
    clock_runs: true,
    cut: &[(0, 2), (1, 0)],
    lease: 1,
    end: 3,
    // The leases are too short for the rounds of `settle`.
    settles: false,
    ..SMALL
};

/// Leases longer than the difference of the clocks, and the other way around.
const LONG_LEASES: Bounds = Bounds { lease: 2, end: 2, ..RESTART };
const CLOCKS: Bounds = Bounds { clocks_apart: 2, ..RESTART };

/// The client asks all nodes for one token, in the first round trip or once it holds the gate.
const PROPOSES: Bounds =
    Bounds { at_once: true, proposes: true, starts: 2, end: 1, clocks_ahead: &[0b001, 0b010], ..SMALL };
const GATE_PROPOSES: Bounds = Bounds { at_once: false, ..PROPOSES };

/// A client overestimates the clocks by more than a lease.
const AHEAD: Bounds = Bounds { at_once: true, proposes: true, clock_seems_ahead: 2, ..RESTART };

/// Three clients, and every kind of fault.
const WALK: Bounds = Bounds {
    clients: 3,
    starts: 4,
    retries: 12,
    renewals: 20,
    in_flight: 40,
    end: 60,
    lease: 4,
    clocks_apart: 3,
    clocks_ahead: &[0b000, 0b001, 0b010, 0b100, 0b011, 0b101, 0b110],
    clock_runs: true,
    lossy: true,
    repeats: true,
    proposes: true,
    impatient: true,
    prompt_leaves: false,
    gives_up: true,
    cuts: 6,
    deaths: 3,
    restarts: 4,
    losses: &[Loss::Nothing, Loss::Newest, Loss::All, Loss::Flush],
    settles: false,
    ..SMALL
};

const WALK_FIVE: Bounds = Bounds {
    nodes: 5,
    clocks_ahead: &[0b00000, 0b00001, 0b10000, 0b00011, 0b00101, 0b01010, 0b10101, 0b11100],
    ..WALK
};

/// The number of walks of a base run, and the most walks until a dropped rule must be caught.
const WALKS: u32 = 10_000;
const WALKS_TO_CATCH: u32 = 20_000;

/// The events that a walk with every kind of fault must reach.
const ALL: &[Event] = &[
    Guarded,
    GuardedWithoutANode,
    Queued,
    QueuedWithHold,
    ReleasedAbove,
    BusyLeftAlone,
    PassedOn,
    NodeSkipped,
    LateAcquire,
    ProposalTaken,
    GivenAlike,
    RaisedHigher,
    RaiseRefused,
    Renewed,
    LeaseExpired,
    Failed,
    Lost,
    Frozen,
    Thawed,
    Settled,
];

pub fn all() -> impl Iterator<Item = &'static Run> {
    BASE.iter().chain(DROPPED)
}

/// Long runs come first, so that both threads of `run_all` finish at about the same time.
const BASE: &[Run] = &[
    Run::holds("q-walk", "random walks: 3 nodes, 3 clients, all faults", WALK, ALL).walks(WALKS),
    Run::holds("q-walk-five", "the same with 5 nodes", WALK_FIVE, ALL).walks(WALKS),
    Run::holds(
        "q-walk-at-once",
        "3 nodes; all are tried in the first round trip; force_unlock",
        Bounds { at_once: true, clock_seems_ahead: 2, forced: 2, ..WALK },
        &[
            Guarded,
            ProposalTaken,
            ProposedTooFar,
            GivenAlike,
            Queued,
            QueuedWithHold,
            ReleasedAbove,
            RaisedHigher,
            RaiseRefused,
            Lost,
            Thawed,
            Forced,
            Settled,
        ],
    )
    .walks(WALKS),
    Run::holds(
        "q-newcomers",
        "5 nodes; nodes that come back are taken into a hold",
        WALK_FIVE,
        &[Guarded, Lost, Thawed, TakenIn, Settled],
    )
    .without(&[Q10NoNewcomers])
    .walks(5_000),
    Run::holds(
        "q-at-once",
        "2 clients, 3 nodes that are all tried in the first round trip",
        Bounds { at_once: true, in_flight: 5, end: 1, ..SMALL },
        &[Guarded, QueuedWithHold, ReleasedAbove, PassedOn, Settled],
    ),
    Run::holds(
        "q-proposes",
        "the same, which are asked for one token",
        PROPOSES,
        &[Guarded, ProposalTaken, GivenAlike, RaisedHigher, PassedOn, Settled],
    ),
    Run::holds(
        "q-gate-proposes",
        "2 clients, 3 nodes, 2 attempts each; the others are asked for the token of the gate",
        GATE_PROPOSES,
        &[Guarded, ProposalTaken, GivenAlike, PassedOn, Settled],
    ),
    Run::holds(
        "q-ahead",
        "2 clients share one of 3 nodes, one restarts without its data; a client overestimates the clocks",
        AHEAD,
        &[Guarded, ProposedTooFar, Frozen, Thawed],
    ),
    Run::holds(
        "q-twice",
        "2 clients, 3 nodes, 2 attempts each",
        Bounds { starts: 2, end: 2, ..SMALL },
        &[Guarded, PassedOn, RaisedHigher, LeaseExpired, Settled],
    ),
    Run::holds(
        "q-force",
        "2 clients, 3 nodes, force_unlock on one; holds that it ends after their raise are exempt",
        FORCE,
        &[Guarded, Forced, RaiseRefused],
    ),
    Run::holds(
        "q-lossy",
        "2 clients, 3 nodes, all messages are lost",
        Bounds { lossy: true, end: 1, in_flight: 2, ..SMALL },
        &[Guarded, GuardedWithoutANode, NodeSkipped, Failed, Settled],
    ),
    Run::holds(
        "q-two",
        "2 clients, 3 nodes, messages are late",
        SMALL,
        &[Guarded, PassedOn, QueuedWithHold, RaisedHigher, LeaseExpired, Lost, Settled],
    ),
    Run::holds(
        "q-late-leaves",
        "the same, and leaves are late too",
        Bounds { prompt_leaves: false, ..SMALL },
        &[Guarded, QueuedWithHold, LeaseExpired, LateAcquire, Settled],
    ),
    Run::holds(
        "q-impatient",
        "the same, and nodes are given up",
        IMPATIENT,
        &[Guarded, GuardedWithoutANode, NodeSkipped, BusyLeftAlone, Failed, Settled],
    ),
    Run::holds(
        "q-renew",
        "2 clients, 3 nodes, one renewal each",
        Bounds { renewals: 1, in_flight: 2, ..SMALL },
        &[Guarded, Renewed, Lost, Settled],
    ),
    Run::holds(
        "q-skips",
        "2 clients, 3 nodes, a client cannot reach one of them",
        SKIPS,
        &[Guarded, GuardedWithoutANode, NodeSkipped, Lost, Settled],
    ),
    Run::holds(
        "q-three",
        "3 clients, 3 nodes",
        Bounds { clients: 3, end: 2, in_flight: 2, ..SMALL },
        &[Guarded, PassedOn, LeaseExpired, Settled],
    ),
    Run::holds("q-fails", "2 clients, 3 nodes, a client reaches only its gate", FAILS, &[Guarded, Failed, Settled]),
    Run::holds(
        "q-two-dead",
        "2 clients, 3 of 5 nodes run, the clients have different gates",
        TWO_DEAD,
        &[Guarded, ReleasedAbove, QueuedWithHold, Failed, Settled],
    ),
    Run::holds(
        "q-two-gates",
        "2 clients, 4 of 5 nodes run, the clients have different gates",
        TWO_GATES,
        &[Guarded, ReleasedAbove, QueuedWithHold, Settled],
    ),
    Run::holds(
        "q-restart",
        "2 clients share one of 3 nodes, one restarts without its data",
        RESTART,
        &[Guarded, Frozen, Thawed, RaiseRefused],
    ),
    Run::holds(
        "q-clocks",
        "the same, where clocks are farther apart than leases are long",
        CLOCKS,
        &[Guarded, Frozen, Thawed, RaisedHigher],
    ),
];

const DROPPED: &[Run] = &[
    Run::drops(
        "q1-upwards",
        "a client that queues at a node keeps the nodes above it",
        TWO_DEAD,
        &[Q1WaitsPointUpwards],
    ),
    Run::drops("q1-several", "a client queues at several nodes at once", TWO_GATES, &[Q1QueuesAtOne]),
    Run::drops("q3-raise", "the nodes are not raised", SMALL, &[Q3Raise]),
    Run::drops("q3-late", "the nodes are raised when the guard ends", SMALL, &[Q3RaiseBeforeGuard]),
    Run::drops("q3-one", "one acknowledgement of the raise counts for all nodes", SMALL, &[Q3EachAcknowledges]),
    Run::drops(
        "q3-held",
        "a raise is acknowledged to a client that does not hold the lock there",
        FORCE,
        &[Q3WhileHeld],
    ),
    Run::drops("q3-above", "a node gives a proposed token below its last one", PROPOSES, &[Q3ProposedAbove]),
    Run::drops("q4-smallest", "the fencing token is the smallest of the nodes", SMALL, &[Q4GreatestToken]),
    Run::drops("q4-minority", "one node less than a majority is enough", SMALL, &[Q4Majority]),
    Run::drops("q5-receipt", "deadlines count from the reply", SMALL, &[Q5DeadlineFromRequest]),
    Run::drops("q5-largest", "a guard is valid until the largest deadline", SKIPS, &[Q5MthDeadline]),
    Run::drops("q6-leave", "a client that fails leaves no node", FAILS, &[Q6Leave]),
    Run::drops(
        "q6-unanswered",
        "a client that fails does not leave nodes that did not answer",
        IMPATIENT,
        &[Q6LeaveUnanswered],
    ),
    Run::drops("q8-freeze", "a node without its data does not freeze", RESTART, &[Q8Freeze]),
    Run::drops("q8-lease", "the freeze is shorter than the longest lease", LONG_LEASES, &[Q8LongestLease]),
    Run::drops("q8-clocks", "the freeze is shorter than clocks are apart", CLOCKS, &[Q8Clocks]),
    Run::drops("q8-far", "a node gives a proposed token that is far ahead of its clock", AHEAD, &[Q8ProposedNear]),
    Run::drops("q9", "tokens are counted after a restart", RESTART, &[Q9ClockInTokens]),
    Run::drops("q10", "a lost hold takes in nodes, and is valid again", WALK, &[Q10NoNewcomers, LossIsFinal])
        .walks(WALKS_TO_CATCH),
];
