//! An owner in a client: its attempt, its hold, and the leaves that the background task retries for it.
//!
//! A paused process needs no step of its own: it is a client that does nothing while the clock
//! ticks.

use crate::bounds::Bounds;
use crate::client::Client;
use crate::ghost::{Event, EventSet};
use crate::network::{
    Acquired, Answer, FOREVER, Holder, Nested, Network, OwnerId, Passed, Push, Released, Renewed, Request, Seq, Time,
    Token,
};
use crate::rules::Rules;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub next_seq: Seq,
    /// Attempts, nested acquires and retries that the bounds still allow.
    attempts: u8,
    reentries: u8,
    attaches: u8,
    extends: u8,
    retries: u8,
    pub stage: Stage,
    /// R9: leaves without an answer. The background retries them while the owner may start again.
    pub leaving: Vec<Request>,
    /// Only without `r11_seq_at_the_loss`: attempt and `copies_until` of a lost hold whose leave has
    /// no seq yet.
    pub unsent_leave: Option<(Seq, Time)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Stage {
    Idle,
    /// `copies_until`: server time until which an earlier copy may still be served; 0 if there is
    /// none.
    Acquiring {
        seq: Seq,
        request: Request,
        copies_until: Time,
    },
    /// In the queue, as far as the client knows. `queued_at` is the send time of the request that was
    /// answered "queued", and `floor` the token that answer named (R7). Later answers to polls of the name are
    /// in `Client::answered`.
    Waiting {
        seq: Seq,
        queued_at: Time,
        floor: Token,
        copies_until: Time,
        give_up: Time,
        confirming: Option<Request>,
    },
    Holding(Hold),
}

const UNKNOWN: u8 = u8::MAX;

/// A hold as the client knows it, from the first guard to the answer of the last release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    pub attempt: Seq,
    pub token: Token,
    /// The local deadline (R5).
    pub deadline: Time,
    pub guards: u8,
    /// The count on the server; `UNKNOWN` while a request that sets it is `pending`.
    pub on_server: u8,
    pub copies_until: Time,
    /// The server still has the lease of a grant, since the hold began with a trusted push or a long
    /// grant. The first renewal sets the wanted lease, even if that is shorter.
    has_grant_lease: bool,
    /// The request about the count that has no answer. An owner's requests take turns
    /// (`OwnerEntry::turn`), so there is at most one.
    pub pending: Option<Request>,
}

impl Hold {
    /// What `is_valid` of a guard answers.
    pub fn is_valid(&self, now: Time, rules: &Rules) -> bool {
        let is_given_away = self.is_detaching() && rules.r16_guard_ends_first;
        self.guards > 0 && now < self.deadline && !is_given_away
    }

    pub fn is_detaching(&self) -> bool {
        matches!(self.pending, Some(Request::Give { .. }))
    }

    fn is_extending(&self) -> bool {
        matches!(self.pending, Some(Request::Extend { .. }))
    }

    /// The server is known to count as many holds as there are guards.
    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && self.on_server == self.guards
    }
}

/// What a client can use during one step.
pub struct Context<'a> {
    pub id: OwnerId,
    pub client: &'a mut Client,
    /// Other owners of this client wait for the name.
    pub others_wait: bool,
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub network: &'a mut Network,
    pub events: &'a mut EventSet,
}

impl Context<'_> {
    fn send(&mut self, request: Request) -> Request {
        self.network.send(self.id, request);
        request
    }

    /// R5: the local deadline from an answer that names the remaining lease. It counts from before the
    /// request was sent, and is no later than the wanted lease allows.
    fn deadline(&self, sent: Time, remaining: Time) -> Time {
        self.deadline_of(self.bounds.lease, sent, remaining)
    }

    /// The same for another lease than that of the lock.
    fn deadline_of(&self, wanted: Time, sent: Time, remaining: Time) -> Time {
        let from = if self.rules.r5_deadline_from_request { sent } else { self.now };
        from + if self.rules.r5_no_more_than_wanted { remaining.min(wanted) } else { remaining }
    }
}

