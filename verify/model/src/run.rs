//! One run of a model: every order of events within bounds, or random walks, and what came of it.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use crate::checked::{Broken, Checked, Found};
use crate::walk::{self, Walks};

/// The rules and bounds of a run, and what must come of it.
#[derive(Debug, Clone)]
pub struct Variant<M: Checked> {
    pub name: &'static str,
    pub about: &'static str,
    pub rules: M::Rules,
    pub bounds: M::Bounds,
    pub expect: Expect<M::Event>,
    /// The most random walks. 0: every order of events instead.
    pub walks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect<E: 'static> {
    /// All properties hold, and the run reaches all these events.
    Holds(&'static [E]),
    /// The dropped rule breaks a property.
    Caught,
}

/// What the command line says about all runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub bounds: Vec<(String, u8)>,
    /// As many walks as this instead, in the runs that walk.
    pub walks: Option<u32>,
    pub seed: u64,
}

/// A variant of any model.
pub trait Run: Send + Sync {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn run(&self, options: &Options, threads: usize) -> Outcome;
}

impl<M: Checked> Run for Variant<M> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn run(&self, options: &Options, threads: usize) -> Outcome {
        let start = Instant::now();
        let mut bounds = self.bounds;
        options.bounds.iter().for_each(|(option, value)| M::set_bound(&mut bounds, option, *value));
        let model = M::new(self.rules.clone(), bounds);
        let found = if self.walks == 0 {
            breadth_first(model, threads)
        } else {
            let walks = options.walks.filter(|_| self.expect != Expect::Caught).unwrap_or(self.walks);
            walk::walk(model, Walks { walks, seed: options.seed, threads })
        };
        let seconds = start.elapsed().as_secs_f32();
        let (verdict, passed) = self.verdict(&found);
        let line = format!("{:18} {}  {seconds:>5.1} s  {verdict}", self.name, found.size);
        let steps = found.broken.iter().flat_map(Broken::lines).collect();
        Outcome { line, steps, passed }
    }
}

impl<M: Checked> Variant<M> {
    /// A base run, with all rules.
    pub fn holds(name: &'static str, about: &'static str, bounds: M::Bounds, events: &'static [M::Event]) -> Self {
        Self { name, about, rules: M::Rules::default(), bounds, expect: Expect::Holds(events), walks: 0 }
    }

    /// A run without the rules that `change` drops.
    pub fn drops(name: &'static str, about: &'static str, bounds: M::Bounds, change: fn(&mut M::Rules)) -> Self {
        let mut rules = M::Rules::default();
        change(&mut rules);
        Self { name, about, rules, bounds, expect: Expect::Caught, walks: 0 }
    }

    fn verdict(&self, found: &Found<M>) -> (String, bool) {
        if let Some(Broken { property, path }) = &found.broken {
            let caught = self.expect == Expect::Caught;
            let verb = if caught { "caught by" } else { "BROKEN:" };
            return (format!("{verb} {property} in {} steps", path.len() - 1), caught);
        }
        let Expect::Holds(required) = self.expect else { return ("NOT CAUGHT".to_owned(), false) };
        let missing: Vec<_> = required.iter().filter(|event| !found.reached.contains(**event)).collect();
        match missing.is_empty() {
            true => ("holds".to_owned(), true),
            false => (format!("holds, but NEVER REACHED: {missing:?}"), false),
        }
    }
}

/// The result of a run, for people.
pub struct Outcome {
    pub line: String,
    /// The counterexample.
    pub steps: Vec<String>,
    pub passed: bool,
}

fn breadth_first<M: Checked>(model: M, threads: usize) -> Found<M> {
    let checker = model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().min_by_key(|(name, _)| *name);
    Found {
        size: format!("{:>9} states  depth {:>2}", checker.unique_state_count(), checker.max_depth()),
        reached: checker.model().reached(),
        broken: broken.map(|(property, path)| Broken { property, path: path.into_vec() }),
    }
}
