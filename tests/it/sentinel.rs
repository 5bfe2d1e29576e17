//! Servers that Sentinels watch: which Sentinels the client believes, and errors of connecting.

use std::time::Duration;

use fairlock::{ConnectError, ConnectOptions, LockError, Tried};
use redis::{FromRedisValue, RedisResult};

use crate::support::cluster::command;
use crate::support::sentinels::{Sentinels, url, watching};
use crate::support::{Collect, Server, Timing, eventually, free_port, limit};

async fn refused(url: &str) -> ConnectError {
    Timing::default().builder().connect(url).await.expect_err("it cannot connect")
}

#[tokio::test]
async fn a_planned_failover_is_followed() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let all = Sentinels::start().await;
        let client = Timing::default().connect(&all.url()).await;
        let held = client.lock("held").lock().await.unwrap();
        eventually("the replica has it", async || all.replica.keys().await.len() == 2).await;
        command(&all.sentinels[0], &["SENTINEL", "FAILOVER", "mymaster"]).await;
        eventually("the client is at the new primary", async || {
            matches!(client.lock("new").try_lock().await, Ok(Tried::Acquired(_))) && at_primary(&all.replica).await
        })
        .await;
        assert!(
            said.saw("INFO", "the server is at another address now, or was made the primary again"),
            "{:?}",
            said.lines()
        );
        // The hold moved along, and the client renews it there.
        assert!(held.is_valid());
        held.unlock().await.unwrap();
        eventually("nothing is subscribed at the old one", async || has_channels(&all.primary).await == Ok(false))
            .await;
    })
    .await;
}

async fn at_primary(server: &Server) -> bool {
    has_channels(server).await == Ok(true) && role(server).await == Ok("master".to_owned())
}

async fn has_channels(server: &Server) -> RedisResult<bool> {
    let channels: Vec<String> = ask(server, redis::cmd("PUBSUB").arg(&["CHANNELS", "fairlock:*"])).await?;
    Ok(!channels.is_empty())
}

async fn role(server: &Server) -> RedisResult<String> {
    let role: Vec<redis::Value> = ask(server, &redis::cmd("ROLE")).await?;
    redis::from_redis_value(role[0].clone()).map_err(Into::into)
}

/// Opens its own connection, because Sentinel closes all connections of a server that changes its role.
async fn ask<T: FromRedisValue>(server: &Server, command: &redis::Cmd) -> RedisResult<T> {
    let mut redis = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    command.query_async(&mut redis).await
}

#[tokio::test]
async fn the_majority_is_believed() {
    limit(async {
        let (believed, other) = (Server::start().await, Server::start().await);
        let sentinels = [watching(&other).await, watching(&believed).await, watching(&believed).await];
        let client = Timing::default().connect(&url(&sentinels, "mymaster")).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        // The address must not contain words about the Sentinels.
        assert_eq!(client.state().servers[0].address, format!("127.0.0.1:{}", believed.port()));
        assert_eq!((believed.keys().await.len(), other.keys().await.len()), (1, 0));
        // The client stays there although it can ask no majority any more.
        for sentinel in &sentinels[1..] {
            sentinel.kill().await;
        }
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
        assert_eq!((believed.keys().await.len(), other.keys().await.len()), (2, 0));
    })
    .await;
}

#[tokio::test]
async fn without_a_majority_connecting_says_what_each_one_said() {
    limit(async {
        let (one, other) = (Server::start().await, Server::start().await);
        let sentinels = [watching(&one).await, watching(&other).await];
        let error = refused(&url(&sentinels, "mymaster")).await;
        assert!(matches!(error, ConnectError::NoMajority { .. }), "{error:?}");
        let text = error.to_string();
        for port in [one.port(), other.port(), sentinels[0].port(), sentinels[1].port()] {
            assert!(text.contains(&port.to_string()), "{text}");
        }
        sentinels[1].kill().await;
        let text = refused(&url(&sentinels, "mymaster")).await.to_string();
        assert!(text.contains("no server listens"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_is_told_by_its_name() {
    limit(async {
        let server = Server::start().await;
        let sentinels = [watching(&server).await];
        let error = refused(&url(&sentinels, "another")).await;
        assert!(matches!(&error, ConnectError::UnknownService { service, .. } if service == "another"), "{error:?}");
        let error = refused(&url([&server], "mymaster")).await;
        assert!(matches!(error, ConnectError::NotSentinel { .. }), "{error:?}");
        let error = refused(&format!("redis://127.0.0.1:{}/", sentinels[0].port())).await;
        assert!(error.to_string().contains("redis-sentinel://"), "{error}");
        let error = refused(&format!("redis-sentinel://127.0.0.1:{}/mymaster", free_port())).await.to_string();
        assert!(error.contains("no server listens"), "{error}");
        // Sentinels that name an address where no server listens.
        server.kill().await;
        let error = refused(&url(&sentinels, "mymaster")).await;
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Unreachable { .. }) && text.contains("mymaster"), "{text}");
        assert!(text.contains(&server.port().to_string()), "{text}");
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_no_primary() {
    limit(async {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        let error = refused(&replica.url()).await;
        assert!(matches!(error, ConnectError::ReadOnly), "{error:?}");
        // It would serve writes, and lose them at the next synchronization (P1).
        command(&replica, &["CONFIG", "SET", "replica-read-only", "no"]).await;
        let timing = Timing::default();
        let error = timing.builder().strict_restart(timing.lease).connect(replica.url()).await.unwrap_err();
        assert!(matches!(error, ConnectError::ReadOnly), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn sentinels_have_a_password_of_their_own() {
    limit(async {
        let server = Server::start().await;
        command(&server, &["CONFIG", "SET", "requirepass", "of the server"]).await;
        let sentinel = Server::sentinel().await;
        let port = server.port().to_string();
        command(&sentinel, &["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "1"]).await;
        command(&sentinel, &["ACL", "SETUSER", "default", "resetpass", ">of the sentinel"]).await;
        let options = ConnectOptions::sentinel("mymaster", [("127.0.0.1", sentinel.port())]).password("of the server");
        let connect = async |options: ConnectOptions| Timing::default().builder().connect_with(options).await;
        let error = connect(options.clone()).await.unwrap_err();
        assert!(matches!(error, ConnectError::SentinelCredentials { .. }), "{error:?}");
        assert!(error.to_string().contains("sentinel_password"), "{error}");
        let client = connect(options.sentinel_password("of the sentinel")).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_dead_primary_is_waited_for() {
    limit(async {
        let server = Server::with(&["--appendonly", "yes"]).await;
        let sentinels = [watching(&server).await];
        let client = Timing::default().connect(&url(&sentinels, "mymaster")).await;
        server.kill().await;
        let error = client.lock("x").lock_timeout(Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, LockError::Unreachable(_)), "{error:?}");
        server.restart_with_data().await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}
