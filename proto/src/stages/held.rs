//! The stage of an owner that has the lock, as far as the client knows.

use crate::canonical::RequestNumber;
use crate::desk::Desk;
use crate::effect::{Effect, Note, Outcome, Way};
use crate::error::{CallError, ChangeError, Ended, Loss, RequestError, UnlockError, Unlocked};
use crate::event::CallId;
use crate::node::Lane;
use crate::request::{Answer, Reply, Request};
use crate::requests::acquire::Acquired;
use crate::requests::release::Released;
use crate::requests::renew::Renewed;
use crate::sending::{Answered, Sent};
use crate::stages::attempt::{Call, out_of_time};
use crate::stages::counting::{Counting, Entering, Extending, Setting};
use crate::stages::detaching::Detaching;
use crate::stages::entry::{Stage, Who};
use crate::stages::guards::{Count, Guards};
use crate::stages::hold::Hold;
use crate::stages::line::{Change, Line, Next};
use crate::stages::releasing::Releasing;
use crate::stages::renewal::{Renewal, held_until};
use crate::time::Instant;

#[derive(Debug, Clone, Hash)]
pub struct Held {
    pub hold: Hold,
    pub guards: Guards,
    pub counting: Counting,
    pub renewal: Renewal,
    pub warning: Warning,
}

/// Whether the log has the warning about work that waits for its own hold. The machine gives it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Warning {
    NotGiven,
    Given,
}

/// The hold is lost, and guards still exist.
#[derive(Debug, Clone, Hash)]
pub struct Lost {
    pub loss: Loss,
    pub guards: Guards,
}

impl Held {
    /// Begins with a first guard, which it offers to the caller.
    pub fn begin(hold: Hold, renewal: Renewal, call: &Call, way: Way, desk: &mut Desk<'_>) -> Self {
        let guards = Guards::one(call, desk.now);
        let counting = Counting::Settled(guards.count());
        let held = Self { guards, counting, renewal, warning: Warning::NotGiven, hold };
        held.grant(call, way, desk);
        held
    }

    fn grant(&self, call: &Call, way: Way, desk: &mut Desk<'_>) {
        let Hold { token, deadline, .. } = self.hold;
        let (hold, weight) = (self.hold.id(), call.weight);
        desk.tell(call.id, Outcome::Granted { token, hold, until: deadline, way, weight });
    }

    /// At the deadline at the latest, when the hold ends.
    pub fn due(&self) -> Instant {
        let due = self.hold.deadline;
        let due = self.renewal.sending.due().map_or(due, |renewal| renewal.min(due));
        self.guards.due().map_or(due, |guards| guards.min(due))
    }

    pub fn renewal_wants(&self) -> Option<Lane> {
        self.renewal.sending.wants(Lane::Urgent)
    }

    /// The caller has dropped a nested call or an extend.
    pub fn forget(&mut self, call: CallId, desk: &mut Desk<'_>) {
        match &self.counting {
            Counting::Entering(entering) if entering.call.id == call => self.give_up_entering(desk),
            // No caller reads the answer, and a lease that is longer than the guards know does no harm.
            Counting::Extending(extending) if extending.change.id == call => {
                self.counting = Counting::Settled(extending.count);
            }
            _ => {}
        }
    }

    pub fn change(mut self, change: impl FnOnce(&mut Guards), who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        change(&mut self.guards);
        self.settle(who, desk)
    }

    /// Brings the server's count in line with the guards. Without guards the client releases at once: if a request
    /// about the count arrives after the release, the server refuses it (R1).
    fn settle(mut self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let live = self.guards.count();
        if live == Count::NONE {
            self.stop_counting(&mut who.line, desk);
            return Releasing::begin(self.hold, self.guards, desk);
        }
        if let Counting::Settled(counted) = self.counting {
            if live == counted {
                self.guards.tell_ending(&Ok(Unlocked::StillHeld(live.holds)), desk);
            } else {
                self.set(live, desk);
            }
        }
        Stage::Held(self)
    }

    /// Makes a new request, so that a late copy of an earlier one cannot set the old number again (R1).
    fn set(&mut self, to: Count, desk: &mut Desk<'_>) {
        self.counting = Counting::Setting(Box::new(Setting { to, asked: desk.next_asked() }));
    }

