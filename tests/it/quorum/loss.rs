//! A hold that loses servers, its majority, or their memory.

use std::time::Duration;

use fairlock::{Ended, LockError, Loss, Owner, UnlockError};
use tokio::time::{Instant, sleep};

use super::{Masters, builder, embedded, quick, strict};
use crate::support::{Embedded, Server, eventually, limit, on_several_in_virtual_time};

async fn flush(server: &Server) {
    redis::cmd("FLUSHALL").exec_async(&mut server.connection().await).await.unwrap();
}

/// Otherwise the watchdog would renew the remaining servers for the life of the guard, and no other call would get past
/// the gate.
#[tokio::test]
async fn what_is_left_of_a_lost_majority_is_given_back_at_once() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let lost = one.lock("x").lock().await.unwrap();
        // These servers forget the hold.
        masters.0[1].restart().await;
        masters.0[2].restart().await;
        assert!(matches!(lost.lost().await, Loss::Gone | Loss::Expired));
        // The guard still exists, and its hold at the gate was intact.
        let next = other.lock("x").lock().await.unwrap();
        assert!(next.token() > lost.token() && next.servers().contains(&0));
        assert!(!lost.is_valid() && lost.servers().is_empty());
        assert!(lost.unlock().await.is_err() && next.is_valid());
        drop(next);
        one.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// The unlock reported a forced loss, and the watchers an unlock.
#[tokio::test]
async fn a_force_before_an_unlock_is_served_is_a_loss_for_all_who_hear_of_it() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (client, other) = (embedded(builder(), servers), embedded(builder(), servers));
        let guard = client.lock("x").lock().await.unwrap();
        let held = guard.held();
        servers.iter().for_each(|server| server.network.delay_of(client.id(), Duration::from_millis(100)));
        let forcing = other.lock("x");
        let (unlocked, forced) = tokio::join!(guard.unlock(), forcing.force_unlock());
        assert!(forced.unwrap());
        assert!(matches!(unlocked, Err(UnlockError::Lost(Loss::Forced))), "{unlocked:?}");
        assert_eq!(held.ended().await, Ended::Lost(Loss::Forced));
    })
    .await;
}

/// Two servers have the hold and one has forgotten it. Then one of the two goes down: still no other client can have
/// got the lock.
#[tokio::test]
async fn an_unlock_that_a_server_does_not_answer_is_no_loss_since_another_one_forgot() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let guard = client.lock("x").lock().await.unwrap();
        flush(&masters.0[2]).await;
        eventually("it counts no more there", async || guard.servers() == [0, 1]).await;
        masters.0[0].kill().await;
        eventually("it is gone", async || client.lock("x").status().await.unwrap().servers[0].answer.is_err()).await;
        assert!(guard.is_valid());
        let outcome = guard.unlock().await;
        assert!(matches!(outcome, Err(UnlockError::Unknown { .. })), "{outcome:?}");
    })
    .await;
}

/// Only the release finds out: a majority has deleted the key, and no message announces that.
#[tokio::test]
async fn an_unlock_says_that_a_majority_had_lost_it() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let guard = client.lock("x").lock().await.unwrap();
        for server in &masters.0[1..] {
            let mut redis = server.connection().await;
            let deleted: u32 = redis::cmd("DEL").arg("fairlock:{n:x}").query_async(&mut redis).await.unwrap();
            assert_eq!(deleted, 1);
        }
        let outcome = guard.unlock().await;
        assert!(matches!(outcome, Err(UnlockError::Lost(Loss::Gone))), "{outcome:?}");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_nested_guard_with_fewer_servers_hears_of_a_loss_after_the_outer_one_is_gone() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let lock = client.lock("x");
        Owner::new()
            .scope(async {
                let outer = lock.lock().await.unwrap();
                masters.0[2].pause();
                let inner = lock.lock().await.unwrap();
                masters.0[2].resume();
                outer.unlock().await.unwrap();
                assert!(inner.is_valid());
                masters.0[1].kill().await;
                assert!(matches!(inner.lost().await, Loss::Gone | Loss::Expired));
                assert!(!inner.is_valid());
                assert!(matches!(lock.lock().await, Err(LockError::Lost)));
            })
            .await;
    })
    .await;
}

