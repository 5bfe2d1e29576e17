//! Wherever a caller drops a call, it leaves nothing.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use fairlock::{LockClient, Owner};
use futures::FutureExt;

use super::Masters;
use crate::support::cluster::command;
use crate::support::{eventually, limit, limit_to};

/// Drops the call after this many turns of the other tasks. `Some`: the call ended before that.
async fn turns<F: Future>(times: usize, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    for _ in 0..=times {
        if let Some(output) = call.as_mut().now_or_never() {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// After how many turns to drop a call: each of the first turns, then every seventh. How many turns a call takes
/// depends on how fast the servers answer.
fn places() -> impl Iterator<Item = usize> {
    (0..8).chain((8..).step_by(7))
}

/// The lock must be free, and the next caller gets it.
async fn is_free(client: &LockClient) {
    eventually("it is free at all servers", async || {
        let status = client.lock("x").status().await.unwrap();
        status
            .servers
            .iter()
            .all(|node| node.answer.as_ref().is_ok_and(|node| node.holder.is_none() && node.waiters == 0))
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_dropped_at_any_await_leaves_nothing() {
    limit_to(Duration::from_secs(180), drop_at_each_await(false)).await;
}

/// Q3: one of the servers has given a later token than the others accept.
#[tokio::test]
async fn a_lock_that_is_dropped_while_it_raises_leaves_nothing() {
    limit_to(Duration::from_secs(180), drop_at_each_await(true)).await;
}

async fn drop_at_each_await(raises: bool) {
    let masters = Masters::start(3).await;
    let (client, other) = (masters.client().await, masters.client().await);
    let mut last_token = 0;
    // Until the call ends before the drop. The task that makes the call has come to another point each time.
    for times in places() {
        if raises {
            let ahead = (last_token + 3_600_000_000).to_string();
            command(&masters.0[1], &["SET", "fairlock:{n:x}:token", &ahead, "PX", "3600000"]).await;
        }
        let outcome = turns(times, client.lock("x").lock()).await;
        let is_over = outcome.is_some();
        drop(outcome);
        let guard = other.lock("x").lock().await.unwrap();
        assert!(guard.token() > last_token);
        last_token = guard.token();
        guard.unlock().await.unwrap();
        is_free(&other).await;
        if is_over {
            assert!(times > 0, "it was dropped at no place");
            break;
        }
    }
    client.close().await.unwrap();
    other.close().await.unwrap();
    masters.assert_clean().await;
}

/// The call gets the lock just as it gives up.
#[tokio::test]
async fn a_wait_that_is_dropped_at_any_await_passes_on_what_it_gets() {
    limit_to(Duration::from_secs(180), async {
        let masters = Masters::start(3).await;
        let (client, other) = (masters.client().await, masters.client().await);
        for times in places() {
            let held = other.lock("x").lock().await.unwrap();
            let lock = client.lock("x");
            // Both at once: the wait begins, and the holder releases while the request is under way.
            let (outcome, unlocked) = tokio::join!(turns(times, lock.lock()), async {
                tokio::time::sleep(Duration::from_millis(times as u64 % 7)).await;
                held.unlock().await
            });
            unlocked.unwrap();
            let is_over = outcome.is_some();
            drop(outcome);
            is_free(&other).await;
            if is_over {
                assert!(times > 0, "it was dropped at no place");
                break;
            }
        }
        client.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn an_unlock_that_is_dropped_at_any_await_goes_on() {
    limit(async {
        let masters = Masters::start(3).await;
        let (client, other) = (masters.client().await, masters.client().await);
        for times in places() {
            let guard = client.lock("x").lock().await.unwrap();
            let outcome = turns(times, guard.unlock()).await;
            let next = other.lock("x").lock().await.unwrap();
            next.unlock().await.unwrap();
            is_free(&other).await;
            if let Some(outcome) = outcome {
                outcome.unwrap();
                assert!(times > 0, "it was dropped at no place");
                break;
            }
        }
        // Never polled.
        let guard = client.lock("x").lock().await.unwrap();
        drop(guard.unlock());
        is_free(&other).await;
        client.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_nested_call_that_is_dropped_at_any_await_leaves_the_outer_hold_as_it_was() {
    limit(async {
        let masters = Masters::start(3).await;
        let (client, other) = (masters.client().await, masters.client().await);
        let lock = client.lock("x");
        for times in places() {
            let is_over = Owner::new()
                .scope(async {
                    let outer = lock.lock().await.unwrap();
                    let inner = turns(times, lock.lock()).await;
                    let is_over = inner.is_some();
                    drop(inner);
                    eventually("one hold is left", async || {
                        let status = other.lock("x").status().await.unwrap();
                        let holders =
                            status.servers.iter().filter_map(|node| node.answer.as_ref().ok()?.holder.as_ref());
                        holders.filter(|holder| holder.holds == 1).count() == 3
                    })
                    .await;
                    assert!(outer.is_valid() && outer.servers() == [0, 1, 2]);
                    outer.unlock().await.unwrap();
                    is_over
                })
                .await;
            is_free(&other).await;
            if is_over {
                break;
            }
        }
        client.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}
