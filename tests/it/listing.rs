//! `list`, `ping` and `state`: what a client can report beyond a single lock.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use fairlock::{ConnectionState, LockClient, NameError, RequestError};
use futures::TryStreamExt;

use crate::bench::glob;
use crate::connecting::{MORE_RIGHTS, RIGHTS, set_user};
use crate::support::cluster::{Cluster, command};
use crate::support::{Proxy, Server, Store, Timing, eventually, limit, limit_to, on_a_server, on_each_store};

async fn listed(client: &LockClient, glob: &str) -> Vec<String> {
    let mut names: Vec<_> = client.list(glob).map_ok(|listed| listed.name).try_collect().await.unwrap();
    names.sort();
    names
}

#[tokio::test]
async fn a_list_has_what_is_held_or_waited_for_and_nothing_else() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        assert_eq!(listed(&client, "*").await, Vec::<String>::new());
        // As a pattern, this prefix would mean something else.
        let other = store.open(Timing::default().builder().prefix("fair[l]*")).await;
        let _other = other.lock("other").lock().await.unwrap();
        assert_eq!(listed(&other, "*").await, ["other"]);
        client.lock("given back").lock().await.unwrap().unlock().await.unwrap();
        let mut guards = Vec::new();
        for name in ["a", "a}b", "a}:queue", "b*", "ü🦀", "orders:1", "orders:22"] {
            guards.push(client.lock(name).lock().await.unwrap());
        }
        let lock = client.lock("orders:1");
        let waiting = tokio::spawn(async move { lock.lock().await });
        eventually("it waits", async || client.lock("orders:1").status().await.unwrap().waiters == 1).await;

        assert_eq!(listed(&client, "*").await, ["a", "a}:queue", "a}b", "b*", "orders:1", "orders:22", "ü🦀"]);
        assert_eq!(listed(&client, "orders:*").await, ["orders:1", "orders:22"]);
        assert_eq!(listed(&client, "*:??").await, ["orders:22"]);
        assert_eq!(listed(&client, "a").await, ["a"]);
        assert_eq!(listed(&client, "b\\*").await, ["b*"]);
        assert_eq!(listed(&client, "[ab]*").await, ["a", "a}:queue", "a}b", "b*"]);
        assert_eq!(listed(&other, "*").await, ["other"]);
        assert_eq!(listed(&client, "").await, Vec::<String>::new());
        let too_long = client.list("x".repeat(1025)).next().await;
        assert!(matches!(too_long, Some(Err(RequestError::Name(_)))), "{too_long:?}");
        let mut none = client.list("none");
        for _ in 0..3 {
            assert!(none.next().await.is_none(), "P10: it may be asked again");
        }
        drop(guards);
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
        let closed = client.list("*").next().await;
        assert!(matches!(closed, Some(Err(RequestError::Closed))), "{closed:?}");
    })
    .await;
}

/// The holder has died and its lease has ended: until a poll comes there is only a queue.
#[tokio::test]
async fn a_lock_that_is_only_waited_for_is_listed() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let mut redis = server.connection().await;
        redis::cmd("RPUSH").arg(&["fairlock:{n:x}:queue", "0:1:1/3000/L"]).exec_async(&mut redis).await.unwrap();
        assert_eq!(listed(&client, "*").await, ["x"]);
        redis::cmd("DEL").arg("fairlock:{n:x}:queue").exec_async(&mut redis).await.unwrap();
    })
    .await;
}

/// A foreign hash: the reply does not depend on its content, so the client keeps the connection.
#[tokio::test]
async fn what_is_no_lock_is_refused_when_it_is_asked_about() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let mut redis = server.connection().await;
        let connections = server.connections().await;
        for fields in [&["a field", "a value"][..], &["c:1", "1", "!grant", "1 7"], &["!grant", "1 7 1 1/L"]] {
            redis::cmd("HSET").arg("fairlock:{n:x}").arg(fields).exec_async(&mut redis).await.unwrap();
            let lock = client.lock(client.list("*").next().await.unwrap().unwrap().name);
            let error = lock.status().await.unwrap_err();
            assert!(matches!(&error, RequestError::Refused(_)) && error.to_string().contains("delete it"), "{error:?}");
            redis::cmd("DEL").arg("fairlock:{n:x}").exec_async(&mut redis).await.unwrap();
        }
        assert_eq!(server.connections().await, connections + 1, "that of this question");
        client.close().await.unwrap();
    })
    .await;
}

