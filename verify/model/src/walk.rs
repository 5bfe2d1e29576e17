//! Random walks, for bounds that are too large to search. The seed and the number of a walk determine it.

use std::sync::atomic::Ordering;

use fastrand::Rng;
use stateright::{Model, Property};

use crate::found::{Broken, Found};
use crate::protocol::{Action, Quorum, State};
use crate::settle;

/// The longest walk.
const STEPS: usize = 600;

/// The average weight of each kind of action.
const KINDS: [f32; 7] = [1.0, 8.0, 0.5, 0.15, 0.3, 0.7, 3.0];

fn kind(action: &Action) -> usize {
    match action {
        Action::Tick => 0,
        Action::Deliver(_) => 1,
        Action::LoseMessage(_) | Action::DeliverCopy(_) => 2,
        Action::Cut(..) | Action::Die(_) | Action::Restart(..) | Action::Save(_) | Action::ForceUnlock(_) => 3,
        Action::GiveUpNode(..) | Action::Cancel(_) => 4,
        Action::Unlock(_) => 5,
        _ => 6,
    }
}

/// Walks until a walk breaks a property.
pub fn walk(model: &Quorum, walks: u32, seed: u64) -> Found {
    let walk = Walk { model, starts: model.init_states(), properties: model.properties() };
    let (mut steps, mut done, mut broken) = (0, 0, None);
    while done < walks && broken.is_none() {
        // Neighbouring seeds would begin alike.
        let seed = Rng::with_seed(seed << 32 | u64::from(done)).u64(..);
        let (start, actions, property) = walk.one(&mut Rng::with_seed(seed));
        (steps, done) = (steps + actions.len(), done + 1);
        broken = property.map(|property| Broken { property, path: walk.path(start, actions) });
    }
    let guards = model.guards.load(Ordering::Relaxed);
    Found {
        size: format!("{done:>9} walks  {steps:>9} steps  {guards:>8} guards"),
        reached: model.reached.all(),
        broken,
    }
}

struct Walk<'a> {
    model: &'a Quorum,
    starts: Vec<State>,
    properties: Vec<Property<Quorum>>,
}

impl Walk<'_> {
    /// The first state of a walk, its actions, and the property that it breaks.
    fn one(&self, rng: &mut Rng) -> (&State, Vec<Action>, Option<&'static str>) {
        let start = &self.starts[rng.usize(..self.starts.len())];
        // Each walk has its own mixture: some lose nearly all messages, in some the clock hardly moves.
        let weights = KINDS.map(|weight| weight * (0.02 + rng.f32().powi(2)));
        let (mut state, mut actions, mut possible) = (start.clone(), Vec::new(), Vec::new());
        while actions.len() < STEPS {
            possible.clear();
            self.model.actions(&state, &mut possible);
            let Some(next) = self.step(&state, &mut possible, &weights, rng) else { break };
            actions.push(next.0);
            state = next.1;
            if let Some(property) = self.broken(&state) {
                return (start, actions, Some(property));
            }
        }
        let is_stuck = !settle::all_are_served(self.model, &state);
        (start, actions, is_stuck.then_some(settle::NAME))
    }

    /// One of the possible actions within bounds.
    fn step(
        &self,
        state: &State,
        possible: &mut Vec<Action>,
        weights: &[f32],
        rng: &mut Rng,
    ) -> Option<(Action, State)> {
        while !possible.is_empty() {
            let of_kind = |this: usize| possible.iter().filter(|action| kind(action) == this).count();
            // Independent of the number of actions of a kind.
            let weights: Vec<_> = (0..).zip(weights).map(|(kind, weight)| weight / of_kind(kind) as f32).collect();
            let index = choose(possible, |action| weights[kind(action)], rng);
            let action = possible.swap_remove(index);
            if let Some(next) = self.model.next_state(state, action) {
                return Some((action, next));
            }
        }
        None
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        // All properties are of the kind "always".
        self.properties.iter().find(|property| !(property.condition)(self.model, state)).map(|property| property.name)
    }

    fn path(&self, start: &State, actions: Vec<Action>) -> Vec<(State, Option<Action>)> {
        let (mut state, mut path) = (start.clone(), Vec::new());
        for action in actions {
            let Some(next) = self.model.next_state(&state, action) else { break };
            path.push((std::mem::replace(&mut state, next), Some(action)));
        }
        path.push((state, None));
        path
    }
}

/// The index of a random action, by weight.
fn choose(actions: &[Action], weight: impl Fn(&Action) -> f32, rng: &mut Rng) -> usize {
    let mut at = rng.f32() * actions.iter().map(&weight).sum::<f32>();
    let passes = |action: &Action| {
        at -= weight(action);
        at < 0.0
    };
    actions.iter().position(passes).unwrap_or(actions.len() - 1)
}
