//! The public API: the traits of its types, dropped guards, `status` and labels.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use fairlock::{
    DetachError, FairLock, FairRwLock, FairSemaphore, Held, LockClient, LockError, LockGuard, LockStatus, Owner,
    Permit, ReadGuard, RwLockStatus, SemaphoreStatus, UnlockError, WriteGuard, owner,
};
use static_assertions::{assert_impl_all, assert_not_impl_any};

use crate::support::{Server, Timing, eventually, limit, on_each_store};

assert_impl_all!(LockClient: Clone, Send, Sync, Unpin);
assert_impl_all!(FairLock: Clone, Send, Sync, Unpin);
assert_impl_all!(LockGuard: Send, Sync, Unpin);
assert_impl_all!(Held: Send, Sync);
assert_impl_all!(DetachError<Permit>: std::error::Error, Send, Sync);
assert_impl_all!(Owner: Copy, Send, Sync);
assert_impl_all!(LockStatus: Send, Sync);
assert_impl_all!(LockError: std::error::Error, Send, Sync);
assert_impl_all!(UnlockError: std::error::Error, Send, Sync);
assert_impl_all!(FairSemaphore: Clone, Send, Sync, Unpin, UnwindSafe, RefUnwindSafe);
assert_impl_all!(FairRwLock: Clone, Send, Sync, Unpin, UnwindSafe, RefUnwindSafe);
assert_impl_all!(Permit: Send, Sync, Unpin, UnwindSafe, RefUnwindSafe);
assert_impl_all!(ReadGuard: Send, Sync, Unpin, UnwindSafe, RefUnwindSafe);
assert_impl_all!(WriteGuard: Send, Sync, Unpin, UnwindSafe, RefUnwindSafe);
assert_impl_all!(SemaphoreStatus: Send, Sync);
assert_impl_all!(RwLockStatus: Send, Sync);
// A cloned guard would release its hold twice.
assert_not_impl_any!(LockGuard: Clone);
assert_not_impl_any!(Permit: Clone);
assert_not_impl_any!(WriteGuard: Clone);
// Code that catches a panic, such as a test or a handler, may have these in scope.
assert_impl_all!(LockClient: UnwindSafe, RefUnwindSafe);
assert_impl_all!(FairLock: UnwindSafe, RefUnwindSafe);
assert_impl_all!(LockGuard: UnwindSafe, RefUnwindSafe);
assert_impl_all!(Held: UnwindSafe, RefUnwindSafe);

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn futures_can_be_spawned() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        let guard = is_send(lock.lock()).await.unwrap();
        drop(is_send(lock.try_lock()).await.unwrap());
        is_send(guard.unlock()).await.unwrap();
        is_send(lock.with(|_| async {})).await.unwrap();
        let permit = is_send(client.semaphore("s", 2).acquire_many(2)).await.unwrap();
        is_send(permit.shrink_to(1)).await.unwrap();
        let handle = is_send(permit.detach(Duration::from_secs(60))).await.unwrap();
        is_send(is_send(client.attach_permit(&handle)).await.unwrap().release()).await.unwrap();
        let document = client.rw_lock("r");
        let reading = is_send(is_send(document.write()).await.unwrap().downgrade()).await.unwrap();
        is_send(reading.unlock()).await.unwrap();
        is_send(document.with_read(|_| async {})).await.unwrap();
        is_send(document.with_write(|_| async {})).await.unwrap();
        is_send(owner::scope(async {})).await;
    })
    .await;
}

/// `#[must_use]` is part of the API. A test cannot see a warning, so this one reads the source.
#[test]
fn a_guard_must_be_used() {
    let source = include_str!("../../src/guard.rs");
    let (before, _) = source.split_once("pub struct LockGuard").unwrap();
    let attribute = before.lines().rev().take_while(|line| line.starts_with('#')).collect::<String>();
    assert!(attribute.contains("must_use"), "{attribute:?}");
}

#[test]
fn a_guard_dropped_outside_of_any_runtime_is_released() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, client, guard) = runtime.block_on(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        (server, client, guard)
    });
    drop(guard);
    runtime.block_on(limit(async move {
        let lock = client.lock("x");
        eventually("it is released", async || !lock.is_locked().await.unwrap()).await;
        client.close().await.unwrap();
        server.assert_clean().await;
    }));
}

