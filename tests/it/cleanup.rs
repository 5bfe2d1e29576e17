//! P5: a wait that ends early leaves nothing behind. P10: nothing leaks, nothing hangs.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fairlock::{LockClient, LockError, Unlocked};
use tokio::runtime::Handle;

use crate::support::{Random, Store, Timing, eventually, on_each_store};

const NAME: &str = "p5";

/// What a client with nothing to do consists of.
struct Quiet {
    tasks: usize,
}

impl Quiet {
    fn of(handle: &Handle) -> Self {
        Self { tasks: handle.metrics().num_alive_tasks() }
    }

    async fn is_back(&self, client: &LockClient) {
        let status = client.lock(NAME);
        eventually("no ticket is left", async || status.status().await.unwrap().waiters == 0).await;
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() <= self.tasks).await;
    }
}

/// A hold on the lock and the means to begin waits for it.
async fn busy(store: &Store) -> (LockClient, Quiet) {
    let client = store.connect(Timing::default()).await;
    // Once through everything, so that what stays for ever is there.
    client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
    let quiet = Quiet::of(&Handle::current());
    (client, quiet)
}

/// Polls it so many times, with the runtime's work in between, then drops it.
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
async fn p5_dropped_after_each_of_its_first_200_polls() {
    on_each_store(async |store| {
        let (client, quiet) = busy(store).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let held = Quiet::of(&Handle::current());
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).lock(), polls).await;
        }
        held.is_back(&client).await;
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Freed);
        // The same on a free lock, where the dropped future may be about to own it.
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).lock(), polls).await;
        }
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        quiet.is_back(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_dropped_at_random_times_against_a_busy_lock() {
    on_each_store(async |store| {
        let (client, quiet) = busy(store).await;
        let churn = tokio::spawn(keep_busy(client.clone()));
        let mut random = Random::new(5);
        for _ in 0..500 {
            let waits = (0..10).map(|_| {
                let (lock, micros) = (client.lock(NAME), random.below(3000));
                async move { tokio::time::timeout(Duration::from_micros(micros), lock.lock()).await.map(drop) }
            });
            futures::future::join_all(waits).await;
        }
        churn.abort();
        let _ = churn.await;
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        quiet.is_back(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

/// The lock changes hands all the time.
async fn keep_busy(client: LockClient) {
    loop {
        let guard = client.lock(NAME).lock().await.unwrap();
        tokio::time::sleep(Duration::from_micros(200)).await;
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_timed_out_at_the_moment_of_release() {
    on_each_store(async |store| {
        let (client, quiet) = busy(store).await;
        let lock = client.lock(NAME);
        let (mut acquired, mut timed_out) = (0, 0);
        for round in 0..5000u64 {
            let holder = lock.lock().await.unwrap();
            // Around the time that the release takes, a little more or less each round.
            let timeout = Duration::from_micros(100 + 7 * (round % 200));
            let (outcome, _) = tokio::join!(lock.lock_timeout(timeout), async {
                tokio::time::sleep(timeout.saturating_sub(Duration::from_micros(round % 900))).await;
                holder.unlock().await.unwrap()
            });
            match outcome {
                Ok(guard) => {
                    acquired += 1;
                    guard.unlock().await.unwrap();
                }
                // Out of time in the queue, or before the server's first answer.
                Err(LockError::Timeout | LockError::Unreachable(_)) => timed_out += 1,
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert!(acquired > 0 && timed_out > 0, "both happened: {acquired} and {timed_out}");
        quiet.is_back(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p5_a_cancelled_try_lock_leaves_nothing() {
    on_each_store(async |store| {
        let (client, quiet) = busy(store).await;
        for polls in 0..200 {
            drop_after_polls(client.lock(NAME).try_lock(), polls % 20).await;
        }
        eventually("it is free again", async || !client.lock(NAME).is_locked().await.unwrap()).await;
        quiet.is_back(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p5_a_panic_while_waiting_leaves_nothing() {
    on_each_store(async |store| {
        let (client, quiet) = busy(store).await;
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
        quiet.is_back(&client).await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p10_close_ends_everything_and_says_so() {
    on_each_store(async |store| {
        let before = Quiet::of(&Handle::current());
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
        assert!(!other.lock("a").is_locked().await.unwrap(), "what it held is free");
        assert_eq!(other.lock("b").status().await.unwrap().waiters, 0, "where it waited it is gone");
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
async fn p10_a_client_that_is_dropped_takes_its_connection_and_tasks_along() {
    on_each_store(async |store| {
        let before = Quiet::of(&Handle::current());
        let client = store.connect(Timing::default()).await;
        let guard = client.lock("a").lock().await.unwrap();
        drop(client);
        assert!(guard.is_valid(), "the guard keeps what it needs");
        guard.unlock().await.unwrap();
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() <= before.tasks).await;
    })
    .await;
}
