//! The command that runs under the lock.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::process::{Child as Process, Command};
use tokio::time::{Instant, sleep};

use super::args::Orphan;
use super::exit::{self, Failure};
use super::orphan::{self, cannot_run};

/// How often to check whether a process group has ended, since nothing notifies of that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Child {
    process: Process,
    pid: Pid,
    terminal: Option<File>,
}

impl Child {
    /// With a terminal, the command stays in the process group of this process: the shell can stop and continue it, and
    /// the terminal sends it the signals of its keys. Without one, the command gets a group of its own, which gets all
    /// signals. Otherwise a shell script would end and leave its children running.
    pub fn start(command: &[OsString], orphan: Orphan, environment: [(&str, &str); 4]) -> Result<Self, Failure> {
        let terminal = File::open("/dev/tty").ok();
        let program = command.first().ok_or_else(|| Failure::usage("which command?"))?;
        let mut starting = Command::from(orphan::command(command, orphan));
        starting.envs(environment);
        if terminal.is_none() {
            starting.process_group(0);
        }
        let process = starting.spawn().map_err(|error| cannot_run(program, &error))?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new(exit::CANNOT_RUN, "the command has no process id"))?;
        Ok(Self { process, pid, terminal })
    }

    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes on a signal that this process got, unless the terminal has sent it to the command as well.
    pub fn pass_on(&self, signal: Signal) {
        let is_of_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP);
        if !(is_of_terminal && self.is_in_foreground()) {
            self.send(signal);
        }
    }

    fn is_in_foreground(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
    }

    pub fn send(&self, signal: Signal) {
        // Until this process waits for the command, no other process can get its number.
        if self.process.id().is_some() {
            let _ = if self.terminal.is_none() { killpg(self.pid, signal) } else { kill(self.pid, signal) };
        }
    }

    /// Waits for the rest of the command's process group, and sends it SIGKILL at the deadline.
    pub async fn end_group(&self, deadline: Instant) {
        if self.terminal.is_some() {
            return;
        }
        while is_running(self.pid) {
            if Instant::now() >= deadline {
                let _ = killpg(self.pid, Signal::SIGKILL);
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Whether any process of the group is running.
fn is_running(group: Pid) -> bool {
    // The group exists until the parents have reaped its zombies. In a container, process 1 may never do that.
    let exists = killpg(group, None).is_ok();
    let states = states(group);
    exists && (states.is_empty() || states.iter().any(|state| state != "Z"))
}

/// The states of the group's processes, from /proc. Empty except on Linux.
fn states(group: Pid) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let state = |process: fs::DirEntry| {
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        // `pid (name) state parent group …`, and the name may contain brackets.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.to_owned();
        (fields.nth(1)? == group.to_string()).then_some(state)
    };
    processes.filter_map(state).collect()
}

/// The exit code that a shell would return.
pub fn code(status: ExitStatus) -> u8 {
    let ended_by = || exit::SIGNAL.saturating_add(status.signal().and_then(|n| u8::try_from(n).ok()).unwrap_or(0));
    status.code().map_or_else(ended_by, |code| u8::try_from(code).unwrap_or(u8::MAX))
}
