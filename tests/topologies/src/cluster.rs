//! Three masters with a replica each.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;

use crate::ports::free_port;
use crate::server::{Server, ask};
use crate::testbed::{Nanos, Testbed, eventually, note};

const SLOTS: u16 = 16_384;
pub const SHARDS: usize = 3;
/// After this much silence the cluster takes a node for dead.
pub const NODE_TIMEOUT_MS: u64 = 2000;

pub struct Node {
    pub server: Arc<Server>,
    pub id: String,
    bus: u16,
}

/// A node as another one sees it.
#[derive(Debug, Clone)]
pub struct Known {
    pub id: String,
    pub is_master: bool,
    pub failed: bool,
    slots: Vec<(u16, u16)>,
}

/// The first three nodes begin as masters, the others as their replicas.
pub struct Cluster {
    pub nodes: Vec<Node>,
}

/// The slot of a key.
pub fn slot_of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let mut crc: u16 = 0;
    for byte in tag.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// The slot of a lock: all its keys have the tag `{n:NAME}`.
pub fn slot_of(name: &str) -> u16 {
    slot_of_key(&format!("fairlock:{{n:{name}}}"))
}

fn first_slot(shard: usize) -> u16 {
    first_slot_of(shard, SHARDS)
}

fn first_slot_of(shard: usize, shards: usize) -> u16 {
    u16::try_from(shard * usize::from(SLOTS) / shards).unwrap()
}

/// The shard that has this name at the start.
pub fn shard_of(name: &str) -> usize {
    shard_of_slot(slot_of(name))
}

pub fn shard_of_slot(slot: u16) -> usize {
    (0..SHARDS).rev().find(|shard| first_slot(*shard) <= slot).unwrap_or_default()
}

/// The first `count` names that begin with `start` and whose slots `chosen` accepts.
pub fn names(start: &str, count: usize, chosen: impl Fn(u16) -> bool) -> Vec<String> {
    (0..).map(|number| format!("{start}{number}")).filter(|name| chosen(slot_of(name))).take(count).collect()
}

impl Cluster {
    /// `args` are for each node. `environments` has one for each node, or is empty.
    pub async fn start(bed: &Testbed, args: &[&str], environments: &[Vec<(String, String)>]) -> Self {
        let names: Vec<_> = (0..2 * SHARDS).map(|number| format!("node-{number}")).collect();
        let environment = |number| environments.get(number).map_or(&[][..], Vec::as_slice);
        let launched = names.iter().enumerate().map(|(number, name)| launch(bed, name, args, environment(number)));
        let cluster = Self { nodes: launched.collect() }.identified().await;
        cluster.join(SHARDS).await;
        cluster.replicate().await;
        note("the cluster is ready");
        cluster
    }

    /// `masters` masters without replicas. `name`: the start of their names.
    pub async fn start_masters(bed: &Testbed, name: &str, masters: usize) -> Self {
        let launched = (0..masters).map(|number| launch(bed, &format!("{name}-{number}"), &[], &[]));
        let cluster = Self { nodes: launched.collect() }.identified().await;
        cluster.join(masters).await;
        cluster
    }

    async fn identified(mut self) -> Self {
        for node in &mut self.nodes {
            node.server.ready().await;
            node.id = node.server.tell("CLUSTER MYID").await;
        }
        self
    }

