//! Clients that end, and what they know about their servers.

use std::time::Duration;

use fairlock::{LockError, Loss, Owner, Tried, UnlockError, Unlocked};
use tokio::time::Instant;

use super::{Masters, builder, embedded, quick, strict};
use crate::support::{Embedded, Proxy, Server, Timing, eventually, limit, on_several_in_virtual_time};

#[tokio::test]
async fn closing_ends_waits_and_later_calls_also_with_a_server_that_is_down() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let guard = client.lock("x").lock().await.unwrap();
        let waiting = {
            let lock = client.lock("x");
            tokio::spawn(async move { lock.lock().await.map(drop) })
        };
        eventually("it waits", async || client.lock("x").status().await.unwrap().waiters == 1).await;
        masters.0[0].kill().await;
        client.close().await.unwrap();
        assert!(matches!(waiting.await.unwrap(), Err(LockError::Closed)));
        assert_eq!(guard.lost().await, Loss::Closed);
        for outcome in [client.lock("y").lock().await.map(Tried::Acquired), client.lock("y").try_lock().await] {
            assert!(matches!(outcome, Err(LockError::Closed)), "{outcome:?}");
        }
        let limited = client.lock("y").lock_timeout(Duration::from_secs(60)).await;
        assert!(matches!(limited, Err(LockError::Closed)), "{limited:?}");
        masters.0[1].assert_clean().await;
        masters.0[2].assert_clean().await;
    })
    .await;
}

/// With all servers down, the close waits for nothing.
#[tokio::test]
async fn closing_without_any_server_says_so() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        for server in &masters.0 {
            server.kill().await;
        }
        eventually("they are known to be down", async || {
            matches!(client.lock("x").try_lock().await, Err(LockError::Unreachable(_)))
        })
        .await;
        assert!(client.close().await.is_err());
        assert!(matches!(client.lock("x").lock().await, Err(LockError::Closed)));
    })
    .await;
}

/// The task that probes a silent server must not keep the client alive.
#[tokio::test]
async fn a_client_that_is_dropped_leaves_no_task_although_a_server_is_silent() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        servers[2].network.silence(true);
        let guard = client.lock("x").lock().await.unwrap();
        assert_eq!(guard.servers(), [0, 1]);
        guard.unlock().await.unwrap();
        // The end of each test checks that no task remains.
        drop(client);
    })
    .await;
}