/// Q8: a master that lost its data does not count until every hold that it forgot has ended.
#[tokio::test]
async fn q8_a_master_that_has_forgotten_a_hold_does_not_count() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        // New servers freeze too, once.
        let (client, other) = (embedded(strict(), servers), embedded(strict(), servers));
        let guard = client.lock("x").with_lease(Duration::from_millis(1500)).lock().await.unwrap();
        // All three servers have the hold, and two of them forget it.
        let deadline = Instant::now() + guard.valid_for();
        for server in &servers[..2] {
            server.server.shut_down();
            server.server.flush();
            server.server.start_up();
        }
        let next = other.lock("x").lock().await.unwrap();
        assert!(Instant::now() >= deadline && !guard.is_valid(), "two hold it");
        assert!(next.token() > guard.token());
    })
    .await;
}

/// P2: a client that comes after the servers have forgotten all tokens knows their clocks, and proposes no older token.
#[tokio::test]
async fn p2_tokens_grow_for_a_new_client_of_servers_that_have_forgotten_them() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let guard = embedded(quick(), servers).lock("x").lock().await.unwrap();
        let token = guard.token();
        guard.unlock().await.unwrap();
        servers.iter().for_each(|server| server.server.flush());
        let newcomer = embedded(quick(), servers);
        sleep(Duration::from_millis(1)).await;
        let next = newcomer.lock("x").lock().await.unwrap();
        assert!(next.token() > token, "{} after {token}", next.token());
    })
    .await;
}

/// Q10: later answers of the hold's servers do not bring it back.
#[tokio::test]
async fn q10_a_holder_that_was_cut_off_has_lost_it_for_good() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (cut_off, other) = (embedded(quick(), servers), embedded(quick(), servers));
        let guard = cut_off.lock("x").lock().await.unwrap();
        let id = cut_off.id().to_owned();
        servers[..2].iter().for_each(|server| server.network.cut_off(&id));
        assert_eq!(guard.lost().await, Loss::Expired);
        let next = other.lock("x").lock().await.unwrap();
        assert!(next.token() > guard.token());
        servers[..2].iter().for_each(|server| server.network.mend(&id));
        next.unlock().await.unwrap();
        eventually("it is connected again", async || {
            cut_off.lock("y").try_lock().await.is_ok_and(|y| y.into_result().is_ok())
        })
        .await;
        assert!(!guard.is_valid() && guard.servers().is_empty());
    })
    .await;
}

/// Q5: a guard that one server still renews is valid only for as long as a majority has it.
#[tokio::test]
async fn q5_a_guard_is_valid_until_the_deadline_of_a_majority() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let guard = client.lock("x").lock().await.unwrap();
        let id = client.id().to_owned();
        servers[..2].iter().for_each(|server| server.network.cut_off(&id));
        let (cut_off, left) = (Instant::now(), guard.valid_for());
        // Server 2 has renewed the hold in between. The deadlines at the others may differ by the pause before a
        // repeated request.
        sleep(left * 2 / 3).await;
        let longest = left - cut_off.elapsed() + Duration::from_millis(100);
        assert!(guard.is_valid() && guard.valid_for() <= longest, "{:?}", guard.valid_for());
        servers[..2].iter().for_each(|server| server.network.mend(&id));
        guard.unlock().await.unwrap();
    })
    .await;
}

/// P2: the other servers are raised to the tokens of the server whose clock is ahead, before that server is gone.
#[tokio::test]
async fn q3_tokens_grow_when_the_server_with_the_greatest_ones_is_gone() {
    limit(async {
        let shift = crate::support::clock();
        let masters = Masters(vec![
            Server::with_clock(shift, 3_600_000, &[]).await,
            Server::with_clock(shift, 0, &[]).await,
            Server::with_clock(shift, -3_600_000, &[]).await,
        ]);
        let client = builder().without_strict_restart().connect(masters.urls()).await.unwrap();
        let first = client.lock("x").lock().await.unwrap();
        let token = first.token();
        first.unlock().await.unwrap();
        masters.0[0].kill().await;
        let second = client.lock("x").lock().await.unwrap();
        assert_eq!(second.servers(), [1, 2]);
        assert!(second.token() > token, "{} after {token}", second.token());
        second.unlock().await.unwrap();
    })
    .await;
}
