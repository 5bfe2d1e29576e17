//! The warning about work that waits for a lock that it holds itself. Such a wait never ends.
//!
//! The machine cannot know which calls belong together. It judges by the following, and only after a whole lease:
//!
//! - A call that began before the hold cannot follow it in one task: the two are branches of a `join!`.
//! - If something other than the wait wakes a waiting task, the task has other work: a branch that may still unlock.
//! - A task without a scope that waits for the hold of a scope is often a `spawn` inside that scope. It may also be an
//!   independent task, so the warning is conditional.
//! - A task often waits for a permit while it has others. It can wait for itself only if those leave too few.

use std::sync::Arc;

use crate::canonical::Seq;
use crate::effect::Note;
use crate::event::Scope;
use crate::keys::{Keys, Kind, Share, share_of};
use crate::slab::{Id, Slab};
use crate::stages::attempt::{Attention, Call};
use crate::stages::entry::{Entry, Stage, Who};
use crate::stages::held::{Held, Warning};
use crate::stages::hold::Hold;
use crate::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    Task,
    Scope,
}

impl Stuck {
    pub fn note(self, keys: Arc<Keys>) -> Note {
        match self {
            Self::Task => Note::WaitsForItself(keys),
            Self::Scope => Note::WaitsForAScope(keys),
        }
    }
}

/// How many owners of a shared name to look at. A look at all of them for each waiter would be quadratic.
pub const SEARCHED: usize = 16;

/// Whether one of these waiters waits for one of these holds that is its own. Reports each hold once.
pub fn find(entries: &mut Slab<Entry>, held: &[Id], waiters: &[(Id, Seq)], now: Instant) -> Option<Stuck> {
    let (id, found) = held.iter().find_map(|id| {
        let own = held_by(entries, *id).filter(|own| own.warning == Warning::NotGiven)?;
        let calls = waiters.iter().filter_map(|(id, _)| waiting_entry(entries, *id));
        let stuck =
            |(who, call)| judge(&own.hold, call, now).filter(|_| is_excluded(entries, held, &own.hold, who, call));
        calls.into_iter().find_map(stuck).map(|found| (*id, found))
    })?;
    if let Stage::Held(own) = &mut entries.get_mut(id)?.stage {
        own.warning = Warning::Given;
    }
    Some(found)
}

fn held_by(entries: &Slab<Entry>, id: Id) -> Option<&Held> {
    if let Stage::Held(held) = &entries.get(id)?.stage { Some(held) } else { None }
}

fn waiting_entry(entries: &Slab<Entry>, id: Id) -> Option<(&Who, &Call)> {
    let entry = entries.get(id)?;
    if let Stage::Queued(queued) = &entry.stage { Some((&entry.who, &queued.attempt.call)) } else { None }
}

/// Whether the server cannot serve the call while the task of this hold keeps everything that it has.
fn is_excluded(entries: &Slab<Entry>, held: &[Id], hold: &Hold, who: &Who, call: &Call) -> bool {
    let Some(Share { weight, limit }) = share_of(&call.terms).filter(|_| who.keys.kind == Kind::Semaphore) else {
        return true;
    };
    let of_task = held.iter().filter_map(|id| held_by(entries, *id));
    let of_task = of_task.filter(|other| other.hold.holder.task == hold.holder.task);
    let kept: u64 = of_task.map(|other| u64::from(other.guards.count().weight)).sum();
    kept + u64::from(weight) > u64::from(limit)
}

fn judge(hold: &Hold, call: &Call, now: Instant) -> Option<Stuck> {
    let has_waited_long = call.began > hold.holder.began && call.began + hold.lease.length() <= now;
    let is_same_task = call.task == hold.holder.task;
    match hold.holder.scope {
        // Inside the scope the call would have re-entered, so only a call from outside can be stuck.
        Scope::Owner if has_waited_long && call.scope == Scope::Call && !is_same_task => Some(Stuck::Scope),
        Scope::Call if has_waited_long && is_same_task && call.attention == Attention::Undisturbed => Some(Stuck::Task),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::canonical::Seq;
    use crate::event::{CallId, Lease, Manner, TaskId};
    use crate::stages::hold::Holder;
    use crate::time::ServerTime;

    const BEGUN: Instant = Instant::from_micros(60_000_000);
    const LEASE: Duration = Duration::from_secs(30);
    const LATER: Duration = Duration::from_secs(1);

    fn hold(scope: Scope) -> Hold {
        let (terms, task) = ("5000/label".into(), TaskId(1));
        Hold {
            token: 7,
            attempt: Seq(1),
            lease: Lease::Renewed(LEASE),
            deadline: BEGUN + 2 * LEASE,
            longest: LEASE,
            copies_until: ServerTime(0),
            holder: Holder { terms, task, scope, began: BEGUN },
        }
    }

    fn call(scope: Scope, task: u64) -> Call {
        Call {
            id: CallId(Slab::default().insert(())),
            scope,
            manner: Manner::Waits { limit: None },
            lease: Lease::Renewed(LEASE),
            weight: 1,
            terms: "5000/label".into(),
            task: TaskId(task),
            began: BEGUN + LATER,
            attention: Attention::Undisturbed,
        }
    }

    fn judged(hold_scope: Scope, call: &Call) -> Option<Stuck> {
        judge(&hold(hold_scope), call, BEGUN + LATER + LEASE)
    }

    #[test]
    fn a_task_is_stuck_that_does_nothing_but_wait_for_its_own_lock() {
        let own = call(Scope::Call, 1);
        assert_eq!(judged(Scope::Call, &own), Some(Stuck::Task));
        assert_eq!(judge(&hold(Scope::Call), &own, BEGUN + LEASE), None, "not for a whole lease");
        assert_eq!(judged(Scope::Call, &Call { began: BEGUN, ..own.clone() }), None, "two branches of a join");
        assert_eq!(judged(Scope::Call, &Call { attention: Attention::Disturbed, ..own }), None, "it has other work");
        assert_eq!(judged(Scope::Call, &call(Scope::Call, 2)), None, "another task");
    }

    #[test]
    fn a_scope_may_be_stuck_that_is_waited_for_from_outside() {
        let outside = call(Scope::Call, 2);
        assert_eq!(judged(Scope::Owner, &outside), Some(Stuck::Scope));
        assert_eq!(judge(&hold(Scope::Owner), &outside, BEGUN + LEASE), None, "not for a whole lease");
        assert_eq!(judged(Scope::Owner, &call(Scope::Call, 1)), None, "the same task");
        assert_eq!(judged(Scope::Owner, &call(Scope::Owner, 2)), None, "another scope");
    }
}