/// Q10: a silent server costs one time-out, not one for each call.
#[tokio::test]
async fn q10_a_silent_server_is_waited_for_once() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let node_timeout = Duration::from_secs(2);
        let each = Timing::relaxed().builder();
        let builder = each.server_timeout(node_timeout).without_strict_restart();
        let client = embedded(builder, servers);
        let guard = client.lock("x").lock().await.unwrap();
        servers[1].network.silence(true);
        let begun = Instant::now();
        // The unlock finds it silent, and later calls skip it.
        guard.unlock().await.unwrap();
        for _ in 0..10 {
            let guard = client.lock("x").lock().await.unwrap();
            assert_eq!(guard.servers(), [0, 2]);
            guard.unlock().await.unwrap();
        }
        // Twenty calls cost one time-out or two. Otherwise each call would cost one, until the connection counts as
        // dead.
        assert!(begun.elapsed() < 3 * node_timeout, "{:?}", begun.elapsed());
        servers[1].network.silence(false);
        eventually("it counts again", async || {
            client.lock("x").lock().await.is_ok_and(|guard| guard.servers() == [0, 1, 2])
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// Two addresses of one server. The client cannot reach one of them at first.
#[tokio::test]
async fn a_server_that_turns_out_to_be_another_one_never_counts() {
    limit(async {
        let masters = Masters::start(2).await;
        let proxy = Proxy::start(&masters.0[0]).await;
        proxy.refuse(true);
        let urls = [masters.urls()[0].clone(), masters.urls()[1].clone(), proxy.url()];
        let client = strict().connect(urls).await.unwrap();
        drop(client.lock("x").lock().await.unwrap());
        proxy.refuse(false);
        eventually("it is connected", async || client.lock("x").status().await.unwrap().servers[2].answer.is_ok())
            .await;
        for _ in 0..10 {
            let guard = client.lock("x").lock().await.unwrap();
            assert_eq!(guard.servers(), [0, 1]);
            guard.unlock().await.unwrap();
        }
        client.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// Q4: with two of three servers silent, the call finds no majority and releases the third one.
#[tokio::test]
async fn after_an_error_nothing_is_held() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        for server in &masters.0[1..] {
            server.pause();
        }
        let error = client.lock("x").try_lock().await.unwrap_err();
        assert!(matches!(error, LockError::Unreachable(_)), "{error:?}");
        let limited = client.lock("x").lock_timeout(Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(limited, LockError::Unreachable(_)), "{limited:?}");
        let first = Timing::default().connect(&masters.0[0].url()).await;
        first.lock("x").lock().await.unwrap().unlock().await.unwrap();
        first.close().await.unwrap();
        for server in &masters.0[1..] {
            server.resume();
        }
        client.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

#[test]
fn a_guard_outlives_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let own = runtime();
    let (masters, client, guard, nested) = own.block_on(async {
        let masters = Masters::start(3).await;
        let client = quick().connect(masters.urls()).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        let dropped = client.lock("y").lock().await.unwrap();
        (masters, client, guard, dropped)
    });
    drop(own);
    runtime().block_on(limit(async {
        drop(nested);
        assert!(matches!(client.lock("z").lock().await, Err(LockError::RuntimeGone)));
        assert!(matches!(client.lock("z").try_lock().await, Err(LockError::RuntimeGone)));
        // The leases end, and the guard learns of it without the runtime.
        assert_eq!(guard.lost().await, Loss::Expired);
        let unlocked = guard.unlock().await.unwrap_err();
        assert!(matches!(unlocked, UnlockError::RuntimeGone { .. } | UnlockError::Lost(_)), "{unlocked:?}");
        let other = builder().without_strict_restart().connect(masters.urls()).await.unwrap();
        other.lock("x").lock().await.unwrap().unlock().await.unwrap();
        other.lock("y").lock().await.unwrap().unlock().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    }));
}

/// An owner's try_lock waits for its own release. On a slow link both together may take longer than `server_timeout`.
#[tokio::test]
async fn q10_a_slow_release_of_ones_own_is_no_silence() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let builder = Timing::relaxed().builder().without_strict_restart();
        let client = embedded(builder.server_timeout(Duration::from_millis(1600)), servers);
        let other = embedded(quick(), servers);
        let (lock, free) = (client.lock("x"), client.lock("free"));
        let delay = |delay| servers.iter().for_each(|server| server.network.delay(delay));
        Owner::new()
            .scope(async {
                let guard = lock.lock().await.unwrap();
                delay(Duration::from_millis(500));
                drop(guard);
                tokio::task::yield_now().await;
                // A round trip takes a second.
                let tried = lock.try_lock().await;
                assert!(!matches!(tried, Ok(Tried::Busy(_))), "{tried:?}");
            })
            .await;
        delay(Duration::ZERO);
        // All servers count: a call that does not wait could not find out in time.
        assert!(free.try_lock().await.unwrap().into_result().is_ok());
        eventually("it is given back", async || other.lock("x").try_lock().await.unwrap().into_result().is_ok()).await;
    })
    .await;
}

/// If the caller gave up a close half-way, the connections stayed open.
#[tokio::test]
async fn a_close_that_is_given_up_closes_all_the_same() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let guard = client.lock("x").lock().await.unwrap();
        masters.0[..2].iter().for_each(Server::pause);
        assert!(tokio::time::timeout(Duration::from_millis(50), client.close()).await.is_err());
        masters.0[..2].iter().for_each(Server::resume);
        drop(guard);
        // The client still exists here.
        masters.assert_clean().await;
        drop(client);
    })
    .await;
}

/// The client begins although its servers are down.
#[tokio::test]
async fn a_client_can_begin_before_its_servers() {
    limit(async {
        let masters = Masters::start(3).await;
        for server in &masters.0 {
            server.kill().await;
        }
        let each = Timing::default().builder().retry_on_initial_connect();
        let client = each.without_strict_restart().connect(masters.urls()).await.unwrap();
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        for server in &masters.0 {
            server.restart().await;
        }
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The unlock awaited no answer from skipped servers. If two of them were back a moment later, it was `Unknown` at
/// once.
#[tokio::test]
async fn an_unlock_waits_for_servers_that_are_back_in_time() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let guard = client.lock("x").lock().await.unwrap();
        for embedded in servers {
            embedded.server.disconnect(client.id());
        }
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
    })
    .await;
}
