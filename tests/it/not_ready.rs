//! Servers that are not ready yet: a cluster without slots, an unknown service, too few Sentinels, no room for another
//! client, data that is still loading. These are not refusals: they pass, and a client can begin before.

use std::future::Future;
use std::time::Duration;

use fairlock::{ConnectError, ConnectionState, LockClient, LockError};
use redis::aio::MultiplexedConnection;

use crate::connecting::answering;
use crate::support::cluster::{Cluster, command};
use crate::support::sentinels::{url, watching};
#[cfg(feature = "cli")]
use crate::support::tool::{self, Tool};
use crate::support::{Server, Timing, eventually, free_port, limit};

/// The error of `connect`, and a client that begins in spite of it.
async fn begins(url: &str) -> (ConnectError, LockClient) {
    let error = Timing::default().builder().connect(url).await.expect_err("it is not ready");
    assert!(error.may_pass(), "{error}");
    let client = Timing::default().builder().retry_on_initial_connect().connect(url).await.expect("it begins");
    let none = client.lock("x").lock_timeout(Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(none, LockError::Unreachable(_)), "{none}");
    (error, client)
}

/// A call that began to wait before the server was ready gets the lock afterwards.
async fn gets_ready(client: LockClient, change: impl Future<Output = ()>) {
    let lock = client.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    change.await;
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    client.close().await.unwrap();
}

async fn set(redis: &MultiplexedConnection, option: &str, value: &str) {
    redis::cmd("CONFIG").arg(&["SET", option, value]).exec_async(&mut redis.clone()).await.unwrap();
}

async fn stat(redis: &MultiplexedConnection, name: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query_async(&mut redis.clone()).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().parse().unwrap()
}

/// Leaves no room for a client besides this connection, until the test sets `maxclients` again.
async fn full(server: &Server) -> MultiplexedConnection {
    let redis = server.connection().await;
    set(&redis, "maxclients", "1").await;
    redis
}

#[tokio::test]
async fn a_cluster_without_slots_is_found_when_it_has_them() {
    limit(async {
        let nodes = Cluster::nodes(3, &[]).await;
        let (error, client) = begins(&format!("redis+cluster://127.0.0.1:{}", nodes[0].0.port())).await;
        assert!(matches!(error, ConnectError::NoMasters { .. }), "{error:?}");
        assert!(error.to_string().contains("none of its slots is assigned"), "{error}");
        gets_ready(client, Cluster::create(&nodes)).await;
    })
    .await;
}

