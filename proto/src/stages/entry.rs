//! One owner at one name: its stage, and the calls that wait for their turn.
//!
//! A transition takes the stage by value and returns the next one, so no stage keeps data of another.

use std::sync::Arc;

use crate::canonical::{Epoch, RequestNumber, Seq};
use crate::desk::Desk;
use crate::effect::Outcome;
use crate::error::{CallError, ChangeError, Loss, RequestError};
use crate::event::{CallId, Want};
use crate::keys::Keys;
use crate::node::{Asker, Lane, Place};
use crate::request::Request;
use crate::sending::{Answered, Asked, LastAnswer, Sending};
use crate::slab::Id;
use crate::stages::asking::Asking;
use crate::stages::attempt::{Attempt, Attention, Call, out_of_time};
use crate::stages::confirming::Confirming;
use crate::stages::detaching::Detaching;
use crate::stages::guards::Guards;
use crate::stages::held::{Held, Lost};
use crate::stages::line::{Line, Next};
use crate::stages::queued::Queued;
use crate::stages::releasing::Releasing;
use crate::time::Instant;
use crate::timers::{Standing, Timer, Wish};
use crate::trust::Grant;

#[derive(Debug, Clone, Hash)]
pub struct Entry {
    pub who: Who,
    pub stage: Stage,
    standing: Standing,
    /// The place where its renewal waits to be sent.
    renewal: Option<Place>,
}

/// The owner, the name, and the calls that wait for their turn there.
#[derive(Debug, Clone, Hash)]
pub struct Who {
    pub id: Id,
    pub keys: Arc<Keys>,
    pub slot: u16,
    pub owner: u64,
    pub owner_id: Arc<str>,
    /// The greatest token that a forced unlock ended. The message may overtake the answer with that token.
    pub revoked: u64,
    pub line: Line,
}

#[derive(Debug, Clone, Hash)]
pub enum Stage {
    /// The server keeps nothing of the owner.
    Idle,
    Asking(Asking),
    Queued(Queued),
    Confirming(Confirming),
    Held(Held),
    Releasing(Releasing),
    /// Boxed, because it is rare.
    Detaching(Box<Detaching>),
    /// The hold is lost, and guards still exist.
    Lost(Lost),
}

/// Whether the server's report is about something that the owner has or asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recognition {
    Known,
    Unknown,
}

/// How the server has reported that an owner of this client has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Pushed(Grant),
    Polled { token: u64 },
}

impl Entry {
    pub fn new(id: Id, want: &Want, slot: u16) -> Self {
        let Want { keys, owner, owner_id, .. } = want;
        let (keys, owner_id, line) = (keys.clone(), owner_id.clone(), Line::new());
        let who = Who { id, keys, slot, owner: *owner, owner_id, revoked: 0, line };
        Self { who, stage: Stage::Idle, standing: Standing::default(), renewal: None }
    }

    pub fn call(&mut self, id: CallId, want: Want, desk: &mut Desk<'_>) {
        let Want { scope, manner, lease, weight, terms, task, .. } = want;
        let (began, attention) = (desk.now, Attention::Undisturbed);
        let call = Call { id, scope, manner, lease, weight, terms, task, began, attention };
        // Usually no other call waits, and the line allocates nothing.
        match self.stage {
            Stage::Idle => self.stage = Asking::begin(call, desk),
            _ => self.who.line.push_back(Next::Guard(call)),
        }
    }

    pub fn claimed(&mut self, call: CallId) {
        if let Stage::Held(held) = &mut self.stage {
            held.guards.claim(call);
        }
    }

    pub fn disturbed(&mut self, call: CallId) {
        let attempted = self.stage.attempt_mut().map(|attempt| &mut attempt.call);
        let in_line =
            self.who.line.iter_mut().filter_map(|next| if let Next::Guard(call) = next { Some(call) } else { None });
        let waiting = attempted.into_iter().chain(in_line).find(|waiting| waiting.id == call);
        waiting.into_iter().for_each(|waiting| waiting.attention = Attention::Disturbed);
    }

