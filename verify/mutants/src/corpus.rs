//! Reads and writes `verify/corpus.txt`: the runs of the simulator and of the explorer that represent all others, each
//! with the mutants that it finds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const HEAD: &str = "\
# The runs of the simulator that are always made. Three seeds or more meet each kind of fault, and together they find every
# mutant of verify/mutants/mutants.txt. `scripts/corpus` writes this file. A seed means another run as soon as the code or the
# simulator changes, so after such a change the command finds new seeds for the mutants that their runs no longer find.
#
# A line is a run, `SEED` or `scenario NAME`, and then the mutants that it is there for. A seed without a mutant is
# there for its faults. All scenarios are run, named here or not. `search NAME`, `world SEED` and `kinds SEED` are runs of
# verify/explore, for the mutants of the machine in proto.
";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Run {
    Scenario(String),
    Seed(u64),
    /// All states up to bounds, in the explorer.
    Search(String),
    /// A random run of the explorer, with locks.
    World(u64),
    /// The same, with all kinds of names and with handles.
    Kinds(u64),
}

impl Run {
    /// Reads the beginning of a line. The mutants follow.
    pub fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Option<Self>, &'static str> {
        let Some(word) = words.next() else { return Ok(None) };
        let number = |word: &str| {
            word.parse().map_err(|_| "a line begins with a seed, `scenario`, `search`, `world` or `kinds`")
        };
        Ok(Some(match word {
            "scenario" => Self::Scenario(words.next().ok_or("a scenario has a name")?.into()),
            "search" => Self::Search(words.next().ok_or("a search has a name")?.into()),
            "world" => Self::World(number(words.next().unwrap_or_default())?),
            "kinds" => Self::Kinds(number(words.next().unwrap_or_default())?),
            seed => Self::Seed(number(seed)?),
        }))
    }

    pub fn is_of_the_explorer(&self) -> bool {
        matches!(self, Self::Search(_) | Self::World(_) | Self::Kinds(_))
    }

    /// The options for the simulator or the explorer.
    pub fn options(&self) -> Vec<String> {
        match self {
            Self::Scenario(name) => ["--scenario", name].map(Into::into).to_vec(),
            Self::Seed(seed) => ["--seed", &seed.to_string(), "--seeds", "1"].map(Into::into).to_vec(),
            Self::Search(name) => ["search", name].map(Into::into).to_vec(),
            Self::World(seed) => ["world", &seed.to_string(), "1"].map(Into::into).to_vec(),
            Self::Kinds(seed) => ["kinds", &seed.to_string(), "1"].map(Into::into).to_vec(),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario(name) => write!(f, "scenario {name}"),
            Self::Seed(seed) => write!(f, "{seed}"),
            Self::Search(name) => write!(f, "search {name}"),
            Self::World(seed) => write!(f, "world {seed}"),
            Self::Kinds(seed) => write!(f, "kinds {seed}"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corpus(pub BTreeMap<Run, BTreeSet<String>>);

impl Corpus {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut corpus = Self::default();
        for (index, line) in text.lines().enumerate() {
            let malformed = |why| format!("corpus.txt, line {}: {why}", index + 1);
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(run) = Run::read(&mut words).map_err(malformed)? else { continue };
            if corpus.0.insert(run, words.map(Into::into).collect()).is_some() {
                return Err(malformed("this run is there twice"));
            }
        }
        Ok(corpus)
    }

    /// The runs for this mutant.
    pub fn of<'a>(&'a self, mutant: &'a str) -> impl Iterator<Item = &'a Run> {
        self.0.iter().filter(move |(_, mutants)| mutants.contains(mutant)).map(|(run, _)| run)
    }

    /// The mutants without a run, and the names without a mutant.
    pub fn wrong(&self, mutants: &[&str]) -> Vec<String> {
        let lacking = mutants.iter().filter(|name| self.of(name).next().is_none());
        let lacking = lacking.map(|name| format!("{name}: no run of verify/corpus.txt is there for it"));
        let named: BTreeSet<_> = self.0.values().flatten().collect();
        let unknown = named.into_iter().filter(|name| !mutants.contains(&name.as_str()));
        lacking
            .chain(unknown.map(|name| format!("{name}: verify/corpus.txt names it, and there is no such mutant")))
            .collect()
    }

    /// Removes the mutant from all runs, and adds it to this one if there is one.
    pub fn assign(&mut self, mutant: &str, run: Option<Run>) {
        self.0.values_mut().for_each(|mutants| {
            mutants.remove(mutant);
        });
        if let Some(run) = run {
            self.0.entry(run).or_default().insert(mutant.into());
        }
    }
}

impl fmt::Display for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD}")?;
        for (run, mutants) in &self.0 {
            let names: String = mutants.iter().map(|name| format!(" {name}")).collect();
            write!(f, "\n{run}{names}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Corpus {
        Corpus::parse(text).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    #[test]
    fn what_is_written_is_read_again_and_sorted() {
        let corpus = parsed(
            "# head\n\nworld 5 M-d\n17 R1-a R2-b # why\n9\nsearch two M-e\nkinds 3 M-f\nscenario two-ends Q1-c\n",
        );
        let sorted = "scenario two-ends Q1-c\n9\n17 R1-a R2-b\nsearch two M-e\nworld 5 M-d\nkinds 3 M-f\n";
        assert_eq!(corpus.to_string(), format!("{HEAD}\n{sorted}"));
        assert_eq!(parsed(&corpus.to_string()), corpus);
        assert_eq!(corpus.of("R2-b").collect::<Vec<_>>(), [&Run::Seed(17)]);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        for (text, why) in [("\nR1-a 5", "line 2"), ("scenario", "name"), ("world x", "seed"), ("7\n7 R1-a", "twice")] {
            let wrong = Corpus::parse(text).expect_err(text);
            assert!(wrong.contains(why), "{wrong}");
        }
    }

    #[test]
    fn mutants_without_a_run_and_unknown_names_are_wrong() {
        let wrong = parsed("1 a b\n2 b").wrong(&["a", "c"]);
        assert!(wrong.len() == 2 && wrong[0].starts_with("c: no run") && wrong[1].starts_with("b: "), "{wrong:?}");
        assert!(parsed("1 a\n2 a c").wrong(&["a", "c"]).is_empty());
    }

    #[test]
    fn a_mutant_is_assigned_to_one_run() {
        let mut corpus = parsed("1 a b\n2 a");
        corpus.assign("a", Some(Run::Seed(3)));
        assert_eq!(corpus, parsed("1 b\n2\n3 a"));
        corpus.assign("b", None);
        assert_eq!(corpus, parsed("1\n2\n3 a"));
    }
}
