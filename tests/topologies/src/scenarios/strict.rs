//! `strict_restart` (R14): a server that may have forgotten a lock grants none until the longest lease has ended. The
//! test cuts off one client, which relies on its holds. Each scenario runs twice: with clients that are not strict it
//! must end badly, or else it would prove nothing.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{LockClient, LockClientBuilder};

use crate::checker::{Findings, granted_between};
use crate::freeze::{Freeze, is_over};
use crate::load::{Load, Plan, builder, connect_all_with};
use crate::proxy::Proxy;
use crate::report::Report;
use crate::run::{CLIENTS, Run};
use crate::scenarios::Extent;
use crate::scenarios::sentinel::others;
use crate::sentinels::{Sentinels, Setup};
use crate::server::Server;
use crate::testbed::{Testbed, eventually, note, now, to_ms};

/// Renewals come every third of it, so what remains when the test cuts off its holder outlasts a failover.
const LEASE: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    Strict,
    Plain,
}

impl Clients {
    fn builder(self) -> fn() -> LockClientBuilder {
        match self {
            Self::Plain => || builder().lease(LEASE),
            Self::Strict => || builder().lease(LEASE).strict_restart(LEASE),
        }
    }

    async fn connect(self, url: &str, count: usize) -> Vec<LockClient> {
        connect_all_with(self.builder(), url, count).await
    }

    /// A load of these clients, after the freeze of the new server.
    async fn start(self, url: &str) -> Run {
        let clients = self.connect(url, CLIENTS).await;
        eventually("the server serves", async || is_over(&clients[0]).await).await;
        Run::with(clients, Plan::new(8, 4)).await
    }
}

pub async fn restart(bed: &Testbed, extent: Extent) -> Report {
    over_restart(bed, Clients::Strict, extent).await.must_be_safe()
}

pub async fn restart_of_others(bed: &Testbed, extent: Extent) -> Report {
    over_restart(bed, Clients::Plain, extent).await.must_be_unsafe()
}

pub async fn failover(bed: &Testbed, extent: Extent) -> Report {
    over_failover(bed, Clients::Strict, extent).await.must_be_safe()
}

pub async fn failover_of_others(bed: &Testbed, extent: Extent) -> Report {
    over_failover(bed, Clients::Plain, extent).await.must_be_unsafe()
}

/// One server that is killed and comes back without its data.
async fn over_restart(bed: &Testbed, clients: Clients, extent: Extent) -> Outcome {
    let server = Server::new(bed, "server").start().await;
    let run = clients.start(&server.url()).await;
    let mut report = Report::new(extent);
    let cut_off = CutOff::start(clients, &server, &run).await;
    run.record.fault();
    cut_off.proxy.cut();
    server.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    let freeze = sit_out(bed, clients, &server, &server.url(), &run, &mut report).await;
    run.settle().await;
    report.must(run.inversions("gate").await == 0, "served out of order behind the restart");
    cut_off.end().await;
    Outcome::of(report, run, &freeze, &[&server], &[]).await
}

/// A master that is killed while its replicas lack the newest locks.
async fn over_failover(bed: &Testbed, clients: Clients, extent: Extent) -> Outcome {
    let sentinels = Sentinels::start(bed, Setup::default()).await;
    let old = sentinels.servers[0].clone();
    let run = clients.start(&sentinels.url()).await;
    let mut report = Report::new(extent);
    run.record.fault();
    sentinels.shut_replicas_out().await;
    let cut_off = CutOff::start(clients, &old, &run).await;
    cut_off.must_be_unknown_to(&sentinels.servers[1..]).await;
    cut_off.proxy.cut();
    old.kill();
    sentinels.let_replicas_in().await;
    let (master, _) = sentinels.until_switched(&old).await;
    let freeze = sit_out(bed, clients, &master, &sentinels.url(), &run, &mut report).await;
    run.settle().await;
    report.must(run.inversions("gate").await == 0, "served out of order behind the failover");
    cut_off.end().await;
    let others: Vec<_> = others(&sentinels, &master).into_iter().filter(|server| server.port() != old.port()).collect();
    Outcome::of(report, run, &freeze, &[&master], &others).await
}

