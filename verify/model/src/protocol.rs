//! The model: clients, network and server as one state, and the actions possible in it.

use stateright::{Model, Property};

use crate::client::{Client, Doubt};
use crate::events::{self, Reached};
use crate::network::{
    Answer, ClientId, Message, Network, OWNERS_OF_A_CLIENT, OwnerId, Poll, Push, Request, Time, Token,
};
use crate::owner::{Context, Owner};
use crate::properties;
use crate::pruning::Pruning;
use crate::rules::Rules;
use crate::run::Checked;
use crate::server::{Polled, Script, Server, Ticket};

/// The bounds of a run, and its durations in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub clients: u8,
    /// At least one for each client. The others belong to the last client.
    pub owners: u8,
    /// Attempts and nested acquires of each owner.
    pub attempts: u8,
    pub reentries: u8,
    /// Retries of each owner. Each puts one more copy of a request in flight.
    pub retries: u8,
    /// Polls of each client that it gives up while they are in flight.
    pub timeouts: u8,
    /// Messages in flight at once.
    pub in_flight: usize,
    /// The last tick of the clock.
    pub end: Time,
    pub lease: Time,
    /// Of the first client, and of the others.
    pub grant_ttl: [Time; 2],
    pub waiter_ttl: Time,
    /// How long a caller waits; 0: for ever.
    pub patience: Time,
    pub operation_timeout: Time,
    /// Places that `advance` looks at in one call.
    pub looks: usize,
    /// R7: whether pushes may be trusted. If not, each grant is confirmed.
    pub trust: bool,
    /// Whether requests and replies may be lost; if not, they may only be late, without bound.
    /// Pushes may be lost either way.
    pub lossy: bool,
    /// Every poll asks for all tickets. If not, every second one does, and those in doubt.
    pub verifies_always: bool,
    /// Revocations are not lost, only late.
    pub revocations_arrive: bool,
    /// All owners have asked when a run begins: the first one holds the lock, the others are queued.
    pub begun: bool,
    /// The last owner uses `try_lock`: it takes a free lock and never waits.
    pub try_lock: bool,
    /// Whether callers give up, and holders renew. Runs about the queue can do without.
    pub gives_up: bool,
    pub renews: bool,
    /// How often a client may go deaf.
    pub deafens: u8,
    /// How often a connection may be replaced.
    pub reconnects: u8,
    /// One of these may happen, once.
    pub faults: &'static [Fault],
    /// All clients have `strict_restart`, so P1 covers what the server has forgotten (R14).
    pub strict: bool,
    /// Whether the property about waiters looks for what becomes of them without more faults.
    pub settles: bool,
}

/// What happens to the server from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    ForceUnlock,
    /// The server restarts without its data.
    Restart,
    /// FLUSHALL: the data is gone, the connections stay.
    Flush,
    DeleteLock,
    DeleteQueue,
    DeleteDeadlines,
    /// The server's clock is set forward.
    ClockStep,
    /// The server's clock is set back by one tick.
    ClockBack,
}

impl Bounds {
    /// R2: until when an acquire that is sent at `sent` may be served.
    pub fn not_after(&self, sent: Time) -> Time {
        sent + self.operation_timeout
    }

    pub fn waits(&self, owner: OwnerId) -> bool {
        !self.try_lock || owner + 1 != self.owners
    }

    /// Owners beyond the bounds have a client each (settle.rs).
    pub fn client_of(&self, owner: OwnerId) -> ClientId {
        if owner < self.owners { owner.min(self.clients - 1) } else { self.clients + owner - self.owners }
    }

    pub fn owners_of(&self, client: ClientId) -> impl Iterator<Item = OwnerId> {
        let bounds = *self;
        (client..client + bounds.owners)
            .filter(move |owner| bounds.client_of(*owner) == client)
            .take(OWNERS_OF_A_CLIENT)
    }

    pub fn grant_ttl(&self, client: ClientId) -> Time {
        if client >= self.clients {
            return self.waiter_ttl;
        }
        self.grant_ttl[usize::from(client.min(1))]
    }

    /// Whether this owner may start before the one before it. Otherwise owners are interchangeable and start in
    /// order of their ids.
    fn may_be_first(&self, owner: OwnerId) -> bool {
        let differs = self.try_lock || self.grant_ttl[0] != self.grant_ttl[1] || self.clients < self.owners;
        owner == 0 || differs && self.client_of(owner) != self.client_of(owner - 1)
    }

    /// Redis TIME as a token (R10): grows faster than grants can. While the stored token is kept the
    /// clock would only leave gaps between tokens, so only restarts need it.
    pub fn clock_for_tokens(&self, now: Time) -> Token {
        if self.faults.contains(&Fault::Restart) { Token::from(now) * 16 } else { 0 }
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
    pub fault: Option<Fault>,
    deafens: u8,
    reconnects: u8,
    pub clock_in_tokens: bool,
    pub violation: Option<Violation>,
}

/// A forbidden step that the state after it does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    TokenDidNotGrow,
    Overtaken,
    PlaceLost,
}

