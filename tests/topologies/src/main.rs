//! fairlock on real topologies: a server that restarts, Sentinels, a cluster. Each scenario starts its own processes,
//! puts clients under load, injects a fault, and checks the observations of the clients.
//!
//! ```text
//! scripts/topologies
//! scripts/topologies --only sentinel --rounds 5
//! ```
//!
//! - `--short`: the most telling scenarios, in two minutes. It is for a busy machine, so three times a reach passes
//! - `--only TEXT`: the scenarios with this text in their name; can be repeated
//! - `--rounds N`: each scenario N times; `target/topologies.json` has the medians
//! - `--list`: only the names
//! - `KEEP=1` in the environment: keeps the folders with the stories and the logs
//!
//! A figure with a reach fails beyond it.
//!
//! Another server: `REDIS_SERVER=/usr/bin/valkey-server scripts/topologies`. The last line is
//! `topologies: N passed, 0 failed`. Exit code 1: a scenario failed, and the run printed its story and its servers' logs.

mod checker;
mod clock;
mod cluster;
mod freeze;
mod gate;
mod load;
mod ports;
mod proxy;
mod record;
mod report;
mod resource;
mod run;
mod scenarios;
mod sentinels;
mod server;
mod story;
mod testbed;
mod watch;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use report::{BUSY, Report, Summary};
use scenarios::{ALL, Extent, Scenario};
use testbed::Testbed;

/// A scenario that takes longer fails.
const LONGEST: Duration = Duration::from_secs(300);

struct Options {
    extent: Extent,
    only: Vec<String>,
    rounds: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, url, resource, names] = &arguments[..]
        && first == worker::SUBCOMMAND
    {
        runtime().block_on(worker::work(url, resource, names));
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        ALL.iter().for_each(|scenario| println!("{}", scenario.name));
        return ExitCode::SUCCESS;
    }
    let Some(options) = options(&arguments) else {
        eprintln!("usage: scripts/topologies [--short] [--only TEXT]... [--rounds N] [--list]");
        return ExitCode::FAILURE;
    };
    story::listen();
    if options.extent == Extent::Short {
        println!("--short is for a busy machine: {BUSY} times a reach passes");
    }
    let summary = run_all(&options);
    summary.write(&version(), Path::new("target/topologies.json"));
    let (passed, failed) = summary.count();
    println!("topologies: {passed} passed, {failed} failed");
    // An empty selection would prove nothing.
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options { extent: Extent::Full, only: Vec::new(), rounds: 1 };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => options.extent = Extent::Short,
            "--only" => options.only.push(arguments.next()?.clone()),
            "--rounds" => options.rounds = arguments.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

fn runtime() -> Runtime {
    Runtime::new().expect("there are threads")
}

fn run_all(options: &Options) -> Summary {
    let mut summary = Summary::default();
    let is_wanted = |scenario: &&Scenario| {
        let named = options.only.iter().any(|text| scenario.name.contains(text.as_str()));
        if options.only.is_empty() { scenario.short || options.extent == Extent::Full } else { named }
    };
    for _ in 0..options.rounds {
        for scenario in ALL.iter().filter(is_wanted) {
            let begun = Instant::now();
            let report = run(scenario, options.extent);
            let outcome = if report.failures.is_empty() { "ok    " } else { "FAILED" };
            println!("{:<32} {outcome} {:>3} s  {}", scenario.name, begun.elapsed().as_secs(), report.line());
            for failure in &report.failures {
                println!("    {failure}");
            }
            summary.add(scenario.name, report);
        }
    }
    summary
}

/// Runs the scenario in its own runtime, so that no task outlives it. All its processes end with it.
fn run(scenario: &Scenario, extent: Extent) -> Report {
    let bed = Rc::new(Testbed::new());
    let runtime = runtime();
    let running = (scenario.run)(bed.clone(), extent);
    // A panic ends only this scenario, and drops its servers too.
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(until_over(running))));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let report = match outcome {
        Ok(Outcome::Ended(report)) => report,
        Ok(Outcome::Hangs) => failed(extent, "it hangs"),
        Ok(Outcome::Interrupted) => {
            drop(bed);
            std::process::exit(130);
        }
        Err(panic) => failed(extent, panic.downcast_ref::<String>().map_or("it panicked", String::as_str)),
    };
    if !report.failures.is_empty() {
        println!("{}", bed.explain());
    }
    if std::env::var_os("KEEP").is_some()
        && let Some(bed) = Rc::into_inner(bed)
    {
        bed.keep();
    }
    report
}

enum Outcome {
    Ended(Report),
    Hangs,
    Interrupted,
}

async fn until_over(running: scenarios::Running) -> Outcome {
    tokio::select! {
        ended = tokio::time::timeout(LONGEST, running) => ended.map_or(Outcome::Hangs, Outcome::Ended),
        () = interrupted() => Outcome::Interrupted,
    }
}

fn failed(extent: Extent, why: &str) -> Report {
    let mut report = Report::new(extent);
    report.must(false, why);
    report
}

async fn interrupted() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The version that the server binary reports.
fn version() -> String {
    let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let output = Command::new(binary).arg("--version").output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
