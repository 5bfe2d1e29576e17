//! A client of several masters.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use tokio::time::timeout;

use super::context::Quorum;
use super::lock::QuorumLock;
use super::nodes::Nodes;
use crate::engine::close;
use crate::error::CloseError;
use crate::metrics::Metrics;

/// A client of several independent masters, a majority of which has to live: 3 servers survive the loss of one, 5 that of
/// two.
///
/// Cheap to clone; clones share the connections. Its options are those of a
/// [`QuorumClientBuilder`](crate::QuorumClientBuilder).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use fairlock::QuorumClient;
///
/// let urls = ["redis://one.internal/", "redis://two.internal/", "redis://three.internal/"];
/// let client = QuorumClient::connect(urls).await?;
/// let guard = client.lock("orders:42").lock().await?;
/// guard.unlock().await?;
/// client.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct QuorumClient {
    quorum: Arc<Quorum>,
}

impl fmt::Debug for QuorumClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.quorum.nodes.all.iter().map(|node| &node.address);
        f.debug_list().entries(nodes).finish()
    }
}

impl QuorumClient {
    pub(super) fn new(nodes: Nodes, longest_lease: Duration, metrics: Metrics) -> Self {
        Self { quorum: Quorum::new(nodes, longest_lease, metrics) }
    }

    /// The same at all servers.
    #[cfg(feature = "embedded")]
    pub(crate) fn id(&self) -> &str {
        self.quorum.nodes.all.first().map_or("", |node| &node.engine.context.runner.client)
    }

    /// The lock of that name: 1 to 1024 bytes of anything. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// assert_eq!(client.lock("orders:42").name(), "orders:42");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> QuorumLock {
        QuorumLock::new(self.quorum.clone(), name.as_ref())
    }

    /// Finishes or sends all releases, at all servers, and ends the connections: as
    /// [`LockClient::close`](crate::LockClient::close), at all of them at the same time.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// client.close().await?;
    /// assert!(matches!(client.lock("orders:42").lock().await, Err(fairlock::LockError::Closed)));
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`CloseError`] if fewer than a majority of the servers answered all requests in time.
    ///
    /// # Cancel safety
    /// The end runs in the background: a future that is dropped, or is not polled again, closes the client all the same.
    pub async fn close(&self) -> Result<(), CloseError> {
        let nodes = &self.quorum.nodes;
        close::warn_of(self.held());
        let outcomes: Vec<_> = nodes.all.iter().map(|_| OnceLock::new()).collect();
        let close_one = async |index: usize| {
            if let (Some(node), Some(outcome)) = (nodes.all.get(index), outcomes.get(index)) {
                let _ = outcome.set(close::close(&node.engine).await);
            }
        };
        let (used, others): (Vec<_>, Vec<_>) = (0..nodes.all.len()).partition(|index| nodes.is_usable(*index));
        let closing = pin!(async {
            match select(
                pin!(join_all(used.into_iter().map(close_one))),
                pin!(join_all(others.into_iter().map(close_one))),
            )
            .await
            {
                // A server that is down does not answer. But it may be up again.
                Either::Left((_, others)) => drop(timeout(nodes.node_timeout, others).await),
                Either::Right((_, used)) => drop(used.await),
            }
        });
        // Without its runtime no client waits for anything. Otherwise each one has begun, and ends in the background.
        if self.quorum.drive(closing).await.is_none() {
            join_all((0..nodes.all.len()).map(close_one)).await;
        }
        let outcomes = || outcomes.iter().filter_map(OnceLock::get);
        let unfinished = outcomes().sum();
        let closed = outcomes().filter(|unfinished| **unfinished == 0).count();
        let servers = nodes.all.len() - closed;
        if closed >= nodes.majority() { Ok(()) } else { Err(CloseError { unfinished, servers }) }
    }

    /// What guards of this client hold: the same owner at the same lock on a majority.
    fn held(&self) -> usize {
        let mut counts = BTreeMap::new();
        for hold in self.quorum.nodes.all.iter().flat_map(|node| close::held(&node.engine)) {
            *counts.entry((hold.entry.keys.lock.clone(), hold.entry.owner.number())).or_insert(0_usize) += 1;
        }
        counts.into_values().filter(|count| *count >= self.quorum.nodes.majority()).count()
    }
}
