//! An owner in a client: its attempt, its hold, and the leaves that the background task retries for it. As in the lock's model,
//! but a hold has a weight, which may get smaller.

use super::bounds::Bounds;
use super::events::{Event, EventSet};
use super::network::{
    Acquired, Answer, Nested, Network, OwnerId, Passed, Push, Released, Renewed, Request, Seq, Time, Token, Weight,
};
use super::poller::Client;
use super::rules::Rules;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub next_seq: Seq,
    attempts: u8,
    reentries: u8,
    shrinks: u8,
    attaches: u8,
    retries: u8,
    pub stage: Stage,
    /// R9: leaves without an answer.
    pub leaving: Vec<Request>,
    /// Only without `r11_seq_at_the_loss`.
    pub unsent_leave: Option<(Seq, Time)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Stage {
    Idle,
    /// `copies_until`: server time until which an earlier copy may still be served.
    Acquiring {
        seq: Seq,
        request: Request,
        copies_until: Time,
    },
    /// `queued_at`: the send time of the request that was answered "queued", with the floor of that answer (R7).
    Waiting {
        seq: Seq,
        queued_at: Time,
        floor: Token,
        copies_until: Time,
        confirming: Option<Request>,
    },
    Holding(Hold),
}

/// A hold as the client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    pub attempt: Seq,
    pub token: Token,
    /// The local deadline (R5).
    pub deadline: Time,
    pub guards: u8,
    /// What the caller relies on.
    pub weight: Weight,
    /// What the server has; nothing while a request that sets it is `pending`.
    pub on_server: Option<(u8, Weight)>,
    pub copies_until: Time,
    /// The server still has the lease of a grant: the first renewal sets the wanted one, even if that is shorter.
    has_grant_lease: bool,
    /// Only without `shrinks_locally_first`.
    shrinks_to: Option<Weight>,
    pub pending: Option<Request>,
}

impl Hold {
    pub fn is_valid(&self, now: Time, rules: &Rules) -> bool {
        let is_given_away = self.is_detaching() && rules.r16_guard_ends_first;
        self.guards > 0 && now < self.deadline && !is_given_away
    }

    pub fn is_detaching(&self) -> bool {
        matches!(self.pending, Some(Request::Give { .. }))
    }

    /// The same for what the owner may ask for, whatever rule is dropped.
    fn is_in_use(&self, now: Time) -> bool {
        self.guards > 0 && now < self.deadline && !self.is_detaching()
    }

    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && self.on_server == Some((self.guards, self.weight))
    }

    /// What has changed since this release was sent.
    fn is_outdated(&self, pending: Request) -> bool {
        let wanted = (self.guards, self.shrinks_to.unwrap_or(self.weight));
        matches!(pending, Request::Release { holds, weight, .. } if (holds, weight) != wanted)
    }

    /// Answers may arrive out of order, so the deadline never moves back.
    fn extend(&mut self, deadline: Time) {
        self.deadline = self.deadline.max(deadline);
        self.has_grant_lease = false;
    }
}

/// What a client can use during one step.
pub struct Context<'a> {
    pub id: OwnerId,
    pub client: &'a mut Client,
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

    fn lease(&self) -> Time {
        self.bounds.lease(self.id)
    }

    /// R5
    fn deadline(&self, sent: Time, remaining: Time) -> Time {
        let from = if self.rules.r5_deadline_from_request { sent } else { self.now };
        from + if self.rules.r5_no_more_than_wanted { remaining.min(self.lease()) } else { remaining }
    }
}

/// That of an acquire has a new `not_after` (R2).
fn next_copy(request: Request, now: Time) -> Request {
    let mut request = request;
    match &mut request {
        Request::Acquire { copy, sent, .. } | Request::Give { copy, sent, .. } => (*copy, *sent) = (*copy + 1, now),
        Request::Leave { copy, .. } | Request::Release { copy, .. } => *copy += 1,
        Request::Renew { .. } => {}
    }
    request
}

fn not_after(request: &Request, bounds: &Bounds) -> Time {
    match *request {
        Request::Acquire { sent, .. } | Request::Give { sent, .. } => bounds.not_after(sent),
        _ => 0,
    }
}

