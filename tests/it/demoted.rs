//! A primary that becomes a replica keeps its clients, and forwards to them the messages published at the new primary.
//! No client may take a message for another client, or for none, as a grant of its own (P1, P2).

use std::time::Duration;

use fairlock::LockClient;
use redis::aio::MultiplexedConnection;

use crate::support::{Proxy, Server, Timing, eventually, limit};

const NAME: &str = "x";

/// The clients send nothing during the test: a client that learns of the demotion would connect again. And no message
/// is so old that clients distrust it.
async fn connect(url: &str) -> LockClient {
    let longest = Duration::from_secs(100);
    let timing = Timing {
        lease: longest,
        operation_timeout: Duration::from_secs(10),
        waiter_ttl: 3 * longest,
        poll_interval: longest,
        grant_ttl: 2 * longest,
    };
    timing.connect(url).await
}

async fn send(redis: &mut MultiplexedConnection, words: &[&str]) -> String {
    redis::cmd(words[0]).arg(&words[1..]).query_async(redis).await.unwrap()
}

async fn replication(server: &Server) -> String {
    send(&mut server.connection().await, &["INFO", "replication"]).await
}

#[derive(Clone, Copy)]
enum By {
    Failover,
    ReplicaOf,
}

/// The two servers change places without data loss.
async fn change_places(primary: &Server, replica: &Server, by: By) {
    let other = replica.port().to_string();
    let mut redis = primary.connection().await;
    match by {
        By::Failover => drop(send(&mut redis, &["FAILOVER", "TO", "127.0.0.1", &other, "TIMEOUT", "20000"]).await),
        By::ReplicaOf => {
            send(&mut replica.connection().await, &["REPLICAOF", "NO", "ONE"]).await;
            send(&mut redis, &["REPLICAOF", "127.0.0.1", &other]).await;
        }
    }
    eventually("they have changed places", async || {
        let (new, old) = (replication(replica).await, replication(primary).await);
        new.contains("role:master") && old.contains("role:slave") && old.contains("master_link_status:up")
    })
    .await;
}

/// One call waits at the primary, and stays connected to it after the demotion. The next call waits at the new
/// primary, at which the holder then releases the lock. `one_name`: all clients use one address, which moves while
/// open connections stay.
async fn no_two_hold_it(by: By, one_name: bool) {
    limit(async {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        eventually("it is replicated", async || replication(&primary).await.contains("state=online")).await;
        let (address, own) = (Proxy::start(&primary).await, Proxy::start(&primary).await);

        let holder = connect(&own.url()).await;
        let held = holder.lock(NAME).lock().await.unwrap();
        let stays = connect(&address.url()).await;
        let first = tokio::spawn(wait(stays.clone()));
        eventually("it waits", async || holder.lock(NAME).status().await.unwrap().waiters == 1).await;

        eventually("the replica has it", async || {
            let mut redis = replica.connection().await;
            redis::cmd("EXISTS").arg("fairlock:{n:x}:queue").query_async::<bool>(&mut redis).await.unwrap()
        })
        .await;

        change_places(&primary, &replica, by).await;
        // The holder moves first. The address moves too, but open connections stay.
        own.fail_over_to(&replica);
        if one_name {
            address.move_to(&replica);
        }
        let moved = connect(&if one_name { address.url() } else { replica.url() }).await;
        let next = tokio::spawn(wait(moved.clone()));
        eventually("both wait", async || moved.lock(NAME).status().await.unwrap().waiters == 2).await;
        assert!(held.unlock().await.is_ok());

        let guard = next.await.unwrap();
        // Once this write has reached the old primary, the messages published before it have too.
        let mut redis = replica.connection().await;
        send(&mut redis, &["SET", "later", "1", "PX", "100"]).await;
        let heard: u32 = redis::cmd("WAIT").arg(1).arg(20_000).query_async(&mut redis).await.unwrap();
        assert_eq!(heard, 1);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(guard.is_valid());
        assert!(!first.is_finished(), "two hold it");

        // After the first waiter has moved, it gets its turn, with a greater token.
        let token = guard.token();
        address.fail_over_to(&replica);
        guard.unlock().await.unwrap();
        let guard = first.await.unwrap();
        assert!(guard.token() > token, "{} after {token}", guard.token());
        guard.unlock().await.unwrap();
        for client in [holder, stays, moved] {
            client.close().await.unwrap();
        }
        replica.assert_clean().await;
    })
    .await;
}

async fn wait(client: LockClient) -> fairlock::LockGuard {
    client.lock(NAME).lock().await.unwrap()
}

#[tokio::test]
async fn p1_a_primary_that_was_demoted_by_failover_makes_nobody_a_second_holder() {
    no_two_hold_it(By::Failover, false).await;
}

#[tokio::test]
async fn p1_a_primary_that_was_demoted_by_hand_makes_nobody_a_second_holder() {
    no_two_hold_it(By::ReplicaOf, false).await;
}

#[tokio::test]
async fn p1_a_primary_behind_a_name_that_moved_makes_nobody_a_second_holder() {
    no_two_hold_it(By::Failover, true).await;
}
