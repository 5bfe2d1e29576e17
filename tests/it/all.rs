//! `lock_all`: several names at once, all or none, without deadlocks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::{AllGuard, FairLock, LockAll, LockClient, LockError, Loss, UnlockError, owner};
use futures::FutureExt;
use tokio::task::JoinSet;

use crate::support::cluster::Cluster;
use crate::support::{
    LONGEST_WAIT, Random, Timing, eventually, in_virtual_time, limit, limit_to, on_a_server, on_each_store,
};

async fn waiters(lock: &FairLock) -> u64 {
    lock.status().await.unwrap().waiters
}

async fn are_free(client: &LockClient, names: &[&str]) -> bool {
    for name in names {
        if client.lock(name).is_locked().await.unwrap() {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn all_are_held_and_then_all_are_free() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let all = client.lock_all(["b", "a", "c", "a"]).labelled("three");
        assert!(all.names().eq(["a", "b", "c"]));
        let guard = all.lock().await.unwrap();
        assert!(guard.names().eq(["a", "b", "c"]));
        assert!(guard.is_valid() && guard.valid_for() > Duration::ZERO);
        for (name, token) in guard.tokens() {
            let holder = client.lock(name).status().await.unwrap().holder.unwrap();
            assert_eq!((holder.token, holder.label.as_str()), (token, "three"));
            assert_eq!(guard.token(name), Some(token));
        }
        assert_eq!((guard.token("d"), format!("{guard:?}").contains("\"a\"")), (None, true));
        guard.unlock().await.unwrap();
        assert!(are_free(&client, &["a", "b", "c"]).await);

        drop(all.lock().await.unwrap());
        eventually("a dropped guard gives all back", async || are_free(&client, &["a", "b", "c"]).await).await;

        let mut guards = all.lock().await.unwrap().into_guards();
        guards.pop().unwrap().unlock().await.unwrap();
        assert!(!client.lock("c").is_locked().await.unwrap() && client.lock("b").is_locked().await.unwrap());
        drop(guards);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn without_a_name_there_is_nothing_to_wait_for() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let nothing = client.lock_all(Vec::<String>::new());
        let guard = nothing.lock().await.unwrap();
        assert!(guard.is_valid() && guard.valid_for() == Duration::MAX && guard.tokens().count() == 0);
        let lost = tokio::time::timeout(Duration::from_millis(20), guard.lost()).await;
        assert!(lost.is_err(), "there is nothing to lose");
        guard.unlock().await.unwrap();
        assert!(nothing.try_lock().await.unwrap().into_result().is_ok());
    })
    .await;
}

