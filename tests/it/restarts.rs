//! `strict_restart`: P1 when a server is restarted, promoted or flushed.

use std::time::Duration;

use fairlock::{ConnectError, Ended, LockClient, LockClientBuilder, LockError, Loss, OptionsError, Unlocked};
use redis::aio::MultiplexedConnection;

use crate::support::cluster::command;
use crate::support::sentinels::Sentinels;
use crate::support::{BOOT, Collect, Proxy, Server, Timing, eventually, limit};

const LEASE: Duration = Duration::from_secs(2);

fn strict() -> LockClientBuilder {
    Timing { lease: LEASE, ..Timing::default() }.builder().strict_restart(LEASE)
}

async fn connect(url: &str) -> LockClient {
    strict().connect(url).await.unwrap()
}

/// The server's clock, in ms.
async fn time(redis: &mut MultiplexedConnection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(redis).await.unwrap();
    seconds * 1000 + micros / 1000
}

async fn record(redis: &mut MultiplexedConnection) -> String {
    redis::cmd("GET").arg(BOOT).query_async::<Option<String>>(redis).await.unwrap().unwrap_or_default()
}

/// The end of the freeze by the server's clock, in ms.
async fn frozen_until(redis: &mut MultiplexedConnection) -> u64 {
    record(redis).await.split(' ').next().unwrap().parse().expect("a record")
}

/// Ends the freeze of this life now.
async fn thaw(redis: &mut MultiplexedConnection) {
    let record = record(redis).await;
    let life = record.rsplit(' ').next().unwrap();
    redis::cmd("SET").arg(BOOT).arg(format!("1 1 0 {life}")).exec_async(redis).await.unwrap();
}

/// A server without a freeze, and a client of it.
async fn thawed(args: &[&str]) -> (Server, LockClient) {
    let server = Server::with(args).await;
    let client = connect(&server.url()).await;
    thaw(&mut server.connection().await).await;
    assert_eq!(client.lock("x").status().await.unwrap().frozen_for, None);
    (server, client)
}

const KEEPS_DATA: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

async fn places(redis: &mut MultiplexedConnection) -> Vec<String> {
    redis::cmd("LRANGE").arg("fairlock:{n:x}:queue").arg(0).arg(-1).query_async(redis).await.unwrap()
}

async fn waiters(client: &LockClient, name: &str, count: usize) {
    let lock = client.lock(name);
    eventually("they wait", async || lock.status().await.is_ok_and(|status| status.queue.len() == count)).await;
}

