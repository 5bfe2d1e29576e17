//! Requests that no stage waits for: leaves, passing a free lock on, looks at names that the client released a moment
//! ago, and questions of callers. Leaves and looks repeat until they are answered, or until their subject has ended
//! anyway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{RequestNumber, Seq};
use crate::errand::Errand;
use crate::error::RequestError;
use crate::event::CallId;
use crate::handle::Handle;
use crate::keys::Keys;
use crate::line::Line;
use crate::node::Lane;
use crate::sending::Asked;
use crate::slab::{Id, Slab};
use crate::time::{Instant, ServerTime};
use crate::timers::Standing;

/// The pause of a leave that the server refuses until a person helps.
pub const AFTER_A_REFUSAL: Duration = Duration::from_secs(1);
/// How many of these the client tries at a time, including their pauses. Otherwise each of them would be a request a
/// second.
const TRIED_AT_ONCE: usize = 64;

#[derive(Debug, Clone, Hash)]
pub struct Chore {
    pub keys: Arc<Keys>,
    pub slot: u16,
    pub task: Task,
    /// When the chore ends, whatever the server answers. `None` if it ends with one answer, or with the limit of its
    /// caller.
    pub until: Option<Instant>,
    pub asked: Asked,
    pub standing: Standing,
}

#[derive(Debug, Clone, Hash)]
pub enum Task {
    /// Makes the server forget an attempt or a lost hold (R9), until everything that could be left there has ended.
    Leave(Leaving, Turn),
    /// The lock is free, and a live ticket may come after the places that one run of a script reads. An error ends
    /// this chore: waiting clients go on with polls of their own, and without them the queue expires (P10).
    PassOn,
    /// The client released the name just before its server was replaced (R15). Lasts until a hold that is back there
    /// has ended.
    LookAtReleased,
    /// Gives back a handle that its caller did not wait for.
    GiveBack(Handle),
    /// A question. Its caller waits, and has the limit.
    Errand(Box<Errand>),
}

/// The things that the server should forget.
#[derive(Debug, Clone, Hash)]
pub struct Leaving {
    pub owner: Arc<str>,
    /// Everything that the owner has from requests up to this one ends.
    pub seq: Seq,
    /// The place to remove from the queue. Empty if the server has served it.
    pub place: String,
    /// The latest time at which the server may serve a copy of the acquire (R3).
    pub copies_until: ServerTime,
    /// The longest time for which the server can keep anything that the attempt got.
    pub lease: Duration,
}

/// The state of a leave among the leaves that the server refuses until a person helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// The server has not refused it.
    None,
    /// It is in its first pause.
    NotYet,
    Waits(RequestNumber),
    /// It is under way, or pauses.
    Taken,
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Chores {
    pub chores: Slab<Chore>,
    /// The number of leaves among them, of owners or handles.
    pub leaves: usize,
    pub refused: Refused,
}

/// The leaves that the server refuses until a person helps.
#[derive(Debug, Clone, Default, Hash)]
pub struct Refused {
    /// The key of each lock with a refused leave.
    names: BTreeMap<Arc<str>, RefusedName>,
    tried: usize,
    line: Line<Id>,
}

#[derive(Debug, Clone, Copy, Default, Hash)]
struct RefusedName {
    leaves: usize,
    /// When the server last received a poll or a new place for the name from this client, which keeps all its places
    /// alive.
    heard: Option<Instant>,
}

impl Refused {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn begin(&mut self, lock: &Arc<str>) {
        self.names.entry(lock.clone()).or_default().leaves += 1;
    }

    pub fn is_heard(&mut self, lock: &Arc<str>, now: Instant) {
        if let Some(name) = self.names.get_mut(lock) {
            name.heard = Some(now);
        }
    }

    pub fn heard(&self, lock: &Arc<str>) -> Option<Instant> {
        self.names.get(lock)?.heard
    }

    /// Puts the leave at the end of the line.
    pub fn wait(&mut self, number: RequestNumber, id: Id) -> Turn {
        self.line.push(number, id);
        Turn::Waits(number)
    }

    pub fn end_turn(&mut self, turn: Turn) {
        match turn {
            Turn::None | Turn::NotYet => {}
            Turn::Waits(number) => drop(self.line.remove(number)),
            Turn::Taken => self.tried -= 1,
        }
    }

    pub fn end(&mut self, lock: &Arc<str>, turn: Turn) {
        self.end_turn(turn);
        if let Some(name) = self.names.get_mut(lock) {
            name.leaves -= 1;
            if name.leaves == 0 {
                self.names.remove(lock);
            }
        }
    }

    /// Takes the next leave out of the line, if the client may try one more.
    pub fn take_next(&mut self) -> Option<Id> {
        if self.tried == TRIED_AT_ONCE || self.line.is_empty() {
            return None;
        }
        self.tried += 1;
        self.line.pop_first()
    }
}

impl Chores {
    /// The calls that wait for an answer.
    pub fn callers(&self) -> Vec<CallId> {
        let call = |chore: &Chore| if let Task::Errand(errand) = &chore.task { Some(errand.call) } else { None };
        self.chores.iter().filter_map(call).collect()
    }
}

impl Chore {
    pub fn wants(&self) -> Option<Lane> {
        match self.task {
            Task::Leave(_, Turn::Waits(_)) => None,
            Task::Errand(ref errand) => self.asked.sending.wants(errand.lane()),
            _ => self.asked.sending.wants(Lane::Cleanup),
        }
    }
}

impl Task {
    /// Whether the task repeats after this error. A leave does after any, because a right that is missing may come
    /// back (P5).
    pub fn outlasts(&self, error: &RequestError) -> bool {
        match (self, error) {
            (Self::PassOn, _) | (_, RequestError::RuntimeGone) => false,
            (Self::LookAtReleased, RequestError::Refused(refusal)) => refusal.may_pass(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Fault, Refusal, RefusalKind};

    #[test]
    fn a_name_is_refused_until_its_last_leave_has_ended() {
        let (mut refused, lock) = (Refused::default(), Arc::from("x"));
        refused.begin(&lock);
        refused.begin(&lock);
        refused.end(&lock, Turn::None);
        assert!(!refused.is_empty());
        refused.end(&lock, Turn::None);
        assert!(refused.is_empty());
    }

    /// P5: only a leave goes on after every error, because a right that is missing may come back.
    #[test]
    fn what_is_not_worth_another_try_ends_at_an_error() {
        let refused = |kind| RequestError::Refused(Refusal { kind, cause: Fault::NoAnswerYet.into() });
        let errors = [
            RequestError::Unanswered(Fault::NoAnswerYet.into()),
            refused(RefusalKind::ServerForNow),
            refused(RefusalKind::Final),
            RequestError::RuntimeGone,
        ];
        let outlasts = |task: Task| errors.each_ref().map(|error| task.outlasts(error));
        let leaving = Leaving {
            owner: "c:1".into(),
            seq: Seq(1),
            place: String::new(),
            copies_until: ServerTime(0),
            lease: Duration::ZERO,
        };
        assert_eq!(outlasts(Task::Leave(leaving, Turn::None)), [true, true, true, false]);
        assert_eq!(outlasts(Task::LookAtReleased), [true, true, false, false]);
        assert_eq!(outlasts(Task::PassOn), [false; 4]);
    }
}
