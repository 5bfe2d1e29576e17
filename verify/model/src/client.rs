//! A client with one owner: its attempt, its hold, and the leaves in its background.
//!
//! A pause of the process needs no step of its own: it is a client that does nothing while the
//! clock ticks.

use crate::network::{Answer, ClientId, Nested, Network, Push, Request, Seq, Time, Token};
use crate::protocol::{Bounds, Seen, Sight};
use crate::rules::Rules;
use crate::server::{Acquired, Polled, Released, Renewed};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next_seq: Seq,
    /// Attempts, nested acquires and retries it may still begin: the bounds of the model.
    attempts: u8,
    entries: u8,
    retries: u8,
    pub stage: Stage,
    /// R9: leaves belong to the background, which goes on while the owner asks anew.
    pub leaving: Vec<Request>,
    /// Only without `r11_seq_at_the_loss`: a loss whose leave has no seq yet.
    pub unsent: Option<(Seq, Time)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Stage {
    Idle,
    /// `last`: until then an earlier copy without an answer may still be served; 0: there is none.
    Asking {
        seq: Seq,
        request: Request,
        last: Time,
    },
    /// In the queue, as far as it knows. `asked` and `floor` are of the last answer "queued" (R7).
    Waiting {
        seq: Seq,
        asked: Time,
        floor: Token,
        last: Time,
        confirming: Option<Request>,
    },
    Holding(Hold),
}

const UNKNOWN: u8 = u8::MAX;

/// Between free -> held and the end of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    pub attempt: Seq,
    pub token: Token,
    /// Until then it may be relied upon (R5).
    pub deadline: Time,
    pub guards: u8,
    /// Holds that the server counts; `UNKNOWN` while a request about it is `pending`.
    pub on_server: u8,
    pub last: Time,
    /// Its first renewal is to set the wanted lease: it began with a trusted push, or a long grant.
    fresh: bool,
    /// The request about the count that has no answer; one at a time (`Seat::gate`).
    pub pending: Option<Request>,
}

impl Hold {
    /// What the holder of a guard is told by `is_valid`.
    pub fn is_valid(&self, now: Time) -> bool {
        self.guards > 0 && now < self.deadline
    }

    /// Nothing about the count is under way or still to be said.
    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && self.on_server == self.guards
    }
}

/// What a client has at hand while it acts.
pub struct Desk<'a> {
    pub id: ClientId,
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub network: &'a mut Network,
    pub seen: &'a mut Seen,
}

impl Desk<'_> {
    fn send(&mut self, request: Request) -> Request {
        self.network.send(self.id, request);
        request
    }

    /// Until when an answer may be relied on that says how long the lease lasts (R5): from before
    /// the request was sent, and no longer than wanted.
    fn told(&self, sent: Time, left: Time) -> Time {
        let from = if self.rules.r5_deadline_from_request { sent } else { self.now };
        from + if self.rules.r5_no_more_than_wanted { left.min(self.bounds.lease) } else { left }
    }
}

