//! R15: a server with older data takes over and brings released holds back.

use std::time::{Duration, Instant};

use fairlock::{LockClient, LockGuard, Unlocked, owner};
use futures::future::join_all;

use crate::support::{Proxy, Server, Timing, eventually, in_virtual_time, limit};

const NAME: &str = "ghost";
const KEY: &str = "fairlock:{n:ghost}";
const LEASE: Duration = Duration::from_secs(60);
/// With this much of the lease left, the test did not wait for its end.
const MUCH: Duration = Duration::from_secs(20);

fn timing() -> Timing {
    Timing { lease: LEASE, grant_ttl: LEASE, waiter_ttl: LEASE, ..Timing::relaxed() }
}

/// A primary, and a replica that takes over. Clients reach the active server through a proxy.
struct Pair {
    primary: Server,
    replica: Server,
    proxy: Proxy,
}

impl Pair {
    async fn start() -> Self {
        // By default a primary waits 5 s for more replicas.
        let primary = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
        let replica = Server::start().await;
        let proxy = Proxy::start(&primary).await;
        Self { primary, replica, proxy }
    }

    async fn connect(&self) -> LockClient {
        timing().connect(&self.proxy.url()).await
    }

    /// From now on the replica receives nothing.
    async fn replicate_until_now(&self) {
        self.replica.replicate(&self.primary).await;
        self.replica.promote().await;
    }

    async fn assert_clean(&self) {
        self.replica.assert_clean().await;
    }
}

async fn hold(client: &LockClient, name: &str) -> LockGuard {
    client.lock(name).lock().await.unwrap()
}

/// Another client gets the lock long before the lease of the returned hold ends.
async fn assert_gone_soon(server: &Server, client: &LockClient, since: Instant) {
    let guard = hold(client, NAME).await;
    assert!(since.elapsed() + MUCH < LEASE, "it took {:?} of a lease of {LEASE:?}", since.elapsed());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
    assert_eq!(server.lifetime(KEY).await, -2);
}

/// Even with a view of the hold that lives on: a view cannot release it.
#[tokio::test]
async fn p5_a_release_that_a_failover_has_lost_is_made_again() {
    for is_watched in [false, true] {
        limit(async {
            let pair = Pair::start().await;
            let (client, other) = (pair.connect().await, pair.connect().await);
            let guard = hold(&client, NAME).await;
            let since = Instant::now();
            pair.replicate_until_now().await;
            let view = is_watched.then(|| guard.held());
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
            assert!(pair.replica.lifetime(KEY).await > 0, "the replica has not heard of it");
            pair.proxy.fail_over_to(&pair.replica);
            // Otherwise the first request of `other` could be on its way now, and leave a tombstone for a while.
            eventually("it is connected", async || other.lock(NAME).is_locked().await.is_ok()).await;
            assert_gone_soon(&pair.replica, &other, since).await;
            drop(view);
            client.close().await.unwrap();
            other.close().await.unwrap();
            pair.assert_clean().await;
        })
        .await;
    }
}