/// The next copy of a request. That of an acquire has a new `not_after` (R2).
fn next_copy(request: Request, now: Time) -> Request {
    let mut request = request;
    match &mut request {
        Request::Acquire { copy, sent, .. } => {
            *copy += 1;
            *sent = now;
        }
        Request::Leave { copy, .. } | Request::Release { copy, .. } => *copy += 1,
        Request::Give { copy, sent, .. } | Request::Extend { copy, sent, .. } => {
            *copy += 1;
            *sent = now;
        }
        Request::Renew { .. } => {}
    }
    request
}

/// Server time until which this copy of an acquire may be served (R2).
fn not_after(request: &Request, bounds: &Bounds) -> Time {
    match *request {
        Request::Acquire { sent, .. } | Request::Give { sent, .. } => bounds.not_after(sent),
        _ => 0,
    }
}

// What the owner may do next. `Protocol::actions` asks these.
impl Owner {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            next_seq: 1,
            attempts: bounds.attempts,
            reentries: bounds.reentries,
            attaches: bounds.attaches,
            extends: bounds.extends,
            retries: bounds.retries,
            stage: Stage::Idle,
            leaving: Vec::new(),
            unsent_leave: None,
        }
    }

    /// Lets it ask and retry as often as it likes.
    pub fn allow_all(&mut self) {
        (self.attempts, self.retries) = (u8::MAX, u8::MAX);
    }

    pub fn has_started(&self) -> bool {
        self.next_seq > 1
    }

    pub fn may_start(&self) -> bool {
        self.stage == Stage::Idle && self.attempts > 0
    }

    /// An outdated release is followed by a new one, which does not use up a retry.
    pub fn may_retry(&self) -> bool {
        match &self.stage {
            Stage::Acquiring { .. } => self.retries > 0,
            Stage::Holding(hold) => hold.pending.is_some_and(|pending| self.retries > 0 || hold.is_outdated(pending)),
            Stage::Idle | Stage::Waiting { .. } => false,
        }
    }

    pub fn may_retry_leave(&self) -> bool {
        self.retries > 0 && !self.leaving.is_empty()
    }

    pub fn may_give_up(&self) -> bool {
        match &self.stage {
            Stage::Acquiring { .. } | Stage::Waiting { .. } => true,
            Stage::Holding(hold) => {
                matches!(hold.pending, Some(Request::Acquire { .. } | Request::Give { .. } | Request::Extend { .. }))
            }
            Stage::Idle => false,
        }
    }

    /// The seq of an attempt that the server has queued, as far as the client knows.
    pub fn waiting_seq(&self) -> Option<Seq> {
        match self.stage {
            Stage::Waiting { seq, .. } => Some(seq),
            _ => None,
        }
    }

    /// Asks for a first hold and has no answer yet.
    pub fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Acquiring { .. })
    }

    /// While a guard lives and the deadline has not passed, one renewal at a time. A renewal that
    /// would change nothing is left out to keep the state space small.
    pub fn may_renew(&self, id: OwnerId, network: &Network, bounds: &Bounds, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        let ours = |request: &Request| matches!(*request, Request::Renew { token, .. } if token == hold.token);
        let has_use = hold.has_grant_lease || hold.deadline < now + bounds.lease;
        hold.guards > 0 && now < hold.deadline && !hold.is_detaching() && has_use && !network.has_request(id, ours)
    }

    pub fn may_reenter(&self, now: Time) -> bool {
        let may = |hold: &Hold| hold.guards > 0 && now < hold.deadline && hold.is_settled();
        matches!(&self.stage, Stage::Holding(hold) if self.reentries > 0 && may(hold))
    }

    /// In its turn.
    pub fn may_extend(&self, now: Time) -> bool {
        let may = |hold: &Hold| hold.guards > 0 && now < hold.deadline && hold.is_settled();
        self.extends > 0 && matches!(&self.stage, Stage::Holding(hold) if may(hold))
    }

    /// Not with nested guards.
    pub fn may_detach(&self, now: Time) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards == 1 && now < hold.deadline && hold.is_settled())
    }

    pub fn may_attach(&self) -> bool {
        self.stage == Stage::Idle && self.attaches > 0
    }

    pub fn may_unlock(&self) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards > 0 && !hold.is_detaching())
    }

    /// P8: a passed deadline is noticed at any later time. After the last guard the answer to the
    /// release decides, so the deadline is not looked at.
    pub fn may_notice_loss(&self, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        hold.deadline <= now
            && !hold.is_detaching()
            && (hold.guards > 0 || matches!(hold.pending, Some(Request::Acquire { .. })))
    }

    /// Only without `r11_seq_at_the_loss`.
    pub fn may_send_late_leave(&self) -> bool {
        self.unsent_leave.is_some()
    }

    /// Whether a leave without an answer will end requests up to this seq.
    pub fn is_leaving(&self, seq: Seq) -> bool {
        let ends = |leave: &Request| matches!(*leave, Request::Leave { seq: up_to, .. } if up_to >= seq);
        self.unsent_leave.is_some() || self.leaving.iter().any(ends)
    }

    /// Whether the client still waits for the reply to this request. As in the library only the last
    /// copy counts: the earlier ones timed out.
    pub fn awaits(&self, request: &Request) -> bool {
        match (*request, &self.stage) {
            (Request::Leave { .. }, _) => self.leaving.contains(request),
            (Request::Renew { .. }, Stage::Waiting { confirming, .. }) => *confirming == Some(*request),
            (Request::Renew { token, .. }, Stage::Holding(hold)) => token == hold.token,
            (_, Stage::Acquiring { request: ours, .. }) => ours == request,
            (_, Stage::Holding(hold)) => hold.pending == Some(*request),
            _ => false,
        }
    }

    /// Whether the client may still send a copy of an acquire with a seq up to this one.
    pub fn may_send_acquire(&self, up_to: Seq) -> bool {
        let unanswered = match &self.stage {
            Stage::Acquiring { request, .. } => Some(*request),
            Stage::Holding(hold) => hold.pending,
            Stage::Idle | Stage::Waiting { .. } => None,
        };
        matches!(unanswered, Some(Request::Acquire { seq, .. } | Request::Give { seq, .. }) if seq <= up_to)
    }

    /// Whether the client may act on the push, now or later.
    pub fn may_use(&self, push: &Push, rules: &Rules) -> bool {
        match (*push, &self.stage) {
            (Push::Grant { seq, .. }, Stage::Acquiring { seq: ours, .. } | Stage::Waiting { seq: ours, .. }) => {
                seq == *ours || !rules.r7_push_names_ticket
            }
            (Push::Revoked { token }, Stage::Holding(hold)) => token == hold.token,
            // A revocation may arrive before the hold that it ends has begun (A4). Where an attempt waits
            // it is a reason to doubt.
            (Push::Revoked { .. }, Stage::Acquiring { .. } | Stage::Waiting { .. }) => true,
            _ => false,
        }
    }

    /// Whether the client would act on the push now. Otherwise the push stays in flight: an attempt
    /// registers before it asks, so a push may arrive before the reply "queued" (R7).
    pub fn accepts(&self, push: &Push) -> bool {
        match push {
            Push::Grant { .. } => matches!(self.stage, Stage::Waiting { confirming: None, .. }),
            Push::Revoked { token } => match &self.stage {
                Stage::Waiting { .. } => true,
                Stage::Holding(hold) => hold.token == *token,
                _ => false,
            },
        }
    }
}

