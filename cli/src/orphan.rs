//! A command must not go on without the lock when this process is killed. Linux can send the command a signal then, if
//! the command asks for it, between fork and exec. That needs `unsafe`, which this crate forbids. So this program
//! starts itself again, asks for the signal, and becomes the command.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use super::args::Orphan;
use super::exit::{self, Failure};

/// The first argument of the intermediate process. The parent, the signal and the command follow.
const WORD: &str = "__command";

#[cfg(not(target_os = "linux"))]
pub fn command(words: &[OsString], _orphan: Orphan) -> Command {
    plain(words)
}

#[cfg(target_os = "linux")]
pub fn command(words: &[OsString], orphan: Orphan) -> Command {
    let signal = match orphan {
        Orphan::Term => nix::sys::signal::Signal::SIGTERM,
        Orphan::Kill => nix::sys::signal::Signal::SIGKILL,
        Orphan::Keep => return plain(words),
    };
    // Runs this program even if its file was replaced since. Without /proc nothing else is certain to do so.
    let itself = std::path::Path::new("/proc/self/exe");
    if !itself.exists() {
        return plain(words);
    }
    let mut command = Command::new(itself);
    command.arg(WORD).arg(std::process::id().to_string()).arg(signal.as_str()).args(words);
    command
}

fn plain(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().cloned().unwrap_or_default());
    command.args(words);
    command
}

/// In the intermediate process: becomes the command, or returns why it could not. Returns `None` in all other
/// processes.
pub fn become_the_command() -> Option<Failure> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let parent = words.next()?.to_string_lossy().into_owned();
    let signal = words.next()?.to_string_lossy().into_owned();
    Some(exec(&parent, &signal, &words.collect::<Vec<_>>()))
}

#[cfg(target_os = "linux")]
fn exec(parent: &str, signal: &str, words: &[OsString]) -> Failure {
    use std::os::unix::process::CommandExt;

    let Some(program) = words.first() else { return Failure::usage("which command?") };
    let asked = signal.parse::<nix::sys::signal::Signal>().and_then(nix::sys::prctl::set_pdeathsig);
    if let Err(error) = asked {
        return Failure::new(exit::CANNOT_RUN, format!("cannot ask for a signal when fairlock is killed: {error}"));
    }
    // fairlock was killed before: no signal will come, and another process may get the lock soon.
    if nix::unistd::getppid().to_string() != parent {
        return Failure::new(exit::LOST, "fairlock was killed before the command had begun");
    }
    cannot_run(program, &plain(words).exec())
}

#[cfg(not(target_os = "linux"))]
fn exec(_parent: &str, _signal: &str, _words: &[OsString]) -> Failure {
    Failure::usage("this is for Linux")
}

pub fn cannot_run(program: &OsString, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    };
    Failure::new(code, format!("cannot run {}: {error}", program.to_string_lossy()))
}
