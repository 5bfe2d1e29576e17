//! P3: first in, first out among live waiters, across processes. `try_lock` never overtakes.

use std::cell::RefCell;
use std::time::Duration;

use fairlock::{LockClient, LockError, LockGuard};
use futures::future::{join, join_all};
use nix::sys::signal::Signal;

use crate::support::{Embedded, Server, Timing, Worker, eventually, in_virtual_time, limit, on_a_server};

const NAME: &str = "fifo";

/// A holder, and waiters in four processes that joined the queue in the order of their numbers.
struct Line {
    server: Server,
    client: LockClient,
    holder: LockGuard,
    workers: Vec<Worker>,
}

impl Line {
    async fn of(waiters: usize) -> Self {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let mut workers = Vec::new();
        for _ in 0..4 {
            workers.push(Worker::start(&server.url()).await);
        }
        let mut line = Self { server, client, holder, workers };
        for waiter in 0..waiters {
            line.join(waiter, &format!("lock {NAME} {waiter}")).await;
        }
        line
    }

    /// Waiter `n` is in process `n % 4`. Returns once the server counts it, so that the order is known.
    async fn join(&mut self, waiter: usize, command: &str) {
        let before = self.client.lock(NAME).status().await.unwrap().queue.len();
        self.workers[waiter % 4].tell(command).await;
        self.wait_for_queue(before + 1).await;
    }

    async fn wait_for_queue(&self, length: usize) {
        let lock = self.client.lock(NAME);
        eventually("the queue has the expected length", async || lock.status().await.unwrap().queue.len() == length)
            .await;
    }

    /// Releases the lock and checks that these waiters get it, in this order.
    async fn serve(self, expected: impl IntoIterator<Item = usize>) {
        let Self { server, client, holder, mut workers } = self;
        let mut token = holder.token();
        holder.unlock().await.unwrap();
        for waiter in expected {
            let worker = &mut workers[waiter % 4];
            let given: u64 = worker.expect(&format!("held {waiter}")).await.parse().unwrap();
            assert!(given > token, "P2: {given} after {token}");
            token = given;
            worker.tell(&format!("unlock {waiter}")).await;
            worker.expect(&format!("unlocked {waiter} Ok(Freed)")).await;
        }
        drop(workers);
        client.close().await.unwrap();
        server.assert_clean_but_for_the_dead().await;
    }
}

#[tokio::test]
async fn p3_sixty_four_waiters_over_four_processes_are_served_in_order() {
    limit(async { Line::of(64).await.serve(0..64).await }).await;
}

/// The server pauses for longer than `waiter_ttl`, but too briefly for the clients to drop their connections. It reads
/// the holder's release first.
#[tokio::test]
async fn p3_a_server_that_stood_still_keeps_the_order() {
    on_a_server(async |server| {
        let timing = Timing::relaxed();
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(timing.connect(&server.url()).await);
        }
        let first = clients[0].lock(NAME);
        let holder = first.lock().await.unwrap();
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        for waiter in 0..12 {
            let (lock, served) = (clients[waiter % 4].lock(NAME), served.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                served.send(waiter).unwrap();
                guard.unlock().await.unwrap();
            });
            eventually("it waits", async || first.status().await.unwrap().waiters == waiter as u64 + 1).await;
        }
        drop(served);
        server.pause();
        let unlocking = tokio::spawn(holder.unlock());
        tokio::time::sleep(timing.waiter_ttl + Duration::from_millis(1500)).await;
        server.resume();
        unlocking.await.unwrap().unwrap();
        for waiter in 0..12 {
            assert_eq!(order.recv().await, Some(waiter));
        }
        for client in clients {
            client.close().await.unwrap();
        }
    })
    .await;
}

