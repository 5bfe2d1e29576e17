//! The servers of a campaign: one, Sentinels with three, a cluster of six, or several masters.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::hosts::{Host, Network, run};
use crate::server::{PORT, Server, eventually, within};

pub const SERVICE: &str = "locks";
const SHARDS: usize = 3;
const SLOTS: u16 = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Single,
    Sentinel,
    Cluster,
    Quorum,
}

impl Kind {
    pub const ALL: [(Self, &str); 4] =
        [(Self::Single, "single"), (Self::Sentinel, "sentinel"), (Self::Cluster, "cluster"), (Self::Quorum, "quorum")];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(kind, _)| kind)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(kind, _)| *kind == self).expect("all are named").1
    }
}

pub struct Topology {
    pub kind: Kind,
    pub servers: Vec<Arc<Server>>,
    pub sentinels: Vec<Arc<Server>>,
    /// A node that joins a cluster for a while.
    pub spare: Option<Arc<Server>>,
}

impl Topology {
    pub fn start(kind: Kind, bed: &Path, network: &Network, strict: bool) -> Self {
        let count = match kind {
            Kind::Single => 1,
            Kind::Cluster => 2 * SHARDS,
            Kind::Sentinel | Kind::Quorum => 3,
        };
        let hosts: Vec<Host> = (0..count).map(|number| network.host(&format!("s{number}"))).collect();
        let started =
            hosts.iter().enumerate().map(|(number, host)| start_server(kind, bed, host, &hosts[0], number, strict));
        let servers: Vec<_> = started.collect();
        servers.iter().for_each(|server| server.ready());
        let spare = (kind == Kind::Cluster).then(|| {
            let host = network.host("spare");
            start_server(kind, bed, &host, &host, count, strict)
        });
        let mut topology = Self { kind, servers, sentinels: Vec::new(), spare };
        match kind {
            Kind::Sentinel => topology.start_sentinels(bed, network),
            Kind::Cluster => topology.join(&hosts),
            Kind::Single | Kind::Quorum => {}
        }
        eventually("the servers are ready", || topology.is_settled());
        topology
    }

    fn start_sentinels(&mut self, bed: &Path, network: &Network) {
        let master = self.servers[0].host.address();
        let configuration = [
            format!("sentinel monitor {SERVICE} {master} {PORT} 2"),
            format!("sentinel down-after-milliseconds {SERVICE} 1000"),
            format!("sentinel failover-timeout {SERVICE} 3000"),
            format!("sentinel parallel-syncs {SERVICE} 2"),
        ];
        for number in 0..3 {
            let host = network.host(&format!("n{number}"));
            let sentinel = Server::sentinel(bed, host, &configuration.join("\n"));
            sentinel.launch();
            self.sentinels.push(Arc::new(sentinel));
        }
        self.sentinels.iter().for_each(|sentinel| sentinel.ready());
        let knows_all = |sentinel: &Arc<Server>| {
            let list = |what: &str| sentinel.ask::<Vec<HashMap<String, String>>>(&format!("SENTINEL {what} {SERVICE}"));
            list("REPLICAS").is_ok_and(|all| all.len() == 2) && list("SENTINELS").is_ok_and(|all| all.len() == 2)
        };
        eventually("the Sentinels know of all", || self.sentinels.iter().all(knows_all));
    }

    fn join(&self, hosts: &[Host]) {
        let addresses: Vec<String> = hosts.iter().map(|host| format!("{}:{PORT}", host.address())).collect();
        let create = format!("redis-cli --cluster create {} --cluster-replicas 1 --cluster-yes", addresses.join(" "));
        run(&create);
    }

    pub fn urls(&self) -> Vec<String> {
        let addresses = |servers: &[Arc<Server>]| -> Vec<String> {
            servers.iter().map(|server| format!("{}:{PORT}", server.host.address())).collect()
        };
        match self.kind {
            Kind::Single | Kind::Quorum => {
                addresses(&self.servers).iter().map(|address| format!("redis://{address}/")).collect()
            }
            Kind::Sentinel => vec![format!("redis-sentinel://{}/{SERVICE}/0", addresses(&self.sentinels).join(","))],
            Kind::Cluster => vec![format!("redis+cluster://{}", addresses(&self.servers[..SHARDS]).join(","))],
        }
    }

    /// The servers that take writes now, in the order of their shards.
    pub fn masters(&self) -> Vec<Arc<Server>> {
        let masters = self.servers.iter().filter(|server| server.is_master()).cloned();
        match self.kind {
            Kind::Single | Kind::Quorum => self.servers.clone(),
            Kind::Sentinel => masters.collect(),
            Kind::Cluster => {
                let mut masters: Vec<_> = masters.filter_map(|master| Some((self.shard(&master)?, master))).collect();
                masters.sort_by_key(|(shard, _)| *shard);
                masters.into_iter().map(|(_, master)| master).collect()
            }
        }
    }

    /// The shard that this master of a cluster serves: a third of the slots.
    pub fn shard(&self, master: &Server) -> Option<usize> {
        let first = nodes(master)?.into_iter().find(|node| node.me)?.first_slot?;
        Some(shard_of(first))
    }

    /// Whether this node has joined the cluster: all nodes know all others.
    pub fn admit(&self, spare: &Server) -> bool {
        spare.ready();
        let _ = spare.ask::<String>(&format!("CLUSTER MEET {} {PORT}", self.servers[0].host.address()));
        let knows_all = |server: &Server| {
            nodes(server).is_some_and(|all| all.len() == 2 * SHARDS + 1 && all.iter().all(|node| node.is_well))
        };
        within(Duration::from_secs(20), || knows_all(spare) && self.servers.iter().all(|server| knows_all(server)))
    }