#[tokio::test]
async fn a_service_is_found_when_the_sentinels_are_told_of_it() {
    limit(async {
        let server = Server::start().await;
        let sentinels = [Server::sentinel().await, Server::sentinel().await, Server::sentinel().await];
        let (error, client) = begins(&url(&sentinels, "mymaster")).await;
        assert!(matches!(error, ConnectError::UnknownService { .. }), "{error:?}");
        assert!(error.to_string().contains("do not know the service \"mymaster\" yet"), "{error}");
        gets_ready(client, async {
            let port = server.port().to_string();
            for sentinel in &sentinels {
                command(sentinel, &["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "2"]).await;
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_majority_of_the_sentinels_may_come_later() {
    limit(async {
        let server = Server::start().await;
        let sentinels = [watching(&server).await, watching(&server).await, watching(&server).await];
        for sentinel in &sentinels[1..] {
            sentinel.kill().await;
        }
        let (error, client) = begins(&url(&sentinels, "mymaster")).await;
        assert!(matches!(error, ConnectError::NoMajority { .. }), "{error:?}");
        gets_ready(client, async {
            for sentinel in &sentinels[1..] {
                sentinel.restart().await;
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn sentinels_that_are_full_are_not_ready() {
    limit(async {
        let full = answering(b"-ERR max number of clients reached\r\n").await;
        let url = format!("redis-sentinel://127.0.0.1:{full},127.0.0.1:{}/mymaster", free_port());
        let (error, client) = begins(&url).await;
        assert!(matches!(error, ConnectError::NoMajority { .. }), "{error:?}");
        assert!(error.to_string().contains("no room for one more client"), "{error}");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_full_is_waited_for() {
    limit(async {
        let server = Server::start().await;
        let redis = full(&server).await;
        let (error, client) = begins(&server.url()).await;
        assert!(matches!(error, ConnectError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("no room for one more client: end some, or raise maxclients"), "{error}");
        gets_ready(client, set(&redis, "maxclients", "100")).await;
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_is_full_is_waited_for() {
    limit(async {
        let cluster = Cluster::start(1).await;
        let redis = full(&cluster.masters[0]).await;
        let (error, client) = begins(&cluster.url()).await;
        assert!(error.to_string().contains("no room for one more client"), "{error}");
        gets_ready(client, set(&redis, "maxclients", "100")).await;
    })
    .await;
}

/// One of the masters is full, and the others serve.
#[tokio::test]
async fn a_cluster_with_a_full_master_is_connected_to() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let _redis = full(&cluster.masters[0]).await;
        Timing::default().connect(&cluster.url()).await.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn of_several_masters_a_full_one_is_not_needed() {
    limit(async {
        let servers = [Server::start().await, Server::start().await, Server::start().await];
        let _redis = full(&servers[1]).await;
        let builder = Timing::default().builder().without_strict_restart();
        let client = builder.connect(servers.each_ref().map(Server::url)).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_client_comes_back_when_there_is_room_for_it() {
    limit(async {
        let server = Server::start().await;
        let client = Timing { lease: Duration::from_secs(60), ..Timing::default() }.connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        let redis = full(&server).await;
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis.clone()).await.unwrap();
        eventually("it was refused twice", async || stat(&redis, "rejected_connections").await >= 2).await;
        let error = client.lock("y").lock_timeout(Duration::from_millis(100)).await.unwrap_err();
        assert!(error.to_string().contains("no room for one more client"), "{error}");
        set(&redis, "maxclients", "100").await;
        eventually("it is back", async || client.state().connection() == ConnectionState::Connected).await;
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_not_known_yet_passes() {
    limit(async {
        let (error, client) = begins("redis://not-yet.invalid/").await;
        assert!(error.to_string().contains("host name"), "{error}");
        client.close().await.unwrap();
    })
    .await;
}

/// The command exited at once with 77, whatever `--wait` said.
#[cfg(feature = "cli")]
#[tokio::test]
async fn the_command_waits_for_room() {
    tool::limit(async {
        let server = Server::start().await;
        let redis = full(&server).await;
        for words in [&["lock", "x", "--", "true"][..], &["lock", "--try", "x", "--", "true"], &["status", "x"]] {
            let ended = Tool::new(&server.url(), words).run().await;
            assert_eq!((ended.code, ended.err.lines().count()), (Some(69), 1), "{ended:?}");
            assert!(ended.err.contains("no room for one more client"), "{ended:?}");
        }
        let refused = stat(&redis, "rejected_connections").await;
        let waits = [
            &["lock", "--wait", "60s", "x", "--", "echo", "in"][..],
            &["acquire", "--wait", "60s", "--lease", "1m", "y"],
        ];
        let mut running = waits.map(|words| Tool::new(&server.url(), words).start());
        eventually("both try again", async || stat(&redis, "rejected_connections").await > refused + 4).await;
        set(&redis, "maxclients", "100").await;
        assert_eq!(running[0].line().await, "in");
        assert!(running[1].line().await.starts_with("fairlock1_"));
        for running in running {
            let (ended, err) = running.end().await;
            assert_eq!((ended.code(), err.as_str()), (Some(0), ""));
        }
    })
    .await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn the_command_waits_while_data_is_loaded() {
    tool::limit(async {
        let server = Server::with(&["--enable-debug-command", "yes"]).await;
        let redis = server.connection().await;
        redis::cmd("DEBUG").arg(&["POPULATE", "100000"]).exec_async(&mut redis.clone()).await.unwrap();
        // Half a millisecond for each key, until the test sets the delay to zero.
        set(&redis, "loading-process-events-interval-bytes", "1024").await;
        set(&redis, "key-load-delay", "500").await;
        let mut reloading = server.connection().await;
        let reload = tokio::spawn(async move { redis::cmd("DEBUG").arg("RELOAD").exec_async(&mut reloading).await });
        eventually("it is loading", async || {
            let asked = redis::cmd("GET").arg("x").exec_async(&mut redis.clone()).await;
            asked.is_err_and(|error| error.code() == Some("LOADING"))
        })
        .await;
        let ended = Tool::new(&server.url(), &["lock", "x", "--", "true"]).run().await;
        assert_eq!((ended.code, ended.err.lines().count()), (Some(69), 1), "{ended:?}");
        assert!(ended.err.contains("LOADING") && ended.err.contains("not ready"), "{ended:?}");
        let before = stat(&redis, "total_connections_received").await;
        let mut running = Tool::new(&server.url(), &["lock", "--wait", "60s", "x", "--", "echo", "in"]).start();
        eventually("it tries again", async || stat(&redis, "total_connections_received").await > before + 2).await;
        set(&redis, "key-load-delay", "0").await;
        assert_eq!(running.line().await, "in");
        assert_eq!(running.end().await.0.code(), Some(0));
        drop(reload);
    })
    .await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn the_command_says_what_is_not_ready() {
    tool::limit(async {
        let node = Server::node().await;
        let sentinel = Server::sentinel().await;
        for (url, said) in [
            (format!("redis+cluster://127.0.0.1:{}", node.port()), "none of its slots is assigned"),
            (url([&sentinel], "mymaster"), "do not know the service"),
            (format!("redis://127.0.0.1:{}/", free_port()), "no server listens there"),
            ("redis://not-yet.invalid/".into(), "the host name cannot be resolved"),
        ] {
            for wait in ["0s", "300ms"] {
                let begun = std::time::Instant::now();
                let ended = Tool::new(&url, &["lock", "--wait", wait, "x", "--", "true"]).run().await;
                assert_eq!((ended.code, ended.err.lines().count()), (Some(69), 1), "{ended:?}");
                assert!(ended.err.contains(said), "{ended:?}");
                assert!(wait == "0s" || begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
            }
        }
    })
    .await;
}

/// Waiting would not help.
#[cfg(feature = "cli")]
#[tokio::test]
async fn the_command_does_not_wait_for_a_person() {
    tool::limit(async {
        let server = Server::with(&["--requirepass", "secret"]).await;
        server.kill().await;
        let words = ["--verbose", "lock", "--wait", "1h", "x", "--", "true"];
        let running = Tool::new(&server.url(), &words).start();
        server.restart().await;
        let (ended, err) = running.end().await;
        assert_eq!(ended.code(), Some(77), "{err}");
        assert!(err.contains("user or password"), "{err}");
    })
    .await;
}
