//! A cluster of real servers: slots that move, redirects, slots without a master, and the errors of connecting.

use std::time::Duration;

use fairlock::{ConnectError, LockError, OptionsError};

use crate::connecting::{MORE_RIGHTS, RIGHTS, set_user};
use crate::support::cluster::{Cluster, command, slot_of};
use crate::support::{Server, Timing, eventually, limit};

/// A name for each master, in the order of the masters.
async fn one_name_each(cluster: &Cluster) -> Vec<String> {
    one_name_each_by(cluster, 0).await
}

/// The same, asking only this master.
async fn one_name_each_by(cluster: &Cluster, asked: usize) -> Vec<String> {
    let mut names = vec![None; cluster.masters.len()];
    for number in 0.. {
        let name = format!("job {number}");
        let slot = usize::from(slot_of(&cluster.masters[asked], &name).await);
        let master = slot * cluster.masters.len() / 16_384;
        names[master].get_or_insert(name);
        if names.iter().all(Option::is_some) {
            break;
        }
    }
    names.into_iter().flatten().collect()
}

#[tokio::test]
async fn names_live_on_all_masters() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let one = Timing::relaxed().connect(&cluster.url()).await;
        let other = Timing::relaxed().connect(&cluster.url()).await;
        let names = one_name_each(&cluster).await;
        for (name, master) in names.iter().zip(&cluster.masters) {
            let guard = one.lock(name).lock().await.unwrap();
            assert!(master.keys().await.contains(&format!("fairlock:{{n:{name}}}")), "{name}");
            assert!(other.lock(name).try_lock().await.unwrap().is_busy());
            let waiting = {
                let (other, name) = (other.clone(), name.clone());
                tokio::spawn(async move { other.lock(&name).lock().await.unwrap().unlock().await })
            };
            eventually("it waits", async || one.lock(name).status().await.unwrap().waiters == 1).await;
            guard.unlock().await.unwrap();
            waiting.await.unwrap().unwrap();
        }
        one.close().await.unwrap();
        other.close().await.unwrap();
        for master in &cluster.masters {
            master.assert_clean().await;
        }
    })
    .await;
}

/// The error said that the connection had ended.
#[tokio::test]
async fn a_first_call_that_has_no_connection_yet_says_so() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let names = one_name_each(&cluster).await;
        let client = Timing::relaxed().connect(&cluster.url()).await;
        // Paused from before the first call that needs it.
        cluster.masters[2].pause();
        let error = client.lock(&names[2]).lock_timeout(Duration::from_millis(100)).await.unwrap_err();
        assert!(error.to_string().contains("there is no connection to the server yet"), "{error}");
        cluster.masters[2].resume();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn semaphores_and_read_write_locks_live_on_all_masters() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let one = Timing::relaxed().connect(&cluster.url()).await;
        let other = Timing::relaxed().connect(&cluster.url()).await;
        for name in one_name_each(&cluster).await {
            let (gate, theirs) = (one.semaphore(&name, 2), other.semaphore(&name, 2));
            gate.set_permits(Some(1)).await.unwrap();
            let permit = gate.acquire().await.unwrap();
            let waiting = tokio::spawn(async move { theirs.acquire().await.unwrap().release().await });
            eventually("it waits", async || gate.status().await.unwrap().waiters == 1).await;
            permit.release().await.unwrap();
            waiting.await.unwrap().unwrap();
            gate.set_permits(None).await.unwrap();
            let document = one.rw_lock(&name);
            let reading = document.write().await.unwrap().downgrade().await.unwrap();
            other.rw_lock(&name).read().await.unwrap().unlock().await.unwrap();
            reading.unlock().await.unwrap();
        }
        one.close().await.unwrap();
        other.close().await.unwrap();
        for master in &cluster.masters {
            master.assert_clean().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_master_is_connected_to_when_a_name_needs_it() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let client = Timing::default().connect(&cluster.url()).await;
        let subscribed = async |master: &Server| !command_lines(master, &["PUBSUB", "CHANNELS"]).await.is_empty();
        let count = async || {
            let mut count = 0;
            for master in &cluster.masters {
                count += u32::from(subscribed(master).await);
            }
            count
        };
        assert_eq!(count().await, 1, "one, to report what is wrong");
        for name in one_name_each(&cluster).await {
            client.lock(&name).lock().await.unwrap().unlock().await.unwrap();
        }
        assert_eq!(count().await, 3);
        client.close().await.unwrap();
        eventually("no connection is left", async || count().await == 0).await;
    })
    .await;
}

