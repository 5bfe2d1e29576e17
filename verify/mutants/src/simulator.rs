//! Builds the simulator and the explorer with all mutants in a copy of the repository, and runs them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::catalogue::is_of_the_machine;
use crate::corpus::Run;
use crate::schemata::ACTIVE;
use crate::seed::{SHARED, Topology};
use crate::sources::{Changed, files};
use crate::{Outcome, in_parallel};

/// A search for a seed that finds a mutant ends after this time.
const LONGEST_SEARCH: Duration = Duration::from_secs(15 * 60);
/// A mutant may loop or take memory without end. A run needs a few seconds and less than 1 GB. It may use a minute of
/// CPU time, which does not depend on other load, and 2 GB.
const LIMITED: &str = "ulimit -t 60; ulimit -v 2000000; exec \"$0\" \"$@\"";
/// All searches of the explorer, one after the other.
const ALL_SEARCHES: &str = "ulimit -t 600; ulimit -v 4000000; exec \"$0\" \"$@\"";
const QUORUMS_FOR_ALL: u64 = 50;
const LONGEST_VIOLATION: usize = 110;
/// The programs have other names in the copy, so that they do not replace the unmodified programs.
const PROGRAMS: [(&str, &str); 2] =
    [("verify/simulate/Cargo.toml", "simulate-mutants"), ("verify/explore/Cargo.toml", "explore-mutants")];

pub struct Simulator {
    simulate: PathBuf,
    explore: PathBuf,
}

