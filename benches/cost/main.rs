//! What a call costs Redis and its client, in instructions that callgrind counts. They are the same on a busy
//! machine, so that a change of cost shows where times are noise.
//!
//! `scripts/cost`, with `--short` (fewer calls).
//!
//! One run has one `redis-server` and one client process, both under callgrind, on a Unix socket. The client
//! process has several `LockClient`s in one thread and works in phases; callgrind writes a dump at the beginning
//! and at the end of each, on both sides. So connecting, loading the scripts and all preparation count nowhere.
//! One call is under way at a time: each waits for the answer of the one before it. What the server does by itself
//! in each second is measured first and taken off. `work.rs` says what is in each row.

mod allocations;
mod callgrind;
mod child;
mod row;
mod server;
mod work;

use std::path::{Path, PathBuf};

use child::Child;
use row::{Row, Sample};
use server::{Rest, Server};

/// The repository. Results are written to its `target`.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A row to measure.
struct Plan {
    name: &'static str,
    /// How many calls, or rounds of polls, a phase has.
    count: u32,
    short_count: u32,
    /// Such a row is measured once, because a round of it takes seconds.
    once: bool,
}

const PLANS: [Plan; 6] = [
    Plan { name: "pair", count: 300, short_count: 100, once: false },
    Plan { name: "queue", count: 200, short_count: 60, once: false },
    Plan { name: "hand_over", count: 200, short_count: 60, once: false },
    Plan { name: "turn", count: 200, short_count: 60, once: false },
    Plan { name: "poll", count: 20, short_count: 10, once: false },
    // The last one: its waiters are there until the processes end.
    Plan { name: "poll_1000", count: 6, short_count: 3, once: true },
];

const WARM_UP: u32 = 10;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [work::ROLE, url] => work::serve(url),
        [] => measure(false),
        ["--short"] => measure(true),
        _ => Err("there is only the option --short".into()),
    }
}

fn measure(short: bool) -> Outcome<()> {
    if !callgrind::is_there() {
        println!("valgrind is not installed, so no cost was measured: apt-get install valgrind");
        return Ok(());
    }
    let mut both = Both::start()?;
    let rows = PLANS.iter().map(|plan| both.row(plan, short)).collect::<Outcome<Vec<Row>>>()?;
    println!("instructions for one call; {}\n\n{}", both.server.version()?, row::table(&rows));
    println!("{}", write(&rows, "cost.json")?.display());
    Ok(())
}

fn write(rows: &[Row], file: &str) -> Outcome<PathBuf> {
    let dir = Path::new(ROOT).canonicalize()?.join("target/bench");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(file);
    std::fs::write(&path, row::json(rows)?)?;
    Ok(path)
}

/// The two processes that are measured. The child ends first, so that it does not try to reconnect.
struct Both {
    child: Child,
    server: Server,
    rest: Rest,
}

impl Both {
    fn start() -> Outcome<Self> {
        let mut server = Server::start()?;
        let child = Child::start(server.dir(), &server.url())?;
        let rest = server.measure_rest()?;
        Ok(Self { child, server, rest })
    }

    /// The median of three rounds. The round before them is for what happens only once.
    fn row(&mut self, plan: &Plan, short: bool) -> Outcome<Row> {
        let count = if short { plan.short_count } else { plan.count };
        if plan.once {
            return Ok(Row::median(plan.name, vec![self.sample(plan.name, count)?]));
        }
        self.sample(plan.name, WARM_UP)?;
        let rounds = if short { 1 } else { 3 };
        let samples = (0..rounds).map(|_| self.sample(plan.name, count)).collect::<Outcome<_>>()?;
        Ok(Row::median(plan.name, samples))
    }

    fn sample(&mut self, name: &str, count: u32) -> Outcome<Sample> {
        self.child.prepare(name, count)?;
        let begun = self.server.begin()?;
        let client_allocations = self.child.work()?;
        let phase = self.server.end(begun, &self.rest)?;
        let client_ir = self.child.end()?;
        let each = f64::from(count);
        Ok(Sample {
            server_ir: phase.ir / each,
            client_ir: client_ir / each,
            client_allocations: client_allocations / each,
            calls: phase.calls / each,
        })
    }
}
