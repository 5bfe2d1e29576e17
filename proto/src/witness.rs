//! What a search asks about a state: which stages an event concerns. No driver needs it.

use crate::event::{CallId, Event};
use crate::node::Asker;
use crate::push::Push;
use crate::session::Session;
use crate::slab::Id;
use crate::stages::counting::Counting;
use crate::stages::entry::Stage;
use crate::stages::guards::Count;
use crate::time::Instant;
use crate::timers::Timer;

/// A stage without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StageName {
    Idle,
    Asking,
    Queued,
    Confirming,
    Held,
    HeldEntering,
    HeldSetting,
    HeldExtending,
    Detaching,
    Releasing,
    Lost,
}

impl StageName {
    pub const ALL: [Self; 11] = [
        Self::Idle,
        Self::Asking,
        Self::Queued,
        Self::Confirming,
        Self::Held,
        Self::HeldEntering,
        Self::HeldSetting,
        Self::HeldExtending,
        Self::Detaching,
        Self::Releasing,
        Self::Lost,
    ];

    fn of(stage: &Stage) -> Self {
        match stage {
            Stage::Idle => Self::Idle,
            Stage::Asking(_) => Self::Asking,
            Stage::Queued(_) => Self::Queued,
            Stage::Confirming(_) => Self::Confirming,
            Stage::Held(held) => match held.counting {
                Counting::Settled(_) => Self::Held,
                Counting::Entering(_) => Self::HeldEntering,
                Counting::Setting(_) => Self::HeldSetting,
                Counting::Extending(_) => Self::HeldExtending,
            },
            Stage::Detaching(_) => Self::Detaching,
            Stage::Releasing(_) => Self::Releasing,
            Stage::Lost(_) => Self::Lost,
        }
    }
}

impl Session {
    /// The stage of an owner at a name. `Idle`: there is none.
    pub fn stage_of(&self, entry: Option<Id>) -> StageName {
        entry.and_then(|id| self.entries.get(id)).map_or(StageName::Idle, |entry| StageName::of(&entry.stage))
    }

    /// The owners that an event is about.
    pub fn concerned(&self, event: &Event<'_>, now: Instant) -> Vec<Option<Id>> {
        match event {
            Event::Call(_, want) => vec![self.entry_at(want.owner, &want.keys.lock)],
            Event::Disturbed(call) | Event::Claimed(call) | Event::Unlock(call) | Event::Gone(call) => {
                self.entry_of_call(*call).into_iter().map(Some).collect()
            }
            Event::Ask(..) => Vec::new(),
            Event::Shrink { guard, .. } | Event::Extend { guard, .. } | Event::Detach { guard, .. } => {
                self.entry_of_call(*guard).into_iter().map(Some).collect()
            }
            Event::Replied(request, _) => {
                let asker = self
                    .common
                    .nodes
                    .iter()
                    .find(|node| node.id == request.node)
                    .and_then(|node| node.asker(request.number));
                match asker {
                    Some(Asker::Entry(id) | Asker::Renewal(id)) => vec![Some(id)],
                    _ => Vec::new(),
                }
            }
            Event::Pushed(_, Push::Grant { ticket, lock, .. }) => {
                let owner = ticket.rsplit_once(':').map_or("", |(owner, _)| owner);
                vec![self.entry_of_id(owner, lock)]
            }
            Event::Pushed(_, Push::Revoked { owner, lock, .. }) => vec![self.entry_of_id(owner, lock)],
            Event::Time => {
                let due = self.common.timers.due(now, usize::MAX).into_iter();
                due.filter_map(|timer| match timer {
                    Timer::Entry(id) => Some(Some(id)),
                    Timer::Call(call) => self.entry_of_call(call).map(Some),
                    _ => None,
                })
                .collect()
            }
            Event::Link(_) | Event::Close | Event::RuntimeGone => {
                self.entries.ids_from(0, usize::MAX).0.into_iter().map(Some).collect()
            }
        }
    }

    fn entry_of_id(&self, owner_id: &str, lock: &str) -> Option<Id> {
        self.entry_at(owner_id.rsplit(':').next()?.parse().ok()?, &lock.into())
    }

    pub fn entry_of_call(&self, call: CallId) -> Option<Id> {
        self.calls.get(call.0).map(|place| place.entry)
    }

    /// The token of what this owner holds at a name, and what its guards are, if no request about that is under way.
    pub fn settled_guards(&self, owner: u64, lock_key: &str) -> Option<(u64, Count)> {
        match &self.entries.get(self.entry_at(owner, &lock_key.into())?)?.stage {
            Stage::Held(held) if held.may_enter() => Some((held.hold.token, held.guards.count())),
            _ => None,
        }
    }
}