    /// Whether the owner's next call may start: no request about the guards is open.
    pub fn may_enter(&self) -> bool {
        matches!(self.counting, Counting::Settled(_))
    }

    /// Refuses calls that want more than the owner holds. They would wait for their own owner's hold, and overtake
    /// waiting writers.
    pub fn refuse_upgrades(&self, line: &mut Line, desk: &mut Desk<'_>) {
        let held = self.guards.count().weight;
        line.retain(|next| {
            let Next::Guard(call) = next else { return true };
            if call.weight > held {
                desk.tell(call.id, Outcome::Failed(CallError::WouldDeadlock));
            }
            call.weight <= held
        });
    }

    pub fn serve(self, next: Next, who: &Who, desk: &mut Desk<'_>) -> Stage {
        match next {
            Next::Guard(call) => self.enter(call, desk),
            Next::Extend(change) => self.extend(change, desk),
            Next::Detach(change) => self.detach(change, who, desk),
        }
    }

    fn enter(mut self, call: Call, desk: &mut Desk<'_>) -> Stage {
        let entering = Entering::new(call, self.guards.count(), desk);
        self.counting = Counting::Entering(Box::new(entering));
        Stage::Held(self)
    }

    fn extend(mut self, change: Change, desk: &mut Desk<'_>) -> Stage {
        self.counting = Counting::Extending(Box::new(Extending::new(change, self.guards.count(), desk)));
        Stage::Held(self)
    }

    fn detach(self, change: Change, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let Count { holds, .. } = self.guards.count();
        if holds > 1 {
            Next::Detach(change).fail(ChangeError::Nested(holds), desk);
            return Stage::Held(self);
        }
        Detaching::begin(self, change, who, desk)
    }

    /// The detach failed. Makes up for a check or a renewal that came due in the meantime.
    pub fn keep_after_all(mut self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if self.hold.is_over(desk.now) {
            return self.expire(who, desk);
        }
        self.renewal.unanswered();
        self.check(who, desk);
        self.settle(who, desk)
    }

    /// Reads the answer to a request about the count or for a new lease.
    pub fn counted(self, answered: Answered, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        match self.counting {
            Counting::Entering(_) => self.entered(answered, who, desk),
            Counting::Setting(_) => self.was_set(answered, who, desk),
            Counting::Extending(_) => self.extended(answered, who, desk),
            Counting::Settled(_) => Stage::Held(self),
        }
    }

    fn entered(mut self, answered: Answered, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let Counting::Entering(entering) = &mut self.counting else { return Stage::Held(self) };
        match answered.reply {
            Ok(Reply { answer: Answer::Acquired(Acquired::Held { holds, lease_left, .. }), .. }) => {
                let (call, counted) = (entering.call.clone(), Count { holds, ..entering.from });
                self.renewal.answered(answered.sent.at, answered.sent.epoch, lease_left, &mut self.hold, desk);
                // The process paused, and this answer came before the timer of the deadline: the outer guards are lost
                // (P8).
                if self.hold.is_over(desk.now) {
                    return self.expire(who, desk);
                }
                self.counting = Counting::Settled(counted);
                self.guards.offer(&call, desk.now);
                self.grant(&call, Way::AtOnce, desk);
                self.show_deadline(desk);
                return self.settle(who, desk);
            }
            // Our estimate of the server's clock was off; this answer has corrected it.
            Ok(Reply { answer: Answer::Acquired(Acquired::Late), .. }) => entering.asked.pause(desk.now),
            // The server does not have this hold under our token. In doubt no guard may rely on it (P1).
            Ok(_) => return self.lose(Loss::Gone, who, desk),
            Err(error) => match error.of_call() {
                Some(end) => {
                    desk.tell(entering.call.id, Outcome::Failed(end));
                    self.give_up_entering(desk);
                }
                None => entering.asked.repeat(error, desk.now),
            },
        }
        Stage::Held(self)
    }

    /// Gives up a nested call. Copies of its request may still add one to the server's count, so a later request sets
    /// the count (R1).
    fn give_up_entering(&mut self, desk: &mut Desk<'_>) {
        self.set(self.guards.count(), desk);
    }

