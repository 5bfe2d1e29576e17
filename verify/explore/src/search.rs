//! All states of two or three clients at one name, up to bounds.
//!
//! Stateright walks the states breadth first and keeps a fingerprint of each. That fits: a state here is a value, and
//! an event has one outcome. It compares canonical forms: times relative to now, numbers by their order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::canonical::Seq;
use fairlock_proto::effect::{DetachOutcome, Effect, HoldId, Outcome};
use fairlock_proto::error::{Fault, Loss, UnlockError};
use fairlock_proto::event::{
    CallId, Connection, Event, Lease, LinkEvent, Manner, NodeId, RequestId, Scope, TaskId, Want,
};
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::Share;
use fairlock_proto::push::Push;
use fairlock_proto::request::{Reply, Request};
use fairlock_proto::requests::give::Give;
use fairlock_proto::session::Session;
use fairlock_proto::slab::Slab;
use fairlock_proto::slots::Topology;
use fairlock_proto::stages::guards::Count;
use fairlock_proto::time::{Instant, ServerTime};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::caller::{LEASE, OPERATION, WAITER_TTL};
use crate::canonical::Canonical;
use crate::names::{is_shared, keys, limit_of, terms};
use crate::server::{self, Message, Server, Text, TokenClock};
use crate::witness::settled_guards;
use crate::world;

/// See `names`.
const PERMITS: usize = 3;
const READS: usize = 4;

const NODE: NodeId = NodeId(0);

/// The plan of one caller: it calls, claims its grant, and ends its guard, each at any moment.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub client: usize,
    pub owner: u64,
    pub intent: Intent,
    pub lease: Lease,
    pub share: Share,
    /// A change that it makes to its hold, once.
    pub change: Option<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// To one unit.
    Shrink,
    Extend,
    Detach,
}

#[derive(Debug, Clone, Copy)]
pub enum Intent {
    Waits,
    /// For at most this long.
    WaitsFor(Duration),
    Tries,
    /// Attaches the last handle, once there is one.
    Attaches,
}

/// How often each kind of trouble may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The network loses a request or an answer.
    pub losses: u8,
    /// The server runs a request late, and the answer is lost.
    pub delays: u8,
    pub breaks: u8,
    /// A caller drops its future or its guard.
    pub drops: u8,
    /// A forced unlock ends the hold.
    pub forces: u8,
    /// How often time moves on to the next event.
    pub times: u8,
}

#[derive(Debug, Clone)]
pub struct Search {
    /// See `names`.
    pub name: usize,
    pub plans: Vec<Plan>,
    pub budget: Budget,
}

#[derive(Clone)]
pub struct State {
    name: usize,
    now: Instant,
    server: Server,
    clients: Vec<Client>,
    callers: Vec<Caller>,
    /// Requests that may arrive at any time. Their answers are lost.
    strays: Vec<(usize, Arc<Request>)>,
    /// The handles that callers got, oldest first.
    handles: Vec<Handle>,
    budget: Budget,
    connections: u32,
    last_token: u64,
    /// The tokens of holds that ended by force.
    forced: Vec<u64>,
    /// Those whose holders do not know that yet, and may rely on them.
    unheard: Vec<u64>,
    broken: Option<&'static str>,
    /// The events so far, if a replay asked for them.
    story: Option<Vec<String>>,
}

#[derive(Clone)]
struct Client {
    session: Session,
    calls: Slab<()>,
    connection: Option<Connection>,
    /// A connection keeps its order.
    to_server: VecDeque<(RequestId, Arc<Request>)>,
    from_server: VecDeque<FromServer>,
}

#[derive(Clone, Debug)]
enum FromServer {
    Reply(RequestId, Reply),
    Push(Message),
}

#[derive(Debug, Clone, Copy)]
struct Caller {
    plan: Plan,
    weight: u32,
    change: Option<Change>,
    stage: CallerStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CallerStage {
    NotCalled,
    Waits(CallId),
    Offered(CallId, Relied),
    Holds(CallId, Relied),
    /// A guard, the call that detaches it, and what the guard relies on after a refusal.
    Detaches(CallId, CallId, Relied),
    /// With this token.
    Unlocks(CallId, u64),
    Done,
}

/// The hold that a guard relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Relied {
    hold: HoldId,
    token: u64,
    /// `None`: the hold is lost.
    until: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    Call(usize),
    Claim(usize),
    Unlock(usize),
    Change(usize),
    Drop(usize),
    /// The first request of a client reaches the server.
    Serve(usize),
    LoseRequest(usize),
    /// The request arrives at any later time.
    Delay(usize),
    ServeLate(usize),
    /// The first answer or message reaches a client.
    Hear(usize),
    LoseAnswer(usize),
    Break(usize),
    Connect(usize),
    Force,
    Time,
}