/// The next copy of a request that is retried. An acquire is sent anew, with a new `not_after`.
fn again(request: Request, now: Time) -> Request {
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

/// Until when a copy of this acquire may be served.
fn not_after(request: &Request, bounds: &Bounds) -> Time {
    match *request {
        Request::Acquire { sent, .. } => bounds.not_after(sent),
        _ => 0,
    }
}

// What it may do next, asked by the model to list the actions.
impl Client {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            next_seq: 1,
            attempts: bounds.attempts,
            entries: bounds.entries,
            retries: bounds.retries,
            stage: Stage::Idle,
            leaving: Vec::new(),
            unsent: None,
        }
    }

    pub fn has_started(&self) -> bool {
        self.next_seq > 1
    }

    pub fn may_start(&self) -> bool {
        self.stage == Stage::Idle && self.attempts > 0
    }

    /// A release that says too much by now is followed by another one, which is no retry.
    pub fn may_retry(&self) -> bool {
        match &self.stage {
            Stage::Asking { .. } => self.retries > 0,
            Stage::Holding(hold) => hold.pending.is_some_and(|it| self.retries > 0 || hold.is_outdated(it)),
            Stage::Idle | Stage::Waiting { .. } => false,
        }
    }

    pub fn may_retry_leave(&self) -> bool {
        self.retries > 0 && !self.leaving.is_empty()
    }

    pub fn may_give_up(&self) -> bool {
        match &self.stage {
            Stage::Asking { .. } | Stage::Waiting { .. } => true,
            Stage::Holding(hold) => matches!(hold.pending, Some(Request::Acquire { .. })),
            Stage::Idle => false,
        }
    }

    /// R8. One poll at a time.
    pub fn may_poll(&self, id: ClientId, network: &Network, rules: &Rules) -> bool {
        let Stage::Waiting { seq, .. } = self.stage else { return false };
        let of_ours = |request: &Request| matches!(*request, Request::Poll { seq: asked, .. } if asked == seq);
        rules.r8_poll && !network.has(id, of_ours)
    }

    /// While a guard lives and the deadline has not passed; one renewal at a time, and none that
    /// would gain nothing.
    pub fn may_renew(&self, id: ClientId, network: &Network, bounds: &Bounds, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        let of_ours = |request: &Request| matches!(*request, Request::Renew { token, .. } if token == hold.token);
        let gains = hold.fresh || hold.deadline < now + bounds.lease;
        hold.is_valid(now) && gains && !network.has(id, of_ours)
    }

    pub fn may_enter(&self, now: Time) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if self.entries > 0 && hold.is_valid(now) && hold.is_settled())
    }

    pub fn may_unlock(&self) -> bool {
        matches!(&self.stage, Stage::Holding(hold) if hold.guards > 0)
    }

    /// P8: a deadline that passed is noticed now or later. A release to 0 under way says more than
    /// the deadline does, so that one is waited for.
    pub fn may_notice_loss(&self, now: Time) -> bool {
        let Stage::Holding(hold) = &self.stage else { return false };
        hold.deadline <= now && (hold.guards > 0 || matches!(hold.pending, Some(Request::Acquire { .. })))
    }

    /// Only without `r11_seq_at_the_loss`.
    pub fn may_send_late_leave(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether a leave that is not answered yet ends all up to this seq.
    pub fn is_leaving(&self, seq: Seq) -> bool {
        let ends = |leave: &Request| matches!(*leave, Request::Leave { seq: up_to, .. } if up_to >= seq);
        self.unsent.is_some() || self.leaving.iter().any(ends)
    }

    /// Whether the reply to this request still means something to it. As in the library only the
    /// last copy counts: the ones before it were answered with "unknown".
    pub fn awaits(&self, request: &Request) -> bool {
        match (*request, &self.stage) {
            (Request::Leave { .. }, _) => self.leaving.contains(request),
            (Request::Poll { seq, .. }, Stage::Waiting { seq: ours, .. }) => seq == *ours,
            (Request::Renew { .. }, Stage::Waiting { confirming, .. }) => *confirming == Some(*request),
            (Request::Renew { token, .. }, Stage::Holding(hold)) => token == hold.token,
            (_, Stage::Asking { request: asked, .. }) => asked == request,
            (_, Stage::Holding(hold)) => hold.pending == Some(*request),
            _ => false,
        }
    }

    /// Whether it may still send an acquire of a seq up to this one.
    pub fn asks_up_to(&self, up_to: Seq) -> bool {
        let asked = match &self.stage {
            Stage::Asking { request, .. } => Some(*request),
            Stage::Holding(hold) => hold.pending,
            Stage::Idle | Stage::Waiting { .. } => None,
        };
        matches!(asked, Some(Request::Acquire { seq, .. }) if seq <= up_to)
    }

    /// Whether a push is, or may yet become, of any interest.
    pub fn may_care_for(&self, push: &Push, rules: &Rules) -> bool {
        match (*push, &self.stage) {
            (Push::Grant { seq, .. }, Stage::Asking { seq: ours, .. } | Stage::Waiting { seq: ours, .. }) => {
                seq == *ours || !rules.r7_push_names_ticket
            }
            (Push::Revoked { token }, Stage::Holding(hold)) => token == hold.token,
            (Push::Revoked { .. }, Stage::Asking { .. } | Stage::Waiting { .. }) => true,
            _ => false,
        }
    }

    /// Whether it would act on it now. Until then it is as if it were under way: attempts register
    /// before they ask, so a push may come before the reply (R7).
    pub fn listens_to(&self, push: &Push) -> bool {
        match push {
            Push::Grant { .. } => matches!(self.stage, Stage::Waiting { confirming: None, .. }),
            Push::Revoked { token } => matches!(&self.stage, Stage::Holding(hold) if hold.token == *token),
        }
    }
}

