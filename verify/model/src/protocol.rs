//! The whole: clients, network and server as one state, and what may happen next in it.

use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};

use crate::client::{Client, Desk};
use crate::network::{Answer, ClientId, Message, Network, Push, Request, Time, Token};
use crate::oblivion::Oblivion;
use crate::properties;
use crate::rules::Rules;
use crate::server::{Script, Server};

/// How far the model looks, and the durations in it, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub clients: u8,
    /// Attempts of each client, and its nested acquires.
    pub attempts: u8,
    pub entries: u8,
    /// Times that each client sends a request anew: each time one more copy of it is under way.
    pub retries: u8,
    /// Messages under way at once.
    pub in_flight: usize,
    /// The last tick.
    pub end: Time,
    pub lease: Time,
    pub grant_ttl: Time,
    pub waiter_ttl: Time,
    pub patience: Time,
    /// R7: whether pushes are ever trusted. Without, each grant is confirmed.
    pub trust: bool,
    /// Whether requests and replies get lost for good, rather than late without bound. Pushes
    /// always may.
    pub lossy: bool,
    /// The last client only tries: it takes a free lock, and never waits.
    pub tries: bool,
    pub force_unlock: bool,
    pub restart: bool,
}

impl Bounds {
    /// R2: until when a request that is sent now may be served.
    pub fn not_after(&self, sent: Time) -> Time {
        sent + self.patience
    }

    pub fn waits(&self, id: ClientId) -> bool {
        !self.tries || id + 1 < self.clients
    }

    /// TIME in microseconds, as far as tokens are concerned: more in each tick than grants can
    /// use up. While the stored token is kept the clock only makes gaps, so it is left out there.
    pub fn clock_for_tokens(&self, now: Time) -> Token {
        if self.restart { now * 16 } else { 0 }
    }
}

/// What no part of the system knows, kept to judge it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The greatest token ever given.
    pub highest: Token,
    /// Holds up to this token were ended by force, or lost with the server's data: exclusion is
    /// not promised for them.
    pub excused: Token,
    forced: bool,
    restarted: bool,
    pub clock_in_tokens: bool,
    pub wrong: Option<Wrong>,
}

/// A step that must not be, where the state after it would not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wrong {
    TokenDidNotGrow,
    Overtaken,
}

/// What a run must have come across, lest it hold only because nothing happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
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
    TellsOfLoss,
    Busy,
    OldPlace,
}

/// A set of sights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen(u32);

impl Seen {
    pub fn add(&mut self, sight: Sight) {
        self.0 |= 1 << sight as u32;
    }

    pub fn has(self, sight: Sight) -> bool {
        self.0 & 1 << sight as u32 != 0
    }
}

/// `Hash` is in names.rs: it does not tell states apart that differ in numbers only.
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
    Enter(ClientId),
    Unlock(ClientId),
    NoticeLoss(ClientId),
    SendLateLeave(ClientId),
    Deliver(Message),
    Lose(Message),
    /// A poll without tickets, by anybody.
    Clear,
    ForceUnlock,
    /// The server comes back empty.
    Restart,
}

/// The protocol with its rules, within bounds.
#[derive(Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub bounds: Bounds,
    seen: AtomicU32,
}

