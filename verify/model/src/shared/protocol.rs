//! Clients, network and server as one state, and the steps that lead to another one.

use super::bounds::{Bounds, Fault};
use super::events::{Event, EventSet, Ghost};
use super::handle::Handle;
use super::network::{
    Answer, ClientId, HANDLES, Message, Network, OWNERS_OF_A_CLIENT, OwnerId, Place, Push, Request, Seq, Token,
};
use super::network::{Time, Weight};
use super::owner::{Context, Owner, Stage};
use super::poller::Client;
use super::rules::Rules;
use super::server::{Script, Server};
use crate::events::Reached;

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
    Shrink(OwnerId),
    Release(OwnerId),
    NoticeLoss(OwnerId),
    SendLateLeave(OwnerId),
    Detach(OwnerId),
    Attach(OwnerId, OwnerId),
    ExtendHandle(OwnerId),
    ReleaseHandle(OwnerId),
    Poll(ClientId),
    /// The client's subscription breaks.
    Deafen(ClientId),
    Deliver(Message),
    Lose(Message),
    /// A poll without a client.
    PassOn,
    SetPermits(Option<Weight>),
    Revoke(Token),
    Fault(Fault),
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Shared {
    pub rules: Rules,
    pub bounds: Bounds,
    pub reached: Reached<Event>,
}

impl Shared {
    pub fn script<'a>(&'a self, state: &'a mut State, deaf: &'a [bool], events: &'a mut EventSet) -> Script<'a> {
        let State { now, server, network, ghost, .. } = state;
        let (rules, bounds) = (&self.rules, &self.bounds);
        let mut script = Script { rules, bounds, now: *now, deaf, server, network, ghost, events, left_ended: false };
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
        let State { now, owners, clients, network, .. } = state;
        let client = &mut clients[usize::from(self.bounds.client_of(id))];
        let mut cx = Context { id, client, rules: &self.rules, bounds: &self.bounds, now: *now, network, events };
        step(&mut owners[usize::from(id)], &mut cx);
    }

    /// The owners of a client that wait, with their seqs.
    fn waiting<'a>(&'a self, state: &'a State, client: ClientId) -> impl Iterator<Item = (OwnerId, Seq)> + 'a {
        let seq = |owner: OwnerId| state.owners.get(usize::from(owner)).and_then(Owner::waiting_seq);
        self.bounds.owners_of(client).filter_map(move |owner| seq(owner).map(|seq| (owner, seq)))
    }

    pub fn may_poll(&self, state: &State, client: ClientId) -> bool {
        self.waiting(state, client).next().is_some()
            && state.clients[usize::from(client)].may_poll(client, &state.network)
    }

    pub fn poll(&self, state: &mut State, client: ClientId, events: &mut EventSet) {
        let waiting: Vec<_> = self.waiting(state, client).collect();
        let mut asked = [0; OWNERS_OF_A_CLIENT];
        for (index, owner) in self.bounds.owners_of(client).enumerate() {
            if let Some((_, seq)) = waiting.iter().take(self.bounds.asks).find(|(other, _)| *other == owner) {
                asked[index] = *seq;
            }
            if waiting.iter().any(|(other, _)| *other == owner) {
                self.act(state, owner, events, Owner::notice_lost_confirmation);
            }
        }
        let poll = state.clients[usize::from(client)].next_poll(state.now, asked);
        state.network.insert(Message::PollToServer { from: client, poll });
    }

    fn on_polled(&self, state: &mut State, client: ClientId, message: Message, events: &mut EventSet) {
        let Message::PollReply { poll, answer, .. } = message else { return };
        {
            let asking = &mut state.clients[usize::from(client)];
            asking.poll = None;
            asking.note_answer(poll.sent, answer.floor);
        }
        let mut all_granted = true;
        for (index, owner) in self.bounds.owners_of(client).enumerate() {
            let place = answer.places[index];
            all_granted &= !matches!(place, Place::Waits | Place::Missing);
            let seq = state.owners.get(usize::from(owner)).and_then(Owner::waiting_seq);
            if seq != Some(poll.asked[index]) {
                continue;
            }
            match place {
                Place::Granted { token, remaining } => {
                    self.act(state, owner, events, |owner, cx| owner.on_named(poll.sent, token, remaining, cx));
                }
                Place::Missing => self.act(state, owner, events, Owner::lose_place),
                Place::Waits | Place::NotAsked => {}
            }
        }
        // R8: with lost messages those behind may have been granted too.
        if all_granted && self.rules.polls_next_block && self.waiting(state, client).next().is_some() {
            events.add(Event::NextBlock);
            self.poll(state, client, events);
        }
    }

