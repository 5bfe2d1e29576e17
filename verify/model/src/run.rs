//! One run of a model: every order of events within bounds, or random walks, and what came of it.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::events::{Event, EventSet};
use crate::walk::{self, Walks};

/// A model whose rules can be dropped.
pub trait Checked:
    Model<
        State: Clone + Debug + Display + Hash + Eq + Send + Sync,
        Action: Copy + Debug + Display + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
    type Rules: Clone + Default + Send + Sync;
    type Bounds: Copy + Send + Sync;
    type Event: Event;

    fn new(rules: Self::Rules, bounds: Self::Bounds) -> Self;

    /// The events reached in all states together.
    fn reached(&self) -> EventSet<Self::Event>;

    /// Changes a bound by an option of the command line. One that this model does not have changes nothing.
    fn set_bound(bounds: &mut Self::Bounds, option: &str, value: u8);

    /// How often each kind of action is taken in random walks, on the average.
    const KINDS: &'static [f32] = &[1.0];

    /// The index of its kind.
    fn kind(_: &Self::Action) -> usize {
        0
    }

    /// The guards that came to be so far, in random walks.
    fn guards(&self) -> u64 {
        0
    }

    /// The property that the last state of a walk breaks.
    fn broken_at_the_end(&self, _: &Self::State) -> Option<&'static str> {
        None
    }
}

/// The rules and bounds of a run, and what must come of it.
#[derive(Debug, Clone)]
pub struct Variant<M: Checked> {
    pub name: &'static str,
    pub about: &'static str,
    pub rules: M::Rules,
    pub bounds: M::Bounds,
    pub expect: Expect<M::Event>,
    /// At most so many random walks. 0: every order of events instead.
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

/// What a search has found.
pub struct Found<M: Checked> {
    /// How much was searched.
    pub size: String,
    pub reached: EventSet<M::Event>,
    pub broken: Option<Broken<M>>,
}

pub struct Broken<M: Checked> {
    pub property: &'static str,
    /// States, and the action that was taken in each.
    pub path: Vec<(M::State, Option<M::Action>)>,
}

impl<M: Checked> Broken<M> {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} is broken by these steps:", self.property)];
        for (step, (state, action)) in self.path.iter().enumerate() {
            lines.push(format!("{step:>3}.   {state}"));
            lines.extend(action.iter().map(|action| format!("  -> {action}")));
        }
        lines
    }
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
