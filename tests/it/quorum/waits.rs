//! Where calls wait: the gate, and what they hold in the meantime.

use std::cell::Cell;
use std::time::Duration;

use fairlock::LockError;
use tokio::time::Instant;

use super::{Load, Masters, Resource, embedded, quick};
use crate::support::{Embedded, Proxy, Timing, eventually, limit, on_several_in_virtual_time};

/// Q2: with two of five servers dead, a call needs all the others. While it waits at one of them it holds nothing above
/// it. Otherwise two calls that came in by different gates could wait for each other.
#[tokio::test]
async fn q2_who_waits_above_the_gate_holds_nothing_above_that() {
    limit(async {
        let masters = Masters::start(5).await;
        masters.0[3].kill().await;
        masters.0[4].kill().await;
        // Like a call that came in by another gate.
        let timing = Timing::default();
        let (at_one, at_two) = (timing.connect(&masters.0[1].url()).await, timing.connect(&masters.0[2].url()).await);
        let held = at_one.lock("x").lock().await.unwrap();
        let client = masters.client().await;
        let waiting = {
            let lock = client.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits at the second one", async || {
            at_one.lock("x").status().await.is_ok_and(|status| status.waiters == 1)
        })
        .await;
        let status = client.lock("x").status().await.unwrap();
        assert!(status.servers[0].answer.as_ref().is_ok_and(|node| node.holder.is_some()), "{status:?}");
        let above = at_two.lock("x").lock().await.unwrap();
        held.unlock().await.unwrap();
        eventually("it waits at the third one", async || {
            at_two.lock("x").status().await.is_ok_and(|status| status.waiters == 1)
        })
        .await;
        above.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.servers(), [0, 1, 2]);
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn q2_with_a_majority_a_busy_server_is_left_alone() {
    limit(async {
        let masters = Masters::start(3).await;
        let at_two = Timing::default().connect(&masters.0[2].url()).await;
        let _held = at_two.lock("x").lock().await.unwrap();
        let client = masters.client().await;
        let guard = client.lock("x").lock().await.unwrap();
        assert_eq!(guard.servers(), [0, 1]);
        guard.unlock().await.unwrap();
        let guard = client.lock("x").try_lock().await.unwrap().into_result().expect("a majority is free");
        guard.unlock().await.unwrap();
    })
    .await;
}

/// Q2: but a call never skips a busy gate, where others may wait: it would overtake them (P3).
#[tokio::test]
async fn q2_a_busy_gate_is_waited_for_although_a_majority_is_free() {
    limit(async {
        let masters = Masters::start(3).await;
        let at_gate = Timing::default().connect(&masters.0[0].url()).await;
        let held = at_gate.lock("x").lock().await.unwrap();
        let client = masters.client().await;
        assert!(client.lock("x").try_lock().await.unwrap().is_busy());
        let waiting = {
            let lock = client.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits at the gate", async || {
            at_gate.lock("x").status().await.is_ok_and(|status| status.waiters == 1)
        })
        .await;
        held.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.servers(), [0, 1, 2]);
        guard.unlock().await.unwrap();
    })
    .await;
}

/// Q1: first come, first served if all callers can reach the gate, even across clients.
#[tokio::test]
async fn q1_those_who_reach_the_same_gate_are_served_in_their_order() {
    limit(async {
        let masters = Masters::start(3).await;
        let clients = [masters.client().await, masters.client().await, masters.client().await];
        let held = clients[0].lock("x").lock().await.unwrap();
        let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for place in 0..9 {
            let (lock, order) = (clients[place % 3].lock("x"), order.clone());
            waiting.push(tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                order.lock().unwrap().push(place);
                guard.unlock().await.unwrap();
            }));
            let status = async || clients[0].lock("x").status().await.unwrap().waiters;
            eventually("it waits", async || status().await == place as u64 + 1).await;
        }
        held.unlock().await.unwrap();
        for wait in waiting {
            wait.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..9).collect::<Vec<_>>());
        for client in clients {
            client.close().await.unwrap();
        }
        masters.assert_clean().await;
    })
    .await;
}

