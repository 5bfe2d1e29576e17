//! The options of a client that its protocol depends on.

use std::time::Duration;

#[derive(Debug, Clone, Hash)]
pub struct Settings {
    /// The first part of the client's owner ids.
    pub client: String,
    pub prefix: String,
    /// How long a request may take.
    pub operation_timeout: Duration,
    /// How long the server keeps the places of a client that it receives nothing from.
    pub waiter_ttl: Duration,
    pub poll_interval: Duration,
    /// The least time for which a lock is valid after a hand-over.
    pub grant_ttl: Duration,
    /// How long the server keeps that lock until its first renewal: `grant_ttl` and a poll interval, since a waiter
    /// counts from its last poll.
    pub first_lease: Duration,
    /// How long the server remembers tokens.
    pub token_ttl: Duration,
    /// The lease of a call that names none.
    pub lease: Duration,
    pub max_hold: Option<Duration>,
    /// The most requests of each lane under way to one server.
    pub in_flight: usize,
}

impl Settings {
    /// How long the requests until now can have an effect on a server. After that their places and leases have ended,
    /// even if the server served one late (R2).
    pub fn longest_effect(&self, lease: Duration) -> Duration {
        lease.max(self.waiter_ttl).max(self.first_lease) + 2 * self.operation_timeout
    }

    /// Whether an owner belongs to this client.
    pub fn is_ours(&self, owner_id: &str) -> bool {
        owner_id.rsplit_once(':').is_some_and(|(client, _)| client == self.client)
    }
}