impl Caller {
    fn new(plan: &Plan) -> Self {
        Self { plan: *plan, weight: plan.share.weight, change: plan.change, stage: CallerStage::NotCalled }
    }

    fn call(&self) -> Option<CallId> {
        match self.stage {
            CallerStage::NotCalled | CallerStage::Done => None,
            CallerStage::Waits(call)
            | CallerStage::Offered(call, _)
            | CallerStage::Holds(call, _)
            | CallerStage::Detaches(_, call, _)
            | CallerStage::Unlocks(call, _) => Some(call),
        }
    }

    fn guard(&self) -> Option<CallId> {
        match self.stage {
            CallerStage::Offered(guard, _) | CallerStage::Holds(guard, _) | CallerStage::Detaches(guard, ..) => {
                Some(guard)
            }
            _ => None,
        }
    }

    fn relied(&self) -> Option<Relied> {
        match self.stage {
            CallerStage::Offered(_, relied) | CallerStage::Holds(_, relied) => Some(relied),
            _ => None,
        }
    }

    fn hold(&self) -> Option<HoldId> {
        match self.stage {
            CallerStage::Detaches(_, _, relied) => Some(relied.hold),
            _ => Some(self.relied()?.hold),
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.now, self.callers, self.server.names)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.canonical());
    }
}

/// The relevant parts, in a form that distinguishes times from numbers.
struct Parts<'a>(&'a State);

impl Hash for Parts<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let State { server, clients, callers, strays, handles, budget, forced, unheard, broken, .. } = self.0;
        clients.iter().for_each(|client| client.hash(state));
        callers.iter().for_each(|caller| (caller.stage, caller.weight, caller.change).hash(state));
        handles.hash(state);
        for (client, request) in strays {
            client.hash(state);
            hash_request(request, state);
        }
        server.hash(state);
        for name in server.names.values() {
            name.times().into_iter().for_each(|micros| Instant::from_micros(micros).hash(state));
            name.seqs().into_iter().for_each(|(owner, seq)| (owner, Seq(seq)).hash(state));
        }
        (budget, broken, forced, unheard).hash(state);
    }
}

impl Hash for Client {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.session.hash(state);
        (self.connection.is_some(), self.to_server.len(), self.from_server.len()).hash(state);
        for (id, request) in &self.to_server {
            id.hash(state);
            hash_request(request, state);
        }
        self.from_server.iter().for_each(|message| hash_message(message, state));
    }
}

fn hash_request<H: Hasher>(request: &Request, state: &mut H) {
    std::mem::discriminant(request).hash(state);
    match request {
        Request::Acquire(it) => (&it.owner, Seq(it.seq), it.mode, it.lease, ServerTime(it.not_after)).hash(state),
        Request::Release(it) => {
            (&it.owner, Seq(it.seq), Seq(it.attempt), it.token, it.holds, ServerTime(it.copies_until)).hash(state);
            (it.weight, it.is_handle).hash(state);
        }
        Request::Renew(it) => (&it.owner, it.token, it.lease, it.remember).hash(state),
        Request::Poll(it) => (it.waits, it.names_ours, it.tickets.len()).hash(state),
        Request::Leave(it) => (&it.owner, Seq(it.seq), ServerTime(it.copies_until)).hash(state),
        Request::Give(it) => {
            let Give { from, seq, token, to, attempt, lease, not_after, .. } = &**it;
            (from, Seq(*seq), token, to, Seq(*attempt), lease, ServerTime(*not_after)).hash(state);
        }
        Request::Inspect(it) => it.most.hash(state),
        Request::ForceUnlock(it) => (it.expected, ServerTime(it.not_after)).hash(state),
        Request::SetLimit(it) => (it.limit, ServerTime(it.not_after)).hash(state),
        Request::Raise(it) => (&it.owner, it.token, it.floor).hash(state),
    }
}

fn hash_message<H: Hasher>(message: &FromServer, state: &mut H) {
    match message {
        FromServer::Reply(id, reply) => (id, format!("{:?}", reply.answer)).hash(state),
        FromServer::Push(message) => message.hash(state),
    }
}

fn settings(client: usize) -> server::Client {
    let waiter_ttl_ms = i64::try_from(WAITER_TTL.as_millis()).unwrap_or(0);
    server::Client { id: format!("c{client}"), waiter_ttl_ms, max_waiters: 100 }
}

impl State {
    fn canonical(&self) -> u64 {
        Canonical::hash_of(self.now.micros(), &Parts(self))
    }

