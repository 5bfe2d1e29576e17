//! Does the chores: begins them, sends them, and reads their answers.

use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{RequestNumber, Seq};
use crate::chore::{AFTER_A_REFUSAL, Answers, Chore, Chores, Leaving, Task, Turn};
use crate::desk::Desk;
use crate::effect::{Note, Outcome, Request};
use crate::errand::{Errand, Next};
use crate::error::{Refusal, RefusalKind, RequestError, other_reply};
use crate::event::{Answer, Reply};
use crate::handle::Handle;
use crate::keys::Keys;
use crate::node::Asker;
use crate::question::Finding;
use crate::requests::leave::{Leave, Left};
use crate::requests::poll::{Poll, PolledHolder};
use crate::requests::release::Released;
use crate::sending::{Answered, Sending};
use crate::slab::Id;
use crate::standing::{Standing, Wish};
use crate::time::Instant;
use crate::timers::Timer;

impl Desk<'_> {
    pub fn leave(&mut self, keys: Arc<Keys>, slot: u16, leaving: Leaving) {
        let until = self.forgotten_at(leaving.lease);
        self.common.chores.leaves += 1;
        self.begin(keys, slot, leaving.seq, Task::Leave(leaving, Answers::None, until));
    }

    pub fn give_back(&mut self, keys: Arc<Keys>, slot: u16, handle: Handle) {
        let until = self.forgotten_at(handle.lease);
        self.common.chores.leaves += 1;
        self.begin(keys, slot, Seq::default(), Task::GiveBack(handle, until));
    }

    pub fn ask_once(&mut self, keys: Arc<Keys>, slot: u16, errand: Errand) -> Id {
        let until = self.now + self.settings().operation_timeout;
        let seq = self.next_seq();
        self.begin(keys, slot, seq, Task::Errand(Box::new(errand), until))
    }

    pub fn pass_on(&mut self, keys: Arc<Keys>, slot: u16) {
        self.begin(keys, slot, Seq::default(), Task::PassOn);
    }

    pub fn look_at_released(&mut self, keys: Arc<Keys>, slot: u16, until: Instant) {
        self.begin(keys, slot, Seq::default(), Task::LookAtReleased(until));
    }

    fn begin(&mut self, keys: Arc<Keys>, slot: u16, seq: Seq, task: Task) -> Id {
        let (backoff, standing) = (self.backoff(seq), Standing::default());
        let chore = Chore { keys, slot, task, sending: Sending::Waits, backoff, standing };
        let id = self.common.chores.chores.insert(chore);
        self.keep_chore(id);
        id
    }

    /// Makes the request, which may be sent now. `None`: it is not wanted any more.
    pub fn ask_for_chore(&mut self, id: Id, number: RequestNumber) -> Option<Request> {
        let slot = self.common.chores.chores.get(id)?.slot;
        let not_after = self.not_after(slot);
        let chore = self.common.chores.chores.get_mut(id)?;
        (chore.standing.place, chore.sending) = (None, Sending::UnderWay(number));
        let keys = chore.keys.clone();
        Some(match &chore.task {
            Task::Leave(Leaving { owner, seq, place, copies_until, .. }, ..) => {
                let (owner, place) = (owner.clone(), place.clone());
                Request::Leave(Leave { keys, owner, seq: seq.0, place, copies_until: copies_until.0 })
            }
            Task::GiveBack(handle, _) => Request::Release(handle.release(keys)),
            Task::Errand(errand, _) => errand.request(keys, not_after),
            Task::PassOn | Task::LookAtReleased(_) => {
                let names_ours = matches!(chore.task, Task::LookAtReleased(_)) && keys.kind.is_shared();
                Request::Poll(Poll { keys, waits: false, names_ours, tickets: Vec::new() })
            }
        })
    }

    /// Returns the name and what this client may hold there, if that was asked.
    pub fn chore_replied(&mut self, id: Id, answered: Answered) -> Option<(Arc<Keys>, Vec<PolledHolder>)> {
        let chore = self.common.chores.chores.get_mut(id).filter(|it| it.sending.awaits(answered.number))?;
        if let Task::Errand(errand, _) = &mut chore.task {
            let next = match answered.reply {
                Ok(reply) => errand.answered(answered.sent, reply),
                Err(error) => errand.failed(error),
            };
            self.go_on_with_errand(id, next);
            return None;
        }
        match answered.reply {
            Ok(Reply { answer: Answer::Left(Left { more }), .. }) => {
                let chore = self.end_chore(id)?;
                self.given_back(&chore.keys, chore.slot, answered.sent);
                if more {
                    self.pass_on(chore.keys, chore.slot);
                }
                None
            }
            Ok(Reply { answer: Answer::Released(released), .. }) => {
                let chore = self.end_chore(id)?;
                if let Released::Freed { more: true, .. } | Released::Gone { more: true } = released {
                    self.pass_on(chore.keys, chore.slot);
                }
                None
            }
            Ok(Reply { answer: Answer::Polled(polled), .. }) => {
                let keys = chore.keys.clone();
                if polled.more {
                    chore.sending = Sending::Waits;
                    self.keep_chore(id);
                } else {
                    self.end_chore(id);
                }
                Some((keys, polled.holder.into_iter().chain(polled.granted).collect()))
            }
            reply => {
                self.do_again(id, &reply.err().unwrap_or_else(other_reply));
                None
            }
        }
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
                let Some(chore) = self.common.chores.chores.get_mut(id) else { return };
                chore.sending = Sending::Pause(self.now + chore.backoff.pause_after(&error));
                if let Task::Errand(errand, _) = &mut chore.task {
                    errand.failure = Some(error);
                }
                self.keep_chore(id);
            }
        }
    }

    fn end_errand(&mut self, id: Id, outcome: Result<Finding, RequestError>) {
        if let Some(Chore { task: Task::Errand(errand, _), .. }) = self.end_chore(id) {
            self.tell(errand.call, Outcome::Answered(outcome));
        }
    }

    /// Its time is over.
    fn time_out_errand(&mut self, id: Id) {
        let Some(Chore { task: Task::Errand(errand, _), sending, slot, .. }) = self.common.chores.chores.get(id) else {
            return;
        };
        let (failure, sending, slot) = (errand.failure.clone(), *sending, *slot);
        let error = sending.out_of_time(failure, self.why_no_answer(slot));
        self.end_errand(id, Err(error));
    }

    /// Its caller is gone. What is under way may still be served.
    pub fn errand_gone(&mut self, id: Id) {
        self.end_chore(id);
    }

    fn do_again(&mut self, id: Id, error: &RequestError) {
        let Some(chore) = self.common.chores.chores.get_mut(id) else { return };
        if !chore.task.outlasts(error) {
            self.end_chore(id);
            return;
        }
        // Nor does a place end while its slot is on the move: a client that comes back keeps it alive (P6).
        if let (Task::Leave(.., until), RequestError::Refused(refusal)) = (&mut chore.task, error)
            && refusal.kind == RefusalKind::SlotForNow
        {
            *until = (*until).max(self.now + self.common.settings.longest_effect(Duration::ZERO));
        }
        let mut pause = chore.backoff.pause_after(error);
        if let RequestError::Refused(refusal) = error
            && refusal.needs_a_person()
        {
            // After the first refusal it is tried once more soon: part of the script may have run.
            if chore.task.was_refused() {
                pause = AFTER_A_REFUSAL;
            }
            self.note_refusal(id, refusal);
        }
        if let Some(chore) = self.common.chores.chores.get_mut(id) {
            chore.sending = Sending::Pause(self.now + pause);
        }
        self.keep_chore(id);
    }

    /// One line for the log, until a refused leave is accepted.
    fn note_refusal(&mut self, id: Id, refusal: &Refusal) {
        let Chores { chores, refused, .. } = &mut self.common.chores;
        let Some(Chore { task: Task::Leave(_, answers, _), keys, .. }) = chores.get_mut(id) else { return };
        if *answers != Answers::None {
            return;
        }
        *answers = Answers::Refused(Turn::NotYet);
        let (keys, is_first) = (keys.clone(), refused.is_empty());
        refused.begin(&keys.lock);
        if is_first {
            self.note(Note::CannotLeave(keys, refusal.clone()));
        }
    }

    /// It is tried again when its turn comes, which may be now.
    fn wait_for_turn(&mut self, id: Id) {
        let number = self.common.next_request();
        let Chores { chores, refused, .. } = &mut self.common.chores;
        if let Some(Chore { task: Task::Leave(_, Answers::Refused(turn), _), .. }) = chores.get_mut(id) {
            refused.end_turn(*turn);
            *turn = refused.wait(number, id);
            self.give_turns();
        }
    }

    fn give_turns(&mut self) {
        while let Some(id) = self.common.chores.refused.take_next() {
            if let Some(Chore { task: Task::Leave(_, answers, _), .. }) = self.common.chores.chores.get_mut(id) {
                *answers = Answers::Refused(Turn::Taken);
            }
            self.keep_chore(id);
        }
    }

    /// A pause is over, or all the time that there was.
    pub fn chore_time(&mut self, id: Id) {
        let (now, lasts) = (self.now, self.common.settings.longest_effect(Duration::ZERO));
        let Some(chore) = self.common.chores.chores.get_mut(id) else { return };
        // A place does not end while its client polls for the name: it would be granted the lock, and left only then (P6).
        if let Task::Leave(.., until) = &mut chore.task {
            let polled = self.common.queues.of(&chore.keys.lock).map(|_| now);
            let heard = self.common.chores.refused.heard(&chore.keys.lock);
            *until = polled.max(heard).map_or(*until, |heard| (*until).max(heard + lasts));
        }
        if chore.task.until().is_some_and(|until| until <= now) {
            return match chore.task {
                Task::Errand(..) => self.time_out_errand(id),
                _ => drop(self.end_chore(id)),
            };
        }
        if chore.sending.is_due(now) {
            chore.sending = Sending::Waits;
            self.wait_for_turn(id);
        }
        self.keep_chore(id);
    }

    fn end_chore(&mut self, id: Id) -> Option<Chore> {
        let chore = self.common.chores.chores.remove(id)?;
        self.forget(chore.standing, Timer::Chore(id));
        if let Task::Leave(..) | Task::GiveBack(..) = chore.task {
            self.common.chores.leaves -= 1;
        }
        if let Task::Leave(_, Answers::Refused(turn), _) = chore.task {
            self.common.chores.refused.end(&chore.keys.lock, turn);
            self.give_turns();
        }
        Some(chore)
    }

    pub fn keep_chore(&mut self, id: Id) {
        let Some(chore) = self.common.chores.chores.get(id) else { return };
        let due = chore.sending.due().into_iter().chain(chore.task.until()).min();
        let (slot, wants) = (chore.slot, chore.wants());
        let wish = Wish { timer: Timer::Chore(id), asker: Asker::Chore(id), slot, due, wants };
        let standing = self.keep(chore.standing, wish);
        if let Some(chore) = self.common.chores.chores.get_mut(id) {
            chore.standing = standing;
        }
    }
}
