//! The client process under callgrind, from the view of the process that measures it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Stdio};

use crate::Outcome;
use crate::callgrind::{self, Dumps};
use crate::work::{MARK, ROLE};

/// Killed when dropped.
pub struct Child {
    process: process::Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    dumps: Dumps,
}

impl Child {
    pub fn start(dir: &Path, url: &str) -> Outcome<Self> {
        let out = dir.join("client");
        let mut command = callgrind::command(&format!("*{MARK}*"), &out);
        command.arg(std::env::current_exe()?).arg(ROLE).arg(url);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(process.stdout.take().ok_or("no stdout")?);
        let mut child = Self { process, stdin, stdout, dumps: Dumps::of(out) };
        child.expect("connected")?;
        Ok(child)
    }

    /// Prepares a phase.
    pub fn prepare(&mut self, name: &str, count: u32) -> Outcome<()> {
        self.say(&format!("{name} {count}"))?;
        self.expect("ready")
    }

    /// Runs the phase, and returns its allocations.
    pub fn work(&mut self) -> Outcome<f64> {
        self.say("go")?;
        Ok(self.hear()?.parse()?)
    }

    /// Clears up, and returns the instructions of the phase.
    pub fn end(&mut self) -> Outcome<f64> {
        self.say("end")?;
        self.expect("over")?;
        // The first dump has the preparation.
        self.dumps.next()?;
        self.dumps.next()
    }

    fn say(&mut self, line: &str) -> Outcome<()> {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Err("the client ended".into()),
            _ => match line.trim().strip_prefix("error ") {
                Some(error) => Err(error.into()),
                None => Ok(line.trim().to_owned()),
            },
        }
    }

    fn expect(&mut self, answer: &str) -> Outcome<()> {
        let line = self.hear()?;
        if line == answer { Ok(()) } else { Err(format!("the client says {line} in place of {answer}").into()) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