impl Simulator {
    /// Shares the dependencies with `scripts/simulate`, which are built only once: the profile differs only for the
    /// packages of the copy. Optimizing these would take longer than all runs.
    pub fn build(root: &Path, changed: &Changed) -> Outcome<Self> {
        let root = root.canonicalize()?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target));
        let tree = target.join("mutants/tree");
        copy(&root, &tree, changed)?;
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--locked", "--release", "--package", "fairlock-simulate"]);
        command.args(["--package", "fairlock-explore"]);
        for package in ["fairlock", "fairlock-proto", "fairlock-simulate"] {
            command.arg("--config").arg(format!("profile.release.package.{package}.opt-level=1"));
        }
        command.arg("--target-dir").arg(&target).current_dir(&tree);
        if !command.status()?.success() {
            return Err("a mutant does not compile: the message names its file in target/mutants/tree".into());
        }
        let [simulate, explore] = PROGRAMS.map(|(_, name)| target.join("release").join(name));
        Ok(Self { simulate, explore })
    }

    /// Whether no run of the corpus finds anything in the unmodified code, and each fault is met, as in
    /// `scripts/simulate`.
    pub fn passes_unmodified(&self, corpus: &Path) -> io::Result<bool> {
        let mut simulate = Command::new(&self.simulate);
        Ok(simulate.arg("--corpus").arg(corpus).env(ACTIVE, "").status()?.success())
    }

    /// The violations that these runs of the explorer find in the unmodified code.
    pub fn violated(&self, runs: &[&Run]) -> io::Result<Vec<String>> {
        let found = in_parallel(runs, |run| self.run("", run))?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The first broken promise that the run finds.
    pub fn run(&self, mutant: &str, run: &Run) -> io::Result<Option<String>> {
        self.output(mutant, run).map(|(violation, _)| violation)
    }

    /// The same, but nothing if the run also finds something in the unmodified code.
    pub fn finds(&self, mutant: &str, run: &Run) -> io::Result<Option<String>> {
        let Some(violation) = self.run(mutant, run)? else { return Ok(None) };
        if let Some(violation) = self.run("", run)? {
            println!("VIOLATED by the unmodified code, {run}: {violation}");
            return Ok(None);
        }
        Ok(Some(violation))
    }

    /// Tries these seeds until one finds the mutant.
    pub fn search(&self, mutant: &str, seeds: Range<u64>) -> io::Result<Option<(Run, String)>> {
        if is_of_the_machine(mutant) {
            return self.explore(mutant, seeds);
        }
        let begun = Instant::now();
        let first = if is_of_shared_names(mutant) { SHARED } else { 0 };
        let seeds = seeds.map(|seed| first + seed).filter(|seed| may_find(*seed, mutant)).map(Run::Seed);
        for run in seeds.take_while(|_| begun.elapsed() < LONGEST_SEARCH) {
            if let Some(violation) = self.finds(mutant, &run)? {
                return Ok(Some((run, violation)));
            }
        }
        Ok(None)
    }

    /// Random runs for at most a minute of each kind, then all searches.
    fn explore(&self, mutant: &str, seeds: Range<u64>) -> io::Result<Option<(Run, String)>> {
        let [first, count] = [seeds.start, seeds.end - seeds.start].map(|number| number.to_string());
        let runs = [
            (LIMITED, vec!["world", &first, &count]),
            (LIMITED, vec!["kinds", &first, &count]),
            (ALL_SEARCHES, vec!["search"]),
        ];
        for (limits, options) in runs {
            let (violation, _) =
                violation(Command::new("sh").args(["-c", limits]).arg(&self.explore).args(options), mutant)?;
            let run = violation.as_deref().and_then(|it| Run::read(&mut it.split(':').next()?.split(' ')).ok()?);
            if let Some(found) =
                run.map(|run| self.finds(mutant, &run).map(|found| Some((run, found?)))).transpose()?.flatten()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The run's violation of the unmodified code, and the faults that it meets. Faults of a quorum have other names,
    /// because runs must meet a fault with one server as well as with several.
    pub fn unmodified(&self, run: &Run) -> io::Result<(Option<String>, Vec<String>)> {
        let (violation, text) = self.output("", run)?;
        let topology = if let Run::Seed(seed) = run { Topology::of(*seed) } else { Topology::OneServer };
        let name = |fault: &str| match topology {
            Topology::Quorum => format!("{fault} in a quorum"),
            Topology::Shared => format!("{fault} of shared names"),
            _ => fault.to_owned(),
        };
        Ok((violation, faults(&text).map(name).collect()))
    }

    fn output(&self, mutant: &str, run: &Run) -> io::Result<(Option<String>, String)> {
        let program = if run.is_of_the_explorer() { &self.explore } else { &self.simulate };
        let (violation, text) =
            violation(Command::new("sh").args(["-c", LIMITED]).arg(program).args(run.options()), mutant)?;
        // The explorer prints the run before its finding.
        let prefix = format!("{run}: ");
        Ok((violation.map(|violation| violation.trim_start_matches(&prefix).to_owned()), text))
    }
}

/// The first broken promise, and the whole output of the program.
fn violation(command: &mut Command, mutant: &str) -> io::Result<(Option<String>, String)> {
    let output = command.env(ACTIVE, mutant).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Otherwise a search that never ran would count as one without a finding.
    if mutant.is_empty() && !matches!(output.status.code(), Some(0 | 1)) {
        return Err(io::Error::other(format!("{command:?} of the unmodified code ends with {}", output.status)));
    }
    let violation = text.lines().find_map(|line| line.strip_prefix("VIOLATED "));
    let violation = violation.filter(|_| output.status.code() == Some(1));
    Ok((violation.map(|violation| violation.chars().take(LONGEST_VIOLATION).collect()), text))
}

/// A rule of the quorum, which only a run of a quorum breaks.
pub fn is_of_the_quorum(mutant: &str) -> bool {
    mutant.starts_with('Q')
}

/// A rule of shared names, which only their runs break. All other mutants are searched as before.
pub fn is_of_shared_names(mutant: &str) -> bool {
    mutant.starts_with("S-")
}

/// A run of the quorum also finds some of the other mutants, but it takes as long as several other runs.
fn may_find(seed: u64, mutant: &str) -> bool {
    let is_shared = Topology::of(seed) == Topology::Shared;
    if is_shared || is_of_shared_names(mutant) {
        return is_shared == is_of_shared_names(mutant);
    }
    is_a_quorum(seed) == is_of_the_quorum(mutant) || is_a_quorum(seed) && seed < QUORUMS_FOR_ALL
}

fn is_a_quorum(seed: u64) -> bool {
    Topology::of(seed) == Topology::Quorum
}

/// The keys of `"faults":{…}` in the last line.
fn faults(text: &str) -> impl Iterator<Item = &str> {
    let line = text.lines().last().unwrap_or_default();
    let faults = line.split("\"faults\":{").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    faults.split('"').skip(1).step_by(2)
}

/// Makes the copy, on top of an earlier one.
pub fn copy(root: &Path, tree: &Path, changed: &Changed) -> io::Result<()> {
    let mut wanted = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_file() {
            wanted.push(path);
        } else if !path.ends_with("target") && !path.ends_with(".git") {
            wanted.extend(files(&path)?);
        }
    }
    for path in &wanted {
        let relative = path.strip_prefix(root).unwrap_or(path);
        let program = PROGRAMS.into_iter().find(|(manifest, _)| relative == Path::new(manifest));
        if let Some((_, name)) = program {
            let program = format!("\n[[bin]]\nname = \"{name}\"\npath = \"src/main.rs\"\n");
            write(&tree.join(relative), (fs::read_to_string(path)? + &program).as_bytes())?;
        } else if !changed.contains_key(relative) {
            write(&tree.join(relative), &fs::read(path)?)?;
        }
    }
    for (path, text) in changed {
        write(&tree.join(path), text.as_bytes())?;
    }
    for old in files(tree)? {
        let relative = old.strip_prefix(tree).unwrap_or(&old);
        if !root.join(relative).exists() && !changed.contains_key(relative) {
            fs::remove_file(old)?;
        }
    }
    Ok(())
}

/// Writes only files that differ, because cargo rebuilds everything with a new time.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_of_the_quorum_are_searched_in_its_runs_only() {
        let tried = |mutant| (1..80).filter(|seed| may_find(*seed, mutant)).filter(|seed| is_a_quorum(*seed)).count();
        assert_eq!((tried("Q1-x"), tried("R1-x")), (12, 7));
        assert_eq!((1..80).filter(|seed| may_find(*seed, "Q1-x")).count(), 12);
        assert!(may_find(80, "R1-x"));
    }

    #[test]
    fn the_faults_are_read_from_the_last_line() {
        let text = "seed 17: faults\nVIOLATED P1: two\n{\"seeds\":3,\"faults\":{\"pauses\":4,\"restarts\":1},\"violations\":1}\n";
        assert_eq!(faults(text).collect::<Vec<_>>(), ["pauses", "restarts"]);
        assert_eq!(faults("nothing").count(), 0);
    }
}
