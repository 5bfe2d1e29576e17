//! `scripts/mutate_proto`: judges each mutant of proto that cargo-mutants lists, with the tests of proto and
//! verify/explore.
//!
//! One build has all mutants. A process reads its mutant from the environment, so a mutant costs only the seconds of
//! its run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{fs, io};

use serde_json::Value;

use crate::listed::{self, Listed};
use crate::schemata::ACTIVE;
use crate::simulator::copy;
use crate::sources::{Changed, Sources};
use crate::{Outcome, in_parallel};

/// A program, its arguments, and its limit in CPU seconds. A mutant's judges run until one fails. With the unmodified
/// code each needs at most a tenth of its limit.
type Judge = (&'static str, &'static [&'static str], u32);

/// The cheapest first: they find most mutants within half a second, and the others cost three.
const JUDGES: &[Judge] = &[
    ("fairlock_proto", &["-q"], 5),
    ("wire", &["-q"], 5),
    ("kinds", &["-q"], 5),
    ("contracts", &["-q", "--skip", SLOW], 5),
    (EXPLORE, &["world", "1", "20"], 5),
    (EXPLORE, &["kinds", "1", "20"], 5),
    ("contracts", &["-q", SLOW], 15),
    (EXPLORE, &["world", "21", "40"], 10),
    (EXPLORE, &["kinds", "21", "40"], 10),
];

/// The limit of each compiler in CPU seconds, because some mutants of a constant would compile without end. The
/// longest build needs a quarter of it.
const LONGEST_BUILD: u32 = 150;

/// Part of the names of the tests that take seconds.
const SLOW: &str = "bounded";

/// For mutants that these do not find, with `--unfound`: the short searches, and more runs.
const MORE_JUDGES: &[Judge] = &[
    (EXPLORE, &["search", "one-tries", "one-delays", "tries-breaks", "extends", "detaches", "detaches-drops"], 40),
    (EXPLORE, &["search", "attaches-drops", "detaches-nested", "permits-of-one", "reads-in-writes"], 20),
    (EXPLORE, &["world", "101", "300"], 40),
    (EXPLORE, &["kinds", "101", "300"], 40),
];

/// The name of its program in the copy.
const EXPLORE: &str = "explore-mutants";

/// The mutants that no judge finds, with the reasons.
const EXPLAINED: &str = include_str!("../unfound.md");

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Found(String),
    TimedOut(String),
    /// It does not compile.
    Unviable,
    Unfound,
}

/// `--shard K/N`: each N-th mutant, from the K-th one on. `--unfound`: mutants that the last run did not find.
/// `--alone`: mutants that need a build each; without it, all others. TEXT: mutants with this text in their names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    shard: Option<(usize, usize)>,
    unfound: bool,
    alone: bool,
    texts: Vec<String>,
}

/// Verdicts by name, in a file.
struct Results {
    path: PathBuf,
    verdicts: Mutex<BTreeMap<String, Verdict>>,
}

struct Programs(BTreeMap<String, PathBuf>);

/// `words`: the file with the list of cargo-mutants, and the options.
pub fn run(root: &Path, words: &[String]) -> Outcome<bool> {
    let (list, wanted) = words.split_first().ok_or("--listed needs a file")?;
    let (root, wanted) = (root.canonicalize()?, Wanted::read(wanted)?);
    let sources = Sources::read(&root)?;
    let all = Listed::all(&fs::read_to_string(list)?, &sources)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target));
    let results = Results::read(target.join("mutants/proto.tsv"), &all)?;
    let build = Build { sources, target: target.join("mutants/proto"), root };
    let judges = [JUDGES, if wanted.unfound { MORE_JUDGES } else { &[] }].concat();

    // Builds all of them, so that each shard has the same build.
    let known = all.iter().filter(|mutant| results.verdict(mutant) == Some(Verdict::Unviable)).map(|it| it.number);
    let (programs, alone, unviable) = build.all_in_one(&all, known.collect())?;
    if let Verdict::Found(what) | Verdict::TimedOut(what) = programs.judge(0, &judges)? {
        return Err(format!("{what} fails with the unmodified code").into());
    }
    let is_chosen = |mutant: &&Listed| wanted.has(mutant, results.verdict(mutant).as_ref());
    let chosen: Vec<_> = all.iter().filter(is_chosen).collect();
    let (not_viable, viable): (Vec<_>, Vec<_>) =
        chosen.iter().copied().partition(|mutant| unviable.contains(&mutant.number));
    let (alone, together): (Vec<_>, Vec<_>) = viable.into_iter().partition(|mutant| alone.contains(mutant));
    println!("{} in one build, {} with a build each, {} unviable", together.len(), alone.len(), not_viable.len());
    let unviable = all.iter().filter(|mutant| unviable.contains(&mutant.number));
    unviable.into_iter().try_for_each(|mutant| results.add(mutant, Verdict::Unviable))?;
    if !wanted.alone {
        in_parallel(&together, |mutant| results.add(mutant, programs.judge(mutant.number, &judges)?))?;
        return Ok(results.report(&chosen));
    }
    // In its own folder: in the folder of the others, cargo would take their programs for the programs of this tree.
    let build = Build { target: target.join("mutants/proto-alone"), ..build };
    for mutant in &alone {
        let programs = build.programs(&listed::alone(&build.sources, mutant))?.ok();
        results.add(mutant, programs.map_or(Ok(Verdict::Unviable), |programs| programs.judge(0, &judges))?)?;
    }
    Ok(results.report(&chosen))
}

