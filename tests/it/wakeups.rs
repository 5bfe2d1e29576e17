//! P9: a message is a hint. Without messages all waiters still get the lock, by polls, and the polls are few.

use std::time::Duration;

use crate::support::{Proxy, Server, Timing, eventually, limit};

const NAME: &str = "p9";

#[tokio::test]
async fn p9_all_waiters_get_through_while_their_connections_are_killed() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let waits = spawn_waits(&client, 10);
        let lock = client.lock(NAME);
        eventually("all wait", async || lock.status().await.unwrap().queue.len() == 10).await;
        let mut redis = server.connection().await;
        let kill = async |redis: &mut redis::aio::MultiplexedConnection| {
            let command = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").clone();
            command.query_async::<u32>(redis).await.unwrap()
        };
        // The connection with the subscription is closed, so the client cannot receive the grant.
        assert!(kill(&mut redis).await >= 1);
        holder.unlock().await.unwrap();
        let killer = tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                kill(&mut redis).await;
            }
        });
        for wait in waits {
            wait.await.unwrap();
        }
        killer.abort();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn p9_all_waiters_get_through_when_every_push_is_lost() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        proxy.drop_pushes(true);
        let holder = client.lock(NAME).lock().await.unwrap();
        let waits = spawn_waits(&client, 8);
        let lock = client.lock(NAME);
        eventually("all wait", async || lock.status().await.unwrap().queue.len() == 8).await;
        holder.unlock().await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn p9_waiting_costs_one_poll_for_all_in_each_interval() {
    limit(async {
        let server = Server::start().await;
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let waits = spawn_waits(&client, 50);
        let lock = client.lock(NAME);
        eventually("all wait", async || lock.status().await.unwrap().queue.len() == 50).await;

        let before = server.calls("evalsha").await;
        let intervals = 6;
        tokio::time::sleep(intervals * timing.poll_interval).await;
        let calls = server.calls("evalsha").await - before;
        // One poll in each interval for all 50 (R8), the holder's renewals, and a few at the start and the end.
        assert!(calls >= 2, "no polls: {calls}");
        assert!(calls <= 3 * u64::from(intervals), "{calls} scripts in {intervals} intervals");
        holder.unlock().await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

fn spawn_waits(client: &fairlock::LockClient, waits: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let wait = |_| {
        let lock = client.lock(NAME);
        tokio::spawn(async move { drop(lock.lock().await.unwrap().unlock().await) })
    };
    (0..waits).map(wait).collect()
}
