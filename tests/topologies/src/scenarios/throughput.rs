//! The cost of a pair of lock and unlock on three masters, and on one server. Three servers at full load and their
//! clients do not fit on a small machine. But masters share nothing: if each needs as much CPU for a pair as one
//! server does, three serve three times as many pairs. So each works alone here, in turn, and once all three together.

use std::sync::Arc;

use fairlock::LockClient;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, SHARDS, names, shard_of_slot};
use crate::load::connect;
use crate::report::Report;
use crate::scenarios::Extent;
use crate::server::Server;
use crate::testbed::{Testbed, note, now};

const TASKS: usize = 200;
const NAMES: usize = 600;
const PAIRS_OF_A_TASK: usize = 60;
const ROUNDS: usize = 9;
/// Nine tenths of the throughput means this much CPU for each pair, per mille.
const MOST: u64 = 1111;

pub async fn throughput(bed: &Testbed, extent: Extent) -> Report {
    let server = Arc::new(Server::new(bed, "server").start().await);
    // A cluster master does more work for each command than a single server. That cost is Redis's own.
    let alone = Cluster::start_masters(bed, "alone", 1).await;
    let three = Cluster::start_masters(bed, "master", SHARDS).await;
    let on_shard = |shard| names("", NAMES, |slot| shard_of_slot(slot) == shard);
    let (all, masters) = (names("", NAMES, |_| true), servers_of(&three));
    let each = (0..SHARDS).map(|shard| Part { names: on_shard(shard), servers: vec![masters[shard].clone()] });
    let mut sides = [
        Side::new("server", &server.url(), vec![Part { names: all.clone(), servers: vec![server.clone()] }]).await,
        Side::new("one master", &alone.url(), vec![Part { names: all.clone(), servers: servers_of(&alone) }]).await,
        Side::new("each of three", &three.url(), each.collect()).await,
        Side::new("three at once", &three.url(), vec![Part { names: all, servers: masters }]).await,
    ];
    for _ in 0..ROUNDS {
        // In turn, so that other work of the machine affects all sides.
        for side in &mut sides {
            side.round().await;
        }
    }
    let mut report = Report::new(extent);
    sides.iter().for_each(|side| side.show(&mut report));
    let [server, alone, each, at_once] = &sides;
    report
        .reach("servers' CPU, each of three to one master, per mille", each.ratio(alone, |cost| cost.servers), MOST)
        .reach("client's CPU, each of three to server, per mille", each.ratio(server, |cost| cost.client), MOST)
        .reach("servers' CPU, each of three to server, per mille", each.ratio(server, |cost| cost.servers), MOST)
        .figure("servers' CPU, one master to server, per mille", alone.ratio(server, |cost| cost.servers))
        .figure("servers' CPU, three at once to server, per mille", at_once.ratio(server, |cost| cost.servers))
        .figure("client's CPU, three at once to server, per mille", at_once.ratio(server, |cost| cost.client));
    for side in sides {
        report.must(side.client.close().await.is_ok(), "close: no answer");
    }
    report
}

fn servers_of(cluster: &Cluster) -> Vec<Arc<Server>> {
    cluster.nodes.iter().map(|node| node.server.clone()).collect()
}

/// Names, and the servers that have them.
struct Part {
    names: Vec<String>,
    servers: Vec<Arc<Server>>,
}

/// One client, which works on its parts in turn.
struct Side {
    name: &'static str,
    client: LockClient,
    parts: Vec<Part>,
    rounds: Vec<Cost>,
}

/// In ns, for each pair.
#[derive(Debug, Clone, Copy)]
struct Cost {
    servers: u64,
    client: u64,
    time: u64,
}

impl Side {
    async fn new(name: &'static str, url: &str, parts: Vec<Part>) -> Self {
        let mut side = Self { name, client: connect(url).await, parts, rounds: Vec::new() };
        // Loads the scripts and connects to the masters.
        side.round().await;
        side.rounds.clear();
        side
    }

    async fn round(&mut self) {
        let mut costs = Vec::new();
        for part in &self.parts {
            costs.push(part.work(&self.client).await);
        }
        let mean = |of: fn(&Cost) -> u64| costs.iter().map(of).sum::<u64>() / costs.len() as u64;
        let cost =
            Cost { servers: mean(|cost| cost.servers), client: mean(|cost| cost.client), time: mean(|cost| cost.time) };
        note(format!("{}: {cost:?}", self.name));
        self.rounds.push(cost);
    }

    fn show(&self, report: &mut Report) {
        let median_of = |of: fn(&Cost) -> u64| median(self.rounds.iter().map(of).collect());
        report
            .figure(&format!("{}: servers' ns for a pair", self.name), median_of(|cost| cost.servers))
            .figure(&format!("{}: client's ns for a pair", self.name), median_of(|cost| cost.client))
            .figure(&format!("{}: pairs a second", self.name), 1_000_000_000 / median_of(|cost| cost.time));
    }

    /// The median of the ratios of the rounds, per mille.
    fn ratio(&self, to: &Self, of: fn(&Cost) -> u64) -> u64 {
        median(self.rounds.iter().zip(&to.rounds).map(|(this, other)| of(this) * 1000 / of(other)).collect())
    }
}

impl Part {
    /// No task waits, because each has its own names.
    async fn work(&self, client: &LockClient) -> Cost {
        let (servers, here, begun) = (self.cpu_of_servers().await, cpu_of_this_process(), now());
        let mut tasks = JoinSet::new();
        for names in self.names.chunks(NAMES / TASKS) {
            let locks: Vec<_> = names.iter().map(|name| client.lock(name)).collect();
            tasks.spawn(async move {
                for pair in 0..PAIRS_OF_A_TASK {
                    let guard = locks[pair % locks.len()].lock().await.expect("nobody else wants it");
                    guard.unlock().await.expect("it is held");
                }
            });
        }
        tasks.join_all().await;
        let (time, here) = (now() - begun, cpu_of_this_process() - here);
        let (servers, pairs) = (self.cpu_of_servers().await - servers, (TASKS * PAIRS_OF_A_TASK) as u64);
        Cost { servers: servers / pairs, client: here / pairs, time: time / pairs }
    }

    async fn cpu_of_servers(&self) -> u64 {
        let mut micros = 0;
        for server in &self.servers {
            for field in ["used_cpu_sys", "used_cpu_user"] {
                let seconds = server.info("cpu", field).await.expect("the server says what it has used");
                // Six decimals.
                micros += seconds.replace('.', "").parse::<u64>().expect("a number of seconds");
            }
        }
        micros * 1000
    }
}

fn cpu_of_this_process() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("this process knows what it has used");
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()).unsigned_abs() * 1000
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
