//! The bounds of a run, and what may happen to the server in it.

use crate::network::{ClientId, OWNERS_OF_A_CLIENT, OwnerId, Time, Token};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub clients: u8,
    /// At least one for each client. The others belong to the last client.
    pub owners: u8,
    /// Attempts and nested acquires of each owner.
    pub attempts: u8,
    pub reentries: u8,
    /// Holds that are detached in a run, at most two, and how often each owner attaches one.
    pub detaches: u8,
    pub attaches: u8,
    /// How often each owner extends its hold, and the leases that it asks for.
    pub extends: u8,
    pub extend_to: &'static [Time],
    /// Retries of each owner. Each puts one more copy of a request in flight.
    pub retries: u8,
    /// Polls of each client that it gives up while they are in flight.
    pub timeouts: u8,
    /// Messages in flight at once.
    pub in_flight: usize,
    /// The last tick of the clock.
    pub end: Time,
    pub lease: Time,
    /// The first lease of what is handed to the first client, and to the others: `grant_ttl` and `poll_interval` in src/.
    pub grant_ttl: [Time; 2],
    pub waiter_ttl: Time,
    /// How much longer the keys of the queue live than all clients.
    pub queue_outlives: Time,
    /// How long a caller waits; 0: without a limit.
    pub patience: Time,
    pub operation_timeout: Time,
    /// Places that `advance` looks at in one call.
    pub looks: usize,
    /// R7: whether pushes may be trusted. If not, each grant is confirmed.
    pub trust: bool,
    /// Whether requests and replies may be lost; if not, they may only be late, without bound.
    /// Pushes may be lost either way.
    pub lossy: bool,
    /// Every poll asks for all tickets. If not, every second one does, and those in doubt.
    pub verifies_always: bool,
    /// Revocations are not lost, only late.
    pub revocations_arrive: bool,
    /// All owners have asked when a run begins: the first one holds the lock, the others are queued.
    pub begun: bool,
    /// The last owner uses `try_lock`: it takes a free lock and never waits.
    pub try_lock: bool,
    /// Whether callers give up, and holders renew. Runs about the queue can do without.
    pub gives_up: bool,
    pub renews: bool,
    /// How often a client may go deaf.
    pub deafens: u8,
    /// How often a connection may be replaced.
    pub reconnects: u8,
    /// One of these may happen, once.
    pub faults: &'static [Fault],
    /// All clients have `strict_restart`, so P1 covers what the server has forgotten (R14).
    pub strict: bool,
    /// Whether the property about waiters looks for what becomes of them without more faults.
    pub settles: bool,
}

/// What happens to the server from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    ForceUnlock,
    /// The server restarts without its data.
    Restart,
    /// FLUSHALL: the data is gone, the connections stay.
    Flush,
    DeleteLock,
    DeleteQueue,
    DeleteDeadlines,
    /// The server's clock is set forward.
    ClockStep,
    /// The server's clock is set back by one tick.
    ClockBack,
    /// The server stands still for this many ticks: nothing arrives, and its keys of the queue do not expire.
    Stall(Time),
}

impl Bounds {
    /// R2: until when an acquire that is sent at `sent` may be served.
    pub fn not_after(&self, sent: Time) -> Time {
        sent + self.operation_timeout
    }

    /// The longest lease that anybody asks for.
    pub fn longest_lease(&self) -> Time {
        self.extend_to.iter().copied().fold(self.lease, Time::max)
    }

    pub fn waits(&self, owner: OwnerId) -> bool {
        !self.try_lock || owner + 1 != self.owners
    }

    /// Owners beyond the bounds have a client each (settle.rs).
    pub fn client_of(&self, owner: OwnerId) -> ClientId {
        if owner < self.owners { owner.min(self.clients - 1) } else { self.clients + owner - self.owners }
    }

    pub fn owners_of(&self, client: ClientId) -> impl Iterator<Item = OwnerId> {
        let bounds = *self;
        (client..client + bounds.owners)
            .filter(move |owner| bounds.client_of(*owner) == client)
            .take(OWNERS_OF_A_CLIENT)
    }

    pub fn grant_ttl(&self, client: ClientId) -> Time {
        if client >= self.clients {
            return self.waiter_ttl;
        }
        self.grant_ttl[usize::from(client.min(1))]
    }

    /// Whether this owner may start before the one before it. Otherwise owners are interchangeable and start in
    /// order of their ids.
    pub fn may_be_first(&self, owner: OwnerId) -> bool {
        let differs = self.try_lock || self.grant_ttl[0] != self.grant_ttl[1] || self.clients < self.owners;
        owner == 0 || differs && self.client_of(owner) != self.client_of(owner - 1)
    }

    /// Redis TIME as a token (R10): grows faster than grants can. While the stored token is kept the
    /// clock would only leave gaps between tokens, so only restarts need it.
    pub fn clock_for_tokens(&self, now: Time) -> Token {
        if self.faults.contains(&Fault::Restart) { Token::from(now) * 16 } else { 0 }
    }
}
