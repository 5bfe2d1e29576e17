//! Bugs that reviews, the simulator and the model found (docs/history.md). Each test fails without the fix of its bug.

use std::sync::Once;
use std::time::Duration;

use fairlock::{LockClient, LockError, Loss, Owner, UnlockError};

use crate::support::{Proxy, Timing, eventually, on_a_server, on_each_store};

/// R11: `lose()` published the loss before it took the seq of its leave. If the same owner began its next hold in
/// between, that hold had a smaller seq, and the leave ended it (R4).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a1_the_leave_of_a_lost_hold_does_not_end_the_owners_next_one() {
    // The client logs a line between the two steps, so a slow log makes the race certain.
    static SLOW: Once = Once::new();
    SLOW.call_once(|| tracing::subscriber::set_global_default(SlowLog).expect("the only one"));
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let other = store.connect(Timing::default()).await;
        let (lock, me) = (client.lock(SLOW_NAME), Owner::new());
        let first = me.scope(lock.lock()).await.unwrap();
        let forced = tokio::spawn(async move { other.lock(SLOW_NAME).force_unlock().await });
        while first.is_valid() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(first.unlock().await, Err(UnlockError::Lost(Loss::Forced))));
        let second = me.scope(lock.lock()).await.unwrap();
        forced.await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(lock.is_locked().await.unwrap(), "the second hold is still there");
        assert!(second.is_valid());
        second.unlock().await.unwrap();
    })
    .await;
}

const SLOW_NAME: &str = "slow to log";

/// Takes 300 ms to write a line about one lock, as a blocked terminal does.
struct SlowLog;

impl tracing::Subscriber for SlowLog {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct IsSlow(bool);
        impl tracing::field::Visit for IsSlow {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "name" && format!("{value:?}").contains(SLOW_NAME);
            }
        }
        let mut slow = IsSlow(false);
        event.record(&mut slow);
        if slow.0 {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// How often the test lets the other task run before it goes on. With one of these numbers the client has sent its
/// request and not yet read the reply, which is the race in these tests.
const YIELDS: std::ops::Range<usize> = 0..6;

async fn let_run(yields: usize) {
    for _ in 0..yields {
        tokio::task::yield_now().await;
    }
}

/// R9: `close` returned before the client had sent the leave of an acquire under way.
#[tokio::test]
async fn a2_close_also_ends_an_acquire_in_flight() {
    on_each_store(async |store| {
        let observer = store.connect(Timing::default()).await;
        for yields in YIELDS {
            let client = store.connect(Timing::default()).await;
            let lock = client.lock("a2");
            let acquiring = tokio::spawn(async move { lock.lock().await.map(drop) });
            let_run(yields).await;
            client.close().await.unwrap();
            assert!(!matches!(acquiring.await.unwrap(), Err(LockError::Timeout { .. })));
            drop(client);
            // Without its leave, a hold would last for its whole lease.
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!observer.lock("a2").is_locked().await.unwrap(), "after {yields} yields");
        }
    })
    .await;
}

/// P8: the client dropped a revocation that arrived before it had registered the hold.
#[tokio::test]
async fn a4_a_revocation_before_the_hold_begins_is_not_missed() {
    on_a_server(async |server| {
        for yields in YIELDS {
            let client = Timing::default().connect(&server.url()).await;
            let name = format!("a4 {yields}");
            let lock = client.lock(&name).with_lease(Duration::from_secs(20));
            let acquiring = tokio::spawn(async move { lock.lock().await.unwrap() });
            let_run(yields).await;
            let forced = force_while_this_thread_is_busy(&server.url(), &name);
            let guard = acquiring.await.unwrap();
            if forced {
                let loss = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await;
                assert_eq!(loss, Ok(Loss::Forced), "after {yields} yields");
            }
        }
    })
    .await;
}

/// Returns whether there was a hold to end. Blocks this runtime, so that both the revocation and the reply to the
/// acquire are waiting when it runs again.
fn force_while_this_thread_is_busy(url: &str, name: &str) -> bool {
    std::thread::sleep(Duration::from_millis(20));
    let (url, name) = (url.to_owned(), name.to_owned());
    let operator = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let operator = Timing::default().connect(&url).await;
            operator.lock(&name).force_unlock().await.unwrap()
        })
    });
    operator.join().unwrap()
}

/// The client reported a silent server as if another owner had the lock.
#[tokio::test]
async fn a5_a_silent_server_is_unreachable_and_not_a_timeout() {
    on_a_server(async |server| {
        let timing = Timing::default();
        let client = timing.connect(&server.url()).await;
        server.pause();
        let outcome = client.lock("a5").lock_timeout(timing.operation_timeout / 3).await;
        assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
        let tries = (0..100u64).map(|number| {
            let lock = client.lock(format!("a5 {number}"));
            async move {
                tokio::time::sleep(Duration::from_micros(53 * number)).await;
                lock.try_lock().await
            }
        });
        for outcome in futures::future::join_all(tries).await {
            assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
        }
        server.resume();
    })
    .await;
}

