//! Model checks of fairlock's lock protocol and of its quorum, within bounds. See README.md.

mod bounds;
mod canonical;
mod checked;
mod client;
mod detach;
mod display;
mod events;
mod ghost;
mod handle;
mod map;
mod model;
mod network;
mod owner;
mod properties;
mod protocol;
mod pruning;
mod quorum;
mod rules;
mod run;
mod server;
mod settle;
mod shared;
mod variants;
mod walk;

use std::process::ExitCode;
use std::sync::Mutex;

use run::{Options, Run};

const USAGE: &str = "fairlock-model [--list] [--only NAME] [--time T] [--attempts N] [--reentries N] [--retries N]
               [--clients N] [--in-flight N] [--threads N] [--walks N] [--seed N]
Without --only: all runs, two at a time. With --only: one run, on N threads (default 2), with its counterexample.
With --only 'q*': all runs whose names begin so. --walks and --seed: for the runs that walk at random.";

/// The command line.
#[derive(Debug, Default)]
struct Args {
    list: bool,
    only: Option<String>,
    threads: Option<u8>,
    options: Options,
}

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut parsed = Self::default();
        while let Some(flag) = args.next() {
            match flag.as_str() {
                "--list" => parsed.list = true,
                "--only" => parsed.only = Some(args.next()?),
                "--threads" => parsed.threads = Some(args.next()?.parse().ok()?),
                "--walks" => parsed.options.walks = Some(args.next()?.parse().ok()?),
                "--seed" => parsed.options.seed = args.next()?.parse().ok()?,
                "--time" | "--attempts" | "--reentries" | "--retries" | "--clients" | "--in-flight" => {
                    parsed.options.bounds.push((flag, args.next()?.parse().ok()?));
                }
                _ => return None,
            }
        }
        Some(parsed)
    }

    fn wants(&self, name: &str) -> bool {
        let Some(only) = &self.only else { return true };
        only == name || only.strip_suffix('*').is_some_and(|beginning| name.starts_with(beginning))
    }
}

fn main() -> ExitCode {
    let Some(args) = Args::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut chosen: Vec<Box<dyn Run>> = Vec::new();
    chosen.extend(variants::all().into_iter().map(|variant| Box::new(variant) as _));
    chosen.extend(shared::variants::all().into_iter().map(|variant| Box::new(variant) as _));
    chosen.extend(quorum::variants::all().into_iter().map(|variant| Box::new(variant) as _));
    chosen.retain(|run| args.wants(run.name()));
    if args.list {
        chosen.iter().for_each(|run| println!("{:18} {}", run.name(), run.about()));
        return ExitCode::SUCCESS;
    }
    let passed = match &chosen[..] {
        [] => {
            eprintln!("no run has that name; --list shows all");
            return ExitCode::from(2);
        }
        [run] => run_one(run.as_ref(), &args),
        runs => run_all(runs, &args.options),
    };
    println!("{passed} passed, {} failed", chosen.len() - passed);
    if passed == chosen.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Two runs at a time, each on one thread: then its numbers and its counterexample are the same each
/// time.
fn run_all(runs: &[Box<dyn Run>], options: &Options) -> usize {
    let (next, passed) = (Mutex::new(runs.iter()), Mutex::new(0));
    let take = || next.lock().map_or(None, |mut next| next.next());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(run) = take() {
                    let outcome = run.run(options, 1);
                    println!("{}", outcome.line);
                    if let Ok(mut passed) = passed.lock() {
                        *passed += usize::from(outcome.passed);
                    }
                }
            });
        }
    });
    passed.into_inner().unwrap_or(0)
}

fn run_one(run: &dyn Run, args: &Args) -> usize {
    let outcome = run.run(&args.options, args.threads.unwrap_or(2).into());
    outcome.steps.iter().for_each(|line| println!("{line}"));
    println!("{}", outcome.line);
    usize::from(outcome.passed)
}