// src/engine/acquire.rs, poller.rs, cleanup.rs: one attempt.
impl Owner {
    fn take_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn start(&mut self, cx: &mut Context<'_>) {
        self.attempts -= 1;
        let give_up = if cx.bounds.patience == 0 { FOREVER } else { cx.now + cx.bounds.patience };
        self.ask(give_up, cx);
    }

    fn ask(&mut self, give_up: Time, cx: &mut Context<'_>) {
        let seq = self.take_seq();
        let request = cx.send(Request::Acquire { seq, copy: 0, sent: cx.now, give_up, nested: None });
        self.stage = Stage::Acquiring { seq, request, copies_until: 0 };
    }

    /// No answer in time: sends the same request again (R1).
    pub fn retry(&mut self, cx: &mut Context<'_>) {
        match &mut self.stage {
            Stage::Acquiring { request, copies_until, .. } => {
                *copies_until = (*copies_until).max(not_after(request, cx.bounds));
                *request = cx.send(next_copy(*request, cx.now));
            }
            Stage::Holding(hold) => {
                let Some(pending) = hold.pending else { return };
                if hold.is_outdated(pending) {
                    return self.release(cx);
                }
                hold.pending = Some(cx.send(next_copy(pending, cx.now)));
            }
            Stage::Idle | Stage::Waiting { .. } => {}
        }
        self.retries -= 1;
    }

