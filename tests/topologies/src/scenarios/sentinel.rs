//! Failovers by Sentinels, on command or after a master has failed, and Sentinels that disagree.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{ConnectError, ConnectOptions, LockClient};

use crate::checker::Findings;
use crate::clock::ShiftedClock;
use crate::load::{Plan, builder, builder_for_clocks, connect_all, connect_all_with};
use crate::proxy::Proxy;
use crate::report::Report;
use crate::run::{CLIENTS, Run};
use crate::scenarios::Extent;
use crate::sentinels::{SERVICE, Sentinels, Setup, configuration, knows_all, named_by, url};
use crate::server::Server;
use crate::testbed::{Nanos, Testbed, eventually, note, now, to_ms, within};
use crate::watch::ScriptWatch;
use crate::worker::Worker;

fn plan() -> Plan {
    Plan::new(16, 6)
}

/// The other servers, which the clients must leave clean.
pub fn others<'a>(sentinels: &'a Sentinels, master: &Server) -> Vec<&'a Server> {
    let others = sentinels.servers.iter().filter(|server| server.port() != master.port());
    others.map(AsRef::as_ref).collect()
}

/// Soon after the switch, no client calls a script at the old master.
fn must_leave(report: &mut Report, old: &ScriptWatch, since: Nanos) {
    let ms = to_ms(old.last_call().saturating_sub(since));
    report.reach("old master used ms", ms, 1000);
}

pub async fn planned_failover(bed: &Testbed, extent: Extent) -> Report {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    fail_over_and_keep_tokens(&sentinels, connect_all(&sentinels.url(), CLIENTS).await, extent).await
}

async fn fail_over_by_order(sentinels: &Sentinels, clients: Vec<LockClient>, extent: Extent) -> (Report, Findings) {
    let old = sentinels.servers[0].clone();
    let run = Run::with(clients, plan()).await;
    let mut report = Report::new(extent);
    let before = run.inversions("gate").await;
    // A queue that exists before, during and after the failover.
    let gate = run.shut_gate("gate-across").await;
    let used = ScriptWatch::start(old.clone());
    run.record.fault();
    sentinels.fail_over().await;
    let (master, switched) = sentinels.until_switched(&old).await;
    run.record.switched(switched);
    run.settle().await;
    must_leave(&mut report, &used, switched);
    let across = gate.open().await;
    let behind = run.inversions("gate").await;
    report.must(before + behind == 0, "served out of order while one server was the master");
    report.figure("inversions across", across as u64);
    let findings = run.finish(&mut report, &[&master], &others(sentinels, &master), |_| 0).await;
    // Redis loses the grants that the old master made after its demotion.
    report.reach("stall of a name ms", findings.name_stall, 1500).must_keep_established(&findings).must_tell(&findings);
    (report, findings)
}

/// The same for a failover over which tokens must grow.
async fn fail_over_and_keep_tokens(sentinels: &Sentinels, clients: Vec<LockClient>, extent: Extent) -> Report {
    let (mut report, findings) = fail_over_by_order(sentinels, clients, extent).await;
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings);
    report
}

pub async fn master_killed(bed: &Testbed, extent: Extent) -> Report {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    let old = sentinels.servers[0].clone();
    let run = Run::start(&sentinels.url(), plan()).await;
    let mut report = Report::new(extent);
    let killed = run.record.fault();
    old.kill();
    let (master, switched) = sentinels.until_switched(&old).await;
    run.record.switched(switched);
    run.settle().await;
    let behind = run.inversions("gate").await;
    report.must(behind == 0, "served out of order behind the failover");
    let others: Vec<_> = others(&sentinels, &master).into_iter().filter(|server| server.port() != old.port()).collect();
    let findings = run.finish(&mut report, &[&master], &others, |_| 0).await;
    report.must_recover(&findings, to_ms(switched - killed));
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings).must_keep_established(&findings);
    report
}

pub async fn master_frozen(bed: &Testbed, extent: Extent) -> Report {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    let old = sentinels.servers[0].clone();
    let run = Run::start(&sentinels.url(), plan()).await;
    let mut report = Report::new(extent);
    let frozen = run.record.fault();
    old.freeze();
    let (master, switched) = sentinels.until_switched(&old).await;
    run.record.switched(switched);
    run.until_granted_after(switched).await;
    tokio::time::sleep(Duration::from_nanos((frozen + 10_000_000_000).saturating_sub(now()))).await;
    let used = ScriptWatch::start(old.clone());
    let resumed = now();
    old.resume();
    sentinels.until_follows(&old).await;
    // The server runs the requests left in its sockets when it continues. No client sends more.
    must_leave(&mut report, &used, resumed);
    run.settle().await;
    let findings = run.finish(&mut report, &[&master], &others(&sentinels, &master), |_| 0).await;
    report.must_recover(&findings, to_ms(switched - frozen));
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings).must_keep_established(&findings);
    report
}

