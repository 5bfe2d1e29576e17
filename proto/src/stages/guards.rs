//! The guards of a hold, and the unlocks whose callers wait.

use std::hash::Hash;

use crate::desk::{Desk, PATIENCE, Punctuality};
use crate::effect::Outcome;
use crate::error::{UnlockError, Unlocked};
use crate::event::CallId;
use crate::stages::attempt::Call;
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
struct Guard {
    call: CallId,
    /// What it has of the name.
    weight: u32,
    stage: GuardStage,
}

/// What the guards are together, and what the server counts: so many holds, and the greatest of their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Count {
    pub holds: u32,
    pub weight: u32,
}

impl Count {
    pub const NONE: Self = Self { holds: 0, weight: 0 };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum GuardStage {
    /// Its caller has not claimed it. If it does not until then, it is passed over.
    Offered(Instant),
    Claimed,
    /// It has ended, or is no guard but a change of one. Its caller waits for the outcome until then.
    Ending(Instant),
}

impl GuardStage {
    fn is_live(self) -> bool {
        !matches!(self, Self::Ending(_))
    }

    fn due(self) -> Option<Instant> {
        match self {
            Self::Offered(until) | Self::Ending(until) => Some(until),
            Self::Claimed => None,
        }
    }
}

/// In the order in which they began.
#[derive(Debug, Clone, Hash)]
pub struct Guards(Vec<Guard>);

impl Guards {
    pub fn one(call: &Call, now: Instant) -> Self {
        let mut guards = Self(Vec::with_capacity(1));
        guards.offer(call, now);
        guards
    }

    pub fn offer(&mut self, call: &Call, now: Instant) {
        // Nobody waits for what a handle holds, and the handle is spent: it is kept for as long as its holder wants it.
        let patience = if call.manner.attaches() { call.lease.length() } else { PATIENCE };
        self.0.push(Guard { call: call.id, weight: call.weight, stage: GuardStage::Offered(now + patience) });
    }

    /// It has so much from now on, if it had more. The call waits until the server knows that.
    pub fn shrink(&mut self, guard: CallId, weight: u32, call: CallId, until: Instant) {
        if let Some(guard) = self.find(guard) {
            guard.weight = guard.weight.min(weight);
        }
        self.0.push(Guard { call, weight: 0, stage: GuardStage::Ending(until) });
    }

    pub fn claim(&mut self, call: CallId) {
        if let Some(guard) = self.find(call) {
            guard.stage = GuardStage::Claimed;
        }
    }

    fn find(&mut self, call: CallId) -> Option<&mut Guard> {
        self.0.iter_mut().find(|guard| guard.call == call && guard.stage.is_live())
    }

    /// The guard has ended. Its caller waits for the outcome.
    pub fn end(&mut self, call: CallId, until: Instant) {
        if let Some(guard) = self.find(call) {
            guard.stage = GuardStage::Ending(until);
        }
    }

    /// Nobody waits for it any more.
    pub fn remove(&mut self, call: CallId) {
        self.0.retain(|guard| guard.call != call);
    }

    fn those_that_live(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter().filter(|guard| guard.stage.is_live())
    }

    pub fn live(&self) -> impl Iterator<Item = CallId> {
        self.those_that_live().map(|guard| guard.call)
    }

    /// Without any, [`Count::NONE`].
    pub fn count(&self) -> Count {
        let with =
            |Count { holds, weight }, guard: &Guard| Count { holds: holds + 1, weight: guard.weight.max(weight) };
        self.those_that_live().fold(Count::NONE, with)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|guard| guard.stage.due()).min()
    }

    /// Passes over those whose callers have not claimed them in time.
    pub fn pass_over(&mut self, desk: &mut Desk<'_>) {
        let now = desk.now;
        let is_unclaimed = |stage| matches!(stage, GuardStage::Offered(until) if until <= now);
        if desk.punctuality == Punctuality::Late {
            // The whole process stood still, and its callers with it.
            let unclaimed = self.0.iter_mut().filter(|guard| is_unclaimed(guard.stage));
            unclaimed.for_each(|guard| guard.stage = GuardStage::Offered(now + PATIENCE));
        }
        self.tell(is_unclaimed, || Outcome::PassedOver, desk);
    }

    /// Tells all callers of unlocks.
    pub fn tell_ending(&mut self, outcome: &Result<Unlocked, UnlockError>, desk: &mut Desk<'_>) {
        self.tell(|stage| !stage.is_live(), || Outcome::Unlocked(outcome.clone()), desk);
    }

    /// Tells those that have waited for long enough.
    pub fn tell_late(&mut self, outcome: impl Fn() -> UnlockError, desk: &mut Desk<'_>) {
        let now = desk.now;
        let is_late = |stage| matches!(stage, GuardStage::Ending(until) if until <= now);
        self.tell(is_late, || Outcome::Unlocked(Err(outcome())), desk);
    }

    /// These are guards no longer.
    fn tell(&mut self, is_meant: impl Fn(GuardStage) -> bool, outcome: impl Fn() -> Outcome, desk: &mut Desk<'_>) {
        self.0.retain(|guard| {
            let is_over = is_meant(guard.stage);
            if is_over {
                desk.tell(guard.call, outcome());
            }
            !is_over
        });
    }
}