/// A client's waiters lose their places, for example with the queue. They must ask again in their order, even in a
/// runtime with several threads, and even if a poll verifies only some of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_waiters_that_lost_their_places_ask_again_in_their_order() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let lock = client.lock(NAME);
        let holder = lock.lock().await.unwrap();
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        for waiter in 0..40 {
            let (lock, served) = (lock.clone(), served.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                served.send(waiter).unwrap();
                guard.unlock().await.unwrap();
            });
            eventually("it waits", async || waiting(&client).await == waiter + 1).await;
        }
        drop(served);
        let mut redis = server.connection().await;
        let keys = ["fairlock:{n:fifo}:queue", "fairlock:{n:fifo}:deadlines"];
        redis::cmd("DEL").arg(&keys).exec_async(&mut redis).await.unwrap();
        eventually("all wait again", async || waiting(&client).await == 40).await;
        holder.unlock().await.unwrap();
        let mut all = Vec::new();
        while let Some(waiter) = order.recv().await {
            all.push(waiter);
        }
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        client.close().await.unwrap();
    })
    .await;
}

async fn waiting(client: &LockClient) -> u64 {
    client.lock(NAME).status().await.unwrap().waiters
}

#[tokio::test]
async fn p3_a_cancelled_waiter_does_not_change_the_order() {
    limit(async {
        let mut line = Line::of(12).await;
        line.workers[1].tell("cancel 5").await;
        line.workers[1].expect("cancelled 5").await;
        line.wait_for_queue(11).await;
        line.serve((0..12).filter(|waiter| *waiter != 5)).await;
    })
    .await;
}

#[tokio::test]
async fn p3_the_waiters_of_a_killed_process_cost_the_others_nothing() {
    limit(async {
        let line = Line::of(16).await;
        line.workers[2].signal(Signal::SIGKILL);
        // Its connection is closed, so the script skips its waiters at once, and not after their waiter_ttl.
        line.serve((0..16).filter(|waiter| waiter % 4 != 2)).await;
    })
    .await;
}

/// Queues 12 waiters of four clients, releases the lock after `wait`, and returns the waiters in the order of service.
async fn served_after(server: &Embedded, timeout_of: impl Fn(usize) -> Option<Duration>, wait: Duration) -> Vec<usize> {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(server.connect(Timing::default()).await);
    }
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let first = clients[0].lock(NAME);
    let holder = first.lock().await.unwrap();
    for waiter in 0..12 {
        let (lock, served) = (clients[waiter % 4].lock(NAME), served.clone());
        let timeout = timeout_of(waiter).unwrap_or(Duration::MAX);
        tokio::spawn(async move {
            match lock.lock_timeout(timeout).await {
                Ok(guard) => {
                    served.send(waiter).unwrap();
                    guard.unlock().await.unwrap();
                }
                Err(error) => assert!(matches!(error, LockError::Timeout { .. }), "{error:?}"),
            }
        });
        eventually("it waits", async || first.status().await.unwrap().waiters == waiter as u64 + 1).await;
    }
    drop(served);
    tokio::time::sleep(wait).await;
    holder.unlock().await.unwrap();
    let mut all = Vec::new();
    while let Some(waiter) = order.recv().await {
        all.push(waiter);
    }
    all
}

#[tokio::test]
async fn p3_a_waiter_that_times_out_does_not_change_the_order() {
    in_virtual_time(async |server| {
        let limit = Duration::from_secs(1);
        let served = served_after(server, |waiter| (waiter == 6).then_some(limit), 2 * limit).await;
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]);
    })
    .await;
}

