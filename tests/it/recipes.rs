//! The recipes of `examples/recipes` as real processes: the test kills them, sends them signals, and stops their
//! server. `scripts/examples` runs all recipes undisturbed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fairlock::LockClient;
use nix::sys::signal::Signal;
use tokio::task::JoinSet;

use crate::support::recipe::{Recipe, ask, with_recipes};
use crate::support::{LONGEST_WAIT, Server, Timing, eventually};

const LEADER: &str = "example:leader";
/// The lease in examples/recipes/leader.rs and cron.rs.
const LEASE: Duration = Duration::from_secs(3);

/// Starts members that queue in this order.
async fn members(server: &Server, client: &LockClient, count: usize) -> Vec<Recipe> {
    let mut members = Vec::new();
    for number in 0..count {
        let mut member = Recipe::start("leader", &server.url(), &format!("member {number}"), &[]);
        if number == 0 {
            member.hears("leads").await;
        } else {
            let lock = client.lock(LEADER);
            eventually("it waits", async || lock.status().await.unwrap().waiters == number as u64).await;
        }
        members.push(member);
    }
    members
}

async fn leader(client: &LockClient) -> Option<String> {
    client.lock(LEADER).status().await.unwrap().holder.map(|holder| holder.label)
}

#[tokio::test]
async fn a_leader_that_is_killed_is_followed_when_its_lease_is_over() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut members = members(&server, &client, 2).await;
        let killed = Instant::now();
        members[0].signal(Signal::SIGKILL);
        members[0].end().await;
        assert_eq!(leader(&client).await.as_deref(), Some("member 0"), "until its lease ends");
        members[1].hears("leads").await;
        // The holder may have sent a renewal a third of a lease before the kill.
        assert!(killed.elapsed() > LEASE / 2, "{:?} after the kill", killed.elapsed());
        assert_eq!(leader(&client).await.as_deref(), Some("member 1"));
    })
    .await;
}

#[tokio::test]
async fn a_leader_hands_over_at_a_sigterm() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut members = members(&server, &client, 3).await;
        // A waiting member just leaves.
        members[1].signal(Signal::SIGTERM);
        assert!(members[1].end().await.success());
        let lock = client.lock(LEADER);
        eventually("one waits", async || lock.status().await.unwrap().waiters == 1).await;
        members[0].signal(Signal::SIGTERM);
        assert!(members[0].end().await.success());
        // It ended after the hand-over, so nobody waited for its lease.
        assert_eq!(leader(&client).await.as_deref(), Some("member 2"));
        members[2].hears("leads").await;
        members[2].signal(Signal::SIGTERM);
        assert!(members[2].end().await.success());
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_loses_the_lock_stops_and_waits_again() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut members = members(&server, &client, 2).await;
        assert!(client.lock(LEADER).force_unlock().await.unwrap());
        members[0].hears("has lost it").await;
        let second = members[1].hears_number("leads").await;
        eventually("it waits", async || client.lock(LEADER).status().await.unwrap().waiters == 1).await;
        // Without a server it stops by its own clock. When the server is back, it leads again.
        members[0].signal(Signal::SIGTERM);
        assert!(members[0].end().await.success());
        server.kill().await;
        members[1].hears("has lost it").await;
        server.restart().await;
        assert!(members[1].hears_number("leads").await > second);
    })
    .await;
}

async fn runs(server: &Server) -> Vec<u64> {
    redis::cmd("LRANGE")
        .arg(&["example:cron:runs", "0", "-1"])
        .query_async(&mut server.connection().await)
        .await
        .unwrap()
}

/// Two machines, whose clocks differ by more than the job takes. The slow one reaches each tick after the other has run
/// it.
#[tokio::test]
async fn each_tick_runs_once_though_clocks_differ() {
    with_recipes(async {
        let server = Server::start().await;
        let ahead = Recipe::start("cron", &server.url(), "ahead", &[("CRON_CLOCK_AHEAD_MS", "300")]);
        let mut behind = Recipe::start("cron", &server.url(), "behind", &[]);
        let mut found = 0;
        while found < 4 {
            found += u32::from(behind.hears("behind ").await.contains(" done"));
        }
        let runs = runs(&server).await;
        assert!(runs.len() >= 4, "{runs:?}");
        assert!(runs.windows(2).all(|pair| pair[0] < pair[1]), "a tick ran twice: {runs:?}");
        drop(ahead);
    })
    .await;
}