/// A nested `lock` returned `Ok` although the client had lost the hold before it read the reply.
#[tokio::test]
async fn a6_a_nested_lock_on_a_hold_that_is_lost_meanwhile_answers_lost() {
    on_each_store(async |store| {
        let timing = Timing { lease: Timing::default().operation_timeout, ..Timing::default() };
        let client = store.connect(timing).await;
        let mut lost_in_flight = 0;
        for yields in YIELDS {
            let (lock, me) = (client.lock(format!("a6 {yields}")), Owner::new());
            let outer = me.scope(lock.lock()).await.unwrap();
            let nested = tokio::spawn(me.scope(async move { lock.lock().await }));
            let_run(yields).await;
            if nested.is_finished() {
                break; // answered while the hold was good
            }
            lost_in_flight += 1;
            // The whole process sleeps past the lease, while the reply waits in the socket.
            store.sleep_as_a_whole(timing.lease + Duration::from_millis(100)).await;
            assert!(!outer.is_valid());
            let outcome = nested.await.unwrap();
            assert!(matches!(outcome, Err(LockError::Lost)), "after {yields} yields: {outcome:?}");
        }
        assert!(lost_in_flight > 1, "no reply was in flight");
    })
    .await;
}

/// A reconnect renewed every hold, even one with a fixed lease.
#[tokio::test]
async fn b1_a_reconnect_does_not_extend_a_fixed_lease() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let watched = client.lock("b1 watched").lock().await.unwrap();
        let fixed = client.lock("b1").with_lease(Duration::from_secs(4)).lock().await.unwrap();
        let mut redis = server.connection().await;
        // The server's own deadline. The holder's estimate may get longer, because the check after the reconnect makes
        // it more exact.
        let mut ends_at =
            async || -> i64 { redis::cmd("PEXPIRETIME").arg("fairlock:{n:b1}").query_async(&mut redis).await.unwrap() };
        let before = ends_at().await;
        redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("pubsub")
            .exec_async(&mut server.connection().await)
            .await
            .unwrap();
        eventually("it is connected again", async || client.lock("b1").is_locked().await.is_ok()).await;
        // The check asks for the rest of the lease, and that request takes a moment.
        assert!((before..before + 1000).contains(&ends_at().await));
        assert!(fixed.is_valid() && watched.is_valid());
    })
    .await;
}

/// P10: after a reply that it could not decode, the client reconnected without a pause.
#[tokio::test]
async fn b2_a_client_that_gets_nonsense_reconnects_with_pauses() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let direct = Timing::default().connect(&server.url()).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let holder = direct.lock("b2").lock().await.unwrap();
        let lock = client.lock("b2");
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        let lock = direct.lock("b2");
        eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        proxy.rewrite("polled", "babble");
        let before = server.connections().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let made = server.connections().await - before;
        // A pause of 25 ms and a handshake lie between any two: at most 110 on an idle machine.
        assert!((2..130).contains(&made), "{made} connections in 3 s");
        proxy.rewrite("polled", "polled");
        holder.unlock().await.unwrap();
        waiting.await.unwrap().unwrap();
    })
    .await;
}

/// A client whose user may not PING reconnected again and again.
#[tokio::test]
async fn b5_a_refused_ping_counts_as_an_answer() {
    on_a_server(async |server| {
        let mut redis = server.connection().await;
        let user = ["SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-ping"];
        redis::cmd("ACL").arg(&user).exec_async(&mut redis).await.unwrap();
        let brief = Duration::from_millis(500);
        let url = server.url().replace("redis://", "redis://mute:secret@");
        let client = LockClient::builder().operation_timeout(brief).connect(url).await.unwrap();
        let before = server.connections().await;
        tokio::time::sleep(4 * brief).await;
        // Each call of `connections` makes one itself.
        assert_eq!(server.connections().await - before, 1);
        client.close().await.unwrap();
    })
    .await;
}

/// The network loses all pushes, so only polls find a grant.
#[cfg(feature = "embedded")]
struct NoPushes;

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for NoPushes {
    fn push(&self, _client: &str) -> Vec<Duration> {
        Vec::new()
    }
}