// acquire.rs: one attempt.
impl Client {
    fn draw_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn start(&mut self, desk: &mut Desk<'_>) {
        self.attempts -= 1;
        let seq = self.draw_seq();
        let request = desk.send(Request::Acquire { seq, copy: 0, sent: desk.now, nested: None });
        self.stage = Stage::Asking { seq, request, last: 0 };
    }

    /// No answer, or none in time: the same request again (R1).
    pub fn retry(&mut self, desk: &mut Desk<'_>) {
        match &mut self.stage {
            Stage::Asking { request, last, .. } => {
                *last = (*last).max(not_after(request, desk.bounds));
                *request = desk.send(again(*request, desk.now));
            }
            Stage::Holding(hold) => {
                let Some(pending) = hold.pending else { return };
                if hold.is_outdated(pending) {
                    return self.release(desk);
                }
                hold.pending = Some(desk.send(again(pending, desk.now)));
            }
            Stage::Idle | Stage::Waiting { .. } => {}
        }
        self.retries -= 1;
    }

    pub fn poll(&mut self, desk: &mut Desk<'_>) {
        if let Stage::Waiting { seq, .. } = self.stage {
            desk.send(Request::Poll { seq, sent: desk.now });
        }
    }

    /// The caller's future is dropped: a wait leaves, a nested acquire is set right by a release.
    pub fn give_up(&mut self, desk: &mut Desk<'_>) {
        match self.stage {
            Stage::Asking { seq, request, last } => {
                let last = last.max(not_after(&request, desk.bounds));
                self.leave(seq, seq, last, desk);
                self.stage = Stage::Idle;
            }
            Stage::Waiting { seq, last, .. } => {
                self.leave(seq, seq, last, desk);
                self.stage = Stage::Idle;
            }
            Stage::Holding(_) => self.release(desk),
            Stage::Idle => {}
        }
    }

    /// R9: goes on in the background until it is answered.
    fn leave(&mut self, seq: Seq, attempt: Seq, last: Time, desk: &mut Desk<'_>) {
        if desk.rules.r9_leave {
            self.leaving.push(desk.send(Request::Leave { seq, attempt, last, copy: 0 }));
        }
    }

    pub fn retry_leave(&mut self, desk: &mut Desk<'_>) {
        if let Some(leave) = self.leaving.first_mut() {
            *leave = desk.send(again(*leave, desk.now));
            self.retries -= 1;
        }
    }

    fn begin(&mut self, attempt: Seq, token: Token, deadline: Time, last: Time, fresh: bool) {
        let (guards, on_server, pending) = (1, 1, None);
        self.stage = Stage::Holding(Hold { attempt, token, deadline, guards, on_server, last, fresh, pending });
    }
}

// hold.rs, watchdog.rs, release.rs: what it holds.
impl Hold {
    /// The number of guards has changed since this release was sent.
    fn is_outdated(&self, pending: Request) -> bool {
        matches!(pending, Request::Release { holds, .. } if holds != self.guards)
    }

    /// An answer that was overtaken by a later one takes nothing back.
    fn extend(&mut self, deadline: Time) {
        self.deadline = self.deadline.max(deadline);
        self.fresh = false;
    }
}

impl Client {
    pub fn renew(&mut self, desk: &mut Desk<'_>) {
        if let Stage::Holding(hold) = &self.stage {
            let only = if hold.fresh { hold.attempt } else { 0 };
            desk.send(Request::Renew { token: hold.token, only, sent: desk.now });
        }
    }

