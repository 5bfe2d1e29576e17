//! Bad input and bad servers: each has its own error, and no key changes.

use std::future::Future;
use std::time::{Duration, Instant};

use fairlock::{ConnectError, LockClient, LockError, NameError, OptionsError, RequestError, owner};

use tokio::time::sleep;

use crate::support::{Proxy, Server, Timing, embedded, limit, on_a_server, on_each_store, on_several_in_virtual_time};

#[test]
fn without_a_runtime_connecting_says_so() {
    let mut connecting = std::pin::pin!(LockClient::connect("redis://127.0.0.1/"));
    let polled = connecting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(polled, std::task::Poll::Ready(Err(ConnectError::NoRuntime))));
}

#[tokio::test]
async fn bad_names_are_refused_and_odd_names_work() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        assert!(matches!(client.lock("").lock().await, Err(LockError::Name(NameError::Empty))));
        let long = client.lock("x".repeat(1025));
        assert!(matches!(long.try_lock().await, Err(LockError::Name(NameError::TooLong(1025)))));
        assert!(matches!(long.status().await, Err(RequestError::Name(_))));
        assert!(long.force_unlock().await.unwrap_err().to_string().contains("1024"));
        assert_eq!(server.keys().await, Vec::<String>::new());
        for hostile in ["{}", "}x", "{", "}", "a}b", "ü🦀", "with space\r\n", "a\0b", &"y".repeat(1024)] {
            let lock = client.lock(hostile);
            let guard = lock.lock().await.unwrap();
            assert!(lock.try_lock().await.unwrap().is_busy(), "{hostile:?}");
            assert!(lock.force_unlock().await.unwrap());
            assert_eq!(guard.lost().await, fairlock::Loss::Forced, "{hostile:?}");
        }
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn leases_that_are_out_of_range_are_refused() {
    on_a_server(async |server| {
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        let lease = |lease| client.lock("x").with_lease(lease);
        let zero = lease(Duration::ZERO).lock().await.unwrap_err();
        assert!(matches!(zero, LockError::Lease(OptionsError::OutOfRange { .. })), "{zero}");
        let short = lease(timing.operation_timeout - Duration::from_millis(1)).lock().await.unwrap_err();
        assert!(short.to_string().contains("operation_timeout"), "{short}");
        let long = lease(Duration::from_secs(25 * 3600)).try_lock().await.unwrap_err();
        assert!(long.to_string().contains("token_ttl"), "{long}");
        // All limits that the documentation of with_lease names.
        let slow = Timing { operation_timeout: Duration::from_millis(300), ..timing };
        let slow = slow.builder().strict_restart(timing.lease).connect(server.url()).await.unwrap();
        for (lease, limit) in [
            (timing.poll_interval - Duration::from_millis(1), "poll_interval"),
            (timing.lease + Duration::from_millis(1), "strict_restart"),
            (Duration::from_secs(366 * 24 * 3600), "365 days"),
        ] {
            let error = slow.lock("x").with_lease(lease).try_lock().await.unwrap_err();
            assert!(error.to_string().contains(limit), "{error}");
        }
        slow.close().await.unwrap();
        redis::cmd("DEL").arg(crate::support::BOOT).exec_async(&mut server.connection().await).await.unwrap();
        assert_eq!(server.keys().await, Vec::<String>::new());
        let builder = LockClient::builder().lease(Duration::from_secs(1));
        assert!(matches!(builder.connect(server.url()).await, Err(ConnectError::Options(_))));
    })
    .await;
}

