//! The parts of a history: calls, holds, handles, faults.

/// Nanoseconds of the clock that all processes share.
pub type Time = u64;
pub const MS: Time = 1_000_000;
pub const NEVER: Time = Time::MAX;

/// The settings of a run.
#[derive(Default, Debug)]
pub struct Run {
    pub topology: String,
    pub seed: u64,
    pub strict: bool,
    /// How long a server that may have forgotten something grants nothing.
    pub freeze: Time,
    pub began: Time,
    /// No fault comes after this.
    pub quiet: Time,
    pub ended: Time,
}

/// A client process.
#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub host: usize,
    pub lease: Time,
    pub op: Time,
    pub waiter_ttl: Time,
    /// How long a grant to one of its waits lasts at first.
    pub first_lease: Time,
    pub began: Time,
    pub closing: Time,
    pub closed: Time,
    /// The latest time at which it was killed.
    pub killed: Time,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum How {
    /// Waits without a limit, until it gets the lock or the caller drops it.
    Lock,
    Timeout,
    Try,
    /// One name of several.
    All,
    /// Attaches a handle, or releases it (below). The server grants no new hold.
    Attach,
    Release,
}

#[derive(Debug)]
pub struct Call {
    pub client: usize,
    pub id: u64,
    pub name: usize,
    pub how: How,
    pub asked: Time,
    pub limit: Option<Time>,
    /// `lock`, `permit`, `read` or `write`.
    pub mode: &'static str,
    /// The weight that it asks for, and the limit of the name.
    pub weight: u64,
    pub of: u64,
    /// For a call with a handle, the detached hold: as `CLIENT/ID`, and as an index.
    pub from: Option<String>,
    pub handle_of: Option<usize>,
    /// The time of its outcome; `NEVER` if it had none.
    pub ended: Time,
    pub why: Option<String>,
    pub hold: Option<usize>,
}

#[derive(Debug)]
pub struct Hold {
    pub call: usize,
    pub client: usize,
    pub name: usize,
    pub token: u64,
    pub owner: String,
    pub start: Time,
    /// The greatest local deadline that its holder has seen.
    pub until: Time,
    pub is_fixed: bool,
    /// When its holder began to release it.
    pub free: Time,
    pub freed: Option<(Time, String)>,
    pub lost: Option<(Time, String)>,
    /// Whether its holder watched for a loss. A holder that only writes something and releases does not.
    pub listens: bool,
    /// The number of holds in nested calls.
    pub nested: Vec<(bool, u64)>,
    pub weight: u64,
    /// When it began to rely on less, and on how much.
    pub shrunk: Option<(Time, u64)>,
    pub detached: Option<Detached>,
    /// The hold that was granted: this one, or the first one of a chain of detaches and attaches.
    pub grant: usize,
}

/// The outcome of a detach.
#[derive(Debug, Clone)]
pub struct Detached {
    pub asked: Time,
    pub lease: Time,
    pub answered: Time,
    /// Until when the handle holds it, by the clock of the client that detached it; 0 if unknown.
    pub until: Time,
    /// The guard has the hold as before.
    pub was_refused: bool,
}

impl Hold {
    /// Until when its holder relied on it, if nothing ended it earlier.
    pub fn given_away(&self) -> Time {
        self.free.min(self.detached.as_ref().map_or(NEVER, |detached| detached.asked))
    }

    /// Its handle, if it was detached.
    pub fn handle(&self) -> Option<&Detached> {
        self.detached.as_ref().filter(|detached| !detached.was_refused)
    }
}

#[derive(Debug)]
pub struct Fault {
    pub kind: String,
    pub hosts: Option<Vec<usize>>,
    pub shards: Option<Vec<usize>>,
    pub from: Time,
    pub to: Time,
}

#[derive(Debug)]
pub struct Force {
    pub name: usize,
    /// The token of the hold to end. Without it and without owners, the call ends any hold.
    pub token: Option<u64>,
    /// The owner on each of several servers. Each server has its own token for a hold, and the guard has one of these.
    pub owners: Vec<String>,
    pub from: Time,
    /// When the answer came, and whether the call ended a hold.
    pub to: Time,
    pub hit: Option<bool>,
}

impl Force {
    /// Whether the call may have ended this hold.
    pub fn may_end(&self, hold: &Hold) -> bool {
        let is_any = self.token.is_none() && self.owners.is_empty();
        self.name == hold.name && (is_any || self.names(hold)) && self.hit != Some(false)
    }

    pub fn has_ended(&self, hold: &Hold) -> bool {
        self.hit == Some(true) && self.names(hold)
    }

    fn names(&self, hold: &Hold) -> bool {
        self.token == Some(hold.token) || self.owners.contains(&hold.owner)
    }
}

/// A request to the register to write.
#[derive(Debug)]
pub struct Write {
    pub t: Time,
    pub call: Option<usize>,
    pub ok: bool,
}
