//! Nested calls while servers of the hold are gone.

use std::time::Duration;

use fairlock::{LockClient, LockClientBuilder, Owner};
use tokio::time::Instant;

use super::{Masters, embedded, quick};
use crate::support::{Embedded, Timing, eventually, limit, on_several_in_virtual_time};

const NODE_TIMEOUT: Duration = Duration::from_secs(2);

fn patient() -> LockClientBuilder {
    Timing::relaxed().builder().server_timeout(NODE_TIMEOUT).without_strict_restart()
}

/// Makes ten pairs of nested calls, each at two of the three servers.
async fn nested_pairs(client: &LockClient) {
    let lock = client.lock("x");
    for _ in 0..10 {
        let inner = lock.lock().await.unwrap();
        let tried = lock.try_lock().await.unwrap().into_result().expect("its own");
        assert_eq!((inner.servers(), tried.servers()), (vec![0, 1], vec![0, 1]));
        tried.unlock().await.unwrap();
        inner.unlock().await.unwrap();
    }
}

/// Q10: at a server that died, the hold may be valid until its lease ends. No call waits for that server.
#[tokio::test]
async fn q10_a_dead_server_of_the_hold_is_skipped_by_nested_calls() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = patient().connect(masters.urls()).await.unwrap();
        let work = async {
            let outer = client.lock("x").lock().await.unwrap();
            masters.0[2].kill().await;
            eventually("it is known to be down", async || {
                client.lock("y").try_lock().await.unwrap().into_result().is_ok_and(|guard| guard.servers() == [0, 1])
            })
            .await;
            let begun = Instant::now();
            nested_pairs(&client).await;
            // Otherwise each of the twenty would cost a time-out.
            assert!(begun.elapsed() < 5 * NODE_TIMEOUT, "{:?}", begun.elapsed());
            outer.unlock().await.unwrap();
        };
        Owner::new().scope(work).await;
    })
    .await;
}

/// Q10: one time-out or two, until the client skips the server.
#[tokio::test]
async fn q10_a_silent_server_of_the_hold_is_waited_for_once_by_nested_calls() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(patient(), servers);
        let work = async {
            let outer = client.lock("x").lock().await.unwrap();
            servers[2].network.silence(true);
            let begun = Instant::now();
            nested_pairs(&client).await;
            assert!(begun.elapsed() < 3 * NODE_TIMEOUT, "{:?}", begun.elapsed());
            servers[2].network.silence(false);
            outer.unlock().await.unwrap();
        };
        Owner::new().scope(work).await;
        client.close().await.unwrap();
    })
    .await;
}

/// One server has not answered the release yet, so the client still knows the hold.
#[tokio::test]
async fn q11_a_hold_that_is_being_given_back_is_not_entered_again() {
    limit(async {
        let masters = Masters::start(3).await;
        let (client, other) = (masters.client().await, masters.client().await);
        let lock = client.lock("x");
        Owner::new()
            .scope(async {
                let guard = lock.lock().await.unwrap();
                masters.0[2].pause();
                drop(guard);
                let held = other.lock("x").lock().await.unwrap();
                for _ in 0..3 {
                    assert!(lock.try_lock().await.unwrap().is_busy());
                }
                masters.0[2].resume();
                held.unlock().await.unwrap();
                drop(lock.lock().await.unwrap());
            })
            .await;
        client.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn q4_a_server_that_is_lost_while_another_one_is_silent_does_not_count() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (client, other) = (embedded(patient(), servers), embedded(quick(), servers));
        let second = servers[1].connect(Timing::default()).await;
        let lock = client.lock("x");
        Owner::new()
            .scope(async {
                let outer = lock.lock().await.unwrap();
                servers[2].network.silence(true);
                let losing = async {
                    // The call is under way: because of the silent server each status takes long.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    eventually("it has answers of the others", async || {
                        let status = other.lock("x").status().await.unwrap();
                        let holds =
                            |node: usize| status.servers[node].answer.as_ref().ok()?.holder.as_ref().map(|it| it.holds);
                        holds(0) == Some(2) && holds(1) == Some(2)
                    })
                    .await;
                    second.lock("x").force_unlock().await.unwrap();
                    eventually("its client knows", async || outer.servers() == [0, 2]).await;
                    // Longer than the call waits for it.
                    tokio::time::sleep(NODE_TIMEOUT + Duration::from_millis(500)).await;
                    servers[2].network.silence(false);
                };
                let (inner, ()) = tokio::join!(lock.lock(), losing);
                let inner = inner.unwrap();
                assert!(inner.is_valid() && outer.is_valid());
                assert_eq!(inner.servers(), [0, 2]);
            })
            .await;
    })
    .await;
}
