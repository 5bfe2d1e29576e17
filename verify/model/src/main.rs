//! Model checks of a lock over several masters, within bounds. See README.md.

mod bounds;
mod client;
mod display;
mod events;
mod found;
mod model;
mod network;
mod node;
mod properties;
mod protocol;
mod rules;
mod run;
mod runs;
mod settle;
mod walk;

use std::process::ExitCode;
use std::sync::Mutex;

use run::{Options, Outcome, Run};

const USAGE: &str = "fairlock-model [--list] [--only NAME] [--walks N] [--seed N]
Without --only: all runs, two at a time. With --only: one run, with its counterexample; 'q-w*': all runs whose names begin so.
--walks and --seed: for the runs that walk at random.";

/// The command line.
#[derive(Debug, Default)]
struct Args {
    list: bool,
    only: Option<String>,
    options: Options,
}

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut parsed = Self::default();
        while let Some(flag) = args.next() {
            match flag.as_str() {
                "--list" => parsed.list = true,
                "--only" => parsed.only = Some(args.next()?),
                "--walks" => parsed.options.walks = Some(args.next()?.parse().ok()?),
                "--seed" => parsed.options.seed = args.next()?.parse().ok()?,
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
    let chosen: Vec<_> = runs::all().filter(|run| args.wants(run.name)).collect();
    if args.list {
        chosen.iter().for_each(|run| println!("{:18} {}", run.name, run.about));
        return ExitCode::SUCCESS;
    }
    let passed = match &chosen[..] {
        [] => {
            eprintln!("no run has that name; --list shows all");
            return ExitCode::from(2);
        }
        [run] => run_one(run, args.options),
        runs => run_all(runs, args.options),
    };
    println!("{passed} passed, {} failed", chosen.len() - passed);
    if passed == chosen.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs two at a time.
fn run_all(runs: &[&Run], options: Options) -> usize {
    let (next, passed) = (Mutex::new(runs.iter()), Mutex::new(0));
    let take = || next.lock().map_or(None, |mut next| next.next());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(run) = take() {
                    let outcome = run.run(options);
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

fn run_one(run: &Run, options: Options) -> usize {
    let Outcome { line, steps, passed } = run.run(options);
    steps.iter().for_each(|line| println!("{line}"));
    println!("{line}");
    usize::from(passed)
}
