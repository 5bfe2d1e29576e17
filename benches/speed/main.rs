//! Benchmarks of fairlock next to a floor, other ways to build a lock, and other crates. One run has one private
//! server and alternates its rounds. docs/performance.md shows a selection of the rows.
//!
//! `scripts/bench`, with `--short` (only checks that everything runs), `--only NAME` (rows whose name contains
//! it), `--long` (ten minutes of churn), `--threads N` (of the client; else 1).

mod baselines;
mod child;
mod connection;
mod contender;
mod measure;
mod peers;
mod plots;
mod proxy;
mod racing;
mod report;
mod rows;
// The scripts as the library sends them, to recognize them in the server's log.
#[path = "../../src/store/script.rs"]
#[allow(dead_code)]
mod script;
mod server;
mod stall;

use std::time::{Duration, Instant};

use peers::Peers;
use report::{Machine, Report, Row};
use server::{Admin, Server};
use stall::Stalls;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// The repository. Results go to its `target`, and the table and the plots to its `docs`.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How a client reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Unix,
    /// Through the delaying proxy on this port.
    Proxied(u16),
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Proxied(_) => "tcp, 10 ms",
        }
    }
}

const OPTIONS: &str = "--short, --long, --only NAME and --threads N";

/// The options of the command line.
#[derive(Debug, Clone, Default)]
struct Mode {
    short: bool,
    long: bool,
    /// 0: all tasks run in the main thread, which leaves the second core to Redis.
    threads: usize,
    only: Option<String>,
}

impl Mode {
    fn read(words: &[String]) -> Outcome<Self> {
        let mut mode = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--short" => mode.short = true,
                "--long" => mode.long = true,
                "--threads" => mode.threads = words.next().ok_or("--threads needs a number")?.parse()?,
                "--only" => mode.only = Some(words.next().ok_or("--only needs a NAME")?.clone()),
                // Cargo passes this to each benchmark.
                "--bench" => {}
                other => return Err(format!("unknown: {other}; there are {OPTIONS}").into()),
            }
        }
        Ok(mode)
    }

    fn rounds(&self) -> usize {
        self.pick(5, 1)
    }

    fn pick<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    fn name(&self) -> &'static str {
        match (self.short, self.long) {
            (true, _) => "short",
            (_, true) => "long",
            _ => "full",
        }
    }
}

/// Shared by all rows.
struct Bench {
    mode: Mode,
    server: Server,
    admin: Admin,
    peers: Option<Peers>,
    report: Report,
}

impl Bench {
    async fn new(mode: Mode) -> Outcome<Self> {
        let server = Server::start().await?;
        let admin = server.admin().await?;
        Ok(Self { mode, server, admin, peers: None, report: Report::default() })
    }

    /// Starts them when the first row needs them, so that `--only` does not always build them.
    async fn peers(&mut self) -> Outcome<&mut Peers> {
        if self.peers.is_none() {
            self.peers = Some(Peers::start(&self.server.url(Transport::Tcp), !self.mode.short).await?);
        }
        self.peers.as_mut().ok_or_else(|| "no peers".into())
    }

    fn add(&mut self, row: Row) {
        if self.mode.wants(&row.name) {
            self.report.rows.push(row);
        }
    }

    async fn run(&mut self, group: &rows::Group) -> Outcome<()> {
        self.admin.clear().await?;
        let time = self.mode.pick(Duration::from_secs(3600), Duration::from_secs(50));
        // A run that hangs counts as failed.
        let outcome = tokio::time::timeout(time, (group.run)(self)).await;
        outcome.map_err(|_| format!("not done after {time:?}"))??;
        let measured: Vec<&str> = self.report.rows.iter().map(|row| row.name.as_str()).collect();
        let missing: Vec<&String> =
            group.names.iter().filter(|name| self.mode.wants(name) && !measured.contains(&name.as_str())).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not measured: {missing:?}").into()) }
    }
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == child::ROLE) {
        return runtime(0)?.block_on(child::serve(&words[1..]));
    }
    let mode = Mode::read(&words)?;
    runtime(mode.threads)?.block_on(async {
        let mut bench = Bench::new(mode).await?;
        tokio::select! {
            outcome = all(&mut bench) => outcome,
            // Returns instead of dying, so that the server and the children end too.
            _ = interrupted() => Err("interrupted".into()),
        }
    })
}

/// Returns on ctrl-C, or on SIGTERM as `timeout` sends it.
async fn interrupted() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        outcome = tokio::signal::ctrl_c() => outcome,
        _ = terminate.recv() => Ok(()),
    }
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        0 => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

async fn all(bench: &mut Bench) -> Outcome<()> {
    let mode = bench.mode.clone();
    let machine = Machine::new(bench.admin.version().await?, mode.name(), mode.rounds()).text();
    println!("{machine}");
    let mut failures = Vec::new();
    let groups = rows::groups();
    let names = || groups.iter().flat_map(|group| &group.names);
    if names().any(|name| mode.wants(name) && peers::PEERS.iter().any(|peer| name.ends_with(peer))) {
        // Builds them here, so that no row pays for the build.
        bench.peers().await?;
    }
    let stalls = Stalls::watch();
    for group in &groups {
        if !group.names.iter().any(|name| mode.wants(name)) {
            continue;
        }
        let begun = Instant::now();
        let outcome = bench.run(group).await;
        let stall = stalls.longest().as_millis();
        println!(
            "{:>7.1} s  {}; the machine stood still for {stall} ms at most",
            begun.elapsed().as_secs_f64(),
            group.what
        );
        if let Err(error) = outcome {
            println!("           FAILED: {error}");
            failures.push(group.what);
        }
    }
    println!("\n{}", bench.report.table());
    let dir = bench.report.write(&machine)?;
    let partial = mode.short || mode.only.is_some() || !failures.is_empty();
    plots::draw(&bench.report.curves, partial)?;
    println!("{}: summary.json, report.json, table.md", dir.display());
    if failures.is_empty() { Ok(()) } else { Err(format!("did not run: {}", failures.join(", ")).into()) }
}
