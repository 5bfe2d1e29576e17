//! The protocol: clients, network and server as one state, and the steps that lead to another one.

use crate::bounds::{Bounds, Fault};
use crate::client::{Client, Doubt};
use crate::events::Reached;
use crate::ghost::{Event, EventSet, Ghost, Violation};
use crate::handle::Handle;
use crate::network::{
    Answer, ClientId, HANDLES, Message, Network, OWNERS_OF_A_CLIENT, OwnerId, Poll, Polled, Push, Request, Ticket, Time,
};
use crate::owner::{Context, Owner};
use crate::rules::Rules;
use crate::server::{Script, Server};

/// `Hash` is in canonical.rs: it ignores the absolute values of tokens and seqs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub now: Time,
    pub server: Server,
    pub owners: Vec<Owner>,
    /// Their owners have the numbers from `HANDLES` on.
    pub handles: Vec<Handle>,
    pub clients: Vec<Client>,
    pub network: Network,
    pub ghost: Ghost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(OwnerId),
    Retry(OwnerId),
    RetryLeave(OwnerId),
    GiveUp(OwnerId),
    Renew(OwnerId),
    Reenter(OwnerId),
    Unlock(OwnerId),
    NoticeLoss(OwnerId),
    SendLateLeave(OwnerId),
    /// To this lease.
    Extend(OwnerId, Time),
    Detach(OwnerId),
    Attach(OwnerId, OwnerId),
    ExtendHandle(OwnerId),
    ReleaseHandle(OwnerId),
    Poll(ClientId),
    GiveUpPoll(ClientId),
    /// The client's subscription breaks.
    Deafen(ClientId),
    Reconnect(ClientId),
    Deliver(Message),
    Lose(Message),
    /// A poll without a client: passes on a free lock.
    PassOn,
    Fault(Fault),
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub bounds: Bounds,
    pub reached: Reached<Event>,
}

impl Protocol {
    pub fn script<'a>(&'a self, state: &'a mut State, deaf: &'a [bool], events: &'a mut EventSet) -> Script<'a> {
        let State { now, server, network, ghost, .. } = state;
        let mut script =
            Script { rules: &self.rules, bounds: &self.bounds, now: *now, deaf, server, network, ghost, events };
        script.boot();
        script
    }

    pub fn note(&self, events: EventSet) {
        self.reached.note(events);
    }