#[tokio::test]
async fn p5_a_restart_from_an_older_file_brings_no_hold_back() {
    limit(async {
        let server = Server::start().await;
        let (client, other) = (timing().connect(&server.url()).await, timing().connect(&server.url()).await);
        let guard = hold(&client, NAME).await;
        let since = Instant::now();
        server.save().await;
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        server.restart_from_snapshot().await;
        assert_gone_soon(&server, &other, since).await;
        client.close().await.unwrap();
        other.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// The age of a release counts up to the end of the connection, however long the outage lasts.
#[tokio::test]
async fn p5_a_release_is_made_again_after_a_long_outage() {
    in_virtual_time(async |store| {
        let short = Timing { operation_timeout: Duration::from_millis(500), ..timing() };
        let client = store.connect(short).await;
        let guard = hold(&client, NAME).await;
        let since = tokio::time::Instant::now();
        let older = store.server.snapshot().unwrap();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        store.server.shut_down();
        store.server.restore(older);
        // Longer than the client remembers releases while it is connected.
        tokio::time::sleep(Duration::from_secs(9)).await;
        store.server.start_up();
        let other = store.connect(timing()).await;
        assert_eq!(hold(&other, NAME).await.unlock().await.unwrap(), Unlocked::Freed);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    })
    .await;
}

/// Many names, with one request each.
#[tokio::test]
async fn p5_all_that_a_failover_brings_back_goes() {
    limit(async {
        let pair = Pair::start().await;
        let client = pair.connect().await;
        let names: Vec<_> = (0..300).map(|number| format!("ghost {number}")).collect();
        let guards = join_all(names.iter().map(|name| hold(&client, name))).await;
        let since = Instant::now();
        pair.replicate_until_now().await;
        for unlocked in join_all(guards.into_iter().map(LockGuard::unlock)).await {
            assert_eq!(unlocked.unwrap(), Unlocked::Freed);
        }
        let are_back = pair.replica.keys().await.iter().filter(|key| key.ends_with('}')).count();
        assert_eq!(are_back, names.len());
        pair.proxy.fail_over_to(&pair.replica);
        let is_free = async || !pair.replica.keys().await.iter().any(|key| key.ends_with('}'));
        eventually("all are free", is_free).await;
        assert!(since.elapsed() + MUCH < LEASE, "{:?}", since.elapsed());
        client.close().await.unwrap();
        pair.assert_clean().await;
    })
    .await;
}

/// The place of a wait that has ended is back in the queue. The server grants the lock to it, and no call takes it.
#[tokio::test]
async fn p5_a_place_that_a_failover_brings_back_holds_nobody_up() {
    limit(async {
        let pair = Pair::start().await;
        let (holding, leaving, waiting) = (pair.connect().await, pair.connect().await, pair.connect().await);
        let guard = hold(&holding, NAME).await;
        let queued = async |count: usize| {
            let lock = holding.lock(NAME);
            eventually("it waits", async || lock.status().await.is_ok_and(|status| status.queue.len() == count)).await;
        };
        let lock = leaving.lock(NAME);
        let left = tokio::spawn(async move { lock.lock().await.map(drop) });
        queued(1).await;
        let lock = waiting.lock(NAME);
        let served = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        queued(2).await;
        pair.replicate_until_now().await;
        left.abort();
        queued(1).await;
        pair.proxy.fail_over_to(&pair.replica);
        // Two places: the live wait and the ended one.
        queued(2).await;
        let since = Instant::now();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        assert_eq!(served.await.unwrap().unwrap(), Unlocked::Freed);
        assert!(since.elapsed() + MUCH < LEASE, "{:?}", since.elapsed());
        for client in [holding, leaving, waiting] {
            client.close().await.unwrap();
        }
        pair.assert_clean().await;
    })
    .await;
}

/// P1: the client never renews a fixed lease, so it must restore at once the part that a failover took. Otherwise the
/// holder would rely on its lease, and another client could have the lock.
#[tokio::test]
async fn p1_a_fixed_lease_that_a_failover_has_shortened_is_whole_again() {
    limit(async {
        let pair = Pair::start().await;
        let client = pair.connect().await;
        owner::scope(async {
            let guard = client.lock(NAME).with_lease(LEASE).lock().await.unwrap();
            // As if the replica had received an earlier, shorter lease: the grant's.
            let mut primary = pair.primary.connection().await;
            redis::cmd("PEXPIRE").arg(KEY).arg(15_000).exec_async(&mut primary).await.unwrap();
            pair.replicate_until_now().await;
            pair.proxy.fail_over_to(&pair.replica);
            eventually("it is whole", async || pair.replica.lifetime(KEY).await > 30_000).await;
            assert!(u128::try_from(pair.replica.lifetime(KEY).await).unwrap() >= guard.valid_for().as_millis());
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        })
        .await;
        client.close().await.unwrap();
        pair.assert_clean().await;
    })
    .await;
}
