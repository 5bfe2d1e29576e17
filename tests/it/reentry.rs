//! Re-entering a hold whose last guard another thread drops at the same moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use fairlock::{FairLock, LockError, LockGuard, Owner, UnlockError};

use crate::support::{Store, Timing, from_env, limit_to};

/// For a longer run: `FAIRLOCK_ROUNDS=100000 cargo test --release … reentry`.
fn rounds() -> u64 {
    from_env("FAIRLOCK_ROUNDS", 1000)
}

/// Two threads with one owner: one drops the outer guard while the other asks for a nested lock.
async fn drops_against_nested_locks(store: &Store, contended: bool) {
    let client = store.connect(Timing::relaxed()).await;
    let (me, lock) = (Owner::new(), client.lock("x"));
    let stop = Arc::new(AtomicBool::new(false));
    let others = contended.then(|| tokio::spawn(lock_again_and_again(client.lock("x"), stop.clone())));
    let (to_drop, guards) = mpsc::channel::<LockGuard>();
    let dropping = std::thread::spawn(move || guards.into_iter().for_each(drop));
    let mut newest = 0;
    for round in 0..rounds() {
        let outer = me.scope(lock.lock()).await.unwrap();
        let (token, held) = (outer.token(), outer.held());
        // It is the same token while the guard of the last round is still there.
        assert!(token >= newest, "round {round}: the token {token} is older than {newest}");
        to_drop.send(outer).unwrap();
        match me.scope(lock.lock()).await {
            Ok(inner) => {
                assert!(inner.is_valid() && inner.token() >= token, "round {round}: {inner:?} after {token}");
                newest = inner.token();
                let end = inner.unlock().await;
                assert!(end.is_ok(), "round {round}: {end:?}, held {held:?}");
            }
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    drop(to_drop);
    dropping.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    if let Some(others) = others {
        others.await.unwrap();
    }
    client.close().await.unwrap();
    // No stale hold remains: a fresh client gets the lock at once.
    let fresh = store.connect(Timing::relaxed()).await;
    assert!(fresh.lock("x").try_lock().await.unwrap().into_result().is_ok());
    fresh.close().await.unwrap();
}

async fn lock_again_and_again(lock: FairLock, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let guard: Result<LockGuard, LockError> = lock.lock().await;
        let end: Result<_, UnlockError> = guard.unwrap().unlock().await;
        end.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_during_a_nested_lock_costs_neither() {
    for store in Store::each().await {
        for contended in [false, true] {
            println!("contended: {contended}");
            limit_to(std::time::Duration::from_secs(600), drops_against_nested_locks(&store, contended)).await;
        }
        store.assert_clean().await;
    }
}