/// The test kills the machine that runs the job. Another one runs that tick when the lease has ended.
#[tokio::test]
async fn a_tick_whose_machine_died_is_run_by_another_one() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let settings = [("CRON_PERIOD_MS", "5000"), ("CRON_JOB_MS", "1500")];
        let ahead = [settings[0], settings[1], ("CRON_CLOCK_AHEAD_MS", "400")];
        // It must be ready before the other one begins a tick, 400 ms earlier than this one.
        let mut second = Recipe::start("cron", &server.url(), "second", &settings);
        second.hears("is ready").await;
        let mut first = Recipe::start("cron", &server.url(), "first", &ahead);
        let tick = first.hears_number("begins tick").await;
        let lock = client.lock("example:cron");
        eventually("the other one waits", async || lock.status().await.unwrap().waiters == 1).await;
        first.signal(Signal::SIGKILL);
        first.end().await;
        // It may have run an earlier tick alone.
        while second.hears_number("ran tick").await != tick {}
        assert_eq!(runs(&server).await.iter().filter(|run| **run == tick).count(), 1);
    })
    .await;
}

/// Starts the service, and returns it with its address.
async fn service(url: &str, settings: &[(&str, &str)]) -> (Recipe, String) {
    let mut service = Recipe::start("tenants", url, "127.0.0.1:0", settings);
    let line = service.hears("listening on ").await;
    (service, line.rsplit(' ').next().unwrap().to_owned())
}

type Answer = (u16, String);

/// Sends `count` requests of a tenant, and returns when all of them are in the service.
async fn order(requests: &mut JoinSet<Answer>, address: &str, client: &LockClient, tenant: &str, count: usize) {
    let gate = client.lock(format!("example:tenant:{tenant}"));
    let before = gate.status().await.unwrap();
    let there = before.waiters + u64::from(before.holder.is_some());
    for _ in 0..count {
        let (address, request) = (address.to_owned(), format!("POST /tenants/{tenant}/orders"));
        requests.spawn(async move { ask(&address, &request).await });
    }
    eventually("all wait or are served", async || {
        let status = gate.status().await.unwrap();
        status.waiters + u64::from(status.holder.is_some()) == there + count as u64
    })
    .await;
}

#[tokio::test]
async fn at_a_sigterm_all_requests_are_answered_and_nothing_stays_locked() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        // Two processes of the service, which share one gate for each tenant.
        let settings = [("TENANTS_WORK_MS", "400")];
        let (mut one, first) = service(&server.url(), &settings).await;
        let (mut two, second) = service(&server.url(), &settings).await;
        assert_eq!(ask(&first, "GET /health").await.0, 200);
        let mut requests = JoinSet::new();
        order(&mut requests, &first, &client, "acme", 2).await;
        order(&mut requests, &second, &client, "acme", 1).await;
        order(&mut requests, &first, &client, "globex", 1).await;
        one.signal(Signal::SIGTERM);
        two.signal(Signal::SIGTERM);
        let mut served: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        for (status, body) in requests.join_all().await {
            let words: Vec<_> = body.split_whitespace().collect();
            assert_eq!((status, words.len()), (200, 4), "{body}");
            served.entry(words[0].into()).or_default().push((words[2].parse().unwrap(), words[3].parse().unwrap()));
        }
        assert!(one.end().await.success() && two.end().await.success());
        // One after the other, across both processes.
        for times in served.values_mut() {
            times.sort_unstable();
            assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{times:?}");
        }
        assert_eq!(served["acme"].len() + served["globex"].len(), 4);
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// Requests that outlast the grace period get an answer, not a broken connection.
#[tokio::test]
async fn requests_that_outlast_the_grace_are_answered_too() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let settings = [("TENANTS_WORK_MS", "60000"), ("TENANTS_GRACE_MS", "200")];
        let (mut service, address) = service(&server.url(), &settings).await;
        let mut requests = JoinSet::new();
        order(&mut requests, &address, &client, "acme", 3).await;
        service.signal(Signal::SIGTERM);
        for (status, body) in requests.join_all().await {
            assert_eq!(status, 503, "{body}");
        }
        assert!(service.end().await.success());
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn the_health_page_says_when_redis_is_down() {
    with_recipes(async {
        let server = Server::start().await;
        let (mut service, address) = service(&server.url(), &[("TENANTS_NOTICE_MS", "4000")]).await;
        let health = async || ask(&address, "GET /health").await.0;
        assert_eq!(health().await, 200);
        server.kill().await;
        eventually("it is unhealthy", async || health().await == 503).await;
        // Neither a hang nor "others have it".
        assert_eq!(ask(&address, "POST /tenants/acme/orders").await.0, 503);
        server.restart().await;
        eventually("it is healthy again", async || health().await == 200).await;
        assert_eq!(ask(&address, "POST /tenants/acme/orders").await.0, 200);
        service.signal(Signal::SIGTERM);
        eventually("the balancer is told", async || health().await == 503).await;
        assert!(service.end().await.success());
    })
    .await;
}

