//! A client with one owner: its attempt, its hold, and the leaves that its background task retries.
//!
//! A paused process needs no step of its own: it is a client that does nothing while the clock
//! ticks.

use crate::network::{Answer, ClientId, Nested, Network, Push, Request, Seq, Time, Token};
use crate::protocol::{Bounds, Event, EventSet};
use crate::rules::Rules;
use crate::server::{Acquired, Polled, Released, Renewed};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next_seq: Seq,
    /// Attempts, nested acquires and retries that the bounds still allow.
    attempts: u8,
    reentries: u8,
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
    /// In the queue, as far as the client knows. `queued_at` is the send time of the last request
    /// answered "queued", and `floor` the token that answer named (R7).
    Waiting {
        seq: Seq,
        queued_at: Time,
        floor: Token,
        copies_until: Time,
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
    pub fn is_valid(&self, now: Time) -> bool {
        self.guards > 0 && now < self.deadline
    }

    /// The server is known to count as many holds as there are guards.
    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && self.on_server == self.guards
    }
}

/// What a client can use during one step.
pub struct Context<'a> {
    pub id: ClientId,
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
        let from = if self.rules.r5_deadline_from_request { sent } else { self.now };
        from + if self.rules.r5_no_more_than_wanted { remaining.min(self.bounds.lease) } else { remaining }
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
        Request::Poll { .. } | Request::Renew { .. } => {}
    }
    request
}

/// Server time until which this copy of an acquire may be served (R2).
fn not_after(request: &Request, bounds: &Bounds) -> Time {
    match *request {
        Request::Acquire { sent, .. } => bounds.not_after(sent),
        _ => 0,
    }
}

// What the client may do next. `Protocol::actions` asks these.
impl Client {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            next_seq: 1,
            attempts: bounds.attempts,
            reentries: bounds.reentries,
            retries: bounds.retries,
            stage: Stage::Idle,
            leaving: Vec::new(),
            unsent_leave: None,
        }
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
            Stage::Holding(hold) => matches!(hold.pending, Some(Request::Acquire { .. })),
            Stage::Idle => false,
        }
    }

    /// R8, one poll at a time.
    pub fn may_poll(&self, id: ClientId, network: &Network, rules: &Rules) -> bool {
        let Stage::Waiting { seq, .. } = self.stage else { return false };
        let ours = |request: &Request| matches!(*request, Request::Poll { seq: polled, .. } if polled == seq);
        rules.r8_poll && !network.has_request(id, ours)
    }

    /// While a guard lives and the deadline has not passed, one renewal at a time. A renewal that
    /// would change nothing is left out to keep the state space small.
    pub fn may_renew(&self, id: ClientId, network: &Network, bounds: &Bounds, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        let ours = |request: &Request| matches!(*request, Request::Renew { token, .. } if token == hold.token);
        let has_use = hold.has_grant_lease || hold.deadline < now + bounds.lease;
        hold.is_valid(now) && has_use && !network.has_request(id, ours)
    }

    pub fn may_reenter(&self, now: Time) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if self.reentries > 0 && hold.is_valid(now) && hold.is_settled())
    }

    pub fn may_unlock(&self) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards > 0)
    }

    /// P8: a passed deadline is noticed at any later time. After the last guard the answer to the
    /// release decides, so the deadline is not looked at.
    pub fn may_notice_loss(&self, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        hold.deadline <= now && (hold.guards > 0 || matches!(hold.pending, Some(Request::Acquire { .. })))
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
            (Request::Poll { seq, .. }, Stage::Waiting { seq: ours, .. }) => seq == *ours,
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
        matches!(unanswered, Some(Request::Acquire { seq, .. }) if seq <= up_to)
    }

    /// Whether the client may act on the push, now or later.
    pub fn may_use(&self, push: &Push, rules: &Rules) -> bool {
        match (*push, &self.stage) {
            (Push::Grant { seq, .. }, Stage::Acquiring { seq: ours, .. } | Stage::Waiting { seq: ours, .. }) => {
                seq == *ours || !rules.r7_push_names_ticket
            }
            (Push::Revoked { token }, Stage::Holding(hold)) => token == hold.token,
            // A revocation may arrive before the hold that it ends has begun (A4).
            (Push::Revoked { .. }, Stage::Acquiring { .. } | Stage::Waiting { .. }) => true,
            _ => false,
        }
    }

    /// Whether the client would act on the push now. Otherwise the push stays in flight: an attempt
    /// registers before it asks, so a push may arrive before the reply "queued" (R7).
    pub fn accepts(&self, push: &Push) -> bool {
        match push {
            Push::Grant { .. } => matches!(self.stage, Stage::Waiting { confirming: None, .. }),
            Push::Revoked { token } => matches!(&self.stage, Stage::Holding(hold) if hold.token == *token),
        }
    }
}