impl Wanted {
    fn read(words: &[String]) -> Result<Self, String> {
        let (mut wanted, mut words) = (Self::default(), words.iter());
        while let Some(word) = words.next() {
            match word.as_str() {
                "--shard" => {
                    let shard = words.next().and_then(|it| it.split_once('/'));
                    let shard = shard.and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
                    wanted.shard =
                        Some(shard.filter(|(k, n)| (1..=*n).contains(k)).ok_or("--shard is K/N, from 1/N to N/N")?);
                }
                "--unfound" => wanted.unfound = true,
                "--alone" => wanted.alone = true,
                word if word.starts_with('-') => {
                    return Err(format!("{word}: unknown; there are --shard K/N, --unfound and --alone"));
                }
                text => wanted.texts.push(text.to_owned()),
            }
        }
        Ok(wanted)
    }

    fn has(&self, mutant: &Listed, last: Option<&Verdict>) -> bool {
        self.shard.is_none_or(|(k, n)| mutant.number % n == k % n)
            && (!self.unfound || last == Some(&Verdict::Unfound))
            && (self.texts.is_empty() || self.texts.iter().any(|text| mutant.name.contains(text)))
    }
}

struct Build {
    root: PathBuf,
    sources: Sources,
    target: PathBuf,
}

impl Build {
    /// The programs with all mutants that compile, the mutants that need a build each, and the unviable ones.
    /// `unviable`: the known ones that do not compile.
    fn all_in_one<'a>(
        &self,
        mutants: &'a [Listed],
        mut unviable: BTreeSet<usize>,
    ) -> Outcome<(Programs, Vec<&'a Listed>, BTreeSet<usize>)> {
        loop {
            let (changed, alone) = listed::in_one(&self.sources, mutants, &unviable);
            let errors = match self.programs(&changed)? {
                Ok(programs) => return Ok((programs, alone, unviable)),
                Err(errors) => errors,
            };
            let known = unviable.len();
            for (file, line) in &errors {
                unviable.extend(changed.get(file).and_then(|text| listed::mutant_at(text, *line)));
            }
            if unviable.len() == known {
                return Err(format!("{}/tree does not compile: {errors:?}", self.target.display()).into());
            }
        }
    }

    /// The programs, or the lines with errors (none if the build did not end). Checks of arithmetic are on, as in the
    /// tests, and the build optimizes as much as pays for itself.
    fn programs(&self, changed: &Changed) -> Outcome<Result<Programs, Vec<(PathBuf, usize)>>> {
        let tree = self.target.join("tree");
        copy(&self.root, &tree, changed)?;
        let mut programs = BTreeMap::new();
        for words in [&["build", "-p", "fairlock-explore"][..], &["test", "--no-run", "-p", "fairlock-proto"]] {
            let mut cargo = Command::new("sh");
            let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
            cargo.args(["-c", &format!("ulimit -S -t {LONGEST_BUILD}; exec \"$0\" \"$@\""), &program]);
            cargo.args(words).args(["--quiet", "--locked", "--release", "--message-format=json"]);
            for setting in
                ["fairlock-proto.opt-level=1", "fairlock-proto.overflow-checks=true", "fairlock-explore.opt-level=1"]
            {
                cargo.arg("--config").arg(format!("profile.release.package.{setting}"));
            }
            // A mutant may contain something that a lint denies, such as an overflow.
            cargo.env("RUSTFLAGS", "--cap-lints=allow").arg("--target-dir").arg(&self.target).current_dir(&tree);
            let output = cargo.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if !output.status.success() {
                let errors: Vec<_> = messages.iter().flat_map(errors).collect();
                let other = String::from_utf8_lossy(&output.stderr).into_owned();
                let is_of_a_mutant = !errors.is_empty() || other.contains("SIGXCPU");
                return if is_of_a_mutant { Ok(Err(errors)) } else { Err(other.into()) };
            }
            for message in &messages {
                if let (Some(name), Some(path)) = (message["target"]["name"].as_str(), message["executable"].as_str()) {
                    programs.insert(name.to_owned(), path.into());
                }
            }
        }
        Ok(Ok(Programs(programs)))
    }
}

