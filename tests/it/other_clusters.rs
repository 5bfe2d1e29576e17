//! Addresses and seeds that lead to another cluster. The ids of the nodes decide which cluster is the client's.

use std::time::Duration;

use fairlock::LockClient;

use crate::support::cluster::{Cluster, command, slot_of};
use crate::support::{Collect, Proxy, Server, Timing, eventually, free_port, limit_to};

const NODES: [&str; 4] = ["--cluster-node-timeout", "2000", "--appendonly", "yes"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const LONGEST: Duration = Duration::from_secs(180);

async fn connect(url: &str) -> LockClient {
    let lease = Duration::from_secs(90);
    Timing { lease, operation_timeout: Duration::from_secs(2), ..Timing::default() }.connect(url).await
}

async fn lock_all(client: &LockClient) {
    for name in NAMES {
        let guard = client.lock(name).lock_timeout(Duration::from_secs(25)).await.unwrap();
        guard.unlock().await.unwrap();
    }
}

/// The number of connected clients of this library.
async fn clients_of(nodes: &[Server]) -> usize {
    let mut clients = 0;
    for node in nodes {
        clients += command(node, &["CLIENT", "LIST"]).await.matches(" sub=1 ").count();
    }
    clients
}

/// How many scripts of this library have run there, and how many clients have subscribed.
async fn used(nodes: &[Server]) -> u64 {
    let mut calls = 0;
    for node in nodes {
        calls += node.calls("evalsha").await + node.calls("subscribe").await;
    }
    calls
}

/// A client of `ours`, which moves to new addresses, and another cluster, which gets the old ones.
struct Places {
    ours: Cluster,
    theirs: Cluster,
    seed: Proxy,
    url: String,
    client: LockClient,
}

impl Places {
    async fn start() -> Self {
        let (ours, theirs) = (Cluster::with(3, &NODES).await, Cluster::with(3, &NODES).await);
        let seed = Proxy::start(&ours.masters[0]).await;
        let url = format!("redis+cluster://{}", seed.word());
        let client = connect(&url).await;
        lock_all(&client).await;
        assert!(clients_of(&ours.masters).await > 0 && clients_of(&theirs.masters).await == 0);
        Self { ours, theirs, seed, url, client }
    }

    /// All nodes of `ours` come back at other addresses, and the other cluster gets `taken` of their old addresses.
    async fn change(&mut self, taken: usize) {
        let before: Vec<_> = self.ours.masters.iter().map(Server::port).collect();
        self.ours.come_back_at(&[free_port(), free_port(), free_port()]).await;
        self.theirs.come_back_at(&before[..taken]).await;
        self.seed.move_to(&self.ours.masters[0]);
    }

    /// The client goes on at its own cluster, and a new client goes there too.
    async fn check(&self) {
        lock_all(&self.client).await;
        let held = self.client.lock("held").lock_timeout(Duration::from_secs(25)).await.unwrap();
        let other = connect(&self.url).await;
        assert!(other.lock("held").try_lock().await.unwrap().is_busy(), "two holders");
        assert!(held.is_valid());
        held.unlock().await.unwrap();
        lock_all(&other).await;
        assert_eq!((clients_of(&self.theirs.masters).await, used(&self.theirs.masters).await), (0, 0));
        assert!(clients_of(&self.ours.masters).await > 0);
    }
}

#[tokio::test]
async fn a_cluster_that_moves_is_found_again_and_not_the_one_that_gets_one_of_its_addresses() {
    limit_to(LONGEST, async {
        let mut places = Places::start().await;
        places.change(0).await;
        places.check().await;
        // The other cluster has earlier epochs first, and later ones afterwards.
        places.ours.advance_beyond(places.theirs.epoch().await).await;
        places.change(1).await;
        places.check().await;
        places.theirs.advance_beyond(places.ours.epoch().await + 5).await;
        places.change(1).await;
        places.check().await;
    })
    .await;
}

/// A new client went to the other cluster because of its later epoch, while connected clients stayed: two holders.
#[tokio::test]
async fn a_new_client_goes_to_the_cluster_that_most_of_its_seeds_lead_to() {
    limit_to(LONGEST, async {
        let (ours, theirs) = (Cluster::with(3, &NODES).await, Cluster::with(3, &NODES).await);
        theirs.advance_beyond(ours.epoch().await + 5).await;
        let seeds =
            [&ours.masters[0], &ours.masters[1], &theirs.masters[0]].map(|node| format!("127.0.0.1:{}", node.port()));
        let one = connect(&ours.url()).await;
        let held = one.lock("held").lock().await.unwrap();
        let other = connect(&format!("redis+cluster://{}", seeds.join(","))).await;
        assert!(other.lock("held").try_lock().await.unwrap().is_busy(), "two holders");
        held.unlock().await.unwrap();
        lock_all(&other).await;
        assert_eq!(used(&theirs.masters).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_gets_all_addresses_of_another_one_does_not_get_its_clients() {
    limit_to(LONGEST, async {
        let mut places = Places::start().await;
        places.theirs.advance_beyond(places.ours.epoch().await + 5).await;
        places.change(3).await;
        places.check().await;
        places.ours.advance_beyond(places.theirs.epoch().await + 5).await;
        places.change(3).await;
        places.check().await;
    })
    .await;
}

/// One known id proves nothing: a soft reset keeps the id, the address and the connections.
#[tokio::test]
async fn a_node_that_was_reset_and_has_joined_another_cluster_is_left() {
    limit_to(LONGEST, async {
        let (ours, theirs) = (Cluster::with(3, &NODES).await, Cluster::with(1, &NODES).await);
        let (stray, host) = (&ours.masters[2], &theirs.masters[0]);
        let client = connect(&format!("redis+cluster://127.0.0.1:{}", ours.masters[0].port())).await;
        let name = name_with_slot(stray, 10_923..16_384).await;
        client.lock(&name).lock().await.unwrap().unlock().await.unwrap();
        // Otherwise these two would report the reset to the client, and would join the other cluster together with the
        // node.
        ours.masters[..2].iter().for_each(Server::pause);
        let id = ours.id(2).await;
        for words in [["FLUSHALL", "SYNC"].as_slice(), &["CLUSTER", "RESET", "SOFT"]] {
            command(stray, words).await;
        }
        assert_eq!(ours.id(2).await, id);
        eventually("the client has left it", async || clients_of(std::slice::from_ref(stray)).await == 0).await;

        let nodes = command(host, &["CLUSTER", "NODES"]).await;
        // `<id> <address>:<port>@<bus port> …`
        let bus = nodes.split(['@', ' ', ',']).nth(2).unwrap();
        command(stray, &["CLUSTER", "MEET", "127.0.0.1", &host.port().to_string(), bus]).await;
        let slot = slot_of(host, &name).await.to_string();
        for server in [host, stray] {
            eventually("they know of each other", async || {
                let nodes = command(server, &["CLUSTER", "NODES"]).await;
                nodes.lines().count() == 2 && !nodes.contains("handshake")
            })
            .await;
            command(server, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
        }
        eventually("it serves the slot", async || {
            command(stray, &["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
        command(stray, &["CONFIG", "RESETSTAT"]).await;
        let error = client.lock(&name).lock_timeout(Duration::from_secs(8)).await.unwrap_err();
        assert!(error.to_string().contains("another cluster"), "{error}");
        assert_eq!(used(std::slice::from_ref(stray)).await, 0);
        // That node serves a client of the other cluster.
        let theirs = connect(&theirs.url()).await;
        theirs.lock(&name).lock().await.unwrap().unlock().await.unwrap();
        assert!(used(std::slice::from_ref(stray)).await > 0);
    })
    .await;
}

async fn name_with_slot(server: &Server, slots: std::ops::Range<u16>) -> String {
    for number in 0.. {
        let name = format!("name {number}");
        if slots.contains(&slot_of(server, &name).await) {
            return name;
        }
    }
    unreachable!("there are names without end")
}

#[tokio::test]
async fn a_cluster_that_was_replaced_on_purpose_is_found_by_the_seeds() {
    limit_to(LONGEST, async {
        let said = Collect::default();
        let _here = said.clone().here();
        let (old, new) = (Cluster::with(3, &NODES).await, Cluster::with(1, &NODES).await);
        let seed = Proxy::start(&old.masters[0]).await;
        let url = format!("redis+cluster://{}", seed.word());
        let (one, other) = (connect(&url).await, connect(&url).await);
        // The name belongs to a node that stays until the end.
        let name = name_with_slot(&old.masters[0], 10_923..16_384).await;
        let held = one.lock(&name).lock().await.unwrap();
        let waiting = {
            let (other, name) = (other.clone(), name.clone());
            tokio::spawn(async move { other.lock(&name).lock().await.unwrap() })
        };
        eventually("it waits", async || one.lock(&name).status().await.unwrap().waiters == 1).await;

        // Two of three masters answer, although their cluster is down.
        seed.fail_over_to(&new.masters[0]);
        old.masters[0].kill().await;
        eventually("it is down", async || {
            command(&old.masters[2], &["CLUSTER", "INFO"]).await.contains("cluster_state:fail")
        })
        .await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!((used(&new.masters).await, held.is_valid()), (0, true));

        // One of three answers.
        old.masters[1].kill().await;
        eventually("it is told", async || said.saw("WARN", "most masters of this cluster were replaced")).await;
        held.lost().await;
        let next = waiting.await.unwrap();
        assert!(next.is_valid() && one.lock(&name).try_lock().await.unwrap().is_busy());
        next.unlock().await.unwrap();
        eventually("it is left", async || clients_of(&old.masters[2..]).await == 0).await;
        lock_all(&one).await;
    })
    .await;
}