#[tokio::test]
async fn p1_after_a_restart_without_data_nobody_gets_what_a_silent_client_still_relies_on() {
    limit(async {
        let (server, other) = thawed(&[]).await;
        let proxy = Proxy::start(&server).await;
        let silent = connect(&proxy.url()).await;
        let guard = silent.lock("x").lock().await.unwrap();
        proxy.blackhole(true);
        let waiting = tokio::spawn({
            let lock = other.lock("x");
            async move { lock.lock().await }
        });
        server.restart().await;
        assert!(guard.is_valid(), "the machine is too slow for this test");
        let next = waiting.await.unwrap().unwrap();
        assert!(!guard.is_valid(), "two hold it");
        let mut redis = server.connection().await;
        assert!(time(&mut redis).await >= frozen_until(&mut redis).await);
        assert!(next.token() > guard.token());
        proxy.blackhole(false);
        assert!(matches!(guard.ended().await, Ended::Lost(_)));
        next.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_held_goes_on_over_a_restart_with_data_and_the_queue_keeps_its_order() {
    limit(async {
        let (server, holder) = thawed(&KEEPS_DATA).await;
        let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
        let owner = fairlock::Owner::new();
        let lock = holder.lock("x");
        let guard = owner.scope(lock.lock()).await.unwrap();
        let (order, mut got) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        let wait = |client: &LockClient, number: usize| {
            let (lock, order) = (client.lock("x"), order.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                order.send(number).unwrap();
                guard.unlock().await.unwrap();
            })
        };
        for number in 0..3 {
            tasks.push(wait(if number % 2 == 0 { &one } else { &two }, number));
            waiters(&holder, "x", number + 1).await;
        }
        let before = places(&mut server.connection().await).await;
        server.restart_with_data().await;
        let mut redis = server.connection().await;
        eventually("it is frozen", async || lock.status().await.is_ok_and(|status| status.frozen_for.is_some())).await;
        let until = frozen_until(&mut redis).await;
        let nested = owner.scope(lock.lock()).await.unwrap();
        assert_eq!(nested.token(), guard.token());
        nested.unlock().await.unwrap();
        // A newcomer queues after the others, and `try_lock` is busy.
        tasks.push(wait(&one, 3));
        waiters(&holder, "x", 4).await;
        // Late enough that the hold would have ended without renewals.
        eventually("the freeze is nearly over", async || time(&mut redis.clone()).await + 500 > until).await;
        assert!(guard.is_valid() && got.try_recv().is_err());
        let after = places(&mut redis).await;
        assert_eq!(after[..3], before, "a waiter gave up its place");
        guard.unlock().await.unwrap();
        assert!(one.lock("x").try_lock().await.unwrap().is_busy(), "it is free, and frozen");
        assert!(!one.lock("x").is_locked().await.unwrap());
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend(got.recv().await);
            if seen.len() == 1 {
                assert!(time(&mut redis).await >= until, "it was served in the freeze");
            }
        }
        assert_eq!(seen, [0, 1, 2, 3]);
        assert_eq!(frozen_until(&mut redis).await, until, "nobody moved the instant");
        for task in tasks {
            task.await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn lost_data_freezes_a_living_server() {
    limit(async {
        let (server, one) = thawed(&[]).await;
        let two = connect(&server.url()).await;
        let guard = one.lock("x").lock().await.unwrap();
        let mut redis = server.connection().await;
        let flushed = time(&mut redis).await;
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap();
        assert_eq!(guard.lost().await, Loss::Gone);
        assert!(two.lock("y").try_lock().await.unwrap().is_busy(), "another name may have been held too");
        let until = frozen_until(&mut redis).await;
        assert!(until >= flushed + 2000, "{flushed} {until}");
        // Connected clients and new ones get the same answer.
        let three = connect(&server.url()).await;
        for client in [&one, &two, &three] {
            let before = time(&mut redis).await;
            let left = client.lock("y").status().await.unwrap().frozen_for.expect("it is frozen");
            let told = before + u64::try_from(left.as_millis()).unwrap();
            assert!(told <= until + 1 && told + 2000 > until, "{told} {until}");
        }
        assert_eq!(frozen_until(&mut redis).await, until);
        let timeout = two.lock("y").lock_timeout(Duration::from_millis(100)).await;
        assert!(timeout.unwrap_err().to_string().contains("the server grants nothing for another"));
        let next = three.lock("y").lock().await.unwrap();
        assert!(time(&mut redis).await >= until);
        assert_eq!(three.lock("y").status().await.unwrap().frozen_for, None);
        next.unlock().await.unwrap();
    })
    .await;
}

/// An eviction does that, without any message.
#[tokio::test]
async fn a_record_that_is_gone_alone_freezes_a_living_server() {
    limit(async {
        let (server, client) = thawed(&[]).await;
        redis::cmd("DEL").arg(BOOT).exec_async(&mut server.connection().await).await.unwrap();
        assert!(client.lock("y").try_lock().await.unwrap().is_busy(), "it may have been held");
        assert!(client.lock("y").status().await.unwrap().frozen_for.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_freed_in_a_freeze_is_passed_on_after_it() {
    limit(async {
        let (server, client) = thawed(&[]).await;
        let names = ["unlocked", "forced"];
        let mut guards = Vec::new();
        for name in names {
            guards.push(client.lock(name).lock().await.unwrap());
        }
        let waiting = names.map(|name| {
            let lock = client.lock(name);
            tokio::spawn(async move { lock.lock().await.unwrap() })
        });
        for name in names {
            waiters(&client, name, 1).await;
        }
        let mut redis = server.connection().await;
        let record = record(&mut redis).await;
        let life = record.rsplit(' ').next().unwrap();
        let until = time(&mut redis).await + 2000;
        redis::cmd("SET").arg(BOOT).arg(format!("{until} 1 0 {life}")).exec_async(&mut redis).await.unwrap();
        guards.remove(0).unlock().await.unwrap();
        assert!(client.lock("forced").force_unlock().await.unwrap());
        assert_eq!(guards.remove(0).lost().await, Loss::Forced);
        for name in names {
            let status = client.lock(name).status().await.unwrap();
            assert!(status.holder.is_none() && status.waiters == 1, "{name}: {status:?}");
        }
        for waiting in waiting {
            let guard = waiting.await.unwrap();
            assert!(time(&mut redis).await >= until);
            guard.unlock().await.unwrap();
        }
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_freeze_is_said_once_and_ended_for_all_connections_of_one_life() {
    limit(async {
        let logged = Collect::default();
        let _here = logged.clone().here();
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = connect(&proxy.url()).await;
        assert!(logged.saw("WARN", "strict_restart"));
        let said = || logged.lines().into_iter().filter(|line| line.contains("strict_restart")).collect::<Vec<_>>();
        let until = frozen_until(&mut server.connection().await).await;
        let first = said();
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(first[0].starts_with("WARN") && first[0].contains(&until.to_string()), "{first:?}");
        for _ in 0..2 {
            let connections = server.connections().await;
            proxy.reset_all();
            eventually("it is back", async || {
                server.connections().await > connections && client.lock("x").status().await.is_ok()
            })
            .await;
        }
        assert_eq!(said(), first);
        server.restart().await;
        eventually("it is back", async || client.lock("x").status().await.is_ok()).await;
        assert_eq!(said().len(), 2);
        thaw(&mut server.connection().await).await;
        connect(&server.url()).await;
        assert_eq!(said().len(), 2, "what is over is not said");
    })
    .await;
}

/// A primary that was a replica for a while may lack grants of the other primary, although its process is the same.
#[tokio::test]
async fn a_promotion_freezes_and_a_first_replica_does_not() {
    limit(async {
        let (one, client) = thawed(&[]).await;
        let mut redis = one.connection().await;
        let two = Server::with(&["--replicaof", "127.0.0.1", &one.port().to_string()]).await;
        let mut replica = two.connection().await;
        eventually("it is replicated", async || !record(&mut replica.clone()).await.is_empty()).await;
        let later = connect(&one.url()).await;
        assert_eq!(later.lock("x").status().await.unwrap().frozen_for, None);
        // A failover by hand, to a server that knows the record of the first one.
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut replica).await.unwrap();
        let promoted = connect(&two.url()).await;
        assert!(promoted.lock("x").status().await.unwrap().frozen_for.is_some());
        // And back, before the first server has received anything from the second.
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec_async(&mut redis).await.unwrap();
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut redis).await.unwrap();
        let back = connect(&one.url()).await;
        assert!(back.lock("x").status().await.unwrap().frozen_for.is_some());
        assert!(client.lock("x").try_lock().await.unwrap().is_busy(), "and so it is for those that were there");
    })
    .await;
}

/// Returns when the replica has the data of its primary.
async fn follow(replica: &Server, primary: &Server) {
    let port = primary.port().to_string();
    let mut redis = replica.connection().await;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).exec_async(&mut redis).await.unwrap();
    eventually("it has the data", async || {
        let info: String = redis::cmd("INFO").arg("replication").query_async(&mut redis.clone()).await.unwrap();
        info.contains("master_link_status:up")
    })
    .await;
}

#[tokio::test]
async fn who_is_connected_to_a_demoted_primary_goes_where_its_name_leads() {
    limit(async {
        let server = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
        let other = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
        let name = Proxy::start(&server).await;
        let client = connect(&name.url()).await;
        follow(&server, &other).await;
        // Existing connections stay.
        name.move_to(&other);
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// Holds go on in a freeze, and so do handles.
#[tokio::test]
async fn a_handle_is_taken_up_in_a_freeze() {
    limit(async {
        let (server, client) = thawed(&[]).await;
        let guard = client.lock("x").lock().await.unwrap();
        let (token, handle) = (guard.token(), guard.detach(LEASE).await.unwrap());
        redis::cmd("DEL").arg(BOOT).exec_async(&mut server.connection().await).await.unwrap();
        assert!(client.lock("y").try_lock().await.unwrap().is_busy(), "it is frozen");
        let guard = client.attach(&handle).await.unwrap();
        assert_eq!((guard.token(), guard.is_valid()), (token, true));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_outlasts_the_freeze_is_refused() {
    limit(async {
        let (_server, client) = thawed(&[]).await;
        let refused = client.lock("x").with_lease(LEASE + Duration::from_millis(1)).try_lock().await;
        let named = |error: &OptionsError| matches!(error, OptionsError::TooShort { larger: "strict_restart", .. });
        assert!(matches!(&refused, Err(LockError::Lease(error)) if named(error)), "{refused:?}");
        let guard = client.lock("x").with_lease(LEASE).lock().await.unwrap();
        guard.unlock().await.unwrap();
        let refused = strict().lease(2 * LEASE).connect("redis://127.0.0.1:1/").await;
        assert!(matches!(&refused, Err(ConnectError::Options(error)) if named(error)), "{refused:?}");
        let refused = strict().connect("redis+cluster://127.0.0.1:1").await;
        let named = matches!(&refused, Err(ConnectError::Options(OptionsError::StrictRestartOnCluster)));
        assert!(named, "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn only_clients_with_strict_restart_need_its_rights() {
    limit(async {
        let server = Server::start().await;
        let mut redis = server.connection().await;
        let mut set_user = async |rights: &[&str]| {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg("worker").arg("reset").arg(&["on", ">secret", "&fairlock:wake:*", "+@all"]);
            command.arg(rights).exec_async(&mut redis).await.unwrap();
        };
        let url = server.url_of_worker();
        set_user(&["~fairlock:{?:*", "-info"]).await;
        let client = Timing::default().connect(&url).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        let missing = async || match strict().connect(&url).await {
            Err(ConnectError::Rights { missing, .. }) => missing,
            other => panic!("{other:?}"),
        };
        let all = missing().await;
        assert!(all.contains(&"+info".to_owned()) && all.contains(&"~fairlock:*".to_owned()), "{all:?}");
        set_user(&["~fairlock:*", "-info"]).await;
        assert_eq!(missing().await, ["+info"]);
        set_user(&["~fairlock:*"]).await;
        connect(&url).await;
    })
    .await;
}

/// The whole freeze in virtual time, so that a slow machine cannot miss it.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn p1_the_embedded_server_freezes_too() {
    for loses_data in [true, false] {
        let server = fairlock::EmbeddedServer::new();
        let connect = || strict().embedded(&server).unwrap();
        let (one, two) = (connect(), connect());
        let begun = tokio::time::Instant::now();
        let guard = one.lock("x").lock().await.unwrap();
        let first_start = begun.elapsed();
        assert!(first_start >= LEASE + Duration::from_secs(1), "{first_start:?}");
        assert!(first_start < LEASE + Duration::from_millis(1100), "{first_start:?}");
        server.shut_down();
        if loses_data {
            server.flush();
        }
        server.start_up();
        let restarted = tokio::time::Instant::now();
        let next = two.lock("x").lock_timeout(LEASE).await;
        assert!(next.unwrap_err().to_string().contains("the server grants nothing for another"));
        if loses_data {
            assert!(!guard.is_valid());
        } else {
            guard.unlock().await.unwrap();
        }
        let next = two.lock("x").lock().await.unwrap();
        assert!(restarted.elapsed() >= LEASE + Duration::from_secs(1));
        assert!(restarted.elapsed() < LEASE + Duration::from_millis(1100), "{:?}", restarted.elapsed());
        next.unlock().await.unwrap();
    }
}

/// Sentinel demotes an old primary some 8 s after the failover. If the new one dies before that, the old one becomes
/// the primary again without a restart or a promotion, and does not know the grants of the one in between.
#[tokio::test]
async fn p1_a_primary_that_comes_back_without_having_been_demoted_is_frozen() {
    limit(async {
        let all = Sentinels::start().await;
        let client = connect(&all.url()).await;
        thaw(&mut all.primary.connection().await).await;
        let address = async || {
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
            let (_, port): (String, u16) =
                question.query_async(&mut all.sentinels[0].connection().await).await.unwrap();
            port
        };
        command(&all.sentinels[0], &["SENTINEL", "FAILOVER", "mymaster"]).await;
        eventually("the replica is the primary", async || address().await == all.replica.port()).await;
        eventually("the client is there", async || {
            record(&mut all.replica.connection().await).await.split(' ').nth(2) == Some("1")
        })
        .await;
        for sentinel in &all.sentinels {
            // The next failover may begin after twice this time.
            command(sentinel, &["SENTINEL", "SET", "mymaster", "failover-timeout", "1000"]).await;
        }
        all.replica.kill().await;
        eventually("the first one is the primary again", async || address().await == all.primary.port()).await;
        let lock = client.lock("x");
        eventually("the client is there", async || lock.status().await.is_ok()).await;
        assert!(
            lock.status().await.unwrap().frozen_for.is_some(),
            "{}",
            record(&mut all.primary.connection().await).await
        );
        assert!(lock.try_lock().await.unwrap().is_busy());
    })
    .await;
}