/// A client that is cut off while it holds locks, for which others wait.
struct CutOff {
    proxy: Proxy,
    client: LockClient,
    holding: Load,
    waiting: Load,
}

impl CutOff {
    async fn start(clients: Clients, server: &Server, run: &Run) -> Self {
        let names: Vec<_> = (0..4).map(|number| format!("cut-off:{number}")).collect();
        let proxy = Proxy::start(server.port()).await;
        let client = clients.connect(&format!("redis://127.0.0.1:{}/", proxy.port()), 1).await.remove(0);
        let plan = |names, long| Plan { names, alone: Vec::new(), long, section: Duration::from_millis(15) };
        let held = plan(Vec::new(), names.clone());
        let holding = Load::start(std::slice::from_ref(&client), &held, &run.record).await;
        for name in &names {
            let begun = format!("begun {name}");
            eventually("the client to be cut off holds it", async || run.record.counted(&begun) > 0).await;
        }
        let waiting = Load::start(&run.clients, &plan(names, Vec::new()), &run.record).await;
        Self { proxy, client, holding, waiting }
    }

    async fn must_be_unknown_to(&self, replicas: &[Arc<Server>]) {
        for replica in replicas {
            let known: u64 = replica.tell("EXISTS fairlock:{n:cut-off:0}").await;
            assert_eq!(known, 0, "{} is not behind", replica.name());
        }
    }

    async fn end(self) {
        self.waiting.stop().await;
        self.holding.stop().await;
        self.proxy.mend();
        // Its server may be gone.
        if let Err(error) = self.client.close().await {
            note(format!("the client that was cut off: {error}"));
        }
    }
}

/// Checks the freeze of this server from all sides, and waits until it has ended.
async fn sit_out(
    bed: &Testbed,
    clients: Clients,
    server: &Server,
    url: &str,
    run: &Run,
    report: &mut Report,
) -> Freeze {
    if clients == Clients::Plain {
        return Freeze::from_now(LEASE);
    }
    let freeze = Freeze::of(server).await;
    let newcomer = clients.connect(url, 1).await.remove(0);
    for client in run.clients.iter().chain([&newcomer]) {
        report.must(freeze.is_told_by(client).await, "a client says something else of when the freeze ends");
    }
    let said = bed.told(&format!("frozen_until_ms={}", freeze.until_ms));
    report.must(said == CLIENTS + 1, format!("{said} clients log until when it is frozen"));
    tokio::time::sleep(Duration::from_nanos(freeze.latest.saturating_sub(now()))).await;
    report.must(Freeze::of_record(server).await == Some(freeze.until_ms), "the end of the freeze was moved");
    run.until_granted_after(freeze.earliest).await;
    report.reach("granted again after the freeze ms", to_ms(now().saturating_sub(freeze.latest)), 1000);
    let _ = newcomer.close().await;
    freeze
}

struct Outcome {
    report: Report,
    findings: Findings,
    /// The grants in the freeze, or in the time that it would have taken.
    early: Vec<String>,
}

impl Outcome {
    async fn of(mut report: Report, run: Run, freeze: &Freeze, masters: &[&Server], others: &[&Server]) -> Self {
        let record = run.record.clone();
        let findings = run.finish(&mut report, masters, others, |_| 0).await;
        let early = granted_between(&record, (freeze.began, freeze.earliest));
        report.figure("granted in the freeze", early.len() as u64);
        Self { report, findings, early }
    }

    fn must_be_safe(mut self) -> Report {
        self.report
            .must_exclude(&self.findings)
            .must_keep_tokens(&self.findings)
            .must_have_no_ghosts(&self.findings)
            .must(self.early.is_empty(), format!("granted in the freeze: {:#?}", self.early))
            .must(self.findings.lost() > 0, "a server forgot holds, and nobody was told");
        self.report
    }

    fn must_be_unsafe(mut self) -> Report {
        self.report
            .must(!self.findings.overlaps.is_empty(), "no lock had two holders: the strict clients prove nothing")
            .must(!self.early.is_empty(), "nothing was granted at once: the strict clients prove nothing");
        self.report
    }
}