// What the owner may do next.
impl Owner {
    pub fn new(bounds: &Bounds) -> Self {
        let Bounds { attempts, reentries, shrinks, attaches, retries, .. } = *bounds;
        let (stage, leaving, unsent_leave) = (Stage::Idle, Vec::new(), None);
        Self { next_seq: 1, attempts, reentries, shrinks, attaches, retries, stage, leaving, unsent_leave }
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
            Stage::Holding(hold) => matches!(hold.pending, Some(Request::Acquire { .. } | Request::Give { .. })),
            Stage::Idle => false,
        }
    }

    pub fn waiting_seq(&self) -> Option<Seq> {
        match self.stage {
            Stage::Waiting { seq, .. } => Some(seq),
            _ => None,
        }
    }

    /// A renewal that would change nothing is left out.
    pub fn may_renew(&self, id: OwnerId, network: &Network, bounds: &Bounds, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        let ours = |request: &Request| matches!(*request, Request::Renew { token, .. } if token == hold.token);
        let has_use = hold.has_grant_lease || hold.deadline < now + bounds.lease(id);
        hold.is_in_use(now) && has_use && !network.carries(id, ours)
    }

    pub fn may_reenter(&self, now: Time) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if self.reentries > 0 && hold.is_in_use(now) && hold.is_settled())
    }

    pub fn may_shrink(&self, now: Time) -> bool {
        let may = |hold: &Hold| hold.is_in_use(now) && hold.is_settled() && hold.weight > 1;
        matches!(&self.stage, Stage::Holding(hold) if self.shrinks > 0 && may(hold))
    }

    /// Not with nested guards.
    pub fn may_detach(&self, now: Time) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards == 1 && now < hold.deadline && hold.is_settled())
    }

    pub fn may_attach(&self) -> bool {
        self.stage == Stage::Idle && self.attaches > 0
    }

    pub fn may_release(&self) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards > 0 && !hold.is_detaching())
    }

    /// P8: a passed deadline is noticed at any later time.
    pub fn may_notice_loss(&self, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        hold.deadline <= now
            && !hold.is_detaching()
            && (hold.guards > 0 || matches!(hold.pending, Some(Request::Acquire { .. })))
    }

    pub fn may_send_late_leave(&self) -> bool {
        self.unsent_leave.is_some()
    }

    /// Whether a leave without an answer will end requests up to this seq.
    pub fn is_leaving(&self, seq: Seq) -> bool {
        let ends = |leave: &Request| matches!(*leave, Request::Leave { seq: up_to, .. } if up_to >= seq);
        self.unsent_leave.is_some() || self.leaving.iter().any(ends)
    }

    /// Whether the client still waits for the reply to this request: only to the last copy.
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
            // It may arrive before the hold that it ends has begun (A4).
            (Push::Revoked { .. }, Stage::Acquiring { .. } | Stage::Waiting { .. }) => true,
            _ => false,
        }
    }

    /// Whether the client would act on the push now. Otherwise the push stays in flight.
    pub fn accepts(&self, push: &Push) -> bool {
        match push {
            Push::Grant { .. } => matches!(self.stage, Stage::Waiting { confirming: None, .. }),
            Push::Revoked { token } => matches!(&self.stage, Stage::Holding(hold) if hold.token == *token),
        }
    }
}

// One attempt.
impl Owner {
    fn take_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn start(&mut self, cx: &mut Context<'_>) {
        self.attempts -= 1;
        self.ask(cx);
    }

