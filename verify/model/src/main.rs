//! An exhaustive model check of fairlock's lock protocol, within bounds. See README.md.

mod canonical;
mod client;
mod display;
mod map;
mod network;
mod owner;
mod properties;
mod protocol;
mod pruning;
mod rules;
mod server;
mod settle;
mod variants;

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use protocol::{Action, Event, Protocol, State};
use variants::{Expect, Variant};

const USAGE: &str = "fairlock-model [--list] [--only NAME] [--time T] [--attempts N] [--reentries N] [--retries N]
               [--clients N] [--in-flight N] [--threads N]
Without --only: all runs, two at a time. With --only: one run, on N threads (default 2), with its counterexample.";

/// The command line.
#[derive(Debug, Default)]
struct Args {
    list: bool,
    only: Option<String>,
    threads: Option<u8>,
    bounds: Vec<(String, u8)>,
}

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut parsed = Self::default();
        while let Some(flag) = args.next() {
            match flag.as_str() {
                "--list" => parsed.list = true,
                "--only" => parsed.only = Some(args.next()?),
                "--threads" => parsed.threads = Some(args.next()?.parse().ok()?),
                "--time" | "--attempts" | "--reentries" | "--retries" | "--clients" | "--in-flight" => {
                    parsed.bounds.push((flag, args.next()?.parse().ok()?));
                }
                _ => return None,
            }
        }
        Some(parsed)
    }

    fn apply(&self, variant: &mut Variant) {
        let bounds = &mut variant.bounds;
        for (flag, value) in &self.bounds {
            match flag.as_str() {
                "--time" => bounds.end = *value,
                "--attempts" => bounds.attempts = *value,
                "--reentries" => bounds.reentries = *value,
                "--retries" => bounds.retries = *value,
                "--clients" => bounds.clients = *value,
                _ => bounds.in_flight = usize::from(*value),
            }
        }
    }
}

fn main() -> ExitCode {
    let Some(args) = Args::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut chosen = variants::all();
    chosen.retain(|variant| args.only.as_ref().is_none_or(|name| name == variant.name));
    chosen.iter_mut().for_each(|variant| args.apply(variant));
    if args.list {
        chosen.iter().for_each(|variant| println!("{:18} {}", variant.name, variant.about));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        eprintln!("no run has that name; --list shows all");
        return ExitCode::from(2);
    }
    let passed = if args.only.is_some() { run_one(&chosen, args.threads.unwrap_or(2)) } else { run_all(&chosen) };
    println!("{passed} passed, {} failed", chosen.len() - passed);
    if passed == chosen.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Two runs at a time, each on one thread: then its numbers and its counterexample are the same each
/// time.
fn run_all(variants: &[Variant]) -> usize {
    let (next, passed) = (Mutex::new(variants.iter()), Mutex::new(0));
    let take = || next.lock().map_or(None, |mut next| next.next());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(variant) = take() {
                    let outcome = Outcome::of(variant, 1);
                    println!("{}", outcome.line(variant));
                    if let Ok(mut passed) = passed.lock() {
                        *passed += usize::from(outcome.passed(variant));
                    }
                }
            });
        }
    });
    passed.into_inner().unwrap_or(0)
}

fn run_one(variants: &[Variant], threads: u8) -> usize {
    let mut passed = 0;
    for variant in variants {
        let outcome = Outcome::of(variant, threads);
        if let Some((property, path)) = &outcome.broken {
            println!("{property} is broken by these steps:");
            outcome.print_steps(path);
        }
        println!("{}", outcome.line(variant));
        passed += usize::from(outcome.passed(variant));
    }
    passed
}

/// The result of a run.
struct Outcome {
    states: usize,
    depth: usize,
    seconds: f32,
    broken: Option<(&'static str, Path<State, Action>)>,
    missing: Vec<Event>,
}

impl Outcome {
    fn of(variant: &Variant, threads: u8) -> Self {
        let start = Instant::now();
        let checker = Protocol::new(variant.rules.clone(), variant.bounds)
            .checker()
            .threads(threads.into())
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let reached = checker.model().reached();
        let required: &[Event] = match variant.expect {
            Expect::Holds(events) => events,
            Expect::Caught => &[],
        };
        Self {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            seconds: start.elapsed().as_secs_f32(),
            broken: checker.discoveries().into_iter().min_by_key(|(name, _)| *name),
            missing: required.iter().copied().filter(|event| !reached.contains(*event)).collect(),
        }
    }

    fn passed(&self, variant: &Variant) -> bool {
        match variant.expect {
            Expect::Holds(_) => self.broken.is_none() && self.missing.is_empty(),
            Expect::Caught => self.broken.is_some(),
        }
    }

    fn line(&self, variant: &Variant) -> String {
        let result = match &self.broken {
            Some((property, path)) => {
                let steps = path.clone().into_actions().len();
                let verb = if variant.expect == Expect::Caught { "caught by" } else { "BROKEN:" };
                format!("{verb} {property} in {steps} steps")
            }
            None if variant.expect == Expect::Caught => "NOT CAUGHT".to_owned(),
            None if self.missing.is_empty() => "holds".to_owned(),
            None => format!("holds, but NEVER REACHED: {:?}", self.missing),
        };
        let Self { states, depth, seconds, .. } = self;
        format!("{:18} {states:>9} states  depth {depth:>2}  {seconds:>5.1} s  {result}", variant.name)
    }

    fn print_steps(&self, path: &Path<State, Action>) {
        for (step, (state, action)) in path.clone().into_vec().into_iter().enumerate() {
            println!("{step:>3}.   {state}");
            if let Some(action) = action {
                println!("  -> {action}");
            }
        }
    }
}
