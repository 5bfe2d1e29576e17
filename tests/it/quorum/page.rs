//! Everything that users have with one server also works with several.

use std::time::Duration;

use fairlock::{ConnectionState, Ended, LockClient, LockError, Loss, RequestError, owner};
use futures::{FutureExt, TryStreamExt};
use tokio::time::{Instant, sleep};

use super::{Masters, embedded, quick};
use crate::support::tool::{self, Tool, limit};
use crate::support::{Embedded, Timing, eventually, on_several_in_virtual_time};

async fn names(client: &LockClient) -> Vec<String> {
    let locks: Vec<_> = client.list("*").try_collect().await.unwrap();
    let mut names: Vec<_> = locks.iter().map(|lock| lock.name.clone()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_held_sees_each_end() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        let (held, token) = (guard.held(), guard.ended_token());
        assert_eq!((held.token(), held.holds(), held.owner_id()), (guard.token(), 1, guard.owner_id()));
        assert!(held.is_valid() && !token.is_cancelled());
        // A server that is down must not delay the unlock.
        servers[2].server.shut_down();
        guard.unlock().await.unwrap();
        let began = Instant::now();
        assert_eq!(held.ended().await, Ended::Freed);
        assert!(token.is_cancelled() && began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        servers[2].server.start_up();

        let guard = lock.lock().await.unwrap();
        let (held, token) = (guard.held(), guard.ended_token());
        assert!(lock.force_unlock().await.unwrap());
        token.cancelled().await;
        assert_eq!((held.ended().await, guard.lost().await), (Ended::Lost(Loss::Forced), Loss::Forced));

        let guard = lock.lock().await.unwrap();
        let (held, token) = (guard.held(), guard.ended_token());
        servers[0].server.shut_down();
        sleep(Duration::from_secs(3600)).await;
        assert!(held.is_valid() && !token.is_cancelled(), "a majority is left");
        servers[1].server.shut_down();
        token.cancelled().await;
        assert_eq!(held.ended().await, Ended::Lost(Loss::Expired));
        drop(guard);
    })
    .await;
}

/// P1: if two clients had the same id, one of them would leave for the other.
#[tokio::test]
async fn clients_of_one_and_of_several_embedded_servers_are_not_mixed_up() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let several = embedded(quick(), servers);
        for server in servers {
            let alone: Vec<_> = (0..10).map(|_| quick().embedded(&server.server).unwrap()).collect();
            let held = alone[9].lock("x").lock().await.unwrap();
            assert!(alone.iter().all(|client| client.id() != several.id()));
            held.unlock().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn owners_and_their_counts() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let (lock, inner) = (client.lock("x"), client.lock("x"));
        let seen = lock
            .with(async |held| {
                let nested = inner.lock().await.unwrap();
                assert!(inner.holds() > 0 && inner.is_held_here());
                assert_eq!((held.holds(), nested.holds(), inner.holds()), (2, 2, 2));
                servers[0].server.shut_down();
                nested.unlock().await.unwrap();
                (held.token(), inner.holds())
            })
            .await;
        assert_eq!(seen.map(|(token, count)| (token > 0, count)).unwrap(), (true, 1));
        assert!(lock.holds() == 0 && !lock.is_held_here());
        let guard = lock.lock().await.unwrap();
        assert!(lock.holds() == 0 && lock.is_held_here(), "outside of a scope nothing is mine");
        drop(guard);
        assert_eq!(client.run(owner::scope(async { lock.holds() })).await, 0);
        assert!(matches!(lock.lock().await, Err(LockError::Closed)));
    })
    .await;
}

#[tokio::test]
async fn list_ping_and_state_need_a_majority() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (client, other) = (embedded(quick(), servers), embedded(quick(), servers));
        let _held = client.lock("held").lock().await.unwrap();
        let taken = other.lock("waited for").lock().await.unwrap();
        let waiting = client.lock("waited for");
        let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
        eventually("it waits", async || client.lock("waited for").status().await.unwrap().waiters == 1).await;
        assert_eq!(names(&client).await, ["held", "waited for"]);
        let mut watch = client.watch_state();
        assert_eq!((client.state().servers.len(), client.state().connection()), (3, ConnectionState::Connected));

        servers[0].server.shut_down();
        let state = watch.changed().await.expect("one is down");
        assert_eq!(state.connection(), ConnectionState::Connected, "a majority is enough: {state:?}");
        assert!(state.servers.iter().any(|server| server.connection == ConnectionState::Reconnecting));
        assert_eq!(names(&client).await, ["held", "waited for"]);
        client.ping().await.unwrap();

        servers[1].server.shut_down();
        assert_eq!(watch.changed().await.unwrap().connection(), ConnectionState::Reconnecting);
        let listed = client.list("*").try_collect::<Vec<_>>().await;
        assert!(matches!(listed, Err(RequestError::NotSent(_) | RequestError::Unanswered(_))));
        assert!(client.ping().await.is_err());
        assert!(client.lock("held").is_locked().await.is_err(), "one server knows nothing");
        let status = client.lock("held").status().await.unwrap();
        assert!(!status.is_known() && status.holder.is_none() && status.servers[2].answer.is_ok(), "{status:?}");
        servers[..2].iter().for_each(|server| server.server.start_up());
        drop(taken);
        waiting.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_that_was_shown_is_ended_and_no_other() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        assert!(!lock.force_unlock_token(guard.token() - 1).await.unwrap());
        assert!(guard.is_valid());
        assert!(lock.force_unlock_token(guard.token()).await.unwrap());
        assert_eq!(guard.lost().await, Loss::Forced);
        let next = lock.lock().await.unwrap();
        assert!(!lock.force_unlock_token(guard.token()).await.unwrap());
        assert!(next.is_valid() && lock.is_locked().await.unwrap());
    })
    .await;
}

