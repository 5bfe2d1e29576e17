//! Leases: renewed ones, fixed ones, and how they are extended.

use std::time::Duration;

use fairlock::{
    HandleError, HoldError, LockClient, LockError, Loss, OptionsError, Owner, RequestError, Unlocked, owner,
};
use tokio::time::{Instant, sleep};

use crate::support::{
    Embedded, Proxy, Timing, eventually, in_virtual_time, on_a_server, on_each_store, on_several_in_virtual_time,
};

const SECOND: Duration = Duration::from_secs(1);

/// The remaining lease on the server.
async fn lease_left(client: &LockClient, name: &str) -> Duration {
    client.lock(name).status().await.unwrap().holder.expect("there is a holder").lease_left
}

#[tokio::test]
async fn a_fixed_lease_lasts_from_the_extend_on_and_ends_by_itself() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        sleep(50 * SECOND).await;
        guard.extend(60 * SECOND).await.unwrap();
        sleep(50 * SECOND).await;
        assert!(guard.is_valid());
        assert!(guard.valid_for() <= 10 * SECOND, "{:?}", guard.valid_for());
        assert!(client.lock("x").try_lock().await.unwrap().is_busy());
        sleep(12 * SECOND).await;
        assert_eq!(guard.lost().await, Loss::Expired);
        assert!(client.lock("x").try_lock().await.unwrap().into_result().is_ok());
        assert!(matches!(guard.extend(60 * SECOND).await, Err(HoldError::Lost(Loss::Expired))));
        drop(guard);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_extend_never_shortens() {
    on_each_store(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = client.lock("x").with_lease(600 * SECOND).lock().await.unwrap();
        guard.extend(10 * SECOND).await.unwrap();
        assert!(guard.valid_for() > 500 * SECOND && lease_left(&client, "x").await > 500 * SECOND);
        let renewed = client.lock("y").lock().await.unwrap();
        renewed.extend(600 * SECOND).await.unwrap();
        assert!(renewed.valid_for() > 500 * SECOND);
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        assert_eq!(renewed.unlock().await.unwrap(), Unlocked::Freed);
        client.close().await.unwrap();
    })
    .await;
}