    fn step(&mut self, client: usize, event: Event<'_>) {
        let mut effects = Vec::new();
        self.clients[client].session.step(self.now, event, &mut effects);
        effects.into_iter().for_each(|effect| self.do_effect(client, effect));
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:?} {}", self.now, line()));
        }
    }

    fn do_effect(&mut self, client: usize, effect: Effect) {
        self.say(|| match &effect {
            Effect::Send(id, _, request) => format!("  c{client} sends {} {}", id.number.0, world::brief(request)),
            effect => format!("  c{client}: {effect:?}"),
        });
        match effect {
            Effect::Send(id, _, request) => self.clients[client].to_server.push_back((id, Arc::new(request))),
            Effect::Tell(call, outcome) => self.told(client, call, &outcome),
            Effect::Valid(call, until) => self.rely(client, call, Some(until)),
            Effect::Lost(call, loss) => self.lost(client, call, loss),
            Effect::Ended(..) | Effect::Suspect(_) | Effect::Wanted(_) | Effect::Note(_) | Effect::Closed { .. } => {}
        }
    }

    fn told(&mut self, client: usize, call: CallId, outcome: &Outcome) {
        let Some(at) = self.position(client, call) else { return };
        if let Outcome::Detached(detached) = outcome {
            return self.detached(at, detached);
        }
        let Outcome::Granted { token, hold, until, weight, .. } = *outcome else {
            return self.end_of(at, call, outcome);
        };
        self.callers[at].weight = weight;
        let relied = Relied { hold, token, until: Some(until) };
        let is_of = |other: &Caller| other.plan.client == client && other.hold() == Some(hold);
        let is_nested = self.callers.iter().any(is_of);
        let keeps_its_token = is_nested || matches!(self.callers[at].plan.intent, Intent::Attaches);
        // Callers may learn in any order of shares that were granted together.
        let is_before = token < self.last_token && !is_shared(self.name);
        let is_old = is_before || token == self.last_token && !keeps_its_token;
        if is_old && !self.forced.contains(&token) {
            self.broken.get_or_insert("P2: a token does not grow");
        }
        self.last_token = self.last_token.max(token);
        self.callers[at].stage = CallerStage::Offered(call, relied);
    }

    fn detached(&mut self, at: usize, outcome: &DetachOutcome) {
        let Caller { plan, stage: CallerStage::Detaches(guard, call, relied), .. } = self.callers[at] else { return };
        self.clients[plan.client].calls.remove(call.0);
        match outcome {
            DetachOutcome::Done(handle) | DetachOutcome::Unanswered(handle, _) => {
                self.handles.push((**handle).clone());
                self.ends(at, guard);
            }
            DetachOutcome::Refused(_) => self.callers[at].stage = CallerStage::Holds(guard, relied),
        }
    }

    fn ends(&mut self, at: usize, guard: CallId) {
        let client = self.callers[at].plan.client;
        self.callers[at].stage = CallerStage::Done;
        self.clients[client].calls.remove(guard.0);
        self.step(client, Event::Gone(guard));
    }

    /// The last outcome for this caller.
    fn end_of(&mut self, at: usize, call: CallId, outcome: &Outcome) {
        let Caller { plan, stage, .. } = self.callers[at];
        match (stage, outcome) {
            (CallerStage::Holds(..), Outcome::PassedOver) => {
                self.broken.get_or_insert("P8: a guard is passed over that was claimed");
            }
            (CallerStage::Unlocks(_, token), Outcome::Unlocked(Err(UnlockError::Lost(Loss::Gone)))) => {
                self.is_gone(token);
            }
            _ => {}
        }
        self.callers[at].stage = CallerStage::Done;
        self.clients[plan.client].calls.remove(call.0);
    }

    fn lost(&mut self, client: usize, call: CallId, loss: Loss) {
        let relied = self.position(client, call).and_then(|at| self.callers[at].relied());
        if let (Some(Relied { token, .. }), Loss::Gone) = (relied, loss) {
            self.is_gone(token);
        }
        self.rely(client, call, None);
    }

    /// A client reports that the server does not know a hold.
    fn is_gone(&mut self, token: u64) {
        if self.server.names.values().any(|name| name.holders().any(|holder| holder.token == token)) {
            self.broken.get_or_insert("P8: a hold is lost that the server has");
        }
    }

    fn rely(&mut self, client: usize, call: CallId, until: Option<Instant>) {
        let of_guard = |caller: &Caller| caller.plan.client == client && caller.guard() == Some(call);
        let Some(at) = self.callers.iter().position(of_guard) else { return };
        if let CallerStage::Offered(_, relied) | CallerStage::Holds(_, relied) | CallerStage::Detaches(_, _, relied) =
            &mut self.callers[at].stage
        {
            relied.until = until;
        }
    }

    fn position(&self, client: usize, call: CallId) -> Option<usize> {
        self.callers.iter().position(|caller| caller.plan.client == client && caller.call() == Some(call))
    }

    /// P1: the guards that are valid now are within the limit. The guards of one owner share the weight of the
    /// greatest.
    fn is_within_the_limit(&self) -> bool {
        let relies = |relied: Relied| {
            relied.until.is_some_and(|until| until > self.now) && !self.unheard.contains(&relied.token)
        };
        let mut of_owners = BTreeMap::new();
        for caller in self.callers.iter().filter(|caller| caller.relied().is_some_and(relies)) {
            let weight = of_owners.entry((caller.plan.client, caller.plan.owner)).or_insert(0);
            *weight = caller.weight.max(*weight);
        }
        of_owners.values().sum::<u32>() <= limit_of(self.name)
    }

    fn connect(&mut self, client: usize) {
        self.connections += 1;
        let connection = Connection { node: NODE, number: self.connections };
        self.clients[client].connection = Some(connection);
        self.server.reachable.insert(format!("c{client}"));
        let (server_micros, frozen_until) = (Some(self.now.micros().cast_signed()), ServerTime::default());
        self.step(client, Event::Link(LinkEvent::Up { connection, server_micros, frozen_until }));
    }

    /// Sent requests may still arrive, and answers are lost.
    fn disconnect(&mut self, client: usize) {
        let Some(connection) = self.clients[client].connection.take() else { return };
        self.server.reachable.remove(&format!("c{client}"));
        let sent = std::mem::take(&mut self.clients[client].to_server);
        self.strays.extend(sent.into_iter().map(|(_, request)| (client, request)));
        self.clients[client].from_server.clear();
        self.step(client, Event::Link(LinkEvent::Down(connection, Fault::Disconnected.into())));
    }

    fn call(&mut self, at: usize) {
        let Plan { client, owner, intent, lease, share, .. } = self.callers[at].plan;
        let call = CallId(self.clients[client].calls.insert(()));
        self.callers[at].stage = CallerStage::Waits(call);
        self.callers[at].weight = share.weight;
        let manner = match intent {
            Intent::Waits => Manner::Waits { limit: None },
            Intent::WaitsFor(limit) => Manner::Waits { limit: Some(self.now + limit) },
            Intent::Tries => Manner::Tries { limit: self.now + OPERATION, proposed: None },
            Intent::Attaches => {
                let Some(handle) = self.handles.last().cloned() else { return };
                Manner::Attaches { limit: self.now + OPERATION, handle: Arc::new(handle) }
            }
        };
        let (owner_id, terms) = (format!("c{client}:{owner}").into(), terms(self.name, share));
        let (weight, keys, scope, task) = (share.weight, keys(self.name), Scope::Owner, TaskId(0));
        let want = Want { keys, owner, owner_id, scope, manner, lease, weight, terms, task };
        self.step(client, Event::Call(call, want));
    }

    /// Makes the planned change. Only a detach waits for its outcome.
    fn change(&mut self, at: usize) {
        let Caller { plan, stage: CallerStage::Holds(guard, relied), change, .. } = self.callers[at] else { return };
        let call = CallId(self.clients[plan.client].calls.insert(()));
        self.callers[at].change = None;
        let lease = 2 * LEASE;
        let event = match change {
            None => return,
            Some(Change::Shrink) => {
                self.callers[at].weight = 1;
                Event::Shrink { call, guard, weight: 1 }
            }
            Some(Change::Extend) => Event::Extend { call, guard, lease },
            Some(Change::Detach) => {
                self.callers[at].stage = CallerStage::Detaches(guard, call, relied);
                Event::Detach { call, guard, lease: LEASE }
            }
        };
        self.step(plan.client, event);
    }

    fn serve(&mut self, client: usize, request: &Request) -> Reply {
        let mut messages = Vec::new();
        let reply = self.server.run(request, &settings(client), self.now.micros(), &mut messages);
        self.say(|| format!("  the server answers c{client}: {:?}", reply.answer));
        self.publish(messages);
        reply
    }

    fn publish(&mut self, messages: Vec<Message>) {
        for message in messages {
            let client: usize = message.client.trim_start_matches('c').parse().unwrap_or(0);
            if self.clients[client].connection.is_some() {
                self.clients[client].from_server.push_back(FromServer::Push(message));
            }
        }
    }

    fn hear(&mut self, client: usize) {
        match self.clients[client].from_server.pop_front() {
            Some(FromServer::Reply(id, reply)) => self.step(client, Event::Replied(id, Ok(reply))),
            Some(FromServer::Push(Message { lock, text, .. })) => {
                let Some(connection) = self.clients[client].connection else { return };
                let push = match &text {
                    Text::Grant { token, lease_ms, ticket } => {
                        let lease = Duration::from_millis(*lease_ms);
                        Push::Grant { token: *token, lease, ticket, lock: &lock }
                    }
                    Text::Revoked { token, owner } => {
                        self.unheard.retain(|unheard| unheard != token);
                        Push::Revoked { token: *token, owner, lock: &lock }
                    }
                };
                self.step(client, Event::Pushed(connection, push));
            }
            None => {}
        }
    }

    /// The next event that only time brings: a client's timer, or the end of something at the server.
    fn next_time(&self) -> Option<Instant> {
        let timers = self.clients.iter().filter_map(|client| client.session.next_timer());
        let ends = self.server.names.values().flat_map(|name| name.times()).map(Instant::from_micros);
        timers.chain(ends.filter(|end| *end > self.now)).min()
    }

    fn time(&mut self) {
        let Some(next) = self.next_time() else { return };
        self.now = self.now.max(next);
        self.server.expire(self.now.micros());
        for client in 0..self.clients.len() {
            let mut steps = 0;
            while self.clients[client].session.next_timer().is_some_and(|due| due <= self.now) {
                self.step(client, Event::Time);
                steps += 1;
                if steps > 100 {
                    self.broken.get_or_insert("a timer stays due");
                    break;
                }
            }
        }
    }

    /// P4, P6: the server counts as many guards of a hold as its callers have. The numbers may differ while a request
    /// about them is under way.
    fn is_counted(&self) -> bool {
        let lock = &keys(self.name).lock;
        let count = |plan: &Plan| {
            let is_of = |caller: &&Caller| (caller.plan.client, caller.plan.owner) == (plan.client, plan.owner);
            let relying =
                self.callers.iter().filter(is_of).filter_map(|caller| Some((caller.relied()?, caller.weight)));
            let holds = relying.clone().count() as u32;
            let weight = relying.clone().map(|(_, weight)| weight).max().unwrap_or(0);
            (Count { holds, weight }, relying.map(|(relied, _)| relied.token).next())
        };
        self.callers.iter().all(|Caller { plan, stage, .. }| {
            let guards = settled_guards(&self.clients[plan.client].session, plan.owner, lock);
            let Some((_, guards)) = guards.filter(|_| !matches!(stage, CallerStage::Detaches(..))) else {
                return true;
            };
            let (callers, token) = count(plan);
            let mut holders = self.server.names.values().flat_map(|name| name.holders());
            let holder = holders.find(|holder| Some(holder.token) == token);
            let counted = holder.map_or(callers, |holder| {
                let weight = if is_shared(self.name) { holder.share.weight } else { callers.weight };
                Count { holds: holder.holds, weight }
            });
            (guards, guards) == (callers, counted)
        })
    }

    /// Ignores the holds of handles.
    fn is_free(&self) -> bool {
        let is_of_a_handle = |owner: &str| self.handles.iter().any(|handle| *handle.owner == *owner);
        let is_free = |name: &server::Name| {
            name.is_free(self.now.micros())
                || name.queue.is_empty() && name.holders().all(|it| is_of_a_handle(&it.owner))
        };
        self.server.names.values().all(is_free)
    }

    /// No caller wants anything, and no request is under way.
    fn is_over(&self) -> bool {
        let is_done = |caller: &Caller| matches!(caller.stage, CallerStage::Done);
        let is_quiet =
            |client: &Client| client.to_server.is_empty() && client.from_server.is_empty() && client.session.is_idle();
        self.callers.iter().all(is_done) && self.clients.iter().all(is_quiet) && self.strays.is_empty()
    }
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = 1 + self.plans.iter().map(|plan| plan.client).max().unwrap_or(0);
        let client = |number| Client {
            session: Session::new(world::settings(number), Topology::OneServer),
            calls: Slab::default(),
            connection: None,
            to_server: VecDeque::new(),
            from_server: VecDeque::new(),
        };
        let mut state = State {
            name: self.name,
            now: Instant::from_micros(100_000_000),
            server: Server::new(TokenClock::Losses(0)),
            clients: (0..clients).map(client).collect(),
            callers: self.plans.iter().map(Caller::new).collect(),
            strays: Vec::new(),
            handles: Vec::new(),
            budget: self.budget,
            connections: 0,
            last_token: 0,
            forced: Vec::new(),
            unheard: Vec::new(),
            broken: None,
            story: None,
        };
        (0..clients).for_each(|client| state.connect(client));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || state.is_over() {
            return;
        }
        let Budget { losses, delays, breaks, drops, forces, times } = state.budget;
        for (at, caller) in state.callers.iter().enumerate() {
            match caller.stage {
                CallerStage::NotCalled if matches!(caller.plan.intent, Intent::Attaches) => {
                    actions.extend((!state.handles.is_empty()).then_some(Action::Call(at)));
                }
                CallerStage::NotCalled => actions.push(Action::Call(at)),
                CallerStage::Offered(..) => actions.push(Action::Claim(at)),
                CallerStage::Holds(..) => {
                    actions.push(Action::Unlock(at));
                    actions.extend(caller.change.map(|_| Action::Change(at)));
                }
                CallerStage::Waits(_) | CallerStage::Detaches(..) | CallerStage::Unlocks(..) | CallerStage::Done => {}
            }
            if drops > 0 && caller.call().is_some() {
                actions.push(Action::Drop(at));
            }
        }
        for (number, client) in state.clients.iter().enumerate() {
            if !client.to_server.is_empty() {
                actions.push(Action::Serve(number));
                actions.extend((delays > 0).then_some(Action::Delay(number)));
                actions.extend((losses > 0).then_some(Action::LoseRequest(number)));
            }
            if !client.from_server.is_empty() {
                actions.push(Action::Hear(number));
                actions.extend((losses > 0).then_some(Action::LoseAnswer(number)));
            }
            match client.connection {
                Some(_) => actions.extend((breaks > 0).then_some(Action::Break(number))),
                None => actions.push(Action::Connect(number)),
            }
        }
        actions.extend((0..state.strays.len()).map(Action::ServeLate));
        actions.extend(
            (forces > 0 && state.server.names.values().any(|name| name.holder.is_some())).then_some(Action::Force),
        );
        actions.extend((times > 0 && state.next_time().is_some()).then_some(Action::Time));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.say(|| format!("{action:?}"));
        match action {
            Action::Call(at) => state.call(at),
            Action::Claim(at) => {
                let Caller { plan, stage: CallerStage::Offered(call, relied), .. } = state.callers[at] else {
                    return None;
                };
                state.callers[at].stage = CallerStage::Holds(call, relied);
                state.step(plan.client, Event::Claimed(call));
            }
            Action::Unlock(at) => {
                let Caller { plan, stage: CallerStage::Holds(call, relied), .. } = state.callers[at] else {
                    return None;
                };
                state.callers[at].stage = CallerStage::Unlocks(call, relied.token);
                state.step(plan.client, Event::Unlock(call));
            }
            Action::Change(at) => state.change(at),
            Action::Drop(at) => {
                state.budget.drops -= 1;
                let (client, call) = (state.callers[at].plan.client, state.callers[at].call()?);
                let guard = state.callers[at].guard();
                state.callers[at].stage = CallerStage::Done;
                state.clients[client].calls.remove(call.0);
                state.step(client, Event::Gone(call));
                // A detach takes its guard along.
                guard.filter(|guard| *guard != call).into_iter().for_each(|guard| state.ends(at, guard));
            }
            Action::Serve(client) => {
                let (id, request) = state.clients[client].to_server.pop_front()?;
                let reply = state.serve(client, &request);
                state.clients[client].from_server.push_back(FromServer::Reply(id, reply));
            }
            Action::Delay(client) => {
                state.budget.delays -= 1;
                let (_, request) = state.clients[client].to_server.pop_front()?;
                state.strays.push((client, request));
            }
            Action::LoseRequest(client) => {
                state.budget.losses -= 1;
                state.clients[client].to_server.pop_front();
            }
            Action::ServeLate(at) => {
                let (client, request) = state.strays.remove(at);
                state.serve(client, &request);
            }
            Action::Hear(client) => state.hear(client),
            Action::LoseAnswer(client) => {
                state.budget.losses -= 1;
                state.clients[client].from_server.pop_front();
            }
            Action::Break(client) => {
                state.budget.breaks -= 1;
                state.disconnect(client);
            }
            Action::Connect(client) => state.connect(client),
            Action::Force => {
                state.budget.forces -= 1;
                let mut messages = Vec::new();
                let micros = state.now.micros();
                state.server.run(&world::force_unlock(0, None), &settings(0), micros, &mut messages);
                let token = server::revoked(&messages);
                state.forced.extend(token);
                state.unheard.extend(token);
                state.publish(messages);
            }
            Action::Time => {
                state.budget.times -= 1;
                state.time();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1: no more is relied on than there is", |_, state: &State| state.is_within_the_limit()),
            Property::always("P4: a hold has the guards of its callers", |_, state: &State| state.is_counted()),
            Property::always(ON_THE_WAY, |_, state: &State| state.broken.is_none()),
            Property::sometimes(ALL_ARE_DONE, |_, state: &State| state.is_over()),
            Property::always("P5: nothing is left", |_, state: &State| !state.is_over() || state.is_free()),
        ]
    }
}