    pub fn unlock(&mut self, call: CallId, desk: &mut Desk<'_>) {
        self.change_guards(call, |guards, until| guards.end(call, until), desk);
    }

    pub fn shrink(&mut self, call: CallId, guard: CallId, weight: u32, desk: &mut Desk<'_>) {
        self.change_guards(call, |guards, until| guards.shrink(guard, weight, call, until), desk);
    }

    /// The call waits until the server knows the change.
    fn change_guards(&mut self, call: CallId, change: impl FnOnce(&mut Guards, Instant), desk: &mut Desk<'_>) {
        self.expire(desk);
        let until = desk.now + desk.settings().operation_timeout;
        self.change(|stage, who| match stage {
            Stage::Held(held) => held.change(|guards| change(guards, until), who, desk),
            Stage::Lost(lost) => lost.unlock(call, desk),
            other => other,
        });
    }

    /// The first to look after the deadline ends the hold (R5): the watchers, the log and the caller all learn of it
    /// (P8).
    fn expire(&mut self, desk: &mut Desk<'_>) {
        if matches!(&self.stage, Stage::Held(held) if held.hold.is_over(desk.now)) {
            self.change(|stage, who| if let Stage::Held(held) = stage { held.expire(who, desk) } else { stage });
        }
    }

    pub fn gone(&mut self, call: CallId, desk: &mut Desk<'_>) {
        self.who.line.retain(|waiting| waiting.id() != call);
        if let Some(attempt) = self.withdraw(|attempt| attempt.call.id == call, desk) {
            return attempt.leave(&self.who, desk);
        }
        if let Stage::Held(held) = &mut self.stage {
            held.forget(call, desk);
        }
        self.expire(desk);
        self.change(|stage, who| match stage {
            Stage::Held(held) => held.change(|guards| guards.remove(call), who, desk),
            Stage::Releasing(releasing) => releasing.gone(call),
            Stage::Detaching(detaching) => detaching.gone(call, who, desk),
            Stage::Lost(lost) => lost.gone(call),
            other => other,
        });
    }

    /// The limit of a call has passed.
    pub fn late(&mut self, call: CallId, desk: &mut Desk<'_>) {
        let at = self.who.line.iter().position(|waiting| waiting.id() == call);
        if let Some(waiting) = at.and_then(|at| self.who.line.remove(at)) {
            return self.late_in_line(&waiting, desk);
        }
        self.change(|stage, who| match stage {
            Stage::Held(held) => held.late(call, who, desk),
            Stage::Detaching(detaching) => detaching.time_out(who, desk),
            other => other,
        });
        if let Some(attempt) = self.withdraw(|attempt| attempt.call.id == call, desk) {
            attempt.time_out(&self.who, desk);
        }
    }

    /// Takes out the attempt that is meant. Nothing asks for it any longer.
    fn withdraw(&mut self, is_meant: impl FnOnce(&Attempt) -> bool, desk: &mut Desk<'_>) -> Option<Attempt> {
        self.stage.attempt_mut().filter(|attempt| is_meant(attempt))?;
        std::mem::replace(&mut self.stage, Stage::Idle).withdraw(desk)
    }

    fn late_in_line(&mut self, next: &Next, desk: &mut Desk<'_>) {
        let last = self.last_answer(desk);
        if let Next::Guard(call) = next {
            let outcome = out_of_time(last, &call.manner, &self.who, desk);
            return desk.tell(call.id, outcome);
        }
        let failure = if let LastAnswer::Failed(error) = last { Some(error.into_cause()) } else { None };
        let cause = failure.unwrap_or_else(|| desk.why_no_answer(self.who.slot));
        next.fail(ChangeError::Request(RequestError::NotSent(cause)), desk);
    }

    /// The outcome of the current call's last request.
    fn last_answer(&mut self, desk: &Desk<'_>) -> LastAnswer {
        if let Stage::Queued(queued) = &self.stage {
            return queued.last_answer(desk);
        }
        self.stage.asked().map_or(LastAnswer::Nothing, |(asked, _)| asked.last.clone())
    }