    /// Runs one step of an owner.
    pub fn act(
        &self,
        state: &mut State,
        id: OwnerId,
        events: &mut EventSet,
        step: impl FnOnce(&mut Owner, &mut Context<'_>),
    ) {
        let client = self.bounds.client_of(id);
        let others_wait = self.waiting(state, client).any(|(other, _)| other != id);
        let State { now, owners, clients, network, .. } = state;
        let client = &mut clients[usize::from(client)];
        let (rules, bounds) = (&self.rules, &self.bounds);
        let mut cx = Context { id, client, others_wait, rules, bounds, now: *now, network, events };
        step(&mut owners[usize::from(id)], &mut cx);
    }

    /// The owners of a client that wait, with their seqs.
    fn waiting<'a>(&'a self, state: &'a State, client: ClientId) -> impl Iterator<Item = (OwnerId, u8)> + 'a {
        let seq = |owner: OwnerId| state.owners.get(usize::from(owner)).and_then(Owner::waiting_seq);
        self.bounds.owners_of(client).filter_map(move |owner| seq(owner).map(|seq| (owner, seq)))
    }

    pub fn may_poll(&self, state: &State, client: ClientId) -> bool {
        self.rules.r8_poll
            && self.waiting(state, client).next().is_some()
            && state.clients[usize::from(client)].may_poll(client, &state.network)
    }

    /// src/engine/poller.rs
    pub fn poll(&self, state: &mut State, client: ClientId, events: &mut EventSet) {
        let waiting: Vec<_> = self.waiting(state, client).collect();
        let mut seqs = [0; OWNERS_OF_A_CLIENT];
        for (index, owner) in self.bounds.owners_of(client).enumerate() {
            if let Some((_, seq)) = waiting.iter().find(|(other, _)| *other == owner) {
                seqs[index] = *seq;
                self.act(state, owner, events, Owner::notice_lost_confirmation);
            }
        }
        let asking = &mut state.clients[usize::from(client)];
        asking.give_up_poll(&self.rules, events);
        let poll = asking.next_poll(state.now, seqs, self.rules.rotation, &self.rules);
        state.network.insert(Message::PollToServer { from: client, poll });
    }

    fn on_polled(&self, state: &mut State, client: ClientId, poll: Poll, answer: Polled, events: &mut EventSet) {
        let now = state.now;
        let (bounds, rules) = (&self.bounds, &self.rules);
        let holder = answer.holder.filter(|holder| bounds.client_of(holder.owner) == client);
        // Whether a grant may have come and ended unnoticed since the last answer.
        let unnoticed = bounds.grant_ttl(client).min(bounds.waiter_ttl);
        let asked_before = &state.clients[usize::from(client)];
        let is_long_ago = |owner: OwnerId| {
            let trusted = state.owners[usize::from(owner)].trusted_answer(asked_before, rules);
            trusted.is_some_and(|(sent, _)| now >= sent + unnoticed)
        };
        let gap = self.waiting(state, client).any(|(owner, _)| is_long_ago(owner));
        // An answer "queued" that came since, or is still on the way, may be older than this one: the server has
        // verified the others only.
        let is_unverified = |(index, owner): (usize, OwnerId)| {
            let owner = state.owners.get(usize::from(owner));
            owner.is_some_and(|owner| {
                let waits = owner.waiting_seq().is_some_and(|seq| seq != poll.waiting[index]);
                waits || owner.is_asking()
            })
        };
        let asks = rules.doubt_covers_asking && bounds.owners_of(client).enumerate().any(is_unverified);
        {
            let asking = &mut state.clients[usize::from(client)];
            asking.poll = None;
            if asking.answered.is_none_or(|(sent, _)| sent <= poll.sent) {
                asking.answered = Some((poll.sent, answer.floor));
            }
            if poll.verifies && asking.doubt == Doubt::Verifying {
                events.add(Event::DoubtEnded);
                asking.doubt = if asks { Doubt::Raised } else { Doubt::None };
            }
        }
        if let Some(holder) = holder {
            self.act(state, holder.owner, events, |owner, cx| owner.on_named(poll.sent, holder, cx));
        }
        let is_free = answer.holder.is_none() && !answer.stopped && rules.free_lock_tells;
        let mut still_waiting = 0;
        for (index, owner) in bounds.owners_of(client).enumerate() {
            let seq = state.owners.get(usize::from(owner)).and_then(Owner::waiting_seq);
            if seq != Some(poll.waiting[index]) {
                continue;
            }
            if is_free && !answer.missing[index] {
                events.add(Event::FreeLockTold);
            }
            if answer.missing[index] || is_free {
                self.act(state, owner, events, Owner::lose_place);
            } else {
                still_waiting += 1;
            }
        }
        // What speaks for doubt is answered already where this poll has asked for all tickets.
        let unknown = !answer.known && rules.doubt_unknown;
        let places = answer.places < still_waiting && rules.doubt_places;
        if (!poll.verifies || asks) && (unknown || places || gap && rules.doubt_gap) {
            state.clients[usize::from(client)].raise_doubt(rules, events);
        }
    }

    pub fn tick(&self, state: &mut State, events: &mut EventSet) {
        state.now += 1;
        state.server.expire(state.now, &self.bounds, events);
    }

    pub fn deliver(&self, state: &mut State, message: Message, events: &mut EventSet) {
        state.network.remove(&message);
        match message {
            Message::ToServer { from, request } => {
                let answer = self.serve(state, from, request, events);
                state.network.insert(Message::Reply { to: from, request, answer });
            }
            Message::PollToServer { from, poll } => {
                let deaf = deaf(state);
                let answer = self.script(state, &deaf, events).poll(from, poll);
                state.network.insert(Message::PollReply { to: from, poll, answer });
            }
            Message::Reply { to, request, answer } => {
                self.tell_handle(state, to, request, answer, events);
                if to < HANDLES {
                    self.act(state, to, events, |owner, cx| owner.on_reply(request, answer, cx));
                }
            }
            Message::PollReply { to, poll, answer } => self.on_polled(state, to, poll, answer, events),
            Message::Pushed { to, push: Push::Grant { seq, token, lasts } } => {
                self.act(state, to, events, |owner, cx| owner.on_grant(seq, token, lasts, cx));
            }
            Message::Pushed { to, push: Push::Revoked { .. } } => self.act(state, to, events, Owner::on_revoked),
        }
    }

    /// Delivers a message if its addressee has a use for it, and drops it otherwise.
    pub fn deliver_or_drop(&self, state: &mut State, message: Message, events: &mut EventSet) {
        let has_use = match &message {
            Message::Reply { to, request, .. } => state.awaits(*to, request),
            Message::PollReply { to, poll, .. } => state.clients[usize::from(*to)].awaits(poll),
            Message::Pushed { to, push } => {
                let owner = &state.owners[usize::from(*to)];
                owner.may_use(push, &self.rules) && owner.accepts(push)
            }
            Message::ToServer { .. } | Message::PollToServer { .. } => true,
        };
        if has_use {
            self.deliver(state, message, events);
        } else {
            state.network.remove(&message);
        }
    }

    /// A client forgets the name when none of its owners asks for it or waits.
    pub fn forget_names(&self, state: &mut State) {
        let State { owners, clients, network, .. } = state;
        let rules = &self.rules;
        for (id, client) in (0..).zip(clients) {
            let waits = |owner: OwnerId| {
                let owner = owners.get(usize::from(owner));
                let asks = |owner: &Owner| rules.doubt_covers_asking && owner.is_asking();
                owner.is_some_and(|owner| owner.waiting_seq().is_some() || asks(owner))
            };
            if self.bounds.owners_of(id).any(waits) {
                continue;
            }
            client.answered = None;
            client.doubt = Doubt::None;
            client.verified = false;
            if client.poll.is_some_and(|poll| !network.has_poll(id, poll.number)) {
                client.poll = None;
            }
        }
    }

    fn serve(&self, state: &mut State, from: OwnerId, request: Request, events: &mut EventSet) -> Answer {
        let deaf = deaf(state);
        let mut script = self.script(state, &deaf, events);
        match request {
            Request::Acquire { seq, sent, give_up, nested, .. } => {
                Answer::Acquired(script.acquire(from, seq, sent, give_up, nested))
            }
            Request::Leave { seq, attempt, copies_until, .. } => {
                Answer::Left(script.leave(from, seq, attempt, copies_until))
            }
            Request::Release { seq, holds, token, attempt, copies_until, .. } => {
                Answer::Released(script.release(from, seq, holds, token, attempt, copies_until))
            }
            Request::Give { from, to, seq, sent, token, .. } => Answer::Given(script.give(from, to, seq, sent, token)),
            Request::Extend { seq, token, lease, .. } => Answer::Renewed(script.renew_as_last(from, seq, token, lease)),
            Request::Renew { token, only, .. } => Answer::Renewed(script.renew(from, token, only)),
        }
    }

    /// The connection of a client is replaced. Its subscription works again. What was on the way to the client
    /// is lost; its requests may still arrive.
    pub fn reconnect(&self, state: &mut State, client: ClientId, events: &mut EventSet) {
        state.ghost.reconnects += 1;
        let bounds = self.bounds;
        state.network.retain(|message| match message {
            Message::PollReply { to, .. } => *to != client,
            Message::Reply { to, .. } | Message::Pushed { to, .. } => *to >= HANDLES || bounds.client_of(*to) != client,
            _ => true,
        });
        let reconnecting = &mut state.clients[usize::from(client)];
        reconnecting.deaf = false;
        reconnecting.give_up_poll(&self.rules, events);
        if self.rules.doubt_reconnect {
            reconnecting.raise_doubt(&self.rules, events);
        }
        for owner in bounds.owners_of(client) {
            self.act(state, owner, events, Owner::reconnected);
        }
    }

    pub fn fault(&self, state: &mut State, fault: Fault, events: &mut EventSet) {
        state.ghost.fault = Some(fault);
        // P1 does not cover holds that were ended so, and pushes about them. Only the queue's keys are not needed
        // for it.
        if !matches!(fault, Fault::DeleteQueue | Fault::DeleteDeadlines | Fault::Stall(_)) {
            state.ghost.exempt_up_to = state.ghost.highest;
        }
        let token = state.server.token;
        match fault {
            Fault::ForceUnlock => {
                let deaf = deaf(state);
                self.script(state, &deaf, events).force_unlock();
            }
            // A restart takes at least one tick, so the clock is past all tokens given out (R10). All
            // connections break, so nothing stays in flight.
            Fault::Restart => {
                state.server = Server::restarted(&self.bounds);
                state.network.clear();
                self.tick(state, events);
            }
            // The clock is past all tokens that were given out. The one kept here stands for it.
            Fault::Flush => state.server = Server { token, ..Server::restarted(&self.bounds) },
            Fault::DeleteLock => state.server.lock = None,
            Fault::DeleteQueue => state.server.queue.clear(),
            Fault::DeleteDeadlines => state.server.forget_queue(),
            Fault::ClockStep => {
                let by = self.bounds.waiter_ttl;
                let server = &mut state.server;
                if let Some(lock) = &mut server.lock {
                    lock.expires = lock.expires.saturating_sub(by);
                }
                server.heard.iter_mut().for_each(|(_, heard)| heard.until = heard.until.saturating_sub(by));
                server.expire(state.now, &self.bounds, events);
            }
            Fault::Stall(length) => self.stall(state, length, events),
            Fault::ClockBack => {
                let server = &mut state.server;
                if let Some(lock) = &mut server.lock {
                    lock.expires += 1;
                }
                server.heard.iter_mut().for_each(|(_, heard)| heard.until += 1);
                server.skip_at += 1;
            }
        }
    }

    /// Nothing arrives for `length`. A client that was heard a moment before waits on when the server goes on.
    fn stall(&self, state: &mut State, length: Time, events: &mut EventSet) {
        let (bounds, began) = (&self.bounds, state.now);
        let polls_in_time = |ticket: &Ticket| {
            let heard = state.server.heard.get(&bounds.client_of(ticket.owner));
            heard.is_some_and(|heard| heard.until + bounds.waiter_ttl / 2 > began + bounds.waiter_ttl)
        };
        let kept = state.server.waiting(began, bounds).filter(polls_in_time).collect();
        state.now += length;
        let is_noticed = length >= bounds.waiter_ttl / 2;
        state.ghost.kept = if is_noticed { kept } else { Vec::new() };
        (state.ghost.stall, state.ghost.kept_until) = (length, state.now + bounds.waiter_ttl);
        state.server.expire(state.now, bounds, events);
    }

    /// A living ticket loses its place by a grant or by a request of its owner, and in no other way.
    pub fn check_places(&self, had: &[Ticket], before: &[Ticket], action: Action, state: &mut State) {
        if matches!(action, Action::Fault(_)) {
            return;
        }
        let of_its_owner = |ticket: Ticket| match action {
            Action::Deliver(Message::ToServer { from, .. }) => from == ticket.owner,
            _ => false,
        };
        let after: Vec<_> = state.server.waiting(state.now, &self.bounds).collect();
        let granted = state.server.lock.map(|lock| Ticket { owner: lock.owner, seq: lock.attempt });
        let is_lost = |ticket: &Ticket| {
            !after.contains(ticket)
                && granted != Some(*ticket)
                && !of_its_owner(*ticket)
                && state.server.alive_until_or_heard(*ticket, state.now, &self.bounds)
        };
        // A silence is forgiven.
        let is_kept = |ticket: &Ticket| state.ghost.kept.contains(ticket) && state.now < state.ghost.kept_until;
        let is_gone = |ticket: &Ticket| !state.server.queue.contains(ticket);
        let mut kept = had.iter().filter(|ticket| is_kept(ticket));
        if before.iter().any(is_lost) || kept.any(|it| is_gone(it) && granted != Some(*it) && !of_its_owner(*it)) {
            state.ghost.violation = Some(Violation::PlaceLost);
        }
    }
}

/// Which clients a push does not reach.
pub fn deaf(state: &State) -> Vec<bool> {
    state.clients.iter().map(|client| client.deaf).collect()
}