    /// A nested acquire names the token and the count that it expects (R1).
    pub fn enter(&mut self, desk: &mut Desk<'_>) {
        self.entries -= 1;
        let seq = self.draw_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let nested = Some(Nested { token: hold.token, holds: hold.guards });
            hold.pending = Some(desk.send(Request::Acquire { seq, copy: 0, sent: desk.now, nested }));
            hold.on_server = UNKNOWN;
        }
    }

    pub fn unlock(&mut self, desk: &mut Desk<'_>) {
        if let Stage::Holding(hold) = &mut self.stage {
            hold.guards -= 1;
            if hold.pending.is_none() {
                self.release(desk);
            }
        }
    }

    /// Tells the server of as many holds as there are guards, with a seq of its own (decision 2).
    fn release(&mut self, desk: &mut Desk<'_>) {
        let seq = self.draw_seq();
        if let Stage::Holding(hold) = &mut self.stage {
            let Hold { guards: holds, token, attempt, last, .. } = *hold;
            hold.pending = Some(desk.send(Request::Release { seq, holds, token, attempt, last, copy: 0 }));
            hold.on_server = UNKNOWN;
        }
    }

    /// R11: ends the hold here, and sees to it that nothing of it comes back.
    pub fn lose(&mut self, desk: &mut Desk<'_>) {
        let Stage::Holding(hold) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        if !desk.rules.r11_leave_after_loss {
            return;
        }
        let last = hold.last.max(desk.bounds.not_after(desk.now));
        if desk.rules.r11_seq_at_the_loss {
            let seq = self.draw_seq();
            self.leave(seq, hold.attempt, last, desk);
        } else {
            self.unsent = Some((hold.attempt, last));
        }
    }

    /// Only without `r11_seq_at_the_loss`: the owner may have begun anew in between.
    pub fn send_late_leave(&mut self, desk: &mut Desk<'_>) {
        if let Some((attempt, last)) = self.unsent.take() {
            let seq = self.draw_seq();
            self.leave(seq, attempt, last, desk);
        }
    }
}

// What comes back.
impl Client {
    /// The reply to a request that it `awaits`.
    pub fn answered(&mut self, request: Request, answer: Answer, desk: &mut Desk<'_>) {
        match (request, answer) {
            (Request::Acquire { sent, nested: None, .. }, Answer::Acquired(answer)) => self.asked(sent, answer, desk),
            (Request::Acquire { sent, .. }, Answer::Acquired(answer)) => self.entered(sent, answer, desk),
            (Request::Poll { sent, .. }, Answer::Polled(answer)) => self.polled(sent, answer, desk),
            (Request::Renew { token, sent, .. }, Answer::Renewed(answer)) => self.renewed(token, sent, answer, desk),
            (Request::Release { copy, .. }, Answer::Released(answer)) => self.released(copy > 0, answer, desk),
            (Request::Leave { .. }, _) => self.leaving.retain(|leave| *leave != request),
            _ => unreachable!("a reply of another kind than its request"),
        }
    }

    fn asked(&mut self, sent: Time, answer: Acquired, desk: &mut Desk<'_>) {
        let Stage::Asking { seq, last, .. } = self.stage else { return };
        match answer {
            Acquired::Held { token, left, .. } => self.granted(seq, token, (sent, left), last, desk),
            Acquired::Queued { floor } => {
                self.stage = Stage::Waiting { seq, asked: sent, floor, last, confirming: None };
            }
            // The server has nothing of it, unless an earlier copy is still under way.
            Acquired::Busy | Acquired::Lost | Acquired::Over => {
                if last > 0 {
                    self.leave(seq, seq, last, desk);
                }
                self.stage = Stage::Idle;
            }
        }
    }

    /// Owning it, by the server's own word, unless the time it was given is over already: then it
    /// is left. Where a grant outlives the wanted lease, the first renewal has yet to set that.
    fn granted(&mut self, seq: Seq, token: Token, (sent, left): (Time, Time), last: Time, desk: &mut Desk<'_>) {
        let deadline = desk.told(sent, left);
        if desk.now < deadline {
            self.begin(seq, token, deadline, last, left > desk.bounds.lease);
        } else {
            self.leave(seq, seq, last, desk);
            self.stage = Stage::Idle;
        }
    }