/// A client that hangs up keeps no place in the queue.
#[tokio::test]
async fn a_request_that_is_given_up_leaves_the_queue() {
    with_recipes(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let (_service, address) = service(&server.url(), &[]).await;
        let gate = client.lock("example:tenant:acme");
        let operator = gate.lock().await.unwrap();
        let mut requests = JoinSet::new();
        order(&mut requests, &address, &client, "acme", 3).await;
        assert_eq!(gate.status().await.unwrap().waiters, 3);
        requests.abort_all();
        while requests.join_next().await.is_some() {}
        eventually("nobody waits", async || gate.status().await.unwrap().waiters == 0).await;
        operator.unlock().await.unwrap();
    })
    .await;
}

/// Its work goes on in a thread and must keep the lock: otherwise the next request would be inside too.
#[tokio::test]
async fn a_request_that_is_given_up_inside_keeps_the_lock_until_its_work_is_done() {
    with_recipes(async {
        const WORK_MS: u64 = 600;
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let (_service, address) = service(&server.url(), &[("TENANTS_WORK_MS", "600")]).await;
        // A caller may give up after the request got the lock and before its work began. Then the next one rightly
        // begins at once. If the work did not own the guard, every next one would.
        let mut early = Vec::new();
        for _ in 0..5 {
            let mut requests = JoinSet::new();
            order(&mut requests, &address, &client, "acme", 1).await;
            let first = client.lock("example:tenant:acme").status().await.unwrap().holder.expect("it is inside");
            requests.abort_all();
            while requests.join_next().await.is_some() {}
            let (status, body) = ask(&address, "POST /tenants/acme/orders").await;
            assert_eq!(status, 200, "{body}");
            let begun: u64 = body.split_whitespace().nth(2).unwrap().parse().unwrap();
            let since = first.since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
            if begun >= since + WORK_MS {
                return;
            }
            early.push((since, begun));
        }
        panic!("the next one began before the work was done: {early:?}");
    })
    .await;
}

/// The pattern of examples/blocking.rs: threads take turns over a runtime of one thread, which renews their holds. A
/// thread that checks from time to time sees that it has lost its lock.
#[test]
fn threads_take_turns_and_see_a_loss() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start());
    let client = runtime.block_on(Timing::default().connect(&server.url()));
    let lock = client.lock("x");
    let counter = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let guard = runtime.block_on(lock.lock()).unwrap();
                    let before = counter.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(before + 1, Ordering::Relaxed);
                    // Drops it in a thread without a runtime.
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 8 * 25);

    let guard = runtime.block_on(lock.lock()).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Timing::default().lease * 2 {
        assert!(guard.is_valid(), "it is renewed while its thread does other things");
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.block_on(server.kill());
    let begun = Instant::now();
    while guard.is_valid() {
        assert!(begun.elapsed() < LONGEST_WAIT, "it does not see the loss");
        std::thread::sleep(Duration::from_millis(20));
    }
}
