//! P5: a wait that ends early leaves nothing. P10: no leaked keys or tasks, and nothing hangs.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fairlock::{LockClient, LockError, Unlocked};
use tokio::runtime::Handle;

use crate::support::{LONGEST_WAIT, Random, Store, Timing, eventually, in_virtual_time, on_a_server, on_each_store};

const NAME: &str = "p5";

/// The number of tasks at one moment. It must not be larger after all work.
struct Baseline {
    tasks: usize,
}

impl Baseline {
    fn of(handle: &Handle) -> Self {
        Self { tasks: handle.metrics().num_alive_tasks() }
    }

    /// Waits until the queue of `NAME` is empty and the added tasks have ended.
    async fn is_restored(&self, client: &LockClient) {
        let status = client.lock(NAME);
        eventually("no ticket is left", async || status.status().await.unwrap().waiters == 0).await;
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() <= self.tasks).await;
    }
}

/// A client that has used the lock once, and its tasks while idle.
async fn idle_client(store: &Store) -> (LockClient, Baseline) {
    // The client must remove leftovers: they would live longer than `eventually` waits.
    let client = store.connect(Timing { waiter_ttl: 2 * LONGEST_WAIT, ..Timing::default() }).await;
    // The first use starts the tasks that live as long as the client.
    client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
    let idle = Baseline::of(&Handle::current());
    (client, idle)
}

/// Polls the future `polls` times, with other tasks between the polls, then drops it.
async fn drop_after_polls(future: impl Future, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn p5_a_lock_call_dropped_after_any_of_its_first_200_polls() {
    on_each_store(async |store| {
        let (client, idle) = idle_client(store).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let held = Baseline::of(&Handle::current());
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).lock(), polls).await;
        }
        held.is_restored(&client).await;
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        // The same on a free lock. Here the server may grant the lock just as the test drops the future (R9).
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).lock(), polls).await;
        }
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        idle.is_restored(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_lock_calls_dropped_at_random_times_on_a_busy_lock() {
    on_each_store(async |store| {
        let (client, idle) = idle_client(store).await;
        let busy = tokio::spawn(keep_busy(client.clone()));
        let mut random = Random::new(5);
        for _ in 0..500 {
            let waits = (0..10).map(|_| {
                let (lock, micros) = (client.lock(NAME), random.below(3000));
                async move { tokio::time::timeout(Duration::from_micros(micros), lock.lock()).await.map(drop) }
            });
            futures::future::join_all(waits).await;
        }
        busy.abort();
        let _ = busy.await;
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        idle.is_restored(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

async fn keep_busy(client: LockClient) {
    loop {
        let guard = client.lock(NAME).lock().await.unwrap();
        tokio::time::sleep(Duration::from_micros(200)).await;
        guard.unlock().await.unwrap();
    }
}

/// Runs a wait and a release that end after times of their own. Returns whether the wait got the lock.
async fn end_both(client: &LockClient, timeout: Duration, release: Duration) -> bool {
    let lock = client.lock(NAME);
    let holder = lock.lock().await.unwrap();
    let (outcome, _) = tokio::join!(lock.lock_timeout(timeout), async {
        tokio::time::sleep(release).await;
        holder.unlock().await.unwrap()
    });
    match outcome {
        Ok(guard) => {
            guard.unlock().await.unwrap();
            true
        }
        // The timeout came while the wait was in the queue, or before the server's first answer.
        Err(LockError::Timeout { .. } | LockError::Unreachable(_)) => false,
        Err(error) => panic!("{timeout:?} {release:?}: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_timeout_at_the_moment_of_release() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let (mut acquired, mut timed_out) = (0, 0);
        for round in 0..1500u64 {
            // The two times are close, and their distance changes each round, so timeout and grant race in all orders
            // (R9).
            let timeout = Duration::from_micros(100 + 7 * (round % 200));
            let release = timeout.saturating_sub(Duration::from_micros(round % 900));
            *if end_both(&client, timeout, release).await { &mut acquired } else { &mut timed_out } += 1;
        }
        assert!(acquired > 0 && timed_out > 0, "one of the two never happened: {acquired}, {timed_out}");
        assert_eq!(client.lock(NAME).status().await.unwrap().waiters, 0);
        client.close().await.unwrap();
    })
    .await;
}

/// The same with each order of the timeout, the release, their requests and the replies: each way takes 3 ms.
#[tokio::test]
async fn p5_a_timeout_around_the_moment_of_release() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::default()).await;
        server.network.delay(Duration::from_millis(3));
        let (mut acquired, mut timed_out) = (0, 0);
        for timeout in (0..24).map(Duration::from_millis) {
            for release in (0..24).map(Duration::from_millis) {
                *if end_both(&client, timeout, release).await { &mut acquired } else { &mut timed_out } += 1;
                assert!(client.lock(NAME).try_lock().await.unwrap().into_result().is_ok(), "{timeout:?} {release:?}");
            }
        }
        assert!(acquired > 100 && timed_out > 100, "{acquired} {timed_out}");
        let lock = client.lock(NAME);
        eventually("no ticket is left", async || lock.status().await.unwrap().waiters == 0).await;
    })
    .await;
}

#[tokio::test]
async fn p5_a_dropped_try_lock_leaves_nothing() {
    on_each_store(async |store| {
        let (client, idle) = idle_client(store).await;
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).try_lock(), polls % 20).await;
        }
        eventually("it is free again", async || !client.lock(NAME).is_locked().await.unwrap()).await;
        idle.is_restored(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

/// The user lacks a right for a moment. The client did not repeat the leave, and its other calls kept the place alive.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn p5_a_leave_that_is_refused_as_a_whole_is_sent_again() {
    use crate::support::in_virtual_time;

    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let (lock, other) = (client.lock(NAME), client.lock(NAME));
        let given_up = tokio::spawn(async move { lock.lock().await.map(drop) });
        let kept = tokio::spawn(async move { other.lock().await });
        let waiters = async || client.lock(NAME).status().await.unwrap().waiters;
        eventually("both wait", async || waiters().await == 2).await;
        embedded.network.refuse(Some(REFUSED));
        given_up.abort();
        tokio::time::sleep(Duration::from_millis(100)).await;
        embedded.network.refuse(None);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(waiters().await, 1);
        holder.unlock().await.unwrap();
        kept.await.unwrap().unwrap().unlock().await.unwrap();
    })
    .await;
}

