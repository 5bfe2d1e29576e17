//! Closing a client: pending releases finish, and a future without polls does not stall the close.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fairlock::{Ended, HoldError, LockError, Loss, Unlocked};
use futures::{FutureExt, StreamExt};

use crate::support::{Collect, Timing, eventually, in_virtual_time, on_a_server, on_each_store};

/// Polls the future once, like a `select!` that then forgets the branch.
fn poll_once(future: std::pin::Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// The client kept the result for 250 ms, and `close` waited for that.
#[tokio::test]
async fn a_set_that_nobody_reads_of_does_not_hold_up_a_close() {
    in_virtual_time(async |store| {
        let client = store.connect(Timing::default()).await;
        let mut locking = pin!(client.lock_all(["a", "b"]).lock());
        assert!(!poll_once(locking.as_mut()));
        eventually("it has them", async || client.lock("b").is_locked().await.unwrap()).await;
        let begun = tokio::time::Instant::now();
        client.close().await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        assert!(matches!(locking.await, Err(LockError::Closed)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_guards_are_released_and_not_lost() {
    on_each_store(async |store| {
        let said = Collect::default();
        let _collecting = said.clone().here();
        let (client, observer) = (store.connect(Timing::relaxed()).await, store.connect(Timing::default()).await);
        let locks = (0..2000).map(|number| client.lock(format!("closing {number}")));
        let acquired = futures::future::join_all(locks.map(async |lock| lock.lock().await.unwrap()));
        let guards = acquired.await;
        let views: Vec<_> = guards.iter().map(|guard| guard.held()).collect();
        drop(guards);
        client.close().await.unwrap();
        let mut lost = Vec::new();
        for view in &views {
            lost.extend(tokio::time::timeout(Duration::ZERO, view.ended()).await.ok().and_then(Ended::loss));
        }
        assert_eq!(lost, [], "a hold that was given back is not lost");
        let lines = said.lines();
        assert!(!lines.iter().any(|line| line.contains("lost a lock")), "{:?}", lines.first());
        for number in [0, 1, 999, 1999] {
            assert!(!observer.lock(format!("closing {number}")).is_locked().await.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn an_unlock_beside_a_close_is_an_unlock() {
    on_each_store(async |store| {
        for _ in 0..100 {
            let client = store.connect(Timing::default()).await;
            let guard = client.lock("beside").lock().await.unwrap();
            let (unlocked, closed) = tokio::join!(guard.unlock(), client.close());
            assert_eq!((unlocked.unwrap(), closed), (Unlocked::Freed, Ok(())));
        }
    })
    .await;
}

/// `close` ended the task that keeps the connection before this task had received the connection. So the connection
/// stayed open and subscribed until the drop of the last clone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_is_closed_as_soon_as_it_has_connected_leaves_no_connection() {
    on_a_server(async |server| {
        let connecting = (0..1000).map(async |_| {
            let client = Timing::relaxed().connect(&server.url()).await;
            client.close().await.unwrap();
            client
        });
        let clients: Vec<_> = futures::stream::iter(connecting).buffer_unordered(8).collect().await;
        let list = redis::cmd("CLIENT").arg("LIST").clone();
        let redis = server.connection().await;
        let listed = async || list.query_async::<String>(&mut redis.clone()).await.unwrap().lines().count();
        eventually("only the connection of this test is left", async || listed().await == 1).await;
        drop(clients);
    })
    .await;
}

/// Close frees the lock whether or not the unlock has sent its request.
#[tokio::test]
async fn an_unlock_that_stands_still_is_finished_by_close() {
    on_each_store(async |store| {
        let observer = store.connect(Timing::default()).await;
        for polls in 1..4 {
            let client = store.connect(Timing::relaxed()).await;
            let guard = client.lock("still").lock().await.unwrap();
            let mut unlocking = pin!(guard.unlock());
            let mut done = false;
            for _ in 0..polls {
                done = done || poll_once(unlocking.as_mut());
                tokio::task::yield_now().await;
            }
            client.close().await.unwrap();
            assert!(!observer.lock("still").is_locked().await.unwrap(), "after {polls} polls");
            assert!(done || unlocking.await.unwrap() == Unlocked::Freed, "after {polls} polls");
        }
    })
    .await;
}

#[tokio::test]
async fn only_what_is_still_held_is_lost_to_close() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let (kept, given) = (client.lock("kept").lock().await.unwrap(), client.lock("given").lock().await.unwrap());
        let given = {
            let view = given.held();
            drop(given);
            view
        };
        client.close().await.unwrap();
        assert_eq!(kept.lost().await, Loss::Closed);
        assert_eq!(given.ended().await, fairlock::Ended::Freed);
        assert_eq!(given.ended().await, Ended::Freed);
        assert_eq!(kept.held().ended().await, fairlock::Ended::Lost(Loss::Closed));
        let extended = kept.extend(Duration::from_secs(30)).await;
        assert!(matches!(extended, Err(HoldError::Lost(Loss::Closed))), "{extended:?}");
    })
    .await;
}

/// The process paused for longer than the lease, and the first thing it does is to close the client.
#[tokio::test]
async fn a_hold_whose_deadline_has_passed_is_lost_to_that_and_not_to_close() {
    in_virtual_time(async |store| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = store.connect(Timing::default()).await;
        let guard = client.lock("late").lock().await.unwrap();
        assert_eq!(tokio::time::advance(guard.valid_for()).now_or_never(), None);
        client.close().await.unwrap();
        assert_eq!(guard.lost().await, Loss::Expired);
        assert!(!said.saw("WARN", "closing a client that still holds locks"), "{:?}", said.lines());
    })
    .await;
}

/// A queued wait whose caller stops polling it, like a `select!` loop that is busy with another branch.
#[tokio::test(start_paused = true)]
#[cfg(feature = "embedded")]
async fn a_wait_that_stands_still_does_not_stall_close_and_leaves_no_ticket() {
    let (timing, server) = (Timing::default(), fairlock::EmbeddedServer::new());
    let (client, other) = (timing.builder().embedded(&server).unwrap(), timing.builder().embedded(&server).unwrap());
    let holder = other.lock("x").lock().await.unwrap();
    let lock = client.lock("x");
    let mut waiting = Box::pin(lock.lock());
    while other.lock("x").status().await.unwrap().queue.is_empty() {
        assert!(!poll_once(waiting.as_mut()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let begun = tokio::time::Instant::now();
    client.close().await.unwrap();
    // Virtual time passes only while everything waits.
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(other.lock("x").status().await.unwrap().waiters, 0, "its ticket is gone");
    assert!(matches!(waiting.await, Err(LockError::Closed)));
    holder.unlock().await.unwrap();
}

/// The server grants the lock to a wait that nobody polls. Then the client closes.
#[tokio::test]
async fn a_grant_to_a_wait_that_stands_still_is_passed_on_by_close() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let holder = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let mut waiting = Box::pin(lock.lock());
        while other.lock("x").status().await.unwrap().queue.is_empty() {
            assert!(!poll_once(waiting.as_mut()));
            // Virtual time passes only while all tasks wait.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        holder.unlock().await.unwrap();
        assert!(other.lock("x").is_locked().await.unwrap(), "granted to the wait that stands still");
        client.close().await.unwrap();
        assert!(!other.lock("x").is_locked().await.unwrap(), "passed on");
        assert!(matches!(waiting.await, Err(LockError::Closed)));
    })
    .await;
}

/// The first request is out, and nobody has read its answer.
#[tokio::test]
async fn a_first_request_that_stands_still_is_taken_back_by_close() {
    on_each_store(async |store| {
        let observer = store.connect(Timing::default()).await;
        for moments in 0..5 {
            let client = store.connect(Timing::default()).await;
            let lock = client.lock("first");
            let mut acquiring = Box::pin(lock.lock());
            let acquired = poll_once(acquiring.as_mut());
            for _ in 0..moments {
                tokio::task::yield_now().await;
            }
            assert!(!acquired);
            client.close().await.unwrap();
            let free = async || !observer.lock("first").is_locked().await.unwrap();
            assert!(free().await, "after {moments} moments");
            drop(acquiring);
            assert!(free().await);
        }
    })
    .await;
}

#[tokio::test]
async fn monitors_end_with_the_hold() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        for lease in [None, Some(Duration::from_secs(20))] {
            let lock = client.lock("watched");
            let lock = lease.map_or(lock.clone(), |lease| lock.with_lease(lease));
            // After a first use, the permanent tasks exist.
            lock.lock().await.unwrap().unlock().await.unwrap();
            let before = tasks();
            for unlock in [true, false] {
                let guard = lock.lock().await.unwrap();
                let (one, two, token) = (guard.held(), guard.held(), guard.ended_token());
                let monitors = [
                    tokio::spawn(async move { assert_eq!(one.ended().await, Ended::Freed) }),
                    tokio::spawn(async move { assert_eq!(two.ended().await, fairlock::Ended::Freed) }),
                    tokio::spawn(async move { token.cancelled().await }),
                ];
                tokio::task::yield_now().await;
                match unlock {
                    true => drop(guard.unlock().await.unwrap()),
                    false => drop(guard),
                }
                for monitor in monitors {
                    monitor.await.unwrap();
                }
                eventually("no task is left", async || tasks() <= before).await;
            }
        }
        client.close().await.unwrap();
    })
    .await;
}

/// The server does not answer the release: the monitors end all the same, with or without a close.
#[tokio::test(start_paused = true)]
#[cfg(feature = "embedded")]
async fn monitors_end_when_the_release_has_no_answer() {
    for close in [false, true] {
        let (timing, server) = (Timing::default(), fairlock::EmbeddedServer::new());
        let client = timing.builder().embedded(&server).unwrap();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let guard = client.lock("x").lock().await.unwrap();
        let monitor = tokio::spawn({
            let view = guard.held();
            async move { view.ended().await }
        });
        server.shut_down();
        drop(guard);
        if close {
            assert_eq!(client.close().await.unwrap_err().unfinished, 1);
        }
        let ended = tokio::time::timeout(timing.lease * 4, monitor).await.expect("it ends").unwrap();
        assert_eq!(ended, fairlock::Ended::Freed, "it was given back while it was held");
        drop(client);
        eventually("no task is left", async || tasks() == 0).await;
    }
}

/// A close dropped half-way left the connection open, and watchers of the state waited forever.
#[tokio::test(start_paused = true)]
#[cfg(feature = "embedded")]
async fn a_close_that_is_dropped_or_not_polled_again_closes_all_the_same() {
    for is_dropped in [true, false] {
        let (timing, server) = (Timing::default(), fairlock::EmbeddedServer::new());
        let client = timing.builder().embedded(&server).unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        let mut watch = client.watch_state();
        // The server is silent, so the close takes its full time.
        server.shut_down();
        let mut closing = Some(Box::pin(client.close()));
        assert!(!poll_once(closing.as_mut().unwrap().as_mut()));
        if is_dropped {
            closing = None;
        }
        // A second close ended together with the first one, and returned `Ok`.
        let (late, tick) = (client.clone(), timing.operation_timeout);
        let late = tokio::spawn(async move {
            tokio::time::sleep(tick).await;
            late.close().await
        });
        let over = async { while watch.changed().await.is_some() {} };
        let longest = 3 * timing.operation_timeout + Duration::from_secs(1);
        tokio::time::timeout(longest, over).await.expect("the watch ends");
        assert_eq!(client.state().connection(), fairlock::ConnectionState::Closed);
        assert_eq!(guard.lost().await, Loss::Closed);
        assert_eq!(late.await.unwrap().unwrap_err().unfinished, 1);
        if let Some(closing) = closing {
            assert_eq!(closing.await.unwrap_err().unfinished, 1, "it says how it ended, when it is asked again");
        }
        assert_eq!(client.close().await.unwrap_err().unfinished, 1, "and so does each later call");
    }
}

/// The documentation named only clones and guards as keeping a client open.
#[tokio::test(start_paused = true)]
#[cfg(feature = "embedded")]
async fn a_client_is_open_until_the_last_thing_that_was_made_of_it_is_gone() {
    let server = fairlock::EmbeddedServer::new();
    let listeners = |id: &str| {
        let channel = format!("fairlock:wake:{id}");
        fairlock::simulation::command(&server, &["PUBLISH", &channel, "revoked 1 nobody"])
    };
    type Made = Box<dyn Send>;
    async fn held(client: &fairlock::LockClient) -> fairlock::Held {
        let guard = client.lock("x").lock().await.unwrap();
        guard.held()
    }
    for number in 0..6 {
        let client = fairlock::LockClient::builder().embedded(&server).unwrap();
        let id = client.id().to_owned();
        let made: Made = match number {
            0 => Box::new(client.clone()),
            1 => Box::new(client.lock("x")),
            2 => Box::new(client.lock("x").lock().await.unwrap()),
            3 => Box::new(held(&client).await),
            4 => Box::new(client.watch_state()),
            _ => Box::new(client.list("*")),
        };
        drop(client);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(listeners(&id), ["1"], "{number}");
        drop(made);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(listeners(&id), ["0"], "{number}");
    }
}

/// When its connection ended, the closing client connected once more. For the server that client existed forever: if a
/// failover brought back one of its places, the server granted the lock to it and waited for an answer.
#[tokio::test(start_paused = true)]
#[cfg(feature = "embedded")]
async fn a_closed_client_is_gone_from_an_embedded_server() {
    let server = fairlock::EmbeddedServer::new();
    let client = fairlock::LockClient::builder().embedded(&server).unwrap();
    let channel = format!("fairlock:wake:{}", client.id());
    let listeners = || fairlock::simulation::command(&server, &["PUBLISH", &channel, "revoked 1 nobody"]);
    assert_eq!(listeners(), ["1"]);
    client.close().await.unwrap();
    // Lets the client's last tasks run until none can go on.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(listeners(), ["0"]);
}
