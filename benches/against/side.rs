//! A process with one of the two libraries, from the view of the process that compares them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Outcome;
use crate::server::Server;
use crate::work::{Plan, ROLE};

/// One side's result, and the CPU time that it took from the beginning to the end of the round.
pub struct Round {
    pub value: f64,
    pub client: f64,
    pub redis: f64,
}

/// Killed when dropped.
pub struct Side {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Side {
    pub fn start(program: &Path, url: &str) -> Outcome<Self> {
        let mut command = Command::new(program);
        let mut process = command.args([ROLE, url]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(process.stdout.take().ok_or("no stdout")?);
        Ok(Self { process, stdin, stdout })
    }

    pub fn measure(&mut self, plan: &Plan, server: &Server) -> Outcome<Round> {
        let before = [cpu(&self.process), cpu(server.process())];
        let value = self.ask(plan.name, plan.count)?;
        Ok(Round { value, client: cpu(&self.process) - before[0], redis: cpu(server.process()) - before[1] })
    }

    fn ask(&mut self, row: &str, count: u64) -> Outcome<f64> {
        writeln!(self.stdin, "{row} {count}")?;
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err(format!("a client ended at {row}").into());
        }
        line.trim().parse().map_err(|_| format!("{row}: {}", line.trim()).into())
    }
}

/// The CPU time of the main thread so far, in nanoseconds. Both processes do their work in it. NaN if the kernel does
/// not report it.
fn cpu(process: &Child) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/schedstat", process.id())).unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN)
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
