//! Servers that answer with a refusal.

use std::time::Duration;

use fairlock::{LockError, UnlockError};

use crate::support::{Collect, Embedded, Server, Timing, eventually, in_virtual_time, limit};

/// The script calls that the server has refused so far.
async fn refused_calls(server: &Server) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut server.connection().await).await.unwrap();
    // The client sends a script with EVAL while the server does not know it yet.
    let lines = || stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let number = |name: &str| -> u64 {
        let values = lines().filter_map(|line| line.split([':', ',']).find_map(|field| field.strip_prefix(name)));
        values.map(|value| value.trim().parse::<u64>().unwrap()).sum()
    };
    number("rejected_calls=") + number("failed_calls=")
}

async fn configure(server: &Server, option: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(option).arg(value).exec_async(&mut server.connection().await).await.unwrap();
}

/// Changes the rights of the user `worker`.
fn worker_rule(rule: &str) -> redis::Cmd {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("worker").arg(rule.split(' ').collect::<Vec<_>>());
    command
}

const ALL: &str = "on >secret resetkeys ~* &* +@all";

/// A server with a user `worker` that has all rights, and that user's URL.
async fn server_with_worker() -> (Server, String) {
    let server = Server::start().await;
    worker_rule(ALL).exec_async(&mut server.connection().await).await.unwrap();
    let url = server.url_of_worker();
    (server, url)
}

/// NOREPLICAS: the server refuses writes while too few replicas are connected.
const NOREPLICAS: Option<&str> = Some("NOREPLICAS Not enough good replicas to write.");

#[tokio::test]
async fn many_calls_of_a_refusing_server_cost_it_little_and_all_of_them_go_on_after_it() {
    in_virtual_time(async |server| {
        let logged = Collect::default();
        let _collecting = logged.clone().here();
        let client = server.connect(Timing { lease: Duration::from_secs(60), ..Timing::default() }).await;
        let mut held = Vec::new();
        for hold in 0..28 {
            held.push(client.lock(format!("held {hold}")).lock().await.unwrap());
        }
        server.network.refuse(NOREPLICAS);
        let waits: Vec<_> = (0..150)
            .map(|_| {
                let lock = client.lock("x");
                tokio::spawn(async move { lock.lock().await.map(drop) })
            })
            .collect();
        held.into_iter().for_each(drop);
        // The time over which the test counts. It waits for nothing.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let refused = server.network.refused();
        // Some 180 requests were under way when it began; then one probe at a time, less and less often.
        assert!((1..250).contains(&refused), "{refused} refused calls");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let more = server.network.refused() - refused;
        assert!((1..=10).contains(&more), "{more} refused calls in 5 s");
        server.network.refuse(None);
        let open = tokio::time::Instant::now();
        for wait in waits {
            wait.await.unwrap().unwrap();
        }
        // The next probe opens the gate for all of them.
        assert!(open.elapsed() < Duration::from_millis(2500), "{:?}", open.elapsed());
        server.assert_clean().await;
        let events = logged.lines();
        let said = |text: &str| events.iter().filter(|event| event.contains(text)).count();
        assert_eq!(
            (said("the server refuses requests"), said("the server accepts requests again")),
            (1, 1),
            "{events:?}"
        );
        assert_eq!(events.iter().filter(|event| event.starts_with("WARN")).count(), 1, "{events:?}");
        assert!(
            logged.saw("WARN", "the server refuses requests")
                && logged.saw("INFO", "the server accepts requests again")
        );
    })
    .await;
}