impl Protocol {
    pub fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, seen: AtomicU32::new(0) }
    }

    /// What was come across, in all states together.
    pub fn seen(&self) -> Seen {
        Seen(self.seen.load(Ordering::Relaxed))
    }

    fn script<'a>(&'a self, state: &'a mut State, seen: &'a mut Seen) -> Script<'a> {
        let State { now, server, network, ghost, .. } = state;
        Script { rules: &self.rules, bounds: &self.bounds, now: *now, server, network, ghost, seen }
    }

    /// Lets one client act.
    fn act(&self, state: &mut State, id: ClientId, seen: &mut Seen, act: impl FnOnce(&mut Client, &mut Desk<'_>)) {
        let State { now, clients, network, .. } = state;
        let mut desk = Desk { id, rules: &self.rules, bounds: &self.bounds, now: *now, network, seen };
        act(&mut clients[usize::from(id)], &mut desk);
    }

    fn tick(state: &mut State, seen: &mut Seen) {
        state.now += 1;
        state.server.expire(state.now, seen);
    }

    fn deliver(&self, state: &mut State, message: Message, seen: &mut Seen) {
        state.network.remove(&message);
        match message {
            Message::ToServer { from, request } => {
                let answer = self.serve(state, from, request, seen);
                state.network.insert(Message::Reply { to: from, request, answer });
            }
            Message::Reply { to, request, answer } => {
                self.act(state, to, seen, |client, desk| client.answered(request, answer, desk));
            }
            Message::Pushed { to, push: Push::Grant { seq, token, lasts } } => {
                self.act(state, to, seen, |client, desk| client.pushed(seq, token, lasts, desk));
            }
            Message::Pushed { to, push: Push::Revoked { .. } } => self.act(state, to, seen, Client::lose),
        }
    }

    fn serve(&self, state: &mut State, from: ClientId, request: Request, seen: &mut Seen) -> Answer {
        let mut script = self.script(state, seen);
        match request {
            Request::Acquire { seq, sent, nested, .. } => Answer::Acquired(script.acquire(from, seq, sent, nested)),
            Request::Poll { seq, .. } => Answer::Polled(script.poll(from, seq)),
            Request::Leave { seq, attempt, last, .. } => Answer::Left(script.leave(from, seq, attempt, last)),
            Request::Release { seq, holds, token, attempt, last, .. } => {
                Answer::Released(script.release(from, seq, holds, token, attempt, last))
            }
            Request::Renew { token, only, .. } => Answer::Renewed(script.renew(from, token, only)),
        }
    }

    fn force_unlock(&self, state: &mut State, seen: &mut Seen) {
        state.ghost.forced = true;
        state.ghost.excused = state.ghost.highest;
        self.script(state, seen).force_unlock();
    }

    /// It takes a tick at least, so the clock has passed all tokens given; and every connection
    /// dies with it, so nothing is under way.
    fn restart(state: &mut State, seen: &mut Seen) {
        state.ghost.restarted = true;
        state.ghost.excused = state.ghost.highest;
        state.server = Server::default();
        state.network.clear();
        Self::tick(state, seen);
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
            // All clients are alike: whoever begins first is called 0, and so on.
            let in_turn = id == 0 || bounds.tries || clients[usize::from(id) - 1].has_started();
            offer(client.may_start() && in_turn, Action::Start(id));
            offer(client.may_retry(), Action::Retry(id));
            offer(client.may_retry_leave(), Action::RetryLeave(id));
            offer(client.may_give_up(), Action::GiveUp(id));
            offer(client.may_poll(id, network, rules), Action::Poll(id));
            offer(client.may_renew(id, network, bounds, *now), Action::Renew(id));
            offer(client.may_enter(*now), Action::Enter(id));
            offer(client.may_unlock(), Action::Unlock(id));
            offer(client.may_notice_loss(*now), Action::NoticeLoss(id));
            offer(client.may_send_late_leave(), Action::SendLateLeave(id));
        }
        for message in network.iter() {
            let deaf = matches!(message, Message::Pushed { to, push } if !clients[usize::from(*to)].listens_to(push));
            offer(!deaf, Action::Deliver(*message));
            offer(bounds.lossy || matches!(message, Message::Pushed { .. }), Action::Lose(*message));
        }
        offer(server.lock.is_none() && !server.queue.is_empty(), Action::Clear);
        offer(bounds.force_unlock && !ghost.forced && server.lock.is_some(), Action::ForceUnlock);
        offer(bounds.restart && !ghost.restarted && *now < bounds.end, Action::Restart);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        let mut seen = Seen::default();
        match action {
            Action::Tick => Self::tick(&mut state, &mut seen),
            Action::Start(id) => self.act(&mut state, id, &mut seen, Client::start),
            Action::Retry(id) => self.act(&mut state, id, &mut seen, Client::retry),
            Action::RetryLeave(id) => self.act(&mut state, id, &mut seen, Client::retry_leave),
            Action::GiveUp(id) => self.act(&mut state, id, &mut seen, Client::give_up),
            Action::Poll(id) => self.act(&mut state, id, &mut seen, Client::poll),
            Action::Renew(id) => self.act(&mut state, id, &mut seen, Client::renew),
            Action::Enter(id) => self.act(&mut state, id, &mut seen, Client::enter),
            Action::Unlock(id) => self.act(&mut state, id, &mut seen, Client::unlock),
            Action::NoticeLoss(id) => self.act(&mut state, id, &mut seen, Client::lose),
            Action::SendLateLeave(id) => self.act(&mut state, id, &mut seen, Client::send_late_leave),
            Action::Deliver(message) => self.deliver(&mut state, message, &mut seen),
            Action::Lose(message) => state.network.remove(&message),
            Action::Clear => self.script(&mut state, &mut seen).clear(),
            Action::ForceUnlock => self.force_unlock(&mut state, &mut seen),
            Action::Restart => Self::restart(&mut state, &mut seen),
        }
        Oblivion { rules: &self.rules, bounds: &self.bounds }.forget(&mut state, &mut seen);
        if state.network.len() > self.bounds.in_flight {
            return None;
        }
        // Not part of the state: what was seen on the way must not double the space.
        if seen.0 & !self.seen.load(Ordering::Relaxed) != 0 {
            self.seen.fetch_or(seen.0, Ordering::Relaxed);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
