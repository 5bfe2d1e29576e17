//! Semaphores: the promises restated for permits, and what users expect from Redisson's RPermitExpirableSemaphore and
//! Curator's InterProcessSemaphoreV2.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{FairSemaphore, HoldError, LockClient, LockError, Loss, RequestError, UnlockError, owner};
use futures::future::join_all;
use futures::{FutureExt, TryStreamExt};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{
    Collect, Embedded, Inside, Proxy, Random, Server, Timing, Worker, counter, eventually, in_virtual_time, limit,
    on_a_server, on_each_store, on_several_in_virtual_time, pass_gate, under_lost_replies,
};

const NAME: &str = "gate";
const SECOND: Duration = Duration::from_secs(1);

/// The permits in use, and the waiters.
async fn counts(gate: &FairSemaphore) -> (u64, u64) {
    let status = gate.status().await.unwrap();
    (status.used, status.waiters)
}

async fn wait_for_waiters(gate: &FairSemaphore, waiters: u64) {
    eventually("they wait", async || counts(gate).await.1 == waiters).await;
}

/// Waits for that many permits, sends its number, and releases the permits.
fn wait_in_line(
    gate: &FairSemaphore,
    permits: u32,
    number: usize,
    order: &mpsc::UnboundedSender<usize>,
) -> JoinHandle<()> {
    let (gate, order) = (gate.clone(), order.clone());
    tokio::spawn(async move {
        let permit = gate.acquire_many(permits).await.unwrap();
        order.send(number).unwrap();
        permit.release().await.unwrap();
    })
}

/// The greatest sum of the lines so far.
fn most_at_once(path: &str) -> i64 {
    let (mut sum, mut most) = (0, 0);
    for line in std::fs::read_to_string(path).unwrap().lines().filter_map(|line| line.get(1..).map(|_| line)) {
        // The first line is the number 0 of `counter`, which has no sign.
        if line.starts_with(['+', '-']) {
            sum += line.parse::<i64>().unwrap();
            most = most.max(sum);
        }
    }
    assert_eq!(sum, 0, "each that came has left");
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_valid_weights_never_exceed_the_limit_over_several_processes() {
    limit(async {
        let server = Server::start().await;
        let file = counter();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "").unwrap();
        let mut workers = Vec::new();
        for _ in 0..4 {
            workers.push(Worker::start(&server.url()).await);
        }
        for (worker, weight) in workers.iter_mut().zip([1, 2, 3, 5]) {
            worker.tell(&format!("gate {NAME} 5 {weight} {path} 60")).await;
        }
        let client = Timing::default().connect(&server.url()).await;
        let here = join_all((0..6).map(|_| pass_gate(&client, (NAME, 5), 1, path, 60)));
        here.await;
        for worker in &mut workers {
            worker.expect("passed").await;
        }
        assert_eq!(most_at_once(path), 5);
        drop(workers);
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// Lost replies and connections, callers that give up, and permits that shrink or drop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_valid_weights_never_exceed_the_limit_under_faults() {
    let works = |client: LockClient, inside: Arc<Inside>, mut random: Random| async move {
        let gate = client.semaphore(NAME, 4);
        for _ in 0..60 {
            let weight = 1 + u32::try_from(random.below(3)).unwrap();
            let timeout = Duration::from_millis(random.below(400));
            if let Ok(permit) = gate.acquire_many_timeout(weight, timeout).await {
                inside.section(permit.held(), weight, 4, Duration::from_micros(random.below(3000))).await;
                match random.below(4) {
                    0 => drop(permit),
                    1 => drop(permit.shrink_to(1).await),
                    _ => drop(permit.release().await),
                }
            }
        }
    };
    under_lost_replies(works, async |client| {
        client.semaphore(NAME, 4).status().await.is_ok_and(|status| status.used == 0)
    })
    .await;
}

#[tokio::test]
async fn p2_tokens_differ_and_later_ones_are_greater() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let gate = client.semaphore(NAME, 3);
        let mut last = 0;
        for _ in 0..20 {
            let permit = gate.acquire().await.unwrap();
            assert!(permit.token() > last);
            last = permit.token();
            permit.release().await.unwrap();
        }
        let permits = join_all((0..3).map(|_| gate.acquire())).await;
        let mut tokens: Vec<_> = permits.iter().map(|permit| permit.as_ref().unwrap().token()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert!(tokens.len() == 3 && tokens[0] > last);
        drop(permits);
        client.close().await.unwrap();
    })
    .await;
}

