//! The kinds of faults. A corpus in which one of them never happens proves too little.

/// Faults of one server, or of a cluster.
pub const FAULTS: [&str; 48] = [
    "cancellations",
    "sets",
    "handles",
    "extends",
    "max_holds",
    "deaths",
    "crowds",
    "disconnects",
    "failovers",
    "keys_deleted",
    "silences",
    "server_stalls",
    "clients_behind",
    "forced_unlocks",
    "pauses",
    "pushes_delayed",
    "pushes_duplicated",
    "pushes_lost",
    "replies_delayed",
    "replies_lost",
    "requests_delayed",
    "requests_duplicated",
    "requests_lost",
    "refused_inside_scripts",
    "requests_refused",
    "restarts",
    "server_restarts",
    "server_restarts_without_data",
    "flushes",
    "verbs_refused",
    "rights_lost",
    "callers_rest",
    "long_leases",
    "strict_restarts",
    "failovers_unnoticed",
    "forgotten_holds",
    "half_open_deaths",
    "overloaded_clients",
    "runtimes_ended",
    "calls_without_runtime",
    "losses_without_runtime",
    "owners_in_two_tasks",
    "slots_moved",
    "slots_moved_back",
    "nodes_replaced",
    "redirects_moved",
    "redirects_ask",
    "redirects_try_again",
];

/// What only runs of the state machine have.
pub const MACHINE_FAULTS: [&str; 1] = ["drivers_delayed"];

/// Faults that only a quorum has.
pub const QUORUM_FAULTS: [&str; 10] = [
    "masters_down",
    "masters_frozen",
    "masters_emptied",
    "masters_put_back",
    "majorities_away",
    "partitions",
    "gates_apart",
    "minorities_away_in_calm",
    "losses_of_a_majority",
    "reentries_after_a_loss",
];

/// What only runs of shared names have.
pub const SHARED_FAULTS: [&str; 7] = [
    "permits_set",
    "revocations",
    "served_together",
    "shrinks_dropped",
    "permits_detached",
    "permits_attached",
    "attaches_given_up",
];