    pub fn tick(&self, state: &mut State, events: &mut EventSet) {
        state.now += 1;
        state.server.expire(state.now, events);
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
            Message::PollReply { to, .. } => self.on_polled(state, to, message, events),
            Message::Pushed { to, push: Push::Grant { token, lasts, .. } } => {
                self.act(state, to, events, |owner, cx| owner.on_grant(token, lasts, cx));
            }
            Message::Pushed { to, push: Push::Revoked { .. } } => self.act(state, to, events, Owner::lose),
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

    /// A client forgets the name when none of its owners waits.
    pub fn forget_names(&self, state: &mut State) {
        let State { owners, clients, network, .. } = state;
        for (id, client) in (0..).zip(clients) {
            let waits = |owner: OwnerId| owners.get(usize::from(owner)).is_some_and(|it| it.waiting_seq().is_some());
            if self.bounds.owners_of(id).any(waits) {
                continue;
            }
            client.answered = None;
            if client.poll.is_some_and(|poll| !network.carries_poll(id, poll.number)) {
                client.poll = None;
            }
        }
    }

    /// The limit of a token matters as long as somebody may hold under it.
    pub fn forget_limits(&self, state: &mut State) {
        let State { server, owners, handles, network, ghost, .. } = state;
        let is_held = |token: Token| {
            owners.iter().any(|owner| matches!(&owner.stage, Stage::Holding(hold) if hold.token == token))
                || handles.iter().any(|handle| handle.token == token && handle.is_wanted())
        };
        let is_told = |token: Token| {
            network.iter().any(|message| match message {
                Message::Pushed { push: Push::Grant { token: other, .. }, .. } => *other == token,
                Message::Reply { .. } | Message::PollReply { .. } => true,
                _ => false,
            })
        };
        ghost.admitted.retain(|token, _| server.holder_under(*token).is_some() || is_held(*token) || is_told(*token));
    }

    fn serve(&self, state: &mut State, from: OwnerId, request: Request, events: &mut EventSet) -> Answer {
        let deaf = deaf(state);
        let mut script = self.script(state, &deaf, events);
        match request {
            Request::Acquire { seq, sent, nested, .. } => Answer::Acquired(script.acquire(from, seq, sent, nested)),
            Request::Leave { seq, attempt, copies_until, .. } => {
                script.leave(from, seq, attempt, copies_until);
                Answer::Left
            }
            Request::Release { seq, holds, weight, token, attempt, copies_until, .. } => {
                Answer::Released(script.release(from, seq, (holds, weight), token, attempt, copies_until))
            }
            Request::Renew { token, only, .. } => Answer::Renewed(script.renew(from, token, only)),
            Request::Give { from, to, seq, sent, token, .. } => Answer::Given(script.give(from, to, seq, sent, token)),
        }
    }

    /// By another client, whose request is served at once.
    pub fn set_permits(&self, state: &mut State, limit: Option<Weight>, events: &mut EventSet) {
        state.ghost.permits_set += 1;
        let deaf = deaf(state);
        self.script(state, &deaf, events).set_permits(limit);
    }

    pub fn revoke(&self, state: &mut State, token: Token, events: &mut EventSet) {
        (state.ghost.fault, state.ghost.revoked) = (Some(Fault::Revoke), token);
        let deaf = deaf(state);
        self.script(state, &deaf, events).revoke(token);
    }

    pub fn fault(&self, state: &mut State, fault: Fault, events: &mut EventSet) {
        state.ghost.fault = Some(fault);
        state.ghost.exempt_up_to = state.ghost.highest;
        let token = state.server.token;
        match fault {
            Fault::Revoke => {}
            // All connections break, so nothing stays in flight.
            Fault::Restart => {
                state.server = Server::restarted(&self.bounds);
                state.network.clear();
                self.tick(state, events);
            }
            // The clock is past all tokens that were given. The one kept here stands for it.
            Fault::Flush => state.server = Server { token, ..Server::restarted(&self.bounds) },
        }
    }
}

/// Which clients a push does not reach.
pub fn deaf(state: &State) -> Vec<bool> {
    state.clients.iter().map(|client| client.deaf).collect()
}
