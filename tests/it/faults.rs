//! The server restarts, loses its data, stalls, or is full. The network loses or delays requests and replies.

use std::time::Duration;

use fairlock::{FairLock, LockClient, LockError, Loss, UnlockError, Unlocked};
use futures::future::join_all;
use tokio::time::Instant;

use crate::support::{Proxy, Server, Timing, eventually, in_virtual_time, limit, on_a_server};

const NAME: &str = "fault";

/// One holder, and ten waiters in a known order.
async fn one_holder_ten_waiters(client: &LockClient) -> (fairlock::LockGuard, Vec<tokio::task::JoinHandle<u64>>) {
    let holder = client.lock(NAME).lock().await.unwrap();
    let mut waits = Vec::new();
    for waiting in 1..=10 {
        let lock = client.lock(NAME);
        waits.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let token = guard.token();
            // Lost or freed: after a restart both are correct.
            let _ = guard.unlock().await;
            token
        }));
        let lock = client.lock(NAME);
        eventually("it waits", async || lock.status().await.unwrap().queue.len() == waiting).await;
    }
    (holder, waits)
}

/// The tokens of the waiters, in the order in which they queued.
async fn all_get_through(waits: Vec<tokio::task::JoinHandle<u64>>) -> Vec<u64> {
    let mut tokens = Vec::new();
    for wait in waits {
        tokens.push(wait.await.unwrap());
    }
    tokens
}

/// The queue vanishes too. The waiters notice in a poll (R8), and queue again in any order.
#[tokio::test]
async fn a_restart_without_data_loses_the_hold_and_no_waiter() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let (holder, waits) = one_holder_ten_waiters(&client).await;
        server.restart().await;
        let mut tokens = all_get_through(waits).await;
        assert_eq!(holder.lost().await, Loss::Gone);
        assert!(tokens.iter().all(|token| *token > holder.token()));
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 10);
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_restart_with_data_keeps_hold_queue_and_order() {
    limit(async {
        let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let client = Timing::default().connect(&server.url()).await;
        let (holder, waits) = one_holder_ten_waiters(&client).await;
        server.restart_with_data().await;
        let lock = client.lock(NAME);
        eventually("it is back", async || lock.status().await.is_ok_and(|status| status.queue.len() == 10)).await;
        assert!(holder.is_valid());
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        let tokens = all_get_through(waits).await;
        assert!(tokens.is_sorted(), "served in the order they came: {tokens:?}");
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// The client calls scripts by their hash. If the server does not know the script, the client must send its text.
#[tokio::test]
async fn a_script_flush_changes_nothing() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let (holder, waits) = one_holder_ten_waiters(&client).await;
        let mut redis = server.connection().await;
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.unwrap();
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        assert!(all_get_through(waits).await.is_sorted());
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// Each caller sent the text: four megabytes for a thousand callers.
#[tokio::test]
async fn callers_that_come_at_once_send_the_text_of_a_script_once() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::relaxed().connect(&server.url()).await;
        let locks: Vec<_> = (0..500).map(|number| client.lock(format!("n{number}"))).collect();
        let guards = join_all(locks.iter().map(FairLock::lock)).await;
        let unlocks = guards.into_iter().map(|guard| guard.unwrap().unlock());
        assert!(join_all(unlocks).await.into_iter().all(|outcome| matches!(outcome, Ok(Unlocked::Freed))));
        let mut redis = server.connection().await;
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await.unwrap();
        let calls = |command: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
            line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
        };
        assert!(calls("eval") < 20 && calls("evalsha") >= 990, "{stats}");
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_pause_longer_than_the_operation_timeout_ends_no_hold() {
    limit(async {
        let server = Server::start().await;
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        let (holder, waits) = one_holder_ten_waiters(&client).await;
        let pause = timing.operation_timeout + Duration::from_millis(300);
        let mut redis = server.connection().await;
        let millis = u64::try_from(pause.as_millis()).unwrap();
        redis::cmd("CLIENT").arg("PAUSE").arg(millis).arg("ALL").exec_async(&mut redis).await.unwrap();
        assert!(
            matches!(client.lock("other").try_lock().await, Err(LockError::Unreachable(_))),
            "no answer is not the same as not acquired"
        );
        tokio::time::sleep(pause).await;
        assert!(holder.is_valid(), "R12: a renewal without an answer is not a loss");
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        assert!(all_get_through(waits).await.is_sorted());
        let lock = client.lock("other");
        eventually("a lock that try_lock may have got is released", async || !lock.is_locked().await.unwrap()).await;
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_full_server_still_releases_renews_and_grants() {
    limit(async {
        let server = Server::with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]).await;
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        let (holder, waits) = one_holder_ten_waiters(&client).await;
        server.fill().await;
        tokio::time::sleep(timing.lease + timing.lease / 2).await;
        assert!(holder.is_valid(), "renewals run on a full server");
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        assert!(all_get_through(waits).await.is_sorted());
    })
    .await;
}

#[tokio::test]
async fn an_unlock_without_an_answer_is_unknown_and_retried_in_the_background() {
    in_virtual_time(async |server| {
        let (client, observer) = (server.connect(Timing::default()).await, server.connect(Timing::default()).await);
        let guard = client.lock(NAME).lock().await.unwrap();
        server.network.cut_off(client.id());
        assert!(matches!(guard.unlock().await, Err(UnlockError::Unknown { .. })));
        let lock = observer.lock(NAME);
        assert!(lock.is_locked().await.unwrap());
        server.network.mend(client.id());
        let begun = Instant::now();
        eventually("the background has released it", async || !lock.is_locked().await.unwrap()).await;
        // The client gives up the lost try after one operation timeout.
        assert!(begun.elapsed() < 2 * Timing::default().operation_timeout, "{:?}", begun.elapsed());
    })
    .await;
}

/// R1: the retry finds nothing to release. Before the local deadline this means that the first request freed the lock.
#[tokio::test]
async fn an_unlock_whose_first_reply_is_lost_answers_freed() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        for _ in 0..20 {
            let guard = client.lock(NAME).lock().await.unwrap();
            proxy.lose_next_reply();
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        }
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// R1: the retry has the same seq, so the server does not count it again.
#[tokio::test]
async fn an_acquire_whose_reply_is_lost_is_retried_and_counts_once() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let observer = Timing::default().connect(&server.url()).await;
        for _ in 0..20 {
            proxy.lose_next_reply();
            let guard = client.lock(NAME).lock().await.unwrap();
            assert_eq!(observer.lock(NAME).status().await.unwrap().holder.unwrap().holds, 1);
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        }
        client.close().await.unwrap();
        drop(observer);
        server.assert_clean().await;
    })
    .await;
}