/// A broken property, and the actions that broke it.
pub struct Found {
    pub property: &'static str,
    pub actions: Vec<Action>,
}

/// How far a search went.
pub struct Reached {
    pub states: usize,
    pub depth: usize,
    pub found: Vec<Found>,
}

impl Search {
    /// Visits all states up to the bounds.
    pub fn run(self) -> Reached {
        let checker = self.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let is_wanted = |name: &str| name == ALL_ARE_DONE;
        let found = checker.discoveries().into_iter().filter(|(name, _)| !is_wanted(name));
        let found = found.map(|(property, path)| Found { property, actions: path.into_actions() }).collect();
        Reached { states: checker.unique_state_count(), depth: checker.max_depth(), found }
    }

    /// Does these actions one by one, until one is impossible or breaks something.
    pub fn replay(&self, actions: &[Action]) -> Replayed {
        let (replay, _) = self.begin_replay(actions);
        replay.end()
    }

    /// The same, and then delivers everything under way until nothing more is sent.
    pub fn replay_to_the_end(&self, actions: &[Action]) -> Replayed {
        let (mut replay, mut goes_on) = self.begin_replay(actions);
        while goes_on && let Some(next) = replay.arrives() {
            goes_on = replay.does(&next);
        }
        replay.end()
    }

    fn begin_replay(&self, actions: &[Action]) -> (Replay<'_>, bool) {
        let mut replay = Replay { search: self, state: self.init_states().remove(0), done: 0 };
        replay.state.story = Some(Vec::new());
        let goes_on = actions.iter().all(|action| replay.does(action));
        (replay, goes_on)
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let is_broken = |property: &Property<Self>| property.name != ALL_ARE_DONE && !(property.condition)(self, state);
        let broken = self.properties().into_iter().find(is_broken)?.name;
        state.broken.filter(|_| broken == ON_THE_WAY).or(Some(broken))
    }
}