/// A heavy waiter at the front blocks all later ones, whatever they want.
#[tokio::test]
async fn p3_weighted_order() {
    on_each_store(async |store| {
        let clients = [store.connect(Timing::relaxed()).await, store.connect(Timing::relaxed()).await];
        let gates = clients.each_ref().map(|client| client.semaphore(NAME, 4));
        let held = gates[0].acquire_many(4).await.unwrap();
        let (order, mut served) = mpsc::unbounded_channel();
        let mut waits = Vec::new();
        for (number, permits) in [1, 4, 1, 3, 2, 1].into_iter().enumerate() {
            waits.push(wait_in_line(&gates[number % 2], permits, number, &order));
            wait_for_waiters(&gates[0], number as u64 + 1).await;
        }
        assert!(gates[1].try_acquire().await.unwrap().is_busy(), "it would overtake");
        // One fits, and the heavy waiter of four after it does not: all others wait, although there is room for two.
        held.shrink_to(3).await.unwrap();
        assert_eq!(served.recv().await, Some(0));
        wait_for_waiters(&gates[0], 5).await;
        assert!(gates[1].try_acquire().await.unwrap().is_busy(), "a newcomer would overtake the heavy one");
        held.release().await.unwrap();
        let rest: Vec<_> =
            [served.recv().await, served.recv().await, served.recv().await].into_iter().flatten().collect();
        // The third and the fourth enter together, so either may report first.
        assert_eq!(rest[0], 1);
        assert!(rest[1..] == [2, 3] || rest[1..] == [3, 2], "{rest:?}");
        for wait in waits {
            wait.await.unwrap();
        }
        for client in clients {
            client.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn p3_turns_over_four_clients_come_in_their_order() {
    in_virtual_time(async |server| {
        server.network.delay(Duration::from_millis(1));
        let mut gates = Vec::new();
        for _ in 0..4 {
            gates.push(server.connect(Timing::relaxed()).await.semaphore(NAME, 1));
        }
        let held = gates[0].acquire().await.unwrap();
        let (order, mut served) = mpsc::unbounded_channel();
        for number in 0..64 {
            drop(wait_in_line(&gates[number % 4], 1, number, &order));
            wait_for_waiters(&gates[0], number as u64 + 1).await;
        }
        held.release().await.unwrap();
        for number in 0..64 {
            assert_eq!(served.recv().await, Some(number));
        }
    })
    .await;
}

/// Whatever happens to the replies, the permits in use are those of the living guards.
#[tokio::test]
async fn p4_used_is_the_sum_after_lost_replies() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let (client, other) =
            (Timing::default().connect(&proxy.url()).await, Timing::default().connect(&server.url()).await);
        let (gate, seen) = (client.semaphore(NAME, 10), other.semaphore(NAME, 10));
        let used = async || counts(&seen).await.0;
        proxy.lose_next_reply();
        let five = gate.acquire_many(5).await.unwrap();
        assert_eq!(used().await, 5);
        proxy.lose_next_reply();
        let three = gate.acquire_many(3).await.unwrap();
        assert_eq!(used().await, 8);
        proxy.lose_next_reply();
        five.shrink_to(2).await.unwrap();
        eventually("it has shrunk", async || used().await == 5).await;
        assert_eq!((five.weight(), five.is_valid()), (2, true));
        proxy.lose_next_reply();
        three.release().await.unwrap();
        assert_eq!(used().await, 2);
        proxy.lose_next_reply();
        drop(five);
        eventually("it is given back", async || used().await == 0).await;
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p5_calls_dropped_after_any_of_their_first_polls_leave_nothing() {
    on_each_store(async |store| {
        let client = store.connect(Timing { waiter_ttl: 60 * SECOND, ..Timing::default() }).await;
        let gate = client.semaphore(NAME, 3);
        let held = gate.acquire_many(2).await.unwrap();
        for polls in 0..60 {
            let mut call = Box::pin(gate.acquire_many(1 + polls % 3));
            for _ in 0..polls {
                if (&mut call).now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        eventually("nothing is left of them", async || counts(&gate).await == (2, 0)).await;
        held.release().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// If a heavy waiter at the front gives up, the waiters after it come in.
#[tokio::test]
async fn p5_a_heavy_waiter_that_gives_up_makes_room_at_once() {
    in_virtual_time(async |server| {
        let client = server
            .connect(Timing {
                poll_interval: 100 * SECOND,
                grant_ttl: 200 * SECOND,
                waiter_ttl: 500 * SECOND,
                lease: 400 * SECOND,
                ..Timing::relaxed()
            })
            .await;
        let gate = client.semaphore(NAME, 3);
        let held = gate.acquire().await.unwrap();
        for is_timed in [false, true] {
            let heavy = tokio::spawn({
                let gate = gate.clone();
                async move {
                    let longest = if is_timed { SECOND } else { 1000 * SECOND };
                    gate.acquire_many_timeout(3, longest).await.map(drop)
                }
            });
            wait_for_waiters(&gate, 1).await;
            let (order, mut served) = mpsc::unbounded_channel();
            let light = wait_in_line(&gate, 2, 7, &order);
            wait_for_waiters(&gate, 2).await;
            let began = Instant::now();
            if is_timed {
                assert!(matches!(heavy.await.unwrap(), Err(LockError::Timeout { .. })));
            } else {
                heavy.abort();
            }
            assert_eq!(served.recv().await, Some(7));
            assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
            light.await.unwrap();
        }
        held.release().await.unwrap();
    })
    .await;
}

/// Waiters pass an unreachable client at once, even if its request would not fit; a client that died silently costs a
/// `waiter_ttl`.
#[tokio::test]
async fn p6_dead_and_unreachable_waiters() {
    limit(async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let (client, gone) =
            (Timing::default().connect(&server.url()).await, Timing::default().connect(&proxy.url()).await);
        let (gate, far) = (client.semaphore(NAME, 2), gone.semaphore(NAME, 2));
        let held = gate.acquire().await.unwrap();
        let heavy = tokio::spawn(async move { far.acquire_many(2).await.map(std::mem::forget) });
        wait_for_waiters(&gate, 1).await;
        let (order, mut served) = mpsc::unbounded_channel();
        let light = wait_in_line(&gate, 1, 1, &order);
        wait_for_waiters(&gate, 2).await;
        proxy.refuse(true);
        proxy.reset_all();
        proxy.assert_no_connections().await;
        // No hand-over happens here: the next poll of the live client, or another call, finds that the first waiter is
        // unreachable.
        assert_eq!(served.recv().await, Some(1));
        light.await.unwrap();
        heavy.abort();
        held.release().await.unwrap();
    })
    .await;
    in_virtual_time(async |server| {
        let timing = Timing { grant_ttl: 2 * SECOND, ..Timing::default() };
        let (client, dies) = (server.connect(timing).await, server.connect(timing).await);
        let gate = client.semaphore(NAME, 2);
        let held = gate.acquire_many(2).await.unwrap();
        let dead: Vec<_> = (0..20)
            .map(|_| {
                let gate = dies.semaphore(NAME, 2);
                tokio::spawn(async move { gate.acquire().await.map(std::mem::forget) })
            })
            .collect();
        wait_for_waiters(&gate, 20).await;
        let (order, mut served) = mpsc::unbounded_channel();
        let lives = wait_in_line(&gate, 2, 1, &order);
        wait_for_waiters(&gate, 21).await;
        server.network.cut_off(dies.id());
        let freed = Instant::now();
        held.release().await.unwrap();
        assert_eq!(served.recv().await, Some(1));
        assert!(freed.elapsed() <= timing.waiter_ttl + timing.poll_interval, "{:?}", freed.elapsed());
        lives.await.unwrap();
        dead.iter().for_each(JoinHandle::abort);
        server.network.mend(dies.id());
    })
    .await;
}

/// Each holder has its own lease: live holders keep theirs, and the permits of the dead one come back when its lease
/// ends.
#[tokio::test]
async fn p7_a_dead_holder_among_living_ones() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let mut worker = Worker::start(&server.url()).await;
        let gate = client.semaphore(NAME, 3);
        let living = [gate.acquire().await.unwrap(), gate.acquire().await.unwrap()];
        worker.tell(&format!("permit {NAME} 3 1")).await;
        worker.expect("permitted 1").await;
        worker.signal(Signal::SIGKILL);
        let next = gate.acquire().await.unwrap();
        assert!(living.iter().all(|permit| permit.is_valid()), "renewed meanwhile");
        assert_eq!(counts(&gate).await.0, 3);
        next.release().await.unwrap();
        for permit in living {
            permit.release().await.unwrap();
        }
        drop(worker);
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
    in_virtual_time(async |server| {
        let waiter = LockClient::builder().poll_interval(20 * SECOND).grant_ttl(25 * SECOND).waiter_ttl(90 * SECOND);
        let (dies, lives) = (server.open(LockClient::builder()).await, server.open(waiter).await);
        let kept = lives.semaphore(NAME, 2).acquire().await.unwrap();
        let began = Instant::now();
        let lost = dies.semaphore(NAME, 2).with_lease(25 * SECOND).acquire().await.unwrap();
        server.network.cut_off(dies.id());
        let next = lives.semaphore(NAME, 2).acquire().await.unwrap();
        let took = began.elapsed();
        assert!(took >= 25 * SECOND && took < 25 * SECOND + SECOND / 10, "replaced after {took:?}");
        assert!(kept.is_valid() && !lost.is_valid());
        server.network.mend(dies.id());
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p8_each_holder_is_notified_of_its_own_loss() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let gate = client.semaphore(NAME, 4);
        let permits =
            [gate.acquire().await.unwrap(), gate.acquire().await.unwrap(), gate.acquire_many(2).await.unwrap()];
        assert!(gate.force_unlock_token(permits[1].token()).await.unwrap());
        assert_eq!(permits[1].lost().await, Loss::Forced);
        assert!(!gate.force_unlock_token(permits[1].token()).await.unwrap(), "it is gone");
        assert!(permits[0].is_valid() && permits[2].is_valid());
        let [first, second, third] = permits;
        assert!(matches!(second.release().await, Err(UnlockError::Lost(Loss::Forced))));
        store.flush().await;
        assert_eq!(first.lost().await, Loss::Gone);
        assert!(matches!(third.shrink_to(1).await, Err(HoldError::Lost(Loss::Gone))));
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p8_with_a_silent_server_each_loss_is_reported_at_its_local_deadline() {
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let gate = client.semaphore(NAME, 3);
        let short = gate.with_lease(5 * SECOND).acquire().await.unwrap();
        let long = gate.with_lease(20 * SECOND).acquire().await.unwrap();
        server.network.silence(true);
        let began = Instant::now();
        assert_eq!(short.lost().await, Loss::Expired);
        assert!(began.elapsed() <= 5 * SECOND && long.is_valid());
        assert_eq!(long.lost().await, Loss::Expired);
        assert!(began.elapsed() <= 20 * SECOND);
        server.network.silence(false);
    })
    .await;
}

#[tokio::test]
async fn p9_all_waiters_get_through_when_every_push_is_lost() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::default()).await;
        server.network.lose_messages(true);
        let gate = client.semaphore(NAME, 8);
        let held = gate.acquire_many(8).await.unwrap();
        let (order, mut served) = mpsc::unbounded_channel();
        // More waiters than one poll names, so the client has to look for all of them.
        let waits: Vec<_> = (0..40).map(|number| wait_in_line(&gate, 1, number, &order)).collect();
        wait_for_waiters(&gate, 40).await;
        let begun = Instant::now();
        held.release().await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
        for _ in 0..40 {
            assert!(served.recv().await.is_some());
        }
        // Eight at a time.
        assert!(begun.elapsed() < 6 * Timing::default().poll_interval, "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test]
async fn p9_waiting_costs_one_poll_for_all_in_each_interval() {
    in_virtual_time(async |server| {
        let timing = Timing { lease: Duration::from_secs(3600), ..Timing::default() };
        let client = server.connect(timing).await;
        let gate = client.semaphore(NAME, 4);
        let held = join_all((0..4).map(|_| gate.acquire())).await;
        let (order, _served) = mpsc::unbounded_channel();
        let waits: Vec<_> = (0..50).map(|number| wait_in_line(&gate, 1, number, &order)).collect();
        wait_for_waiters(&gate, 50).await;
        let before = server.network.calls();
        let intervals = 100;
        tokio::time::sleep(intervals * timing.poll_interval).await;
        let calls = server.network.calls() - before;
        assert!(calls.abs_diff(u64::from(intervals)) <= 1, "{calls} scripts in {intervals} intervals");
        drop(held);
        for wait in waits {
            wait.await.unwrap();
        }
    })
    .await;
}

/// A gate that never got a limit for all clients leaves only a token, which expires; `on_each_store` checks this. A set
/// limit stays until an operator removes it.
#[tokio::test]
async fn p10_a_set_number_stays_and_all_else_goes() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let gate = client.semaphore(NAME, 5);
        gate.set_permits(Some(2)).await.unwrap();
        drop(gate.acquire_many(2).await.unwrap());
        eventually("it is given back", async || counts(&gate).await == (0, 0)).await;
        assert_eq!(gate.status().await.unwrap().set_permits, Some(2));
        gate.set_permits(None).await.unwrap();
        assert_eq!(gate.status().await.unwrap().set_permits, None);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn bad_numbers_of_permits_are_typed_errors_and_send_nothing() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::default()).await;
        let gate = client.semaphore(NAME, 3);
        let before = server.network.calls();
        for wanted in [0, 4, u32::MAX] {
            let error = gate.acquire_many(wanted).await.unwrap_err();
            assert!(matches!(error, LockError::Permits { permits: 3, .. }), "{error:?}");
            assert!(!error.is_busy() && !error.is_retryable());
            assert!(matches!(gate.try_acquire_many(wanted).await, Err(LockError::Permits { .. })));
        }
        assert!(matches!(
            client.semaphore(NAME, 0).acquire().await,
            Err(LockError::Permits { wanted: 1, permits: 0, .. })
        ));
        assert_eq!(server.network.calls(), before);
        let permit = gate.acquire_many(2).await.unwrap();
        for wanted in [0, 3] {
            assert_eq!(
                permit.shrink_to(wanted).await.unwrap_err().to_string(),
                format!("2 permits cannot shrink to {wanted}: release them, or acquire more by another call")
            );
        }
        assert_eq!(permit.weight(), 2);
        permit.release().await.unwrap();
        assert!(matches!(client.semaphore("", 1).acquire().await, Err(LockError::Name(_))));
        assert!(matches!(client.semaphore("", 1).status().await, Err(RequestError::Name(_))));
        assert_eq!(client.semaphore(NAME, u32::MAX).acquire_many(u32::MAX).await.unwrap().weight(), u32::MAX);
    })
    .await;
}

#[tokio::test]
async fn more_than_1024_holders_wait() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::relaxed()).await;
        let gate = client.semaphore(NAME, 5000);
        let mut permits = Vec::new();
        for _ in 0..1024 {
            permits.push(gate.acquire().await.unwrap());
        }
        assert!(gate.try_acquire().await.unwrap().is_busy(), "1,024 hold it");
        let (order, mut served) = mpsc::unbounded_channel();
        let waiting = wait_in_line(&gate, 1, 1, &order);
        wait_for_waiters(&gate, 1).await;
        assert_eq!(gate.status().await.unwrap().holding, 1024);
        permits.pop().unwrap().release().await.unwrap();
        assert_eq!(served.recv().await, Some(1));
        waiting.await.unwrap();
        drop(permits);
    })
    .await;
}