/// R2: the network delivers the acquire long after the caller gave up. It must not take the lock then.
#[tokio::test]
async fn a_request_that_arrives_late_is_refused() {
    in_virtual_time(async |server| {
        let timing = Timing::default();
        let (client, observer) = (server.connect(timing).await, server.connect(timing).await);
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        let late = timing.operation_timeout + Duration::from_millis(500);
        server.network.delay_of(client.id(), late);
        let served = server.network.calls();
        assert!(client.lock(NAME).try_lock().await.is_err());
        // The client can no longer release it.
        server.network.cut_off(client.id());
        drop(client);
        eventually("it has arrived", async || server.network.calls() > served).await;
        assert!(!observer.lock(NAME).is_locked().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn without_a_server_a_bounded_wait_says_unreachable_and_an_unbounded_one_waits() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        server.kill().await;
        let bounded = client.lock(NAME).lock_timeout(Duration::from_millis(500)).await;
        assert!(matches!(bounded, Err(LockError::Unreachable(_))), "{bounded:?}");
        let lock = client.lock(NAME);
        let unbounded = tokio::spawn(async move { lock.lock().await });
        server.restart().await;
        unbounded.await.unwrap().unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn an_idle_client_notices_a_frozen_server_and_reconnects() {
    limit(async {
        let server = Server::start().await;
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        server.pause();
        tokio::time::sleep(4 * timing.operation_timeout).await;
        server.resume();
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// The client notices the end of the connection together with its last answer. It does not send a question again, so
/// this test sees if it drops the answer.
#[tokio::test]
async fn an_answer_counts_that_comes_with_the_end_of_the_connection() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        // The first two are for the handshake.
        proxy.end_with_reply(3);
        let client = Timing::default().connect(&proxy.url()).await;
        for _ in 0..20 {
            client.lock(NAME).status().await.unwrap();
        }
        client.close().await.unwrap();
    })
    .await;
}

/// The same for the renewal after a reconnect. Without that answer the client would lose a renewed lock.
#[tokio::test]
async fn a_renewal_counts_that_is_answered_with_the_end_of_the_connection() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        // No other renewal is due while this test waits.
        let timing = Timing { lease: Duration::from_secs(300), ..Timing::default() };
        let client = timing.connect(&proxy.url()).await;
        let guard = client.lock(NAME).lock().await.unwrap();
        // The order of these two reads, and the opposite order below: a delay between them cannot make the test pass.
        let valid_for = guard.valid_for();
        let valid_until = Instant::now() + valid_for;
        proxy.end_with_reply(3);
        proxy.reset_all();
        eventually("it is renewed", async || {
            let now = Instant::now();
            now + guard.valid_for() > valid_until + Duration::from_millis(5)
        })
        .await;
        proxy.end_with_reply(0);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}