/// Two clients that see different gates exclude each other.
#[tokio::test]
async fn a_client_that_cannot_reach_the_gate_waits_at_the_next_server() {
    limit(async {
        let masters = Masters::start(3).await;
        let proxy = Proxy::start(&masters.0[0]).await;
        let cut_off = quick().connect([proxy.url(), masters.urls()[1].clone(), masters.urls()[2].clone()]);
        let (cut_off, other) = (cut_off.await.unwrap(), masters.client().await);
        proxy.refuse(true);
        proxy.reset_all();
        eventually("it does without the gate", async || {
            cut_off.lock("y").lock().await.is_ok_and(|guard| guard.servers() == [1, 2])
        })
        .await;
        let held = other.lock("x").lock().await.unwrap();
        let waiting = {
            let lock = cut_off.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits at the second one", async || {
            let status = other.lock("x").status().await.unwrap();
            status.servers[1].answer.as_ref().is_ok_and(|node| node.waiters == 1)
        })
        .await;
        let token = held.token();
        held.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.token() > token && guard.servers() == [1, 2], "{guard:?}");
        assert!(other.lock("x").try_lock().await.unwrap().is_busy(), "two have it");
        guard.unlock().await.unwrap();
        proxy.refuse(false);
        eventually("it uses the gate again", async || {
            cut_off.lock("y").lock().await.is_ok_and(|guard| guard.servers() == [0, 1, 2])
        })
        .await;
        cut_off.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// Q10: after a wait the call looks at the servers again. Otherwise each waiter would wait for the dead one.
#[tokio::test]
async fn q10_a_server_that_died_during_the_wait_is_not_waited_for() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let node_timeout = Duration::from_secs(10);
        let patient = Timing::relaxed().builder();
        let client = embedded(patient.server_timeout(node_timeout).without_strict_restart(), servers);
        let held = client.lock("x").lock().await.unwrap();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let lock = client.lock("x");
                tokio::spawn(async move { lock.lock().await.map(drop) })
            })
            .collect();
        let status = async || client.lock("x").status().await.unwrap();
        eventually("they wait", async || status().await.waiters == 3).await;
        servers[2].server.shut_down();
        let watch = client.lock("y");
        eventually("it is known to be down", async || watch.lock().await.is_ok_and(|y| y.servers() == [0, 1])).await;
        let begun = Instant::now();
        drop(held);
        for wait in waiting {
            wait.await.unwrap().unwrap();
        }
        // The bound is the time-out that each of them would wait for.
        assert!(begun.elapsed() < node_timeout, "{:?}", begun.elapsed());
        servers[2].server.start_up();
    })
    .await;
}

/// Q10: the gate freezes while they wait there, and the next server becomes the gate.
#[tokio::test]
async fn q10_those_who_wait_at_a_gate_that_freezes_go_to_the_next_one() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let resource = Resource::default();
        let held = one.lock("x").lock().await.unwrap();
        resource.visit(&held).await;
        let waiting: Vec<_> = [&one, &other]
            .map(|client| {
                let lock = client.lock("x");
                tokio::spawn(async move { lock.lock().await })
            })
            .into_iter()
            .collect();
        eventually("they wait", async || one.lock("x").status().await.unwrap().waiters == 2).await;
        masters.0[0].pause();
        held.unlock().await.unwrap();
        for wait in waiting {
            let guard = wait.await.unwrap().unwrap();
            assert_eq!(guard.servers(), [1, 2]);
            resource.visit(&guard).await;
            drop(guard);
        }
        masters.0[0].resume();
        one.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// The gate refuses one name for good, so the next server is the gate for that name.
#[tokio::test]
async fn a_gate_that_refuses_the_name_is_not_waited_at() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let mut redis = masters.0[0].connection().await;
        redis::cmd("SET").arg("fairlock:{n:x}").arg("foreign").exec_async(&mut redis).await.unwrap();
        let held = one.lock("x").lock().await.unwrap();
        assert_eq!(held.servers(), [1, 2]);
        let waiting = {
            let lock = other.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits at the second one", async || {
            let status = one.lock("x").status().await.unwrap();
            status.servers[1].answer.as_ref().is_ok_and(|node| node.waiters == 1)
        })
        .await;
        held.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
    })
    .await;
}