/// MISCONF: the last snapshot failed.
#[tokio::test]
async fn a_wait_goes_on_while_the_server_cannot_persist() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        configure(&server, "save", "3600 1").await;
        server.break_snapshots().await;
        let lock = client.lock("x");
        let limited = lock.lock_timeout(Duration::from_millis(1500)).await;
        assert!(
            matches!(&limited, Err(LockError::Unreachable(cause)) if cause.to_string().contains("MISCONF")),
            "{limited:?}"
        );
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        tokio::task::yield_now().await;
        configure(&server, "stop-writes-on-bgsave-error", "no").await;
        waiting.await.unwrap().unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_unlock_that_is_refused_says_so_and_by_what() {
    limit(async {
        let server = Server::start().await;
        let client = Timing { lease: Duration::from_secs(60), ..Timing::default() }.connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        configure(&server, "min-replicas-to-write", "1").await;
        let refused = guard.unlock().await.unwrap_err();
        assert!(
            matches!(&refused, UnlockError::Refused { refusal, .. } if refusal.code == "NOREPLICAS"),
            "{refused:?}"
        );
        configure(&server, "min-replicas-to-write", "0").await;
        let lock = client.lock("x");
        eventually("the background releases it", async || !lock.is_locked().await.unwrap()).await;
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn an_unlock_without_an_answer_says_why() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        server.pause();
        let unknown = guard.unlock().await.unwrap_err();
        assert!(matches!(&unknown, UnlockError::Unknown { cause, .. } if !cause.to_string().is_empty()), "{unknown:?}");
        server.resume();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// A missing right stops the script after its first write, and it must leave nothing.
#[tokio::test]
async fn a_script_that_is_refused_half_way_leaves_nothing_behind() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        let client = Timing::default().connect(&url).await;
        worker_rule("-pexpire").exec_async(&mut redis).await.unwrap();
        let refused = client.lock("x").lock().await.unwrap_err();
        assert!(matches!(&refused, LockError::Refused(refusal) if refusal.in_script), "{refused:?}");
        assert!(refused.to_string().contains("is taken back"), "{refused}");
        // The script stores the token first, and the test ignores it.
        eventually("only the token is left", async || server.keys().await.iter().all(|key| key.ends_with(":token")))
            .await;
        client.close().await.unwrap();
    })
    .await;
}

/// Otherwise a server whose clock is slow could give that token again.
#[tokio::test]
async fn p2_nobody_holds_a_lock_whose_token_could_not_be_stored() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        let client = Timing::default().connect(&url).await;
        // The script cannot undo its write either.
        worker_rule("-set -del -hdel").exec_async(&mut redis).await.unwrap();
        let refused = client.lock("x").try_lock().await.unwrap_err();
        assert!(matches!(&refused, LockError::Refused(refusal) if refusal.in_script), "{refused:?}");
        assert_eq!(server.keys().await, [""; 0]);
        worker_rule("+@all").exec_async(&mut redis).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A release keeps the steps that ran: the next waiter has the lock, or the lock is free.
#[tokio::test]
async fn a_release_that_is_refused_half_way_promises_neither_way() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        let client = Timing::default().connect(&url).await;
        let guard = client.lock("x").lock().await.unwrap();
        worker_rule("-del").exec_async(&mut redis).await.unwrap();
        let refused = guard.unlock().await.unwrap_err();
        assert!(matches!(&refused, UnlockError::Refused { refusal, .. } if refusal.in_script), "{refused:?}");
        let text = refused.to_string();
        assert!(!text.contains("taken back") && !text.contains("so the lock is held"), "{text}");
        assert!(text.contains("may still be held") && text.contains("passed on"), "{text}");
        worker_rule("+@all").exec_async(&mut redis).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// If a right is missing for a moment while a guard ends, that must not cost the whole lease.
#[tokio::test]
async fn a_release_without_the_right_to_it_goes_on_when_the_right_is_back() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        let timing = Timing { lease: Duration::from_secs(3600), ..Timing::default() };
        let client = timing.builder().token_ttl(Duration::from_secs(7200)).connect(url).await.unwrap();
        let (dropped, unlocked) = (client.lock("x").lock().await.unwrap(), client.lock("y").lock().await.unwrap());
        worker_rule("-evalsha -eval").exec_async(&mut redis).await.unwrap();
        drop(dropped);
        let refused = unlocked.unlock().await.unwrap_err();
        assert!(matches!(&refused, UnlockError::Refused { refusal, .. } if refusal.code == "NOPERM"), "{refused:?}");
        worker_rule("+evalsha +eval").exec_async(&mut redis).await.unwrap();
        eventually("both are free", async || server.keys().await.iter().all(|key| key.ends_with(":token"))).await;
        client.close().await.unwrap();
    })
    .await;
}