    /// The connection was replaced: requests without an answer are sent again, and replies to the earlier copies
    /// cannot arrive any more. The copies can.
    pub fn reconnected(&mut self, cx: &mut Context<'_>) {
        let retries = self.retries;
        self.retries += 1;
        match &mut self.stage {
            Stage::Acquiring { .. } => self.retry(cx),
            Stage::Holding(hold) if hold.pending.is_some() => self.retry(cx),
            Stage::Waiting { confirming, .. } => *confirming = None,
            _ => {}
        }
        self.retries = retries;
        for leave in &mut self.leaving {
            *leave = cx.send(next_copy(*leave, cx.now));
        }
    }

    /// The caller's future is dropped. A wait leaves (R9); after a nested acquire a release sets the
    /// count back.
    pub fn give_up(&mut self, cx: &mut Context<'_>) {
        match self.stage {
            Stage::Acquiring { seq, request, copies_until } => {
                let copies_until = copies_until.max(not_after(&request, cx.bounds));
                self.leave(seq, seq, copies_until, cx);
                self.stage = Stage::Idle;
                // The answer that is not waited for may have said that the client was not known.
                if cx.others_wait && cx.rules.doubt_unanswered_enqueue {
                    cx.client.raise_doubt(cx.rules, cx.events);
                }
            }
            Stage::Waiting { seq, copies_until, .. } => {
                self.leave(seq, seq, copies_until, cx);
                self.stage = Stage::Idle;
            }
            // R16: the handle has it, or the leave ends it.
            Stage::Holding(ref hold) if hold.is_detaching() => self.lose(cx),
            // Its copies may still be served.
            Stage::Holding(ref mut hold) if hold.is_extending() => {
                hold.pending = None;
                self.settle(cx);
            }
            Stage::Holding(_) => self.release(cx),
            Stage::Idle => {}
        }
    }

