//! The parts that the clones, locks and guards of one client share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures::future::{Either, join_all, select};
use tokio::time::timeout;

use super::contention::Contention;
use super::hold::QuorumHold;
use super::nodes::Nodes;
use super::owners::OwnerTable;
use crate::driver::client::warn_of;
use crate::driver::guard::DrivenGuard;
use crate::driver::outcome::LockError;
use crate::metrics::Metrics;

pub struct Quorum {
    pub nodes: Arc<Nodes>,
    /// Lets nested calls find the hold that they re-enter (Q11).
    pub owners: Arc<OwnerTable<QuorumHold>>,
    /// The locks that others want too.
    pub contention: Contention,
    /// The metrics of its locks. Each node's client has its own, under the node's name.
    pub metrics: Metrics,
}

impl Quorum {
    pub fn new(nodes: Nodes, metrics: Metrics) -> Arc<Self> {
        let (nodes, owners) = (Arc::new(nodes), Arc::new(OwnerTable::new()));
        Arc::new(Self { nodes, owners, contention: Contention::default(), metrics })
    }

    /// Resolves when the client serves no more calls.
    pub async fn ended(&self) -> LockError {
        self.nodes.context.over.cancelled().await;
        self.nodes.context.why_over()
    }

    /// When no request sent so far for this hold can have an effect on a server any more.
    pub fn forgotten_at(&self, hold: &QuorumHold) -> Instant {
        self.nodes.context.forgotten_at(hold.longest_lease())
    }

    /// `None`: the client's runtime has ended.
    pub async fn drive<F: Future>(&self, call: F) -> Option<F::Output> {
        self.nodes.context.drive(call).await
    }

    /// Releases these guards, and waits for the answers for a short time. An unanswered release goes on in the
    /// background.
    pub async fn release(&self, guards: impl IntoIterator<Item = DrivenGuard>) {
        join_all(guards.into_iter().map(|guard| timeout(self.nodes.node_timeout, guard.unlock()))).await;
    }

    /// Closes all clients at the same time. `Some`: fewer than a majority of the servers answered all requests in time;
    /// how many requests are unanswered, and at how many servers.
    pub async fn close(&self) -> Option<(usize, usize)> {
        let nodes = &self.nodes;
        if !nodes.context.closing.is_cancelled() {
            warn_of(self.held());
        }
        let (used, others): (Vec<_>, Vec<_>) = (0..nodes.all.len()).partition(|index| nodes.is_usable(*index));
        let close_all = |indices: Vec<usize>| {
            let clients = indices.into_iter().filter_map(|index| Some(&nodes.all.get(index)?.client));
            join_all(clients.map(|client| client.driver().close()))
        };
        let closing = pin!(async {
            match select(close_all(used), close_all(others)).await {
                // A server that is down does not answer, but may be up again.
                Either::Left((_, others)) => drop(timeout(nodes.node_timeout, others).await),
                Either::Right((_, used)) => drop(used.await),
            }
        });
        // After the end of its runtime no client waits for anything. Otherwise each one has begun to close, and ends in
        // the background.
        if self.drive(closing).await.is_none() {
            join_all(nodes.clients().map(|client| client.driver().close())).await;
        }
        // Unfinished closes go on in the background.
        let drivers = || nodes.clients().map(|client| client.driver());
        let servers = drivers().filter(|driver| !driver.is_finished()).count();
        let is_closed = servers + nodes.majority() <= nodes.all.len();
        (!is_closed).then(|| (drivers().map(|driver| driver.unfinished()).sum(), servers))
    }

    /// The number of this client's holds: one owner at one lock on a majority.
    fn held(&self) -> usize {
        let mut counts = BTreeMap::new();
        for hold in self.nodes.clients().flat_map(|client| client.driver().valid_holds()) {
            *counts.entry((hold.entry.keys.lock.clone(), hold.entry.owner.number())).or_insert(0_usize) += 1;
        }
        counts.into_values().filter(|count| *count >= self.nodes.majority()).count()
    }
}
