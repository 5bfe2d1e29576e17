//! Questions of the searches about a state: which stages an event concerns.

use fairlock_proto::event::{CallId, Event};
use fairlock_proto::node::Asker;
use fairlock_proto::push::Push;
use fairlock_proto::session::Session;
use fairlock_proto::slab::Id;
use fairlock_proto::stages::counting::Counting;
use fairlock_proto::stages::entry::Stage;
use fairlock_proto::stages::guards::Count;
use fairlock_proto::time::Instant;
use fairlock_proto::timers::Timer;

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

/// The stage of an owner at a name, `Idle` if it has none.
pub fn stage_of(session: &Session, entry: Option<Id>) -> StageName {
    entry.and_then(|id| session.entries.get(id)).map_or(StageName::Idle, |entry| StageName::of(&entry.stage))
}

/// The entries of the owners that an event concerns. `None`: the owner has no entry.
pub fn concerned(session: &Session, event: &Event<'_>, now: Instant) -> Vec<Option<Id>> {
    let of_call = |call: &CallId| session.entry_of(*call).map(Some);
    match event {
        Event::Call(_, want) => vec![session.entry_at(want.owner, &want.keys.lock)],
        Event::Disturbed(call) | Event::Claimed(call) | Event::Unlock(call) | Event::Gone(call) => {
            of_call(call).into_iter().collect()
        }
        Event::Ask(..) | Event::Unread(_) => Vec::new(),
        Event::Shrink { guard, .. } | Event::Extend { guard, .. } | Event::Detach { guard, .. } => {
            of_call(guard).into_iter().collect()
        }
        Event::Replied(request, _) => {
            let node = session.common.nodes.iter().find(|node| node.id == request.node);
            match node.and_then(|node| node.asker(request.number)) {
                Some(Asker::Entry(id) | Asker::Renewal(id)) => vec![Some(id)],
                _ => Vec::new(),
            }
        }
        Event::Pushed(_, Push::Grant { ticket, lock, .. }) => {
            let owner = ticket.rsplit_once(':').map_or("", |(owner, _)| owner);
            vec![entry_of_id(session, owner, lock)]
        }
        Event::Pushed(_, Push::Revoked { owner, lock, .. }) => vec![entry_of_id(session, owner, lock)],
        Event::Time => {
            let due = session.common.timers.due(now, usize::MAX).into_iter();
            due.filter_map(|timer| match timer {
                Timer::Entry(id) => Some(Some(id)),
                Timer::Call(call) => of_call(&call),
                _ => None,
            })
            .collect()
        }
        Event::Link(_) | Event::Close | Event::RuntimeGone => {
            session.entries.ids_from(0, usize::MAX).0.into_iter().map(Some).collect()
        }
    }
}

fn entry_of_id(session: &Session, owner_id: &str, lock: &str) -> Option<Id> {
    session.entry_at(owner_id.rsplit(':').next()?.parse().ok()?, &lock.into())
}

/// The token and the guards of this owner's hold at a name, unless a request about them is under way.
pub fn settled_guards(session: &Session, owner: u64, lock_key: &str) -> Option<(u64, Count)> {
    match &session.entries.get(session.entry_at(owner, &lock_key.into())?)?.stage {
        Stage::Held(held) if held.may_enter() => Some((held.hold.token, held.guards.count())),
        _ => None,
    }
}