/// Another program's data under a key of fairlock: the error names the key, and the data stays.
#[tokio::test]
async fn a_foreign_key_is_named_and_kept() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut redis = server.connection().await;
        for suffix in ["", ":queue", ":deadlines", ":token"] {
            let (name, foreign) = (format!("setnx{suffix}"), format!("fairlock:{{n:setnx{suffix}}}{suffix}"));
            let kind = if suffix == ":token" { "LPUSH" } else { "SET" };
            redis::cmd(kind).arg(&foreign).arg("mine").exec_async(&mut redis).await.unwrap();
            let before = server.keys().await;
            // A lock call on a free name does not read the deadlines.
            if suffix != ":deadlines" {
                let error = client.lock(&name).lock().await.unwrap_err();
                assert!(matches!(error, LockError::Refused(_)), "{error}");
                assert!(error.to_string().contains(&foreign), "{error}");
            }
            assert!(client.lock(&name).status().await.is_err() || suffix == ":token");
            assert_eq!(server.keys().await, before, "{suffix}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_key_that_becomes_foreign_ends_the_wait_with_its_name() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let _holder = client.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        let lock = client.lock("x");
        crate::support::eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        let mut redis = server.connection().await;
        redis::cmd("SET").arg("fairlock:{n:x}").arg("mine").exec_async(&mut redis).await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("fairlock:{n:x}"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn one_waiter_too_many_gets_queue_full() {
    on_each_store(async |store| {
        let client = store.open(Timing::default().builder().max_waiters(1)).await;
        let _holder = client.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let _waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        let lock = client.lock("x");
        crate::support::eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        let full = lock.lock().await.unwrap_err();
        assert!(matches!(full, LockError::QueueFull { waiters: 1, .. }) && full.is_busy() && full.is_retryable());
        let invalid = client.lock("").lock().await.unwrap_err();
        assert!(!invalid.is_busy() && !invalid.is_retryable(), "{invalid}");
        assert_eq!(lock.status().await.unwrap().waiters, 1);
    })
    .await;
}

#[tokio::test]
async fn connecting_says_what_is_wrong() {
    limit(async {
        let refused = |outcome: Result<LockClient, ConnectError>| outcome.expect_err("it cannot connect");
        let timing = Timing::default();

        let error = refused(LockClient::connect("http://nonsense").await);
        assert!(matches!(error, ConnectError::Url(_)), "{error}");

        let asked = Instant::now();
        let error = refused(timing.builder().connect("redis://127.0.0.1:1/").await);
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        assert!(asked.elapsed() < 4 * timing.operation_timeout, "bounded");

        let locked = Server::with(&["--requirepass", "secret"]).await;
        let error = refused(timing.builder().connect(locked.url()).await);
        assert!(matches!(error, ConnectError::Credentials(_)), "no password: {error}");
        let wrong = locked.url().replace("redis://", "redis://:wrong@");
        let error = refused(timing.builder().connect(wrong).await);
        assert!(matches!(error, ConnectError::Credentials(_)), "wrong password: {error}");
        let right = locked.url().replace("redis://", "redis://:secret@");
        timing.connect(&right).await.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn connecting_to_a_server_that_never_answers_fails_in_bounded_time() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        proxy.blackhole(true);
        let timing = Timing::default();
        let asked = Instant::now();
        let error = timing.builder().connect(proxy.url()).await.expect_err("nothing answers");
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        assert!(asked.elapsed() < 4 * timing.operation_timeout, "bounded");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_by_its_version() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        // The proxy changes the reported version, because few machines have an old server.
        let version = server.redis_version().await;
        let old = format!("6.{}", &version[2..]);
        proxy.rewrite(&format!("redis_version:{version}"), &format!("redis_version:{old}"));
        let error = Timing::default().builder().connect(proxy.url()).await.expect_err("it is too old");
        assert!(matches!(&error, ConnectError::TooOld { found, .. } if *found == old), "{error}");
        assert!(error.to_string().contains("7.0"), "it names the version that is needed: {error}");
        assert_eq!(server.keys().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_refused_and_a_demoted_primary_is_unreachable() {
    limit(async {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        let error = Timing::default().builder().connect(replica.url()).await.expect_err("it takes no writes");
        assert!(matches!(error, ConnectError::ReadOnly), "{error}");
        // A primary that becomes a replica later must not answer "not acquired".
        let client = Timing::default().connect(&primary.url()).await;
        let mut redis = primary.connection().await;
        let other = Server::start().await;
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(other.port()).exec_async(&mut redis).await.unwrap();
        let error = client.lock("x").try_lock().await.unwrap_err();
        assert!(matches!(error, LockError::Unreachable(_)), "{error}");
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut redis).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// The error claimed that others held the lock. The client had not asked, so it could not know.
#[tokio::test]
async fn a_call_without_any_time_does_not_say_that_others_hold_the_lock() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("free");
        let told = |outcome: Option<LockError>| match outcome {
            Some(LockError::Unreachable(cause)) => assert_eq!(cause.to_string(), "no answer yet"),
            other => panic!("{other:?}"),
        };
        told(lock.lock_timeout(Duration::ZERO).await.err());
        told(client.lock_all(["free", "also"]).lock_timeout(Duration::ZERO).await.err());
        owner::scope(async {
            let guard = lock.lock().await.unwrap();
            told(lock.lock_timeout(Duration::ZERO).await.err());
            guard.unlock().await.unwrap();
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// With several servers, the call asked all of them, and held the lock for a moment.
#[tokio::test]
async fn a_call_without_any_time_asks_nothing() {
    on_several_in_virtual_time(async |servers: &[_; 3]| {
        let client = embedded(Timing::default().builder(), servers);
        let lock = client.lock("free");
        let calls = || servers.iter().map(|server| server.network.calls()).sum::<u64>();
        let before = calls();
        for outcome in [
            lock.lock_timeout(Duration::ZERO).await.err(),
            client.lock_all(["free", "also"]).lock_timeout(Duration::ZERO).await.err(),
        ] {
            assert!(matches!(outcome, Some(LockError::Unreachable(_))), "{outcome:?}");
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(calls(), before);
        client.close().await.unwrap();
    })
    .await;
}

/// The error suggests a retry, and a loop that retried at once blocked its thread.
#[tokio::test]
async fn a_loop_of_calls_without_any_time_lets_other_tasks_run() {
    on_several_in_virtual_time(async |servers: &[_; 3]| {
        for client in [servers[0].connect(Timing::default()).await, embedded(Timing::default().builder(), servers)] {
            let (lock, set) = (client.lock("free"), client.lock_all(["free", "also"]));
            assert_lets_run(async || lock.lock_timeout(Duration::ZERO).await.is_err()).await;
            assert_lets_run(async || set.lock_timeout(Duration::ZERO).await.is_err()).await;
            client.close().await.unwrap();
        }
        let client = servers[0].connect(Timing::default()).await;
        let (semaphore, rw_lock) = (client.semaphore("permits", 2), client.rw_lock("shared"));
        assert_lets_run(async || semaphore.acquire_timeout(Duration::ZERO).await.is_err()).await;
        assert_lets_run(async || rw_lock.read_timeout(Duration::ZERO).await.is_err()).await;
        assert_lets_run(async || rw_lock.write_timeout(Duration::ZERO).await.is_err()).await;
        client.close().await.unwrap();
    })
    .await;
}

async fn assert_lets_run(fails: impl AsyncFn() -> bool) {
    let other = tokio::spawn(async {});
    let mut calls = 0;
    while !other.is_finished() {
        calls += 1;
        assert!(calls < 1000, "no other task ran");
        assert!(fails().await);
    }
}

/// The error reported neither the refused connection nor the silent server.
#[tokio::test]
async fn an_unreachable_server_is_told_with_its_cause_in_one_text() {
    limit(async {
        let server = Server::start().await;
        let timing = Timing { lease: Duration::from_secs(60), ..Timing::default() };
        let client = timing.connect(&server.url()).await;
        let guard = client.lock("held").lock().await.unwrap();
        let lock = client.lock("x");
        server.pause();
        let silent = lock.lock_timeout(Duration::from_secs(4)).await.unwrap_err();
        assert!(!silent.is_busy() && silent.to_string().contains("did not answer within 1s"), "{silent}");
        server.kill().await;
        let refused = |text: String| text.contains("the connection was refused: no server listens there");
        crate::support::eventually("it is known", async || {
            client.state().servers[0].fault.as_ref().is_some_and(|fault| refused(fault.to_string()))
        })
        .await;
        let told = lock.lock_timeout(Duration::from_millis(50)).await.unwrap_err();
        assert!(refused(told.to_string()), "{told}");
        let told = lock.try_lock().await.unwrap_err();
        assert!(refused(told.to_string()), "{told}");
        let told = lock.status().await.unwrap_err();
        assert!(matches!(told, RequestError::NotSent(_)) && refused(told.to_string()), "{told}");
        let told = guard.unlock().await.unwrap_err();
        assert!(refused(told.to_string()), "{told}");
    })
    .await;
}

/// The error had the text of a broken pipe, or four lines of a parser.
#[tokio::test]
async fn a_request_whose_connection_ends_says_so_in_plain_words() {
    on_a_server(async |server| {
        for fault in ["the reply is lost", "the reply is no Redis reply"] {
            let proxy = Proxy::start(server).await;
            let client = Timing::default().connect(&proxy.url()).await;
            match fault {
                "the reply is lost" => proxy.lose_next_reply(),
                _ => proxy.rewrite("*", "&"),
            }
            let error = client.lock("x").status().await.unwrap_err();
            let expected = "sent, but without an answer: the connection has ended; it may have run, or may run later";
            assert_eq!(error.to_string(), expected, "{fault}");
            client.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_others_keep_from_a_caller_is_busy() {
    on_each_store(async |store| {
        let client = store.open(Timing::default().builder().max_waiters(1)).await;
        let lock = client.lock("x");
        let _holder = lock.lock().await.unwrap();
        let busy = lock.lock_timeout(Duration::from_millis(500)).await.unwrap_err();
        assert!(matches!(busy, LockError::Timeout { .. }) && busy.is_busy());
        let waiting = lock.clone();
        let _waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
        crate::support::eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        let busy = lock.lock().await.unwrap_err();
        assert!(matches!(busy, LockError::QueueFull { .. }) && busy.is_busy());
        assert!(!client.lock("").lock().await.unwrap_err().is_busy());
    })
    .await;
}
