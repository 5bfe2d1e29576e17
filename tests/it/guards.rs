//! Several guards of one hold, with fixed and renewed leases, and tasks that wait for themselves.
#![cfg(feature = "embedded")]

use std::future::Future;
use std::time::Duration;

use fairlock::{EmbeddedServer, FairLock, LockClient, LockError, Loss, owner};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Collect, Timing};

fn client(timing: Timing) -> LockClient {
    timing.builder().embedded(&EmbeddedServer::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_renewed_for_a_nested_guard() {
    let timing = Timing::default();
    let client = client(timing);
    let plain = client.lock("nested");
    owner::scope(async {
        let outer = plain.with_lease(timing.lease).lock().await.unwrap();
        let inner = plain.lock().await.unwrap();
        let lost = timeout(timing.lease, outer.lost()).await;
        assert_eq!(lost, Ok(Loss::Expired), "the first guard asked for no renewal");
        assert!(!inner.is_valid());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_loss_hears_of_the_end_of_a_fixed_lease() {
    let timing = Timing::default();
    let client = client(timing);
    let plain = client.lock("nested");
    owner::scope(async {
        let outer = plain.with_lease(timing.lease).lock().await.unwrap();
        let view = outer.held();
        let monitor = tokio::spawn(async move { view.ended().await.loss() });
        let lost = timeout(2 * timing.lease, monitor).await.expect("at the deadline").unwrap();
        assert_eq!(lost, Some(Loss::Expired));
        drop(outer);
    })
    .await;
}

async fn said_while<F: Future>(test: F) -> Collect {
    let said = Collect::default();
    let collecting = said.clone().here();
    test.await;
    drop(collecting);
    said
}

/// The number of warnings that a task may wait for itself.
fn told(said: &Collect) -> usize {
    said.of("WARN", "").iter().filter(|line| line.contains("scope")).count()
}

fn quorum(timing: Timing) -> LockClient {
    let servers = [0; 3].map(|_| EmbeddedServer::new());
    timing.builder().without_strict_restart().embedded(&servers).unwrap()
}

async fn wait_for_itself(lock: FairLock, timing: Timing) {
    let said = said_while(async {
        let _guard = lock.lock().await.unwrap();
        // After the hold began, even with a paused clock.
        sleep(Duration::from_millis(1)).await;
        for _ in 0..2 {
            let outcome = lock.lock_timeout(3 * timing.lease).await;
            assert!(matches!(outcome, Err(LockError::Timeout { .. })));
        }
    });
    let said = said.await;
    assert!(said.saw("WARN", "this task waits for a lock that it holds itself"), "{:?}", said.lines());
    assert_eq!(told(&said), 1, "{:?}", said.lines());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_told_once() {
    let timing = Timing::default();
    wait_for_itself(client(timing).lock("x"), timing).await;
    wait_for_itself(quorum(timing).lock("x"), timing).await;
}

async fn wait_for_a_task(lock: FairLock, timing: Timing) {
    let said = said_while(owner::scope(async {
        let _guard = lock.lock().await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let inner = lock.clone();
        let task = tokio::spawn(async move { inner.lock_timeout(3 * timing.lease).await.map(drop) });
        assert!(matches!(task.await.unwrap(), Err(LockError::Timeout { .. })));
    }));
    let said = said.await;
    assert!(said.saw("WARN", "a task outside of any scope waits for a lock of a scope"), "{:?}", said.lines());
    assert_eq!(told(&said), 1, "{:?}", said.lines());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_a_scope_spawned_and_waits_for_is_told() {
    let timing = Timing::default();
    wait_for_a_task(client(timing).lock("x"), timing).await;
    wait_for_a_task(quorum(timing).lock("x"), timing).await;
}

async fn branches(lock: FairLock, timing: Timing) {
    let said = said_while(async {
        let section = async |before: Duration, within: Duration| {
            sleep(before).await;
            let guard = lock.lock().await.unwrap();
            sleep(within).await;
            guard.unlock().await.unwrap();
        };
        let long = 4 * timing.lease;
        // At once; and one after the other, while the first one's work takes many steps.
        tokio::join!(section(Duration::ZERO, long), section(Duration::ZERO, long));
        let brief = timing.lease - Duration::from_millis(500);
        tokio::join!(section(Duration::ZERO, brief), section(timing.poll_interval / 3, brief));
        tokio::join!(
            async {
                let guard = lock.lock().await.unwrap();
                let until = Instant::now() + long;
                while Instant::now() < until {
                    sleep(timing.poll_interval / 2).await;
                }
                guard.unlock().await.unwrap();
            },
            section(timing.poll_interval / 3, Duration::ZERO)
        );
    });
    assert_eq!(told(&said.await), 0);
}

/// Neither branch waits for itself, whichever comes first, and in whatever order they run.
#[tokio::test(start_paused = true)]
async fn independent_branches_of_one_task_are_not_told() {
    let timing = Timing::default();
    branches(client(timing).lock("x"), timing).await;
    branches(quorum(timing).lock("x"), timing).await;
}

/// A watcher that starts just as the deadline passes reads the clock twice: before and after it. That moment lasts
/// some hundred nanoseconds, so this tries it many times, from slightly before to slightly after.
#[tokio::test]
async fn a_watcher_that_begins_while_the_deadline_passes_hears_of_it() {
    const TRIALS: u64 = 1500;
    crate::support::limit(async {
        let lease = Duration::from_millis(1500);
        let client = client(Timing::default());
        let mut guards = Vec::new();
        for number in 0..TRIALS {
            let begun = std::time::Instant::now();
            guards.push(client.lock(format!("x {number}")).with_lease(lease).lock().await.unwrap());
            // Leaves enough time between the deadlines for each watcher.
            while begun.elapsed() < Duration::from_micros(300) {
                std::hint::spin_loop();
            }
        }
        let mut tokens = Vec::new();
        for (number, guard) in (0..TRIALS).zip(&guards) {
            // The watching task runs up to 20 µs after this.
            let ahead = Duration::from_nanos(number % 500 * 40);
            while guard.valid_for() > ahead {
                std::hint::spin_loop();
            }
            tokens.push(guard.ended_token());
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let deaf = tokens.iter().filter(|token| !token.is_cancelled()).count();
        assert_eq!(deaf, 0, "of {TRIALS} watchers");
        drop(guards);
        client.close().await.unwrap();
    })
    .await;
}