/// The result of a replay.
pub struct Replayed {
    pub story: String,
    pub broken: Option<&'static str>,
    /// The number of actions that were possible.
    pub done: usize,
}

struct Replay<'a> {
    search: &'a Search,
    state: State,
    done: usize,
}

impl Replay<'_> {
    fn does(&mut self, action: &Action) -> bool {
        let next = self.possible().contains(action).then(|| self.search.next_state(&self.state, action.clone()));
        let Some(next) = next.flatten() else { return false };
        (self.state, self.done) = (next, self.done + 1);
        self.search.broken(&self.state).is_none()
    }

    fn possible(&self) -> Vec<Action> {
        let mut possible = Vec::new();
        self.search.actions(&self.state, &mut possible);
        possible
    }

    fn arrives(&self) -> Option<Action> {
        let arrives = |action: &Action| {
            matches!(action, Action::Serve(_) | Action::ServeLate(_) | Action::Hear(_) | Action::Connect(_))
        };
        self.possible().into_iter().find(arrives)
    }

    fn end(self) -> Replayed {
        let story = self.state.story.as_deref().unwrap_or_default().join("\n");
        Replayed { story, broken: self.search.broken(&self.state), done: self.done }
    }
}

const ALL_ARE_DONE: &str = "all are done";
const ON_THE_WAY: &str = "nothing is broken on the way";

