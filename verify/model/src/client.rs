//! A client: one attempt for the lock over all nodes, and its guard. It takes its next step as soon as an answer
//! allows. A client is paused while its answers do not arrive.

use crate::bounds::Bounds;
use crate::events::{Event, EventSet};
use crate::network::{Body, ClientId, Message, Network, NodeId, Seq, Time, Token};
use crate::node::TOKENS;
use crate::rules::{Rule, Rules};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub stage: Stage,
    pub slots: Vec<Slot>,
    /// For each node, the seq up to which the client must still leave it. 0: it need not.
    pub leaving: Vec<Seq>,
    next_seq: Seq,
    /// How often it may still begin, retry after a failure, and renew.
    pub starts: u8,
    pub retries: u8,
    pub renewals: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Idle,
    /// It has left every node after a failure, and wants to retry (Q6).
    Failed,
    Taking,
    Raising {
        token: Token,
    },
    Holding {
        token: Token,
    },
}

/// The client's knowledge about a node in its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    Unused,
    /// The request has no answer yet.
    Asked {
        seq: Seq,
        sent: Time,
    },
    Queued {
        seq: Seq,
    },
    Busy,
    /// Down, frozen, too slow to answer, or lost. This attempt no longer uses it (Q10).
    Skipped,
    Got {
        seq: Seq,
        token: Token,
        deadline: Time,
        raised: bool,
    },
}

impl Slot {
    pub fn seq(self) -> Option<Seq> {
        match self {
            Self::Asked { seq, .. } | Self::Queued { seq } | Self::Got { seq, .. } => Some(seq),
            _ => None,
        }
    }

    fn is_pending(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Queued { .. })
    }

    pub fn is_got(self) -> bool {
        matches!(self, Self::Got { .. })
    }

    fn deadline(self) -> Option<Time> {
        match self {
            Self::Got { deadline, .. } => Some(deadline),
            _ => None,
        }
    }

    fn is_held(self, now: Time) -> bool {
        self.deadline().is_some_and(|deadline| deadline > now)
    }

    fn is_raised(self) -> bool {
        matches!(self, Self::Got { raised: true, .. })
    }
}

pub struct Context<'a> {
    pub id: ClientId,
    pub rules: Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub network: &'a mut Network,
    pub events: &'a mut EventSet,
}

impl Context<'_> {
    fn send(&mut self, node: NodeId, seq: Seq, body: Body) {
        // Only requests that set a deadline need their send time. The others leave it out, which makes fewer states.
        let sent = if matches!(body, Body::Acquire { .. } | Body::Renew) { self.now } else { 0 };
        self.network.insert(Message { client: self.id, node, seq, sent, body });
    }

    fn nodes(&self) -> std::ops::Range<NodeId> {
        0..self.bounds.nodes
    }

    fn majority(&self) -> usize {
        majority(self.rules, self.bounds)
    }

    /// A token from the clock that is furthest ahead, as far as the client knows.
    fn token_now(&self) -> Token {
        let Bounds { clock_runs, clocks_apart, clock_seems_ahead, proposes, .. } = *self.bounds;
        let seems_ahead = if self.id == 0 { clock_seems_ahead } else { 0 };
        let clock = if clock_runs { self.now } else { 0 } + clocks_apart + seems_ahead;
        if proposes { Token::from(clock) * TOKENS + 1 } else { 0 }
    }
}

/// The number of nodes that must count.
fn majority(rules: Rules, bounds: &Bounds) -> usize {
    bounds.majority() - usize::from(!rules.has(Rule::Q4Majority))
}

