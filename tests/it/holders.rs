//! P7: a dead holder is replaced. P8: a holder is told when it lost the lock.

use std::time::{Duration, Instant};

use fairlock::{LockClient, LockGuard, Loss, UnlockError};
use nix::sys::signal::Signal;

use crate::support::{Proxy, Server, Timing, Worker, eventually, limit, on_a_server, on_each_store};

const NAME: &str = "held";

async fn worker_holds(server: &Server, lease: Duration) -> Worker {
    let mut worker = Worker::with_lease(&server.url(), lease).await;
    worker.tell(&format!("lock {NAME} 1")).await;
    worker.expect("held 1").await;
    worker
}

async fn held(client: &LockClient) -> LockGuard {
    client.lock(NAME).lock().await.unwrap()
}

/// What the server says of the lease, which is when the holder is to be replaced.
async fn lease_left(client: &LockClient) -> Duration {
    client.lock(NAME).status().await.unwrap().holder.expect("somebody holds it").lease_left
}

async fn p7_replaced_after(signal: Signal) {
    let server = Server::start().await;
    let client = Timing::default().connect(&server.url()).await;
    let worker = worker_holds(&server, Timing::default().lease).await;
    let lock = client.lock(NAME);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let lock = client.lock(NAME);
    eventually("we wait", async || lock.status().await.unwrap().queue.len() == 1).await;

    worker.signal(signal);
    // A renewal that was on its way may still extend it; then there are no more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = Instant::now();
    let allowed = lease_left(&client).await + Duration::from_millis(100);
    let guard = waiting.await.unwrap().unwrap();
    let took = asked.elapsed();
    // 100 ms is the promise; what a loaded machine adds to it is bounded by the next poll.
    let load = Timing::default().poll_interval;
    assert!(took < allowed + load, "replaced after {took:?}; the lease had {allowed:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn p7_a_killed_holder_is_replaced_when_its_lease_ends() {
    limit(p7_replaced_after(Signal::SIGKILL)).await;
}

#[tokio::test]
async fn p7_a_stopped_holder_is_replaced_when_its_lease_ends() {
    limit(p7_replaced_after(Signal::SIGSTOP)).await;
}

#[tokio::test]
async fn p8_a_holder_that_was_stopped_past_its_lease_knows_it_without_any_network() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let client = Timing::default().connect(&server.url()).await;
        let mut worker = Worker::start(&proxy.url()).await;
        worker.tell(&format!("lock {NAME} 1")).await;
        worker.expect("held 1").await;
        worker.signal(Signal::SIGSTOP);
        // Nothing it sends or is sent from here on arrives.
        proxy.blackhole(true);
        held(&client).await.unlock().await.unwrap();
        worker.tell("valid 1").await;
        worker.signal(Signal::SIGCONT);
        let mut said = [worker.hear().await, worker.hear().await];
        said.sort();
        assert_eq!(said, ["lost 1 Expired", "valid 1 false"]);
    })
    .await;
}

#[tokio::test]
async fn p8_the_local_deadline_tells_when_the_server_is_silent() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = held(&client).await;
        let (token, until) = (guard.lost_token(), Instant::now() + guard.valid_for());
        server.pause();
        token.cancelled().await;
        assert!(Instant::now() >= until, "not before its time");
        assert!(!guard.is_valid() && guard.valid_for().is_zero());
        assert_eq!(guard.lost().await, Loss::Expired);
        server.resume();
        assert!(matches!(guard.unlock().await, Err(UnlockError::Lost(Loss::Expired))));
        // R11: what it left behind is cleared, and the lock works.
        held(&client).await.unlock().await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn p8_force_unlock_tells_the_holder_at_once() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let guard = held(&client).await;
        assert!(other.lock(NAME).force_unlock().await.unwrap());
        let told = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await.expect("within a second");
        assert_eq!(told, Loss::Forced);
        assert!(matches!(guard.unlock().await, Err(UnlockError::Lost(Loss::Forced))));
        assert!(!other.lock(NAME).force_unlock().await.unwrap(), "nobody holds it");
    })
    .await;
}

