//! What a search needs to know of a model, and what it finds.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use stateright::Model;

use crate::events::{Event, EventSet};

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

    /// Changes a bound by an option of the command line. An option that this model does not have changes nothing.
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
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} is broken by these steps:", self.property)];
        for (step, (state, action)) in self.path.iter().enumerate() {
            lines.push(format!("{step:>3}.   {state}"));
            lines.extend(action.iter().map(|action| format!("  -> {action}")));
        }
        lines
    }
}