/// Q10: the gate answers but refuses everything while they wait there. They go to the next one.
#[tokio::test]
async fn q10_those_who_wait_at_a_gate_that_begins_to_refuse_go_to_the_next_one() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let held = one.lock("x").lock().await.unwrap();
        let waiting = {
            let lock = other.lock("x");
            tokio::spawn(async move { lock.lock().await })
        };
        eventually("it waits", async || one.lock("x").status().await.unwrap().waiters == 1).await;
        let mut redis = masters.0[0].connection().await;
        redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "1"]).exec_async(&mut redis).await.unwrap();
        // The gate refuses this too, and goes on counting the hold.
        let _ = held.unlock().await;
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.servers(), [1, 2]);
        guard.unlock().await.unwrap();
        redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "0"]).exec_async(&mut redis).await.unwrap();
        one.close().await.unwrap();
        other.close().await.unwrap();
        masters.assert_clean().await;
    })
    .await;
}

/// The same, already at the first refused probe: the next poll and the next probe may be seconds away.
#[tokio::test]
async fn q10_a_gate_that_begins_to_refuse_is_noticed_before_the_next_poll() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let poll_interval = Duration::from_secs(30);
        let timing = Timing {
            lease: poll_interval,
            poll_interval,
            waiter_ttl: poll_interval * 3,
            grant_ttl: poll_interval,
            ..Timing::default()
        };
        // A probe comes at each third of the operation time-out.
        let first_probe = timing.operation_timeout / 3;
        let connect = || embedded(timing.builder().without_strict_restart(), servers);
        let (one, other) = (connect(), connect());
        let held = one.lock("x").lock().await.unwrap();
        let lock = other.lock("x");
        let waiting = tokio::spawn(async move { lock.lock_timeout(first_probe * 3 / 2).await });
        eventually("it waits", async || one.lock("x").status().await.unwrap().waiters == 1).await;
        servers[0].network.refuse(Some("NOREPLICAS Not enough good replicas to write."));
        let _ = held.unlock().await;
        assert_eq!(waiting.await.unwrap().unwrap().servers(), [1, 2]);
        servers[0].network.refuse(None);
    })
    .await;
}

/// A caller whose time has ended gets not even one more round of requests.
#[tokio::test]
async fn a_time_out_says_whether_others_have_it_or_too_few_servers_serve() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (one, other) = (embedded(quick(), servers), embedded(quick(), servers));
        let held = one.lock("x").lock().await.unwrap();
        assert!(matches!(other.lock("x").lock_timeout(Duration::from_secs(3)).await, Err(LockError::Timeout { .. })));
        let refuse = |refusal| servers[1..].iter().for_each(|server| server.network.refuse(refusal));
        refuse(Some("NOREPLICAS Not enough good replicas to write."));
        let error = other.lock("y").lock_timeout(Duration::from_millis(500)).await.unwrap_err();
        assert!(
            matches!(&error, LockError::Unreachable(cause) if cause.to_string().contains("NOREPLICAS")),
            "{error:?}"
        );
        refuse(None);
        drop(held);
    })
    .await;
}

/// A grant of the gate came so late that the client confirmed it first, so it did not count as one. At whatever moment
/// the call ends, others were in its way.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn a_call_that_waited_at_the_gate_and_ends_in_the_middle_of_a_request_says_so() {
    let servers = [0; 3].map(|_| fairlock::simulation::server(crate::support::Network::slow()));
    let poll = Timing::default().poll_interval;
    let nodes = Timing { grant_ttl: Duration::from_millis(1), ..Timing::default() };
    let connect = || nodes.builder().without_strict_restart().embedded(&servers).unwrap();
    let (one, other) = (connect(), connect());
    let mut acquired = 0;
    for later in (0..120).step_by(2).map(Duration::from_millis) {
        let holder = one.lock("x").lock().await.unwrap();
        let lock = other.lock("x");
        let waiting = tokio::spawn(async move { lock.lock_timeout(poll + later).await });
        tokio::time::sleep(poll - Duration::from_millis(20)).await;
        holder.unlock().await.unwrap();
        match waiting.await.unwrap() {
            Ok(guard) => {
                acquired += 1;
                guard.unlock().await.unwrap();
            }
            Err(error) => assert!(matches!(error, LockError::Timeout { .. }), "after {later:?}: {error:?}"),
        }
        // The client releases the rest in the background.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(acquired > 0 && acquired < 60, "{acquired}: from before the hand-over to after the last answer");
    one.close().await.unwrap();
    other.close().await.unwrap();
}

