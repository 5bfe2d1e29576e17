//! Processes under callgrind, which dump their cost since the last dump when they enter a certain function.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;

pub fn is_there() -> bool {
    Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Starts a program that writes a dump before each call of `function`, to `out` with a number.
pub fn command(function: &str, out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--dump-before={function}"));
    command.arg(format!("--callgrind-out-file={}", out.display())).arg("--quiet").stderr(Stdio::null());
    command
}

/// The dumps of one process, in order.
pub struct Dumps {
    out: PathBuf,
    read: u32,
}

impl Dumps {
    pub fn of(out: PathBuf) -> Self {
        Self { out, read: 0 }
    }

    /// The instructions in the next dump, which the process must already have written.
    pub fn next(&mut self) -> Outcome<f64> {
        self.read += 1;
        let path = format!("{}.{}", self.out.display(), self.read);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("callgrind wrote no {path} ({error}): are the program's symbols stripped?"))?;
        std::fs::remove_file(&path)?;
        total(&text).ok_or_else(|| format!("no total in {path}").into())
    }
}

fn total(dump: &str) -> Option<f64> {
    dump.lines().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_of_a_dump_is_read() {
        assert_eq!(total("events: Ir\nfn=(1) main\n16 4\n\ntotals: 386607\n"), Some(386_607.0));
        assert_eq!(total("events: Ir\n"), None);
    }
}