/// The call held the names before the invalid one for a moment.
#[tokio::test]
async fn a_set_that_cannot_be_is_refused_before_anything_is_taken() {
    in_virtual_time(async |store| {
        let client = store.connect(Timing::default()).await;
        let long = "x".repeat(1025);
        let too_short = Duration::from_millis(1);
        let sets = [
            client.lock_all(["a", ""]),
            client.lock_all(["a", &long]),
            client.lock_all(["a", "b"]).with_lease(too_short),
            client.lock_all(["a", "b"]).labelled("x".repeat(257)),
        ];
        for set in sets {
            let before = store.network.calls();
            for outcome in
                [set.lock().await.err(), set.lock_timeout(LONGEST_WAIT).await.err(), set.try_lock().await.err()]
            {
                let error = outcome.expect("it cannot be");
                assert!(matches!(error, LockError::Name(_) | LockError::Lease(_) | LockError::Label(_)), "{error}");
            }
            assert_eq!(store.network.calls(), before, "nothing was asked");
        }
        assert_eq!(store.server.keys(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn a_try_that_fails_has_given_back_what_it_took() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        for busy in ["a", "b", "c"] {
            let other = client.lock(busy).lock().await.unwrap();
            let all = client.lock_all(["a", "b", "c"]);
            assert!(all.try_lock().await.unwrap().is_busy());
            let rest: Vec<_> = ["a", "b", "c"].into_iter().filter(|name| *name != busy).collect();
            // At once, and not some time later.
            assert!(are_free(&client, &rest).await);
            other.unlock().await.unwrap();
            all.try_lock().await.unwrap().into_result().expect("all are free").unlock().await.unwrap();
        }
        client.close().await.unwrap();
    })
    .await;
}

/// The order of waiting: the call holds everything before the name that it waits for, and nothing after it.
#[tokio::test]
async fn it_holds_only_what_is_before_the_name_that_it_waits_for() {
    on_each_store(async |store| {
        let client = store.connect(Timing::relaxed()).await;
        let names = ["a", "b", "c", "d", "e"];
        let mut others = BTreeMap::new();
        for name in ["b", "d"] {
            others.insert(name, client.lock(name).lock().await.unwrap());
        }
        let all = client.lock_all(names);
        let waiting = tokio::spawn(async move { all.lock().await });
        let is_locked = async |name: &str| client.lock(name).is_locked().await.unwrap();
        for (busy, held, free) in [("b", &["a"][..], &["c", "e"][..]), ("d", &["a", "b", "c"], &["e"])] {
            eventually("it waits", async || waiters(&client.lock(busy)).await == 1).await;
            eventually("what is behind it is free", async || are_free(&client, free).await).await;
            for name in held {
                assert!(is_locked(name).await, "{name} is kept");
            }
            others.remove(busy).unwrap().unlock().await.unwrap();
        }
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.is_valid() && guard.names().eq(names));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn one_limit_counts_for_all_and_after_it_nothing_is_held() {
    on_each_store(async |store| {
        let client = store.connect(Timing::relaxed()).await;
        let other = client.lock("b").lock().await.unwrap();
        let all = client.lock_all(["a", "b", "c"]);
        for limit in [Duration::from_millis(300), Duration::from_millis(600)] {
            let outcome = all.lock_timeout(limit).await;
            assert!(matches!(outcome, Err(LockError::Timeout { .. })), "{outcome:?}");
            eventually("nothing is held", async || are_free(&client, &["a", "c"]).await).await;
            assert_eq!(waiters(&client.lock("b")).await, 0);
        }
        let soon = client.lock_all(["a", "b"]);
        let waiting = tokio::spawn(async move { soon.lock_timeout(LONGEST_WAIT).await });
        eventually("it waits", async || waiters(&client.lock("b")).await == 1).await;
        other.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        let far = all.lock_timeout(Duration::MAX).await.unwrap();
        far.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A busy lock and a silent server are different errors.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_told_from_one_that_is_busy() {
    let server = fairlock::EmbeddedServer::new();
    let client = LockClient::builder().embedded(&server).unwrap();
    let all = client.lock_all(["a", "b"]);
    server.shut_down();
    // One limit is shorter than the operation timeout, one longer.
    for limit in [Duration::from_millis(500), Duration::from_secs(10)] {
        let outcome = all.lock_timeout(limit).await;
        assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
    }
    assert!(matches!(all.try_lock().await, Err(LockError::Unreachable(_))));
    // Without a limit the call waits for the server.
    let waiting = tokio::spawn(async move { all.lock().await });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!waiting.is_finished());
    server.start_up();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    client.close().await.unwrap();
}

/// The call has waited for `a`, has it, and asks for `b`. Whenever its time ends, others were in its way.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_for_others_and_ends_in_the_middle_of_a_request_says_so() {
    let server = fairlock::simulation::server(crate::support::Network::slow());
    let client = LockClient::builder().embedded(&server).unwrap();
    let mut acquired = 0;
    for limit in (60..120).step_by(2).map(Duration::from_millis) {
        let holder = client.lock("a").lock().await.unwrap();
        let all = client.lock_all(["a", "b"]);
        let waiting = tokio::spawn(async move { all.lock_timeout(limit).await });
        tokio::time::sleep(Duration::from_millis(70)).await;
        holder.unlock().await.unwrap();
        match waiting.await.unwrap() {
            Ok(guard) => {
                acquired += 1;
                guard.unlock().await.unwrap();
            }
            Err(error) => assert!(matches!(error, LockError::Timeout { .. }), "after {limit:?}: {error:?}"),
        }
        // The client releases the others in the background.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(acquired > 0 && acquired < 30, "{acquired}: from before the hand-over to after the last answer");
    client.close().await.unwrap();
}

#[tokio::test]
async fn what_no_waiting_mends_is_said_at_once() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let _other = client.lock("a").lock().await.unwrap();
        // Not after a wait for `a`.
        let outcome = client.lock_all(["a", "b", &"x".repeat(2000)]).lock().await;
        assert!(matches!(outcome, Err(LockError::Name(_))), "{outcome:?}");
        let outcome = client.lock_all(["a", "b"]).with_lease(Duration::from_millis(1)).lock().await;
        assert!(matches!(outcome, Err(LockError::Lease(_))), "{outcome:?}");
        let outcome = client.lock_all(["a", "b"]).labelled("x".repeat(300)).try_lock().await;
        assert!(matches!(outcome, Err(LockError::Label(_))), "{outcome:?}");
        let waiting = client.lock_all(["a", "b"]);
        let waiting = tokio::spawn(async move { waiting.lock().await });
        eventually("it waits", async || waiters(&client.lock("a")).await == 1).await;
        client.close().await.unwrap();
        let outcome = waiting.await.unwrap();
        assert!(matches!(outcome, Err(LockError::Closed)), "{outcome:?}");
    })
    .await;
}

/// The call loses a name while it waits for a later one. It must wait for the lost one again and give up its later
/// place: it must not wait for a name while it holds a later one.
#[tokio::test]
async fn it_begins_anew_at_a_name_that_it_loses_meanwhile() {
    in_virtual_time(async |store| {
        let client = store.connect(Timing::relaxed()).await;
        let [a, b, c] = ["a", "b", "c"].map(|name| client.lock(name));
        let other = c.lock().await.unwrap();
        let all = client.lock_all(["a", "b", "c"]);
        let waiting = tokio::spawn(async move { all.lock().await });
        eventually("it waits for c", async || waiters(&c).await == 1).await;
        let next = tokio::spawn({
            let a = a.clone();
            async move { a.lock().await }
        });
        eventually("another waits for a", async || waiters(&a).await == 1).await;
        assert!(a.force_unlock().await.unwrap());
        let next = next.await.unwrap().unwrap();
        eventually("it waits for a", async || waiters(&a).await == 1).await;
        eventually("it has left c", async || waiters(&c).await == 0).await;
        eventually("it has given b back", async || !b.is_locked().await.unwrap()).await;
        other.unlock().await.unwrap();
        assert!(!waiting.is_finished());
        next.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.is_valid() && guard.names().eq(["a", "b", "c"]));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The server is away for longer than a lease while the call waits. `FairLock::lock` survives that too.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn it_begins_anew_when_the_leases_of_what_it_has_end_meanwhile() {
    let server = fairlock::EmbeddedServer::new();
    let client = LockClient::builder().embedded(&server).unwrap();
    let holder = LockClient::builder().embedded(&server).unwrap();
    let other = holder.lock("c").lock().await.unwrap();
    let all = client.lock_all(["a", "b", "c"]);
    let waiting = tokio::spawn(async move { all.lock().await });
    eventually("it waits for c", async || waiters(&holder.lock("c")).await == 1).await;
    server.shut_down();
    tokio::time::sleep(Duration::from_secs(100)).await;
    server.start_up();
    drop(other);
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid() && guard.valid_for() > Duration::from_secs(10));
    // The client does not renew a fixed lease while the call waits for the other names.
    guard.unlock().await.unwrap();
    let other = holder.lock("c").lock().await.unwrap();
    let fixed = client.lock_all(["a", "b", "c"]).with_lease(Duration::from_secs(5));
    let waiting = tokio::spawn(async move { fixed.lock().await });
    tokio::time::sleep(Duration::from_secs(23)).await;
    other.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await.1, Loss::Expired);
}

#[tokio::test]
async fn a_loss_is_told_with_its_name_and_an_unlock_names_all() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let guard = client.lock_all(["a", "b", "c"]).lock().await.unwrap();
        assert!(client.lock("b").force_unlock().await.unwrap());
        assert_eq!(guard.lost().await, ("b", Loss::Forced));
        assert_eq!((guard.is_valid(), guard.valid_for()), (false, Duration::ZERO));
        assert!(guard.get("a").unwrap().is_valid(), "the others are still held");
        assert!(client.lock("c").force_unlock().await.unwrap());
        eventually("it hears of it", async || !guard.get("c").unwrap().is_valid()).await;
        let error = guard.unlock().await.unwrap_err();
        let failed: Vec<_> = error.failed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(failed, ["b", "c"]);
        assert!(matches!(error.first, UnlockError::Lost(Loss::Forced)));
        assert_eq!(error.to_string(), "may have been lost before they were unlocked: b, c");
        assert!(are_free(&client, &["a", "b", "c"]).await);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn in_a_scope_it_enters_what_its_owner_holds() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let all = client.lock_all(["a", "b"]);
        owner::scope(async {
            let outer = client.lock("b").lock().await.unwrap();
            let both = all.lock().await.unwrap();
            assert_eq!(both.get("b").unwrap().holds(), 2);
            assert_eq!(both.token("b"), Some(outer.token()));
            both.unlock().await.unwrap();
            assert!(outer.is_valid());
            outer.unlock().await.unwrap();
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// Drops the call at each await, found by counting polls. It must leave nothing.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn p5_a_dropped_call_leaves_nothing_behind() {
    let server = fairlock::EmbeddedServer::new();
    let client = LockClient::builder().embedded(&server).unwrap();
    let all = client.lock_all(["a", "b", "c", "d"]);
    for polls in 0..12 {
        let other = client.lock("c").lock().await.unwrap();
        let mut waiting = Box::pin(all.lock());
        for _ in 0..polls {
            assert!((&mut waiting).now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(waiting);
        other.unlock().await.unwrap();
        let clean = async || server.keys().iter().all(|key| key.ends_with("}:token"));
        eventually("only tokens are left", clean).await;
    }
    client.close().await.unwrap();
}

/// For each name, whether a holder is inside, and the last token.
#[derive(Default)]
struct Inside(BTreeMap<String, (AtomicBool, std::sync::atomic::AtomicU64)>);

impl Inside {
    fn of(names: &[String]) -> Self {
        Self(names.iter().map(|name| (name.clone(), Default::default())).collect())
    }

    /// Checks that the guard is alone with each name, and that its token is greater than all earlier ones.
    async fn visit(&self, guard: &AllGuard, stay: Duration) {
        for (name, token) in guard.tokens() {
            let (taken, last) = &self.0[name];
            assert!(!taken.swap(true, Ordering::SeqCst), "two are inside of {name}");
            assert!(last.swap(token, Ordering::SeqCst) < token, "the tokens of {name} grow");
        }
        tokio::time::sleep(stay).await;
        for name in guard.names() {
            self.0[name].0.store(false, Ordering::SeqCst);
        }
    }
}

/// A task that takes random sets, gives up, is cancelled, or tries.
async fn take_random_sets(
    mut random: Random,
    names: &[String],
    inside: &Inside,
    set: impl Fn(Vec<String>) -> LockAll,
    rounds: u32,
) -> u32 {
    let mut visits = 0;
    for _ in 0..rounds {
        let mut chosen = names.to_vec();
        // In any order: `lock_all` sorts the names, not the caller.
        for last in (1..chosen.len()).rev() {
            chosen.swap(last, random.below(last as u64 + 1) as usize);
        }
        chosen.truncate(1 + random.below(4) as usize);
        let all = set(chosen);
        let while_patient = Duration::from_millis(1 + random.below(40));
        let guard = match random.below(6) {
            0 => all.try_lock().await.unwrap().into_result().ok(),
            1 => match all.lock_timeout(while_patient).await {
                Ok(guard) => Some(guard),
                Err(LockError::Timeout { .. } | LockError::Unreachable(_)) => None,
                Err(error) => panic!("{error}"),
            },
            2 => tokio::time::timeout(while_patient, all.lock()).await.ok().map(Result::unwrap),
            _ => Some(all.lock().await.unwrap()),
        };
        let Some(guard) = guard else { continue };
        inside.visit(&guard, Duration::from_millis(random.below(5))).await;
        visits += 1;
        if random.chance(0.5) { guard.unlock().await.unwrap() } else { drop(guard) }
    }
    visits
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("name {number:03}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p1_random_sets_exclude_each_other_and_never_deadlock() {
    on_a_server(async |server| {
        let names = std::sync::Arc::new(names(6));
        let inside = std::sync::Arc::new(Inside::of(&names));
        let mut tasks = JoinSet::new();
        let mut clients = Vec::new();
        for client in 0..3 {
            clients.push(Timing::relaxed().connect(&server.url()).await);
            for task in 0..4 {
                let seed = 4 * client as u64 + task;
                let (client, names, inside) = (clients[client].clone(), names.clone(), inside.clone());
                tasks.spawn(async move {
                    let random = Random::new(seed);
                    take_random_sets(random, &names, &inside, |chosen| client.lock_all(chosen), 60).await
                });
            }
        }
        let visits: u32 = tasks.join_all().await.into_iter().sum();
        assert!(visits > 12 * 60 / 3, "{visits} visits");
        for client in clients {
            client.close().await.unwrap();
        }
    })
    .await;
}

/// The same in virtual time, with many seeds.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn p1_random_sets_of_many_seeds() {
    for seed in 0..25 {
        let outcome = tokio::time::timeout(Duration::from_secs(3600), random_sets(seed)).await;
        assert!(outcome.is_ok(), "seed {seed} hangs");
    }
}

#[cfg(feature = "embedded")]
async fn random_sets(seed: u64) {
    let server = fairlock::EmbeddedServer::new();
    let mut seeds = Random::new(seed);
    let names = names(2 + seeds.below(4) as usize);
    let inside = Inside::of(&names);
    let clients: Vec<_> = (0..3).map(|_| LockClient::builder().embedded(&server).unwrap()).collect();
    let tasks = (0..8).map(|task| {
        let client = &clients[task % clients.len()];
        let random = Random::new(seeds.next());
        take_random_sets(random, &names, &inside, |chosen| client.lock_all(chosen), 12)
    });
    let tasks: Vec<_> = tasks.collect();
    let visits: u32 = futures::future::join_all(tasks).await.into_iter().sum();
    assert!(visits > 20, "{visits} visits");
    forced_sets(&clients, &names, &mut seeds).await;
    let clean = async || server.keys().iter().all(|key| key.ends_with("}:token"));
    eventually("only tokens are left", clean).await;
    for client in clients {
        client.close().await.unwrap();
    }
}

/// An operator forces one name after the other, even of calls that wait for the next one. Each call still ends.
#[cfg(feature = "embedded")]
async fn forced_sets(clients: &[LockClient], names: &[String], seeds: &mut Random) {
    let tasks = (0..6).map(|task| {
        let (client, mut random) = (&clients[task % clients.len()], Random::new(seeds.next()));
        async move {
            for _ in 0..6 {
                let first = random.below(names.len() as u64) as usize;
                let guard = client.lock_all(&names[first..]).lock().await.unwrap();
                tokio::time::sleep(Duration::from_millis(random.below(5))).await;
                // The error names the lost ones; the client releases the others.
                let _ = guard.unlock().await;
            }
        }
    });
    let tasks: Vec<_> = tasks.collect();
    let mut random = Random::new(seeds.next());
    let operator = async {
        loop {
            let name = &names[random.below(names.len() as u64) as usize];
            clients[0].lock(name).force_unlock().await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.below(4))).await;
        }
    };
    tokio::select! {
        _ = futures::future::join_all(tasks) => {}
        () = operator => {}
    }
}

#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn p1_random_sets_of_a_quorum() {
    for seed in 0..12 {
        let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
        let names = names(4);
        let inside = Inside::of(&names);
        let connect = |_| fairlock::LockClient::builder().without_strict_restart().embedded(&servers).unwrap();
        let clients: Vec<_> = (0..3).map(connect).collect();
        let mut seeds = Random::new(seed);
        let tasks = (0..6).map(|task| {
            let client = &clients[task % clients.len()];
            let random = Random::new(seeds.next());
            take_random_sets(random, &names, &inside, |chosen| client.lock_all(chosen), 8)
        });
        let all = tokio::time::timeout(Duration::from_secs(3600), futures::future::join_all(tasks)).await;
        let visits: u32 = all.unwrap_or_else(|_| panic!("seed {seed} hangs")).into_iter().sum();
        assert!(visits > 10, "{visits} visits");
        for server in &servers {
            let clean = async || server.keys().iter().all(|key| key.ends_with("}:token"));
            eventually("only tokens are left", clean).await;
        }
    }
}

/// Names of a cluster live on several masters, which do not know each other.
#[tokio::test]
async fn names_may_be_on_different_masters() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let client = Timing::relaxed().connect(&cluster.url()).await;
        let names = names(20);
        let all = client.lock_all(&names);
        let other = client.lock(&names[7]).lock().await.unwrap();
        assert!(all.try_lock().await.unwrap().is_busy());
        let waiting = tokio::spawn({
            let all = all.clone();
            async move { all.lock().await }
        });
        eventually("it waits", async || waiters(&client.lock(&names[7])).await == 1).await;
        other.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.tokens().count(), 20);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A call with free names sends one request for each; with busy names, not many more.
#[tokio::test]
async fn it_sends_few_requests() {
    limit_to(Duration::from_secs(120), async {
        let server = crate::support::Server::start().await;
        let client = Timing::relaxed().connect(&server.url()).await;
        let names = names(200);
        let all = client.lock_all(&names);
        let requests = async || server.calls("evalsha").await + server.calls("eval").await;
        // The first call uploads the script.
        client.lock("first").lock().await.unwrap().unlock().await.unwrap();
        let before = requests().await;
        let guard = all.lock().await.unwrap();
        assert_eq!(requests().await - before, 200);
        guard.unlock().await.unwrap();

        // The test holds each name until the call waits for it.
        let mut others = Vec::new();
        for name in &names {
            others.push(client.lock(name).lock().await.unwrap());
        }
        let holder = all.clone();
        let before = requests().await;
        let waiting = tokio::spawn(async move { holder.lock().await });
        let mut asked = 0;
        for (name, other) in names.iter().zip(others) {
            let lock = client.lock(name);
            loop {
                asked += 1;
                if waiters(&lock).await == 1 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other.unlock().await.unwrap();
        }
        let guard = waiting.await.unwrap().unwrap();
        // A try and a wait for each name, and a release by its first holder. The polls, the first 64 tries and their
        // releases come on top. The call does not repeat the tries for each name that it waited for.
        let sent = requests().await - before - asked;
        println!("{sent} requests for 200 busy names");
        assert!(sent < 5 * 200, "{sent} requests");
        guard.unlock().await.unwrap();
    })
    .await;
}
