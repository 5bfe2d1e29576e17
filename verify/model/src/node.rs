//! A node: one lock with a lease, a queue and a token, which may or may not survive a restart.

use crate::bounds::{Bounds, Loss};
use crate::events::{Event, EventSet};
use crate::network::{Body, ClientId, Message, Seq, Time, Token};
use crate::rules::{Rule, Rules};

/// The most tokens that a node gives in one tick of the clock.
pub const TOKENS: Token = 16;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    pub data: Data,
    /// The data after a restart that loses the last writes.
    pub saved: Data,
    /// How far its clock is ahead of the slowest one.
    pub ahead: Time,
    pub frozen_until: Time,
    pub alive: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Data {
    pub hold: Option<Hold>,
    pub queue: Vec<(ClientId, Seq)>,
    /// The greatest token that it gave or that a client raised it to.
    pub stored: Token,
    /// For each client, the seq up to which it has left. Models the tombstones (R3).
    pub left: Vec<Seq>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    pub client: ClientId,
    pub seq: Seq,
    pub token: Token,
    pub expires: Time,
    pub raised: bool,
}

pub struct Context<'a> {
    pub rules: Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub events: &'a mut EventSet,
}

impl Context<'_> {
    fn freeze(&self) -> Time {
        let lease = if self.rules.has(Rule::Q8LongestLease) { self.bounds.lease } else { 0 };
        let clocks = if self.rules.has(Rule::Q8Clocks) { self.bounds.clocks_apart } else { 0 };
        if self.rules.has(Rule::Q8Freeze) { lease + clocks } else { 0 }
    }
}

impl Node {
    pub fn new(ahead: Time, alive: bool, bounds: &Bounds) -> Self {
        let data = Data { left: vec![0; bounds.clients.into()], ..Data::default() };
        Self { saved: data.clone(), data, ahead, frozen_until: 0, alive }
    }

    pub fn is_frozen(&self, now: Time) -> bool {
        now < self.frozen_until
    }

    /// Whether it serves an acquire: the request is not too late (R2), and the client has not left the attempt (R3).
    pub fn serves(&self, client: ClientId, seq: Seq, sent: Time, now: Time, bounds: &Bounds) -> bool {
        now <= sent + bounds.operation_timeout && seq > self.data.left[usize::from(client)]
    }

    /// The answer to a request, if it has one.
    pub fn serve(&mut self, message: Message, cx: &mut Context<'_>) -> Option<Body> {
        let Message { client, seq, sent, .. } = message;
        match message.body {
            Body::Acquire { waits, proposed } => self.acquire(client, seq, sent, (waits, proposed), cx),
            Body::Raise { to } => Some(self.raise(client, seq, to, cx)),
            Body::Renew => Some(self.renew(client, seq, cx)),
            _ => {
                self.leave(client, seq, cx);
                None
            }
        }
    }

    fn acquire(
        &mut self,
        client: ClientId,
        seq: Seq,
        sent: Time,
        (waits, proposed): (bool, Token),
        cx: &mut Context<'_>,
    ) -> Option<Body> {
        if !self.serves(client, seq, sent, cx.now, cx.bounds) {
            return None;
        }
        if self.is_frozen(cx.now) && self.held_by(client, seq).is_none() {
            cx.events.add(Event::Frozen);
            return Some(Body::Frozen);
        }
        if self.data.hold.is_none() {
            self.grant(client, seq, proposed, cx);
        }
        let lease = cx.bounds.lease;
        if let Some(hold) = self.held_by(client, seq) {
            hold.expires = cx.now + lease;
            return Some(Body::Granted { token: hold.token });
        }
        if !waits {
            // A later copy of the request takes nothing (R1).
            self.data.left[usize::from(client)] = seq;
            return Some(Body::Busy);
        }
        if !self.data.queue.contains(&(client, seq)) {
            self.data.queue.push((client, seq));
        }
        Some(Body::Queued)
    }

