//! Builds the simulator with all mutants in a copy of the repository, and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use crate::Outcome;
use crate::corpus::Run;
use crate::schemata::ACTIVE;
use crate::sources::{Changed, files};

/// A search for a seed that finds a mutant ends after so many seeds or minutes.
const LIMITS: [&str; 4] = ["--seeds", "10000", "--minutes", "15"];
const LONGEST_VIOLATION: usize = 110;
/// The program has a name of its own in the copy, so that it does not replace the simulator of the unmodified code.
const PROGRAM: &str = "simulate-mutants";

pub struct Simulator(PathBuf);

/// What a run has found.
pub struct Found {
    pub seed: Option<u64>,
    pub violation: String,
}

impl Simulator {
    /// The dependencies are those of `scripts/simulate`, and built only once for both: the profile is the same but
    /// for the library. That has many functions twice or more often here, which takes long to optimize.
    pub fn build(root: &Path, changed: &Changed) -> Outcome<Self> {
        let root = root.canonicalize()?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target));
        let tree = target.join("mutants/tree");
        copy(&root, &tree, changed)?;
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--locked", "--release", "--package", "fairlock-simulate"]);
        command.args(["--config", "profile.release.package.fairlock.opt-level=1"]);
        command.arg("--target-dir").arg(&target).current_dir(&tree);
        if !command.status()?.success() {
            return Err("a mutant does not compile: the message names its file in target/mutants/tree".into());
        }
        Ok(Self(target.join("release").join(PROGRAM)))
    }

    /// One run; of the unmodified code without a mutant.
    pub fn run(&self, mutant: &str, run: &Run) -> io::Result<Option<Found>> {
        self.found(mutant, run.options()).map(|(found, _)| found)
    }

    /// Seeds from 1 on, until one finds the mutant.
    pub fn search(&self, mutant: &str) -> io::Result<Option<Found>> {
        let mut options = vec!["--seed", "1"];
        options.extend(LIMITS);
        if is_of_the_quorum(mutant) {
            options.push("--quorum");
        }
        self.found(mutant, options.into_iter().map(Into::into).collect()).map(|(found, _)| found)
    }

    /// Which kinds of faults a run of the unmodified code meets, and what it finds.
    pub fn faults(&self, run: &Run) -> io::Result<(Option<Found>, Vec<String>)> {
        let (found, text) = self.found("", run.options())?;
        Ok((found, faults(&text)))
    }

    fn found(&self, mutant: &str, options: Vec<String>) -> io::Result<(Option<Found>, String)> {
        let output = Command::new(&self.0).args(options).env(ACTIVE, mutant).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let violation = text.lines().find_map(|line| line.strip_prefix("VIOLATED ")).unwrap_or_default();
        let found = (output.status.code() == Some(1) && !violation.is_empty())
            .then(|| Found { seed: seed(&text), violation: violation.chars().take(LONGEST_VIOLATION).collect() });
        Ok((found, text))
    }
}

/// Only runs of the quorum break a rule of the quorum.
pub fn is_of_the_quorum(mutant: &str) -> bool {
    mutant.starts_with('Q')
}

/// The seed of the line `seed 7: …`, which a violation begins with.
fn seed(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("seed ")?.split(':').next()?.parse().ok())
}

/// The keys of `"faults":{…}` in the last line.
fn faults(text: &str) -> Vec<String> {
    let line = text.lines().last().unwrap_or_default();
    let faults = line.split("\"faults\":{").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    faults.split('"').skip(1).step_by(2).map(Into::into).collect()
}

/// Makes the copy, and keeps what is there already.
fn copy(root: &Path, tree: &Path, changed: &Changed) -> io::Result<()> {
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
        if relative == Path::new("verify/simulate/Cargo.toml") {
            let program = format!("\n[[bin]]\nname = \"{PROGRAM}\"\npath = \"src/main.rs\"\n");
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

/// Writes only files that differ, because cargo builds everything with a new time again.
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
    fn the_seed_and_the_faults_are_read_from_the_output() {
        let text = "seeds from 1\nseed 17: the last 2 of 2 lines\na\nVIOLATED P1: two\n\
            {\"seeds\":3,\"faults\":{\"pauses\":4,\"restarts\":1},\"violations\":1}\n";
        assert_eq!(seed(text), Some(17));
        assert_eq!(faults(text), ["pauses", "restarts"]);
        assert!(faults("nothing").is_empty());
    }
}