/// A lock, a semaphore and a read-write lock of one name are independent of each other.
#[tokio::test]
async fn one_name_used_as_three_kinds_at_once() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let (lock, gate, document) = (client.lock(NAME), client.semaphore(NAME, 2), client.rw_lock(NAME));
        let guard = lock.lock().await.unwrap();
        let permits = gate.acquire_many(2).await.unwrap();
        let writing = document.write().await.unwrap();
        assert!(client.semaphore(NAME, 2).try_acquire().await.unwrap().is_busy(), "its own holders keep others out");
        assert_eq!(lock.status().await.unwrap().holder.unwrap().token, guard.token());
        assert_eq!(gate.status().await.unwrap().used, 2);
        assert_eq!(document.status().await.unwrap().writer.unwrap().token, writing.token());
        // An operator ends one hold and sets a limit on another name: the others go on.
        assert!(lock.force_unlock().await.unwrap());
        gate.set_permits(Some(0)).await.unwrap();
        let again = lock.lock().await.unwrap();
        assert!(permits.is_valid() && writing.is_valid() && again.is_valid());
        let listed =
            client.list("*").map_ok(|listed| (listed.kind.to_string(), listed.name)).try_collect::<Vec<_>>().await;
        let mut listed = listed.unwrap();
        listed.sort();
        let kinds = ["a lock", "a read-write lock", "a semaphore"].map(|kind| (kind.to_owned(), NAME.to_owned()));
        assert_eq!(listed, kinds);
        gate.set_permits(None).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A rolling change of the configuration: each client's calls follow its own limit.
