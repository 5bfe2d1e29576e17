//! Bugs that were found, each with the test that fails without its mending. The letters are those of
//! the adversarial review of the first core (docs/design.md, "Found").

use std::sync::Once;
use std::time::Duration;

use fairlock::{LockClient, LockError, Loss, Owner, UnlockError};

use crate::support::{Proxy, Timing, eventually, on_a_server, on_each_store};

/// A1: `lose()` let everybody see the end before it drew the seq of its leave, so that leave could
/// end the same owner's next hold. The time between the two is the log's: here it is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a1_the_leave_of_a_lost_hold_spares_the_owners_next_one() {
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

/// Takes 300 ms to write down a line about one lock, as a blocked terminal does.
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

/// How many times the test lets the other task run before it looks away: one of them is the moment
/// at which the request is out and the answer not read.
const MOMENTS: std::ops::Range<usize> = 0..6;

async fn let_run(moments: usize) {
    for _ in 0..moments {
        tokio::task::yield_now().await;
    }
}

/// A2: `close` returned before the leave of an acquire in flight was sent.
#[tokio::test]
async fn a2_close_takes_an_acquire_in_flight_along() {
    on_each_store(async |store| {
        let observer = store.connect(Timing::default()).await;
        for moments in MOMENTS {
            let client = store.connect(Timing::default()).await;
            let lock = client.lock("a2");
            let acquiring = tokio::spawn(async move { lock.lock().await.map(drop) });
            let_run(moments).await;
            client.close().await.unwrap();
            assert!(!matches!(acquiring.await.unwrap(), Err(LockError::Timeout)));
            drop(client);
            // An orphan would stay for its whole lease.
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!observer.lock("a2").is_locked().await.unwrap(), "after {moments} moments");
        }
    })
    .await;
}

/// A4: a revocation that came before the hold had begun found nobody to tell.
#[tokio::test]
async fn a4_a_revocation_before_the_hold_begins_is_heard() {
    on_a_server(async |server| {
        for moments in MOMENTS {
            let client = Timing::default().connect(&server.url()).await;
            let name = format!("a4 {moments}");
            let lock = client.lock(&name).with_lease(Duration::from_secs(20));
            let acquiring = tokio::spawn(async move { lock.lock().await.unwrap() });
            let_run(moments).await;
            let forced = force_while_this_thread_is_busy(&server.url(), &name);
            let guard = acquiring.await.unwrap();
            if forced {
                let told = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await;
                assert_eq!(told, Ok(Loss::Forced), "after {moments} moments");
            }
        }
    })
    .await;
}

/// Whether there was a hold to force. Blocks this runtime meanwhile, on purpose.
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

/// A5: a server that does not answer was reported as somebody else's hold.
#[tokio::test]
async fn a5_silence_is_never_reported_as_somebody_elses_hold() {
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

/// A6: a nested `lock` answered `Ok` when the hold was lost while its answer was on its way.
#[tokio::test]
async fn a6_a_nested_lock_on_a_hold_lost_meanwhile_answers_lost() {
    on_each_store(async |store| {
        let timing = Timing { lease: Timing::default().operation_timeout, ..Timing::default() };
        let client = store.connect(timing).await;
        let mut overtaken = 0;
        for moments in MOMENTS {
            let (lock, me) = (client.lock(format!("a6 {moments}")), Owner::new());
            let outer = me.scope(lock.lock()).await.unwrap();
            let nested = tokio::spawn(me.scope(async move { lock.lock().await }));
            let_run(moments).await;
            if nested.is_finished() {
                break; // answered while the hold was good
            }
            overtaken += 1;
            // The whole process stands still past the lease; the answer waits in the socket.
            std::thread::sleep(timing.lease + Duration::from_millis(100));
            assert!(!outer.is_valid());
            let outcome = nested.await.unwrap();
            assert!(matches!(outcome, Err(LockError::Lost)), "after {moments} moments: {outcome:?}");
        }
        assert!(overtaken > 1, "no answer was on its way");
    })
    .await;
}

/// B1: a reconnect renewed every hold, those with a fixed lease too.
#[tokio::test]
async fn b1_a_reconnect_does_not_extend_a_fixed_lease() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let watched = client.lock("b1 watched").lock().await.unwrap();
        let fixed = client.lock("b1").with_lease(Duration::from_secs(4)).lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = fixed.valid_for();
        let mut redis = server.connection().await;
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").exec_async(&mut redis).await.unwrap();
        eventually("it is connected again", async || client.lock("b1").is_locked().await.is_ok()).await;
        assert!(fixed.valid_for() <= before);
        assert!(watched.is_valid());
    })
    .await;
}

/// B2: an answer that nobody knows made the client reconnect without any pause.
#[tokio::test]
async fn b2_nonsense_from_the_server_is_no_reason_to_hammer_it() {
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
        // A pause of 25 ms and the hand-shake between any two: at most 110 on an idle machine.
        assert!((2..130).contains(&made), "{made} connections in 3 s");
        proxy.rewrite("polled", "polled");
        holder.unlock().await.unwrap();
        waiting.await.unwrap().unwrap();
    })
    .await;
}

