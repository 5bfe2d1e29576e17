//! Begins the chores, sends their requests, and reads the answers.

use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{RequestNumber, Seq};
use crate::chore::{AFTER_A_REFUSAL, Chore, Chores, Leaving, Task, Turn};
use crate::desk::Desk;
use crate::effect::{Note, Outcome};
use crate::errand::{Errand, Next};
use crate::error::{Refusal, RefusalKind, RequestError, other_reply};
use crate::handle::Handle;
use crate::keys::Keys;
use crate::node::Asker;
use crate::question::Finding;
use crate::request::{Answer, Reply, Request};
use crate::requests::leave::{Leave, Left};
use crate::requests::poll::{Poll, Polled, PolledHolder};
use crate::requests::release::Released;
use crate::sending::{Answered, Sending};
use crate::slab::Id;
use crate::time::Instant;
use crate::timers::{Standing, Timer, Wish};

impl Desk<'_> {
    pub fn leave(&mut self, keys: Arc<Keys>, slot: u16, leaving: Leaving) {
        let until = self.forgotten_at(leaving.lease);
        self.common.chores.leaves += 1;
        self.begin(keys, slot, leaving.seq, Some(until), Task::Leave(leaving, Turn::None));
    }

    pub fn give_back(&mut self, keys: Arc<Keys>, slot: u16, handle: Handle) {
        let until = self.forgotten_at(handle.lease);
        self.common.chores.leaves += 1;
        self.begin(keys, slot, Seq::default(), Some(until), Task::GiveBack(handle));
    }

    pub fn ask_once(&mut self, keys: Arc<Keys>, slot: u16, errand: Errand) -> Id {
        let seq = self.next_seq();
        self.begin(keys, slot, seq, None, Task::Errand(Box::new(errand)))
    }

    pub fn pass_on(&mut self, keys: Arc<Keys>, slot: u16) {
        self.begin(keys, slot, Seq::default(), None, Task::PassOn);
    }

    pub fn look_at_released(&mut self, keys: Arc<Keys>, slot: u16, until: Instant) {
        self.begin(keys, slot, Seq::default(), Some(until), Task::LookAtReleased);
    }

    fn begin(&mut self, keys: Arc<Keys>, slot: u16, seq: Seq, until: Option<Instant>, task: Task) -> Id {
        let chore = Chore { keys, slot, task, until, asked: self.asked_with(seq), standing: Standing::default() };
        let id = self.common.chores.chores.insert(chore);
        self.keep_chore(id);
        id
    }

    /// Makes the request whose turn has come, unless the chore has ended.
    pub fn ask_for_chore(&mut self, id: Id, number: RequestNumber) -> Option<Request> {
        let slot = self.common.chores.chores.get(id)?.slot;
        let not_after = self.not_after(slot);
        let chore = self.common.chores.chores.get_mut(id)?;
        (chore.standing.place, chore.asked.sending) = (None, Sending::UnderWay(number));
        let keys = chore.keys.clone();
        Some(match &chore.task {
            Task::Leave(Leaving { owner, seq, place, copies_until, .. }, _) => {
                let (owner, place) = (owner.clone(), place.clone());
                Request::Leave(Leave { keys, owner, seq: seq.0, place, copies_until: copies_until.0 })
            }
            Task::GiveBack(handle) => Request::Release(handle.release(keys)),
            Task::Errand(errand) => errand.request(keys, not_after),
            Task::PassOn | Task::LookAtReleased => {
                let names_ours = matches!(chore.task, Task::LookAtReleased) && keys.kind.is_shared();
                Request::Poll(Poll { keys, waits: false, names_ours, tickets: Vec::new() })
            }
        })
    }

    /// Returns the name and the holds that this client may have there, if the chore asked about them.
    pub fn chore_replied(&mut self, id: Id, answered: Answered) -> Option<(Arc<Keys>, Vec<PolledHolder>)> {
        let chore = self.common.chores.chores.get_mut(id)?;
        if !chore.asked.takes(&answered) {
            return None;
        }
        if let Task::Errand(errand) = &chore.task {
            let next = match answered.reply {
                Ok(reply) => errand.answered(&chore.asked, reply),
                Err(error) => errand.failed(&chore.asked, error),
            };
            self.go_on_with_errand(id, next);
            return None;
        }
        match answered.reply {
            Ok(Reply { answer: Answer::Left(left), .. }) => self.was_left(id, left, answered.sent.at),
            Ok(Reply { answer: Answer::Released(released), .. }) => self.was_given_back(id, released),
            Ok(Reply { answer: Answer::Polled(polled), .. }) => return self.was_looked_at(id, *polled),
            reply => self.do_again(id, &reply.err().unwrap_or_else(other_reply)),
        }
        None
    }

    fn was_left(&mut self, id: Id, Left { more }: Left, sent: Instant) {
        let Some(chore) = self.end_chore(id) else { return };
        self.given_back(&chore.keys, chore.slot, sent);
        if more {
            self.pass_on(chore.keys, chore.slot);
        }
    }

    /// The server has answered the release of a handle's hold.
    fn was_given_back(&mut self, id: Id, released: Released) {
        let Some(chore) = self.end_chore(id) else { return };
        if let Released::Freed { more: true, .. } | Released::Gone { more: true } = released {
            self.pass_on(chore.keys, chore.slot);
        }
    }

    fn was_looked_at(&mut self, id: Id, polled: Polled) -> Option<(Arc<Keys>, Vec<PolledHolder>)> {
        let keys = self.common.chores.chores.get(id)?.keys.clone();
        if polled.more {
            self.keep_chore(id);
        } else {
            self.end_chore(id);
        }
        Some((keys, polled.holder.into_iter().chain(polled.granted).collect()))
    }

    fn go_on_with_errand(&mut self, id: Id, next: Next) {
        match next {
            Next::Over(outcome) => self.end_errand(id, outcome),
            Next::PassOn(finding) => {
                if let Some(chore) = self.common.chores.chores.get(id) {
                    self.pass_on(chore.keys.clone(), chore.slot);
                }
                self.end_errand(id, Ok(finding));
            }
            Next::Again(error) => {
                if let Some(chore) = self.common.chores.chores.get_mut(id) {
                    chore.asked.repeat(error, self.now);
                }
                self.keep_chore(id);
            }
        }
    }

    fn end_errand(&mut self, id: Id, outcome: Result<Finding, RequestError>) {
        if let Some(Chore { task: Task::Errand(errand), .. }) = self.end_chore(id) {
            self.tell(errand.call, Outcome::Answered(outcome));
        }
    }

    pub fn time_out_errand(&mut self, id: Id) {
        if let Some(Chore { task: Task::Errand(errand), asked, slot, .. }) = self.end_chore(id) {
            let error = asked.out_of_time(self.why_no_answer(slot));
            self.tell(errand.call, Outcome::Answered(Err(error)));
        }
    }

    fn do_again(&mut self, id: Id, error: &RequestError) {
        let Some(chore) = self.common.chores.chores.get_mut(id) else { return };
        if !chore.task.outlasts(error) {
            self.end_chore(id);
            return;
        }
        // A place does not end while its slot moves either: a client that comes back keeps it alive (P6).
        if let (Task::Leave(..), RequestError::Refused(refusal)) = (&chore.task, error)
            && refusal.kind == RefusalKind::SlotForNow
        {
            chore.until = chore.until.max(Some(self.now + self.common.settings.longest_effect(Duration::ZERO)));
        }
        chore.asked.pause_after(error, self.now);
        if let RequestError::Refused(refusal) = error
            && refusal.needs_a_person()
        {
            // After the first refusal the client tries once more soon, because part of the script may have run.
            if matches!(chore.task, Task::Leave(_, turn) if turn != Turn::None) {
                chore.asked.sending = Sending::Pause(self.now + AFTER_A_REFUSAL);
            }
            self.note_refusal(id, refusal);
        }
        self.keep_chore(id);
    }

    /// Logs one line, until the server accepts a refused leave.
    fn note_refusal(&mut self, id: Id, refusal: &Refusal) {
        let Chores { chores, refused, .. } = &mut self.common.chores;
        let Some(Chore { task: Task::Leave(_, turn @ Turn::None), keys, .. }) = chores.get_mut(id) else { return };
        *turn = Turn::NotYet;
        let (keys, is_first) = (keys.clone(), refused.is_empty());
        refused.begin(&keys.lock);
        if is_first {
            self.note(Note::CannotLeave(keys, refusal.clone()));
        }
    }

    /// The client tries the leave again when its turn comes, which may be now.
    fn wait_for_turn(&mut self, id: Id) {
        let number = self.common.next_request();
        let Chores { chores, refused, .. } = &mut self.common.chores;
        if let Some(Chore { task: Task::Leave(_, turn), .. }) = chores.get_mut(id)
            && *turn != Turn::None
        {
            refused.end_turn(*turn);
            *turn = refused.wait(number, id);
            self.give_turns();
        }
    }

    fn give_turns(&mut self) {
        while let Some(id) = self.common.chores.refused.take_next() {
            if let Some(Chore { task: Task::Leave(_, turn), .. }) = self.common.chores.chores.get_mut(id) {
                *turn = Turn::Taken;
            }
            self.keep_chore(id);
        }
    }

    /// A pause has ended, or all the time that the chore has.
    pub fn chore_time(&mut self, id: Id) {
        let (now, lasts) = (self.now, self.common.settings.longest_effect(Duration::ZERO));
        let Some(chore) = self.common.chores.chores.get_mut(id) else { return };
        // A place does not end while its client polls for the name. If the chore gave up, the server would grant the
        // place the lock before the client leaves it (P6).
        if let Task::Leave(..) = chore.task {
            let polled = self.common.queues.of(&chore.keys.lock).map(|_| now);
            let heard = self.common.chores.refused.heard(&chore.keys.lock);
            chore.until = chore.until.max(polled.max(heard).map(|heard| heard + lasts));
        }
        if chore.until.is_some_and(|until| until <= now) {
            return drop(self.end_chore(id));
        }
        if chore.asked.sending.is_due(now) {
            chore.asked.sending = Sending::Waits;
            self.wait_for_turn(id);
        }
        self.keep_chore(id);
    }

    pub fn end_chore(&mut self, id: Id) -> Option<Chore> {
        let chore = self.common.chores.chores.remove(id)?;
        self.forget(chore.standing, Timer::Chore(id));
        if let Task::Leave(..) | Task::GiveBack(..) = chore.task {
            self.common.chores.leaves -= 1;
        }
        if let Task::Leave(_, turn) = chore.task
            && turn != Turn::None
        {
            self.common.chores.refused.end(&chore.keys.lock, turn);
            self.give_turns();
        }
        Some(chore)
    }

    pub fn keep_chore(&mut self, id: Id) {
        let Some(chore) = self.common.chores.chores.get(id) else { return };
        let due = chore.asked.sending.due().into_iter().chain(chore.until).min();
        let (slot, wants) = (chore.slot, chore.wants());
        let wish = Wish { timer: Timer::Chore(id), asker: Asker::Chore(id), slot, due, wants };
        let standing = self.keep(chore.standing, wish);
        if let Some(chore) = self.common.chores.chores.get_mut(id) {
            chore.standing = standing;
        }
    }
}
