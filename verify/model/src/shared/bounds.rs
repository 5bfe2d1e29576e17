//! The bounds of a run, and what may happen to the server in it.

use super::network::{ClientId, HANDLES, OWNERS_OF_A_CLIENT, OwnerId, Time, Token, Weight};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub clients: u8,
    /// At least one for each client. The others belong to the last client.
    pub owners: u8,
    /// What each owner asks for, and the limit that its client names. One that `shrinks` does so once, to 1.
    pub weights: [Weight; 4],
    pub limits: [Weight; 4],
    pub attempts: u8,
    pub reentries: u8,
    pub shrinks: u8,
    /// Handles that are made, and attaches of each owner.
    pub detaches: u8,
    pub attaches: u8,
    pub retries: u8,
    pub in_flight: usize,
    pub end: Time,
    pub lease: Time,
    /// The lease of the last owner, if it is another one.
    pub last_lease: Time,
    /// The lease that a handle is made with, if it is another one.
    pub handle_lease: Option<Time>,
    pub grant_ttl: Time,
    pub waiter_ttl: Time,
    pub operation_timeout: Time,
    /// Bounds of one call: waiters served, ended holders taken out.
    pub serves: usize,
    pub takes_out: usize,
    pub max_holders: usize,
    /// Tickets that one poll asks for.
    pub asks: usize,
    pub trust: bool,
    pub lossy: bool,
    /// Owners that have asked when a run begins, in the order of their numbers.
    pub begun: u8,
    /// The last owner never waits.
    pub tries: bool,
    pub gives_up: bool,
    pub renews: bool,
    pub deafens: u8,
    /// What `set_permits` may set, one after the other.
    pub permits: &'static [Option<Weight>],
    /// One of these may happen, once.
    pub faults: &'static [Fault],
    /// All clients have `strict_restart` (R14).
    pub strict: bool,
    pub settles: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `revoke(token)` of any one holder.
    Revoke,
    /// The server restarts without its data.
    Restart,
    /// FLUSHALL: the connections stay.
    Flush,
}

impl Bounds {
    pub fn not_after(&self, sent: Time) -> Time {
        sent + self.operation_timeout
    }

    pub fn waits(&self, owner: OwnerId) -> bool {
        !self.tries || owner + 1 != self.owners
    }

    pub fn weight(&self, owner: OwnerId) -> Weight {
        if owner < self.owners { self.weights[usize::from(owner)] } else { 1 }
    }

    pub fn limit(&self, owner: OwnerId) -> Weight {
        self.limits[usize::from(if owner < self.owners { owner } else { 0 })]
    }

    pub fn lease(&self, owner: OwnerId) -> Time {
        match self.handle_lease {
            Some(lease) if owner >= HANDLES => lease,
            _ if owner + 1 == self.owners => self.last_lease,
            _ => self.lease,
        }
    }

    /// Owners beyond the bounds have a client each (settle.rs).
    pub fn client_of(&self, owner: OwnerId) -> ClientId {
        if owner < self.owners { owner.min(self.clients - 1) } else { self.clients + owner - self.owners }
    }

    pub fn owners_of(&self, client: ClientId) -> impl Iterator<Item = OwnerId> {
        let bounds = *self;
        let all = client..client + bounds.owners;
        all.filter(move |owner| bounds.client_of(*owner) == client).take(OWNERS_OF_A_CLIENT)
    }

    /// Owners that ask for the same, each by a client of its own, are interchangeable, and start in order of their ids.
    pub fn may_be_first(&self, owner: OwnerId) -> bool {
        if owner == 0 {
            return true;
        }
        let traits = |owner: OwnerId| (self.weight(owner), self.limit(owner), self.lease(owner), self.waits(owner));
        traits(owner) != traits(owner - 1) || self.clients < self.owners
    }

    /// As in the lock's model: only restarts need the clock in tokens.
    pub fn clock_for_tokens(&self, now: Time) -> Token {
        if self.faults.contains(&Fault::Restart) { Token::from(now) * 16 } else { 0 }
    }
}