/// The hold ends on the server behind the holder's back: the next renewal tells.
async fn p8_gone(server: &Server, ruin: impl AsyncFnOnce(&mut redis::aio::MultiplexedConnection)) {
    let client = Timing::default().connect(&server.url()).await;
    let guard = held(&client).await;
    ruin(&mut server.connection().await).await;
    assert_eq!(guard.lost().await, Loss::Gone);
    assert!(matches!(guard.unlock().await, Err(UnlockError::Lost(Loss::Gone))));
}

#[tokio::test]
async fn p8_loss_after_flushall() {
    on_each_store(async |store| {
        let guard = held(&store.connect(Timing::default()).await).await;
        store.flush().await;
        assert_eq!(guard.lost().await, Loss::Gone);
        assert!(matches!(guard.unlock().await, Err(UnlockError::Lost(Loss::Gone))));
    })
    .await;
}

#[tokio::test]
async fn p8_loss_after_del() {
    on_a_server(async |server| {
        let key = format!("fairlock:{{n:{NAME}}}");
        p8_gone(server, async |redis| redis::cmd("DEL").arg(&key).exec_async(redis).await.unwrap()).await;
    })
    .await;
}

#[tokio::test]
async fn p8_loss_to_another_owner_in_the_hash() {
    on_a_server(async |server| {
        let key = format!("fairlock:{{n:{NAME}}}");
        p8_gone(server, async |redis| {
            redis::pipe()
                .del(&key)
                .hset_multiple(&key, &[("stranger:1", "1"), ("!attempt", "1"), ("!token", "1")])
                .pexpire(&key, 10_000)
                .exec_async(redis)
                .await
                .unwrap();
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn p8_loss_when_the_server_dies() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = held(&client).await;
        server.pause();
        let lost = guard.lost().await;
        assert_eq!(lost, Loss::Expired);
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_ends_by_itself_and_is_not_renewed() {
    on_each_store(async |store| {
        let timing = Timing::default();
        let client = store.connect(timing).await;
        let lock = client.lock(NAME).with_lease(timing.operation_timeout);
        let guard = lock.lock().await.unwrap();
        assert!(guard.valid_for() <= timing.operation_timeout);
        assert_eq!(guard.lost().await, Loss::Expired);
        eventually("the server agrees", async || !client.lock(NAME).is_locked().await.unwrap()).await;
        drop(guard);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_is_in_force_after_a_hand_over_too() {
    on_each_store(async |store| {
        let timing = Timing::default();
        let client = store.connect(timing).await;
        let holder = held(&client).await;
        let long = 10 * timing.lease;
        let lock = client.lock(NAME).with_lease(long);
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        let lock = client.lock(NAME);
        eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        holder.unlock().await.unwrap();
        let guard = waiting.await.unwrap();
        eventually("the grant becomes the asked lease", async || lease_left(&client).await > long / 2).await;
        eventually("the guard knows", async || guard.valid_for() > long / 2).await;
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_watched_hold_outlives_its_lease() {
    on_each_store(async |store| {
        let timing = Timing::default();
        let client = store.connect(timing).await;
        let guard = held(&client).await;
        tokio::time::sleep(2 * timing.lease).await;
        assert!(guard.is_valid());
        assert_eq!(format!("{:?}", guard.unlock().await.unwrap()), "Freed");
    })
    .await;
}

#[tokio::test]
async fn max_hold_ends_the_renewal_of_a_leaked_guard() {
    on_each_store(async |store| {
        let timing = Timing::default();
        let client = store.open(timing.builder().max_hold(timing.lease)).await;
        let leaked = held(&client).await;
        assert_eq!(leaked.lost().await, Loss::Expired);
        // Others get it while the leaked guard still exists.
        held(&client).await.unlock().await.unwrap();
        drop(leaked);
    })
    .await;
}
