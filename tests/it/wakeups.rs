//! P9: a message is only a hint. Without messages all waiters still get the lock by polls, and the polls are few.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Server, Timing, eventually, in_virtual_time, limit};

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
        // The server closes the connection with the subscription, so the client cannot receive the grant.
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
    in_virtual_time(async |server| {
        let client = server.connect(Timing::default()).await;
        server.network.lose_messages(true);
        let holder = client.lock(NAME).lock().await.unwrap();
        let waits = spawn_waits(&client, 8);
        let lock = client.lock(NAME);
        eventually("all wait", async || lock.status().await.unwrap().queue.len() == 8).await;
        let begun = Instant::now();
        holder.unlock().await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
        // A timer may be up to a millisecond late.
        assert!(begun.elapsed() < 9 * Timing::default().poll_interval, "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test]
async fn p9_waiting_costs_one_poll_for_all_in_each_interval() {
    in_virtual_time(async |server| {
        let timing = Timing { lease: Duration::from_secs(3600), ..Timing::default() };
        let client = server.connect(timing).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let waits = spawn_waits(&client, 50);
        let lock = client.lock(NAME);
        eventually("all wait", async || lock.status().await.unwrap().queue.len() == 50).await;

        let before = server.network.calls();
        let intervals = 100;
        tokio::time::sleep(intervals * timing.poll_interval).await;
        let calls = server.network.calls() - before;
        // One poll in each interval for all 50 (R8).
        assert!(calls.abs_diff(u64::from(intervals)) <= 1, "{calls} scripts in {intervals} intervals");
        holder.unlock().await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
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