#[tokio::test]
async fn clients_with_different_limits_work_together_and_a_set_number_wins() {
    in_virtual_time(async |server| {
        let (one, two) = (server.connect(Timing::default()).await, server.connect(Timing::default()).await);
        let (few, many) = (one.semaphore(NAME, 2), two.semaphore(NAME, 4));
        let held = [few.acquire().await.unwrap(), few.acquire().await.unwrap()];
        assert!(few.try_acquire().await.unwrap().is_busy());
        let more = [many.acquire().await.unwrap(), many.acquire().await.unwrap()];
        assert!(many.try_acquire().await.unwrap().is_busy());
        assert_eq!(few.status().await.unwrap().named_permits, [2, 4]);
        few.set_permits(Some(5)).await.unwrap();
        let fifth = few.acquire().await.unwrap();
        assert!(many.try_acquire().await.unwrap().is_busy(), "five are out");
        few.set_permits(Some(3)).await.unwrap();
        assert!(more.iter().chain(&held).all(|permit| permit.is_valid()), "nothing is taken away");
        assert_eq!(counts(&few).await.0, 5);
        drop((held, more, fifth));
        eventually("all are given back", async || counts(&few).await.0 == 0).await;
        assert!(matches!(many.acquire_many(4).await, Err(LockError::Permits { wanted: 4, permits: 3, .. })));
        // What fits no longer waits.
        let three = many.acquire_many(3).await.unwrap();
        let (order, mut served) = mpsc::unbounded_channel();
        let waits = wait_in_line(&many, 3, 1, &order);
        wait_for_waiters(&many, 1).await;
        many.set_permits(Some(1)).await.unwrap();
        three.release().await.unwrap();
        tokio::time::sleep(60 * SECOND).await;
        assert!(served.try_recv().is_err(), "it does not fit now");
        many.set_permits(None).await.unwrap();
        assert_eq!(served.recv().await, Some(1));
        waits.await.unwrap();
    })
    .await;
}