/// Random patterns of special characters match the same keys as in Redis. The embedded server finds keys by their
/// beginning, which is all that clients ask for.
#[tokio::test]
async fn patterns_match_as_in_redis() {
    on_a_server(async |server| {
        let mut redis = server.connection().await;
        #[cfg(feature = "embedded")]
        let embedded = fairlock::EmbeddedServer::new();
        let mut random = crate::support::Random::new(7);
        let mut text = |alphabet: &str, longest: u64| -> String {
            let chars: Vec<char> = alphabet.chars().collect();
            let length = 1 + random.below(longest);
            (0..length).map(|_| chars[random.below(chars.len() as u64) as usize]).collect()
        };
        let all: BTreeSet<_> = (0..200).map(|_| text("ab-]^\\[*", 4)).collect();
        for key in &all {
            redis::cmd("SET").arg(&[key, "x"]).exec_async(&mut redis).await.unwrap();
            #[cfg(feature = "embedded")]
            let _ = fairlock::simulation::command(&embedded, &["SET", key, "x"]);
        }
        for _ in 0..5000 {
            let pattern = text("ab*?[]^-\\", 8);
            let keys = scan(&mut redis, &pattern).await;
            let matching = all.iter().filter(|key| glob::matches(pattern.as_bytes(), key.as_bytes()));
            assert_eq!(matching.cloned().collect::<Vec<_>>(), keys, "{pattern}");
            #[cfg(feature = "embedded")]
            {
                let pattern = format!("{}*", glob::escape(&glob::literal_start(&pattern)));
                let words = ["SCAN", "0", "MATCH", &pattern, "COUNT", "1000"];
                let mut words = fairlock::simulation::command(&embedded, &words);
                assert_eq!(words.remove(0), "0");
                words.sort();
                assert_eq!(words, scan(&mut redis, &pattern).await, "{pattern}");
            }
        }
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap();
    })
    .await;
}

/// All matching keys, in one answer.
async fn scan(redis: &mut redis::aio::MultiplexedConnection, pattern: &str) -> Vec<String> {
    let asked = redis::cmd("SCAN").arg(&["0", "MATCH", pattern, "COUNT", "1000"]).query_async(redis).await;
    let (cursor, mut keys): (String, Vec<String>) = asked.unwrap();
    assert_eq!(cursor, "0");
    keys.sort();
    keys
}

/// Makes held names by hand, a thousand in one write.
async fn hold(server: &Server, names: std::ops::Range<u32>) {
    let mut redis = server.connection().await;
    let names: Vec<u32> = names.collect();
    for chunk in names.chunks(1000) {
        let mut pipe = redis::pipe();
        for name in chunk {
            let key = format!("fairlock:{{n:job:{name}}}");
            pipe.hset(&key, "c:1", 1).ignore().hset(&key, "!grant", "1 7 1 1 3000/L").ignore();
            pipe.pexpire(&key, 600_000).ignore();
            pipe.pset_ex(format!("{key}:token"), 7, 600_000).ignore();
        }
        pipe.exec_async(&mut redis).await.unwrap();
    }
}

/// 100,000 locks: the list has each once, and no page is long. Tokens and foreign keys lie among them.
#[tokio::test]
async fn a_long_list_is_complete_and_made_of_short_calls() {
    limit_to(Duration::from_secs(120), async {
        let server = Server::start().await;
        hold(&server, 0..100_000).await;
        let client = Timing::relaxed().connect(&server.url()).await;
        redis::cmd("CONFIG").arg(&["RESETSTAT"]).exec_async(&mut server.connection().await).await.unwrap();
        let begun = std::time::Instant::now();
        let names: Vec<_> = client.list("job:*").map_ok(|listed| listed.name).try_collect().await.unwrap();
        println!("{} names in {:?}", names.len(), begun.elapsed());
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!((names.len(), different.len()), (100_000, 100_000));
        // The database has 200,000 keys.
        let calls = server.calls("scan").await;
        assert!(calls >= 200_000 / 1000, "{calls} pages");
    })
    .await;
}