    /// src/engine/handles.rs: asks for a lease from now on. As long as the server has that of a grant, for no less than
    /// the first renewal would set.
    pub fn extend(&mut self, wanted: Time, cx: &mut Context<'_>) {
        self.extends -= 1;
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let lease = if hold.has_grant_lease { wanted.max(cx.bounds.lease) } else { wanted };
            let (token, sent) = (hold.token, cx.now);
            hold.pending = Some(cx.send(Request::Extend { seq, token, lease, sent, copy: 0 }));
        }
    }

    fn on_extended(&mut self, lease: Time, sent: Time, answer: Renewed, cx: &mut Context<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        hold.pending = None;
        match answer {
            Renewed::Renewed { remaining } => {
                hold.extend(cx.deadline_of(lease, sent, remaining));
                self.settle(cx);
            }
            Renewed::Lost => {
                cx.events.add(Event::LossReported);
                self.lose(cx);
            }
        }
    }

    /// src/engine/handles.rs: makes the handle the owner of what this owner holds.
    pub fn detach(&mut self, handle: OwnerId, cx: &mut Context<'_>) {
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let (from, token, sent) = (cx.id, hold.token, cx.now);
            hold.pending = Some(cx.send(Request::Give { from, to: handle, seq, token, sent, copy: 0 }));
        }
    }

    /// Takes what a handle holds.
    pub fn attach(&mut self, handle: OwnerId, token: Token, cx: &mut Context<'_>) {
        self.attaches -= 1;
        let seq = self.take_seq();
        let request = cx.send(Request::Give { from: handle, to: cx.id, seq, token, sent: cx.now, copy: 0 });
        self.stage = Stage::Acquiring { seq, request, copies_until: 0 };
    }

    fn on_given(&mut self, token: Token, sent: Time, answer: Passed, cx: &mut Context<'_>) {
        match (&mut self.stage, answer) {
            (Stage::Acquiring { seq, copies_until, .. }, Passed::Given { remaining }) => {
                let (seq, copies_until) = (*seq, *copies_until);
                self.on_owned(seq, token, (sent, remaining), copies_until, cx);
            }
            (Stage::Acquiring { seq, copies_until, .. }, _) => {
                let (seq, copies_until) = (*seq, *copies_until);
                if copies_until > 0 {
                    self.leave(seq, seq, copies_until, cx);
                }
                self.stage = Stage::Idle;
            }
            (Stage::Holding(hold), Passed::Given { .. }) => {
                let Hold { attempt, copies_until, .. } = *hold;
                self.stage = Stage::Idle;
                // R3: a copy of the acquire would queue now.
                if copies_until > 0 && cx.rules.r16_detach_leaves {
                    let seq = self.take_seq();
                    self.leave(seq, attempt, copies_until, cx);
                }
            }
            (Stage::Holding(_), Passed::Lost) => self.lose(cx),
            (Stage::Holding(hold), Passed::Refused) => hold.pending = None,
            _ => {}
        }
    }

    /// R9: the background retries the leave until it is answered.
    fn leave(&mut self, seq: Seq, attempt: Seq, copies_until: Time, cx: &mut Context<'_>) {
        if cx.rules.r9_leave {
            self.leaving.push(cx.send(Request::Leave { seq, attempt, copies_until, copy: 0 }));
        }
    }

    /// The attempt has no place in the queue: leaves and asks anew, at the end of the queue.
    pub fn lose_place(&mut self, cx: &mut Context<'_>) {
        let Stage::Waiting { seq, copies_until, give_up, .. } = self.stage else { return };
        cx.events.add(Event::NoPlace);
        self.leave(seq, seq, copies_until, cx);
        self.ask(give_up, cx);
    }

    /// A poll names this owner as the holder, by an attempt that it does not know. Something that was late has
    /// taken the lock for it.
    fn leave_unknown(&mut self, attempt: Seq, cx: &mut Context<'_>) {
        cx.events.add(Event::UnknownHold);
        if cx.rules.leave_unknown_holds {
            self.leave(attempt, attempt, cx.bounds.not_after(cx.now), cx);
        }
    }

    pub fn retry_leave(&mut self, cx: &mut Context<'_>) {
        if let Some(leave) = self.leaving.first_mut() {
            *leave = cx.send(next_copy(*leave, cx.now));
            self.retries -= 1;
        }
    }

    fn begin_hold(&mut self, attempt: Seq, token: Token, deadline: Time, copies_until: Time, has_grant_lease: bool) {
        let (guards, on_server, pending) = (1, 1, None);
        self.stage = Stage::Holding(Hold {
            attempt,
            token,
            deadline,
            guards,
            on_server,
            copies_until,
            has_grant_lease,
            pending,
        });
    }
}

// src/engine/hold.rs, watchdog.rs, release.rs: the hold.
impl Hold {
    /// Whether the number of guards has changed since this release was sent.
    fn is_outdated(&self, pending: Request) -> bool {
        matches!(pending, Request::Release { holds, .. } if holds != self.guards)
    }

    /// Answers may arrive out of order, so the deadline never moves back.
    fn extend(&mut self, deadline: Time) {
        self.deadline = self.deadline.max(deadline);
        self.has_grant_lease = false;
    }
}