/// P9: a call begins to wait at a server just when that server is lost. The task that looks for lost servers looks only
/// after that, so it sees no change.
#[tokio::test]
async fn p9_a_call_that_begins_to_wait_as_its_server_is_lost_goes_on() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let clients = [embedded(quick(), servers), embedded(quick(), servers)];
        let lock = clients[1].lock("x");
        for polls in (0..8).rev() {
            let held = clients[0].lock("x").lock().await.unwrap();
            let mut call = std::pin::pin!(lock.lock());
            for _ in 0..polls {
                assert!(futures::future::poll_immediate(call.as_mut()).await.is_none(), "another one has it");
                tokio::task::yield_now().await;
            }
            assert!(futures::future::poll_immediate(call.as_mut()).await.is_none(), "another one has it");
            servers[0].server.shut_down();
            held.unlock().await.unwrap();
            let guard = tokio::time::timeout(Duration::from_secs(5), call).await;
            guard.unwrap_or_else(|_| panic!("no end after {polls} polls")).unwrap().unlock().await.unwrap();
            servers[0].server.start_up();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    })
    .await;
}

/// P9: a client without the gate keeps two calls queued at the second server. Another client's call has the gate and
/// queues there too, so it gets its turn: it would never find that server free.
#[tokio::test]
async fn p9_a_client_that_is_cut_off_from_the_gate_starves_nobody() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let connect = || embedded(quick(), servers);
        let (cut_off, others) = (connect(), [connect(), connect(), connect()]);
        servers[0].network.cut_off(cut_off.id());
        // Its calls follow each other without a pause: one is inside, and two wait.
        let mut load = Load::start([cut_off.clone(), cut_off.clone(), cut_off.clone()]);
        eventually("two of its calls wait at the second server", async || {
            let status = others[0].lock("x").status().await.unwrap();
            status.servers[1].answer.as_ref().is_ok_and(|node| node.waiters == 2)
        })
        .await;
        let taking_turns = others.map(|client| {
            let (lock, resource) = (client.lock("x"), load.resource.clone());
            tokio::spawn(async move {
                for _ in 0..10 {
                    // The longest pause of a call that begins again.
                    let guard = lock.lock_timeout(Duration::from_secs(3)).await.expect("it has its turn");
                    resource.visit(&guard).await;
                    guard.unlock().await.unwrap();
                }
            })
        });
        for turns in taking_turns {
            turns.await.unwrap();
        }
        assert!(load.tasks.try_join_next().is_none(), "one of its calls has failed");
        drop(load);
        servers[0].network.mend(cut_off.id());
    })
    .await;
}

/// P3: a call that has lost the gate has lost its turn, and waiting further up is of no use to it.
#[tokio::test]
async fn p3_who_loses_the_gate_while_it_waits_above_goes_back_to_it() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let connect = |server: &Embedded| Timing::default().builder().embedded(&server.server).unwrap();
        let (at_gate, at_two) = (connect(&servers[0]), connect(&servers[1]));
        let held = at_two.lock("x").lock().await.unwrap();
        servers[2].network.cut_off(client.id());
        let lock = client.lock("x").with_lease(Duration::from_secs(5));
        let waiting = tokio::spawn(async move { lock.lock().await });
        let mut last = 0;
        // The test ends the first hold of the gate by force; later ones end with their lease.
        for _ in 0..3 {
            let token = Cell::new(0);
            eventually("it has the gate, and waits at the second one", async || {
                let holder = at_gate.lock("x").status().await.unwrap().holder;
                token.set(holder.map_or(0, |holder| holder.token));
                token.get() > last && at_two.lock("x").status().await.unwrap().waiters == 1
            })
            .await;
            if last == 0 {
                at_gate.lock("x").force_unlock().await.unwrap();
            }
            last = token.get();
        }
        held.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.servers(), [0, 1]);
        guard.unlock().await.unwrap();
        servers[2].network.mend(client.id());
    })
    .await;
}
