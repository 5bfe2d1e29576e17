//! Runs the workloads of `scripts/peers`, in turns on one server for each peer, and prints their tables. Each argument
//! names the programs of a language, `LANGUAGE=COMMAND`. `--short` only checks that everything runs, and its figures
//! mean nothing. `--shared` measures only semaphores and read-write locks.

mod process;
mod server;
mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use process::Process;
use server::{Kind, Server};
use workload::{Race, Round};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A peer's row in the tables, the language of its program, its name in that program, and its server.
const PEERS: [(&str, &str, &str, Kind); 10] = [
    ("**fairlock**", "rust", "fairlock", Kind::Redis),
    ("Redisson fair lock", "java", "redisson-fair", Kind::Redis),
    ("Redisson lock", "java", "redisson", Kind::Redis),
    ("rueidislock", "go", "rueidislock", Kind::Redis),
    ("redsync, one server", "go", "redsync", Kind::Redis),
    ("bsm/redislock", "go", "redislock", Kind::Redis),
    ("rslock", "rust", "rslock", Kind::Redis),
    ("redis-py", "python", "redis-py", Kind::Redis),
    ("PostgreSQL advisory lock", "go", "postgres", Kind::Postgres),
    ("etcd mutex", "go", "etcd", Kind::Etcd),
];
/// Shared names: 4 permits, and a read-write lock that a quarter of the workers write.
const SHARED: [(&str, &str, &str, Kind); 4] = [
    ("**fairlock** semaphore", "rust", "semaphore", Kind::Redis),
    ("Redisson RPermitExpirableSemaphore", "java", "redisson-semaphore", Kind::Redis),
    ("**fairlock** read-write lock", "rust", "rw-lock", Kind::Redis),
    ("Redisson RReadWriteLock", "java", "redisson-rw-lock", Kind::Redis),
];
const PROCESSES: usize = 4;

const ONE: Race = Race { workers: 1, processes: 1, hold_us: 0, own: true };
const TURNS_OF_16: Race = Race { workers: 16, processes: 1, hold_us: 1000, own: false };
const SPREAD: Race = Race { workers: 4, processes: PROCESSES, ..TURNS_OF_16 };

/// A workload, its rounds, the seconds of a round, its title, and its columns.
type Table = (Race, usize, u64, &'static str, &'static [Column]);

const TABLES: [Table; 6] = [
    (ONE, 7, 2, "lock and unlock, one worker", &[TURNS, P50, P99, SERVER, CLIENT]),
    (Race { workers: 64, ..ONE }, 3, 3, "64 workers, a name each", &[TURNS, SERVER, CLIENT]),
    (TURNS_OF_16, 3, 3, "16 workers, one name, 1 ms inside", &[TURNS, JAIN, LONGEST, SERVER, CLIENT]),
    (Race { hold_us: 0, ..TURNS_OF_16 }, 3, 3, "the same, nothing inside", &[TURNS, JAIN, LONGEST]),
    (SPREAD, 3, 3, "four processes with 4 workers each, one name, 1 ms inside", &[TURNS, JAIN, LONGEST]),
    (Race { hold_us: 0, ..SPREAD }, 3, 3, "the same, nothing inside", &[TURNS, JAIN, LONGEST]),
];
/// From this table on, all workers want one name.
const OF_ONE_NAME: usize = 2;

/// A peer with its own server, and the processes that use it.
struct Peer {
    title: &'static str,
    command: Vec<String>,
    server: Server,
    processes: Vec<Process>,
}

impl Peer {
    fn start(&self) -> Outcome<Process> {
        Process::start(&self.command)
    }

    /// Ends the processes of the last run.
    fn start_all(&mut self) -> Outcome<()> {
        self.processes.clear();
        self.processes = (0..PROCESSES).map(|_| self.start()).collect::<Outcome<_>>()?;
        Ok(())
    }

    /// A new process waits after the holder and ten killed waiters. Returns its wait, counted from the release of the
    /// lock.
    fn behind_killed_waiters(&self, settle: Duration, limit: Duration) -> Outcome<Option<Duration>> {
        let (mut holder, mut dead, mut next) = (self.start()?, self.start()?, self.start()?);
        holder.ask("hold dead-waiters")?;
        dead.ask("wait dead-waiters 10")?;
        std::thread::sleep(settle);
        dead.kill()?;
        next.ask("wait dead-waiters 1")?;
        std::thread::sleep(settle);
        holder.say("free")?;
        next.got_within(limit)
    }

    fn behind_a_killed_holder(&self, settle: Duration, limit: Duration) -> Outcome<Option<Duration>> {
        let (mut holder, mut next) = (self.start()?, self.start()?);
        holder.ask("hold dead-holder")?;
        next.ask("wait dead-holder 1")?;
        std::thread::sleep(settle);
        holder.kill()?;
        next.got_within(limit)
    }
}

fn main() -> Outcome<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut is_there = |option: &str| {
        let before = arguments.len();
        arguments.retain(|argument| argument != option);
        arguments.len() < before
    };
    let (short, shared_alone) = (is_there("--short"), is_there("--shared"));
    let languages: BTreeMap<&str, &str> = arguments.iter().filter_map(|argument| argument.split_once('=')).collect();
    if !shared_alone {
        let mut peers = start(&PEERS, &languages)?;
        races(&mut peers, short, &TABLES)?;
        kills(&mut peers, short)?;
    }
    races(&mut start(&SHARED, &languages)?, short, &TABLES[OF_ONE_NAME..])
}

