//! The parts of a campaign: hosts, servers, workers, and the history of its faults.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::history::{History, list, now};
use crate::hosts::{Host, Network};
use crate::server::within;
use crate::settings::Settings;
use crate::topology::{Kind, Topology, shard_of, slot_of};

/// The leases of workers. The longest is the setting of `strict_restart`.
const LEASES: [u64; 2] = [3000, 5000];
/// Longer than everything that a worker does at its end: three operation timeouts, and a call that waits.
const END: Duration = Duration::from_secs(30);

pub struct Arena {
    pub network: Network,
    pub topology: Topology,
    pub history: History,
    pub strict: bool,
    bed: PathBuf,
    workers: Mutex<Vec<Worker>>,
    next_fault: AtomicU64,
    /// How many faults of servers have not ended.
    of_servers: AtomicUsize,
}

/// A client process, and the data to start another one in its place.
struct Worker {
    host: Host,
    settings: Settings,
    process: Option<Child>,
}

/// The hosts and shards that a fault may touch, for the judge. `None`: all of them.
#[derive(Default, Clone)]
pub struct Scope {
    pub hosts: Option<Vec<Host>>,
    pub shards: Option<Vec<usize>>,
}

impl Scope {
    pub fn host(host: &Host) -> Self {
        Self { hosts: Some(vec![host.clone()]), shards: None }
    }
}

impl Arena {
    pub fn start(kind: Kind, bed: &Path, seed: u64, strict: bool, workers: u32) -> Self {
        let history = History::open(&bed.join("history/driver.jsonl"), "driver");
        let network = Network::new();
        let topology = Topology::start(kind, bed, &network, strict);
        let arena = Self {
            network,
            topology,
            history,
            strict,
            bed: bed.to_owned(),
            workers: Mutex::default(),
            next_fault: AtomicU64::new(1),
            of_servers: AtomicUsize::new(0),
        };
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let hosts: Vec<_> = (0..workers).map(|number| arena.network.host(&format!("w{number}"))).collect();
        for (number, host) in (0..).zip(hosts) {
            let settings = arena.settings(number, workers, &host, &mut rng);
            arena.workers.lock().unwrap().push(Worker { host, settings, process: None });
        }
        arena.write_settings(kind, seed);
        arena
    }

    fn settings(&self, number: u32, workers: u32, host: &Host, rng: &mut Rng) -> Settings {
        let ms = Duration::from_millis;
        let poll = ms(*rng.choice(&[500, 700, 1000]).expect("some"));
        let several_masters = self.topology.kind == Kind::Quorum;
        let strict = if self.strict || several_masters { ms(LEASES[1]) } else { Duration::ZERO };
        Settings {
            id: String::new(),
            host: host.name.clone(),
            number,
            workers,
            seed: rng.u64(..),
            urls: self.topology.urls(),
            history: self.bed.join(format!("history/{}.jsonl", host.name)).to_str().unwrap().to_owned(),
            register: self.register().to_str().unwrap().to_owned(),
            runtime: ["multi", "current", "split"][number as usize % 3].to_owned(),
            lease: ms(LEASES[rng.usize(0..LEASES.len())]),
            op: ms(*rng.choice(&[500, 1000]).expect("some")),
            poll,
            strict,
            names: 16,
            tasks: 20,
            lines: 3,
            // The number of holds that one fault can lose: 6 times `own`, the shared names, and the names above. Below
            // 100, so that no single fault weighs much.
            own: if several_masters { 13 } else { 8 },
            shared: if several_masters { 0 } else { 2 },
            force: ms(2000),
            sweep: false,
        }
    }

    pub fn register(&self) -> PathBuf {
        self.bed.join("register")
    }