/// One of three Sentinels names a server of its own, which would grant every lock. The clients must follow the others.
pub async fn stale_sentinel(bed: &Testbed, extent: Extent) -> Report {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    let decoy = Server::new(bed, "decoy").start().await;
    let stale = Server::new(bed, "stale").sentinel(&configuration(decoy.port(), 1).join("\n"));
    let stale = stale.start().await;
    assert_eq!(named_by(&stale).await, Some(decoy.port()));
    // The stale one first: a client that asks only one asks this.
    let asked = [&stale, &*sentinels.sentinels[0], &*sentinels.sentinels[1]].map(Server::address);
    let clients = connect_all(&url("", &asked, SERVICE), CLIENTS).await;
    let mut report = fail_over_and_keep_tokens(&sentinels, clients, extent).await;
    let calls = decoy.script_calls().await.expect("the decoy answers");
    report.figure("calls at the decoy", calls).must(calls == 0, "a minority was believed");
    report
}

/// The old master, one Sentinel and one process are cut off. With `min-replicas-to-write` the cut-off master grants
/// and renews nothing, so exclusion holds on both sides. It releases nothing either, so the cut-off process blocks its
/// locks for a lease.
pub async fn split(bed: &Testbed, extent: Extent) -> Report {
    let split = Split::start(bed).await;
    // This process has the clients on the majority's side.
    let run = Run::with(connect_all(&split.majority_url(), 2).await, Plan::new(12, 3)).await;
    let socket = bed.path().join("resource");
    run.record.resource.serve(&socket);
    let mut names: Vec<_> = (0..12).map(|number| format!("work:{number}")).collect();
    names.push("long:cut-off".into());
    let worker = Worker::start(&split.minority_url(), &socket, &names.join(","));
    worker.until_holds().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut report = Report::new(extent);
    let used = ScriptWatch::start(split.old.clone());
    run.record.fault();
    let master = split.cut().await;
    run.settle().await;
    // After the leases of the cut-off process.
    tokio::time::sleep(Duration::from_secs(10)).await;
    note("the cut is mended");
    split.mend();
    let learned = within(Duration::from_secs(30), "the Sentinel that was cut off names the new master", async || {
        named_by(&split.sentinels[0]).await == Some(master.port())
    })
    .await;
    run.settle().await;
    must_leave(&mut report, &used, learned);
    let holds = worker.end().await;
    report.figure("grants of the cut-off process", holds.len() as u64);
    holds.into_iter().for_each(|hold| run.record.add(hold));
    let findings = run.finish(&mut report, &[&master], &[&split.old], |_| 0).await;
    report.must_exclude(&findings).must_keep_tokens(&findings);
    report
}

/// Two sides with proxies between them. The first master and the first Sentinel are on the minority's side.
///
/// Each side reaches the servers of the other one through proxies, and its own directly.
struct Split {
    old: Arc<Server>,
    replica: Arc<Server>,
    sentinels: Vec<Server>,
    /// To the old master and to each Sentinel, from the other side.
    proxies: Vec<Proxy>,
    /// To the replica. Never mended: through it, Sentinels of the majority would see one more replica.
    to_replica: Proxy,
}

impl Split {
    async fn start(bed: &Testbed) -> Self {
        let server = |name| Server::new(bed, name).args(&["--repl-diskless-sync-delay", "0"]);
        let old = Arc::new(server("old").start().await);
        let to_old = Proxy::start(old.port()).await;
        let replica = server("replica").args(&["--replicaof", "127.0.0.1", &to_old.port().to_string()]);
        let to_replica = Proxy::start(replica.port()).await;
        let replica = replica.args(&["--replica-announce-port", &to_replica.port().to_string()]);
        let replica = Arc::new(replica.start().await);
        eventually("the replica has the data", async || replica.replicates().await).await;
        for setting in ["min-replicas-to-write 1", "min-replicas-max-lag 1"] {
            // The new master lacks a replica while the sides are apart, so only the old one gets this setting.
            old.tell::<String>(&format!("CONFIG SET {setting}")).await;
        }
        let mut split = Self { old, replica, sentinels: Vec::new(), proxies: vec![to_old], to_replica };
        for number in 0..3 {
            split.add_sentinel(bed, number).await;
        }
        for sentinel in &split.sentinels {
            eventually("a Sentinel knows of all", async || knows_all(sentinel, 1, 2).await).await;
        }
        split
    }