fn start(peers: &[(&'static str, &str, &str, Kind)], languages: &BTreeMap<&str, &str>) -> Outcome<Vec<Peer>> {
    let mut started = Vec::new();
    for &(title, language, name, kind) in peers {
        if let (Some(command), Some(server)) = (languages.get(language), Server::start(kind, languages)?) {
            let words = command.split_whitespace().map(str::to_owned);
            let command = words.chain([name.to_owned(), server.address.clone()]).collect();
            let mut peer = Peer { title, command, server, processes: Vec::new() };
            peer.start_all()?;
            started.push(peer);
        }
    }
    Ok(started)
}

fn races(peers: &mut [Peer], short: bool, tables: &[Table]) -> Outcome<()> {
    for &(race, rounds, seconds, title, columns) in tables {
        let seen = in_turns(peers, race, if short { (1, 300) } else { (rounds, 1000 * seconds) })?;
        let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
        println!("\n| {title} | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
        for (peer, rounds) in peers.iter().zip(&seen) {
            let cell = |column: &Column| rounds.as_ref().map_or_else(|| "stuck".into(), |rounds| (column.1)(rounds));
            let cells: Vec<String> = columns.iter().map(cell).collect();
            println!("| {} | {} |", peer.title, cells.join(" | "));
        }
    }
    Ok(())
}

/// Goes round by round through all peers. Each peer's first round does not count: runtimes compile, connections open.
/// `None` for a peer that got stuck; it continues at the next table, in new processes.
fn in_turns(peers: &mut [Peer], race: Race, (rounds, ms): (usize, u64)) -> Outcome<Vec<Option<Vec<Round>>>> {
    let mut seen: Vec<_> = peers.iter().map(|_| Some(Vec::new())).collect();
    for round in 0..=rounds {
        for (peer, rounds) in peers.iter_mut().zip(&mut seen) {
            let Some(counted) = rounds else { continue };
            match race.run(&mut peer.processes, &peer.server, if round == 0 { ms.min(1000) } else { ms }) {
                Ok(_) if round == 0 => {}
                Ok(result) => counted.push(result),
                Err(error) => {
                    eprintln!("{}: {error}", peer.title);
                    *rounds = None;
                    peer.start_all()?;
                }
            }
        }
    }
    Ok(seen)
}

fn kills(peers: &mut [Peer], short: bool) -> Outcome<()> {
    let (settle, limit) = if short { (300, 3) } else { (1000, 60) };
    let (settle, limit) = (Duration::from_millis(settle), Duration::from_secs(limit));
    let print = |peers: &[Peer], title: &str, waits: Vec<Option<Duration>>| {
        println!("\n| {title} | ms |\n|---|---|");
        for (peer, wait) in peers.iter().zip(waits) {
            let nothing = || format!("not within {} s", limit.as_secs());
            println!("| {} | {} |", peer.title, wait.map_or_else(nothing, |wait| wait.as_millis().to_string()));
        }
    };
    let waiters = peers.iter().map(|peer| peer.behind_killed_waiters(settle, limit)).collect::<Outcome<_>>()?;
    let title = "a process with 10 waiters was killed, a new one queued, the lock was given back: how long it waits";
    print(peers, title, waiters);
    // These mostly wait for leases, so all run at the same time.
    let holders = std::thread::scope(|scope| {
        let waits: Vec<_> =
            peers.iter_mut().map(|peer| scope.spawn(move || peer.behind_a_killed_holder(settle, limit))).collect();
        waits.into_iter().map(|wait| wait.join().map_err(|_| "a thread panicked")?).collect::<Outcome<_>>()
    })?;
    print(peers, "the holder is killed: how long the next one waits", holders);
    Ok(())
}

/// The head of a column, and the function that makes its cell.
type Column = (&'static str, fn(&[Round]) -> String);

const TURNS: Column = ("per s", |rounds| format!("{:.0}", median(rounds, |round| round.turns / round.seconds)));
const P50: Column = ("p50 us", |rounds| format!("{:.0}", median(rounds, |round| round.p50_ns / 1e3)));
const P99: Column = ("p99 us", |rounds| format!("{:.0}", median(rounds, |round| round.p99_ns / 1e3)));
const JAIN: Column = ("Jain", |rounds| format!("{:.3}", median(rounds, |round| round.jain)));
const LONGEST: Column = ("longest wait ms", |rounds| format!("{:.0}", median(rounds, |round| round.longest_ns / 1e6)));
const CLIENT: Column = ("client us a turn", |rounds| each(rounds, |round| Some(round.client_us)));
const SERVER: Column = ("server us a turn", |rounds| each(rounds, |round| round.server_us));

fn median(rounds: &[Round], value: fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU time of a turn, over all rounds, because the kernel counts it in steps of 10 ms.
fn each(rounds: &[Round], cpu_us: fn(&Round) -> Option<f64>) -> String {
    let turns: f64 = rounds.iter().map(|round| round.turns).sum();
    match rounds.iter().map(cpu_us).sum::<Option<f64>>() {
        Some(us) => format!("{:.1}", us / turns),
        None => String::new(),
    }
}