    fn write_settings(&self, kind: Kind, seed: u64) {
        let workers = self.workers.lock().unwrap();
        let longest = |time: fn(&Settings) -> Duration| workers.iter().map(|w| time(&w.settings)).max().unwrap();
        // The addition of strict_restart: twice the difference of clocks for several masters, and a second.
        let freeze = match (kind, self.strict) {
            (Kind::Quorum, _) => LEASES[1] + 3000,
            (_, true) => LEASES[1] + 1000,
            (_, false) => 0,
        };
        self.history.line(
            "run",
            format_args!(
                r#""topology":"{}","seed":{seed},"strict":{},"freeze":{freeze},"lease":{},"poll":{},"op":{}"#,
                kind.name(),
                self.strict,
                longest(|settings| settings.lease).as_millis(),
                longest(|settings| settings.poll).as_millis(),
                longest(|settings| settings.op).as_millis(),
            ),
        );
        if kind == Kind::Cluster {
            for name in workers[0].settings.all_names() {
                let shard = shard_of(slot_of(&name));
                self.history.line("place", format_args!(r#""n":"{name}","shard":{shard}"#));
            }
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.workers.lock().unwrap()[0].settings.all_names()
    }

    pub fn hosts(&self) -> Vec<Host> {
        self.workers.lock().unwrap().iter().map(|worker| worker.host.clone()).collect()
    }

    /// Runs a fault, and records it before it begins and after all its effects have ended.
    pub fn fault(&self, kind: &str, scope: &Scope, fault: impl FnOnce()) {
        let of_servers = usize::from(scope.hosts.is_none());
        self.of_servers.fetch_add(of_servers, Ordering::SeqCst);
        self.fault_since(now(), kind, scope, fault);
        self.of_servers.fetch_sub(of_servers, Ordering::SeqCst);
    }

    fn fault_since(&self, since: u64, kind: &str, scope: &Scope, fault: impl FnOnce()) {
        let id = self.next_fault.fetch_add(1, Ordering::Relaxed);
        let hosts = scope.hosts.as_ref().map_or_else(String::new, |hosts| {
            let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
            format!(r#","hosts":{}"#, list(&names))
        });
        let shards = scope.shards.as_ref().map_or_else(String::new, |shards| format!(r#","shards":{shards:?}"#));
        self.history.line_at(since, "fault", format_args!(r#""id":{id},"kind":"{kind}"{hosts}{shards}"#));
        fault();
        self.history.line("healed", format_args!(r#""id":{id}"#));
    }

    /// A fault that ends when all servers are up and agree.
    pub fn fault_of_servers(&self, kind: &str, scope: &Scope, fault: impl FnOnce()) {
        self.fault(kind, scope, || {
            fault();
            self.settle();
        });
    }

    pub fn settle(&self) {
        if !within(Duration::from_secs(60), || self.topology.is_settled()) {
            self.note("unsettled", "the servers do not agree after a minute");
        }
    }

    /// Records a failover that no fault of this driver caused: the Sentinels believe that a primary is down which a
    /// busy machine has starved. The record begins at the last time when they did not.
    pub fn watch_sentinels(&self, stop: &AtomicBool) {
        let mut calm = now();
        while !stop.load(Ordering::Relaxed) {
            let asked = now();
            if self.of_servers.load(Ordering::SeqCst) > 0 || !self.topology.takes_primary_for_down() {
                calm = asked;
            } else {
                self.fault_since(calm, "failover", &Scope::default(), || self.settle());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn note(&self, event: &str, text: &str) {
        self.history.line(event, format_args!(r#""text":{text:?}"#));
    }

    /// Starts a worker on this host, with the number of its incarnation in its name.
    pub fn start_worker(&self, host: &Host) {
        let mut workers = self.workers.lock().unwrap();
        let worker = workers.iter_mut().find(|worker| worker.host == *host).expect("a worker of ours");
        let incarnation = worker.settings.id.rsplit('.').next().and_then(|n| n.parse::<u32>().ok()).unwrap_or_default();
        worker.settings.id = format!("{}.{}", host.name, incarnation + 1);
        worker.settings.seed = worker.settings.seed.wrapping_add(1);
        worker.process = Some(self.spawn(host, &worker.settings));
    }

    fn spawn(&self, host: &Host, settings: &Settings) -> Child {
        let log = File::options().create(true).append(true).open(self.bed.join(format!("{}.log", host.name))).unwrap();
        let program = std::env::current_exe().expect("this program");
        let mut command = host.command(&program);
        command.arg("worker").args(settings.words()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("this program starts again")
    }

    fn with_worker<T>(&self, host: &Host, act: impl FnOnce(&mut Worker) -> T) -> T {
        let mut workers = self.workers.lock().unwrap();
        act(workers.iter_mut().find(|worker| worker.host == *host).expect("a worker of ours"))
    }

    pub fn signal_worker(&self, host: &Host, signal: Signal) {
        self.with_worker(host, |worker| {
            if let Some(child) = &worker.process {
                let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal);
            }
        });
    }

    pub fn kill_worker(&self, host: &Host) {
        let ended = self.with_worker(host, |worker| {
            let mut child = worker.process.take()?;
            let ended = child.try_wait().ok().flatten();
            let _ = child.kill();
            let _ = child.wait();
            ended
        });
        if let Some(status) = ended {
            self.note("died", &format!("{} ended by itself: {status}", host.name));
        }
    }

    /// Ends the load, and waits until all clients have closed.
    pub fn stop_workers(&self) {
        let mut workers = self.workers.lock().unwrap();
        workers.iter_mut().for_each(|worker| drop(worker.process.as_mut().and_then(|child| child.stdin.take())));
        let limit = Instant::now() + END;
        for worker in &mut *workers {
            let Some(child) = &mut worker.process else { continue };
            let mut status = None;
            within(limit.saturating_duration_since(Instant::now()), || {
                status = child.try_wait().ok().flatten();
                status.is_some()
            });
            match status {
                Some(status) if status.success() => {}
                Some(status) => self.note("died", &format!("{} ended: {status}", worker.host.name)),
                None => self.note("hangs", &format!("{} does not end", worker.host.name)),
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs a client that locks each name. Afterwards only tokens may remain. If only dead clients waited, the first
    /// newcomer takes their silence for a stall of the server and forgives it once, so their places go only after
    /// that.
    pub fn sweep(&self) {
        let look = |longest| {
            let mut left = Vec::new();
            within(longest, || {
                left = self.topology.masters().iter().flat_map(|server| server.leftovers()).collect();
                left.is_empty()
            });
            left
        };
        self.lock_each_name(1);
        let longest = Duration::from_millis(LEASES[1]) + Duration::from_secs(15);
        let mut left = look(longest);
        if !left.is_empty() {
            self.lock_each_name(2);
            left = look(longest);
        }
        self.history.line("left", format_args!(r#""keys":{}"#, list(&left)));
    }

    fn lock_each_name(&self, number: u32) {
        let host = self.hosts().remove(0);
        let mut settings = self.with_worker(&host, |worker| worker.settings.clone());
        settings.id = format!("{}.sweep{number}", host.name);
        settings.sweep = true;
        let mut child = self.spawn(&host, &settings);
        if !within(Duration::from_secs(120), || child.try_wait().ok().flatten().is_some()) {
            self.note("hangs", "the sweep does not end");
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for worker in &mut *self.workers.lock().unwrap() {
            if let Some(child) = &mut worker.process {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