    fn ask(&mut self, cx: &mut Context<'_>) {
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

    /// The caller's future is dropped.
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
            // R16: the handle has it, or the leave ends it.
            Stage::Holding(ref hold) if hold.is_detaching() => self.lose(cx),
            Stage::Holding(_) => self.release(cx),
            Stage::Idle => {}
        }
    }

    /// Makes the handle the owner of what this owner holds.
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
            (Stage::Acquiring { seq: attempt, copies_until, .. }, Passed::Given { remaining, weight }) => {
                let (attempt, copies_until, deadline) = (*attempt, *copies_until, cx.deadline(sent, remaining));
                if cx.now < deadline {
                    let has_grant_lease = remaining > cx.lease();
                    self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease }, cx);
                    if let Stage::Holding(hold) = &mut self.stage {
                        (hold.weight, hold.on_server) = (weight, Some((1, weight)));
                    }
                } else {
                    self.leave(attempt, attempt, copies_until, cx);
                    self.stage = Stage::Idle;
                }
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
                // R3: a copy of the acquire would come in anew.
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

    /// The attempt has no place: leaves, and asks anew at the end of the queue.
    pub fn lose_place(&mut self, cx: &mut Context<'_>) {
        let Stage::Waiting { seq, copies_until, .. } = self.stage else { return };
        cx.events.add(Event::NoPlace);
        self.leave(seq, seq, copies_until, cx);
        self.ask(cx);
    }

    pub fn retry_leave(&mut self, cx: &mut Context<'_>) {
        if let Some(leave) = self.leaving.first_mut() {
            *leave = cx.send(next_copy(*leave, cx.now));
            self.retries -= 1;
        }
    }

    fn begin_hold(&mut self, begun: Begun, cx: &Context<'_>) {
        let Begun { attempt, token, deadline, copies_until, has_grant_lease } = begun;
        let weight = cx.bounds.weight(cx.id);
        self.stage = Stage::Holding(Hold {
            attempt,
            token,
            deadline,
            guards: 1,
            weight,
            on_server: Some((1, weight)),
            copies_until,
            has_grant_lease,
            shrinks_to: None,
            pending: None,
        });
    }
}

struct Begun {
    attempt: Seq,
    token: Token,
    deadline: Time,
    copies_until: Time,
    has_grant_lease: bool,
}

// The hold.
impl Owner {
    pub fn renew(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding(hold) = &self.stage {
            let only = if hold.has_grant_lease { hold.attempt } else { 0 };
            cx.send(Request::Renew { token: hold.token, only, sent: cx.now });
        }
    }

