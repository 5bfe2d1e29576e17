//! The model: clients, network and server as one state, and the actions possible in it.

use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};

use crate::client::{Client, Context};
use crate::network::{Answer, ClientId, Message, Network, Push, Request, Time, Token};
use crate::properties;
use crate::pruning::Pruning;
use crate::rules::Rules;
use crate::server::{Script, Server};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub clients: u8,
    /// Attempts and nested acquires of each client.
    pub attempts: u8,
    pub reentries: u8,
    /// Retries of each client. Each puts one more copy of a request in flight.
    pub retries: u8,
    /// Messages in flight at once.
    pub in_flight: usize,
    /// The last tick of the clock.
    pub end: Time,
    pub lease: Time,
    pub grant_ttl: Time,
    pub waiter_ttl: Time,
    pub operation_timeout: Time,
    /// R7: whether pushes may be trusted. If not, each grant is confirmed.
    pub trust: bool,
    /// Whether requests and replies may be lost; if not, they may only be late, without bound.
    /// Pushes may always be lost.
    pub lossy: bool,
    /// The last client uses `try_lock`: it takes a free lock and never waits.
    pub try_lock: bool,
    pub force_unlock: bool,
    pub restart: bool,
}

impl Bounds {
    /// R2: until when an acquire that is sent at `sent` may be served.
    pub fn not_after(&self, sent: Time) -> Time {
        sent + self.operation_timeout
    }

    pub fn waits(&self, id: ClientId) -> bool {
        !self.try_lock || id + 1 < self.clients
    }

    /// Redis TIME as a token (R10): grows faster than grants can. While the stored token is kept the
    /// clock would only leave gaps between tokens, so only restarts need it.
    pub fn clock_for_tokens(&self, now: Time) -> Token {
        if self.restart { now * 16 } else { 0 }
    }
}

/// Ghost variables: no client or script reads them, only the properties and the bounds of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The greatest token given out so far.
    pub highest: Token,
    /// Holds up to this token were ended by force_unlock or lost with the server's data. P1 does not
    /// cover them.
    pub exempt_up_to: Token,
    forced: bool,
    restarted: bool,
    pub clock_in_tokens: bool,
    pub violation: Option<Violation>,
}

/// A forbidden step that the state after it does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    TokenDidNotGrow,
    Overtaken,
}

/// Events that a base run must reach. A run in which too little happens would hold for that reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    HandOver,
    HeldByTrust,
    HeldByConfirm,
    HeldByPoll,
    Nested,
    LeaseExpired,
    RetryAnswered,
    TombstoneRefused,
    LeftWhileOwner,
    FloorRefused,
    LossReported,
    Busy,
    OldEntry,
}

/// A set of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventSet(u32);

impl EventSet {
    pub fn add(&mut self, event: Event) {
        self.0 |= 1 << event as u32;
    }

    pub fn contains(self, event: Event) -> bool {
        self.0 & 1 << event as u32 != 0
    }
}

/// `Hash` is in canonical.rs: it ignores the absolute values of tokens and seqs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub now: Time,
    pub server: Server,
    pub clients: Vec<Client>,
    pub network: Network,
    pub ghost: Ghost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(ClientId),
    Retry(ClientId),
    RetryLeave(ClientId),
    GiveUp(ClientId),
    Poll(ClientId),
    Renew(ClientId),
    Reenter(ClientId),
    Unlock(ClientId),
    NoticeLoss(ClientId),
    SendLateLeave(ClientId),
    Deliver(Message),
    Lose(Message),
    /// A poll without tickets: passes on a free lock.
    PassOn,
    ForceUnlock,
    /// The server restarts without its data.
    Restart,
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub bounds: Bounds,
    reached: AtomicU32,
}

