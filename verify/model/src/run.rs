//! One run: every order of events within bounds, or random walks, and the result.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::bounds::Bounds;
use crate::events::Event;
use crate::found::{Broken, Found};
use crate::protocol::Quorum;
use crate::rules::{Rule, Rules};
use crate::walk;

/// The rules and bounds of a run, and its expected result.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub name: &'static str,
    pub about: &'static str,
    bounds: Bounds,
    rules: Rules,
    search: Search,
    expect: Expect,
}

#[derive(Debug, Clone, Copy)]
enum Search {
    /// Every order of events.
    All,
    /// At most this many random walks.
    Walks(u32),
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    /// All properties hold, and the run reaches all these events.
    Holds(&'static [Event]),
    /// The dropped rule breaks a property.
    Caught,
}

/// The options of the command line for random walks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// How many, instead of the number of the base run.
    pub walks: Option<u32>,
    pub seed: u64,
}

/// The result of a run, for people.
pub struct Outcome {
    pub line: String,
    /// The counterexample.
    pub steps: Vec<String>,
    pub passed: bool,
}

impl Run {
    /// A base run, with all rules.
    pub const fn holds(name: &'static str, about: &'static str, bounds: Bounds, events: &'static [Event]) -> Self {
        Self { name, about, bounds, rules: Rules::ALL, search: Search::All, expect: Expect::Holds(events) }
    }

    /// A run without these rules.
    pub const fn drops(name: &'static str, about: &'static str, bounds: Bounds, rules: &'static [Rule]) -> Self {
        Self { name, about, bounds, rules: Rules::without(rules), search: Search::All, expect: Expect::Caught }
    }

    pub const fn walks(self, walks: u32) -> Self {
        Self { search: Search::Walks(walks), ..self }
    }

    /// A base run that holds without these rules too.
    pub const fn without(self, rules: &'static [Rule]) -> Self {
        Self { rules: Rules::without(rules), ..self }
    }

    pub fn run(&self, options: Options) -> Outcome {
        let start = Instant::now();
        let model = Quorum::new(self.rules, self.bounds);
        let found = match (self.search, self.expect) {
            (Search::All, _) => breadth_first(model),
            (Search::Walks(most), Expect::Caught) => walk::walk(&model, most, options.seed),
            (Search::Walks(most), Expect::Holds(_)) => walk::walk(&model, options.walks.unwrap_or(most), options.seed),
        };
        let seconds = start.elapsed().as_secs_f32();
        let (verdict, passed) = self.verdict(&found);
        let line = format!("{:18} {}  {seconds:>5.1} s  {verdict}", self.name, found.size);
        let steps = found.broken.iter().flat_map(Broken::lines).collect();
        Outcome { line, steps, passed }
    }

    fn verdict(&self, found: &Found) -> (String, bool) {
        match (&found.broken, self.expect) {
            (Some(broken), Expect::Caught) => (format!("caught by {broken}"), true),
            (Some(broken), Expect::Holds(_)) => (format!("BROKEN: {broken}"), false),
            (None, Expect::Caught) => ("NOT CAUGHT".to_owned(), false),
            (None, Expect::Holds(required)) => {
                let missing: Vec<_> = required.iter().filter(|event| !found.reached.contains(**event)).collect();
                match missing.is_empty() {
                    true => ("holds".to_owned(), true),
                    false => (format!("holds, but NEVER REACHED: {missing:?}"), false),
                }
            }
        }
    }
}

/// On one thread, so that the numbers and the counterexample are deterministic.
fn breadth_first(model: Quorum) -> Found {
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().min_by_key(|(name, _)| *name);
    Found {
        size: format!("{:>9} states  depth {:>2}", checker.unique_state_count(), checker.max_depth()),
        reached: checker.model().reached.all(),
        broken: broken.map(|(property, path)| Broken { property, path: path.into_vec() }),
    }
}
