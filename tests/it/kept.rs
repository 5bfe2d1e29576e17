//! Names that stay taken after their guard has ended: `unlock_at_least`, `release_at_least` and `lock --at-least`.

use std::time::Duration;

use fairlock::{Ended, HoldError, owner};

use crate::support::{Timing, eventually, on_a_server, on_each_store};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_name_stays_taken_until_then_and_no_longer() {
    on_each_store(async |store| {
        let (one, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let (lock, gate) = (one.lock("x"), one.semaphore("s", 2));
        let guard = lock.lock().await.unwrap();
        let (held, token) = (guard.held(), guard.token());
        guard.unlock_at_least(2 * SECOND).await.unwrap();
        assert_eq!(held.ended().await, Ended::Detached);
        gate.acquire_many(2).await.unwrap().release_at_least(2 * SECOND).await.unwrap();
        // The names stay taken without the client.
        one.close().await.unwrap();
        let holder = other.lock("x").status().await.unwrap().holder.unwrap();
        assert!(holder.token == token && holder.lease_left <= 2 * SECOND, "{holder:?}");
        assert!(other.semaphore("s", 2).try_acquire().await.unwrap().is_busy());
        // The next waiter gets it when this time has ended.
        let next = other.lock("x").lock_timeout(20 * SECOND).await.unwrap();
        assert!(next.token() > token);
        drop(other.semaphore("s", 2).acquire_many_timeout(2, 20 * SECOND).await.unwrap());
        next.unlock().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

/// Shorter than an operation time-out, than a poll interval, and than the hold so far.
#[tokio::test]
async fn it_may_be_as_short_as_one_likes() {
    on_a_server(async |server| {
        let timing = Timing { operation_timeout: 10 * SECOND, lease: 30 * SECOND, ..Timing::default() };
        let client = timing.connect(&server.url()).await;
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        guard.unlock_at_least(Duration::from_millis(300)).await.unwrap();
        eventually("its time is over", async || !lock.is_locked().await.unwrap()).await;
        for at_least in [Duration::ZERO, Duration::from_nanos(1)] {
            lock.lock().await.unwrap().unlock_at_least(at_least).await.unwrap();
            assert!(!lock.try_lock().await.unwrap().is_busy(), "it was held for longer");
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_and_free() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let lock = client.lock("x");
        let too_long = lock.lock().await.unwrap().unlock_at_least(400 * 86_400 * SECOND).await;
        assert!(matches!(too_long, Err(HoldError::Lease(_))), "{too_long:?}");
        eventually("it is free", async || !lock.is_locked().await.unwrap()).await;
        owner::scope(async {
            let outer = lock.lock().await.unwrap();
            let inner = lock.lock().await.unwrap().unlock_at_least(SECOND).await;
            assert!(matches!(inner, Err(HoldError::Nested(2))), "{inner:?}");
            assert!(outer.is_valid());
            outer.unlock().await.unwrap();
        })
        .await;
        let guard = lock.lock().await.unwrap();
        lock.force_unlock().await.unwrap();
        guard.lost().await;
        assert!(matches!(guard.unlock_at_least(SECOND).await, Err(HoldError::Lost(_))));
    })
    .await;
}
