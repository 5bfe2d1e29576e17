//! Several masters without faults and with servers down, and rejected options.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fairlock::{ConnectError, LockError, Loss, OptionsError, Owner, Unlocked};

use super::{Masters, builder, quick};
use crate::support::cluster::command;
use crate::support::{eventually, limit};

#[tokio::test]
async fn one_holds_it_on_all_masters_and_the_next_has_a_greater_token() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let guard = one.lock("x").lock().await.unwrap();
        assert_eq!((guard.servers(), guard.name()), (vec![0, 1, 2], "x"));
        assert!(guard.is_valid() && guard.valid_for() > Duration::ZERO);
        assert!(other.lock("x").try_lock().await.unwrap().is_busy());
        let status = other.lock("x").status().await.unwrap();
        assert!(status.holder.as_ref().is_some_and(|holder| holder.holds == 1), "{status:?}");
        let waiting = {
            let lock = other.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits at the first one", async || one.lock("x").status().await.unwrap().waiters == 1).await;
        let token = guard.token();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        let next = waiting.await.unwrap().unwrap();
        assert!(next.token() > token);
        drop(next);
        one.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// Q3: the servers give the proposed token. If a server has given a later token, the call needs a second round.
#[tokio::test]
async fn q3_a_lock_is_one_round_trip_where_all_give_one_token() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let mut last_token = 0;
        for (client, is_ahead) in [(&one, false), (&other, false), (&one, true), (&other, false)] {
            if is_ahead {
                let ahead = (last_token + 3_600_000_000_u64).to_string();
                command(&masters.0[1], &["SET", "fairlock:{n:x}:token", &ahead, "PX", "3600000"]).await;
            }
            let before = masters.calls("hset").await;
            let raised = masters.calls("set").await;
            let guard = client.lock("x").lock().await.unwrap();
            assert!(guard.token() > last_token);
            last_token = guard.token();
            guard.unlock().await.unwrap();
            assert_eq!(masters.calls("hset").await, before.map(|calls| calls + 1));
            // If the token was smaller, a raise sets it once more.
            let more = if is_ahead { [2, 1, 2] } else { [1; 3] };
            assert_eq!(masters.calls("set").await, [0, 1, 2].map(|node| raised[node] + more[node]));
        }
        one.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn nested_calls_share_the_hold() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let lock = client.lock("x");
        Owner::new()
            .scope(async {
                let outer = lock.lock().await.unwrap();
                let inner = lock.lock().await.unwrap();
                let third = lock.try_lock().await.unwrap().into_result().expect("its own");
                assert_eq!((outer.token(), outer.owner()), (inner.token(), third.owner()));
                assert_eq!(third.unlock().await.unwrap(), Unlocked::StillHeld(2));
                assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
                assert!(Owner::new().scope(lock.try_lock()).await.unwrap().is_busy());
                assert_eq!(outer.unlock().await.unwrap(), Unlocked::Freed);
            })
            .await;
        let token = lock.with(async |held| held.token()).await.unwrap();
        assert!(token > 0);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn it_lives_on_when_a_minority_is_killed() {
    limit(async {
        let masters = Masters::start(5).await;
        let client = masters.client().await;
        let held = client.lock("held").lock().await.unwrap();
        for dead in [0, 3] {
            masters.0[dead].kill().await;
        }
        let guard = client.lock("x").lock().await.unwrap();
        eventually("the dead ones do not count", async || held.servers() == [1, 2, 4]).await;
        assert_eq!(guard.servers(), [1, 2, 4]);
        assert!(held.is_valid());
        // A new lock uses a server that has come back; an existing hold does not.
        masters.0[3].restart().await;
        let names = AtomicUsize::new(0);
        eventually("the one that came back counts", async || {
            let name = names.fetch_add(1, Ordering::Relaxed).to_string();
            client.lock(name).lock().await.unwrap().servers() == [1, 2, 3, 4]
        })
        .await;
        assert_eq!(held.servers(), [1, 2, 4]);
        // One more server dies, and with it the majority.
        masters.0[1].kill().await;
        assert!(matches!(held.lost().await, Loss::Expired | Loss::Gone));
        assert!(!held.is_valid() && held.valid_for().is_zero());
        assert!(held.unlock().await.is_err());
    })
    .await;
}

#[tokio::test]
async fn without_a_majority_it_says_how_many_there_are() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        masters.0[0].kill().await;
        masters.0[2].kill().await;
        eventually("too few are left", async || {
            let error = client.lock("x").lock_timeout(Duration::from_millis(50)).await.unwrap_err();
            let text = match &error {
                LockError::Unreachable(cause) => cause.to_string(),
                _ => String::new(),
            };
            text.contains("1 of 3 servers can be used, and 2 are needed")
        })
        .await;
        masters.0[2].restart().await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        let error = builder().connect(["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", &masters.urls()[1]]).await;
        assert!(matches!(error, Err(ConnectError::NoQuorum { connected: 1, all: 3, majority: 2, .. })), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_name() {
    limit(async {
        let masters = Masters::start(3).await;
        let urls = masters.urls();
        let error = builder().connect(&urls[..2]).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(OptionsError::TooFewServers(2))), "{error:?}");
        let error = builder().connect([&urls[0], &urls[1], &urls[0]]).await.unwrap_err();
        assert!(matches!(error, ConnectError::SameServer { .. }), "{error:?}");
        for same in [urls[0].clone(), urls[0].replace("127.0.0.1", "localhost")] {
            let error = quick().connect([&urls[0], &urls[1], &same]).await.unwrap_err();
            assert!(matches!(error, ConnectError::SameServer { .. }), "{error:?}");
        }
        let error = builder().connect([&urls[0], &urls[1], "redis+cluster://h/"]).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(OptionsError::QuorumOfClusters)), "{error:?}");
        let error = builder().strict_restart(Duration::from_millis(1)).connect(&urls).await.unwrap_err().to_string();
        assert!(error.contains("strict_restart"), "{error}");
        let client = builder().connect(masters.urls()).await.unwrap();
        let error = client.lock("x").with_lease(Duration::from_secs(3600)).lock().await.unwrap_err();
        assert!(matches!(error, LockError::Lease(_)), "{error:?}");
        let error = client.lock("").lock().await.unwrap_err();
        assert!(matches!(error, LockError::Name(_)), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn force_unlock_ends_it_everywhere() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        assert!(!other.lock("x").force_unlock().await.unwrap());
        let guard = one.lock("x").lock().await.unwrap();
        assert!(other.lock("x").force_unlock().await.unwrap());
        assert_eq!(guard.lost().await, Loss::Forced);
        let next = other.lock("x").lock().await.unwrap();
        assert!(next.token() > guard.token());
    })
    .await;
}
