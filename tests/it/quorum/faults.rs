//! Many clients at a resource that checks tokens, while servers and connections fail.

use std::time::Duration;

use super::{Load, Masters, quick, strict};
use crate::support::{Proxy, Server, eventually, limit, limit_to};

async fn five_clients(masters: &Masters) -> Vec<fairlock::LockClient> {
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(masters.client().await);
    }
    clients
}

#[tokio::test]
async fn they_take_turns_while_masters_are_frozen_and_killed() {
    limit(async {
        let masters = Masters::with(3, &["--appendonly", "yes"]).await;
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        // The gate.
        masters.0[0].pause();
        load.goes_on("they work without it").await;
        masters.0[0].resume();
        load.goes_on("they work with it again").await;
        masters.0[0].kill().await;
        load.goes_on("they work after it was killed").await;
        masters.0[0].restart_with_data().await;
        load.goes_on("they work after its restart").await;
        masters.0[2].kill().await;
        load.goes_on("they work without another one").await;
        masters.0[2].restart_with_data().await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn they_take_turns_while_two_of_five_are_killed() {
    limit(async {
        let masters = Masters::with(5, &["--appendonly", "yes"]).await;
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        masters.0[0].kill().await;
        masters.0[3].kill().await;
        load.goes_on("they work without two").await;
        masters.0[0].restart_with_data().await;
        masters.0[3].restart_with_data().await;
        load.goes_on("they work with all").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

/// With and without data, one after the other: the freeze keeps a server out until every hold that it may have
/// forgotten has ended.
#[tokio::test]
async fn q8_they_take_turns_while_masters_are_restarted_and_forget() {
    limit_to(Duration::from_secs(180), async {
        let masters = Masters::start(3).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(strict().connect(masters.urls()).await.unwrap());
        }
        let watch = clients[0].lock("y");
        let all = async || {
            let counting = async || watch.lock().await.is_ok_and(|guard| guard.servers() == [0, 1, 2]);
            eventually("all of them count", counting).await;
        };
        all().await;
        let load = Load::start(clients);
        for server in &masters.0 {
            load.goes_on("they work").await;
            server.restart().await;
            load.goes_on("they work without it").await;
            all().await;
        }
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

/// One client in five cannot reach the gate and waits at the next server. The tokens still grow.
#[tokio::test]
async fn they_take_turns_while_one_client_is_cut_off_from_one_server() {
    limit(async {
        let masters = Masters::start(3).await;
        let mut clients = five_clients(&masters).await;
        let proxy = Proxy::start(&masters.0[0]).await;
        let urls = [proxy.url(), masters.urls()[1].clone(), masters.urls()[2].clone()];
        clients.push(quick().connect(urls).await.unwrap());
        let load = Load::start(clients);
        load.goes_on("they work").await;
        proxy.blackhole(true);
        load.goes_on("they work while nothing arrives").await;
        proxy.blackhole(false);
        load.goes_on("they work after it").await;
        proxy.refuse(true);
        proxy.reset_all();
        load.goes_on("they work while it is refused").await;
        proxy.refuse(false);
        load.goes_on("they work with all").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn they_take_turns_with_clocks_apart_by_three_seconds() {
    limit(async {
        let shift = crate::support::clock();
        let mut servers = Vec::new();
        for ms in [3000, 0, -3000] {
            servers.push(Server::with_clock(shift, ms, &["--appendonly", "yes"]).await);
        }
        let masters = Masters(servers);
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        // This server is the gate, and its tokens are the greatest.
        masters.0[0].kill().await;
        load.goes_on("they work without the one that is ahead").await;
        masters.0[0].restart_with_data().await;
        masters.0[1].pause();
        load.goes_on("they work without the second one").await;
        masters.0[1].resume();
        load.goes_on("they work with all").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn they_take_turns_while_a_third_of_the_replies_is_lost() {
    limit(async {
        let masters = Masters::start(3).await;
        let (mut proxies, mut clients) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let mut urls = Vec::new();
            for (index, server) in masters.0.iter().enumerate() {
                let proxy = Proxy::start(server).await;
                proxy.lose_replies(0.0, number * 10 + index as u64);
                urls.push(proxy.url());
                proxies.push(proxy);
            }
            clients.push(quick().connect(urls).await.unwrap());
        }
        let load = Load::start(clients);
        load.goes_on("they work").await;
        proxies.iter().enumerate().for_each(|(seed, proxy)| proxy.lose_replies(0.3, seed as u64));
        // Each lost reply ends a connection.
        load.goes_on_for(10, "they work while replies are lost").await;
        proxies.iter().for_each(|proxy| proxy.lose_replies(0.0, 0));
        load.goes_on("they work after it").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn they_take_turns_while_the_gate_is_full() {
    limit(async {
        let masters = Masters::start(3).await;
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        let mut redis = masters.0[0].connection().await;
        let limit = async |redis: &mut redis::aio::MultiplexedConnection, bytes: &str| {
            redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec_async(redis).await.unwrap();
        };
        redis::cmd("CONFIG").arg(&["SET", "maxmemory-policy", "noeviction"]).exec_async(&mut redis).await.unwrap();
        limit(&mut redis, "1").await;
        load.goes_on("they work while it is full").await;
        limit(&mut redis, "0").await;
        load.goes_on("they work after it").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn they_take_turns_while_the_gate_is_a_replica() {
    limit(async {
        let (masters, primary) = (Masters::start(3).await, Server::start().await);
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        masters.0[0].replicate(&primary).await;
        load.goes_on("they work while it is read-only").await;
        masters.0[0].promote().await;
        load.goes_on("they work after it").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}

/// NOREPLICAS at the gate: it answers, but refuses.
#[tokio::test]
async fn they_take_turns_while_the_gate_refuses() {
    limit(async {
        let masters = Masters::start(3).await;
        let load = Load::start(five_clients(&masters).await);
        load.goes_on("they work").await;
        let mut redis = masters.0[0].connection().await;
        redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "1"]).exec_async(&mut redis).await.unwrap();
        load.goes_on("they work while it refuses").await;
        redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "0"]).exec_async(&mut redis).await.unwrap();
        load.goes_on("they work after it").await;
        load.stop().await;
        masters.assert_clean().await;
    })
    .await;
}