impl Protocol {
    pub fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, reached: AtomicU32::new(0) }
    }

    /// The events reached in all states together.
    pub fn reached(&self) -> EventSet {
        EventSet(self.reached.load(Ordering::Relaxed))
    }

    fn script<'a>(&'a self, state: &'a mut State, events: &'a mut EventSet) -> Script<'a> {
        let State { now, server, network, ghost, .. } = state;
        Script { rules: &self.rules, bounds: &self.bounds, now: *now, server, network, ghost, events }
    }

    /// Runs one step of a client.
    fn act(
        &self,
        state: &mut State,
        id: ClientId,
        events: &mut EventSet,
        step: impl FnOnce(&mut Client, &mut Context<'_>),
    ) {
        let State { now, clients, network, .. } = state;
        let mut cx = Context { id, rules: &self.rules, bounds: &self.bounds, now: *now, network, events };
        step(&mut clients[usize::from(id)], &mut cx);
    }

    fn tick(state: &mut State, events: &mut EventSet) {
        state.now += 1;
        state.server.expire(state.now, events);
    }

    fn deliver(&self, state: &mut State, message: Message, events: &mut EventSet) {
        state.network.remove(&message);
        match message {
            Message::ToServer { from, request } => {
                let answer = self.serve(state, from, request, events);
                state.network.insert(Message::Reply { to: from, request, answer });
            }
            Message::Reply { to, request, answer } => {
                self.act(state, to, events, |client, cx| client.on_reply(request, answer, cx));
            }
            Message::Pushed { to, push: Push::Grant { seq, token, lasts } } => {
                self.act(state, to, events, |client, cx| client.on_grant(seq, token, lasts, cx));
            }
            Message::Pushed { to, push: Push::Revoked { .. } } => self.act(state, to, events, Client::lose),
        }
    }

    fn serve(&self, state: &mut State, from: ClientId, request: Request, events: &mut EventSet) -> Answer {
        let mut script = self.script(state, events);
        match request {
            Request::Acquire { seq, sent, nested, .. } => Answer::Acquired(script.acquire(from, seq, sent, nested)),
            Request::Poll { seq, .. } => Answer::Polled(script.poll(from, seq)),
            Request::Leave { seq, attempt, copies_until, .. } => {
                Answer::Left(script.leave(from, seq, attempt, copies_until))
            }
            Request::Release { seq, holds, token, attempt, copies_until, .. } => {
                Answer::Released(script.release(from, seq, holds, token, attempt, copies_until))
            }
            Request::Renew { token, only, .. } => Answer::Renewed(script.renew(from, token, only)),
        }
    }

    fn force_unlock(&self, state: &mut State, events: &mut EventSet) {
        state.ghost.forced = true;
        state.ghost.exempt_up_to = state.ghost.highest;
        self.script(state, events).force_unlock();
    }

    /// A restart takes at least one tick, so the clock is past all tokens given out (R10). All
    /// connections break, so nothing stays in flight.
    fn restart(state: &mut State, events: &mut EventSet) {
        state.ghost.restarted = true;
        state.ghost.exempt_up_to = state.ghost.highest;
        state.server = Server::default();
        state.network.clear();
        Self::tick(state, events);
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = (0..self.bounds.clients).map(|_| Client::new(&self.bounds)).collect();
        let ghost = Ghost { clock_in_tokens: self.bounds.restart, ..Ghost::default() };
        let (server, network) = (Server::default(), Network::default());
        vec![State { now: 0, server, clients, network, ghost }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { now, server, clients, network, ghost } = state;
        let (rules, bounds) = (&self.rules, &self.bounds);
        let mut offer = |may: bool, action: Action| {
            if may {
                actions.push(action);
            }
        };
        offer(*now < bounds.end, Action::Tick);
        for (id, client) in (0..).zip(clients) {
            // Clients are interchangeable, so they start in order of their ids.
            let in_turn = id == 0 || bounds.try_lock || clients[usize::from(id) - 1].has_started();
            offer(client.may_start() && in_turn, Action::Start(id));
            offer(client.may_retry(), Action::Retry(id));
            offer(client.may_retry_leave(), Action::RetryLeave(id));
            offer(client.may_give_up(), Action::GiveUp(id));
            offer(client.may_poll(id, network, rules), Action::Poll(id));
            offer(client.may_renew(id, network, bounds, *now), Action::Renew(id));
            offer(client.may_reenter(*now), Action::Reenter(id));
            offer(client.may_unlock(), Action::Unlock(id));
            offer(client.may_notice_loss(*now), Action::NoticeLoss(id));
            offer(client.may_send_late_leave(), Action::SendLateLeave(id));
        }
        for message in network.iter() {
            let too_early = matches!(message, Message::Pushed { to, push } if !clients[usize::from(*to)].accepts(push));
            offer(!too_early, Action::Deliver(*message));
            offer(bounds.lossy || matches!(message, Message::Pushed { .. }), Action::Lose(*message));
        }
        offer(server.lock.is_none() && !server.queue.is_empty(), Action::PassOn);
        offer(bounds.force_unlock && !ghost.forced && server.lock.is_some(), Action::ForceUnlock);
        offer(bounds.restart && !ghost.restarted && *now < bounds.end, Action::Restart);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        let mut events = EventSet::default();
        match action {
            Action::Tick => Self::tick(&mut state, &mut events),
            Action::Start(id) => self.act(&mut state, id, &mut events, Client::start),
            Action::Retry(id) => self.act(&mut state, id, &mut events, Client::retry),
            Action::RetryLeave(id) => self.act(&mut state, id, &mut events, Client::retry_leave),
            Action::GiveUp(id) => self.act(&mut state, id, &mut events, Client::give_up),
            Action::Poll(id) => self.act(&mut state, id, &mut events, Client::poll),
            Action::Renew(id) => self.act(&mut state, id, &mut events, Client::renew),
            Action::Reenter(id) => self.act(&mut state, id, &mut events, Client::reenter),
            Action::Unlock(id) => self.act(&mut state, id, &mut events, Client::unlock),
            Action::NoticeLoss(id) => self.act(&mut state, id, &mut events, Client::lose),
            Action::SendLateLeave(id) => self.act(&mut state, id, &mut events, Client::send_late_leave),
            Action::Deliver(message) => self.deliver(&mut state, message, &mut events),
            Action::Lose(message) => state.network.remove(&message),
            Action::PassOn => self.script(&mut state, &mut events).pass_on(),
            Action::ForceUnlock => self.force_unlock(&mut state, &mut events),
            Action::Restart => Self::restart(&mut state, &mut events),
        }
        Pruning { rules: &self.rules, bounds: &self.bounds }.prune(&mut state, &mut events);
        if state.network.len() > self.bounds.in_flight {
            return None;
        }
        // Kept outside the state: as a part of it, events would multiply the number of states.
        if events.0 & !self.reached.load(Ordering::Relaxed) != 0 {
            self.reached.fetch_or(events.0, Ordering::Relaxed);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