/// During a list, clients take and release locks, and the server's table of keys grows and shrinks.
#[tokio::test]
async fn what_is_held_all_the_time_is_listed_once_whatever_happens_meanwhile() {
    on_each_store(async |store| {
        let client = store.connect(Timing::relaxed()).await;
        let mut kept = Vec::new();
        for number in 0..600 {
            kept.push(client.lock(format!("kept:{number}")).lock().await.unwrap());
        }
        let busy = async {
            loop {
                let others = (0..100).map(|number| {
                    let lock = client.lock(format!("other:{number}"));
                    async move { lock.lock().await.unwrap().unlock().await.unwrap() }
                });
                futures::future::join_all(others).await;
            }
        };
        let fill = async {
            let Store::Redis(server) = store else { return std::future::pending().await };
            let mut redis = server.connection().await;
            loop {
                let (mut set, mut delete) = (redis::pipe(), redis::pipe());
                for number in 0..5_000 {
                    set.set(format!("filler {number}"), "x").ignore();
                    delete.del(format!("filler {number}")).ignore();
                }
                set.exec_async(&mut redis).await.unwrap();
                delete.exec_async(&mut redis).await.unwrap();
            }
        };
        let lists = async {
            for _ in 0..3 {
                assert_eq!(listed(&client, "kept:*").await.len(), 600);
            }
        };
        tokio::select! {
            () = busy => {}
            () = fill => {}
            () = lists => {}
        }
        drop(kept);
        store.flush().await;
        client.close().await.unwrap();
    })
    .await;
}

/// The list returned this error again and again.
#[tokio::test]
async fn a_list_of_a_pattern_that_is_too_long_ends_with_its_error() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let mut locks = client.list("n".repeat(1025));
        assert!(matches!(locks.next().await, Some(Err(RequestError::Name(NameError::TooLong(1025))))));
        assert!(locks.next().await.is_none());
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_list_goes_over_all_masters_of_a_cluster() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let client = Timing::default().connect(&cluster.url()).await;
        let mut guards = Vec::new();
        for number in 0..60 {
            guards.push(client.lock(format!("{number}")).lock().await.unwrap());
        }
        // Another client that has connected to only one master so far.
        let other = Timing::default().connect(&cluster.url()).await;
        let idle = other.state().servers.iter().filter(|s| s.connection == ConnectionState::Idle).count();
        assert_eq!((idle, other.state().connection()), (2, ConnectionState::Connected));
        assert_eq!(listed(&other, "*").await.len(), 60);
        assert!(other.state().servers.iter().all(|server| server.connection == ConnectionState::Connected));
        assert!(other.ping().await.unwrap() > Duration::ZERO);
        let _ = command(&cluster.masters[0], &["PING"]).await;
    })
    .await;
}