/// A paused gate: no caller gets in until it is opened, even after a restart with the data. A loss of the data opens
/// it.
#[tokio::test]
async fn a_paused_gate_after_a_restart_with_and_without_data() {
    limit(async {
        let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let client = Timing::default().connect(&server.url()).await;
        let gate = client.semaphore(NAME, 2);
        gate.set_permits(Some(0)).await.unwrap();
        assert!(gate.try_acquire().await.unwrap().is_busy());
        let (order, mut served) = mpsc::unbounded_channel();
        let waits = wait_in_line(&gate, 1, 1, &order);
        wait_for_waiters(&gate, 1).await;
        server.restart_with_data().await;
        eventually("it is back", async || gate.status().await.is_ok_and(|status| status.waiters == 1)).await;
        assert_eq!(gate.status().await.unwrap().set_permits, Some(0));
        assert!(served.try_recv().is_err());
        gate.set_permits(None).await.unwrap();
        assert_eq!(served.recv().await, Some(1));
        waits.await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let gate = client.semaphore(NAME, 2);
        gate.set_permits(Some(0)).await.unwrap();
        let (order, mut served) = mpsc::unbounded_channel();
        let waits = wait_in_line(&gate, 1, 1, &order);
        wait_for_waiters(&gate, 1).await;
        server.restart().await;
        assert_eq!(served.recv().await, Some(1), "the number is lost with the data, as the page says");
        waits.await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// Users of Curator and Redisson acquire many permits at once, even in one task and in one scope. Permits are never
/// re-entered.
#[tokio::test]
async fn join_all_of_acquires_takes_a_permit_for_each() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let gate = client.semaphore(NAME, 3);
        owner::scope(async {
            let permits = join_all((0..3).map(|_| gate.acquire())).await;
            assert_eq!(counts(&gate).await.0, 3);
            assert!(gate.try_acquire().await.unwrap().is_busy());
            drop(permits);
            // More than there are: each waits for the permits of the waiters before it, which release them.
            let all = join_all((0..10).map(|_| async {
                let permit = gate.acquire().await.unwrap();
                tokio::task::yield_now().await;
                permit.release().await.unwrap();
            }));
            all.await;
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// In Redisson a permit has a lease, and an id with which anybody may release it. Here the token is the id.
#[tokio::test]
async fn a_permit_with_a_lease_ends_by_itself_and_can_be_taken_back_by_its_token() {
    in_virtual_time(async |server| {
        let (one, two) = (server.connect(Timing::default()).await, server.connect(Timing::default()).await);
        let gate = one.semaphore(NAME, 1).with_lease(2 * SECOND);
        let permit = gate.acquire().await.unwrap();
        let began = Instant::now();
        let next = two.semaphore(NAME, 1).acquire().await.unwrap();
        let took = began.elapsed();
        assert!(took > SECOND && took < 2 * SECOND + SECOND / 10, "{took:?}");
        assert!(matches!(permit.release().await, Err(UnlockError::Lost(Loss::Expired))));
        assert!(next.is_valid(), "the late release took nothing from it");
        let shown = one.semaphore(NAME, 1).status().await.unwrap().holders;
        assert!(one.semaphore(NAME, 1).force_unlock_token(shown[0].token).await.unwrap());
        assert_eq!(next.lost().await, Loss::Forced);
    })
    .await;
}

/// Like Curator: the permits of a closed client come back at once.
#[tokio::test]
async fn a_closed_client_gives_its_permits_back_and_leaves_the_queue() {
    on_each_store(async |store| {
        let (one, two) = (store.connect(Timing::relaxed()).await, store.connect(Timing::relaxed()).await);
        let gate = two.semaphore(NAME, 2);
        let permits =
            [one.semaphore(NAME, 2).acquire().await.unwrap(), one.semaphore(NAME, 2).acquire().await.unwrap()];
        let theirs = one.semaphore(NAME, 2);
        let waits = tokio::spawn(async move { theirs.acquire().await });
        wait_for_waiters(&gate, 1).await;
        one.close().await.unwrap();
        assert!(matches!(waits.await.unwrap(), Err(LockError::Closed)));
        assert_eq!(permits[0].lost().await, Loss::Closed);
        let all = gate.acquire_many(2).await.unwrap();
        all.release().await.unwrap();
        two.close().await.unwrap();
    })
    .await;
}

/// R15, for each permit: a server that takes over has older data, and brings released permits back.
#[tokio::test]
async fn p5_permits_that_an_older_file_brings_back_are_released_again() {
    limit(async {
        let lease = Timing { lease: 60 * SECOND, grant_ttl: 60 * SECOND, waiter_ttl: 60 * SECOND, ..Timing::relaxed() };
        let server = Server::start().await;
        let (client, other) = (lease.connect(&server.url()).await, lease.connect(&server.url()).await);
        let gate = client.semaphore(NAME, 3);
        let kept = gate.acquire().await.unwrap();
        let released = [gate.acquire().await.unwrap(), gate.acquire().await.unwrap()];
        server.save().await;
        for permit in released {
            permit.release().await.unwrap();
        }
        let since = Instant::now();
        server.restart_from_snapshot().await;
        let both = other.semaphore(NAME, 3).acquire_many(2).await.unwrap();
        assert!(since.elapsed() < 40 * SECOND, "it waited for the lease");
        assert!(kept.is_valid());
        both.release().await.unwrap();
        kept.release().await.unwrap();
        client.close().await.unwrap();
        other.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// If a future is not polled when its turn comes, it costs the others 250 ms, not a lease.
#[tokio::test]
async fn p6_a_future_that_rests_is_passed_over() {
    in_virtual_time(async |server: &Embedded| {
        server.network.delay(Duration::from_millis(1));
        let client = server.open(LockClient::builder()).await;
        let gate = client.semaphore(NAME, 2);
        let held = gate.acquire_many(2).await.unwrap();
        let mut rests = Box::pin(gate.acquire());
        assert!((&mut rests).now_or_never().is_none());
        wait_for_waiters(&gate, 1).await;
        assert!((&mut rests).now_or_never().is_none());
        let (order, mut served) = mpsc::unbounded_channel();
        let waits = wait_in_line(&gate, 2, 1, &order);
        wait_for_waiters(&gate, 2).await;
        let began = Instant::now();
        held.release().await.unwrap();
        assert_eq!(served.recv().await, Some(1));
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        waits.await.unwrap();
        rests.await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn several_masters_are_refused_at_the_first_call() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let all = servers.each_ref().map(|server| server.server.clone());
        let client = LockClient::builder().without_strict_restart().embedded(&all).unwrap();
        let gate = client.semaphore(NAME, 2).labelled("x").with_lease(5 * SECOND);
        assert_eq!(gate.name(), NAME);
        let error = gate.acquire().await.unwrap_err();
        assert!(matches!(error, LockError::SeveralServers) && !error.is_retryable());
        assert!(matches!(gate.status().await, Err(RequestError::SeveralServers)));
        assert!(matches!(gate.set_permits(None).await, Err(RequestError::SeveralServers)));
        assert!(matches!(client.rw_lock(NAME).write().await, Err(LockError::SeveralServers)));
        client.close().await.unwrap();
    })
    .await;
}

/// A task that waits for permits which it holds itself never gets them. A task that takes several of enough permits
/// does no harm.
#[tokio::test]
async fn a_task_that_waits_for_its_own_permits_is_warned_of() {
    let logged = Collect::default();
    let _log = logged.clone().here();
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let task = tokio::spawn(async move {
            let gate = client.semaphore(NAME, 3);
            let held = gate.acquire_many(2).await.unwrap();
            let others = client.semaphore(NAME, 3).with_lease(40 * SECOND).acquire().await.unwrap();
            // This task holds the other permit too, but the lease of that one ends.
            let second = gate.acquire().await.unwrap();
            assert!(!others.is_valid());
            let never = gate.acquire_many_timeout(2, 100 * SECOND).await;
            assert!(matches!(never, Err(LockError::Timeout { .. })));
            drop((held, second));
        });
        task.await.unwrap();
    })
    .await;
    assert!(logged.saw("WARN", "this task waits for permits while it holds others"));
}

/// R7: the client trusts a message even while its other calls keep getting permits. Each turn costs two requests.
#[tokio::test]
async fn hand_overs_cost_no_question() {
    in_virtual_time(async |server| {
        server.network.delay(Duration::from_millis(5));
        let client = server.open(LockClient::builder()).await;
        let before = server.network.calls();
        let turns = join_all((0..64).map(|number| {
            let gate = client.semaphore(NAME, 8);
            tokio::spawn(async move {
                for turn in 0..20 {
                    let permit = gate.acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_micros(100 * (number * 7 + turn * 13) % 1700)).await;
                    permit.release().await.unwrap();
                }
            })
        }));
        for turn in turns.await {
            turn.unwrap();
        }
        let calls = server.network.calls() - before;
        assert!(calls < 64 * 20 * 2 + 100, "{calls} requests for {} turns", 64 * 20);
    })
    .await;
}

/// `strict_restart`: a server that may have forgotten holds does not give them to others.
#[tokio::test(start_paused = true)]
async fn p1_a_server_that_was_started_anew_grants_no_permits_until_the_longest_lease_is_over() {
    let lease = 3 * SECOND;
    for loses_data in [true, false] {
        let server = fairlock::EmbeddedServer::new();
        let connect =
            || Timing { lease, ..Timing::default() }.builder().strict_restart(lease).embedded(&server).unwrap();
        let (one, two) = (connect(), connect());
        let permit = one.semaphore(NAME, 2).acquire_many(2).await.unwrap();
        server.shut_down();
        if loses_data {
            server.flush();
        }
        server.start_up();
        let restarted = Instant::now();
        let gate = two.semaphore(NAME, 2);
        let next = gate.acquire_timeout(lease).await;
        assert!(next.unwrap_err().to_string().contains("the server grants nothing for another"));
        assert!(gate.status().await.unwrap().frozen_for.is_some());
        if loses_data {
            assert!(!permit.is_valid());
        } else {
            permit.shrink_to(1).await.unwrap();
        }
        let next = gate.acquire().await.unwrap();
        let took = restarted.elapsed();
        assert!(took >= lease + SECOND && took < lease + Duration::from_millis(1100), "{took:?}");
        assert!(loses_data || permit.is_valid());
        next.release().await.unwrap();
    }
}

/// P8: without an answer the client keeps trying, but not for a hold that it has lost.
#[tokio::test]
async fn p8_what_shrinks_or_downgrades_while_its_lease_ends_is_lost() {
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder().operation_timeout(SECOND)).await;
        let lease = 4 * SECOND;
        let permit = client.semaphore(NAME, 2).with_lease(lease).acquire_many(2).await.unwrap();
        let writing = client.rw_lock("document").with_lease(lease).write().await.unwrap();
        tokio::time::sleep(lease - SECOND / 2).await;
        server.network.silence(true);
        let (shrunk, downgraded) = tokio::join!(permit.shrink_to(1), writing.downgrade());
        assert!(matches!(shrunk, Err(HoldError::Lost(Loss::Expired))), "{shrunk:?}");
        assert!(matches!(downgraded, Err(Loss::Expired)), "{downgraded:?}");
        server.network.silence(false);
    })
    .await;
}