/// P6: if a caller does not poll, its grant soon goes to the next caller.
#[tokio::test]
async fn p6_a_call_that_is_not_polled_costs_others_a_moment() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (client, other) = (embedded(quick(), servers), embedded(quick(), servers));
        let taken = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let mut waiting = Box::pin(lock.lock());
        assert!(waiting.as_mut().now_or_never().is_none());
        eventually("it waits", async || other.lock("x").status().await.unwrap().waiters == 1).await;
        taken.unlock().await.unwrap();
        let began = Instant::now();
        let next = other.lock("x").lock().await.unwrap();
        assert!(began.elapsed() <= Duration::from_millis(300), "{:?}", began.elapsed());
        // When its caller polls it again, it waits again.
        assert!(waiting.as_mut().now_or_never().is_none());
        next.unlock().await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// A polled call keeps its servers, however long it waits for the rest: here at the second server, while the third is
/// down.
#[tokio::test]
async fn what_a_waiting_call_has_is_renewed() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let timing = Timing::default();
        let client = embedded(quick(), servers);
        servers[2].server.shut_down();
        let second = servers[1].open(timing.builder()).await;
        let taken = second.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        sleep(20 * timing.lease).await;
        let first = servers[0].open(timing.builder()).await.lock("x").status().await.unwrap();
        assert!(first.holder.is_some_and(|holder| holder.held_for > 10 * timing.lease), "it waits for the second");
        taken.unlock().await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().servers(), [0, 1]);
    })
    .await;
}

/// `FAIRLOCK_URL` lists three servers, or the command gets `--url` three times.
#[tokio::test]
async fn the_command_works_with_several_servers() {
    limit(async {
        // The build may take a while, and nothing would renew the hold during it.
        tool::path();
        let masters = Masters::start(3).await;
        let (urls, client) = (masters.urls(), masters.client().await);
        let guard = client.lock("x").labelled("job 17").lock().await.unwrap();
        let run = async |arguments: &[&str]| {
            Tool::new(&urls.join(" "), arguments).with_env("FAIRLOCK_STRICT_RESTART", "1s").run().await
        };
        let status = run(&["status", "--json", "x"]).await.json("status").remove(0);
        assert_eq!((&status["holder"]["label"], status["servers"].as_array().unwrap().len()), (&"job 17".into(), 3));
        let [one, two, three] = &*urls else { panic!("three servers") };
        let given = ["--url", one, "--url", two, "--url", three, "list", "--names"];
        assert_eq!(
            Tool::new("redis://127.0.0.1:1/", &given).with_env("FAIRLOCK_STRICT_RESTART", "1s").run().await.out,
            "x\n"
        );

        masters.0[2].kill().await;
        let shown = run(&["status", "x"]).await.out;
        assert!(shown.contains("held by     job 17") && shown.contains("not sent"), "{shown}");
        let status = run(&["status", "--json", "x"]).await.json("status").remove(0);
        assert!(status["servers"][2]["answer"]["error"].is_string(), "{status}");
        let forced = run(&["force-unlock", "--yes", "x"]).await;
        assert!(forced.out.contains("was taken away from job 17"), "{forced:?}");
        assert_eq!(guard.lost().await, Loss::Forced);
        // After the freeze of new servers: the lease, twice the clock error, and one second.
        let worked = run(&["lock", "x", "--", "echo", "worked"]).await;
        assert_eq!((worked.code, worked.out.as_str()), (Some(0), "worked\n"), "{worked:?}");
        let doctor = run(&["doctor"]).await;
        assert!(doctor.out.contains("strict_restart"), "{doctor:?}");

        masters.0[1].kill().await;
        let shown = run(&["status", "x"]).await;
        assert!(shown.code == Some(69) && shown.err.contains("1 of 3 servers can be reached"), "{shown:?}");
    })
    .await;
}