/// An operator takes a right away while a client works: each call reports at once which one, in the syntax of `ACL
/// SETUSER`.
#[tokio::test]
async fn a_right_that_is_taken_away_later_is_named() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        let client = Timing::default().connect(&url).await;
        let names = |refusal: &fairlock::Refusal, right: &str| {
            let text = refusal.to_string();
            refusal.code == "NOPERM" && text.contains(&format!("ACL SETUSER <user> {right} ("))
        };
        // Commands that read, commands that write, the scripts themselves, and keys.
        for (taken, right) in [
            ("-get", "+get"),
            ("-pexpire", "+pexpire"),
            ("-set -hset", "+hset +set"),
            ("-eval -evalsha", "+eval"),
            ("resetkeys ~other:*", "~fairlock:*"),
        ] {
            worker_rule(taken).exec_async(&mut redis).await.unwrap();
            let LockError::Refused(refusal) = client.lock("x").lock().await.unwrap_err() else { panic!("{taken}") };
            assert!(names(&refusal, right), "{taken}: {refusal}");
            worker_rule(ALL).exec_async(&mut redis).await.unwrap();
        }
        let guard = client.lock("z").lock().await.unwrap();
        worker_rule("-del").exec_async(&mut redis).await.unwrap();
        let begun = std::time::Instant::now();
        let refused = guard.unlock().await.unwrap_err();
        assert!(begun.elapsed() < Timing::default().operation_timeout, "it need not try again to know");
        let UnlockError::Refused { refusal, .. } = refused else { panic!("{refused:?}") };
        assert!(names(&refusal, "+del"), "{refusal}");
        worker_rule(ALL).exec_async(&mut redis).await.unwrap();
        eventually("the background releases it", async || !client.lock("z").is_locked().await.unwrap()).await;
        client.close().await.unwrap();
    })
    .await;
}

/// If the server refuses a script half-way, the script must not have announced a lock that it could not give. Otherwise
/// the retry gives the lock to a second client.
#[tokio::test]
async fn p1_no_two_hold_it_when_a_hand_over_is_refused_in_the_middle() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let mut redis = server.connection().await;
        // The waiters keep their rights: a refused poll would end their waits.
        let (ours, theirs) = (Timing::default().connect(&url).await, Timing::default().connect(&server.url()).await);
        for right in ["hset", "hdel", "pexpire", "set", "publish", "zrem", "lpop"] {
            let name = format!("without {right}");
            let guard = ours.lock(&name).lock().await.unwrap();
            let waiters: Vec<_> = (0..8)
                .map(|_| {
                    let lock = theirs.lock(&name);
                    tokio::spawn(async move {
                        let guard = lock.lock().await.unwrap();
                        let on_server = lock.status().await.unwrap().holder.map(|holder| holder.token);
                        (guard.token(), on_server)
                    })
                })
                .collect();
            eventually("all wait", async || ours.lock(&name).status().await.unwrap().waiters == 8).await;
            worker_rule(&format!("-{right}")).exec_async(&mut redis).await.unwrap();
            let before = refused_calls(&server).await;
            let unlocked = tokio::spawn(guard.unlock());
            if right != "publish" {
                eventually(&format!("it was tried without {right}"), async || refused_calls(&server).await > before)
                    .await;
            }
            worker_rule(ALL).exec_async(&mut redis).await.unwrap();
            let _ = unlocked.await.unwrap();
            for waiter in waiters {
                let (told, on_server) = waiter.await.unwrap();
                assert_eq!(Some(told), on_server, "without {right}");
            }
            eventually("it is free again", async || !ours.lock(&name).is_locked().await.unwrap()).await;
        }
    })
    .await;
}

/// `status` only reads, so an operator sees the holders even while the server refuses writes.
#[tokio::test]
async fn status_is_answered_by_a_server_that_refuses_writes() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        configure(&server, "min-replicas-to-write", "1").await;
        assert!(client.lock("y").try_lock().await.is_err());
        assert_eq!(client.lock("x").status().await.unwrap().holder.unwrap().token, guard.token());
        assert!(client.lock("x").is_locked().await.unwrap());
        configure(&server, "min-replicas-to-write", "0").await;
    })
    .await;
}