    /// Sets the stored token, but only while the caller holds the lock (Q3).
    fn raise(&mut self, client: ClientId, seq: Seq, to: Token, cx: &mut Context<'_>) -> Body {
        let hold = self.held_by(client, seq);
        if let Some(hold) = hold {
            hold.raised = true;
        } else if cx.rules.has(Rule::Q3WhileHeld) {
            cx.events.add(Event::RaiseRefused);
            return Body::NotHeld;
        }
        if self.data.stored < to {
            cx.events.add(Event::RaisedHigher);
            self.data.stored = to;
        }
        Body::Raised
    }

    fn renew(&mut self, client: ClientId, seq: Seq, cx: &mut Context<'_>) -> Body {
        let expires = cx.now + cx.bounds.lease;
        let Some(hold) = self.held_by(client, seq) else { return Body::NotHeld };
        hold.expires = expires;
        Body::Renewed
    }

    fn leave(&mut self, client: ClientId, seq: Seq, cx: &mut Context<'_>) {
        let left = &mut self.data.left[usize::from(client)];
        *left = (*left).max(seq);
        self.data.queue.retain(|(other, waiting)| *other != client || *waiting > seq);
        if self.data.hold.is_some_and(|hold| hold.client == client && hold.seq <= seq) {
            self.free(cx);
        }
    }

    fn held_by(&mut self, client: ClientId, seq: Seq) -> Option<&mut Hold> {
        self.data.hold.as_mut().filter(|hold| (hold.client, hold.seq) == (client, seq))
    }

    /// Frees the lock and passes it on.
    pub fn free(&mut self, cx: &mut Context<'_>) {
        self.data.hold = None;
        self.pass_on(cx);
    }

    fn pass_on(&mut self, cx: &mut Context<'_>) {
        if self.data.hold.is_none() && !self.data.queue.is_empty() && !self.is_frozen(cx.now) {
            let (client, seq) = self.data.queue.remove(0);
            cx.events.add(Event::PassedOn);
            self.grant(client, seq, 0, cx);
        }
    }

    fn grant(&mut self, client: ClientId, seq: Seq, proposed: Token, cx: &mut Context<'_>) {
        let clock = if cx.bounds.clock_runs { cx.now } else { 0 } + self.ahead;
        let clock = if cx.rules.has(Rule::Q9ClockInTokens) { Token::from(clock) * TOKENS } else { 0 };
        let takes = self.takes(proposed, clock, cx);
        if takes {
            cx.events.add(Event::ProposalTaken);
        }
        let token = if takes { proposed } else { clock.max(self.data.stored + 1) };
        self.data.stored = token;
        let expires = cx.now + cx.bounds.lease;
        self.data.hold = Some(Hold { client, seq, token, expires, raised: false });
    }

    /// Q3: whether the node gives the proposed token.
    fn takes(&self, proposed: Token, clock: Token, cx: &mut Context<'_>) -> bool {
        let is_above = proposed > self.data.stored || !cx.rules.has(Rule::Q3ProposedAbove);
        let is_far = proposed > clock + Token::from(cx.bounds.lease) * TOKENS;
        if proposed > 0 && is_far {
            cx.events.add(Event::ProposedTooFar);
        }
        proposed > 0 && is_above && !(is_far && cx.rules.has(Rule::Q8ProposedNear))
    }

    /// Runs after each tick of the clock.
    pub fn expire(&mut self, cx: &mut Context<'_>) {
        if self.frozen_until > 0 && !self.is_frozen(cx.now) {
            self.frozen_until = 0;
            cx.events.add(Event::Thawed);
        }
        if self.data.hold.is_some_and(|hold| hold.expires <= cx.now) {
            cx.events.add(Event::LeaseExpired);
            self.data.hold = None;
        }
        // A dead node's data expires, but it grants nothing.
        if self.alive {
            self.pass_on(cx);
        }
    }

    /// Q8: it freezes even if it has lost nothing, because it cannot know that.
    pub fn restart(&mut self, loss: Loss, ahead: Time, cx: &mut Context<'_>) {
        match loss {
            Loss::Nothing => {}
            Loss::Newest => self.data = self.saved.clone(),
            Loss::All | Loss::Flush => self.data = Data { left: vec![0; cx.bounds.clients.into()], ..Data::default() },
        }
        self.saved = self.data.clone();
        self.ahead = ahead;
        self.alive = true;
        self.frozen_until = self.frozen_until.max(cx.now + cx.freeze());
        self.expire(cx);
    }
}
