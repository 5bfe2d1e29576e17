//! Losses and silence that only a request to the server, or a check of the connection, reveals.

use std::time::Duration;

use fairlock::{LockClient, LockError, Loss, Owner};

use crate::support::{Collect, Proxy, Server, Timing, eventually, in_virtual_time, limit};

/// No renewal comes during a test.
const AN_HOUR: Duration = Duration::from_secs(3600);

fn client_of_long_leases() -> fairlock::LockClientBuilder {
    Timing { lease: AN_HOUR, ..Timing::default() }.builder().token_ttl(2 * AN_HOUR)
}

async fn connect(url: String) -> LockClient {
    client_of_long_leases().connect(url).await.unwrap()
}

#[tokio::test]
async fn a_fixed_lease_that_was_forced_while_the_connection_was_cut_is_lost_after_it() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let (cut_off, other) = (connect(proxy.url()).await, connect(server.url()).await);
        let guard = cut_off.lock("x").with_lease(AN_HOUR).lock().await.unwrap();
        proxy.refuse(true);
        proxy.reset_all();
        proxy.assert_no_connections().await;
        assert!(other.lock("x").force_unlock().await.unwrap());
        let next = other.lock("x").lock().await.unwrap();
        proxy.refuse(false);
        assert_eq!(guard.lost().await, Loss::Gone);
        assert!(next.is_valid());
        next.unlock().await.unwrap();
    })
    .await;
}

/// Even if the server has a shorter lease: a failover may have lost the request that set it (R15).
#[tokio::test]
async fn a_check_after_a_reconnect_gives_a_fixed_lease_what_is_left_of_it_and_no_more() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = connect(proxy.url()).await;
        let guard = client.lock("x").with_lease(AN_HOUR).lock().await.unwrap();
        let mut redis = server.connection().await;
        let key = "fairlock:{n:x}";
        let ends_at: i64 = redis::cmd("PEXPIRETIME").arg(key).query_async(&mut redis).await.unwrap();
        redis::cmd("PEXPIRE").arg(key).arg(600_000).exec_async(&mut redis).await.unwrap();
        proxy.reset_all();
        let lock = client.lock("x");
        eventually("it is back", async || lock.status().await.is_ok()).await;
        let left = Duration::from_millis(server.lifetime(key).await.try_into().unwrap());
        assert!(guard.is_valid() && guard.valid_for() <= left);
        let ends_now: i64 = redis::cmd("PEXPIRETIME").arg(key).query_async(&mut redis).await.unwrap();
        // The request takes a moment.
        assert!(ends_now < ends_at + 1000, "{}", ends_now - ends_at);
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_half_open_connection_costs_no_lease() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let timing =
            Timing { lease: Duration::from_secs(8), operation_timeout: Duration::from_secs(2), ..Timing::default() };
        let client = timing.connect(&proxy.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        proxy.cut_silently();
        // A new connection has renewed the lease: more is left than the old connection could have given.
        eventually("it is renewed", async || {
            assert!(guard.is_valid(), "the lease was lost to a half-open connection");
            guard.valid_for() > Duration::from_millis(7_500) && client.lock("y").is_locked().await.is_ok()
        })
        .await;
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_call_in_the_way_of_a_silent_server_does_not_mean_that_the_lock_is_held() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let (me, lock) = (Owner::new(), client.lock("x"));
        proxy.blackhole(true);
        let waiting = tokio::spawn(me.scope({
            let lock = lock.clone();
            async move { lock.lock().await }
        }));
        tokio::task::yield_now().await;
        let tried = me.scope(lock.try_lock()).await;
        assert!(matches!(tried, Err(LockError::Unreachable(_))), "{tried:?}");
        let timed_out = me.scope(lock.lock_timeout(Duration::from_millis(700))).await;
        assert!(matches!(timed_out, Err(LockError::Unreachable(_))), "{timed_out:?}");
        proxy.blackhole(false);
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
    })
    .await;
}

/// The client itself gave up the connection.
#[tokio::test]
async fn silence_is_not_told_as_a_connection_that_was_closed() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        server.pause();
        client.lock("x").lock_timeout(Duration::from_millis(2500)).await.unwrap_err();
        let error = client.lock("x").lock_timeout(Duration::from_millis(200)).await.unwrap_err().to_string();
        server.resume();
        assert!(error.contains("no answer within") || error.contains("did not answer"), "{error}");
    })
    .await;
}

/// The server answered that others had the lock, before it became silent or went down.
#[tokio::test]
async fn a_wait_that_ends_while_the_server_is_silent_or_down_says_so() {
    for is_down in [false, true] {
        in_virtual_time(async |server| {
            let (cut_off, other) = (server.connect(Timing::default()).await, server.connect(Timing::default()).await);
            let holder = other.lock("x").lock().await.unwrap();
            let lock = cut_off.lock("x");
            let waiting = tokio::spawn(async move { lock.lock_timeout(Duration::from_secs(6)).await.map(drop) });
            let lock = other.lock("x");
            eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
            if is_down {
                server.server.shut_down()
            } else {
                server.network.cut_off(cut_off.id())
            }
            let outcome = waiting.await.unwrap();
            assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
            if is_down {
                server.server.start_up();
            }
            drop(holder);
        })
        .await;
    }
}

/// Whatever the cause.
#[tokio::test]
async fn each_lost_lock_is_one_warning() {
    limit(async {
        let said = Collect::default();
        let _collecting = said.clone().here();
        let lines = |level: &str| -> Vec<String> {
            let lines = said.lines();
            lines.into_iter().filter(|line| line.starts_with(level) && line.contains("=lost ")).collect()
        };
        let warnings = || lines("WARN").into_iter().filter(|line| !line.contains("connection")).collect::<Vec<_>>();
        let server = Server::start().await;
        let client = connect(server.url()).await;
        for count in [1, 100] {
            said.clear();
            let mut held = Vec::new();
            for number in 0..count {
                held.push(client.lock(format!("{number}")).lock().await.unwrap());
            }
            server.restart().await;
            for guard in &held {
                assert_eq!(guard.lost().await, Loss::Gone);
            }
            eventually("it is said", async || warnings().len() == count).await;
            let warned = warnings();
            assert!(warned.iter().all(|line| line.contains("name=")), "each says which: {warned:?}");
            assert!(lines("DEBUG").is_empty(), "{:?}", lines("DEBUG"));
        }
        client.close().await.unwrap();
    })
    .await;
}