    /// The node leaves, and all others forget it at the same time. Otherwise they would announce it to each other
    /// again.
    pub fn dismiss(&self, spare: &Server) {
        let leaver = nodes(spare).unwrap_or_default().into_iter().find(|node| node.me);
        let _ = spare.ask::<String>("CLUSTER RESET HARD");
        for server in &self.servers {
            let Some(leaver) = &leaver else { continue };
            let _ = server.ask::<String>(&format!("CLUSTER FORGET {}", leaver.id));
        }
    }

    pub fn replica_of(&self, master: &Server) -> Option<Arc<Server>> {
        let address = master.host.address();
        let follows = |server: &&Arc<Server>| server.info("replication", "master_host").as_deref() == Some(&address);
        self.servers.iter().find(follows).cloned()
    }

    /// Whether a Sentinel believes that the primary is down. A failover may be under way, and the end of a short fault
    /// does not stop it.
    pub fn takes_primary_for_down(&self) -> bool {
        self.sentinels.iter().any(|sentinel| {
            let known: Option<HashMap<String, String>> = sentinel.ask(&format!("SENTINEL MASTER {SERVICE}")).ok();
            known.is_none_or(|known| known.get("flags").is_none_or(|flags| flags != "master"))
        })
    }

    /// Whether all servers are up and agree on their roles.
    pub fn is_settled(&self) -> bool {
        let answers = |server: &Arc<Server>| server.ask::<String>("PING").is_ok_and(|answer| answer == "PONG");
        if !self.servers.iter().chain(&self.sentinels).all(answers) {
            return false;
        }
        match self.kind {
            Kind::Single | Kind::Quorum => true,
            Kind::Sentinel => {
                let (masters, replicas): (Vec<_>, Vec<_>) = self.servers.iter().partition(|server| server.is_master());
                let [master] = masters[..] else { return false };
                let named = |sentinel: &Arc<Server>| {
                    let asked: Option<Vec<String>> =
                        sentinel.ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}")).ok();
                    asked.is_some_and(|named| named.first() == Some(&master.host.address()))
                };
                replicas.iter().all(|replica| replica.follows())
                    && self.sentinels.iter().all(named)
                    && !self.takes_primary_for_down()
            }
            Kind::Cluster => {
                let (masters, replicas): (Vec<_>, Vec<_>) = self.servers.iter().partition(|server| server.is_master());
                let is_ok = |server: &&Arc<Server>| {
                    let state = server.ask::<String>("CLUSTER INFO");
                    let all = nodes(server).unwrap_or_default();
                    state.is_ok_and(|state| state.contains("cluster_state:ok")) && all.iter().all(|node| node.is_well)
                };
                masters.len() == SHARDS
                    && replicas.iter().all(|replica| replica.follows())
                    && masters.iter().chain(&replicas).all(is_ok)
            }
        }
    }
}

fn start_server(kind: Kind, bed: &Path, host: &Host, first: &Host, number: usize, strict: bool) -> Arc<Server> {
    let (address, port) = (first.address(), PORT.to_string());
    let mut args = vec!["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"];
    args.extend(["--auto-aof-rewrite-min-size", "32mb", "--repl-diskless-sync-delay", "0"]);
    match kind {
        Kind::Sentinel => {
            if number > 0 {
                args.extend(["--replicaof", &address, &port]);
            }
            // docs/deploying.md asks for these as well as `strict_restart`.
            if strict {
                args.extend(["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]);
            }
        }
        Kind::Cluster => {
            args.extend(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
            // A shard without a master affects no other shard.
            args.extend(["--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no"]);
        }
        Kind::Single | Kind::Quorum => {}
    }
    let server = Server::new(bed, host.clone(), &args);
    server.launch();
    Arc::new(server)
}

/// A node from the view of another one.
pub struct Node {
    pub id: String,
    pub me: bool,
    is_well: bool,
    first_slot: Option<u16>,
}

/// All nodes, from the view of this one.
pub fn nodes(server: &Server) -> Option<Vec<Node>> {
    let text: String = server.ask("CLUSTER NODES").ok()?;
    Some(text.lines().map(read_node).collect())
}

/// `<id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slots>…`
fn read_node(line: &str) -> Node {
    let words: Vec<_> = line.split(' ').collect();
    let first = words.get(8).map(|range| range.split('-').next().unwrap_or_default());
    Node {
        id: words[0].to_owned(),
        me: words[2].contains("myself"),
        is_well: !["fail", "handshake", "noaddr"].iter().any(|flag| words[2].contains(flag)),
        first_slot: first.and_then(|first| first.parse().ok()),
    }
}

/// The slot of a lock: all its keys have the tag `n:NAME`.
pub fn slot_of(name: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in format!("n:{name}").bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// The shard of this slot while no slot is moving. `redis-cli` assigns 5461, 5462 and 5461 slots.
pub fn shard_of(slot: u16) -> usize {
    match slot {
        0..=5460 => 0,
        5461..=10922 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // CLUSTER KEYSLOT '{n:work:0}' of redis-server 7.0.15.
        assert_eq!((slot_of("work:0"), shard_of(slot_of("work:0"))), (4120, 0));
    }
}
