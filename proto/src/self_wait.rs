//! The warning about work that waits for a lock that it holds itself, which has no end.
//!
//! The machine cannot know which calls belong together, so this judges by what it knows, and only after a whole lease:
//!
//! - A call that began before the hold did cannot come after it: two branches of a `join!`.
//! - A task that is polled while it waits, and not for the wait, has other work: a branch that may still unlock.
//! - A hold in a scope that is waited for by a task without one: often a `spawn` inside of the scope. It may also be an
//!   independent task, so the warning is conditional.

use std::sync::Arc;

use crate::canonical::Seq;
use crate::effect::Note;
use crate::event::{Scope, TaskId};
use crate::keys::Keys;
use crate::slab::{Id, Slab};
use crate::stages::attempt::{Attention, Call};
use crate::stages::entry::{Entry, Stage};
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

/// Whether one of these waiters waits for this hold of its own. It is found once.
pub fn find(entries: &mut Slab<Entry>, held: Id, waiters: &[(Id, Seq)], now: Instant) -> Option<Stuck> {
    let Stage::Held(own) = &entries.get(held)?.stage else { return None };
    let calls = waiters.iter().filter_map(|(id, _)| waiting_call(entries.get(*id)?));
    let found = calls.into_iter().find_map(|call| judge(&own.hold, call, now))?;
    let Stage::Held(own) = &mut entries.get_mut(held)?.stage else { return None };
    own.warn().then_some(found)
}

/// Whether this task has the lock, outside of any scope.
pub fn is_held_by(entry: &Entry, task: TaskId) -> bool {
    matches!(&entry.stage, Stage::Held(held) if held.hold.holder.scope == Scope::Call && held.hold.holder.task == task)
}

fn waiting_call(entry: &Entry) -> Option<&Call> {
    if let Stage::Queued(queued) = &entry.stage { Some(&queued.attempt.call) } else { None }
}

fn judge(hold: &Hold, call: &Call, now: Instant) -> Option<Stuck> {
    let has_waited_long = call.began > hold.holder.began && call.began + hold.lease.length() <= now;
    let is_same_task = call.task == hold.holder.task;
    match hold.holder.scope {
        // In a scope the holder would have re-entered, so only a call from outside of it can be stuck.
        Scope::Owner if has_waited_long && call.scope == Scope::Call && !is_same_task => Some(Stuck::Scope),
        Scope::Call if has_waited_long && is_same_task && call.attention == Attention::Undisturbed => Some(Stuck::Task),
        _ => None,
    }
}
