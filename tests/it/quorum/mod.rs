//! A lock on several masters: real servers that the tests kill, stop, restart, cut off, fill, and make read-only.

mod basics;
mod cancel;
mod clients;
mod errors;
mod faults;
mod loss;
mod nested;
mod page;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fairlock::{LockClient, LockClientBuilder, LockGuard};
use tokio::task::JoinSet;

use crate::support::{Server, Timing, embedded, eventually};

/// The servers of a quorum.
struct Masters(Vec<Server>);

impl Masters {
    async fn start(count: usize) -> Self {
        Self::with(count, &[]).await
    }

    async fn with(count: usize, args: &[&str]) -> Self {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::with(args).await);
        }
        Self(servers)
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// A client that does not wait for the first freeze.
    async fn client(&self) -> LockClient {
        quick().connect(self.urls()).await.expect("the servers are there")
    }

    /// How often each of three servers has run a command.
    async fn calls(&self, name: &str) -> [u64; 3] {
        [self.0[0].calls(name).await, self.0[1].calls(name).await, self.0[2].calls(name).await]
    }

    /// Only tokens and the records of the last start remain.
    async fn assert_clean(&self) {
        for server in &self.0 {
            server.assert_clean().await;
        }
    }
}

fn builder() -> LockClientBuilder {
    Timing::default().builder()
}

/// For servers that keep their data.
fn quick() -> LockClientBuilder {
    builder().without_strict_restart()
}

/// A lease that a test can wait for, and with it a freeze.
fn strict() -> LockClientBuilder {
    let (lease, operation_timeout) = (Duration::from_millis(1500), Duration::from_millis(500));
    // Together with the poll interval it makes up the lease.
    let grant_ttl = Duration::from_millis(1000);
    let each = Timing { lease, operation_timeout, grant_ttl, ..Timing::default() }.builder();
    each.clock_difference(Duration::ZERO)
}

/// A resource that refuses old tokens, and notices visits while another visitor is inside.
#[derive(Default)]
struct Resource {
    token: AtomicU64,
    visits: AtomicU64,
}

impl Resource {
    /// If the guard is still valid at the end, no other visitor may have come in, and its token must be the greatest so
    /// far.
    async fn visit(&self, guard: &LockGuard) {
        let visit = self.visits.fetch_add(1, Ordering::SeqCst) + 1;
        let newest = self.token.fetch_max(guard.token(), Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let later = self.visits.load(Ordering::SeqCst) - visit;
        if guard.is_valid() {
            assert_eq!(later, 0, "two are inside");
            assert!(newest < guard.token(), "the token {} is not above {newest}", guard.token());
        }
    }

    fn visits(&self) -> u64 {
        self.visits.load(Ordering::SeqCst)
    }
}

/// Clients that take turns at a resource until the test stops them.
struct Load {
    resource: Arc<Resource>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(clients: impl IntoIterator<Item = LockClient>) -> Self {
        let mut load = Self { resource: Arc::default(), stop: Arc::default(), tasks: JoinSet::new() };
        for client in clients {
            let (resource, stop) = (load.resource.clone(), load.stop.clone());
            load.tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = client.lock("x").lock().await.unwrap();
                    resource.visit(&guard).await;
                    // A fault may affect a release, which this test does not check: the client goes on with it in the
                    // background.
                    let _ = guard.unlock().await;
                }
                // A server may be down.
                let _ = client.close().await;
            });
        }
        load
    }

    async fn goes_on(&self, what: &str) {
        self.goes_on_for(50, what).await;
    }

    /// Fails unless at least this many more visits come.
    async fn goes_on_for(&self, visits: u64, what: &str) {
        let before = self.resource.visits();
        eventually(what, async || self.resource.visits() >= before + visits).await;
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}
