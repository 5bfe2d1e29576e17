//! Tries one mutant after the other: builds it in a copy of the repository, and runs the simulator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};
use std::{fs, io};

use crate::Outcome;
use crate::catalogue::Mutant;
use crate::sources::files;

/// Each mutant must be caught within so many seeds, and within so many minutes on a busy machine.
const LIMITS: [&str; 4] = ["--seeds", "1000", "--minutes", "8"];
/// The same for rare ones.
const RARE_LIMITS: [&str; 4] = ["--seeds", "10000", "--minutes", "15"];
const LONGEST_VIOLATION: usize = 110;

type Changed = BTreeMap<PathBuf, String>;

/// Returns how many were caught. While one runs, the next one is built.
pub fn all(root: &Path, mutants: &[(Mutant, Changed)]) -> Outcome<usize> {
    let mut copy = Copy::of(root)?;
    let mut caught = 0;
    thread::scope(|scope| {
        let mut running: Option<(&Mutant, ScopedJoinHandle<'_, io::Result<Run>>)> = None;
        for (mutant, changed) in mutants {
            copy.change(changed)?;
            let simulator = copy.build()?;
            // Only one at a time: two would share the cores with each other and with the build.
            if let Some((before, run)) = running.take() {
                caught += usize::from(report(before, run)?);
            }
            match simulator {
                Some(simulator) => running = Some((mutant, scope.spawn(move || simulate(&simulator, mutant)))),
                None => println!("BROKEN  {:<36} does not compile", mutant.name),
            }
        }
        if let Some((last, run)) = running {
            caught += usize::from(report(last, run)?);
        }
        Ok(caught)
    })
}

/// Waits for the run, and returns whether it found the mutant.
fn report(mutant: &Mutant, run: ScopedJoinHandle<'_, io::Result<Run>>) -> Outcome<bool> {
    let Run { seeds, violation } = run.join().map_err(|_| "the run of a simulator panicked")??;
    let name = &mutant.name;
    match &violation {
        Some(violation) => println!("caught  {name:<36} after {seeds:>4} seeds: {violation}"),
        None => println!("MISSED  {name:<36} in {seeds} seeds"),
    }
    Ok(violation.is_some())
}

/// A copy of the repository with a target directory of its own, both kept for the next run.
struct Copy {
    root: PathBuf,
    tree: PathBuf,
    target: PathBuf,
    changed: Vec<PathBuf>,
    builds: usize,
}

impl Copy {
    fn of(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let target = root.join("target/mutants");
        let copy = Self { tree: target.join("tree"), target, root, changed: Vec::new(), builds: 0 };
        let mut wanted = Vec::new();
        for entry in fs::read_dir(&copy.root)? {
            let path = entry?.path();
            if path.is_file() {
                wanted.push(path);
            } else if !path.ends_with("target") && !path.ends_with(".git") {
                wanted.extend(files(&path)?);
            }
        }
        for path in &wanted {
            let there = copy.tree.join(path.strip_prefix(&copy.root).unwrap_or(path));
            write(&there, &fs::read(path)?)?;
        }
        if copy.tree.exists() {
            for old in files(&copy.tree)? {
                if !copy.root.join(old.strip_prefix(&copy.tree).unwrap_or(&old)).exists() {
                    fs::remove_file(old)?;
                }
            }
        }
        Ok(copy)
    }

    /// Undoes the last mutant and applies this one.
    fn change(&mut self, changed: &Changed) -> io::Result<()> {
        for path in std::mem::take(&mut self.changed) {
            if !changed.contains_key(&path) {
                write(&self.tree.join(&path), &fs::read(self.root.join(&path))?)?;
            }
        }
        for (path, text) in changed {
            write(&self.tree.join(path), text.as_bytes())?;
            self.changed.push(path.clone());
        }
        Ok(())
    }

    /// The path of the simulator; `None` if it does not compile.
    fn build(&mut self) -> io::Result<Option<PathBuf>> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--locked", "--profile", "mutant", "--package", "fairlock-simulate"]);
        command.arg("--target-dir").arg(&self.target).current_dir(&self.tree);
        if !command.status()?.success() {
            return Ok(None);
        }
        // Out of the way of the next build, which begins while this one runs.
        self.builds += 1;
        let simulator = self.target.join(format!("mutant/simulator-{}", self.builds % 2));
        fs::copy(self.target.join("mutant/fairlock-simulate"), &simulator)?;
        Ok(Some(simulator))
    }
}

/// Writes only files that differ, because cargo builds everything with a new time again.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)
}

struct Run {
    seeds: String,
    violation: Option<String>,
}

fn simulate(simulator: &Path, mutant: &Mutant) -> io::Result<Run> {
    let mut command = Command::new(simulator);
    command.args(["--seed", "1"]).args(if mutant.is_rare { RARE_LIMITS } else { LIMITS });
    // A rule of the quorum: the other runs cannot break it.
    if mutant.name.starts_with('Q') {
        command.arg("--quorum");
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let violation = text.lines().find_map(|line| line.strip_prefix("VIOLATED "));
    let seeds = text.split("\"seeds\":").nth(1).unwrap_or_default();
    Ok(Run {
        seeds: seeds.chars().take_while(char::is_ascii_digit).collect(),
        violation: violation
            .filter(|_| output.status.code() == Some(1))
            .map(|violation| violation.chars().take(LONGEST_VIOLATION).collect()),
    })
}
