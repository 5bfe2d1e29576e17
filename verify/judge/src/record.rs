//! What a history is made of: calls, holds, handles, faults.

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
    /// No fault comes from here on.
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
    /// How long what is handed over to one of its waits lasts.
    pub first_lease: Time,
    pub began: Time,
    pub closing: Time,
    pub closed: Time,
    /// It was killed then, at the latest.
    pub killed: Time,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum How {
    /// Without a limit, until it gets the lock or is dropped.
    Lock,
    Timeout,
    Try,
    /// One name of several.
    All,
    /// A call by a handle, which it takes up, or gives back. No new hold is granted.
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
    /// What it asks for, and how much of the name there is.
    pub weight: u64,
    pub of: u64,
    /// For a call by a handle, the hold that it was made of, as `CLIENT/ID`, and as an index.
    pub from: Option<String>,
    pub handle_of: Option<usize>,
    /// When its outcome was there; `NEVER` if there was none.
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
    /// When its holder began to give it back.
    pub free: Time,
    pub freed: Option<(Time, String)>,
    pub lost: Option<(Time, String)>,
    /// Its holder waited to hear of its loss. Who only writes something and gives it back does not.
    pub listens: bool,
    /// How many holds there were in nested calls.
    pub nested: Vec<(bool, u64)>,
    pub weight: u64,
    /// From when on it relied on less, and on how much.
    pub shrunk: Option<(Time, u64)>,
    pub detached: Option<Detached>,
    /// The hold that was granted: this one, or the one that was detached and attached first.
    pub grant: usize,
}

/// What became of a guard that was detached.
#[derive(Debug, Clone)]
pub struct Detached {
    pub asked: Time,
    pub lease: Time,
    pub answered: Time,
    /// Until when the handle holds it, by the clock of who detached it; 0 if that is not known.
    pub until: Time,
    /// The guard has it as before.
    pub was_refused: bool,
}

impl Hold {
    /// Until when its holder relied on it, if nothing ends it earlier.
    pub fn given_away(&self) -> Time {
        self.free.min(self.detached.as_ref().map_or(NEVER, |detached| detached.asked))
    }

    /// Its handle, if it has become one.
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
    /// That of the hold that is meant. Without it, and without owners: whatever is held.
    pub token: Option<u64>,
    /// Who had it on each of several servers. Each has a token of its own for a hold, and the guard has that of one of them.
    pub owners: Vec<String>,
    pub from: Time,
    /// When it was answered, and whether it ended a hold.
    pub to: Time,
    pub hit: Option<bool>,
}

impl Force {
    /// Whether this is the hold that is meant.
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

/// A write that the register was asked for.
#[derive(Debug)]
pub struct Write {
    pub t: Time,
    pub call: Option<usize>,
    pub ok: bool,
}
