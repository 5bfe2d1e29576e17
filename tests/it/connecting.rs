//! The errors of connecting: the cause in the first line, the kind of a server that cannot serve, and missing rights.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairlock::{
    ConnectError, ConnectOptions, ConnectionInfoError, ConnectionState, Credentials, LockClient, LockError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Collect, Proxy, Server, Timing, free_port, limit};

async fn refused(url: &str) -> ConnectError {
    Timing::default().builder().connect(url).await.expect_err("it cannot connect")
}

/// A server that sends this answer to the first bytes of each connection, and then closes it.
pub async fn answering(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer).await;
        }
    });
    port
}

#[tokio::test]
async fn the_first_line_says_that_the_name_is_not_known() {
    let error = refused("redis://no-such-host.invalid:6379/").await.to_string();
    assert!(error.contains("host name") && error.contains("no-such-host.invalid"), "{error}");
}

#[tokio::test]
async fn the_first_line_says_that_nothing_listens_there() {
    let error = refused(&format!("redis://127.0.0.1:{}/", free_port())).await.to_string();
    assert!(error.contains("refused") && error.contains("no server listens"), "{error}");
    let error = refused("unix:///nowhere/redis.sock").await.to_string();
    assert!(error.contains("/nowhere/redis.sock") && error.contains("there is no such socket"), "{error}");
}