/// A cursor means nothing on another server, so a list does not continue after a reconnect.
#[tokio::test]
async fn a_list_that_is_broken_off_says_so() {
    limit(async {
        let server = Server::start().await;
        hold(&server, 0..5000).await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let mut list = client.list("*");
        list.next().await.unwrap().unwrap();
        let mut watch = client.watch_state();
        proxy.reset_all();
        assert_eq!(watch.changed().await.unwrap().connection(), ConnectionState::Reconnecting);
        while client.state().connection() != ConnectionState::Connected {
            watch.changed().await.unwrap();
        }
        // The rest of its page still comes.
        let end = loop {
            match list.next().await.expect("an error comes first") {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(end, RequestError::Unanswered(_)), "{end:?}");
        assert!(list.next().await.is_none(), "it is over");
        assert_eq!(listed(&client, "*").await.len(), 5000);
        redis::cmd("FLUSHALL").exec_async(&mut server.connection().await).await.unwrap();
    })
    .await;
}

/// SCAN shows the names of all keys, so locks do not need that right.
#[tokio::test]
async fn without_the_right_to_scan_only_lists_are_refused() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        let all: Vec<&str> = RIGHTS.into_iter().chain(MORE_RIGHTS).collect();
        set_user(&server, all.iter().copied()).await;
        let client = Timing::default().connect(&url).await;
        let guard = client.lock("x").lock().await.unwrap();
        let error = client.list("*").next().await.unwrap().unwrap_err();
        let RequestError::Refused(refusal) = &error else { panic!("{error:?}") };
        assert!(refusal.code == "NOPERM" && error.to_string().contains("+scan"), "{error}");
        assert!(client.ping().await.is_ok() && client.lock("x").status().await.unwrap().holder.is_some());
        set_user(&server, all.iter().copied().chain(["+scan"])).await;
        assert_eq!(listed(&client, "*").await, ["x"]);
        // Even without the right to PING, the answer takes as long.
        set_user(&server, all.iter().copied().filter(|right| *right != "+ping")).await;
        client.ping().await.unwrap();
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_ping_tells_the_round_trip_and_what_is_in_the_way() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        proxy.delay(Duration::from_millis(40));
        assert!(client.ping().await.unwrap() >= Duration::from_millis(80), "there and back");
        proxy.delay(Duration::ZERO);
        proxy.blackhole(true);
        let error = client.ping().await.unwrap_err();
        assert!(matches!(error, RequestError::Unanswered(_)), "{error:?}");
        proxy.blackhole(false);
        eventually("it answers again", async || client.ping().await.is_ok()).await;
        client.close().await.unwrap();
        assert!(matches!(client.ping().await, Err(RequestError::Closed)));
    })
    .await;
}

#[tokio::test]
async fn a_client_tells_whether_it_is_connected() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let mut watch = client.watch_state();
        let state = client.state();
        assert_eq!((state.servers.len(), state.connection()), (1, ConnectionState::Connected));
        assert!(proxy.url().contains(&state.servers[0].address), "{state:?}");
        assert!(state.servers[0].down_for.is_none() && state.servers[0].fault.is_none());
        proxy.refuse(true);
        proxy.reset_all();
        assert_eq!(watch.changed().await.unwrap().connection(), ConnectionState::Reconnecting);
        eventually("it says why", async || {
            client.state().servers[0].fault.as_ref().is_some_and(|fault| fault.to_string().contains("cannot reach"))
        })
        .await;
        let down_for = client.state().servers[0].down_for.unwrap();
        eventually("it counts", async || client.state().servers[0].down_for.unwrap() > down_for).await;
        proxy.refuse(false);
        assert_eq!(watch.changed().await.unwrap().connection(), ConnectionState::Connected);
        assert!(client.state().servers[0].down_for.is_none());
        client.close().await.unwrap();
        assert_eq!(watch.changed().await.unwrap().connection(), ConnectionState::Closed);
        assert!(watch.changed().await.is_none() && client.state().connection() == ConnectionState::Closed);
    })
    .await;
}

#[tokio::test]
async fn a_status_has_times_by_the_clock_of_the_server() {
    for store in &Store::each().await {
        let client = store.connect(Timing::default()).await;
        let before = SystemTime::now();
        let guard = client.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        eventually("it is held for a while", async || {
            lock.status().await.unwrap().holder.unwrap().held_for > Duration::from_millis(20)
        })
        .await;
        let status = client.lock("x").status().await.unwrap();
        let holder = status.holder.unwrap();
        // This machine and the server have the same clock; the clock of the embedded server begins at a whole second.
        assert!(
            holder.since + Duration::from_secs(2) > before && status.at < SystemTime::now() + Duration::from_secs(2)
        );
        // One of them counts microseconds, the other milliseconds.
        assert_eq!(holder.since + holder.held_for, status.at.max(holder.since));
        assert_eq!(holder.lease_until, status.at + holder.lease_left);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    }
}
