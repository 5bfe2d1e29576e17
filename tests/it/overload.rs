//! More calls at once than the server can serve within the operation time-out.

use std::time::Duration;

#[cfg(feature = "embedded")]
use fairlock::LockError;
use fairlock::{LockClient, UnlockError};
use futures::FutureExt;

use crate::support::{Server, Timing, eventually, from_env, in_virtual_time, limit_to};

/// For a longer run: `FAIRLOCK_CALLERS=100000 cargo test --release … overload`.
fn callers(usual: usize) -> usize {
    usize::try_from(from_env("FAIRLOCK_CALLERS", u64::try_from(usual).unwrap())).unwrap()
}

async fn lock_and_unlock(client: &LockClient, name: usize) {
    match client.lock(format!("name {name}")).lock().await.unwrap().unlock().await {
        // If a busy machine leaves no time for an answer, the client goes on with the release in the background.
        Ok(_) | Err(UnlockError::Unknown { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Serves all callers at once, next to these many holds. Returns the number of lost holds, and the time.
async fn serve_all(client: &LockClient, callers: usize, holds: usize) -> (usize, Duration) {
    let mut held = Vec::new();
    for hold in 0..holds {
        held.push(client.lock(format!("held {hold}")).lock().await.unwrap());
    }
    let begun = tokio::time::Instant::now();
    let calls: Vec<_> = (0..callers)
        .map(|name| {
            let client = client.clone();
            tokio::spawn(async move { lock_and_unlock(&client, name).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    (held.iter().filter(|guard| !guard.is_valid()).count(), begun.elapsed())
}

/// Overload costs waiting, but neither a held lock nor a caller's place. These timings suit a busy machine; the next
/// test has short ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_is_served_and_no_hold_is_lost() {
    limit_to(Duration::from_secs(600), async {
        let server = Server::start().await;
        let client = Timing::relaxed().connect(&server.url()).await;
        let callers = callers(10_000);
        let (lost, took) = serve_all(&client, callers, 1000).await;
        println!("{callers} callers, {:.0} pairs a second", callers as f64 / took.as_secs_f64());
        assert_eq!(lost, 0, "of 1000 holds");
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// P8: a renewal does not wait for the calls, which take longer than the lease. Their turns come far later than the
/// operation time-out.
#[tokio::test]
async fn overload_that_outlasts_the_lease_costs_no_hold() {
    in_virtual_time(async |server| {
        let timing = Timing {
            lease: Duration::from_millis(1200),
            operation_timeout: Duration::from_millis(400),
            ..Timing::default()
        };
        let client = server.connect(timing).await;
        // 256 requests in 200 ms.
        server.network.delay(Duration::from_millis(100));
        let (lost, took) = serve_all(&client, callers(4000), 20).await;
        assert!(took > 2 * timing.lease, "{took:?} is too short to see anything");
        assert_eq!(lost, 0, "of 20 holds");
        client.close().await.unwrap();
    })
    .await;
}

/// P8: many waits that end together take seconds to leave over a slow link. In that time the client still renews a held
/// lock and polls for the remaining waiters.
#[tokio::test]
async fn many_waits_that_are_given_up_together_cost_no_hold_and_no_place() {
    in_virtual_time(async |server| {
        const GIVEN_UP: u64 = 6000;
        let timing = Timing {
            lease: Duration::from_millis(1500),
            operation_timeout: Duration::from_millis(500),
            waiter_ttl: Duration::from_secs(2),
            ..Timing::default()
        };
        let (client, other) = (server.connect(timing).await, server.connect(Timing::relaxed()).await);
        let blocked = other.lock("x").lock().await.unwrap();
        let held = client.lock("held").lock().await.unwrap();
        let patient = tokio::spawn({
            let lock = client.lock("x");
            async move { lock.lock().await }
        });
        let lock = other.lock("x");
        eventually("it waits", async || lock.status().await.unwrap().waiters == 1).await;
        let waits: Vec<_> = (0..GIVEN_UP)
            .map(|_| {
                let lock = client.lock("x");
                tokio::spawn(async move { lock.lock().await.is_ok() })
            })
            .collect();
        eventually("all wait", async || lock.status().await.unwrap().waiters == GIVEN_UP + 1).await;
        // 256 requests in 100 ms.
        server.network.delay_of(client.id(), Duration::from_millis(50));
        waits.iter().for_each(tokio::task::JoinHandle::abort);
        let begun = tokio::time::Instant::now();
        while lock.status().await.unwrap().waiters > 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(begun.elapsed() < Duration::from_secs(20), "all have left but one");
        }
        assert!(begun.elapsed() > timing.lease, "it is too short to see anything");
        assert!(held.is_valid(), "its renewals waited behind the leaves");
        blocked.unlock().await.unwrap();
        patient.await.unwrap().unwrap().unlock().await.unwrap();
        held.unlock().await.unwrap();
    })
    .await;
}

/// If a caller gives up before the client sent its request, the server never gets that request.
#[tokio::test]
async fn a_request_whose_caller_gave_up_is_never_sent() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::relaxed()).await;
        // The first answer teaches the client the server's clock.
        client.lock("first").lock().await.unwrap().unlock().await.unwrap();
        server.network.delay(Duration::from_secs(2));
        let calls: Vec<_> = (0..2000)
            .map(|name| {
                let lock = client.lock(format!("name {name}"));
                tokio::spawn(async move { lock.lock().await.map(drop) })
            })
            .collect();
        // Each call has begun: virtual time passes only while all tasks wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        // All at once. If they ended one by one, as by time-outs, the next in line would rightly take over the turns of
        // the first ones.
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        for call in calls {
            assert!(call.await.unwrap_err().is_cancelled());
        }
        // Until the server has run the requests under way, and the client has taken them back.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let tokens = server.server.keys().iter().filter(|key| key.ends_with(":token")).count();
        // Requests under way may have run, 256 at a time; the others were waiting for their turn.
        assert!((2..=257).contains(&tokens), "{tokens} of 2000 names were locked");
        server.network.delay(Duration::ZERO);
    })
    .await;
}

/// Futures that their caller polls once and never again keep what they have. Other calls must not wait for them.
#[tokio::test]
async fn calls_that_nobody_polls_do_not_stop_others() {
    limit_to(Duration::from_secs(90), async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut waits: Vec<_> = (0..600)
            .map(|name| {
                let lock = client.lock(format!("name {name}"));
                Box::pin(async move { lock.lock().await.map(drop) })
            })
            .collect();
        for wait in &mut waits {
            assert!(wait.now_or_never().is_none(), "its request is on its way");
            // tokio's coop budget limits the work of a task in one go. Without this line most futures would not get
            // that far.
            tokio::task::yield_now().await;
        }
        let guard = client.lock("another").lock().await.unwrap();
        guard.unlock().await.unwrap();
        drop(waits);
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// Answers each acquire, but later than a caller waits.
#[cfg(feature = "embedded")]
struct Slow(Duration);

#[cfg(feature = "embedded")]
impl fairlock::simulation::Faults for Slow {
    fn request(&self, _client: &str, script: &str) -> Vec<fairlock::simulation::Delivery> {
        let reply = if script == "acquire" { self.0 } else { Duration::ZERO };
        vec![fairlock::simulation::Delivery { request: Duration::ZERO, reply: Some(reply) }]
    }
}

/// The server answers all the time. The error must not call it silent about a request that it never got, nor claim that
/// others have the lock.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_blames_nobody() {
    let timing = Timing::default();
    let server = fairlock::simulation::server(Slow(timing.operation_timeout / 2));
    let client = timing.builder().embedded(&server).unwrap();
    let calls: Vec<_> = (0..256)
        .map(|name| {
            let lock = client.lock(format!("name {name}"));
            tokio::spawn(async move { lock.lock().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let brief = client.lock("x").lock_timeout(Duration::from_millis(100)).await;
    let Err(LockError::Unreachable(cause)) = brief else { panic!("{brief:?}") };
    assert!(cause.to_string().contains("no answer yet"), "{cause}");
    for call in calls {
        call.await.unwrap().unlock().await.unwrap();
    }
    // The client sends this request at once, and is still waiting for its answer.
    let brief = client.lock("x").lock_timeout(Duration::from_millis(100)).await;
    let Err(LockError::Unreachable(cause)) = brief else { panic!("{brief:?}") };
    assert!(cause.to_string().contains("no answer yet"), "{cause}");
    client.close().await.unwrap();
}

/// Earlier requests time out at the same moment and then free their slots. The error once claimed that this caller had
/// not polled.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_request_that_had_no_turn_at_a_silent_server_does_not_blame_its_caller() {
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder()).await;
        let guard = client.lock("x").lock().await.unwrap();
        embedded.network.silence(true);
        let calls = (0..600).map(|_| {
            let lock = client.lock("y");
            tokio::spawn(async move { lock.status().await })
        });
        for outcome in futures::future::join_all(calls).await {
            let error = outcome.unwrap().unwrap_err().to_string();
            assert!(!error.contains("not polled"), "{error}");
        }
        embedded.network.silence(false);
        guard.unlock().await.unwrap();
    })
    .await;
}