/// Each answer let all waiting requests go at once, and the client logged it as the end of the refusal.
#[tokio::test]
async fn what_is_read_meanwhile_does_not_end_a_refusal() {
    limit(async {
        let server = Server::start().await;
        let logged = Collect::default();
        let _collecting = logged.clone().here();
        let client = Timing::default().connect(&server.url()).await;
        configure(&server, "min-replicas-to-write", "1").await;
        let ask = |lock: fairlock::FairLock| tokio::spawn(async move { lock.lock().await.map(drop) });
        let asking: Vec<_> = (0..20).map(|name| ask(client.lock(format!("x{name}")))).collect();
        eventually("it refuses", async || logged.saw("WARN", "the server refuses requests")).await;
        for _ in 0..20 {
            client.lock("x0").status().await.unwrap();
            assert!(!client.lock("x0").is_locked().await.unwrap());
            client.semaphore("y", 2).status().await.unwrap();
        }
        assert_eq!(logged.of("WARN", "the server refuses requests").len(), 1);
        assert!(!logged.saw("INFO", "the server accepts requests again"));
        configure(&server, "min-replicas-to-write", "0").await;
        for asking in asking {
            asking.await.unwrap().unwrap();
        }
        assert_eq!(logged.of("INFO", "the server accepts requests again").len(), 1);
        client.close().await.unwrap();
    })
    .await;
}

/// The same for a request that the server refused for its own reason.
#[tokio::test]
async fn another_refusal_meanwhile_does_not_end_one() {
    limit(async {
        let (server, url) = server_with_worker().await;
        let logged = Collect::default();
        let _collecting = logged.clone().here();
        let client = Timing::default().connect(&url).await;
        worker_rule("resetkeys ~fairlock:{n:x}*").exec_async(&mut server.connection().await).await.unwrap();
        configure(&server, "min-replicas-to-write", "1").await;
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        eventually("it refuses", async || logged.saw("WARN", "the server refuses requests")).await;
        for _ in 0..3 {
            assert!(client.lock("forbidden").try_lock().await.is_err());
        }
        assert_eq!(logged.of("WARN", "the server refuses requests").len(), 1);
        assert!(!logged.saw("INFO", "the server accepts requests again"));
        configure(&server, "min-replicas-to-write", "0").await;
        waiting.await.unwrap().unwrap();
        assert_eq!(logged.of("INFO", "the server accepts requests again").len(), 1);
        client.close().await.unwrap();
    })
    .await;
}

/// The gate wakes every request that waits at it. A call in a long pause of its own would come up to 2 s later.
#[tokio::test(start_paused = true)]
async fn nested_locks_and_leaves_go_on_as_soon_as_the_server_accepts_requests_again() {
    let server = Embedded::new();
    let timing = Timing { lease: Duration::from_secs(600), waiter_ttl: Duration::from_secs(600), ..Timing::default() };
    let client = timing.builder().token_ttl(Duration::from_secs(3600)).embedded(&server.server).unwrap();
    let mut nested = tokio::task::JoinSet::new();
    let (mut owners, mut waits, mut blocking) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..20 {
        let (me, lock) = (fairlock::Owner::new(), client.lock(format!("nested {number}")));
        owners.push((me, lock.clone(), me.scope(async move { lock.lock().await.unwrap() }).await));
        blocking.push(client.lock(format!("waited {number}")).lock().await.unwrap());
        let lock = client.lock(format!("waited {number}"));
        waits.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
    }
    eventually("all wait", async || {
        let mut waiting = 0;
        for guard in &blocking {
            waiting += client.lock(guard.name()).status().await.unwrap().waiters;
        }
        waiting == 20
    })
    .await;
    server.network.refuse(NOREPLICAS);
    for (me, lock, _) in &owners {
        let lock = lock.clone();
        nested.spawn(me.scope(async move { lock.lock().await.map(|guard| guard.holds()) }));
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    tokio::time::sleep(Duration::from_secs(30)).await;
    server.network.refuse(None);
    // Its request waits at the gate in any case.
    client.lock("opens the gate").lock().await.unwrap().unlock().await.unwrap();
    let open = tokio::time::Instant::now();
    for guard in &blocking {
        eventually("it has left", async || client.lock(guard.name()).status().await.unwrap().waiters == 0).await;
    }
    let left = open.elapsed();
    while let Some(holds) = nested.join_next().await {
        assert_eq!(holds.unwrap().unwrap(), 2);
    }
    let entered = open.elapsed();
    assert!(left < Duration::from_millis(100), "left after {left:?}");
    assert!(entered < Duration::from_millis(100), "entered after {entered:?}");
    client.close().await.unwrap();
}