/// B5: a user who may not PING was reconnected for ever.
#[tokio::test]
async fn b5_a_refused_ping_is_an_answer() {
    on_a_server(async |server| {
        let mut redis = server.connection().await;
        let user = ["SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-ping"];
        redis::cmd("ACL").arg(&user).exec_async(&mut redis).await.unwrap();
        let brief = Duration::from_millis(200);
        let url = server.url().replace("redis://", "redis://mute:secret@");
        let client = LockClient::builder().operation_timeout(brief).connect(url).await.unwrap();
        let before = server.connections().await;
        tokio::time::sleep(8 * brief).await;
        // `connections` makes one itself each time.
        assert_eq!(server.connections().await - before, 1);
        client.close().await.unwrap();
    })
    .await;
}

/// Nothing that the server pushes arrives.
#[cfg(feature = "embedded")]
struct NoPushes;

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for NoPushes {
    fn push(&self, _client: &str) -> Vec<Duration> {
        Vec::new()
    }
}

/// S2, by the simulator: a grant found by a poll was relied on for longer than the lease that was
/// asked for, while a confirmation that sets that lease could still be under way.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn s2_a_grant_that_outlives_a_short_lease_is_not_relied_on() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(NoPushes);
    let (one, other) = (timing.builder().embedded(&server).unwrap(), timing.builder().embedded(&server).unwrap());
    let holder = one.lock("s2").lock().await.unwrap();
    let brief = other.lock("s2").with_lease(timing.operation_timeout);
    let waiting = tokio::spawn(async move { brief.lock().await.unwrap() });
    // Just before a poll: what it finds has nearly the whole grant left.
    tokio::time::sleep(timing.poll_interval - Duration::from_millis(50)).await;
    holder.unlock().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(guard.valid_for() <= timing.operation_timeout, "{:?}", guard.valid_for());
    tokio::time::sleep(Duration::from_millis(60)).await;
    let left = one.lock("s2").status().await.unwrap().holder.unwrap().lease_left;
    assert!(left <= timing.operation_timeout, "and the server is told soon: {left:?}");
    assert_eq!(guard.lost().await, Loss::Expired);
}

/// S1, by the simulator: a pushed grant was trusted although its time was all but over, and the hold
/// was lost before its first renewal could be answered.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn s1_a_grant_with_no_time_left_is_confirmed_first() {
    let timing = Timing { grant_ttl: Timing::default().poll_interval, ..Timing::default() };
    let server = fairlock::simulation::server(Far);
    let (one, other) = (timing.builder().embedded(&server).unwrap(), timing.builder().embedded(&server).unwrap());
    for early in 0..40 {
        let holder = one.lock("s1").lock().await.unwrap();
        let lock = other.lock("s1");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        // Around the moment when a grant that lasts no longer than a poll interval can be trusted last.
        tokio::time::sleep(timing.poll_interval - Duration::from_millis(early)).await;
        holder.unlock().await.unwrap();
        let guard = waiting.await.unwrap();
        tokio::time::sleep(timing.lease).await;
        assert!(guard.is_valid(), "lost though the network was calm, {early} ms before the poll");
        guard.unlock().await.unwrap();
    }
}

/// A round trip of 10 ms.
#[cfg(feature = "embedded")]
struct Far;

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for Far {
    fn request(&self, _client: &str, _script: &str) -> Vec<fairlock::simulation::Delivery> {
        let way = Duration::from_millis(5);
        vec![fairlock::simulation::Delivery { request: way, reply: Some(way) }]
    }
}

/// M1, by the model's author: a view of a hold stayed valid when the last guard had gone, though the
/// release was on its way and the next holder might be in.
#[tokio::test]
async fn m1_a_view_is_not_valid_after_the_last_guard() {
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

/// M2, by the model's author: an unlock freed the lock, its answer was lost, and what the repeated
/// request found and freed was a late copy of the acquire: the unlock said that the lock was lost.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn m2_an_unlock_that_was_repeated_is_not_a_loss() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(LateCopy { releases: std::sync::atomic::AtomicU32::new(0) });
    let client = timing.builder().embedded(&server).unwrap();
    let guard = client.lock("m2").lock().await.unwrap();
    let unlock = tokio::spawn(guard.unlock());
    tokio::time::sleep(Duration::from_millis(100)).await;
    // So it asks again while it still waits.
    server.disconnect(client.id());
    assert_eq!(unlock.await.unwrap().unwrap(), fairlock::Unlocked::Freed);
    assert!(!client.lock("m2").is_locked().await.unwrap());
}

/// A second copy of each acquire comes when the first release has run, whose answer is lost.
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

/// W1, by reading the watchdog of all holds again: when max_hold was reached while a renewal was under way,
/// nobody was left to tell of the loss.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn w1_max_hold_reached_during_a_renewal_is_told() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(SlowRenewals);
    // The first renewal is sent at a third of the lease, before max_hold, and answered after it.
    let max_hold = timing.lease / 3 + Duration::from_millis(200);
    let client = timing.builder().max_hold(max_hold).embedded(&server).unwrap();
    let guard = client.lock("w1").lock().await.unwrap();
    let told = tokio::time::timeout(3 * timing.lease, guard.lost()).await;
    assert_eq!(told.expect("at its deadline"), Loss::Expired);
}

/// The answer to a renewal takes 600 ms.
#[cfg(feature = "embedded")]
struct SlowRenewals;

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for SlowRenewals {
    fn request(&self, _client: &str, script: &str) -> Vec<fairlock::simulation::Delivery> {
        let back = Duration::from_millis(if script == "renew" { 600 } else { 0 });
        vec![fairlock::simulation::Delivery { reply: Some(back), ..fairlock::simulation::Delivery::AT_ONCE }]
    }
}