async fn command_lines(server: &Server, words: &[&str]) -> Vec<String> {
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut server.connection().await).await.unwrap()
}

#[tokio::test]
async fn a_hold_and_its_queue_move_with_their_slot() {
    limit(async {
        let cluster = Cluster::start(2).await;
        let name = &one_name_each(&cluster).await[0];
        let slot = slot_of(&cluster.masters[0], name).await;
        let one = Timing::default().connect(&cluster.url()).await;
        let other = Timing::default().connect(&cluster.url()).await;
        let guard = one.lock(name).lock().await.unwrap();
        let waiting = {
            let (other, name) = (other.clone(), name.clone());
            tokio::spawn(async move { other.lock(&name).lock().await.unwrap().token() })
        };
        eventually("it waits", async || one.lock(name).status().await.unwrap().waiters == 1).await;
        cluster
            .move_slot(slot, 0, 1, async || {
                // Longer than the lease: the client renews it over ASK while the slot moves.
                let key = format!("fairlock:{{n:{name}}}");
                let evaluated = cluster.masters[1].calls("asking").await;
                eventually("it is renewed twice over ASK", async || {
                    cluster.masters[1].calls("asking").await >= evaluated + 2
                })
                .await;
                assert!(guard.is_valid(), "{key}");
            })
            .await;
        assert!(guard.is_valid());
        let token = guard.token();
        guard.unlock().await.unwrap();
        assert!(waiting.await.unwrap() > token);
        assert!(cluster.masters[0].keys().await.is_empty());
    })
    .await;
}