/// HTTP, another protocol, the alert with which a TLS server ends an invalid handshake, nothing, and a cut answer.
#[tokio::test]
async fn the_first_line_says_what_to_look_for_where_no_answer_is_one_of_redis() {
    limit(async {
        let answers: [&[u8]; 5] = [
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            b"220 mail.example ESMTP\r\n",
            b"\x15\x03\x01\x00\x02\x02\x46",
            b"",
            b"%7\r\n$6\r\nserv",
        ];
        for answer in answers {
            let error = refused(&format!("redis://127.0.0.1:{}/", answering(answer).await)).await;
            assert!(matches!(error, ConnectError::Unreachable { .. }) && error.may_pass(), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("no Redis reply") && text.contains("rediss://"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_first_line_says_that_nobody_answers() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        proxy.blackhole(true);
        let error = refused(&proxy.url()).await.to_string();
        assert!(error.contains("accepted the connection") && error.contains("1s"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_cluster_node_is_told_by_its_name() {
    limit(async {
        let server = Server::node().await;
        let error = refused(&server.url()).await;
        assert!(error.to_string().contains("Redis Cluster"), "{error}");
        assert!(matches!(error, ConnectError::Cluster), "{error:?}");
        // Database 1 does not exist there, but the error must name the cluster.
        let error = refused(&format!("{}1", server.url())).await;
        assert!(error.to_string().contains("Redis Cluster"), "{error}");
        let mut redis = server.connection().await;
        redis::cmd("ACL").arg(&["SETUSER", "default", "-info"]).exec_async(&mut redis).await.unwrap();
        let error = refused(&server.url()).await;
        assert!(error.to_string().contains("Redis Cluster"), "without INFO: {error}");
    })
    .await;
}

#[tokio::test]
async fn a_sentinel_is_told_by_its_name() {
    limit(async {
        let sentinel = Server::sentinel().await;
        for url in [sentinel.url(), format!("{}3", sentinel.url())] {
            let error = refused(&url).await;
            assert!(error.to_string().contains("Sentinel"), "{error}");
            assert!(matches!(error, ConnectError::Sentinel), "{error:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_eviction_policy_is_warned_of_once() {
    limit(async {
        let said = Collect::default();
        let _collecting = said.clone().here();
        let warnings = || said.lines().iter().filter(|line| line.contains("maxmemory-policy")).count();
        let server = Server::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
        let client = Timing::default().connect(&server.url()).await;
        assert_eq!(warnings(), 1, "{:?}", said.lines());
        assert!(said.saw("WARN", "maxmemory-policy is not noeviction"), "{:?}", said.lines());
        assert!(said.lines().iter().any(|line| line.contains("allkeys-lru")), "{:?}", said.lines());
        let mut redis = server.connection().await;
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").exec_async(&mut redis).await.unwrap();
        crate::support::eventually("it is back", async || client.lock("x").try_lock().await.is_ok()).await;
        assert_eq!(warnings(), 1, "a reconnect says nothing again: {:?}", said.lines());
        let calm = Server::start().await;
        Timing::default().connect(&calm.url()).await.close().await.unwrap();
        assert_eq!(warnings(), 1, "{:?}", said.lines());
    })
    .await;
}

/// The line in docs/deploying.md.
pub const RIGHTS: [&str; 33] = [
    "on",
    ">secret",
    "resetchannels",
    "&fairlock:wake:*",
    "~fairlock:*",
    "-@all",
    "+hello",
    "+info",
    "+ping",
    "+subscribe",
    "+evalsha",
    "+eval",
    "+time",
    "+exists",
    "+get",
    "+set",
    "+del",
    "+pttl",
    "+pexpire",
    "+hset",
    "+hmget",
    "+hgetall",
    "+hget",
    "+hdel",
    "+llen",
    "+lindex",
    "+lrange",
    "+lset",
    "+rpush",
    "+rpushx",
    "+lpop",
    "+rpop",
    "+ltrim",
];
pub const MORE_RIGHTS: [&str; 13] = [
    "+lrem",
    "+zadd",
    "+zrem",
    "+zcard",
    "+zcount",
    "+zscore",
    "+zmscore",
    "+zrangebyscore",
    "+zrevrangebyscore",
    "+unlink",
    "+publish",
    "+pubsub|numsub",
    "+client|setname",
];

pub async fn set_user(server: &Server, rights: impl IntoIterator<Item = &str>) {
    let mut redis = server.connection().await;
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("worker").arg("reset");
    rights.into_iter().for_each(|right| {
        command.arg(right);
    });
    command.exec_async(&mut redis).await.unwrap();
}

#[tokio::test]
async fn each_missing_right_is_named_before_anything_is_locked() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        let all: Vec<&str> = RIGHTS.into_iter().chain(MORE_RIGHTS).collect();
        set_user(&server, all.iter().copied()).await;
        let client = Timing::default().connect(&url).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
        let kept = server.keys().await;

        let needed = |right: &&str| {
            right.starts_with(['+', '~', '&']) && !["+hello", "+info", "+ping", "+client|setname"].contains(right)
        };
        for right in all.iter().copied().filter(needed) {
            set_user(&server, all.iter().copied().filter(|other| *other != right)).await;
            let error = refused(&url).await;
            assert!(error.to_string().contains(right), "without {right}: {error}");
            assert_eq!(missing(error), [right], "nothing else is missing");
        }
        assert_eq!(server.keys().await, kept, "nothing was changed");
    })
    .await;
}

fn missing(error: ConnectError) -> Vec<String> {
    match error {
        ConnectError::Rights { missing, .. } => missing,
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn the_right_to_another_database_is_named_where_one_is_wanted() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        let all: Vec<&str> = RIGHTS.into_iter().chain(MORE_RIGHTS).collect();
        set_user(&server, all.iter().copied()).await;
        Timing::default().connect(&url).await.close().await.unwrap();
        assert_eq!(missing(refused(&format!("{url}1")).await), ["+select"]);
        set_user(&server, all.iter().copied().chain(["+select"])).await;
        Timing::default().connect(&format!("{url}1")).await.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn all_missing_rights_are_named_at_once() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        set_user(&server, ["on", ">secret", "-@all", "+eval", "~other:*"]).await;
        let error = refused(&url).await.to_string();
        // Redis 8 reports on a command only together with the rights to its keys.
        let with_keys: &[&str] = if server.redis_version().await.starts_with('8') {
            &["~fairlock:*", "&fairlock:wake:*"]
        } else {
            &["+hset", "+publish", "+subscribe", "+pexpire"]
        };
        for right in with_keys.iter().chain(&["+evalsha"]) {
            assert!(error.contains(right), "{right}: {error}");
        }
        set_user(&server, ["on", ">secret", "resetchannels", "+@all", "~other:*"]).await;
        assert_eq!(missing(refused(&url).await), ["~fairlock:*", "&fairlock:wake:*"]);
        assert_eq!(server.keys().await, Vec::<String>::new());
    })
    .await;
}

/// The client logs a proxy that swallows messages once, at the first connection. Polls take over.
#[tokio::test]
async fn messages_that_do_not_arrive_are_warned_of() {
    limit(async {
        let said = Collect::default();
        let _collecting = said.clone().here();
        let warnings = || said.lines().iter().filter(|line| line.contains("no messages arrive")).count();
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        assert_eq!(warnings(), 0, "{:?}", said.lines());
        proxy.drop_pushes(true);
        let other = Timing::default().connect(&proxy.url()).await;
        assert_eq!(warnings(), 1, "{:?}", said.lines());
        assert!(said.saw("WARN", "no messages arrive from this server"), "{:?}", said.lines());
        let guard = client.lock("x").lock().await.unwrap();
        let waiting = tokio::spawn(async move { other.lock("x").lock().await.unwrap().unlock().await });
        crate::support::eventually("it waits", async || client.lock("x").status().await.unwrap().waiters == 1).await;
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unwrap();
    })
    .await;
}

/// The client asks with EVAL. Without the right to EVAL it cannot know which other rights are missing.
#[tokio::test]
async fn without_the_right_to_ask_more_may_be_missing() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        let lacks = ["+hset", "+evalsha", "+eval"];
        let all = RIGHTS.into_iter().chain(MORE_RIGHTS);
        set_user(&server, all.filter(|right| !lacks.contains(right))).await;
        let error = refused(&url).await;
        assert!(error.to_string().contains("more may be missing"), "{error}");
        assert_eq!(missing(error), ["+eval"]);
        set_user(&server, ["on", ">secret", "resetchannels", "+@all", "~other:*"]).await;
        assert!(!refused(&url).await.to_string().contains("more may be missing"), "all of it was asked");
    })
    .await;
}

/// The error showed the beginning of a script.
#[tokio::test]
async fn a_server_without_eval_is_told_without_a_script() {
    limit(async {
        let server = Server::with(&["--rename-command", "EVAL", ""]).await;
        let error = refused(&server.url()).await;
        assert!(matches!(error, ConnectError::Refused(_)) && !error.may_pass(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("'EVAL' (that command was renamed or disabled on the server)"), "{text}");
    })
    .await;
}

/// The error named the commands that write.
#[tokio::test]
async fn keys_that_may_only_be_read_are_named() {
    limit(async {
        let server = Server::start().await;
        for keys in ["%R~fairlock:*", "%W~fairlock:*"] {
            set_user(&server, ["on", ">secret", "+@all", "&fairlock:*", keys]).await;
            let error = refused(&server.url_of_worker()).await;
            assert!(error.to_string().contains("~fairlock:* (to read these keys and to write them)"), "{error}");
            assert_eq!(missing(error), ["~fairlock:*"]);
        }
    })
    .await;
}

/// The name was empty. Setting it must need no right, because the server would log the denial.
#[tokio::test]
async fn connections_have_the_label_in_the_list_of_clients() {
    limit(async {
        let server = Server::start().await;
        let without = |right: &&str| !["+hello", "+client|setname"].contains(right);
        let rights = RIGHTS.into_iter().chain(MORE_RIGHTS).filter(without).chain(["+client|tracking"]);
        set_user(&server, rights).await;
        let builder = Timing::default().builder().label("job 17, Jürgen\n");
        let client = builder.connect(server.url_of_worker()).await.unwrap();
        let mut redis = server.connection().await;
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
        assert!(list.contains(" name=fairlock:job_17,_J_rgen_ "), "{list}");
        let denied: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query_async(&mut redis).await.unwrap();
        assert_eq!(denied, []);
        client.close().await.unwrap();
    })
    .await;
}

/// No right helps here, so the error names this cause too.
#[tokio::test]
async fn a_command_that_is_disabled_on_the_server_is_no_matter_of_rights_alone() {
    limit(async {
        let server = Server::with(&["--rename-command", "HDEL", ""]).await;
        let error = refused(&server.url()).await;
        assert!(error.to_string().contains("renamed or disabled"), "{error}");
        assert_eq!(missing(error), ["+hdel"]);
    })
    .await;
}

#[tokio::test]
async fn a_user_without_a_password_is_that_user() {
    limit(async {
        let server = Server::start().await;
        let url = server.url().replace("redis://", "redis://worker@");
        set_user(&server, ["on", "nopass", "~*", "&*", "+@all"]).await;
        let client = Timing::default().connect(&url).await;
        let mut redis = server.connection().await;
        let list: String =
            redis::cmd("CLIENT").arg("LIST").arg("TYPE").arg("pubsub").query_async(&mut redis).await.unwrap();
        assert!(list.contains("user=worker"), "{list}");
        client.close().await.unwrap();

        set_user(&server, ["on", ">secret", "~*", "&*", "+@all"]).await;
        let error = refused(&url).await;
        assert!(matches!(error, ConnectError::Credentials(_)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_user_without_a_password_on_a_unix_socket_is_that_user() {
    limit(async {
        let server = Server::start().await;
        set_user(&server, ["on", ">secret", "~*", "&*", "+@all"]).await;
        let error = refused(&format!("{}?user=worker", server.unix_url())).await;
        assert!(matches!(error, ConnectError::Credentials(_)), "{error}");
        let right = format!("{}?user=worker&pass=secret", server.unix_url());
        Timing::default().connect(&right).await.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn options_that_do_not_fit_are_told_with_their_own_values() {
    let builder =
        LockClient::builder().waiter_ttl(Duration::from_millis(400)).poll_interval(Duration::from_millis(500));
    let error = builder.connect("redis://127.0.0.1/").await.unwrap_err().to_string();
    assert!(error.contains("waiter_ttl (400ms) must be at least three times poll_interval (500ms)"), "{error}");
}

#[tokio::test]
async fn a_refusal_is_told_without_the_line_of_the_script() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut redis = server.connection().await;
        redis::cmd("SET").arg("fairlock:{n:x}").arg("mine").exec_async(&mut redis).await.unwrap();
        let error = client.lock("x").lock().await.unwrap_err().to_string();
        assert!(error.contains("fairlock:{n:x}") && !error.contains("user_script"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_foreign_hash_is_named_and_kept() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut redis = server.connection().await;
        redis::cmd("HSET").arg("fairlock:{n:x}").arg("colour").arg("blue").exec_async(&mut redis).await.unwrap();
        let error = match client.lock("x").try_lock().await {
            Ok(_) => "it took the lock".into(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("fairlock:{n:x}"), "{error}");
        let error = client.lock("x").force_unlock().await.unwrap_err().to_string();
        assert!(error.contains("fairlock:{n:x}"), "{error}");
        let kept: Vec<String> = redis::cmd("HGETALL").arg("fairlock:{n:x}").query_async(&mut redis).await.unwrap();
        assert_eq!(kept, ["colour", "blue"]);
    })
    .await;
}

fn at(server: &Server) -> ConnectOptions {
    ConnectOptions::tcp("127.0.0.1", server.port())
}

#[tokio::test]
async fn options_say_what_a_url_says() {
    limit(async {
        let server = Server::start().await;
        set_user(&server, ["on", ">secret", "~*", "&*", "+@all"]).await;
        let options = at(&server).username("worker").password("secret").database(3);
        assert!(!format!("{options:?} {:?}", Credentials::new("worker", "secret")).contains("secret"));
        let client = Timing::default().builder().connect_with(options).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        assert_eq!(server.keys().await, Vec::<String>::new(), "it is in database 3");
        let url = format!("{}3", server.url_of_worker());
        assert!(Timing::default().connect(&url).await.lock("x").try_lock().await.unwrap().is_busy());
        guard.unlock().await.unwrap();
        let error = Timing::default().builder().connect_with(at(&server).database(99)).await.unwrap_err();
        assert!(error.to_string().contains("DB index"), "{error}");
        let error = Timing::default().builder().connect_with(ConnectOptions::tcp("", 1)).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(_)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_credentials_provider_is_asked_at_each_connect() {
    limit(async {
        let server = Server::start().await;
        let asked = Arc::new(AtomicU32::new(0));
        let provider = {
            let asked = asked.clone();
            move || {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                async move { Ok::<_, std::io::Error>(Credentials::new("worker", format!("token {number}"))) }
            }
        };
        set_user(&server, ["on", ">token 0", "~*", "&*", "+@all"]).await;
        let options = at(&server).credentials_provider(provider);
        let client = Timing::default().builder().connect_with(options).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let guard = client.lock("x").lock().await.unwrap();
        // Redis ends the connections of a user whose rights are reset.
        set_user(&server, ["on", ">token 1", ">token 2", ">token 3", "~*", "&*", "+@all"]).await;
        let mut redis = server.connection().await;
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.unwrap();
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
        assert!(asked.load(Ordering::Relaxed) >= 2);
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_credentials_provider_that_fails_or_hangs_is_told() {
    limit(async {
        let server = Server::start().await;
        let failing = at(&server)
            .credentials_provider(|| async { Err::<Credentials, _>(std::io::Error::other("the vault is sealed")) });
        let error = Timing::default().builder().connect_with(failing).await.unwrap_err();
        assert!(matches!(error, ConnectError::CredentialsProvider(_)), "{error:?}");
        assert!(error.to_string().contains("the vault is sealed"), "{error}");
        let hanging = at(&server).credentials_provider(std::future::pending::<Result<_, std::io::Error>>);
        let error = Timing::default().builder().connect_with(hanging).await.unwrap_err();
        assert!(matches!(error, ConnectError::CredentialsProvider(_)), "{error:?}");
        assert!(error.to_string().contains("1s"), "{error}");
    })
    .await;
}

/// A service that uses the redis crate had to configure its server twice.
#[tokio::test]
async fn what_the_redis_crate_has_of_a_server_is_taken() {
    limit(async {
        let server = Server::start().await;
        set_user(&server, ["on", ">secret", "~*", "&*", "+@all"]).await;
        let redis = redis::Client::open(format!("redis://worker:secret@127.0.0.1:{}/3", server.port())).unwrap();
        let info = redis.get_connection_info().clone();
        let builder = || Timing::default().builder();
        let connected = [
            builder().connect(&redis).await,
            builder().connect(redis.clone()).await,
            builder().connect(&info).await,
            builder().connect([info.clone()]).await,
            builder().connect_with(&redis).await,
            builder().connect_with(vec![info.clone()]).await,
            builder().connect_with(ConnectOptions::try_from(&info).unwrap()).await,
        ];
        for client in connected {
            let client = client.unwrap();
            let guard = client.lock("x").lock().await.unwrap();
            let mut connection = redis.get_multiplexed_async_connection().await.unwrap();
            assert!(redis::cmd("EXISTS").arg("fairlock:{n:x}").query_async::<bool>(&mut connection).await.unwrap());
            guard.unlock().await.unwrap();
            client.close().await.unwrap();
        }
        let negative = info.redis_settings().clone().set_db(-1);
        let negative = info.clone().set_redis_settings(negative);
        let error = builder().connect(negative.clone()).await.unwrap_err();
        assert!(matches!(error, ConnectError::ConnectionInfo(ConnectionInfoError::Database(-1))), "{error:?}");
        let error = builder().connect_with([info.clone(), negative, info]).await.unwrap_err();
        assert!(matches!(error, ConnectError::Server { .. }), "{error:?}");
        assert!(error.to_string().starts_with("server 2: ") && error.to_string().contains("no database -1"), "{error}");
    })
    .await;
}

/// Each service wrote a loop around connect.
#[tokio::test]
async fn a_client_can_begin_before_its_server() {
    limit(async {
        let server = Server::start().await;
        server.kill().await;
        let sentinels = [free_port(), free_port(), free_port()].map(|port| ("127.0.0.1", port));
        let builder = || Timing::default().builder().retry_on_initial_connect();
        let single = builder().connect(server.url()).await.unwrap();
        let watched = builder().connect_with(ConnectOptions::sentinel("s", sentinels)).await.unwrap();
        let cluster = builder().connect(format!("redis+cluster://127.0.0.1:{}", server.port())).await.unwrap();
        for client in [&single, &watched, &cluster] {
            assert_eq!(client.state().connection(), ConnectionState::Reconnecting);
            let error = client.lock("x").lock_timeout(Duration::from_millis(20)).await.unwrap_err();
            assert!(matches!(error, LockError::Unreachable(_)), "{error:?}");
            assert!(error.to_string().contains("no server listens there"), "{error}");
        }
        watched.close().await.unwrap();
        cluster.close().await.unwrap();
        // The call waits for the server, and then has the lock.
        let lock = single.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        server.restart().await;
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        assert_eq!(single.state().connection(), ConnectionState::Connected);
        // A permanent error still ends the call.
        let wrong = builder().connect(server.url_of_worker()).await.expect_err("there is no such user");
        assert!(matches!(wrong, ConnectError::Credentials(_)), "{wrong}");
        single.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_client_can_begin_before_its_cluster() {
    limit(async {
        let cluster = crate::support::cluster::Cluster::with(1, &["--appendonly", "yes"]).await;
        let node = &cluster.masters[0];
        node.kill().await;
        let client = Timing::default().builder().retry_on_initial_connect().connect(cluster.url()).await.unwrap();
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        node.restart_with_data().await;
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Times that must exceed the poll interval follow it, unless the caller sets them.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn times_follow_the_poll_interval() {
    let minute = Duration::from_secs(60);
    let server = fairlock::EmbeddedServer::new();
    let builder = || LockClient::builder().lease(2 * minute).poll_interval(minute);
    builder().embedded(&server).unwrap();
    builder().grant_ttl(5 * minute).embedded(&server).unwrap();
    let error = builder().waiter_ttl(minute).embedded(&server).unwrap_err().to_string();
    assert!(error.contains("waiter_ttl (60s)"), "{error}");
    let error = LockClient::builder().poll_interval(Duration::MAX).embedded(&server).unwrap_err().to_string();
    assert!(error.contains("poll_interval is"), "{error}");
}
