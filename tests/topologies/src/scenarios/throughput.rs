//! What a pair of lock and unlock costs on a cluster of three masters, and on one server. Three servers and their clients
//! do not fit on a small machine, so it is measured by CPU for each pair: three masters that need as much as one server for
//! each serve three times as many.

use std::sync::Arc;
use std::time::Duration;

use fairlock::LockClient;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::load::connect;
use crate::report::Report;
use crate::scenarios::Extent;
use crate::server::Server;
use crate::testbed::{Testbed, note, now};

const TASKS: usize = 200;
const NAMES: usize = 600;
const PAIRS_OF_A_TASK: usize = 100;
const ROUNDS: usize = 9;

/// One server, or the masters of a cluster, and a client of theirs.
struct Side {
    client: LockClient,
    servers: Vec<Arc<Server>>,
    rounds: Vec<Cost>,
}

/// In ns.
#[derive(Debug, Clone, Copy)]
struct Cost {
    servers: u64,
    client: u64,
    time: u64,
}

pub async fn throughput(bed: &Testbed, extent: Extent) -> Report {
    let single = Arc::new(Server::new(bed, "single").start().await);
    let cluster = Cluster::start_masters(bed).await;
    let masters = cluster.nodes.iter().map(|node| node.server.clone()).collect();
    let mut single = Side::new(&single.url(), vec![single.clone()]).await;
    let mut cluster = Side::new(&cluster.url(), masters).await;
    for _ in 0..ROUNDS {
        // In turn, so that what else the machine does comes to both.
        single.round().await;
        cluster.round().await;
    }
    let mut report = Report::new(extent);
    single.show("single", &mut report);
    cluster.show("cluster", &mut report);
    let per_mille = |of: fn(&Cost) -> u64| {
        let ratios = single.rounds.iter().zip(&cluster.rounds).map(|(single, cluster)| of(cluster) * 1000 / of(single));
        median(ratios.collect())
    };
    report
        .reach("servers' CPU for a pair, per mille", per_mille(|cost| cost.servers), 1111)
        .figure("client's CPU for a pair, per mille", per_mille(|cost| cost.client));
    for side in [single, cluster] {
        report.must(side.client.close().await.is_ok(), "close: no answer");
    }
    report
}

impl Side {
    async fn new(url: &str, servers: Vec<Arc<Server>>) -> Self {
        let mut side = Self { client: connect(url).await, servers, rounds: Vec::new() };
        // Scripts are loaded, masters are connected to.
        side.round().await;
        side.rounds.clear();
        side
    }

    async fn round(&mut self) {
        let (servers, client, begun) = (self.cpu_of_servers().await, cpu_of_this_process(), now());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let locks: Vec<_> = (task..NAMES).step_by(TASKS).map(|name| self.client.lock(format!("{name}"))).collect();
            tasks.spawn(async move {
                for pair in 0..PAIRS_OF_A_TASK {
                    let guard = locks[pair % locks.len()].lock().await.expect("nobody else wants it");
                    guard.unlock().await.expect("it is held");
                }
            });
        }
        tasks.join_all().await;
        let (time, client) = (now() - begun, cpu_of_this_process() - client);
        let pairs = (TASKS * PAIRS_OF_A_TASK) as u64;
        let servers = self.cpu_of_servers().await - servers;
        let cost = Cost { servers: servers / pairs, client: client / pairs, time: time / pairs };
        note(format!("{} servers: {cost:?}", self.servers.len()));
        self.rounds.push(cost);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    async fn cpu_of_servers(&self) -> u64 {
        let mut sum = 0.0;
        for server in &self.servers {
            for field in ["used_cpu_sys", "used_cpu_user"] {
                let seconds = server.info("cpu", field).await.expect("the server says what it has used");
                sum += seconds.parse::<f64>().expect("a number of seconds");
            }
        }
        Duration::from_secs_f64(sum).as_nanos() as u64
    }

    fn show(&self, name: &str, report: &mut Report) {
        let median_of = |of: fn(&Cost) -> u64| median(self.rounds.iter().map(of).collect());
        report
            .figure(&format!("{name}: servers' ns for a pair"), median_of(|cost| cost.servers))
            .figure(&format!("{name}: client's ns for a pair"), median_of(|cost| cost.client))
            .figure(&format!("{name}: pairs a second"), 1_000_000_000 / median_of(|cost| cost.time));
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
