//! A campaign: fairlock on real processes, hosts and networks, with random faults by seed.
//!
//! ```text
//! scripts/campaign --topology single --minutes 5 --seed 7
//! ```
//!
//! This program makes the hosts, starts servers and clients, brings the faults, and writes a history, which
//! `fairlock-judge` judges.
//! - `--topology single|sentinel|cluster|quorum`
//! - `--minutes N`: of load; may have a fraction
//! - `--seed N`: decides the settings, the faults and the clients' wishes, but not the moment of each step
//! - `--only KIND`: only this kind of fault; you can repeat it. `--only none`: no fault
//! - `--out DIR`: where the history and the logs go
//!
//! Each process is a child of this one, inside its own namespaces, so all of them end with it, however it ends.

mod arena;
mod caller;
mod force;
mod handles;
mod history;
mod hosts;
mod kinds;
mod locks;
mod nemesis;
mod pulse;
mod register;
mod server;
mod settings;
mod shared;
mod topology;
mod worker;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arena::{Arena, Scope};
use history::History;
use settings::Settings;
use topology::Kind;

const WORKERS: u32 = 6;

struct Options {
    topology: Kind,
    minutes: f64,
    seed: u64,
    only: Vec<String>,
    out: PathBuf,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["worker", ..] => worker::work(Settings::read(&words[1..].iter().map(ToString::to_string).collect::<Vec<_>>())),
        ["register", socket, path] => register::serve(Path::new(socket), History::open(Path::new(path), "register")),
        ["pulse", path] => pulse::beat(&History::open(Path::new(path), "pulse")),
        _ => {
            let Some(options) = read(&words) else {
                eprintln!("usage: scripts/campaign --topology single|sentinel|cluster|quorum --minutes N [--seed S]");
                return ExitCode::FAILURE;
            };
            drive(&options);
        }
    }
    ExitCode::SUCCESS
}

fn read(words: &[&str]) -> Option<Options> {
    let out = PathBuf::from("target/campaign/run");
    let mut options = Options { topology: Kind::Single, minutes: 1.0, seed: 1, only: Vec::new(), out };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match *word {
            "--topology" => options.topology = Kind::named(value)?,
            "--minutes" => options.minutes = value.parse().ok()?,
            "--seed" => options.seed = value.parse().ok()?,
            "--only" => options.only.push((*value).to_owned()),
            "--out" => options.out = value.into(),
            _ => return None,
        }
    }
    Some(options)
}

fn drive(options: &Options) {
    let Options { topology, minutes, seed, only, out } = options;
    std::fs::create_dir_all(out.join("history")).expect("a folder for the run");
    let bed = out.canonicalize().expect("it was made");
    server::compile_clock(&bed);
    // Half of the seeds, if the topology has the option.
    let strict = matches!(topology, Kind::Single | Kind::Sentinel) && seed.is_multiple_of(2);
    let arena = Arena::start(*topology, &bed, *seed, strict, WORKERS);
    let mut helpers = start_helpers(&arena, &bed);
    // A fresh strict server grants nothing at first.
    arena.fault("start", &Scope::default(), || {
        arena.hosts().iter().for_each(|host| arena.start_worker(host));
        std::thread::sleep(Duration::from_secs(if strict || *topology == Kind::Quorum { 10 } else { 2 }));
    });
    arena.note("load", "all are at work");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| nemesis::torment(&arena, *seed, only, &stop));
        if *topology == Kind::Sentinel {
            scope.spawn(|| arena.watch_sentinels(&stop));
        }
        std::thread::sleep(Duration::from_secs_f64(minutes * 60.0));
        stop.store(true, Ordering::Relaxed);
    });
    arena.note("quiet", "no more faults");
    // Long enough to notice a name that stays blocked.
    std::thread::sleep(Duration::from_secs(10));
    arena.stop_workers();
    arena.sweep();
    for helper in &mut helpers {
        let _ = helper.kill();
        let _ = helper.wait();
    }
}

/// The register and the pulse.
fn start_helpers(arena: &Arena, bed: &Path) -> Vec<Child> {
    let program = std::env::current_exe().expect("this program");
    let path = |name: &str| bed.join(format!("history/{name}.jsonl"));
    let mut register = Command::new(&program);
    register.arg("register").arg(arena.register()).arg(path("register"));
    let mut pulse = Command::new(&program);
    pulse.arg("pulse").arg(path("pulse"));
    let started = [register, pulse].map(|mut helper| helper.spawn().expect("this program starts again"));
    server::eventually("the register is there", || arena.register().exists());
    started.into()
}