    /// Makes the request whose turn has come, unless the stage does not want it any more.
    pub fn ask(&mut self, number: RequestNumber, desk: &mut Desk<'_>) -> Option<Request> {
        self.standing.place = None;
        let (asked, _) = self.stage.asked()?;
        asked.sending = Sending::UnderWay(number);
        let who = &self.who;
        match &mut self.stage {
            Stage::Asking(asking) => Some(asking.ask(who, desk)),
            Stage::Confirming(confirming) => Some(confirming.ask(who)),
            Stage::Held(held) => held.ask(who, desk),
            Stage::Releasing(releasing) => Some(releasing.ask(who)),
            Stage::Detaching(detaching) => Some(detaching.ask(who, desk)),
            Stage::Idle | Stage::Queued(_) | Stage::Lost(_) => None,
        }
    }

    pub fn renew(&mut self, number: RequestNumber, desk: &Desk<'_>) -> Option<Request> {
        self.renewal = None;
        if let Stage::Held(held) = &mut self.stage { held.renew(number, &self.who, desk) } else { None }
    }

    pub fn replied(&mut self, answered: Answered, desk: &mut Desk<'_>) {
        if !self.stage.asked().is_some_and(|(asked, _)| asked.takes(&answered)) {
            return;
        }
        self.change(|stage, who| match stage {
            Stage::Asking(asking) => asking.replied(answered, who, desk),
            Stage::Confirming(confirming) => confirming.replied(answered, who, desk),
            Stage::Held(held) => held.counted(answered, who, desk),
            Stage::Releasing(releasing) => releasing.replied(answered, who, desk),
            Stage::Detaching(detaching) => detaching.replied(answered, who, desk),
            other => other,
        });
    }

    pub fn renewed(&mut self, answered: Answered, desk: &mut Desk<'_>) {
        self.change(|stage, who| match stage {
            Stage::Held(held) => held.renewed(answered, who, desk),
            other => other,
        });
    }

    /// The server reports that this owner has the lock since its request with this seq.
    pub fn has_lock(&mut self, seq: Seq, said: Said, desk: &mut Desk<'_>) -> Recognition {
        // Known with any token: if the server has another hold than this one, the next check finds this one lost, and
        // it leaves. A leave now would end a later hold too (R4).
        if let Stage::Held(_) | Stage::Releasing(_) | Stage::Detaching(_) = self.stage {
            return Recognition::Known;
        }
        if self.stage.attempt_mut().is_none_or(|attempt| attempt.asked.seq != seq) {
            return Recognition::Unknown;
        }
        self.change(|stage, who| match stage {
            Stage::Asking(asking) => asking.told(said),
            Stage::Queued(queued) => queued.told(said, who, desk),
            other => other,
        });
        Recognition::Known
    }

    /// A poll found no place of this attempt.
    pub fn has_no_place(&mut self, seq: Seq, desk: &mut Desk<'_>) {
        self.change(|stage, who| match stage {
            Stage::Queued(queued) if queued.attempt.asked.seq == seq => queued.ask_anew(who, desk),
            other => other,
        });
    }

    /// Polls fail with a permanent error.
    pub fn cannot_wait(&mut self, seq: Seq, error: &CallError, desk: &mut Desk<'_>) {
        if let Some(attempt) = self.withdraw(|attempt| attempt.asked.seq == seq, desk) {
            attempt.fail(error.clone(), &self.who, desk);
        }
    }

    pub fn revoked(&mut self, token: u64, desk: &mut Desk<'_>) {
        self.who.revoked = self.who.revoked.max(token);
        self.change(|stage, who| match stage {
            Stage::Held(held) if held.hold.token == token => held.lose(Loss::Forced, who, desk),
            Stage::Detaching(detaching) => detaching.revoked(token, who, desk),
            other => other,
        });
    }

    /// After a new connection or a move of the slot, the server may not know the hold.
    pub fn check(&mut self, desk: &Desk<'_>) {
        if let Stage::Held(held) = &mut self.stage {
            held.check(&self.who, desk);
        }
    }