// src/engine/acquire.rs, poller.rs, cleanup.rs: one attempt.
impl Client {
    fn take_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn start(&mut self, cx: &mut Context<'_>) {
        self.attempts -= 1;
        let seq = self.take_seq();
        let request = cx.send(Request::Acquire { seq, copy: 0, sent: cx.now, nested: None });
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

    pub fn poll(&mut self, cx: &mut Context<'_>) {
        if let Stage::Waiting { seq, .. } = self.stage {
            cx.send(Request::Poll { seq, sent: cx.now });
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
            }
            Stage::Waiting { seq, copies_until, .. } => {
                self.leave(seq, seq, copies_until, cx);
                self.stage = Stage::Idle;
            }
            Stage::Holding(_) => self.release(cx),
            Stage::Idle => {}
        }
    }

    /// R9: the background retries the leave until it is answered.
    fn leave(&mut self, seq: Seq, attempt: Seq, copies_until: Time, cx: &mut Context<'_>) {
        if cx.rules.r9_leave {
            self.leaving.push(cx.send(Request::Leave { seq, attempt, copies_until, copy: 0 }));
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

impl Client {
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
            hold.pending = Some(cx.send(Request::Acquire { seq, copy: 0, sent: cx.now, nested }));
            hold.on_server = UNKNOWN;
        }
    }

    pub fn unlock(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding(hold) = &mut self.stage {
            hold.guards -= 1;
            if hold.pending.is_none() {
                self.release(cx);
            }
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
impl Client {
    /// Handles the reply to a request that the client `awaits`.
    pub fn on_reply(&mut self, request: Request, answer: Answer, cx: &mut Context<'_>) {
        match (request, answer) {
            (Request::Acquire { sent, nested: None, .. }, Answer::Acquired(answer)) => {
                self.on_acquired(sent, answer, cx)
            }
            (Request::Acquire { sent, .. }, Answer::Acquired(answer)) => self.on_reentered(sent, answer, cx),
            (Request::Poll { sent, .. }, Answer::Polled(answer)) => self.on_polled(sent, answer, cx),
            (Request::Renew { token, sent, .. }, Answer::Renewed(answer)) => self.on_renewed(token, sent, answer, cx),
            (Request::Release { copy, .. }, Answer::Released(answer)) => self.on_released(copy > 0, answer, cx),
            (Request::Leave { .. }, _) => self.leaving.retain(|leave| *leave != request),
            _ => unreachable!("the answer does not match its request"),
        }
    }

    fn on_acquired(&mut self, sent: Time, answer: Acquired, cx: &mut Context<'_>) {
        let Stage::Acquiring { seq, copies_until, .. } = self.stage else { return };
        match answer {
            Acquired::Held { token, remaining, .. } => self.on_owned(seq, token, (sent, remaining), copies_until, cx),
            Acquired::Queued { floor } => {
                self.stage = Stage::Waiting { seq, queued_at: sent, floor, copies_until, confirming: None };
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

    fn on_polled(&mut self, sent: Time, answer: Polled, cx: &mut Context<'_>) {
        let Stage::Waiting { seq, queued_at, copies_until, confirming, .. } = self.stage else { return };
        match answer {
            Polled::Granted { token, remaining } => {
                cx.events.add(Event::HeldByPoll);
                self.on_owned(seq, token, (sent, remaining), copies_until, cx);
            }
            // Answers may arrive out of order; only that to the later request counts.
            Polled::Queued { floor } if queued_at <= sent => {
                self.stage = Stage::Waiting { seq, queued_at: sent, floor, copies_until, confirming };
            }
            Polled::Queued { .. } => {}
            Polled::Unknown => {
                self.leave(seq, seq, copies_until, cx);
                self.stage = Stage::Idle;
            }
        }
    }

    /// R7: trusts, confirms or ignores a grant.
    pub fn on_grant(&mut self, seq: Seq, token: Token, lasts: Time, cx: &mut Context<'_>) {
        let Stage::Waiting { seq: ours, queued_at, floor, copies_until, .. } = self.stage else { return };
        debug_assert!(seq == ours || !cx.rules.r7_push_names_ticket);
        if cx.rules.r7_floor && token <= floor {
            cx.events.add(Event::FloorRefused);
            return;
        }
        // The token is above the floor, so the grant was made after `queued_at` and lasts at least until
        // `queued_at + lasts`.
        let until = if cx.rules.r7_trust_from_poll { queued_at + lasts } else { cx.now + lasts };
        if cx.bounds.trust && cx.now < until {
            cx.events.add(Event::HeldByTrust);
            self.begin_hold(ours, token, until.min(cx.now + cx.bounds.lease), copies_until, true);
        } else if cx.rules.r7_confirm {
            let confirming = Some(cx.send(Request::Renew { token, only: ours, sent: cx.now }));
            self.stage = Stage::Waiting { seq: ours, queued_at, floor, copies_until, confirming };
        } else {
            self.begin_hold(ours, token, cx.now + lasts, copies_until, true);
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
            (Stage::Waiting { confirming, .. }, Renewed::Lost) => *confirming = None,
            (Stage::Holding(hold), Renewed::Renewed { remaining }) => hold.extend(cx.deadline(sent, remaining)),
            // After our own release to 0 this is not a loss.
            (Stage::Holding(hold), Renewed::Lost) if hold.guards > 0 => {
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
