//! The command `fairlock`: locks for shell scripts, and a look at locks for people on call.

mod acl;
mod args;
mod bench;
mod child;
mod connect;
mod doctor;
mod exit;
mod findings;
mod force_unlock;
mod guard;
mod handle;
mod list;
mod lock;
mod log;
mod manual;
mod named;
mod orphan;
mod output;
mod render;
mod set_permits;
mod signals;
mod status;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use args::{Args, Command};
use exit::Failure;
use output::Output;

fn main() -> ExitCode {
    // Before clap parses the arguments: the command's own arguments may be anything.
    if let Some(failure) = orphan::become_the_command() {
        return end(Err(failure));
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => return help(&error),
        Err(error) => return end(Err(Failure::usage(args::in_one_line(&error)))),
    };
    end(run(&args))
}

fn help(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    end(printed.map(|()| exit::OK).map_err(Failure::from))
}

/// Prints the error, in one line.
fn end(outcome: Result<u8, Failure>) -> ExitCode {
    let code = outcome.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            log::say(&failure.message);
        }
        failure.code
    });
    ExitCode::from(code)
}

fn run(args: &Args) -> Result<u8, Failure> {
    log::start(args.verbose);
    let mut out = Output::new(args.color);
    let code = match &args.command {
        Command::Acl(acl) => acl::run(args, acl, &mut out),
        Command::Completions(completions) => manual::completions(completions, &mut out),
        Command::Man => manual::man(&mut out),
        Command::Acquire(acquire) => runtime()?.block_on(handle::acquire(args, acquire)),
        Command::Extend(extend) => runtime()?.block_on(handle::extend(args, extend)),
        Command::Release(release) => runtime()?.block_on(handle::release(args, release)),
        Command::Lock(lock) => runtime()?.block_on(lock::run(args, lock)),
        Command::Status(status) => runtime()?.block_on(status::run(args, status, &mut out)),
        Command::List(list) => runtime()?.block_on(list::run(args, list, &mut out)),
        Command::Watch(watch) => runtime()?.block_on(watch::run(args, watch, &mut out)),
        Command::ForceUnlock(force) => runtime()?.block_on(force_unlock::run(args, force, &mut out)),
        Command::SetPermits(set) => runtime()?.block_on(set_permits::run(args, set, &mut out)),
        Command::Doctor(doctor) => runtime()?.block_on(doctor::run(args, doctor, &mut out)),
        Command::Bench(bench) => runtime()?.block_on(bench::run(args, bench, &mut out)),
    }?;
    out.flush()?;
    Ok(code)
}

/// A runtime of one thread starts sooner, and nothing here needs two.
fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