/// A master that was replaced while it was frozen may continue and grant. Its message proves nothing about a lock of
/// another node.
#[tokio::test]
async fn p1_a_grant_of_another_node_is_not_trusted() {
    limit(async {
        let cluster = Cluster::start(2).await;
        let names = one_name_each(&cluster).await;
        let key = format!("fairlock:{{n:{}}}", names[0]);
        let one = Timing::relaxed().connect(&cluster.url()).await;
        let other = Timing::relaxed().connect(&cluster.url()).await;
        let guard = one.lock(&names[0]).lock().await.unwrap();
        // So that `other` is connected to both masters.
        let beside = other.lock(&names[1]).lock().await.unwrap();
        let waiting = {
            let (other, name) = (other.clone(), names[0].clone());
            tokio::spawn(async move { other.lock(&name).lock().await.unwrap().token() })
        };
        eventually("it waits", async || one.lock(&names[0]).status().await.unwrap().waiters == 1).await;
        let places = command_lines(&cluster.masters[0], &["LRANGE", &format!("{key}:queue"), "0", "-1"]).await;
        let ticket = places[0].split('/').next().unwrap();
        let message = format!("grant {} 30000 {ticket} {key}", guard.token() + 1);
        let polls = cluster.masters[0].calls("zmscore").await;
        let publish = async |channel: String| {
            let mut redis = cluster.masters[1].connection().await;
            redis::cmd("PUBLISH").arg(channel).arg(&message).query_async::<i64>(&mut redis).await.unwrap()
        };
        let own = format!("fairlock:wake:{}:{}", &cluster.id(1).await[..8], other.id());
        assert_eq!(publish(own).await, 1, "the other node's own channel");
        assert_eq!(publish(format!("fairlock:wake:{}", other.id())).await, 0, "no channel is the same at all nodes");
        eventually("it asks the node that serves the lock", async || cluster.masters[0].calls("zmscore").await > polls)
            .await;
        assert!(guard.is_valid() && !waiting.is_finished());
        guard.unlock().await.unwrap();
        waiting.await.unwrap();
        beside.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_new_name_waits_until_its_slot_has_moved() {
    limit(async {
        let cluster = Cluster::start(2).await;
        let name = &one_name_each(&cluster).await[0];
        let slot = slot_of(&cluster.masters[0], name).await;
        let client = Timing::default().connect(&cluster.url()).await;
        // Connects to the other node first.
        client.lock(&one_name_each(&cluster).await[1]).lock().await.unwrap().unlock().await.unwrap();
        let moving = async || {
            let error = client.lock(name).lock_timeout(Duration::from_millis(300)).await.unwrap_err();
            assert!(
                matches!(&error, LockError::Unreachable(cause) if cause.to_string().contains("TRYAGAIN")),
                "{error:?}"
            );
        };
        cluster.move_slot(slot, 0, 1, moving).await;
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        // Only the token remains once the tombstone of an unanswered call has expired.
        let of_it = async || cluster.masters[1].keys().await.iter().filter(|key| key.contains(name.as_str())).count();
        eventually("its token is there alone", async || of_it().await == 1).await;
    })
    .await;
}

#[tokio::test]
async fn nodes_without_a_name_of_their_own_are_found() {
    limit(async {
        let cluster = Cluster::with(2, &["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
        let names = one_name_each(&cluster).await;
        let client = Timing::default().connect(&cluster.url()).await;
        for name in &names {
            client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        }
        let slot = slot_of(&cluster.masters[0], &names[0]).await;
        cluster.move_slot(slot, 0, 1, async || {}).await;
        client.lock(&names[0]).lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_slot_without_a_master_waits_and_the_others_go_on() {
    limit(async {
        let cluster = Cluster::with(2, &["--cluster-require-full-coverage", "no"]).await;
        let names = one_name_each(&cluster).await;
        let slot = slot_of(&cluster.masters[0], &names[0]).await.to_string();
        for master in &cluster.masters {
            command(master, &["CLUSTER", "DELSLOTS", &slot]).await;
        }
        let client = Timing::default().connect(&cluster.url()).await;
        client.lock(&names[1]).lock().await.unwrap().unlock().await.unwrap();
        let error = client.lock(&names[0]).lock_timeout(Duration::from_millis(500)).await.unwrap_err();
        let named = format!("slot {slot}");
        assert!(matches!(&error, LockError::Unreachable(cause) if cause.to_string().contains(&named)), "{error:?}");
        let waiting = {
            let (client, name) = (client.clone(), names[0].clone());
            tokio::spawn(async move { client.lock(&name).lock().await.unwrap().unlock().await.unwrap() })
        };
        command(&cluster.masters[1], &["CLUSTER", "ADDSLOTS", &slot]).await;
        waiting.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_no_cluster_is_told_by_its_name() {
    limit(async {
        let single = Server::start().await;
        let refused = async |url: &str| Timing::default().builder().connect(url).await.expect_err("it cannot connect");
        let error = refused(&format!("redis+cluster://127.0.0.1:{}", single.port())).await;
        assert!(matches!(error, ConnectError::NotCluster { .. }), "{error:?}");
        let empty = Server::node().await;
        let error = refused(&format!("redis+cluster://127.0.0.1:{}", empty.port())).await;
        assert!(matches!(error, ConnectError::NoMasters { .. }), "{error:?}");
        let error = refused(&format!("redis+cluster://127.0.0.1:{}/1", empty.port())).await;
        assert!(matches!(error, ConnectError::Options(OptionsError::DatabaseOnCluster(1))), "{error:?}");
        let error = refused(&format!("redis://127.0.0.1:{}", empty.port())).await;
        assert!(error.to_string().contains("redis+cluster://"), "{error}");
        let error = refused("redis+cluster://127.0.0.1:1").await;
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    })
    .await;
}

/// The line of docs/deploying.md, plus four rights.
#[tokio::test]
async fn each_right_that_a_cluster_needs_is_named() {
    limit(async {
        let cluster = Cluster::start(1).await;
        let url = cluster.url().replace("redis+cluster://", "redis+cluster://worker:secret@");
        let beside = ["+cluster|slots", "+cluster|info", "+cluster|myid", "+asking"];
        let all: Vec<&str> = RIGHTS.into_iter().chain(MORE_RIGHTS).chain(beside).collect();
        set_user(&cluster.masters[0], all.iter().copied()).await;
        let client = Timing::default().connect(&url).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        for right in beside {
            set_user(&cluster.masters[0], all.iter().copied().filter(|other| *other != right)).await;
            let error = Timing::default().builder().connect(&url).await.unwrap_err();
            assert!(matches!(&error, ConnectError::Rights { .. }), "without {right}: {error:?}");
            assert!(error.to_string().contains(right), "without {right}: {error}");
        }
    })
    .await;
}

#[tokio::test]
async fn connecting_does_not_wait_for_a_frozen_node() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let operation_timeout = Duration::from_secs(20);
        let timing = Timing { lease: Duration::from_secs(60), operation_timeout, ..Timing::relaxed() };
        // The first one of the list and of the slot table.
        cluster.masters[0].pause();
        let begun = tokio::time::Instant::now();
        let client = timing.connect(&cluster.url()).await;
        let name = &one_name_each_by(&cluster, 1).await[1];
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        assert!(begun.elapsed() < operation_timeout, "it waited for {:?}", begun.elapsed());
        cluster.masters[0].resume();
    })
    .await;
}
