//! A process with one of the two libraries, as the process that compares them sees it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Outcome;
use crate::work::ROLE;

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

    pub fn measure(&mut self, row: &str, count: u64) -> Outcome<f64> {
        writeln!(self.stdin, "{row} {count}")?;
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err(format!("a client ended at {row}").into());
        }
        line.trim().parse().map_err(|_| format!("{row}: {}", line.trim()).into())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