/// R5: a waiter relied on a grant from a poll for longer than the lease that it had asked for. A confirmation that sets
/// the shorter lease could still be under way.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn s2_a_grant_that_outlives_a_short_lease_is_not_relied_on() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(NoPushes);
    let (one, other) = (timing.builder().embedded(&server).unwrap(), timing.builder().embedded(&server).unwrap());
    let holder = one.lock("s2").lock().await.unwrap();
    let brief = other.lock("s2").with_lease(timing.operation_timeout);
    let waiting = tokio::spawn(async move { brief.lock().await.unwrap() });
    // Just before a poll, which then finds a grant with nearly all of its time left.
    tokio::time::sleep(timing.poll_interval - Duration::from_millis(50)).await;
    holder.unlock().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(guard.valid_for() <= timing.operation_timeout, "{:?}", guard.valid_for());
    tokio::time::sleep(Duration::from_millis(60)).await;
    let left = one.lock("s2").status().await.unwrap().holder.unwrap().lease_left;
    assert!(left <= timing.operation_timeout, "the server has the shorter lease soon: {left:?}");
    assert_eq!(guard.lost().await, Loss::Expired);
}

/// R7: the client trusted a pushed grant whose time was nearly used up. It lost the hold before the server could answer
/// the first renewal.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn s1_a_grant_with_no_time_left_is_confirmed_first() {
    let timing = Timing { grant_ttl: Duration::from_millis(1), ..Timing::default() };
    let server = fairlock::simulation::server(crate::support::Network::slow());
    let (one, other) = (timing.builder().embedded(&server).unwrap(), timing.builder().embedded(&server).unwrap());
    for early in 0..40 {
        let holder = one.lock("s1").lock().await.unwrap();
        let lock = other.lock("s1");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        // Close to the last moment at which the client can trust a grant that lasts one poll interval.
        tokio::time::sleep(timing.poll_interval - Duration::from_millis(early)).await;
        holder.unlock().await.unwrap();
        let guard = waiting.await.unwrap();
        tokio::time::sleep(timing.lease).await;
        assert!(guard.is_valid(), "lost without any fault, {early} ms before the poll");
        guard.unlock().await.unwrap();
    }
}

/// P1: a `Held` stayed valid after the last guard was dropped, although the release was under way and the next owner
/// could already hold the lock.
#[tokio::test]
async fn m1_a_held_view_is_not_valid_after_the_last_guard() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let guard = client.lock("m1").lock().await.unwrap();
        let view = guard.held();
        assert!(view.is_valid());
        drop(guard);
        assert!(!view.is_valid() && view.valid_for().is_zero());
    })
    .await;
}

/// R1, R4: an unlock freed the lock, and its reply was lost. A late copy of the acquire then took the lock again, the
/// retried unlock freed that hold, and `unlock` returned `Lost` instead of `Freed`.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn m2_a_retried_unlock_is_not_a_loss() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(LateCopy { releases: std::sync::atomic::AtomicU32::new(0) });
    let client = timing.builder().embedded(&server).unwrap();
    let guard = client.lock("m2").lock().await.unwrap();
    let unlock = tokio::spawn(guard.unlock());
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The client retries the release while `unlock` still waits for it.
    server.disconnect(client.id());
    assert_eq!(unlock.await.unwrap().unwrap(), fairlock::Unlocked::Freed);
    assert!(!client.lock("m2").is_locked().await.unwrap());
}

/// The network loses the reply to the first release, and delivers a second copy of each acquire after it.
#[cfg(feature = "embedded")]
struct LateCopy {
    releases: std::sync::atomic::AtomicU32,
}

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for LateCopy {
    fn request(&self, _client: &str, script: &str) -> Vec<fairlock::simulation::Delivery> {
        let at_once = fairlock::simulation::Delivery::AT_ONCE;
        match script {
            "acquire" => {
                vec![at_once, fairlock::simulation::Delivery { request: Duration::from_millis(50), reply: None }]
            }
            "release" if self.releases.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 => {
                vec![fairlock::simulation::Delivery { reply: None, ..at_once }]
            }
            _ => vec![at_once],
        }
    }
}

/// P8: if the hold reached max_hold while a renewal was under way, the client never reported the loss.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn w1_max_hold_reached_during_a_renewal_is_reported() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(SlowRenewals);
    // The client sends the first renewal at a third of the lease, before max_hold, and gets the answer after it.
    let max_hold = timing.lease / 3 + Duration::from_millis(200);
    let client = timing.builder().max_hold(max_hold).embedded(&server).unwrap();
    let guard = client.lock("w1").lock().await.unwrap();
    let loss = tokio::time::timeout(3 * timing.lease, guard.lost()).await;
    assert_eq!(loss.expect("reported at its deadline"), Loss::Expired);
}

/// The reply to a renewal takes 600 ms.
#[cfg(feature = "embedded")]
struct SlowRenewals;

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for SlowRenewals {
    fn request(&self, _client: &str, script: &str) -> Vec<fairlock::simulation::Delivery> {
        let delay = Duration::from_millis(if script == "renew" { 600 } else { 0 });
        vec![fairlock::simulation::Delivery { reply: Some(delay), ..fairlock::simulation::Delivery::AT_ONCE }]
    }
}