    async fn add_sentinel(&mut self, bed: &Testbed, number: usize) {
        let server = Server::new(bed, &format!("sentinel-{number}"));
        let proxy = Proxy::start(server.port()).await;
        let mut lines;
        if number == 0 {
            lines = configuration(self.old.port(), 2);
            lines.push(format!("sentinel announce-ip 127.0.0.1\nsentinel announce-port {}", proxy.port()));
        } else {
            lines = configuration(self.proxies[0].port(), 2);
            lines.push(format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", self.replica.port()));
        }
        self.sentinels.push(server.sentinel(&lines.join("\n")).start().await);
        self.proxies.push(proxy);
    }

    fn proxied(&self, sentinel: usize) -> String {
        format!("127.0.0.1:{}", self.proxies[1 + sentinel].port())
    }

    fn majority_url(&self) -> String {
        url("", &[self.proxied(0), self.sentinels[1].address(), self.sentinels[2].address()], SERVICE)
    }

    fn minority_url(&self) -> String {
        url("", &[self.sentinels[0].address(), self.proxied(1), self.proxied(2)], SERVICE)
    }

    /// Cuts the sides apart, and waits for the new master.
    async fn cut(&self) -> Arc<Server> {
        note("the sides are cut apart");
        self.to_replica.cut();
        self.proxies.iter().for_each(Proxy::cut);
        eventually("the other side has a master", async || {
            named_by(&self.sentinels[1]).await == Some(self.replica.port())
                && named_by(&self.sentinels[2]).await == Some(self.replica.port())
        })
        .await;
        note("the majority has a master");
        self.replica.clone()
    }

    fn mend(&self) {
        self.proxies.iter().for_each(Proxy::mend);
    }
}

pub async fn wrong_service(bed: &Testbed, extent: Extent) -> Report {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    let asked: Vec<_> = sentinels.sentinels.iter().map(|sentinel| sentinel.address()).collect();
    let mut report = Report::new(extent);
    let begun = now();
    match builder().connect(url("", &asked, "lockz")).await {
        Ok(_) => report.must(false, "connected to a service that no Sentinel knows"),
        Err(ConnectError::Url(text)) => report.must(false, format!("the URL was refused: {text}")),
        Err(error) => {
            let text = error.to_string();
            note(&text);
            report.must(text.contains("lockz"), format!("the error does not name the service: {text}"))
        }
    };
    report.figure("refused after ms", to_ms(now() - begun));
    report
}

/// The data servers have another password than the Sentinels.
pub async fn passwords(bed: &Testbed, extent: Extent) -> Report {
    let setup = Setup { data_password: Some("of-data"), sentinel_password: Some("of-sentinels"), ..Setup::default() };
    let sentinels = Sentinels::start(bed, setup).await;
    let options = ConnectOptions::from_url(sentinels.url_with(":of-data@")).expect("a URL");
    let options = options.sentinel_password("of-sentinels");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(builder().connect_with(options.clone()).await.expect("both passwords are right"));
    }
    fail_over_and_keep_tokens(&sentinels, clients, extent).await
}

/// The clock of the first master is 3 s slow. So its grants last 3 s less on the new one, and tokens jump ahead.
pub async fn new_master_ahead(bed: &Testbed, extent: Extent) -> Report {
    let (sentinels, clients) = with_clocks(bed, -3000).await;
    fail_over_and_keep_tokens(&sentinels, clients, extent).await
}

/// The clock of the first master is 3 s fast. The tokens of its last grants, made after the promotion, are on no other
/// server. So the new master grants smaller tokens until its clock catches up. P2 does not hold there; all else does.
pub async fn new_master_behind(bed: &Testbed, extent: Extent) -> Report {
    let (sentinels, clients) = with_clocks(bed, 3000).await;
    let (mut report, findings) = fail_over_by_order(&sentinels, clients, extent).await;
    report.must_have_no_ghosts(&findings);
    report
}

async fn with_clocks(bed: &Testbed, first_ms: i64) -> (Sentinels, Vec<LockClient>) {
    let clock = ShiftedClock::build(bed.path());
    let environments = [first_ms, 0, 0].map(|shift| clock.environment(shift));
    let sentinels = Sentinels::start(bed, Setup { environments, ..Setup::default() }).await;
    must_differ(&sentinels.servers[0], &sentinels.servers[1]).await;
    let clients = connect_all_with(builder_for_clocks, &sentinels.url(), CLIENTS).await;
    (sentinels, clients)
}

/// The clocks really differ: otherwise the scenario would prove nothing.
pub async fn must_differ(one: &Server, other: &Server) {
    let seconds = async |server: &Server| server.tell::<Vec<i64>>("TIME").await[0];
    let apart = (seconds(one).await - seconds(other).await).abs();
    assert!(apart >= 2, "the clocks of {} and {} are {apart} s apart", one.name(), other.name());
}
