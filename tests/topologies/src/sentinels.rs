//! A master with two replicas, and three Sentinels that watch it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::server::Server;
use crate::testbed::{Nanos, Testbed, eventually, note, to_ms};

pub const SERVICE: &str = "locks";
/// After this much silence a Sentinel takes the master for dead.
const DOWN_AFTER_MS: u64 = 1000;

/// The differences from the default setup.
#[derive(Default)]
pub struct Setup<'a> {
    /// Arguments of each data server.
    pub args: Vec<String>,
    /// Lines of each Sentinel's configuration.
    pub configuration: Vec<String>,
    pub data_password: Option<&'a str>,
    pub sentinel_password: Option<&'a str>,
    /// The environment of each data server, the first master first.
    pub environments: [Vec<(String, String)>; 3],
}

pub struct Sentinels {
    /// The first one begins as the master.
    pub servers: Vec<Arc<Server>>,
    pub sentinels: Vec<Arc<Server>>,
}

impl Sentinels {
    pub async fn start(bed: &Testbed, setup: Setup<'_>) -> Self {
        let servers = start_servers(bed, &setup).await;
        let sentinels: Vec<_> =
            (0..3).map(|number| Arc::new(sentinel(bed, &setup, number, servers[0].port()))).collect();
        for sentinel in &sentinels {
            sentinel.launch();
        }
        let started = Self { servers, sentinels };
        for sentinel in &started.sentinels {
            eventually("a Sentinel knows of all", async || knows_all(sentinel, 2, 2).await).await;
        }
        note(format!("the Sentinels are ready, the master is {}", started.servers[0].port()));
        started
    }

    /// The `redis-sentinel://` URL.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// `login`: `user:password@`, or nothing.
    pub fn url_with(&self, login: &str) -> String {
        url(login, &self.sentinels.iter().map(|sentinel| sentinel.address()).collect::<Vec<_>>(), SERVICE)
    }

    /// The server with this port.
    pub fn server(&self, port: u16) -> &Arc<Server> {
        self.servers.iter().find(|server| server.port() == port).expect("a server of ours")
    }

    /// The server that a majority of the Sentinels names.
    pub async fn named(&self) -> Option<u16> {
        let mut votes: HashMap<u16, usize> = HashMap::new();
        for sentinel in &self.sentinels {
            if let Some(port) = named_by(sentinel).await {
                *votes.entry(port).or_default() += 1;
            }
        }
        votes.into_iter().find(|(_, votes)| *votes > self.sentinels.len() / 2).map(|(port, _)| port)
    }

    /// Waits until a majority names another server than this one, and returns that server and the time.
    pub async fn until_switched(&self, from: &Server) -> (Arc<Server>, Nanos) {
        let mut to = from.port();
        let at = eventually("the Sentinels name another master", async || {
            to = self.named().await.unwrap_or(from.port());
            to != from.port()
        })
        .await;
        note(format!("the Sentinels name {to}"));
        (self.server(to).clone(), at)
    }

    /// Waits until this server is a replica with all of the new master's data.
    pub async fn until_follows(&self, server: &Server) {
        let at = eventually("the old master is a replica", async || server.replicates().await).await;
        note(format!("{} is a replica (at {} ms of the machine)", server.port(), to_ms(at)));
    }

    /// The replicas lose the master and cannot log in again: from here on they miss all writes.
    pub async fn shut_replicas_out(&self) {
        for replica in &self.servers[1..] {
            replica.tell::<String>("CONFIG SET masteruser nobody").await;
            replica.tell::<String>("CONFIG SET masterauth wrong").await;
        }
        self.servers[0].tell::<u64>("CLIENT KILL TYPE replica").await;
        for replica in &self.servers[1..] {
            eventually("a replica is shut out", async || !replica.replicates().await).await;
        }
        note("the replicas fall behind");
    }

    pub async fn let_replicas_in(&self) {
        for replica in &self.servers[1..] {
            // An empty value: the command ends with a space.
            replica.tell::<String>("CONFIG SET masteruser ").await;
            replica.tell::<String>("CONFIG SET masterauth ").await;
        }
    }

    /// Starts a failover while all servers are healthy.
    pub async fn fail_over(&self) {
        note("SENTINEL FAILOVER");
        self.sentinels[0].tell::<String>(&format!("SENTINEL FAILOVER {SERVICE}")).await;
    }
}

pub fn url(login: &str, sentinels: &[String], service: &str) -> String {
    format!("redis-sentinel://{login}{}/{service}/0", sentinels.join(","))
}

/// The master that one Sentinel names.
pub async fn named_by(sentinel: &Server) -> Option<u16> {
    let command = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}");
    let address: Vec<String> = sentinel.ask(&command).await.ok()?;
    address.get(1)?.parse().ok()
}

async fn start_servers(bed: &Testbed, setup: &Setup<'_>) -> Vec<Arc<Server>> {
    let mut servers: Vec<Arc<Server>> = Vec::new();
    for (number, environment) in setup.environments.iter().enumerate() {
        let args: Vec<_> = setup.args.iter().map(String::as_str).collect();
        // By default a master waits 5 s for more replicas before it sends its data.
        let mut server = Server::new(bed, &format!("data-{number}"))
            .args(&["--repl-diskless-sync-delay", "0"])
            .args(&args)
            .environment(environment);
        if let Some(password) = setup.data_password {
            server = server.args(&["--requirepass", password, "--masterauth", password]).password(password);
        }
        if let Some(master) = servers.first() {
            server = server.args(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        }
        server.launch();
        servers.push(Arc::new(server));
    }
    servers[0].ready().await;
    for replica in &servers[1..] {
        eventually("a replica has the data", async || replica.replicates().await).await;
    }
    servers
}

fn sentinel(bed: &Testbed, setup: &Setup<'_>, number: usize, master: u16) -> Server {
    let server = Server::new(bed, &format!("sentinel-{number}"));
    let mut lines = configuration(master, 2);
    lines.extend(setup.configuration.iter().cloned());
    if let Some(password) = setup.data_password {
        lines.push(format!("sentinel auth-pass {SERVICE} {password}"));
    }
    let Some(password) = setup.sentinel_password else { return server.sentinel(&lines.join("\n")) };
    lines.push(format!("requirepass {password}"));
    lines.push(format!("sentinel sentinel-pass {password}"));
    server.sentinel(&lines.join("\n")).password(password)
}

/// A Sentinel's configuration for the service.
pub fn configuration(master: u16, quorum: usize) -> Vec<String> {
    vec![
        format!("sentinel monitor {SERVICE} 127.0.0.1 {master} {quorum}"),
        format!("sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"),
        format!("sentinel failover-timeout {SERVICE} 3000"),
        format!("sentinel parallel-syncs {SERVICE} 2"),
    ]
}

/// Whether a Sentinel knows `replicas` healthy replicas and `others` other Sentinels.
pub async fn knows_all(sentinel: &Server, replicas: usize, others: usize) -> bool {
    let list = async |what: &str| -> Vec<HashMap<String, String>> {
        sentinel.ask(&format!("SENTINEL {what} {SERVICE}")).await.unwrap_or_default()
    };
    let (known, peers) = (list("REPLICAS").await, list("SENTINELS").await);
    let is_well = |replica: &&HashMap<String, String>| replica["master-link-status"] == "ok";
    known.iter().filter(is_well).count() >= replicas && peers.len() >= others
}