/// The places of a compiler error.
fn errors(message: &Value) -> Vec<(PathBuf, usize)> {
    let message = &message["message"];
    let spans = message["spans"].as_array().filter(|_| message["level"] == "error");
    let primary = spans.into_iter().flatten().filter(|span| span["is_primary"] == true);
    let place =
        |span: &Value| Some((span["file_name"].as_str()?.into(), usize::try_from(span["line_start"].as_u64()?).ok()?));
    primary.filter_map(place).collect()
}

impl Programs {
    fn judge(&self, mutant: usize, judges: &[Judge]) -> io::Result<Verdict> {
        for (program, words, seconds) in judges {
            let path = self.0.get(*program).ok_or_else(|| io::Error::other(format!("{program} was not built")))?;
            // A mutant may loop or take memory without end.
            let limits = format!("ulimit -S -t {seconds}; ulimit -v 3000000; exec \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            command
                .args(["-c", &limits])
                .arg(path)
                .args(*words)
                .env(ACTIVE, mutant.to_string())
                .env("RUST_BACKTRACE", "0");
            let status = command.output()?.status;
            let judge = format!("{program} {}", words.join(" "));
            match status.signal() {
                Some(XCPU) => return Ok(Verdict::TimedOut(judge)),
                _ if !status.success() => return Ok(Verdict::Found(judge)),
                _ => {}
            }
        }
        Ok(Verdict::Unfound)
    }
}

/// The signal that ends a process at its CPU limit.
const XCPU: i32 = 24;

impl Results {
    /// Verdicts of earlier runs, for mutants that are still in the list.
    fn read(path: PathBuf, all: &[Listed]) -> io::Result<Self> {
        let text = if path.exists() { fs::read_to_string(&path)? } else { String::new() };
        let verdict = |line: &str| {
            let (verdict, name) = line.split_once('\t')?;
            let is_listed = all.iter().any(|mutant| mutant.name == name);
            Some((name.to_owned(), Verdict::read(verdict)?)).filter(|_| is_listed)
        };
        let verdicts = Mutex::new(text.lines().filter_map(verdict).collect());
        Ok(Self { path, verdicts })
    }

    fn verdict(&self, mutant: &Listed) -> Option<Verdict> {
        self.locked().get(&mutant.name).cloned()
    }

    /// Writes the file each time, so that a user can stop a run at any time.
    fn add(&self, mutant: &Listed, verdict: Verdict) -> io::Result<()> {
        if verdict == Verdict::Unfound && !is_explained(mutant) {
            println!("MISSED  {}", mutant.name);
        }
        let mut verdicts = self.locked();
        verdicts.insert(mutant.name.clone(), verdict);
        let lines: String = verdicts.iter().map(|(name, verdict)| format!("{verdict}\t{name}\n")).collect();
        fs::write(&self.path, lines)
    }

    /// Whether a judge finds each of these mutants, or unfound.md explains it.
    fn report(&self, mutants: &[&Listed]) -> bool {
        let verdicts: Vec<_> = mutants.iter().filter_map(|mutant| Some((mutant, self.verdict(mutant)?))).collect();
        let count = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| is(verdict)).count();
        let (found, timed_out) =
            (count(|it| matches!(it, Verdict::Found(_))), count(|it| matches!(it, Verdict::TimedOut(_))));
        let (unfound, unviable) = (count(|it| *it == Verdict::Unfound), count(|it| *it == Verdict::Unviable));
        let missed =
            verdicts.iter().filter(|(mutant, verdict)| *verdict == Verdict::Unfound && !is_explained(mutant)).count();
        println!(
            "{found} found, {timed_out} timed out, {unviable} unviable, {unfound} not found, {missed} of them unexplained"
        );
        println!("All verdicts: {}", self.path.display());
        missed == 0
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Verdict>> {
        self.verdicts.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

/// A row of unfound.md has its name, escaped for a table.
fn is_explained(mutant: &Listed) -> bool {
    EXPLAINED.contains(&format!("`{}`", mutant.lasting_name().replace('|', r"\|")))
}

impl Verdict {
    fn read(text: &str) -> Option<Self> {
        let (verdict, by) = text.split_once(": ").unwrap_or((text, ""));
        Some(match verdict {
            "found" => Self::Found(by.to_owned()),
            "timed out" => Self::TimedOut(by.to_owned()),
            "unviable" => Self::Unviable,
            "not found" => Self::Unfound,
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(by) => write!(f, "found: {by}"),
            Self::TimedOut(by) => write!(f, "timed out: {by}"),
            Self::Unviable => write!(f, "unviable"),
            Self::Unfound => write!(f, "not found"),
        }
    }
}
