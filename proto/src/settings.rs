//! The options of a client that its protocol depends on.

use std::time::Duration;

#[derive(Debug, Clone, Hash)]
pub struct Settings {
    /// The first part of the client's owner ids.
    pub client: String,
    pub prefix: String,
    /// How long a request may take.
    pub operation_timeout: Duration,
    /// How long the server keeps the places of a client that is not heard.
    pub waiter_ttl: Duration,
    pub poll_interval: Duration,
    /// How long a lock that is handed over is valid at least.
    pub grant_ttl: Duration,
    /// How long the server keeps it until its first renewal: that and a poll interval, since a waiter counts from its last poll.
    pub first_lease: Duration,
    /// How long tokens are remembered.
    pub token_ttl: Duration,
    /// The lease of a call that names none.
    pub lease: Duration,
    pub max_hold: Option<Duration>,
    /// How many requests of each lane are under way to one server.
    pub in_flight: usize,
}

impl Settings {
    /// How long what was sent until now can have an effect on a server: its places and leases are over then, also those of a
    /// request that is served late (R2).
    pub fn longest_effect(&self, lease: Duration) -> Duration {
        lease.max(self.waiter_ttl).max(self.first_lease) + 2 * self.operation_timeout
    }

    /// Whether an owner is one of this client's.
    pub fn is_ours(&self, owner_id: &str) -> bool {
        owner_id.rsplit_once(':').is_some_and(|(client, _)| client == self.client)
    }
}
