//! Searches for bugs: whole clients on an embedded server, on one thread and in virtual time, under every fault
//! that the server's hooks allow. One seed decides the whole run.
//!
//! ```text
//! scripts/simulate --minutes 1
//! scripts/simulate --seed 7
//! ```
//!
//! - `--minutes M`: run for that long, seed after seed from a random one, on two threads
//! - `--seed N`: run only this seed and print its events; with `--minutes`, start at this seed
//! - `--seeds N`: run at most so many seeds
//! - `--quorum`: run only seeds of quorums, which are every seventh
//!
//! The last line is one JSON object. Exit code 1: a promise was broken, or the run had too few events or
//! faults to prove anything.

mod actor;
mod checker;
mod cluster;
mod keys;
mod quorum;
mod run;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use run::{Outcome, run};

/// The kinds of faults. A soak in which one of them never happened proves too little.
const FAULTS: [&str; 39] = [
    "cancellations",
    "sets",
    "deaths",
    "crowds",
    "disconnects",
    "failovers",
    "keys_deleted",
    "silences",
    "forced_unlocks",
    "pauses",
    "pushes_delayed",
    "pushes_duplicated",
    "pushes_lost",
    "replies_delayed",
    "replies_lost",
    "requests_delayed",
    "requests_duplicated",
    "requests_lost",
    "refused_inside_scripts",
    "requests_refused",
    "restarts",
    "server_restarts",
    "server_restarts_without_data",
    "flushes",
    "strict_restarts",
    "failovers_unnoticed",
    "forgotten_holds",
    "half_open_deaths",
    "overloaded_clients",
    "runtimes_ended",
    "calls_without_runtime",
    "losses_without_runtime",
    "owners_in_two_tasks",
    "slots_moved",
    "slots_moved_back",
    "nodes_replaced",
    "redirects_moved",
    "redirects_ask",
    "redirects_try_again",
];
const THREADS: usize = 2;
/// How many of the last events are shown after a failure.
const SHOWN: usize = 120;

#[derive(Default)]
struct Totals {
    seeds: u64,
    /// How many of them were quorums.
    quorums: u64,
    grants: u64,
    guards: u64,
    handed_over: u64,
    expiries: u64,
    sections: u64,
    ghosts: u64,
    faults: BTreeMap<&'static str, u64>,
    failed: Vec<(u64, Vec<String>)>,
    virtual_seconds: f64,
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.quorums += u64::from(quorum::is_chosen(seed));
        self.grants += outcome.grants;
        self.guards += outcome.guards;
        self.handed_over += outcome.handed_over;
        self.expiries += outcome.expiries;
        self.sections += outcome.sections;
        self.ghosts += outcome.ghosts;
        self.virtual_seconds += outcome.virtual_time.as_secs_f64();
        for (kind, count) in outcome.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            self.failed.push((seed, outcome.violations));
        }
    }

    fn json(&self, wall: Duration) -> String {
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("\"{kind}\":{count}")).collect();
        format!(
            "{{\"seeds\":{},\"grants\":{},\"guards\":{},\"handed_over\":{},\"sections\":{},\"expiries\":{},\"ghosts\":{},\"faults\":{{{}}},\
             \"violations\":{},\"virtual_seconds\":{:.0},\"wall_seconds\":{:.1}}}",
            self.seeds,
            self.grants,
            self.guards,
            self.handed_over,
            self.sections,
            self.expiries,
            self.ghosts,
            faults.join(","),
            self.failed.iter().map(|(_, violations)| violations.len()).sum::<usize>(),
            self.virtual_seconds,
            wall.as_secs_f64()
        )
    }
}

struct Args {
    seed: Option<u64>,
    seeds: u64,
    minutes: Option<f64>,
    quorum: bool,
}

impl Args {
    fn parse() -> Result<Self, String> {
        let mut args = Self { seed: None, seeds: u64::MAX, minutes: None, quorum: false };
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            if option == "--quorum" {
                args.quorum = true;
                continue;
            }
            let value = words.next().ok_or(format!("{option} needs a value"))?;
            let wrong = |_| format!("{option} {value}: not a number");
            match option.as_str() {
                "--seed" => args.seed = Some(value.parse().map_err(wrong)?),
                "--seeds" => args.seeds = value.parse().map_err(wrong)?,
                "--minutes" => args.minutes = Some(value.parse().map_err(|_| format!("{value}: not a number"))?),
                _ => return Err(format!("{option}: unknown; there are --seed, --seeds, --minutes and --quorum")),
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    let args = match Args::parse() {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("simulate: {wrong}");
            return ExitCode::from(2);
        }
    };
    match (args.seed, args.minutes) {
        (Some(seed), None) if args.seeds == u64::MAX => replay(seed),
        (seed, minutes) => soak(seed.unwrap_or_else(random_seed), &args, minutes.unwrap_or(1.0)),
    }
}

fn random_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() << 20
}

/// Runs one seed twice and prints its events. Both runs must have the same fingerprint.
fn replay(seed: u64) -> ExitCode {
    let begun = Instant::now();
    let outcome = run(seed, true);
    let again = run(seed, false);
    outcome.timeline.iter().for_each(|line| println!("{line}"));
    outcome.violations.iter().for_each(|violation| println!("VIOLATED {violation}"));
    println!("seed {seed}: fingerprint {:016x}", outcome.fingerprint);
    let same = outcome.fingerprint == again.fingerprint;
    if !same {
        println!("NOT REPEATED: the second run had fingerprint {:016x}", again.fingerprint);
    }
    let mut totals = Totals::default();
    totals.add(seed, outcome);
    println!("{}", totals.json(begun.elapsed()));
    if totals.failed.is_empty() && same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seed after seed.
fn soak(first: u64, args: &Args, minutes: f64) -> ExitCode {
    println!("seeds from {first}");
    let begun = Instant::now();
    let longest = Duration::from_secs_f64(60.0 * minutes);
    let (next, totals) = (AtomicU64::new(0), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while begun.elapsed() < longest {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.seeds {
                        return;
                    }
                    let every = first.wrapping_add(number);
                    let seed = if args.quorum { quorum::chosen(first, number) } else { every };
                    let outcome = run(seed, false);
                    let mut totals = totals.lock().expect("no thread panics");
                    totals.add(seed, outcome);
                    if !totals.failed.is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().expect("no thread panics");
    // A few seeds need not have all faults.
    let expected = |seeds: u64, kinds: &'static [&'static str]| if seeds >= 50 { kinds } else { &[] };
    let all = [expected(totals.seeds - totals.quorums, &FAULTS), expected(totals.quorums, &quorum::FAULTS)].concat();
    let missing: Vec<_> = all.into_iter().filter(|kind| !totals.faults.contains_key(kind)).collect();
    totals.failed.iter().for_each(|(seed, violations)| show(*seed, violations));
    if !missing.is_empty() {
        println!("TOO QUIET: these never happened: {missing:?}");
    }
    println!("{}", totals.json(begun.elapsed()));
    if totals.failed.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The last events of a failure. They come from a second run, because a soak does not record events.
fn show(seed: u64, violations: &[String]) {
    let timeline = run(seed, true).timeline;
    let skipped = timeline.len().saturating_sub(SHOWN);
    println!("seed {seed}: the last {} of {} lines", timeline.len() - skipped, timeline.len());
    timeline.iter().skip(skipped).for_each(|line| println!("{line}"));
    violations.iter().for_each(|violation| println!("VIOLATED {violation}"));
    println!("all events: scripts/simulate --seed {seed}");
}
