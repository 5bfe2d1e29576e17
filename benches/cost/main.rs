//! The cost of a call for Redis and for its client, in instructions that callgrind counts. A busy machine does not
//! change them, so a change of cost shows even when times are noise.
//!
//! `scripts/cost`, with `--short` (fewer calls) or `--against COMMIT` (compares with an older library). `--shapes`
//! measures the longest call of single scripts in queues of all shapes instead (`shapes/`). `--shared` measures single
//! calls of the scripts for semaphores and read-write locks instead, next to the calls for a lock (`shared.rs`).
//!
//! One run has one `redis-server` and one client process, both under callgrind, on a Unix socket. The client process
//! has several `LockClient`s in one thread and works in phases. On both sides callgrind writes a dump at the beginning
//! and at the end of each phase, so connecting, loading the scripts and all preparation do not count. Each call waits
//! for the reply to the one before it. The program first measures the server's own work in each second, and subtracts
//! it. `work.rs` describes the rows.

mod allocations;
mod callgrind;
mod child;
mod row;
// The scripts, assembled as the library sends them.
#[path = "../../src/store/script.rs"]
#[allow(dead_code)]
mod script;
mod server;
mod shapes;
mod shared;
mod work;

use std::path::{Path, PathBuf};

use child::Child;
use row::{Row, Sample};
use server::{Rest, Server};

/// The repository. Results go to its `target`.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A row to measure.
struct Plan {
    name: &'static str,
    /// The calls, or rounds of polls, in a phase.
    count: u32,
    /// The number of phases to measure, in a full and in a short run.
    rounds: [u32; 2],
    polls: bool,
}

impl Plan {
    const fn calls(name: &'static str, count: u32, rounds: [u32; 2]) -> Self {
        Self { name, count, rounds, polls: false }
    }

    const fn polls(name: &'static str, count: u32, rounds: [u32; 2]) -> Self {
        Self { name, count, rounds, polls: true }
    }

    /// The number by which to divide the cost of a phase. Polls come by the clock, so a phase may have one more or one
    /// less than planned: the number of scripts that ran decides.
    fn done(&self, scripts: f64) -> f64 {
        let planned = f64::from(self.count);
        if self.polls { scripts / (scripts / planned).round().max(1.0) } else { planned }
    }
}

const PLANS: [Plan; 6] = [
    Plan::calls("pair", 100, [7, 3]),
    Plan::calls("queue", 60, [7, 3]),
    Plan::calls("hand_over", 30, [9, 3]),
    Plan::calls("turn", 60, [7, 3]),
    // Many polls in a short time, because the server also does background work by the clock.
    Plan::polls("poll", 40, [3, 3]),
    // Must be the last row: its waiters stay until the processes end.
    Plan::polls("poll_1000", 5, [1, 1]),
];

const WARM_UP: u32 = 10;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url] = &words[..]
        && role == work::ROLE
    {
        return work::serve(url);
    }
    let (mut short, mut shapes, mut shared, mut before) = (false, false, false, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--short" => short = true,
            "--shapes" => shapes = true,
            "--shared" => shared = true,
            // scripts/cost writes this file for a commit.
            "--before" => {
                before = Some(row::read(&std::fs::read_to_string(words.next().ok_or("a file is missing")?)?)?)
            }
            _ => {
                return Err(
                    format!("unknown: {word}; there are --short, --shapes, --shared and --against COMMIT").into()
                );
            }
        }
    }
    if shared {
        return shared::measure(short);
    }
    if shapes { shapes::measure(short) } else { measure(short, before.as_deref()) }
}

fn measure(short: bool, before: Option<&[Row]>) -> Outcome<()> {
    if !callgrind::is_there() {
        println!("valgrind is not installed, so no cost was measured: apt-get install valgrind");
        return Ok(());
    }
    let mut both = Both::start()?;
    let rows = PLANS.iter().map(|plan| both.row(plan, short)).collect::<Outcome<Vec<Row>>>()?;
    println!("instructions for one call; {}\n\n{}", both.server.version()?, row::table(&rows));
    if let Some(before) = before {
        println!("compared with the one before\n\n{}", row::comparison(before, &rows));
    }
    println!("{}", write(&rows)?.display());
    Ok(())
}

fn write(rows: &[Row]) -> Outcome<PathBuf> {
    let dir = Path::new(ROOT).canonicalize()?.join("target/bench");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("cost.json");
    std::fs::write(&path, row::json(rows)?)?;
    Ok(path)
}

/// The two measured processes. The child ends first, so that it does not try to reconnect.
struct Both {
    child: Child,
    server: Server,
    rest: Rest,
}

impl Both {
    fn start() -> Outcome<Self> {
        let mut server = Server::under_callgrind()?;
        let child = Child::start(server.dir(), &server.url())?;
        let rest = server.measure_rest()?;
        Ok(Self { child, server, rest })
    }

    /// The median of some rounds, after a warm-up round.
    fn row(&mut self, plan: &Plan, short: bool) -> Outcome<Row> {
        let [rounds, short_rounds] = plan.rounds;
        let rounds = if short { short_rounds } else { rounds };
        if rounds > 1 {
            self.sample(&Plan { count: WARM_UP, ..*plan })?;
        }
        let samples = (0..rounds).map(|_| self.sample(plan)).collect::<Outcome<_>>()?;
        Ok(Row::median(plan.name, samples))
    }

    fn sample(&mut self, plan: &Plan) -> Outcome<Sample> {
        self.child.prepare(plan.name, plan.count)?;
        let begun = self.server.begin()?;
        let client_allocations = self.child.work()?;
        let phase = self.server.end(begun, &self.rest)?;
        let client_ir = self.child.end()?;
        let done = plan.done(phase.calls);
        Ok(Sample {
            server_ir: phase.ir / done,
            client_ir: client_ir / done,
            client_allocations: client_allocations / done,
            calls: phase.calls / done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn a_poll_more_or_less_does_not_matter() {
        assert_eq!(Plan::polls("poll", 10, [1, 1]).done(9.0), 9.0);
        assert_eq!(Plan::polls("poll_1000", 5, [1, 1]).done(41.0), 5.125);
        assert_eq!(Plan::calls("pair", 10, [1, 1]).done(21.0), 10.0);
    }
}