/// The searches of `scripts/verify`, by name, the small ones first.
pub fn all() -> Vec<(&'static str, Search)> {
    let [renewed, fixed] = [Lease::Renewed(LEASE), Lease::Fixed(LEASE)];
    let plan =
        |client, owner, lease| Plan { client, owner, intent: Intent::Waits, lease, share: Share::LOCK, change: None };
    let wants = |client, owner, intent| Plan { intent, ..plan(client, owner, renewed) };
    let waits_for = |client, owner, limit| wants(client, owner, Intent::WaitsFor(limit));
    let tries = |client, owner| wants(client, owner, Intent::Tries);
    let attaches = |client, owner| wants(client, owner, Intent::Attaches);
    let changes = |change, plan: Plan| Plan { change: Some(change), ..plan };
    let detaches = |client, owner| changes(Change::Detach, plan(client, owner, renewed));
    // They share a semaphore of three permits.
    let permits = |client, owner, weight| Plan {
        share: Share { weight, limit: limit_of(PERMITS) },
        ..plan(client, owner, renewed)
    };
    let reads = |client, owner| Plan { share: Share::READER, ..plan(client, owner, renewed) };
    let writes = |client, owner| Plan { share: Share::WRITER, ..plan(client, owner, renewed) };
    let one = vec![plan(0, 1, renewed)];
    let two = vec![plan(0, 1, renewed), plan(1, 1, renewed)];
    let none = Budget { losses: 0, delays: 0, breaks: 0, drops: 0, forces: 0, times: 0 };
    let at = |name, plans: &[Plan], budget| Search { name, plans: plans.to_vec(), budget };
    let search = |plans: &[Plan], budget| at(0, plans, budget);
    vec![
        ("one", search(&one, Budget { losses: 1, breaks: 1, drops: 1, forces: 1, times: 3, ..none })),
        ("one-tries", search(&[tries(0, 1)], Budget { losses: 1, delays: 1, breaks: 1, times: 3, ..none })),
        ("one-delays", search(&one, Budget { delays: 2, drops: 1, times: 4, ..none })),
        (
            "again-beside",
            search(&[plan(0, 1, renewed), plan(0, 1, renewed), plan(1, 1, renewed)], Budget { drops: 1, ..none }),
        ),
        ("tries", search(&[tries(0, 1), tries(1, 1)], Budget { losses: 1, delays: 1, times: 2, ..none })),
        ("tries-breaks", search(&[tries(0, 1), tries(1, 1)], Budget { breaks: 1, times: 1, ..none })),
        ("limits", search(&[one[0], waits_for(1, 1, LEASE / 4)], Budget { delays: 1, times: 2, ..none })),
        ("fixed", search(&[plan(0, 1, fixed), plan(1, 1, fixed)], Budget { times: 3, ..none })),
        (
            "nested",
            search(&[plan(0, 1, renewed), plan(0, 1, renewed)], Budget { delays: 1, drops: 1, times: 3, ..none }),
        ),
        ("extends", search(&[changes(Change::Extend, one[0])], Budget { losses: 1, delays: 1, times: 3, ..none })),
        ("detaches", search(&[detaches(0, 1)], Budget { losses: 1, delays: 1, breaks: 1, times: 2, ..none })),
        ("detaches-drops", search(&[detaches(0, 1)], Budget { delays: 1, breaks: 1, drops: 1, times: 2, ..none })),
        ("attaches", search(&[detaches(0, 1), attaches(1, 1)], Budget { losses: 1, breaks: 1, times: 2, ..none })),
        ("attaches-drops", search(&[detaches(0, 1), attaches(1, 1)], Budget { delays: 1, drops: 1, times: 2, ..none })),
        (
            "attaches-beside",
            search(&[detaches(0, 1), attaches(1, 1), plan(0, 2, renewed)], Budget { times: 1, ..none }),
        ),
        ("detaches-nested", search(&[detaches(0, 1), one[0]], Budget { drops: 1, times: 1, ..none })),
        ("permits", at(PERMITS, &[permits(0, 1, 2), permits(1, 1, 2)], Budget { losses: 1, times: 2, ..none })),
        ("permits-of-one", at(PERMITS, &[permits(0, 1, 2), permits(0, 2, 1)], Budget { breaks: 1, times: 1, ..none })),
        (
            "shrinks",
            at(
                PERMITS,
                &[changes(Change::Shrink, permits(0, 1, 3)), permits(1, 1, 2)],
                Budget { losses: 1, times: 1, ..none },
            ),
        ),
        ("reads-in-writes", at(READS, &[writes(0, 1), reads(0, 1), reads(1, 1)], none)),
        (
            "downgrades",
            at(READS, &[changes(Change::Shrink, writes(0, 1)), reads(1, 1)], Budget { breaks: 1, times: 1, ..none }),
        ),
        ("two", search(&two, Budget { times: 3, ..none })),
        ("two-forces", search(&two, Budget { forces: 1, times: 2, ..none })),
        ("two-drops-losses", search(&two, Budget { drops: 1, losses: 1, times: 1, ..none })),
        ("two-drops", search(&two, Budget { drops: 1, delays: 1, times: 2, ..none })),
        ("two-losses", search(&two, Budget { losses: 1, times: 3, ..none })),
        ("two-delays", search(&two, Budget { delays: 1, times: 3, ..none })),
        ("two-breaks", search(&two, Budget { breaks: 1, times: 2, ..none })),
        ("fixed-breaks", search(&[plan(0, 1, fixed), plan(1, 1, fixed)], Budget { breaks: 1, times: 2, ..none })),
        (
            "nested-beside",
            search(&[plan(0, 1, renewed), plan(0, 1, renewed), plan(1, 1, renewed)], Budget { times: 2, ..none }),
        ),
        (
            "one-client",
            search(&[plan(0, 1, renewed), plan(0, 2, renewed)], Budget { breaks: 1, delays: 1, times: 2, ..none }),
        ),
        (
            "three",
            search(&[plan(0, 1, renewed), plan(1, 1, renewed), plan(2, 1, renewed)], Budget { times: 1, ..none }),
        ),
    ]
}