impl Client {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            stage: Stage::Idle,
            slots: vec![Slot::Unused; bounds.nodes.into()],
            leaving: vec![0; bounds.nodes.into()],
            next_seq: 1,
            starts: bounds.starts,
            retries: bounds.retries,
            renewals: bounds.renewals,
        }
    }

    pub fn slot(&self, node: NodeId) -> Slot {
        self.slots[usize::from(node)]
    }

    fn set(&mut self, node: NodeId, slot: Slot) {
        self.slots[usize::from(node)] = slot;
    }

    fn lowest(&self, matches: impl Fn(Slot) -> bool) -> Option<NodeId> {
        (0..).zip(&self.slots).find(|(_, slot)| matches(**slot)).map(|(node, _)| node)
    }

    fn count(&self, matches: impl Fn(Slot) -> bool) -> usize {
        self.slots.iter().filter(|slot| matches(**slot)).count()
    }

    /// Its fencing token, and the end of its validity: the m-th largest deadline of the nodes that count (Q5).
    pub fn guard(&self, rules: Rules, bounds: &Bounds) -> Option<(Token, Time)> {
        let Stage::Holding { token } = self.stage else { return None };
        let counting = self.slots.iter().filter(|slot| slot.is_raised());
        let mut deadlines: Vec<_> = counting.filter_map(|slot| slot.deadline()).collect();
        deadlines.sort_unstable_by(|a, b| b.cmp(a));
        let place = if rules.has(Rule::Q5MthDeadline) { majority(rules, bounds) - 1 } else { 0 };
        Some((token, deadlines.get(place).copied().unwrap_or(0)))
    }

    pub fn is_valid(&self, now: Time, rules: Rules, bounds: &Bounds) -> bool {
        self.guard(rules, bounds).is_some_and(|(_, until)| until > now)
    }

    pub fn start(&mut self, cx: &mut Context<'_>) {
        match self.stage {
            Stage::Failed => self.retries -= 1,
            _ => self.starts -= 1,
        }
        self.stage = Stage::Taking;
        if cx.bounds.at_once {
            let proposed = cx.token_now();
            cx.nodes().for_each(|node| self.ask(node, false, proposed, cx));
        } else {
            self.take(cx);
        }
    }

    fn ask(&mut self, node: NodeId, waits: bool, proposed: Token, cx: &mut Context<'_>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.set(node, Slot::Asked { seq, sent: cx.now });
        cx.send(node, seq, Body::Acquire { waits, proposed });
    }

    /// Asks again about its place in a queue.
    pub fn poll(&mut self, node: NodeId, cx: &mut Context<'_>) {
        if let Slot::Queued { seq } = self.slot(node) {
            self.set(node, Slot::Asked { seq, sent: cx.now });
            cx.send(node, seq, Body::Acquire { waits: true, proposed: 0 });
        }
    }

    /// Q1, Q2: the next step, once every request has an answer.
    fn take(&mut self, cx: &mut Context<'_>) {
        let held = self.count(|slot| slot.is_held(cx.now));
        if self.count(Slot::is_pending) > 0 {
            if !cx.rules.has(Rule::Q1QueuesAtOne) && held >= cx.majority() {
                self.leave_those(Slot::is_pending, cx);
                self.raise(cx);
            }
            return;
        }
        if held < cx.majority() && self.has_expired(cx.now) {
            return self.fail(cx);
        }
        let (gate, busy) = (self.lowest(Slot::is_got), self.lowest(|slot| slot == Slot::Busy));
        let unused: Vec<_> = cx.nodes().filter(|node| self.slot(*node) == Slot::Unused).collect();
        if gate.is_none() && busy.is_none() {
            match unused.first() {
                Some(node) => self.ask(*node, true, 0, cx),
                None => self.fail(cx),
            }
        } else if !unused.is_empty() {
            let waits = !cx.rules.has(Rule::Q1QueuesAtOne);
            let proposed = if cx.bounds.proposes { self.tokens().max().unwrap_or(0) } else { 0 };
            unused.into_iter().for_each(|node| self.ask(node, waits, proposed, cx));
        } else if held >= cx.majority() && busy.is_none_or(|busy| gate.is_some_and(|gate| gate < busy)) {
            if busy.is_some() {
                cx.events.add(Event::BusyLeftAlone);
            }
            self.raise(cx);
        } else if let Some(busy) = busy {
            self.queue_on(busy, cx);
        } else {
            self.fail(cx);
        }
    }

    /// Q2: releases the nodes above this one, and queues here while it keeps the nodes below.
    fn queue_on(&mut self, node: NodeId, cx: &mut Context<'_>) {
        cx.events.add(if self.count(Slot::is_got) > 0 { Event::QueuedWithHold } else { Event::Queued });
        self.release_above(node, cx);
        self.ask(node, true, 0, cx);
    }

    fn release_above(&mut self, node: NodeId, cx: &mut Context<'_>) {
        for above in cx.nodes().skip(usize::from(node) + 1) {
            match self.slot(above) {
                Slot::Got { .. } if cx.rules.has(Rule::Q1WaitsPointUpwards) => {
                    cx.events.add(Event::ReleasedAbove);
                    self.leave(above, Slot::Unused, cx);
                }
                Slot::Busy => self.set(above, Slot::Unused),
                _ => {}
            }
        }
    }

    /// The tokens of the nodes that it holds.
    fn tokens(&self) -> impl Iterator<Item = Token> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Got { token, .. } => Some(*token),
            _ => None,
        })
    }

    /// Q3: raises all nodes that it holds to the greatest of their tokens, unless all gave the same one.
    fn raise(&mut self, cx: &mut Context<'_>) {
        let tokens = self.tokens();
        let token = if cx.rules.has(Rule::Q4GreatestToken) { tokens.max() } else { tokens.min() };
        let token = token.unwrap_or(0);
        self.stage = Stage::Raising { token };
        let is_given_alike = cx.bounds.proposes && self.tokens().all(|given| given == token);
        if is_given_alike {
            cx.events.add(Event::GivenAlike);
        }
        for node in cx.nodes() {
            self.raise_node(node, token, is_given_alike, cx);
        }
        self.count_nodes(cx);
    }

    fn raise_node(&mut self, node: NodeId, token: Token, is_given_alike: bool, cx: &mut Context<'_>) {
        if let Slot::Got { seq, raised, .. } = &mut self.slots[usize::from(node)] {
            if cx.rules.has(Rule::Q3Raise) && cx.rules.has(Rule::Q3RaiseBeforeGuard) && !is_given_alike {
                cx.send(node, *seq, Body::Raise { to: token });
            } else {
                *raised = true;
            }
        }
    }

    /// Q4: the client gets a guard once a majority counts.
    fn count_nodes(&mut self, cx: &mut Context<'_>) {
        let Stage::Raising { token } = self.stage else { return };
        if !cx.rules.has(Rule::Q3EachAcknowledges) && self.count(Slot::is_raised) > 0 {
            for slot in &mut self.slots {
                if let Slot::Got { raised, .. } = slot {
                    *raised = true;
                }
            }
        }
        if self.count(|slot| slot.is_raised() && slot.is_held(cx.now)) >= cx.majority() {
            cx.events.add(Event::Guarded);
            if self.count(|slot| slot == Slot::Skipped) > 0 {
                cx.events.add(Event::GuardedWithoutANode);
            }
            self.stage = Stage::Holding { token };
        } else if self.count(Slot::is_got) < cx.majority() {
            self.fail(cx);
        }
    }

    pub fn on_answer(&mut self, message: Message, cx: &mut Context<'_>) {
        let Message { node, seq, sent, body, .. } = message;
        if self.slot(node).seq() != Some(seq) {
            return;
        }
        if self.stage != Stage::Taking && self.has_lost(cx.now, cx.rules, cx.bounds) && cx.rules.has(Rule::LossIsFinal)
        {
            return self.lose(cx);
        }
        let from = if cx.rules.has(Rule::Q5DeadlineFromRequest) { sent } else { cx.now };
        let until = from + cx.bounds.lease;
        match (self.slot(node), body) {
            (Slot::Asked { .. } | Slot::Queued { .. }, Body::Granted { token }) => {
                self.set(node, Slot::Got { seq, token, deadline: until, raised: false });
                if let Stage::Holding { token } = self.stage {
                    cx.events.add(Event::TakenIn);
                    self.raise_node(node, token, false, cx);
                }
            }
            (Slot::Asked { .. }, Body::Queued) => self.set(node, Slot::Queued { seq }),
            (Slot::Asked { .. }, Body::Busy) => self.set(node, Slot::Busy),
            // The client may have a place in the queue from before the freeze.
            (Slot::Asked { .. }, Body::Frozen) => self.leave(node, Slot::Skipped, cx),
            (Slot::Got { .. }, Body::NotHeld) => self.leave(node, Slot::Skipped, cx),
            (Slot::Got { token, deadline, .. }, Body::Raised) => {
                self.set(node, Slot::Got { seq, token, deadline, raised: true });
            }
            (Slot::Got { token, deadline, raised, .. }, Body::Renewed) => {
                cx.events.add(Event::Renewed);
                self.set(node, Slot::Got { seq, token, deadline: deadline.max(until), raised });
            }
            _ => {}
        }
        self.go_on(cx);
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        match self.stage {
            Stage::Taking => self.take(cx),
            Stage::Raising { .. } => self.count_nodes(cx),
            _ => {}
        }
    }

    /// The answer is too late, or the node refused the connection.
    pub fn give_up_node(&mut self, node: NodeId, cx: &mut Context<'_>) {
        cx.events.add(Event::NodeSkipped);
        if cx.rules.has(Rule::Q6LeaveUnanswered) {
            self.leave(node, Slot::Skipped, cx);
        } else {
            self.set(node, Slot::Skipped);
        }
        self.go_on(cx);
    }

    pub fn renew(&mut self, cx: &mut Context<'_>) {
        self.renewals = self.renewals.saturating_sub(1);
        for node in cx.nodes() {
            if let Slot::Got { seq, .. } = self.slot(node) {
                cx.send(node, seq, Body::Renew);
            }
        }
    }

    /// Takes a node that is free again into the hold.
    pub fn take_in(&mut self, node: NodeId, cx: &mut Context<'_>) {
        self.ask(node, false, 0, cx);
    }

    pub fn unlock(&mut self, cx: &mut Context<'_>) {
        let Stage::Holding { token } = self.stage else { return };
        for node in cx.nodes() {
            self.end_at(node, token, cx);
        }
        self.leave_all(cx);
        self.stage = Stage::Idle;
    }

    fn end_at(&mut self, node: NodeId, token: Token, cx: &mut Context<'_>) {
        let seq = self.slot(node).seq();
        self.leave(node, Slot::Unused, cx);
        if let Some(seq) = seq.filter(|_| !cx.rules.has(Rule::Q3RaiseBeforeGuard)) {
            cx.send(node, seq, Body::Raise { to: token });
        }
    }

    fn has_expired(&self, now: Time) -> bool {
        self.count(|slot| slot.is_got() && !slot.is_held(now)) > 0
    }

    /// Whether a holder has less than a majority by its deadlines, or a waiter has lost one of its nodes (Q2).
    pub fn has_lost(&self, now: Time, rules: Rules, bounds: &Bounds) -> bool {
        match self.stage {
            Stage::Taking => self.count(|slot| matches!(slot, Slot::Queued { .. })) > 0 && self.has_expired(now),
            Stage::Raising { .. } => self.count(|slot| slot.is_held(now)) < majority(rules, bounds),
            Stage::Holding { .. } => !self.is_valid(now, rules, bounds),
            _ => false,
        }
    }

    pub fn lose(&mut self, cx: &mut Context<'_>) {
        if let Stage::Holding { .. } = self.stage {
            cx.events.add(Event::Lost);
            self.leave_all(cx);
            self.stage = Stage::Idle;
        } else {
            self.fail(cx);
        }
    }

    /// The caller stops waiting.
    pub fn cancel(&mut self, cx: &mut Context<'_>) {
        self.leave_all(cx);
        self.stage = Stage::Idle;
    }

    /// Q6
    fn fail(&mut self, cx: &mut Context<'_>) {
        cx.events.add(Event::Failed);
        if cx.rules.has(Rule::Q6Leave) {
            self.leave_all(cx);
        }
        self.slots.fill(Slot::Unused);
        self.stage = Stage::Failed;
    }

    fn leave_all(&mut self, cx: &mut Context<'_>) {
        self.leave_those(|slot| slot.seq().is_some(), cx);
        self.slots.fill(Slot::Unused);
    }

    fn leave_those(&mut self, matches: impl Fn(Slot) -> bool, cx: &mut Context<'_>) {
        for node in cx.nodes() {
            if matches(self.slot(node)) {
                self.leave(node, Slot::Skipped, cx);
            }
        }
    }

    fn leave(&mut self, node: NodeId, then: Slot, cx: &mut Context<'_>) {
        let slot = self.slot(node);
        self.set(node, then);
        let unanswered = matches!(slot, Slot::Asked { .. });
        if let Some(seq) = slot.seq().filter(|_| !unanswered || cx.rules.has(Rule::Q6LeaveUnanswered)) {
            self.leaving[usize::from(node)] = seq;
            cx.send(node, seq, Body::Leave);
        }
    }

    pub fn send_leave_again(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let seq = self.leaving[usize::from(node)];
        cx.send(node, seq, Body::Leave);
    }

    /// The node has served a leave.
    pub fn on_left(&mut self, node: NodeId, seq: Seq) {
        let leaving = &mut self.leaving[usize::from(node)];
        if *leaving <= seq {
            *leaving = 0;
        }
    }

    /// Whether it wants the place or the hold of this attempt at the node, or will still end it.
    pub fn answers_for(&self, node: NodeId, seq: Seq) -> bool {
        self.slot(node).seq() == Some(seq) || self.leaving[usize::from(node)] >= seq
    }

    /// For `settle`: lifts all limits.
    pub fn allow_all(&mut self) {
        (self.starts, self.retries, self.renewals) = (u8::MAX, u8::MAX, u8::MAX);
    }
}