    fn polled(&mut self, sent: Time, answer: Polled, desk: &mut Desk<'_>) {
        let Stage::Waiting { seq, asked, last, confirming, .. } = self.stage else { return };
        match answer {
            Polled::Granted { token, left } => {
                desk.seen.add(Sight::HeldByPoll);
                self.granted(seq, token, (sent, left), last, desk);
            }
            // Answers may overtake each other; only a later question counts.
            Polled::Queued { floor } if asked <= sent => {
                self.stage = Stage::Waiting { seq, asked: sent, floor, last, confirming };
            }
            Polled::Queued { .. } => {}
            Polled::Unknown => {
                self.leave(seq, seq, last, desk);
                self.stage = Stage::Idle;
            }
        }
    }

    /// R7: to trust, to confirm, or to ignore.
    pub fn pushed(&mut self, seq: Seq, token: Token, lasts: Time, desk: &mut Desk<'_>) {
        let Stage::Waiting { seq: ours, asked, floor, last, .. } = self.stage else { return };
        debug_assert!(seq == ours || !desk.rules.r7_push_names_ticket);
        if desk.rules.r7_floor && token <= floor {
            desk.seen.add(Sight::FloorRefused);
            return;
        }
        let until = if desk.rules.r7_trust_from_poll { asked + lasts } else { desk.now + lasts };
        if desk.bounds.trust && desk.now < until {
            desk.seen.add(Sight::HeldByTrust);
            self.begin(ours, token, until.min(desk.now + desk.bounds.lease), last, true);
        } else if desk.rules.r7_confirm {
            let confirming = Some(desk.send(Request::Renew { token, only: ours, sent: desk.now }));
            self.stage = Stage::Waiting { seq: ours, asked, floor, last, confirming };
        } else {
            self.begin(ours, token, desk.now + lasts, last, true);
        }
    }

    fn renewed(&mut self, token: Token, sent: Time, answer: Renewed, desk: &mut Desk<'_>) {
        match (&mut self.stage, answer) {
            (Stage::Waiting { seq, last, confirming, .. }, Renewed::Renewed { left }) => {
                let (seq, last, deadline) = (*seq, *last, desk.told(sent, left));
                *confirming = None;
                // Too late: the next poll tells.
                if desk.now < deadline {
                    desk.seen.add(Sight::HeldByConfirm);
                    self.begin(seq, token, deadline, last, false);
                }
            }
            (Stage::Waiting { confirming, .. }, Renewed::Lost) => *confirming = None,
            (Stage::Holding(hold), Renewed::Renewed { left }) => hold.extend(desk.told(sent, left)),
            // After our own release to 0 that is no loss.
            (Stage::Holding(hold), Renewed::Lost) if hold.guards > 0 => {
                desk.seen.add(Sight::TellsOfLoss);
                self.lose(desk);
            }
            _ => {}
        }
    }

    fn entered(&mut self, sent: Time, answer: Acquired, desk: &mut Desk<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        hold.pending = None;
        match answer {
            Acquired::Held { holds, left, .. } => {
                hold.extend(desk.told(sent, left));
                if hold.deadline <= desk.now {
                    return self.lose(desk);
                }
                hold.guards += 1;
                hold.on_server = holds;
                desk.seen.add(Sight::Nested);
                // A guard may have ended meanwhile.
                if !hold.is_settled() {
                    self.release(desk);
                }
            }
            _ => self.lose(desk),
        }
    }

    fn released(&mut self, again: bool, answer: Released, desk: &mut Desk<'_>) {
        let Stage::Holding(hold) = &mut self.stage else { return };
        match answer {
            Released::Freed { token } if token == hold.token => self.stage = Stage::Idle,
            Released::Held { holds } => {
                hold.pending = None;
                hold.on_server = holds;
                if !hold.is_settled() {
                    self.release(desk);
                }
            }
            // Not there, and our lease not over: the copy before this one freed it (decision 11).
            Released::Gone if again && desk.now < hold.deadline => {
                desk.seen.add(Sight::RetryAnswered);
                self.stage = Stage::Idle;
            }
            // What was freed under another token, or was not there: ours had been lost.
            Released::Freed { .. } | Released::Gone | Released::Lost => self.lose(desk),
        }
    }
}