impl Owner {
    pub fn renew(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding(hold) = &self.stage {
            let only = if hold.has_grant_lease { hold.attempt } else { 0 };
            cx.send(Request::Renew { token: hold.token, only, sent: cx.now });
        }
    }

    /// A nested acquire names the token and the count it expects (R1).
    pub fn reenter(&mut self, cx: &mut Context<'_>) {
        self.reentries -= 1;
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let nested = Some(Nested { token: hold.token, holds: hold.guards });
            hold.pending = Some(cx.send(Request::Acquire { seq, copy: 0, sent: cx.now, give_up: FOREVER, nested }));
            hold.on_server = UNKNOWN;
        }
    }

    pub fn unlock(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding(hold) = &mut self.stage {
            hold.guards -= 1;
            // The last release does not wait for the turn of an extend, whose future may rest.
            if hold.pending.is_none() || hold.guards == 0 && hold.is_extending() {
                self.release(cx);
            }
        }
    }

    /// A guard may have been dropped while another request had the turn.
    fn settle(&mut self, cx: &mut Context<'_>) {
        if matches!(&self.stage, Stage::Holding(hold) if !hold.is_settled()) {
            self.release(cx);
        }
    }

    /// Sets the server's count to the number of guards, with a new seq (decision 2).
    fn release(&mut self, cx: &mut Context<'_>) {
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let Hold { guards: holds, token, attempt, copies_until, .. } = *hold;
            hold.pending = Some(cx.send(Request::Release { seq, holds, token, attempt, copies_until, copy: 0 }));
            hold.on_server = UNKNOWN;
        }
    }

    /// R11: ends the hold locally and leaves: the server may still have it, and a late copy of its
    /// requests could bring it back.
    pub fn lose(&mut self, cx: &mut Context<'_>) {
        let Stage::Holding(hold) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        if !cx.rules.r11_leave_after_loss {
            return;
        }
        let copies_until = hold.copies_until.max(cx.bounds.not_after(cx.now));
        if cx.rules.r11_seq_at_the_loss {
            let seq = self.take_seq();
            self.leave(seq, hold.attempt, copies_until, cx);
        } else {
            self.unsent_leave = Some((hold.attempt, copies_until));
        }
    }

    /// Only without `r11_seq_at_the_loss`: the owner may have started again by now.
    pub fn send_late_leave(&mut self, cx: &mut Context<'_>) {
        if let Some((attempt, copies_until)) = self.unsent_leave.take() {
            let seq = self.take_seq();
            self.leave(seq, attempt, copies_until, cx);
        }
    }
}

// Replies and pushes.
impl Owner {
    /// Handles the reply to a request that the client `awaits`.
    pub fn on_reply(&mut self, request: Request, answer: Answer, cx: &mut Context<'_>) {
        match (request, answer) {
            (Request::Acquire { sent, nested: None, .. }, Answer::Acquired(answer)) => {
                self.on_acquired(sent, answer, cx)
            }
            (Request::Acquire { sent, .. }, Answer::Acquired(answer)) => self.on_reentered(sent, answer, cx),
            (Request::Extend { lease, sent, .. }, Answer::Renewed(answer)) => self.on_extended(lease, sent, answer, cx),
            (Request::Renew { token, sent, .. }, Answer::Renewed(answer)) => self.on_renewed(token, sent, answer, cx),
            (Request::Release { copy, .. }, Answer::Released(answer)) => self.on_released(copy > 0, answer, cx),
            (Request::Give { token, sent, .. }, Answer::Given(answer)) => self.on_given(token, sent, answer, cx),
            (Request::Leave { .. }, _) => self.leaving.retain(|leave| *leave != request),
            _ => unreachable!("the answer does not match its request"),
        }
    }

