//! The guards of a hold, and the unlocks that callers wait for.

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
    /// How much of the name it has.
    weight: u32,
    stage: GuardStage,
}

/// The number of guards and the greatest of their weights. The server counts the same.
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
    /// The caller has not claimed it. At this instant the machine passes it over.
    Offered(Instant),
    Claimed,
    /// It has ended, or it is a change of a guard. Its caller waits for the outcome until this instant.
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
        // No one waits for a handle's hold, and the attach has used up the handle. So the offer stays open for a whole
        // lease.
        let patience = if call.manner.attaches() { call.lease.length() } else { PATIENCE };
        self.0.push(Guard { call: call.id, weight: call.weight, stage: GuardStage::Offered(now + patience) });
    }

    /// From now on the guard has at most this weight. The call waits until the server knows.
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

    /// No caller waits for it any more.
    pub fn remove(&mut self, call: CallId) {
        self.0.retain(|guard| guard.call != call);
    }

    fn those_that_live(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter().filter(|guard| guard.stage.is_live())
    }

    pub fn live(&self) -> impl Iterator<Item = CallId> {
        self.those_that_live().map(|guard| guard.call)
    }

    /// [`Count::NONE`] without live guards.
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

    /// Passes over each guard that its caller has not claimed in time.
    pub fn pass_over(&mut self, desk: &mut Desk<'_>) {
        let now = desk.now;
        let is_unclaimed = |stage| matches!(stage, GuardStage::Offered(until) if until <= now);
        if desk.punctuality == Punctuality::Late {
            // The whole process paused, and its callers with it.
            let unclaimed = self.0.iter_mut().filter(|guard| is_unclaimed(guard.stage));
            unclaimed.for_each(|guard| guard.stage = GuardStage::Offered(now + PATIENCE));
        }
        self.tell(is_unclaimed, || Outcome::PassedOver, desk);
    }

    /// Reports the outcome to all callers of unlocks.
    pub fn tell_ending(&mut self, outcome: &Result<Unlocked, UnlockError>, desk: &mut Desk<'_>) {
        self.tell(|stage| !stage.is_live(), || Outcome::Unlocked(outcome.clone()), desk);
    }

    /// Reports an error to callers of unlocks whose time has run out.
    pub fn tell_late(&mut self, outcome: impl Fn() -> UnlockError, desk: &mut Desk<'_>) {
        let now = desk.now;
        let is_late = |stage| matches!(stage, GuardStage::Ending(until) if until <= now);
        self.tell(is_late, || Outcome::Unlocked(Err(outcome())), desk);
    }

    /// These guards end with an outcome.
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