    /// A nested read, also past a waiting writer. It names the token and the count that it expects (R1).
    pub fn reenter(&mut self, cx: &mut Context<'_>) {
        self.reentries -= 1;
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let nested = Some(Nested { token: hold.token, holds: hold.guards });
            hold.pending = Some(cx.send(Request::Acquire { seq, copy: 0, sent: cx.now, nested }));
            hold.on_server = None;
        }
    }

    /// `shrink_to(1)`, or `downgrade`: what the caller relies on gets smaller before the request is sent.
    pub fn shrink(&mut self, cx: &mut Context<'_>) {
        self.shrinks -= 1;
        if let Stage::Holding(hold) = &mut self.stage {
            if cx.rules.shrinks_locally_first {
                hold.weight = 1;
            } else {
                hold.shrinks_to = Some(1);
            }
        }
        self.release(cx);
    }

    pub fn release_guard(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding(hold) = &mut self.stage {
            hold.guards -= 1;
            if hold.pending.is_none() {
                self.release(cx);
            }
        }
    }

    /// Sets the server's count and weight, with a new seq.
    fn release(&mut self, cx: &mut Context<'_>) {
        let seq = self.take_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let Hold { guards: holds, token, attempt, copies_until, .. } = *hold;
            let weight = hold.shrinks_to.unwrap_or(hold.weight);
            hold.pending =
                Some(cx.send(Request::Release { seq, holds, weight, token, attempt, copies_until, copy: 0 }));
            hold.on_server = None;
        }
    }

    /// R11: ends the hold locally and leaves.
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

    /// Only without `r11_seq_at_the_loss`.
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
            (Request::Renew { token, sent, .. }, Answer::Renewed(answer)) => self.on_renewed(token, sent, answer, cx),
            (Request::Release { copy, .. }, Answer::Released(answer)) => self.on_released(copy > 0, answer, cx),
            (Request::Give { token, sent, .. }, Answer::Given(answer)) => self.on_given(token, sent, answer, cx),
            (Request::Leave { .. }, _) => self.leaving.retain(|leave| *leave != request),
            _ => unreachable!("the answer does not match its request"),
        }
    }

    fn on_acquired(&mut self, sent: Time, answer: Acquired, cx: &mut Context<'_>) {
        let Stage::Acquiring { seq: attempt, copies_until, .. } = self.stage else { return };
        match answer {
            Acquired::Held { token, remaining, .. } => {
                let deadline = cx.deadline(sent, remaining);
                if cx.now < deadline {
                    let has_grant_lease = remaining > cx.lease();
                    self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease }, cx);
                } else {
                    self.leave(attempt, attempt, copies_until, cx);
                    self.stage = Stage::Idle;
                }
            }
            Acquired::Queued { floor } => {
                // It counts for all that wait here.
                cx.client.note_answer(sent, floor);
                self.stage = Stage::Waiting { seq: attempt, queued_at: sent, floor, copies_until, confirming: None };
            }
            // This copy left nothing on the server, but an earlier one may still be served (R3).
            Acquired::Busy | Acquired::Lost | Acquired::Refused => {
                if copies_until > 0 {
                    self.leave(attempt, attempt, copies_until, cx);
                }
                self.stage = Stage::Idle;
            }
        }
    }

    /// A poll that was sent at `sent` says that this ticket was granted.
    pub fn on_named(&mut self, sent: Time, token: Token, remaining: Time, cx: &mut Context<'_>) {
        let Stage::Waiting { seq: attempt, copies_until, .. } = self.stage else { return };
        let deadline = cx.deadline(sent, remaining);
        if cx.now < deadline {
            cx.events.add(Event::HeldByPoll);
            self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease: true }, cx);
        } else {
            self.lose_place(cx);
        }
    }

    /// R7: trusts, confirms or ignores a grant.
    pub fn on_grant(&mut self, token: Token, lasts: Time, cx: &mut Context<'_>) {
        let Stage::Waiting { seq: attempt, queued_at, floor, copies_until, .. } = self.stage else { return };
        let polled = cx.client.answered.filter(|(sent, _)| *sent >= queued_at);
        let (asked, floor) = polled.unwrap_or((queued_at, floor));
        if cx.rules.r7_floor && token <= floor {
            cx.events.add(Event::FloorRefused);
            return;
        }
        let until = if cx.rules.r7_trust_from_poll { asked + lasts } else { cx.now + lasts };
        if cx.bounds.trust && cx.now < until {
            cx.events.add(Event::HeldByTrust);
            let deadline = until.min(cx.now + cx.lease());
            self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease: true }, cx);
        } else if cx.rules.r7_confirm {
            let request = cx.send(Request::Renew { token, only: attempt, sent: cx.now });
            if let Stage::Waiting { confirming, .. } = &mut self.stage {
                *confirming = Some(request);
            }
        } else {
            let deadline = cx.now + lasts;
            self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease: true }, cx);
        }
    }

    /// At the next poll: a confirmation was lost, so it is not waited for.
    pub fn notice_lost_confirmation(&mut self, cx: &mut Context<'_>) {
        if let Stage::Waiting { confirming, .. } = &mut self.stage
            && let Some(request) = *confirming
            && !cx.network.carries(cx.id, |other| *other == request)
        {
            *confirming = None;
        }
    }

    fn on_renewed(&mut self, token: Token, sent: Time, answer: Renewed, cx: &mut Context<'_>) {
        match (&mut self.stage, answer) {
            (Stage::Waiting { seq, copies_until, confirming, .. }, Renewed::Renewed { remaining }) => {
                let (attempt, copies_until, deadline) = (*seq, *copies_until, cx.deadline(sent, remaining));
                *confirming = None;
                // If it came too late, the next poll decides.
                if cx.now < deadline {
                    cx.events.add(Event::HeldByConfirm);
                    self.begin_hold(Begun { attempt, token, deadline, copies_until, has_grant_lease: false }, cx);
                }
            }
            (Stage::Waiting { confirming, .. }, Renewed::Lost) => *confirming = None,
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
        let Acquired::Held { holds, remaining, .. } = answer else { return self.lose(cx) };
        hold.extend(cx.deadline(sent, remaining));
        if hold.deadline <= cx.now {
            return self.lose(cx);
        }
        hold.guards += 1;
        hold.on_server = Some((holds, hold.weight));
        // A guard may have been dropped meanwhile.
        if !hold.is_settled() {
            self.release(cx);
        }
    }

    fn on_released(&mut self, is_retry: bool, answer: Released, cx: &mut Context<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        match answer {
            Released::Freed { token } if token == hold.token => self.stage = Stage::Idle,
            Released::Held { holds, weight } => {
                hold.pending = None;
                hold.on_server = Some((holds, weight));
                hold.weight = hold.shrinks_to.take().unwrap_or(hold.weight);
                if !hold.is_settled() {
                    self.release(cx);
                }
            }
            // Nothing there before our deadline: an earlier copy freed it.
            Released::Gone if is_retry && cx.now < hold.deadline => self.stage = Stage::Idle,
            Released::Freed { .. } | Released::Gone | Released::Lost => self.lose(cx),
        }
    }
}