    fn on_acquired(&mut self, sent: Time, answer: Acquired, cx: &mut Context<'_>) {
        let Stage::Acquiring { seq, request, copies_until } = self.stage else { return };
        match answer {
            Acquired::Held { token, remaining, .. } => self.on_owned(seq, token, (sent, remaining), copies_until, cx),
            Acquired::Queued { floor, known } => {
                let Request::Acquire { give_up, .. } = request else { return };
                let was_asked_again = copies_until > 0 && cx.rules.doubt_unanswered_enqueue;
                if cx.others_wait && (was_asked_again || !known && cx.rules.doubt_enqueue) {
                    cx.client.raise_doubt(cx.rules, cx.events);
                }
                self.stage = Stage::Waiting { seq, queued_at: sent, floor, copies_until, give_up, confirming: None };
            }
            // This copy left nothing on the server, but an earlier one may still be served (R3).
            Acquired::Busy | Acquired::Lost | Acquired::Refused => {
                if copies_until > 0 {
                    self.leave(seq, seq, copies_until, cx);
                }
                self.stage = Stage::Idle;
            }
        }
    }

    /// The server says that this attempt owns the lock. Begins the hold, or leaves if its time is over
    /// already. A grant longer than the wanted lease is shortened by the first renewal.
    fn on_owned(
        &mut self,
        seq: Seq,
        token: Token,
        (sent, remaining): (Time, Time),
        copies_until: Time,
        cx: &mut Context<'_>,
    ) {
        let deadline = cx.deadline(sent, remaining);
        if cx.now < deadline {
            self.begin_hold(seq, token, deadline, copies_until, remaining > cx.bounds.lease);
        } else {
            self.leave(seq, seq, copies_until, cx);
            self.stage = Stage::Idle;
        }
    }

    /// A poll that was sent at `sent` names this owner as the holder.
    pub fn on_named(&mut self, sent: Time, holder: Holder, cx: &mut Context<'_>) {
        let Holder { attempt, token, remaining, .. } = holder;
        match self.stage {
            Stage::Waiting { seq, copies_until, .. } if seq == attempt => {
                cx.events.add(Event::HeldByPoll);
                let deadline = cx.deadline(sent, remaining);
                if cx.now < deadline {
                    self.begin_hold(seq, token, deadline, copies_until, true);
                } else {
                    self.lose_place(cx);
                }
            }
            Stage::Acquiring { seq, .. } if seq == attempt => {}
            Stage::Holding(_) => {}
            _ if self.is_leaving(attempt) => {}
            _ => self.leave_unknown(attempt, cx),
        }
    }

    /// R7: the last answer from which a grant may be trusted, as its send time and floor: "queued", or that to
    /// a later poll of the name. A token above that floor was given after that answer, whichever ticket it
    /// went to.
    pub fn trusted_answer(&self, client: &Client, rules: &Rules) -> Option<(Time, Token)> {
        let Stage::Waiting { queued_at, floor, .. } = self.stage else { return None };
        let polled = client.answered.filter(|(sent, _)| rules.r7_trust_from_any_poll && *sent >= queued_at);
        Some(match polled {
            Some((sent, _)) if !rules.r7_floor_of_that_poll => (sent, floor),
            Some(answer) => answer,
            None => (queued_at, floor),
        })
    }

    /// R7: trusts, confirms or ignores a grant.
    pub fn on_grant(&mut self, seq: Seq, token: Token, lasts: Time, cx: &mut Context<'_>) {
        let Stage::Waiting { seq: ours, queued_at, copies_until, .. } = self.stage else { return };
        let Some((asked, floor)) = self.trusted_answer(cx.client, cx.rules) else { return };
        debug_assert!(seq == ours || !cx.rules.r7_push_names_ticket);
        if cx.rules.r7_floor && token <= floor {
            cx.events.add(Event::FloorRefused);
            // The grant is older than that answer, so it is over, and so is the place.
            self.doubt_push(cx);
            return;
        }
        // The token is above the floor, so the grant was made after `asked` and lasts at least until
        // `asked + lasts`.
        let until = if cx.rules.r7_trust_from_poll { asked + lasts } else { cx.now + lasts };
        if cx.bounds.trust && cx.now < until {
            cx.events.add(Event::HeldByTrust);
            if asked > queued_at {
                cx.events.add(Event::TrustedByName);
            }
            self.begin_hold(ours, token, until.min(cx.now + cx.bounds.lease), copies_until, true);
        } else if cx.rules.r7_confirm {
            let request = cx.send(Request::Renew { token, only: ours, sent: cx.now });
            if let Stage::Waiting { confirming, .. } = &mut self.stage {
                *confirming = Some(request);
            }
        } else {
            self.begin_hold(ours, token, cx.now + lasts, copies_until, true);
        }
    }