/// Events that a base run must reach.
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
    /// A grant was trusted from an answer that was not about its ticket alone.
    TrustedByName,
    NoPlace,
    FreeLockTold,
    UnknownHold,
    Doubted,
    DoubtEnded,
    Unreachable,
    PassedOver,
    Skipped,
    SkipReset,
    Stopped,
    DeadCleared,
    LeftFromSkipped,
    AskedAgainDead,
    ListGone,
    /// R14: the server began to grant nothing, and ended that.
    Frozen,
    Thawed,
    /// The property about waiters followed a state to its end.
    Settled,
}

impl events::Event for Event {
    fn number(self) -> u64 {
        self as u64
    }
}

pub type EventSet = events::EventSet<Event>;

/// `Hash` is in canonical.rs: it ignores the absolute values of tokens and seqs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub now: Time,
    pub server: Server,
    pub owners: Vec<Owner>,
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
    reached: Reached<Event>,
}

impl Protocol {
    fn script<'a>(&'a self, state: &'a mut State, deaf: &'a [bool], events: &'a mut EventSet) -> Script<'a> {
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

    fn tick(state: &mut State, events: &mut EventSet) {
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
                self.act(state, to, events, |owner, cx| owner.on_reply(request, answer, cx));
            }
            Message::PollReply { to, poll, answer } => self.on_polled(state, to, poll, answer, events),
            Message::Pushed { to, push: Push::Grant { seq, token, lasts } } => {
                self.act(state, to, events, |owner, cx| owner.on_grant(seq, token, lasts, cx));
            }
            Message::Pushed { to, push: Push::Revoked { .. } } => self.act(state, to, events, Owner::on_revoked),
        }
    }

    /// Delivers a message if somebody there has a use for it, and drops it otherwise.
    pub fn deliver_or_drop(&self, state: &mut State, message: Message, events: &mut EventSet) {
        let has_use = match &message {
            Message::Reply { to, request, .. } => state.owners[usize::from(*to)].awaits(request),
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
            Request::Renew { token, only, .. } => Answer::Renewed(script.renew(from, token, only)),
        }
    }

    /// The connection of a client is replaced. Its subscription works again. What was on the way to the client
    /// is lost; its requests may still arrive.
    fn reconnect(&self, state: &mut State, client: ClientId, events: &mut EventSet) {
        state.ghost.reconnects += 1;
        let bounds = self.bounds;
        state.network.retain(|message| match message {
            Message::PollReply { to, .. } => *to != client,
            Message::Reply { to, .. } | Message::Pushed { to, .. } => bounds.client_of(*to) != client,
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

    fn fault(&self, state: &mut State, fault: Fault, events: &mut EventSet) {
        state.ghost.fault = Some(fault);
        // P1 does not cover holds that were ended so, and pushes about them. Only the queue's keys are not needed
        // for it.
        if !matches!(fault, Fault::DeleteQueue | Fault::DeleteDeadlines) {
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
                Self::tick(state, events);
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
                server.expire(state.now, events);
            }
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

    /// A living ticket loses its place by a grant or by a request of its owner, and in no other way.
    fn check_places(&self, before: &[Ticket], action: Action, state: &mut State) {
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
        if before.iter().any(is_lost) {
            state.ghost.violation = Some(Violation::PlaceLost);
        }
    }
}

/// Which clients a push does not reach.
fn deaf(state: &State) -> Vec<bool> {
    state.clients.iter().map(|client| client.deaf).collect()
}

impl Checked for Protocol {
    type Rules = Rules;
    type Bounds = Bounds;
    type Event = Event;

    fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, reached: Reached::default() }
    }

    fn reached(&self) -> EventSet {
        self.reached.all()
    }

    fn set_bound(bounds: &mut Bounds, option: &str, value: u8) {
        match option {
            "--time" => bounds.end = value,
            "--attempts" => bounds.attempts = value,
            "--reentries" => bounds.reentries = value,
            "--retries" => bounds.retries = value,
            "--clients" => bounds.clients = value,
            _ => bounds.in_flight = usize::from(value),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let owners = (0..self.bounds.owners).map(|_| Owner::new(&self.bounds)).collect();
        let clients = (0..self.bounds.clients).map(|_| Client::new(&self.bounds)).collect();
        let clock_in_tokens = self.bounds.faults.contains(&Fault::Restart);
        let ghost = Ghost { clock_in_tokens, ..Ghost::default() };
        let (server, network) = (Server::default(), Network::default());
        let mut state = State { now: 0, server, owners, clients, network, ghost };
        let mut events = EventSet::default();
        for id in (0..self.bounds.owners).filter(|_| self.bounds.begun) {
            self.act(&mut state, id, &mut events, Owner::start);
            while let Some(message) = state.network.first() {
                self.deliver(&mut state, message, &mut events);
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { now, server, owners, clients, network, ghost } = state;
        let bounds = &self.bounds;
        let mut offer = |may: bool, action: Action| {
            if may {
                actions.push(action);
            }
        };
        offer(*now < bounds.end, Action::Tick);
        for (id, owner) in (0..).zip(owners) {
            let in_turn = bounds.may_be_first(id) || owners[usize::from(id) - 1].has_started();
            offer(owner.may_start() && in_turn, Action::Start(id));
            offer(owner.may_retry(), Action::Retry(id));
            offer(owner.may_retry_leave(), Action::RetryLeave(id));
            offer(bounds.gives_up && owner.may_give_up(), Action::GiveUp(id));
            offer(bounds.renews && owner.may_renew(id, network, bounds, *now), Action::Renew(id));
            offer(owner.may_reenter(*now), Action::Reenter(id));
            offer(owner.may_unlock(), Action::Unlock(id));
            offer(owner.may_notice_loss(*now), Action::NoticeLoss(id));
            offer(owner.may_send_late_leave(), Action::SendLateLeave(id));
        }
        for (id, client) in (0..).zip(clients) {
            offer(self.may_poll(state, id), Action::Poll(id));
            let in_flight = client.poll.is_some_and(|poll| network.has_poll(id, poll.number));
            offer(client.timeouts > 0 && in_flight, Action::GiveUpPoll(id));
            offer(ghost.deafens < bounds.deafens && !client.deaf, Action::Deafen(id));
            offer(ghost.reconnects < bounds.reconnects, Action::Reconnect(id));
        }
        for message in network.iter() {
            let too_early = matches!(message, Message::Pushed { to, push } if !owners[usize::from(*to)].accepts(push));
            offer(!too_early, Action::Deliver(*message));
            let may_be_lost = match message {
                Message::Pushed { push: Push::Revoked { .. }, .. } => !bounds.revocations_arrive,
                Message::Pushed { .. } => true,
                _ => bounds.lossy,
            };
            offer(may_be_lost, Action::Lose(*message));
        }
        offer(server.lock.is_none() && !server.queue.is_empty(), Action::PassOn);
        for fault in bounds.faults {
            let has_use = match fault {
                Fault::ForceUnlock | Fault::DeleteLock => server.lock.is_some(),
                Fault::DeleteQueue | Fault::DeleteDeadlines => !server.queue.is_empty(),
                Fault::Flush => true,
                Fault::Restart => *now < bounds.end,
                Fault::ClockStep | Fault::ClockBack => true,
            };
            offer(ghost.fault.is_none() && has_use, Action::Fault(*fault));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let before: Vec<_> = state.server.waiting(state.now, &self.bounds).collect();
        let mut state = state.clone();
        let mut events = EventSet::default();
        match action {
            Action::Tick => Self::tick(&mut state, &mut events),
            Action::Start(id) => self.act(&mut state, id, &mut events, Owner::start),
            Action::Retry(id) => self.act(&mut state, id, &mut events, Owner::retry),
            Action::RetryLeave(id) => self.act(&mut state, id, &mut events, Owner::retry_leave),
            Action::GiveUp(id) => self.act(&mut state, id, &mut events, Owner::give_up),
            Action::Renew(id) => self.act(&mut state, id, &mut events, Owner::renew),
            Action::Reenter(id) => self.act(&mut state, id, &mut events, Owner::reenter),
            Action::Unlock(id) => self.act(&mut state, id, &mut events, Owner::unlock),
            Action::NoticeLoss(id) => self.act(&mut state, id, &mut events, Owner::lose),
            Action::SendLateLeave(id) => self.act(&mut state, id, &mut events, Owner::send_late_leave),
            Action::Poll(id) => self.poll(&mut state, id, &mut events),
            Action::GiveUpPoll(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.timeouts -= 1;
                client.give_up_poll(&self.rules, &mut events);
            }
            Action::Deafen(id) => {
                state.ghost.deafens += 1;
                state.clients[usize::from(id)].deaf = true;
            }
            Action::Reconnect(id) => self.reconnect(&mut state, id, &mut events),
            Action::Deliver(message) => self.deliver(&mut state, message, &mut events),
            Action::Lose(message) => state.network.remove(&message),
            Action::PassOn => {
                let deaf = deaf(&state);
                self.script(&mut state, &deaf, &mut events).pass_on(None);
            }
            Action::Fault(fault) => self.fault(&mut state, fault, &mut events),
        }
        self.check_places(&before, action, &mut state);
        Pruning { rules: &self.rules, bounds: &self.bounds }.prune(&mut state, &mut events);
        self.forget_names(&mut state);
        if state.network.len() > self.bounds.in_flight {
            return None;
        }
        self.note(events);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