    pub fn time(&mut self, desk: &mut Desk<'_>) {
        if let Some((asked, _)) = self.stage.asked() {
            asked.sending.go_on(desk.now);
        }
        self.expire(desk);
        self.change(|stage, who| match stage {
            Stage::Held(held) => held.time(who, desk),
            Stage::Releasing(releasing) => releasing.time(who, desk),
            Stage::Detaching(detaching) => detaching.time(who, desk),
            other => other,
        });
    }

    /// Ends everything that the owner has and wants.
    pub fn close(&mut self, why: Closing, desk: &mut Desk<'_>) {
        for next in std::mem::take(&mut self.who.line) {
            next.close(why, desk);
        }
        if let Some(attempt) = self.withdraw(|_| true, desk) {
            attempt.fail(why.error(), &self.who, desk);
        }
        self.expire(desk);
        self.change(|stage, who| match (stage, why) {
            (Stage::Detaching(detaching), why) => detaching.close(why, who, desk),
            (Stage::Held(held), Closing::ByUser) => held.lose(Loss::Closed, who, desk),
            (Stage::Releasing(releasing), Closing::RuntimeGone) => releasing.runtime_gone(desk),
            (Stage::Held(held), Closing::RuntimeGone) => held.runtime_gone(who, desk),
            (other, _) => other,
        });
    }

    /// Starts the next calls in line.
    pub fn go_on(&mut self, desk: &mut Desk<'_>) {
        while let Some(next) = self.next_call(desk) {
            self.change(|stage, who| match (stage, next) {
                (Stage::Idle, Next::Guard(call)) => Asking::begin(call, desk),
                // The owner has the lock already, and the handle keeps its hold.
                (stage @ (Stage::Held(_) | Stage::Lost(_)), Next::Guard(call)) if call.manner.attaches() => {
                    desk.tell(call.id, Outcome::Busy(None));
                    stage
                }
                (Stage::Held(held), next) => held.serve(next, who, desk),
                (stage, next) => {
                    next.fail(ChangeError::Lost(stage.loss()), desk);
                    stage
                }
            });
        }
    }

    fn next_call(&mut self, desk: &mut Desk<'_>) -> Option<Next> {
        if self.who.line.is_empty() {
            return None;
        }
        self.expire(desk);
        let may_go_on = match &self.stage {
            Stage::Idle | Stage::Lost(_) => true,
            Stage::Held(held) => {
                held.refuse_upgrades(&mut self.who.line, desk);
                held.may_enter()
            }
            Stage::Queued(_) | Stage::Confirming(_) => {
                self.refuse_to_wait(desk);
                false
            }
            Stage::Asking(_) | Stage::Releasing(_) | Stage::Detaching(_) => false,
        };
        if may_go_on { self.who.line.pop_front() } else { None }
    }

    /// A call of this owner waits for others, so a call that does not wait finds the lock busy.
    fn refuse_to_wait(&mut self, desk: &mut Desk<'_>) {
        self.who.line.retain(|next| {
            let waits = matches!(next, Next::Guard(call) if call.manner.waits());
            match next {
                Next::Guard(call) if !waits => desk.tell(call.id, Outcome::Busy(None)),
                // The guard of this change has ended.
                Next::Extend(_) | Next::Detach(_) => next.fail(ChangeError::Lost(Loss::Gone), desk),
                Next::Guard(_) => {}
            }
            waits
        });
    }

    /// Updates the timer and the places in lanes as the stage wants them.
    pub fn keep(&mut self, desk: &mut Desk<'_>) {
        let (id, slot) = (self.who.id, self.who.slot);
        let (due, wants, renewal) = self.wishes();
        if !self.standing.is_kept(due, wants) {
            let wish = Wish { timer: Timer::Entry(id), asker: Asker::Entry(id), slot, due, wants };
            self.standing = desk.keep(self.standing, wish);
        }
        if self.renewal.is_some() || renewal.is_some() {
            self.renewal = desk.keep_place(self.renewal, Asker::Renewal(id), slot, renewal);
        }
    }