    /// A push that could not be trusted, or whose confirmation found nothing or was not answered.
    fn doubt_push(&self, cx: &mut Context<'_>) {
        if cx.rules.doubt_push {
            cx.client.raise_doubt(cx.rules, cx.events);
        }
    }

    /// At the next poll: a confirmation was lost, so it is not waited for.
    pub fn notice_lost_confirmation(&mut self, cx: &mut Context<'_>) {
        let Stage::Waiting { confirming: Some(request), .. } = self.stage else { return };
        if cx.network.has_request(cx.id, |other| *other == request) {
            return;
        }
        if let Stage::Waiting { confirming, .. } = &mut self.stage {
            *confirming = None;
        }
        self.doubt_push(cx);
    }

    /// The hold under this token was ended by force.
    pub fn on_revoked(&mut self, cx: &mut Context<'_>) {
        match self.stage {
            Stage::Waiting { .. } => {
                if cx.rules.doubt_revoked {
                    cx.client.raise_doubt(cx.rules, cx.events);
                }
            }
            _ => self.lose(cx),
        }
    }

    fn on_renewed(&mut self, token: Token, sent: Time, answer: Renewed, cx: &mut Context<'_>) {
        match (&mut self.stage, answer) {
            (Stage::Waiting { seq, copies_until, confirming, .. }, Renewed::Renewed { remaining }) => {
                let (seq, copies_until, deadline) = (*seq, *copies_until, cx.deadline(sent, remaining));
                *confirming = None;
                // If it came too late, the next poll decides.
                if cx.now < deadline {
                    cx.events.add(Event::HeldByConfirm);
                    self.begin_hold(seq, token, deadline, copies_until, false);
                }
            }
            (Stage::Waiting { confirming, .. }, Renewed::Lost) => {
                *confirming = None;
                self.doubt_push(cx);
            }
            (Stage::Holding(hold), Renewed::Renewed { remaining }) => hold.extend(cx.deadline(sent, remaining)),
            // After our own release to 0 this is not a loss.
            (Stage::Holding(hold), Renewed::Lost) if hold.guards > 0 && !hold.is_detaching() => {
                cx.events.add(Event::LossReported);
                self.lose(cx);
            }
            _ => {}
        }
    }

    fn on_reentered(&mut self, sent: Time, answer: Acquired, cx: &mut Context<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        hold.pending = None;
        match answer {
            Acquired::Held { holds, remaining, .. } => {
                hold.extend(cx.deadline(sent, remaining));
                if hold.deadline <= cx.now {
                    return self.lose(cx);
                }
                hold.guards += 1;
                hold.on_server = holds;
                cx.events.add(Event::Nested);
                // A guard may have been dropped meanwhile.
                if !hold.is_settled() {
                    self.release(cx);
                }
            }
            _ => self.lose(cx),
        }
    }

    fn on_released(&mut self, is_retry: bool, answer: Released, cx: &mut Context<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        match answer {
            Released::Freed { token } if token == hold.token => self.stage = Stage::Idle,
            Released::Held { holds } => {
                hold.pending = None;
                hold.on_server = holds;
                if !hold.is_settled() {
                    self.release(cx);
                }
            }
            // Nothing there before our deadline: an earlier copy freed the lock (decision 11, M2).
            Released::Gone if is_retry && cx.now < hold.deadline => {
                cx.events.add(Event::RetryAnswered);
                self.stage = Stage::Idle;
            }
            // Freed under another token, or nothing there: our hold was lost before.
            Released::Freed { .. } | Released::Gone | Released::Lost => self.lose(cx),
        }
    }
}