    fn was_set(mut self, answered: Answered, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let Counting::Setting(setting) = &mut self.counting else { return Stage::Held(self) };
        let (set, live) = (setting.to, self.guards.count());
        match answered.reply {
            Ok(Reply { answer: Answer::Released(Released::Held { holds, more }), .. }) => {
                if more {
                    desk.pass_on(who.keys.clone(), who.slot);
                }
                self.counting = Counting::Settled(Count { holds, ..set });
                return self.settle(who, desk);
            }
            Ok(_) => return self.lose(Loss::Gone, who, desk),
            Err(error) => {
                if let RequestError::Refused(refusal) = &error
                    && refusal.needs_a_person()
                {
                    let (refusal, until) = (refusal.clone(), desk.forgotten_at(self.hold.longest));
                    self.guards.tell_ending(&Err(UnlockError::Refused { refusal, until }), desk);
                }
                setting.asked.repeat(error, desk.now);
            }
        }
        // If another guard has ended since, a new request replaces the unanswered one.
        if live != set {
            self.set(live, desk);
        }
        Stage::Held(self)
    }

    fn extended(mut self, answered: Answered, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        let Counting::Extending(extending) = &mut self.counting else { return Stage::Held(self) };
        let outcome = match answered.reply {
            Ok(Reply { answer: Answer::Renewed(Renewed::Renewed { lease_left }), .. }) => {
                let Sent { at: sent, epoch } = answered.sent;
                self.renewal.extended(sent, epoch, lease_left.min(extending.lease), &mut self.hold, desk);
                self.show_deadline(desk);
                Ok(())
            }
            Ok(_) => return self.lose(Loss::Gone, who, desk),
            Err(error) => match extending.asked.repeat_unless_final(error, desk.now) {
                Ok(()) => return Stage::Held(self),
                Err(error) => Err(ChangeError::Request(error)),
            },
        };
        self.end_extend(outcome, who, desk)
    }

    fn end_extend(mut self, outcome: Result<(), ChangeError>, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        if let Counting::Extending(extending) = &self.counting {
            extending.tell(outcome, desk);
            self.counting = Counting::Settled(extending.count);
        }
        self.settle(who, desk)
    }

    /// The limit of a nested call or an extend has passed.
    pub fn late(mut self, call: CallId, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        match &self.counting {
            Counting::Entering(entering) if entering.call.id == call => {
                let outcome = out_of_time(entering.asked.last.clone(), &entering.call.manner, who, desk);
                desk.tell(call, outcome);
                self.give_up_entering(desk);
                Stage::Held(self)
            }
            Counting::Extending(extending) if extending.change.id == call => {
                let error = extending.asked.out_of_time(desk.why_no_answer(who.slot));
                self.end_extend(Err(ChangeError::Request(error)), who, desk)
            }
            _ => Stage::Held(self),
        }
    }

    /// The server may not know the hold. A request about the lease that is under way asks about that too.
    pub fn check(&mut self, who: &Who, desk: &Desk<'_>) {
        if self.renewal.is_unchecked(desk.serving(who.slot).epoch) {
            self.renewal.check();
        }
    }

    /// Makes the request that is due, other than a renewal.
    pub fn ask(&mut self, who: &Who, desk: &mut Desk<'_>) -> Option<Request> {
        let Self { hold, counting, renewal, .. } = self;
        match counting {
            Counting::Settled(_) => None,
            Counting::Entering(entering) => {
                let lease = renewal.lease(hold, who, desk);
                Some(entering.ask(hold, lease, who, desk))
            }
            Counting::Setting(setting) => Some(hold.release_to(setting.to, setting.asked.seq, who)),
            Counting::Extending(extending) => {
                let lease = renewal.lease_to_extend(extending.change.lease, hold, desk);
                hold.longest = hold.longest.max(lease);
                Some(extending.ask(lease, renewal.remember(desk), hold, who))
            }
        }
    }

    pub fn renew(&mut self, number: RequestNumber, who: &Who, desk: &Desk<'_>) -> Option<Request> {
        let request = self.renewal.ask(number, &self.hold, who, desk);
        if request.is_none() {
            self.renewal.wait_for_deadline(&self.hold);
        }
        request
    }