    fn wishes(&mut self) -> (Option<Instant>, Option<Lane>, Option<Lane>) {
        let (end, renewal) = match &self.stage {
            Stage::Held(held) => (Some(held.due()), held.renewal_wants()),
            Stage::Releasing(releasing) => (Some(releasing.due()), None),
            Stage::Detaching(detaching) => (detaching.due(), None),
            Stage::Idle | Stage::Asking(_) | Stage::Queued(_) | Stage::Confirming(_) | Stage::Lost(_) => (None, None),
        };
        let Some((Asked { sending, .. }, lane)) = self.stage.asked() else { return (end, None, renewal) };
        let due = match (sending.due(), end) {
            (Some(pause), Some(end)) => Some(pause.min(end)),
            (pause, end) => pause.or(end),
        };
        (due, sending.wants(lane), renewal)
    }

    pub fn is_over(&self) -> bool {
        self.who.line.is_empty() && matches!(self.stage, Stage::Idle)
    }

    /// Whether the server of this epoch may not know the owner's hold.
    pub fn is_doubted(&self, epoch: Epoch) -> bool {
        matches!(&self.stage, Stage::Held(held) if held.renewal.is_unchecked(epoch))
    }

    pub fn is_releasing(&self) -> bool {
        matches!(self.stage, Stage::Releasing(_))
    }

    fn change(&mut self, next: impl FnOnce(Stage, &mut Who) -> Stage) {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        self.stage = next(stage, &mut self.who);
    }
}

impl Stage {
    /// The loss to report to a call about the hold.
    fn loss(&self) -> Loss {
        if let Self::Lost(lost) = self { lost.loss } else { Loss::Gone }
    }

    /// The request of the stage, apart from renewals and polls, and its lane.
    fn asked(&mut self) -> Option<(&mut Asked, Lane)> {
        match self {
            Self::Asking(asking) => Some((&mut asking.attempt.asked, Lane::Acquire)),
            Self::Confirming(confirming) => Some((&mut confirming.attempt.asked, Lane::Urgent)),
            Self::Held(held) => held.counting.asked(),
            Self::Releasing(releasing) => Some((&mut releasing.asked, Lane::Release)),
            Self::Detaching(detaching) => Some((&mut detaching.asked, Lane::Acquire)),
            Self::Idle | Self::Queued(_) | Self::Lost(_) => None,
        }
    }

    /// Whether others come before its call, according to the last answer of the server.
    pub fn is_behind_others(&self) -> bool {
        match self {
            Self::Queued(_) => true,
            Self::Asking(Asking { attempt, .. }) | Self::Confirming(Confirming { attempt, .. }) => {
                matches!(attempt.asked.last, LastAnswer::Others(_))
            }
            _ => false,
        }
    }

    fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match self {
            Self::Asking(asking) => Some(&mut asking.attempt),
            Self::Queued(queued) => Some(&mut queued.attempt),
            Self::Confirming(confirming) => Some(&mut confirming.attempt),
            Self::Idle | Self::Held(_) | Self::Releasing(_) | Self::Detaching(_) | Self::Lost(_) => None,
        }
    }

    fn withdraw(self, desk: &mut Desk<'_>) -> Option<Attempt> {
        match self {
            Self::Asking(asking) => Some(asking.withdraw()),
            Self::Queued(queued) => Some(queued.withdraw(desk)),
            Self::Confirming(confirming) => Some(confirming.withdraw(desk)),
            Self::Idle | Self::Held(_) | Self::Releasing(_) | Self::Detaching(_) | Self::Lost(_) => None,
        }
    }
}

/// Why a client does not serve calls any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Closing {
    ByUser,
    RuntimeGone,
}

impl Closing {
    pub fn error(self) -> CallError {
        match self {
            Self::ByUser => CallError::Closed,
            Self::RuntimeGone => CallError::RuntimeGone,
        }
    }
}
