//! The result of a search.

use std::fmt::{Display, Formatter, Result};

use crate::events::EventSet;
use crate::protocol::{Action, State};

pub struct Found {
    /// The size of the search.
    pub size: String,
    pub reached: EventSet,
    pub broken: Option<Broken>,
}

pub struct Broken {
    pub property: &'static str,
    /// States, and the action after each.
    pub path: Vec<(State, Option<Action>)>,
}

impl Broken {
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} is broken by these steps:", self.property)];
        for (step, (state, action)) in self.path.iter().enumerate() {
            lines.push(format!("{step:>3}.   {state}"));
            lines.extend(action.iter().map(|action| format!("  -> {action}")));
        }
        lines
    }
}

impl Display for Broken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} in {} steps", self.property, self.path.len() - 1)
    }
}