/// Only polls and renewals keep the waiters in the queue.
#[tokio::test]
async fn p3_the_order_is_kept_during_a_hold_longer_than_every_timeout() {
    in_virtual_time(async |server| {
        let served = served_after(server, |_| None, 100 * Timing::default().lease).await;
        assert_eq!(served, (0..12).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn p3_try_lock_never_overtakes() {
    limit(async {
        let mut line = Line::of(2).await;
        assert!(line.client.lock(NAME).try_lock().await.unwrap().is_busy(), "held");
        line.workers[3].tell(&format!("try {NAME} t")).await;
        line.workers[3].expect("tried t false").await;
        // The lock becomes free while two clients wait: the same script grants it to the first (R6).
        assert!(line.client.lock(NAME).force_unlock().await.unwrap());
        assert!(line.client.lock(NAME).try_lock().await.unwrap().is_busy(), "the first waiter has it");
        line.workers[0].expect("held 0").await;
    })
    .await;
}

#[tokio::test]
async fn p3_a_guard_dropped_and_locked_again_goes_to_the_end_of_the_queue() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let lock = client.lock(NAME);
        // The owner in the scope is the same, but after the drop it cannot re-enter a hold.
        fairlock::owner::scope(async {
            let guard = lock.lock().await.unwrap();
            let mut worker = Worker::start(&server.url()).await;
            worker.tell(&format!("lock {NAME} w")).await;
            eventually("the worker waits", async || lock.status().await.unwrap().queue.len() == 1).await;
            drop(guard);
            let (again, ()) = tokio::join!(lock.lock(), async {
                worker.expect("held w").await;
                worker.tell("unlock w").await;
                worker.expect("unlocked w Ok(Freed)").await;
            });
            again.unwrap().unlock().await.unwrap();
        })
        .await;
    })
    .await;
}

/// The order in which the server serves calls of one task. They start `apart` from each other; `holder` has the lock.
async fn served_in_one_task(holder: &LockClient, client: &LockClient, calls: u32, apart: Duration) -> Vec<u32> {
    let held = holder.lock(NAME).lock().await.unwrap();
    let served = RefCell::new(Vec::new());
    let calling = (0..calls).map(async |number| {
        if !apart.is_zero() {
            tokio::time::sleep(number * apart).await;
        }
        let guard = client.lock(NAME).lock().await.unwrap();
        served.borrow_mut().push(number);
        guard.unlock().await.unwrap();
    });
    let frees = async {
        let status = async || holder.lock(NAME).status().await.unwrap();
        eventually("they wait", async || status().await.waiters == u64::from(calls)).await;
        held.unlock().await.unwrap();
    };
    join(join_all(calling), frees).await;
    served.into_inner()
}

/// After about 128 operations tokio makes all futures of a task wait for its next turn, and then reorders them.
#[tokio::test]
async fn p3_calls_of_one_task_are_served_in_the_order_of_their_first_polls() {
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let served = served_in_one_task(&client, &client, 200, Duration::ZERO).await;
        assert!(served.is_sorted(), "{served:?}");
    })
    .await;
}

#[tokio::test]
async fn p3_a_call_in_a_task_that_has_done_much_asks_before_a_later_one() {
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let (first, second) = (client.lock(NAME), client.lock(NAME));
        let first = tokio::spawn(async move {
            let (sender, mut items) = tokio::sync::mpsc::unbounded_channel();
            (0..128).for_each(|item| sender.send(item).unwrap());
            for _ in 0..128 {
                items.recv().await;
            }
            first.lock().await.unwrap()
        });
        let second = tokio::spawn(async move { second.lock().await.unwrap() });
        eventually("they wait", async || client.lock(NAME).status().await.unwrap().waiters == 2).await;
        holder.unlock().await.unwrap();
        let first = tokio::time::timeout(Duration::from_secs(5), first).await.expect("it is first").unwrap();
        first.unlock().await.unwrap();
        second.await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// The client knows the server's time from the start, as a client of a real server does. Otherwise the server would
/// refuse its first request as late (R2).
#[tokio::test]
async fn p3_the_first_calls_of_an_embedded_client_have_their_order() {
    in_virtual_time(async |server| {
        let holder = server.open(LockClient::builder()).await;
        let client = server.open(LockClient::builder()).await;
        let served = served_in_one_task(&holder, &client, 3, Duration::from_millis(2)).await;
        assert_eq!(served, [0, 1, 2]);
        let newcomer = server.open(LockClient::builder()).await;
        let limit = Duration::from_millis(1);
        newcomer.lock(NAME).lock_timeout(limit).await.expect("it is free").unlock().await.unwrap();
        for client in [holder, client, newcomer] {
            client.close().await.unwrap();
        }
    })
    .await;
}
