//! A call that does not get a lock reports the holder.

use std::time::{Duration, SystemTime};

use fairlock::{HeldBy, LockClient, LockError, LockGuard, Tried};

use crate::support::{Timing, eventually, on_a_server, on_each_store};

async fn take(client: &LockClient, label: &str) -> LockGuard {
    client.lock("x").labelled(label).lock().await.unwrap()
}

fn is_of(held_by: &HeldBy, label: &str, guard: &LockGuard) -> bool {
    held_by.label == label && held_by.token == guard.token() && !held_by.lease_left.is_zero()
}

#[tokio::test]
async fn a_try_says_who_has_it() {
    on_each_store(async |store| {
        let (one, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        // A label may contain anything.
        let guard = take(&one, "job 17/a b").await;
        let Tried::Busy(busy) = other.lock("x").try_lock().await.unwrap() else { panic!("two have it") };
        let shown = one.lock("x").status().await.unwrap().holder.unwrap();
        let holder = busy.holder.clone().unwrap();
        assert!(is_of(&holder, "job 17/a b", &guard), "{holder:?}");
        assert_eq!(holder.since, shown.since);
        assert!(busy.to_string().contains("\"job 17/a b\" has it"), "{busy}");
        // The same for a lock in a set.
        let Tried::Busy(busy) = other.lock_all(["a", "x"]).try_lock().await.unwrap() else { panic!("two have it") };
        assert!(is_of(&busy.holder.unwrap(), "job 17/a b", &guard));
        guard.unlock().await.unwrap();
        assert!(!other.lock("x").try_lock().await.unwrap().is_busy());
        // A semaphore may have many holders, so it reports none.
        let permit = one.semaphore("s", 1).acquire().await.unwrap();
        let Tried::Busy(busy) = other.semaphore("s", 1).try_acquire().await.unwrap() else { panic!("two have it") };
        assert_eq!(busy.holder, None);
        drop(permit);
    })
    .await;
}

/// The client learns the holder from the reply that gave the wait its place, and later from replies to polls.
#[tokio::test]
async fn a_wait_that_times_out_says_who_had_it_last() {
    on_a_server(async |server| {
        let (one, other) =
            (Timing::default().connect(&server.url()).await, Timing::default().connect(&server.url()).await);
        let first = take(&one, "first").await;
        let timed_out = other.lock("x").lock_timeout(Duration::from_millis(300)).await.unwrap_err();
        let LockError::Timeout { holder: Some(holder) } = &timed_out else { panic!("{timed_out:?}") };
        assert!(is_of(holder, "first", &first), "{holder:?}");
        assert!(timed_out.to_string().contains("\"first\" has it"), "{timed_out}");
        assert!(holder.since <= SystemTime::now() + Duration::from_secs(1));

        let next = tokio::spawn({
            let one = one.clone();
            async move { take(&one, "second").await }
        });
        let queued = async |places| {
            eventually("it is queued", async || one.lock("x").status().await.unwrap().waiters == places).await
        };
        queued(1).await;
        let waiting = tokio::spawn(other.lock("x").lock_timeout(Duration::from_secs(3)));
        queued(2).await;
        first.unlock().await.unwrap();
        let second = next.await.unwrap();
        let timed_out = waiting.await.unwrap().unwrap_err();
        let LockError::Timeout { holder: Some(holder) } = &timed_out else { panic!("{timed_out:?}") };
        assert!(is_of(holder, "second", &second), "{holder:?}");
        second.unlock().await.unwrap();
    })
    .await;
}