    async fn join(&self, masters: usize) {
        for (shard, node) in self.nodes[..masters].iter().enumerate() {
            let (first, end) = (first_slot_of(shard, masters), first_slot_of(shard + 1, masters));
            node.server.tell::<String>(&format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1)).await;
            node.server.tell::<String>(&format!("CLUSTER SET-CONFIG-EPOCH {}", shard + 1)).await;
        }
        // Each node meets each other one: gossip alone would take seconds.
        for node in &self.nodes {
            let mut redis = node.server.connection().await.unwrap();
            for other in self.nodes.iter().filter(|other| other.id != node.id) {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", other.server.port(), other.bus);
                ask::<String>(&mut redis, &meet).await.unwrap();
            }
        }
        self.until_all_know(|known| known.len() == self.nodes.len()).await;
    }

    async fn replicate(&self) {
        for (shard, node) in self.nodes[SHARDS..].iter().enumerate() {
            node.server.tell::<String>(&format!("CLUSTER REPLICATE {}", self.nodes[shard].id)).await;
        }
        self.until_all_know(|known| known.iter().filter(|node| !node.is_master).count() == SHARDS).await;
        for replica in &self.nodes[SHARDS..] {
            eventually("a replica has the data", async || replica.server.replicates().await).await;
        }
    }

    async fn until_all_know(&self, is_so: impl Fn(&[Known]) -> bool) {
        for node in &self.nodes {
            eventually("a node knows of all and is well", async || {
                let is_ok = node.server.ask::<String>("CLUSTER INFO").await;
                is_ok.is_ok_and(|info| info.contains("cluster_state:ok")) && is_so(&known_by(&node.server).await)
            })
            .await;
        }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().take(SHARDS).map(|node| node.server.address()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub fn node(&self, id: &str) -> &Node {
        self.nodes.iter().find(|node| node.id == id).expect("a node of ours")
    }

    /// The node that serves this slot according to any node that answers, itself included.
    pub async fn master_of(&self, slot: u16) -> &Node {
        let mut found = None;
        eventually(&format!("slot {slot} has a master"), async || {
            for node in &self.nodes {
                let known = known_by(&node.server).await;
                let serves = |known: &&Known| known.is_master && !known.failed && known.has(slot);
                let Some(known) = known.iter().find(serves) else { continue };
                let master = self.node(&known.id);
                if master.server.is_master().await {
                    found = Some(master);
                    return true;
                }
            }
            false
        })
        .await;
        found.expect("it was found")
    }

    pub async fn master_of_shard(&self, shard: usize) -> &Node {
        self.master_of(first_slot(shard)).await
    }

    /// The other node of a shard.
    pub fn partner(&self, of: &Node) -> &Node {
        let index = self.nodes.iter().position(|node| node.id == of.id).expect("a node of ours");
        &self.nodes[(index + SHARDS) % (2 * SHARDS)]
    }

    /// Waits until a majority of the nodes gives the slot to another node than this one, and returns the time.
    pub async fn until_taken_over(&self, from: &Node, slot: u16) -> Nanos {
        let at = eventually("another master has the slots", async || {
            let mut agree = 0;
            for node in self.nodes.iter().filter(|node| node.id != from.id) {
                let known = known_by(&node.server).await;
                let took_over = |known: &Known| known.is_master && known.id != from.id && known.has(slot);
                agree += usize::from(known.iter().any(took_over));
            }
            agree > SHARDS
        })
        .await;
        note(format!("{} has no slots in the eyes of others", from.server.name()));
        at
    }

    /// `CLUSTER FAILOVER`: the replica of this master takes over without loss.
    pub async fn fail_over(&self, master: &Node) -> Nanos {
        let replica = self.partner(master);
        eventually("the replica has the data", async || replica.server.replicates().await).await;
        note(format!("CLUSTER FAILOVER to {}", replica.server.name()));
        replica.server.tell::<String>("CLUSTER FAILOVER").await;
        eventually("the replica is the master", async || replica.server.is_master().await).await
    }

    /// Moves a slot with all its keys, one by one. `dwell`: the pause after each key.
    pub async fn move_slot(&self, slot: u16, to: &Node, dwell: Duration) -> RedisResult<usize> {
        let from = self.master_of(slot).await;
        let (mut source, mut target) = (from.server.connection().await?, to.server.connection().await?);
        ask::<String>(&mut target, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", from.id)).await?;
        ask::<String>(&mut source, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", to.id)).await?;
        let mut moved = 0;
        loop {
            let keys: Vec<String> = ask(&mut source, &format!("CLUSTER GETKEYSINSLOT {slot} 1")).await?;
            let Some(key) = keys.first() else { break };
            // A script may have deleted the key in the meantime: NOKEY.
            ask::<String>(&mut source, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.server.port())).await?;
            moved += 1;
            tokio::time::sleep(dwell).await;
        }
        // The target first, so that the slot is never without a master.
        let owned = format!("CLUSTER SETSLOT {slot} NODE {}", to.id);
        ask::<String>(&mut target, &owned).await?;
        ask::<String>(&mut source, &owned).await?;
        self.tell_other_masters(&owned, &[from, to]).await;
        Ok(moved)
    }

    async fn tell_other_masters(&self, command: &str, except: &[&Node]) {
        for node in &self.nodes {
            if except.iter().all(|other| other.id != node.id) && node.server.is_master().await {
                let _ = node.server.ask::<String>(command).await;
            }
        }
    }

    pub async fn masters(&self) -> Vec<&Node> {
        let mut masters = Vec::new();
        for node in &self.nodes {
            if node.server.is_master().await {
                masters.push(node);
            }
        }
        masters
    }
}

fn launch(bed: &Testbed, name: &str, args: &[&str], environment: &[(String, String)]) -> Node {
    let bus = free_port();
    let server = Server::new(bed, name)
        .args(&["--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0"])
        .args(&["--cluster-port", &bus.to_string(), "--cluster-node-timeout", &NODE_TIMEOUT_MS.to_string()])
        // A replica may take over however long it has been without its master.
        .args(&["--cluster-replica-validity-factor", "0"])
        .args(args)
        .environment(environment);
    server.launch();
    Node { server: Arc::new(server), id: String::new(), bus }
}

/// All nodes as this one sees them. Empty if it does not answer.
pub async fn known_by(server: &Server) -> Vec<Known> {
    let nodes: String = server.ask("CLUSTER NODES").await.unwrap_or_default();
    nodes.lines().filter(|line| !line.contains("handshake")).map(Known::read).collect()
}

impl Known {
    /// `<id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slots>…`
    fn read(line: &str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        let flags: Vec<_> = words[2].split(',').collect();
        let range = |word: &&str| -> Option<(u16, u16)> {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Self {
            id: words[0].to_owned(),
            is_master: flags.contains(&"master"),
            failed: flags.contains(&"fail"),
            // A moving slot is `[slot->-id]`, which does not parse.
            slots: words[8..].iter().filter_map(range).collect(),
        }
    }

    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // CLUSTER KEYSLOT of redis-server 7.0.15.
        assert_eq!([slot_of_key("foo"), slot_of_key("{user1000}.following")], [12_182, 3443]);
    }
}
