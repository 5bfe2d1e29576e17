//! What the servers of a quorum know of a lock.

use std::collections::HashMap;

use crate::error::RequestError;
use crate::status::{Holder, LockStatus};

/// What each server says, in their order. There is no common instant: each answers when it is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QuorumStatus {
    /// One for each server.
    pub nodes: Vec<NodeStatus>,
}

/// What one server says.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The URL of the server, without the password.
    pub address: String,
    /// Its answer, or why there is none.
    pub status: Result<LockStatus, RequestError>,
    /// Which of the others it is, by another address: then it never counts. Seen with
    /// [`strict_restart`](crate::QuorumClientBuilder::strict_restart) only.
    pub same_as: Option<usize>,
}

impl QuorumStatus {
    /// Who holds the lock on a majority of the servers, as the first of these tells it. Its token there may be smaller
    /// than that of the guard, which is the greatest of all its servers.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// assert!(lock.status().await.holder().is_none());
    /// let guard = lock.lock().await?;
    /// assert_eq!(lock.status().await.holder().map(|holder| holder.holds), Some(1));
    /// # drop(guard);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        let holders = || self.nodes.iter().filter_map(|node| node.status.as_ref().ok()?.holder.as_ref());
        let mut counts: HashMap<&str, usize> = HashMap::new();
        holders().for_each(|holder| *counts.entry(&holder.owner).or_default() += 1);
        holders().find(|holder| counts.get(holder.owner.as_str()).is_some_and(|count| 2 * count > self.nodes.len()))
    }

    /// How many wait at the server where most do: those who wait for the lock wait at one of them each.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// assert_eq!(client.lock("orders:42").status().await.waiters(), 0);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn waiters(&self) -> u64 {
        self.nodes.iter().filter_map(|node| node.status.as_ref().ok()).map(|status| status.waiters).max().unwrap_or(0)
    }
}