#[cfg(feature = "embedded")]
const REFUSED: &str = "NOPERM this user has no permissions to run the 'evalsha' command";

#[cfg(feature = "embedded")]
fn wait_for_it(client: &LockClient, calls: u64) -> Vec<tokio::task::JoinHandle<Result<(), LockError>>> {
    let wait = |_| {
        let lock = client.lock(NAME);
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    (0..calls).map(wait).collect()
}

/// The client sent each leave again on its own, about once a second.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn many_leaves_that_are_refused_are_sent_again_a_few_at_a_time() {
    use crate::support::{Collect, in_virtual_time};

    const CALLS: u64 = 2000;
    in_virtual_time(async |embedded| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = embedded.open(LockClient::builder()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let waiting = wait_for_it(&client, CALLS);
        let waiters = async || client.lock(NAME).status().await.unwrap().waiters;
        eventually("all wait", async || waiters().await == CALLS).await;
        embedded.network.refuse(Some(REFUSED));
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let refused = embedded.network.refused();
        assert!(refused < 2 * CALLS, "{refused} in ten seconds");
        assert_eq!(said.lines().iter().filter(|line| line.contains("could not leave the queue yet")).count(), 1);
        embedded.network.refuse(None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(waiters().await, 0);
        holder.unlock().await.unwrap();
    })
    .await;
}

/// The client gave the leaves up after the lease of their calls, while its other calls kept the places alive.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn p5_refused_leaves_are_sent_again_for_as_long_as_their_places_live() {
    use crate::support::in_virtual_time;

    const CALLS: u64 = 100;
    let ms = Duration::from_millis;
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder().lease(ms(4000)).operation_timeout(ms(1000))).await;
        let another = embedded.open(LockClient::builder()).await;
        let holder = another.lock(NAME).lock().await.unwrap();
        let waiting = wait_for_it(&client, CALLS);
        let waiters = async || another.lock(NAME).status().await.unwrap().waiters;
        eventually("all wait", async || waiters().await == CALLS).await;
        embedded.network.refuse(Some(REFUSED));
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for _ in 0..15 {
            // Between two tries of the leaves.
            tokio::time::sleep(ms(470)).await;
            embedded.network.refuse(None);
            let lock = client.lock(NAME);
            let (outcome, ()) = tokio::join!(lock.lock_timeout(ms(30)), async {
                tokio::time::sleep(ms(10)).await;
                embedded.network.refuse(Some(REFUSED));
            });
            outcome.unwrap_err();
            tokio::time::sleep(ms(500)).await;
        }
        embedded.network.refuse(None);
        tokio::time::sleep(ms(3000)).await;
        assert_eq!(waiters().await, 0);
        holder.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p5_a_panic_while_waiting_leaves_nothing() {
    on_each_store(async |store| {
        let (client, idle) = idle_client(store).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let lock = client.lock(NAME);
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = lock.lock() => {}
                () = tokio::time::sleep(Duration::from_millis(50)) => panic!("while it waits"),
            }
        });
        assert!(task.await.unwrap_err().is_panic());
        let lock = client.lock(NAME);
        eventually("no ticket is left", async || lock.status().await.unwrap().waiters == 0).await;
        holder.unlock().await.unwrap();
        idle.is_restored(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p10_close_ends_waits_and_holds_and_reports_closed() {
    on_each_store(async |store| {
        let before = Baseline::of(&Handle::current());
        let (client, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let guard = client.lock("a").lock().await.unwrap();
        let held_elsewhere = other.lock("b").lock().await.unwrap();
        let waiting = {
            let lock = client.lock("b");
            tokio::spawn(async move { lock.lock().await.map(drop) })
        };
        eventually("it waits", async || other.lock("b").status().await.unwrap().queue.len() == 1).await;
        client.close().await.unwrap();
        assert!(matches!(waiting.await.unwrap(), Err(LockError::Closed)));
        assert!(!guard.is_valid());
        assert_eq!(guard.lost().await, fairlock::Loss::Closed);
        assert!(matches!(client.lock("a").lock().await, Err(LockError::Closed)));
        assert!(!other.lock("a").is_locked().await.unwrap(), "its hold was released");
        assert_eq!(other.lock("b").status().await.unwrap().waiters, 0, "its ticket was removed");
        client.close().await.unwrap();
        drop(guard);
        held_elsewhere.unlock().await.unwrap();
        other.close().await.unwrap();
        drop((client, other));
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() <= before.tasks).await;
    })
    .await;
}

#[tokio::test]
async fn p10_a_dropped_client_ends_its_tasks_once_the_last_guard_is_gone() {
    on_each_store(async |store| {
        let before = Baseline::of(&Handle::current());
        let client = store.connect(Timing::default()).await;
        let guard = client.lock("a").lock().await.unwrap();
        drop(client);
        assert!(guard.is_valid(), "the guard keeps what it needs");
        guard.unlock().await.unwrap();
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() <= before.tasks).await;
    })
    .await;
}