    pub fn renewed(mut self, answered: Answered, who: &Who, desk: &mut Desk<'_>) -> Stage {
        if !self.renewal.sending.awaits(answered.number) {
            return Stage::Held(self);
        }
        match answered.reply {
            Ok(Reply { answer: Answer::Renewed(Renewed::Renewed { lease_left }), .. }) => {
                self.renewal.pause(&self.hold);
                self.renewal.answered(answered.sent.at, answered.sent.epoch, lease_left, &mut self.hold, desk);
                self.show_deadline(desk);
                Stage::Held(self)
            }
            Ok(_) => self.lose(Loss::Gone, who, desk),
            Err(error) => {
                desk.note(Note::CannotRenew(who.keys.clone(), error.into_cause()));
                self.renewal.retry(&self.hold, desk.now);
                Stage::Held(self)
            }
        }
    }

    fn show_deadline(&self, desk: &mut Desk<'_>) {
        desk.effects.extend(self.guards.live().map(|call| Effect::Valid(call, self.hold.deadline)));
    }

    pub fn time(mut self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        self.renewal.sending.go_on(desk.now);
        self.guards.pass_over(desk);
        let until = desk.forgotten_at(self.hold.longest);
        let cause = desk.why_no_answer(who.slot);
        self.guards.tell_late(|| UnlockError::Unknown { until, cause: cause.clone() }, desk);
        self.settle(who, desk)
    }

    pub fn expire(self, who: &Who, desk: &mut Desk<'_>) -> Stage {
        let lease = self.hold.lease.length();
        if held_until(&self.hold, desk).is_some_and(|until| until <= desk.now + lease / 3) {
            desk.note(Note::HeldForTooLong(who.keys.clone()));
        }
        self.lose(Loss::Expired, who, desk)
    }

    /// If all outer guards of a nested call have ended, the call starts again.
    fn stop_counting(&mut self, line: &mut Line, desk: &mut Desk<'_>) {
        match std::mem::replace(&mut self.counting, Counting::Settled(Count::NONE)) {
            Counting::Entering(entering) => line.push_front(Next::Guard(entering.call)),
            Counting::Extending(extending) => extending.tell(Err(ChangeError::Lost(Loss::Gone)), desk),
            Counting::Settled(_) | Counting::Setting(_) => {}
        }
    }

    /// The hold stays good until its deadline.
    pub fn runtime_gone(mut self, who: &mut Who, desk: &mut Desk<'_>) -> Stage {
        self.end_call(&ChangeError::Request(RequestError::RuntimeGone), desk);
        let until = desk.forgotten_at(self.hold.longest);
        self.guards.tell_ending(&Err(UnlockError::RuntimeGone { until }), desk);
        self.settle(who, desk)
    }

    /// Fails the nested call or the extend that has its turn.
    fn end_call(&mut self, error: &ChangeError, desk: &mut Desk<'_>) {
        match &self.counting {
            Counting::Entering(entering) => {
                desk.tell(entering.call.id, Outcome::Failed(error.of_call()));
                self.give_up_entering(desk);
            }
            Counting::Extending(extending) => {
                extending.tell(Err(error.clone()), desk);
                self.counting = Counting::Settled(extending.count);
            }
            Counting::Settled(_) | Counting::Setting(_) => {}
        }
    }

    /// Notifies the guards, once, and leaves, so that no late copy of the acquire brings the hold back (R11).
    pub fn lose(mut self, loss: Loss, who: &Who, desk: &mut Desk<'_>) -> Stage {
        // A nested call does not start again: its outer section would not learn of the loss.
        self.end_call(&ChangeError::Lost(loss), desk);
        self.hold.leave(who, desk);
        desk.effects.extend(self.guards.live().map(|call| Effect::Lost(call, loss)));
        self.hold.ended(Ended::Lost(loss), desk);
        self.guards.tell_ending(&Err(UnlockError::Lost(loss)), desk);
        Lost { loss, guards: self.guards }.until_its_end()
    }
}

impl Lost {
    pub fn unlock(mut self, call: CallId, desk: &mut Desk<'_>) -> Stage {
        self.guards.remove(call);
        desk.tell(call, Outcome::Unlocked(Err(UnlockError::Lost(self.loss))));
        self.until_its_end()
    }

    pub fn gone(mut self, call: CallId) -> Stage {
        self.guards.remove(call);
        self.until_its_end()
    }

    fn until_its_end(self) -> Stage {
        if self.guards.is_empty() { Stage::Idle } else { Stage::Lost(self) }
    }
}
