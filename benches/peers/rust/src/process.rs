//! One process of a peer. It answers lines with lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::Outcome;

/// The limit for an answer. A process that takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(60);

/// Killed when dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Process {
    pub fn start(command: &[String]) -> Outcome<Self> {
        let (program, arguments) = command.split_first().ok_or("an empty command")?;
        let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        let (sender, output) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut process = Self { child, input, output };
        // The answer shows that the process is connected and its runtime runs.
        process.ask("open 1")?;
        Ok(process)
    }

    pub fn say(&mut self, line: &str) -> Outcome<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    pub fn answer(&mut self) -> Outcome<String> {
        Ok(self.output.recv_timeout(LIMIT).map_err(|error| format!("no answer: {error}"))?)
    }

    pub fn ask(&mut self, line: &str) -> Outcome<String> {
        self.say(line)?;
        self.answer()
    }

    /// How long, from now on, until one of its waiters has the lock.
    pub fn got_within(&mut self, limit: Duration) -> Outcome<Option<Duration>> {
        let begun = Instant::now();
        match self.output.recv_timeout(limit) {
            Ok(line) if line == "got" => Ok(Some(begun.elapsed())),
            Ok(line) => Err(format!("not the lock: {line}").into()),
            Err(_) => Ok(None),
        }
    }

    pub fn kill(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub fn cpu_us(&self) -> Outcome<f64> {
        cpu_us(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The CPU time of a process so far, including its ended threads.
pub fn cpu_us(child: &Child) -> Outcome<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no name in stat")?;
    // utime and stime, the 14th and 15th field, in ticks of 10 ms.
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? * 1e4)
}