#[test]
fn a_guard_dropped_after_its_runtime_is_gone_does_no_harm() {
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = other.block_on(Server::start());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let timing = Timing::default();
    let (client, guard, nested) = runtime.block_on(async {
        let client = timing.connect(&server.url()).await;
        let me = Owner::new();
        let guard = me.scope(client.lock("x").lock()).await.unwrap();
        let nested = me.scope(client.lock("x").lock()).await.unwrap();
        (client, guard, nested)
    });
    drop(runtime);
    drop(guard);
    // Its background tasks have ended with the runtime. The unlock must return even so.
    assert!(other.block_on(async { tokio::time::timeout(timing.lease, nested.unlock()).await }).is_ok());
    drop(client);
    // No one releases the lock, so it becomes free when its lease ends.
    other.block_on(limit(async {
        let observer = timing.connect(&server.url()).await;
        observer.lock("x").lock().await.unwrap().unlock().await.unwrap();
    }));
}

#[tokio::test]
async fn a_guard_dropped_in_a_panic_is_released() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        let task = tokio::spawn(async move {
            let _guard = lock.lock().await.unwrap();
            panic!("with the guard in hand");
        });
        assert!(task.await.unwrap_err().is_panic());
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn status_tells_who_holds_and_who_waits() {
    on_each_store(async |store| {
        let holding = store.open(Timing::default().builder().label("the holder")).await;
        let waiting = store.open(Timing::default().builder().label("the waiter")).await;
        let guard = holding.lock("x").lock().await.unwrap();
        let lock = waiting.lock("x");
        let wait = tokio::spawn(async move { lock.lock().await.unwrap() });
        let lock = holding.lock("x");
        eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
        let status = lock.status().await.unwrap();
        let holder = status.holder.unwrap();
        assert_eq!((holder.token, holder.holds, holder.label.as_str()), (guard.token(), 1, "the holder"));
        assert_eq!(
            holder.owner,
            format!("{}:{}", holding.id(), format!("{:?}", guard.owner()).trim_matches(|c: char| !c.is_ascii_digit()))
        );
        assert!(holder.lease_left <= Timing::default().lease);
        assert_eq!((status.queue[0].position, status.queue[0].label.as_str(), status.waiters), (1, "the waiter", 1));
        assert!(status.queue[0].owner.starts_with(waiting.id()));
        assert!(status.queue[0].deadline > status.at);
        assert!(lock.is_held_here() && lock.holds() == 0 && !waiting.lock("x").is_held_here());

        guard.unlock().await.unwrap();
        let guard = wait.await.unwrap();
        assert_eq!(lock.status().await.unwrap().holder.unwrap().label, "the waiter", "labels go with the grant");
        guard.unlock().await.unwrap();
        let free = lock.status().await.unwrap();
        assert!(free.holder.is_none() && free.queue.is_empty() && free.waiters == 0);
    })
    .await;
}

#[tokio::test]
async fn the_default_label_names_host_and_process() {
    on_each_store(async |store| {
        let client = store.open(LockClient::builder()).await;
        let _guard = client.lock("x").lock().await.unwrap();
        let label = client.lock("x").status().await.unwrap().holder.unwrap().label;
        assert!(label.ends_with(&format!(":{}", std::process::id())) && label.len() > 4, "{label}");
    })
    .await;
}

#[tokio::test]
async fn clients_with_different_prefixes_do_not_share_locks() {
    on_each_store(async |store| {
        let one = store.connect(Timing::default()).await;
        let two = store.open(Timing::default().builder().prefix("other")).await;
        let _guard = one.lock("x").lock().await.unwrap();
        drop(two.lock("x").try_lock().await.unwrap().into_result().expect("another lock"));
    })
    .await;
}

#[tokio::test]
async fn unix_sockets_work() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.unix_url()).await;
        let holder = client.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let (waited, _) = tokio::join!(lock.lock(), async {
            let lock = client.lock("x");
            eventually("it waits", async || lock.status().await.unwrap().queue.len() == 1).await;
            holder.unlock().await.unwrap()
        });
        waited.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}
