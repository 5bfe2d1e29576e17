//! P6: however many waiters died, together they delay the live ones by at most one waiter_ttl.

use std::time::Duration;

use fairlock::{LockClient, LockError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{Proxy, Server, Timing, eventually, in_virtual_time, limit};

const NAME: &str = "dead";

/// Queues `dead` waiters and then a live one, and cuts off the dead ones with `kill`. Returns the time from the
/// holder's release until the live waiter had the lock.
async fn delay(dead: usize, kill: impl AsyncFnOnce(&Proxy)) -> Duration {
    let server = Server::start().await;
    let timing = Timing::default();
    let client = timing.connect(&server.url()).await;
    let proxy = Proxy::start(&server).await;
    let cut_off = timing.connect(&proxy.url()).await;
    let holder = client.lock(NAME).lock().await.unwrap();
    let waits: Vec<_> = (0..dead).map(|_| wait_and_do_nothing(&cut_off)).collect();
    wait_for_waiters(&client, dead).await;
    let lock = client.lock(NAME);
    let live = tokio::spawn(async move { lock.lock().await });
    wait_for_waiters(&client, dead + 1).await;

    kill(&proxy).await;
    let freed = Instant::now();
    holder.unlock().await.unwrap();
    live.await.unwrap().unwrap().unlock().await.unwrap();
    let took = freed.elapsed();
    waits.iter().for_each(JoinHandle::abort);
    took
}

/// A dead waiter does nothing. It must not even release a guard that it still gets.
fn wait_and_do_nothing(client: &LockClient) -> JoinHandle<Result<(), LockError>> {
    let lock = client.lock(NAME);
    tokio::spawn(async move { lock.lock().await.map(std::mem::forget) })
}

async fn wait_for_waiters(client: &LockClient, waiters: usize) {
    let lock = client.lock(NAME);
    eventually("they all wait", async || lock.status().await.unwrap().waiters == waiters as u64).await;
}

/// Their machines vanished without closing anything, so the connections look alive to the server.
async fn p6_silent(dead: usize) {
    limit(async {
        let took = delay(dead, async |proxy| proxy.blackhole(true)).await;
        let allowed = Timing::default().waiter_ttl + Duration::from_secs(1);
        assert!(took < allowed, "{dead} dead waiters took {took:?}, more than {allowed:?}");
    })
    .await;
}

/// Their processes died, so the connections are closed.
async fn p6_closed(dead: usize) {
    limit(async {
        let took = delay(dead, async |proxy: &Proxy| {
            proxy.refuse(true);
            proxy.reset_all();
            proxy.assert_no_connections().await;
        })
        .await;
        // The promise is "at once", but a loaded machine may be slow. So this only checks that no dead waiter got the
        // lock: that would take a whole grant_ttl.
        assert!(took < Timing::default().grant_ttl, "{dead} closed waiters took {took:?}");
    })
    .await;
}

/// The same in virtual time.
#[tokio::test]
async fn p6_a_few_silent_waiters_cost_one_waiter_ttl() {
    for dead in [1, 10, 100] {
        in_virtual_time(async |server| {
            // Two grants would last longer than one waiter_ttl.
            let timing = Timing { grant_ttl: Duration::from_millis(1500), ..Timing::default() };
            let (client, cut_off) = (server.connect(timing).await, server.connect(timing).await);
            let holder = client.lock(NAME).lock().await.unwrap();
            let waits: Vec<_> = (0..dead).map(|_| wait_and_do_nothing(&cut_off)).collect();
            wait_for_waiters(&client, dead).await;
            let lock = client.lock(NAME);
            let live = tokio::spawn(async move { lock.lock().await });
            wait_for_waiters(&client, dead + 1).await;
            server.network.cut_off(cut_off.id());
            let freed = Instant::now();
            holder.unlock().await.unwrap();
            live.await.unwrap().unwrap().unlock().await.unwrap();
            let allowed = timing.waiter_ttl + timing.poll_interval;
            assert!(freed.elapsed() <= allowed, "{dead} dead waiters took {:?}", freed.elapsed());
            waits.iter().for_each(JoinHandle::abort);
            server.network.mend(cut_off.id());
        })
        .await;
    }
}

#[tokio::test]
async fn p6_five_hundred_silent_waiters() {
    p6_silent(500).await;
}

#[tokio::test]
async fn p6_one_closed_waiter() {
    p6_closed(1).await;
}

#[tokio::test]
async fn p6_ten_closed_waiters() {
    p6_closed(10).await;
}

#[tokio::test]
async fn p6_five_hundred_closed_waiters() {
    p6_closed(500).await;
}
