//! P2: the tokens of a lock grow strictly, even over expiry, `force_unlock`, lost data and restarts.

use std::time::Duration;

use fairlock::{FairLock, owner};
use tokio::sync::mpsc;

use crate::support::{Timing, on_a_server, on_each_store};

const NAME: &str = "token";

async fn next(lock: &FairLock) -> u64 {
    let guard = lock.lock().await.unwrap();
    let token = guard.token();
    guard.unlock().await.unwrap();
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_tokens_grow_over_five_thousand_acquisitions() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        // With four tasks, some acquisitions are hand-overs and some find a free lock. Each task sends its token while
        // it holds the lock, so the tokens arrive in the order of the holds.
        let (sender, mut tokens) = mpsc::unbounded_channel();
        for _ in 0..4 {
            let (lock, sender) = (client.lock(NAME), sender.clone());
            tokio::spawn(async move {
                for _ in 0..1250 {
                    let guard = lock.lock().await.unwrap();
                    sender.send(guard.token()).unwrap();
                    guard.unlock().await.unwrap();
                }
            });
        }
        drop(sender);
        let (mut last, mut count) = (0, 0);
        while let Some(token) = tokens.recv().await {
            assert!(token > last, "{token} after {last}");
            (last, count) = (token, count + 1);
        }
        assert_eq!(count, 5000);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p2_tokens_grow_after_each_way_to_end_a_hold() {
    on_each_store(async |store| {
        let timing = Timing::default();
        let client = store.connect(timing).await;
        let lock = client.lock(NAME);
        let mut last = next(&lock).await;
        let mut grows = |what: &str, token: u64| {
            assert!(token > last, "after {what}: {token}, before it {last}");
            last = token;
        };

        let expired = lock.with_lease(timing.operation_timeout).lock().await.unwrap();
        grows("a plain hold", expired.token());
        expired.lost().await;
        grows("an expiry", next(&lock).await);

        let forced = lock.lock().await.unwrap();
        grows("a plain hold", forced.token());
        lock.force_unlock().await.unwrap();
        grows("a force_unlock", next(&lock).await);

        // The next token comes from the clock, which must move on by a microsecond before the server loses its data.
        tokio::time::sleep(Duration::from_millis(1)).await;
        store.flush().await;
        grows("FLUSHALL", next(&lock).await);
    })
    .await;
}

#[tokio::test]
async fn p2_tokens_grow_when_the_stored_one_is_deleted_or_ahead_of_the_clock() {
    on_a_server(async |server| {
        let lock = Timing::default().connect(&server.url()).await.lock(NAME);
        let mut redis = server.connection().await;
        let before = next(&lock).await;
        let key = format!("fairlock:{{n:{NAME}}}:token");
        redis::cmd("DEL").arg(&key).exec_async(&mut redis).await.unwrap();
        assert!(next(&lock).await > before);

        // R10: after the server's clock went back, the stored token is ahead of it.
        let ahead = u64::MAX >> 12;
        redis::cmd("SET").arg(&key).arg(ahead).arg("PX").arg(60_000).exec_async(&mut redis).await.unwrap();
        assert_eq!((next(&lock).await, next(&lock).await), (ahead + 1, ahead + 2));
    })
    .await;
}

/// R10: the server loses the stored token, and the clock takes its place.
#[tokio::test]
async fn p2_tokens_grow_over_a_restart_without_data() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let lock = client.lock(NAME);
        let before = next(&lock).await;
        server.restart().await;
        assert!(next(&lock).await > before);
    })
    .await;
}

#[tokio::test]
async fn p2_reentry_keeps_the_token() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let lock = client.lock(NAME);
        owner::scope(async {
            let outer = lock.lock().await.unwrap();
            for _ in 0..3 {
                let inner = lock.lock().await.unwrap();
                assert_eq!(inner.token(), outer.token());
                inner.unlock().await.unwrap();
            }
        })
        .await;
    })
    .await;
}
