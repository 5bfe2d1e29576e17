//! Leaving: the server is to forget an attempt or a lost hold. It is repeated until it is answered (R9).

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::canonical::{RequestNumber, Seq};
use crate::desk::{Desk, Standing, Wish};
use crate::effect::{Note, Request};
use crate::error::RequestError;
use crate::event::{Answer, Reply};
use crate::keys::Keys;
use crate::node::{Asker, Lane};
use crate::requests::leave::{Leave as LeaveRequest, Left};
use crate::sending::{Answered, Sending};
use crate::slab::{Id, Slab};
use crate::time::{Instant, ServerTime};
use crate::timers::Timer;

/// The pause of a leave that is refused until a person helps. So many of them share a second.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(1);
const REFUSED_IN_A_SECOND: u32 = 64;

/// What is to be forgotten.
#[derive(Debug, Clone, Hash)]
pub struct Leaving {
    pub keys: Arc<Keys>,
    pub slot: u16,
    pub owner: Arc<str>,
    /// All that the owner has from requests up to this one ends.
    pub seq: Seq,
    /// The place in the queue that goes. Empty: it was served.
    pub place: String,
    /// The latest time at which a copy of its acquire may be served (R3).
    pub copies_until: ServerTime,
    /// The longest that the server can keep what it got.
    pub lease: Duration,
}

#[derive(Debug, Clone, Hash)]
struct Leave {
    leaving: Leaving,
    /// When all that it could leave behind is over.
    until: Instant,
    answers: Answers,
    sending: Sending,
    backoff: Backoff,
    standing: Standing,
}

/// What the server has said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answers {
    None,
    Refused,
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Leaves {
    leaves: Slab<Leave>,
    /// How many are refused until a person helps.
    refused: u32,
}

impl Leaves {
    pub fn ids_from(&self, from: usize, count: usize) -> (Vec<Id>, Option<usize>) {
        self.leaves.ids_from(from, count)
    }

    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }
}

impl Desk<'_> {
    pub fn leave(&mut self, leaving: Leaving) {
        let (until, backoff) = (self.forgotten_at(leaving.lease), self.backoff(leaving.seq));
        let (sending, answers) = (Sending::Waits, Answers::None);
        let leave = Leave { leaving, until, answers, sending, backoff, standing: Standing::default() };
        let id = self.common.leaves.leaves.insert(leave);
        self.keep_leave(id);
    }

    /// Makes the request, whose turn has come. `None`: it is not wanted any more.
    pub fn ask_to_leave(&mut self, id: Id, number: RequestNumber) -> Option<(Request, u16)> {
        let leave = self.common.leaves.leaves.get_mut(id)?;
        leave.standing.place = None;
        leave.sending = Sending::UnderWay(number);
        let Leaving { keys, slot, owner, seq, place, copies_until, .. } = &leave.leaving;
        let (keys, owner, place) = (keys.clone(), owner.clone(), place.clone());
        let request = LeaveRequest { keys, owner, seq: seq.0, place, copies_until: copies_until.0 };
        Some((Request::Leave(request), *slot))
    }

    pub fn leave_replied(&mut self, id: Id, answered: Answered) {
        let Some(leave) = self.common.leaves.leaves.get_mut(id) else { return };
        if !leave.sending.awaits(answered.number) {
            return;
        }
        match answered.reply {
            Ok(Reply { answer: Answer::Left(Left { more }), .. }) => self.left(id, answered.sent, more),
            // Nothing can be sent any longer: the place or the lease has to end.
            Err(RequestError::RuntimeGone) => drop(self.end_leave(id)),
            reply => self.leave_again(id, reply.err()),
        }
    }

    fn left(&mut self, id: Id, sent: Instant, more: bool) {
        let Some(Leaving { keys, slot, .. }) = self.end_leave(id) else { return };
        self.given_back(&keys, slot, sent);
        if more {
            self.pass_on(keys, slot);
        }
    }

    /// After a refusal too: a right that is missing may come back (P5).
    fn leave_again(&mut self, id: Id, error: Option<RequestError>) {
        let (now, common) = (self.now, &mut *self.common);
        let Some(leave) = common.leaves.leaves.get_mut(id) else { return };
        let mut pause = leave.backoff.pause();
        let mut note = None;
        if let Some(RequestError::Refused(refusal)) = error.filter(is_final) {
            if leave.answers == Answers::None {
                leave.answers = Answers::Refused;
                common.leaves.refused += 1;
                note = (common.leaves.refused == 1).then(|| Note::CannotLeave(leave.leaving.keys.clone(), refusal));
            }
            pause = AFTER_A_REFUSAL.max(AFTER_A_REFUSAL * common.leaves.refused / REFUSED_IN_A_SECOND);
        }
        leave.sending = Sending::Pause(now + pause);
        note.into_iter().for_each(|note| self.note(note));
        self.keep_leave(id);
    }

    /// A pause is over, or the time of the leave.
    pub fn leave_time(&mut self, id: Id) {
        let lasts = self.common.settings.longest_effect(Duration::ZERO);
        let Some(leave) = self.common.leaves.leaves.get_mut(id) else { return };
        // A place does not end while its client polls for the name: it would be granted the lock, and left only then (P6).
        if self.common.queues.of(&leave.leaving.keys.lock).is_some() {
            leave.until = leave.until.max(self.now + lasts);
        }
        if leave.until <= self.now {
            self.end_leave(id);
            return;
        }
        leave.sending.go_on(self.now);
        self.keep_leave(id);
    }

    fn end_leave(&mut self, id: Id) -> Option<Leaving> {
        let leave = self.common.leaves.leaves.remove(id)?;
        self.forget(leave.standing, Timer::Leave(id));
        if leave.answers == Answers::Refused {
            self.common.leaves.refused -= 1;
        }
        Some(leave.leaving)
    }

    pub fn keep_leave(&mut self, id: Id) {
        let Some(leave) = self.common.leaves.leaves.get(id) else { return };
        let (slot, wants) = (leave.leaving.slot, leave.sending.wants(Lane::Cleanup));
        let due = leave.sending.due().into_iter().chain([leave.until]).min();
        let wish = Wish { timer: Timer::Leave(id), asker: Asker::Leave(id), slot, due, wants };
        let standing = self.keep(leave.standing, wish);
        if let Some(leave) = self.common.leaves.leaves.get_mut(id) {
            leave.standing = standing;
        }
    }
}

fn is_final(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused(refusal) if refusal.needs_a_person())
}