/// A hold that began with a message still has to set its lease. That renewal, sent before the extend and served after
/// it, must not cut the extended lease (R16).
#[tokio::test]
async fn the_first_renewal_of_a_grant_does_not_cut_an_extended_lease() {
    in_virtual_time(async |store| {
        let (client, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let first = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x").with_lease(60 * SECOND);
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        eventually("it waits", async || other.lock("x").status().await.unwrap().waiters == 1).await;
        first.unlock().await.unwrap();
        let guard = waiting.await.unwrap();
        // The first renewal is still to come.
        guard.extend(900 * SECOND).await.unwrap();
        sleep(SECOND).await;
        assert!(lease_left(&other, "x").await > 890 * SECOND);
        assert!(guard.valid_for() > 880 * SECOND);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_does_not_fit_is_refused_by_the_name_of_what_it_does_not_fit() {
    in_virtual_time(async |store| {
        let builder = LockClient::builder().strict_restart(100 * SECOND).max_hold(90 * SECOND);
        let client = store.open(builder).await;
        sleep(102 * SECOND).await;
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        let refused = async |lease: Duration| match guard.extend(lease).await {
            Err(HoldError::Lease(OptionsError::TooShort { larger, smaller, .. })) => format!("{larger} {smaller}"),
            other => format!("{other:?}"),
        };
        assert_eq!(refused(101 * SECOND).await, "strict_restart the lease of extend");
        assert_eq!(refused(SECOND).await, "the lease of extend operation_timeout");
        assert_eq!(refused(95 * SECOND).await, "what max_hold leaves the lease of extend");
        guard.extend(80 * SECOND).await.unwrap();
        sleep(20 * SECOND).await;
        assert_eq!(refused(80 * SECOND).await, "what max_hold leaves the lease of extend");
        assert!(guard.is_valid(), "a refusal costs nothing");
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// An extend asked for the client's whole lease, so an extend by 5 s after 44 s held for 73 s.
#[tokio::test]
async fn a_hold_that_is_renewed_ends_with_max_hold_however_often_it_is_extended() {
    for (at, every) in [(44, None), (35, Some(2 * SECOND)), (0, Some(7 * SECOND))] {
        in_virtual_time(async |store| {
            let client = store.open(LockClient::builder().lease(30 * SECOND).max_hold(50 * SECOND)).await;
            let (guard, held) = (client.lock("x").lock().await.unwrap(), Instant::now());
            sleep(at * SECOND).await;
            let extending = async {
                guard.extend(5 * SECOND).await.unwrap();
                while let Some(pause) = every {
                    sleep(pause).await;
                    // From the 45th second on, the client refuses.
                    let _ = guard.extend(5 * SECOND).await;
                }
                guard.lost().await
            };
            tokio::select! { _ = guard.lost() => {} _ = extending => {} }
            let lasted = held.elapsed();
            assert!((48 * SECOND..=50 * SECOND).contains(&lasted), "{lasted:?}");
            client.close().await.unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn an_extend_without_an_answer_leaves_the_lease_as_it_was() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        store.network.silence(true);
        assert!(matches!(guard.extend(600 * SECOND).await, Err(HoldError::Request(RequestError::Unanswered(_)))));
        assert!(guard.is_valid() && guard.valid_for() <= 60 * SECOND);
        store.network.silence(false);
        eventually("it is back", async || guard.extend(600 * SECOND).await.is_ok()).await;
        assert!(guard.valid_for() > 500 * SECOND);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The reply to the extend is lost with its connection.
#[tokio::test]
async fn an_extend_is_repeated_when_its_answer_is_lost() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let client = Timing::relaxed().connect(&proxy.url()).await;
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        proxy.lose_next_reply();
        guard.extend(600 * SECOND).await.unwrap();
        assert!(guard.valid_for() > 500 * SECOND);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn after_a_force_unlock_or_a_close_there_is_nothing_to_extend() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        client.lock("x").force_unlock().await.unwrap();
        assert!(matches!(guard.extend(60 * SECOND).await, Err(HoldError::Lost(_))));
        // Without the message.
        store.network.lose_messages(true);
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        client.lock("x").force_unlock().await.unwrap();
        assert!(matches!(guard.extend(60 * SECOND).await, Err(HoldError::Lost(Loss::Gone))));
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        client.close().await.unwrap();
        assert!(matches!(
            guard.extend(60 * SECOND).await,
            Err(HoldError::Lost(Loss::Closed) | HoldError::Request(RequestError::Closed))
        ));
    })
    .await;
}

#[tokio::test]
async fn a_majority_is_extended_and_a_minority_is_not() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let all = servers.each_ref().map(|server| server.server.clone());
        let client = LockClient::builder().without_strict_restart().embedded(&all).unwrap();
        let guard = client.lock("x").with_lease(60 * SECOND).lock().await.unwrap();
        guard.extend(600 * SECOND).await.unwrap();
        assert!(guard.valid_for() > 500 * SECOND);
        servers[0].network.silence(true);
        guard.extend(900 * SECOND).await.unwrap();
        assert!(guard.valid_for() > 800 * SECOND);
        servers[1].network.silence(true);
        assert!(matches!(guard.extend(1800 * SECOND).await, Err(HoldError::Request(RequestError::Unanswered(_)))));
        assert!(guard.valid_for() < 900 * SECOND);
        for server in servers {
            server.network.silence(false);
        }
        eventually("all are back", async || client.ping().await.is_ok()).await;
        // One server extends the lease. The refusals of the others must not hide that.
        servers[1..]
            .iter()
            .for_each(|server| server.network.refuse(Some("NOREPLICAS Not enough good replicas to write.")));
        let error = guard.extend(1800 * SECOND).await.unwrap_err();
        assert!(matches!(error, HoldError::Request(RequestError::Unanswered(_))), "{error}");
        assert!(error.to_string().contains("confirmed by 1 of the 2 servers that are needed"), "{error}");
        // Without a request to the first server, the two refusals decide: a person can fix them.
        servers[0].server.shut_down();
        servers[1..].iter().for_each(|server| server.network.refuse(Some("NOPERM this user has no permissions")));
        let error = guard.extend(1800 * SECOND).await.unwrap_err();
        assert!(matches!(error, HoldError::Request(RequestError::Refused(_))), "{error}");
        servers[0].server.start_up();
        servers.iter().for_each(|server| server.network.refuse(None));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
        // The unanswered requests may have set leases; those end.
        sleep(1800 * SECOND).await;
    })
    .await;
}

#[tokio::test]
async fn re_entry_neither_extends_a_fixed_lease_nor_ends_with_it_renewed() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let (fixed, renewed) = (client.lock("x").with_lease(60 * SECOND), client.lock("x"));
        owner::scope(async {
            let outer = fixed.lock().await.unwrap();
            sleep(30 * SECOND).await;
            // Neither another fixed lease nor a renewed one.
            let inner = client.lock("x").with_lease(600 * SECOND).lock().await.unwrap();
            let innermost = renewed.lock().await.unwrap();
            assert!(outer.valid_for() <= 30 * SECOND && lease_left(&client, "x").await <= 30 * SECOND);
            // All guards share the lease that one of them extends.
            innermost.extend(90 * SECOND).await.unwrap();
            assert!(outer.valid_for() > 80 * SECOND && inner.valid_for() > 80 * SECOND);
            assert_eq!(innermost.unlock().await.unwrap(), Unlocked::StillHeld(2));
            sleep(91 * SECOND).await;
            assert_eq!(inner.lost().await, Loss::Expired);
            assert!(matches!(client.lock("x").lock().await, Err(LockError::Lost)));
            drop((inner, outer));
            // A fixed lease inside a renewed one does not end it.
            let outer = renewed.lock().await.unwrap();
            let inner = fixed.lock().await.unwrap();
            sleep(300 * SECOND).await;
            assert!(inner.is_valid() && outer.is_valid());
            drop((inner, outer));
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_lock_has_a_renewed_lease_of_its_own() {
    in_virtual_time(async |store| {
        let (client, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let guard = client.lock("x").with_renewed_lease(6 * SECOND).lock().await.unwrap();
        assert!(lease_left(&other, "x").await <= 6 * SECOND);
        sleep(100 * SECOND).await;
        assert!(guard.is_valid());
        // P7: after a crash the next one waits for this lease, not for the client's.
        store.network.cut_off(client.id());
        let asked = Instant::now();
        let next = other.lock("x").lock().await.unwrap();
        assert!(asked.elapsed() < 7 * SECOND, "{:?}", asked.elapsed());
        drop((guard, next));
        store.network.mend(client.id());
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_task_that_would_wait_for_itself_is_refused_at_once_if_it_wants() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let lock = client.lock("x").refusing_self_wait();
        let asked = Instant::now();
        let guard = lock.lock().await.unwrap();
        assert!(matches!(lock.lock().await, Err(LockError::SelfWait)));
        assert!(matches!(lock.lock_timeout(SECOND).await, Err(LockError::SelfWait)));
        assert!(matches!(lock.with_lease(60 * SECOND).lock().await, Err(LockError::SelfWait)));
        assert!(matches!(Owner::new().scope(lock.lock()).await, Err(LockError::SelfWait)));
        assert!(lock.try_lock().await.unwrap().is_busy(), "it would not wait");
        assert!(asked.elapsed() < SECOND);
        // Other tasks and other names may wait, and so may this task once it has unlocked.
        let (lock_of_task, waits) = (lock.clone(), client.lock("x"));
        let task = tokio::spawn(async move { lock_of_task.lock().await });
        eventually("the task waits", async || waits.status().await.unwrap().waiters == 1).await;
        client.lock("y").refusing_self_wait().lock().await.unwrap().unlock().await.unwrap();
        drop(guard);
        task.await.unwrap().unwrap().unlock().await.unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
        // In a scope the lock nests.
        owner::scope(async {
            let outer = lock.lock().await.unwrap();
            assert_eq!(lock.lock().await.unwrap().holds(), 2);
            drop(outer);
        })
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// The hold is on the other two servers.
#[tokio::test]
async fn a_self_wait_is_noticed_where_the_first_of_several_servers_is_down() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let all = servers.each_ref().map(|server| server.server.clone());
        let client = LockClient::builder().without_strict_restart().embedded(&all).unwrap();
        servers[0].network.silence(true);
        let lock = client.lock("x").refusing_self_wait();
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.servers(), [1, 2]);
        assert!(matches!(lock.lock_timeout(60 * SECOND).await, Err(LockError::SelfWait)));
        guard.unlock().await.unwrap();
        servers[0].network.silence(false);
        eventually("all are back", async || client.ping().await.is_ok()).await;
        client.close().await.unwrap();
    })
    .await;
}

/// The error came from the unsent last try, and its documentation says that nothing was done.
#[tokio::test]
async fn a_call_whose_first_try_was_served_does_not_say_that_nothing_was_sent() {
    on_a_server(async |server| {
        // The server serves the first try, the proxy drops its answer, and the client cannot reconnect.
        for call in ["extend", "extend by handle", "release by handle"] {
            let proxy = Proxy::start(server).await;
            let client = Timing::default().connect(&proxy.url()).await;
            let guard = client.lock(call).with_lease(60 * SECOND).lock().await.unwrap();
            let cut = || {
                proxy.refuse(true);
                proxy.lose_next_reply();
            };
            let error = if call == "extend" {
                cut();
                let Err(HoldError::Request(error)) = guard.extend(600 * SECOND).await else { panic!("{call}") };
                error
            } else {
                let handle = guard.detach(60 * SECOND).await.unwrap();
                cut();
                let outcome = match call {
                    "extend by handle" => client.extend(&handle, 600 * SECOND).await,
                    _ => client.release(&handle).await.map(drop),
                };
                let Err(HandleError::Request(error)) = outcome else { panic!("{call}") };
                error
            };
            assert!(matches!(error, RequestError::Unanswered(_)), "{call}: {error}");
            proxy.refuse(false);
            eventually("it is back", async || client.lock(call).force_unlock().await.is_ok()).await;
            client.close().await.unwrap();
        }
    })
    .await;
}
