//! Random walks through a model, for bounds that are too large to search. The seed decides each walk.

use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use stateright::{Expectation, Property};

use crate::checked::{Broken, Checked, Found};

/// A walk ends here at the latest.
const STEPS: usize = 600;

#[derive(Debug, Clone, Copy)]
pub struct Walks {
    pub walks: u32,
    pub seed: u64,
    pub threads: usize,
}

/// Walks until a property is broken. Returns the first walk that breaks one, for any number of threads.
pub fn walk<M: Checked>(model: M, walks: Walks) -> Found<M> {
    let (model, starts) = (&model, &model.init_states());
    let first_broken = &AtomicU32::new(walks.walks);
    let results: Vec<_> = std::thread::scope(|scope| {
        let thread = |thread: usize| {
            let numbers = (0..walks.walks).skip(thread).step_by(walks.threads);
            let walk = Walk { model, starts, properties: model.properties() };
            scope.spawn(move || walk.all(numbers, walks.seed, first_broken))
        };
        let running: Vec<_> = (0..walks.threads).map(thread).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let steps: u64 = results.iter().map(|(steps, _)| steps).sum();
    let broken = results.into_iter().filter_map(|(_, broken)| broken).min_by_key(|(number, _)| *number);
    let done = broken.as_ref().map_or(walks.walks, |(number, _)| number + 1);
    Found {
        size: format!("{done:>9} walks  {steps:>9} steps  {:>8} guards", model.guards()),
        reached: model.reached(),
        broken: broken.map(|(_, broken)| broken),
    }
}

struct Walk<'a, M: Checked> {
    model: &'a M,
    starts: &'a [M::State],
    properties: Vec<Property<M>>,
}

impl<M: Checked> Walk<'_, M> {
    /// The steps of all these walks, and the first walk that broke a property.
    fn all(
        &self,
        numbers: impl Iterator<Item = u32>,
        seed: u64,
        first_broken: &AtomicU32,
    ) -> (u64, Option<(u32, Broken<M>)>) {
        let mut steps = 0;
        for number in numbers {
            if number > first_broken.load(Ordering::Relaxed) {
                break;
            }
            // Neighbouring seeds would begin alike.
            let seed = Rng::with_seed(seed << 32 | u64::from(number)).u64(..);
            let (start, actions, property) = self.one(&mut Rng::with_seed(seed));
            steps += actions.len() as u64;
            if let Some(property) = property {
                first_broken.fetch_min(number, Ordering::Relaxed);
                let path = self.path(start, actions);
                return (steps, Some((number, Broken { property, path })));
            }
        }
        (steps, None)
    }

    /// The first state of a walk, its actions, and the property that it breaks.
    fn one(&self, rng: &mut Rng) -> (&M::State, Vec<M::Action>, Option<&'static str>) {
        let start = &self.starts[rng.usize(..self.starts.len())];
        // Each walk has its own mixture: in some nearly all messages are lost, in some the clock hardly moves.
        let weights: Vec<_> = M::KINDS.iter().map(|weight| weight * (0.02 + rng.f32().powi(2))).collect();
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
        (start, actions, self.model.broken_at_the_end(&state))
    }

    /// One of the actions that are possible within bounds.
    fn step(
        &self,
        state: &M::State,
        possible: &mut Vec<M::Action>,
        weights: &[f32],
        rng: &mut Rng,
    ) -> Option<(M::Action, M::State)> {
        while !possible.is_empty() {
            let of_kind = |kind: usize| possible.iter().filter(|action| M::kind(action) == kind).count();
            // However many actions of a kind there are.
            let weights: Vec<_> = (0..).zip(weights).map(|(kind, weight)| weight / of_kind(kind) as f32).collect();
            let index = choose(possible, |action| weights[M::kind(action)], rng);
            let action = possible.swap_remove(index);
            if let Some(next) = self.model.next_state(state, action) {
                return Some((action, next));
            }
        }
        None
    }

    fn broken(&self, state: &M::State) -> Option<&'static str> {
        let breaks = |property: &&Property<M>| {
            property.expectation == Expectation::Always && !(property.condition)(self.model, state)
        };
        self.properties.iter().find(breaks).map(|property| property.name)
    }

    fn path(&self, start: &M::State, actions: Vec<M::Action>) -> Vec<(M::State, Option<M::Action>)> {
        let (mut state, mut path) = (start.clone(), Vec::new());
        for action in actions {
            let Some(next) = self.model.next_state(&state, action) else { break };
            path.push((std::mem::replace(&mut state, next), Some(action)));
        }
        path.push((state, None));
        path
    }
}

/// The index of one of them, each as likely as its weight says.
fn choose<T>(items: &[T], weight: impl Fn(&T) -> f32, rng: &mut Rng) -> usize {
    let mut at = rng.f32() * items.iter().map(&weight).sum::<f32>();
    let passes = |item: &T| {
        at -= weight(item);
        at < 0.0
    };
    items.iter().position(passes).unwrap_or(items.len() - 1)
}
