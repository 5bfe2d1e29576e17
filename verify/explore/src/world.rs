//! Clients, their callers, the network and the servers, in one thread and one random order of events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::{Effect, Outcome};
use fairlock_proto::error::{Cause, Fault, Refusal, RefusalKind, RequestError};
use fairlock_proto::event::{
    CallId, Connection, Event, Lease, LinkEvent, Manner, NodeId, RequestId, Scope, TaskId, Want,
};
use fairlock_proto::keys::{Kind, Share};
use fairlock_proto::push::Push;
use fairlock_proto::request::{Reply, Request};
use fairlock_proto::requests::force_unlock::ForceUnlock;
use fairlock_proto::requests::give::Give;
use fairlock_proto::session::Session;
use fairlock_proto::settings::Settings;
use fairlock_proto::slab::Slab;
use fairlock_proto::slots::{SLOTS, Topology, slot_of};
use fairlock_proto::time::{Instant, ServerTime};

use crate::caller::{Caller, FIRST_LEASE, GRANT_TTL, LEASE, OPERATION, POLL, State, WAITER_TTL};
use crate::checker::{Checker, NOTIFIED};
use crate::coverage::Coverage;
use crate::delay::{Delays, Hindrance};
use crate::handles::{Change, Handles};
use crate::names::{Subject, is_shared, keys, shares, terms};
use crate::order::Order;
use crate::server::{self, Holder, Message, Server, Text, TokenClock};
use crate::witness::settled_guards;

const CLIENTS: usize = 3;
/// All faults end by now.
pub const TROUBLE: Duration = Duration::from_secs(30);
/// By now no trace of the faults remains: no lease, place, late request or freeze. From here on there is at most one
/// kind of trouble.
const SETTLED: Duration = Duration::from_secs(45);
/// New calls end by now.
const LAST_CALL: Duration = Duration::from_secs(65);
/// Everything must have ended by now.
const OVER: Duration = Duration::from_secs(300);
/// Where the servers' clocks begin, in µs.
const SERVERS_EPOCH: u64 = 1_700_000_000_000_000;

pub fn settings(client: usize) -> Settings {
    Settings {
        client: format!("c{client}"),
        prefix: "p".into(),
        operation_timeout: OPERATION,
        waiter_ttl: WAITER_TTL,
        poll_interval: POLL,
        grant_ttl: GRANT_TTL,
        first_lease: FIRST_LEASE,
        token_ttl: Duration::from_secs(60),
        lease: LEASE,
        max_hold: None,
        in_flight: 4,
    }
}

pub struct World {
    pub steps: u64,
    pub seed: u64,
    pub checker: Checker,
    pub coverage: Coverage,
    random: fastrand::Rng,
    pub(crate) now: Instant,
    topology: Topology,
    hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    /// The coming events, in order.
    agenda: BTreeMap<(Instant, u64), Happening>,
    number: u64,
    /// A client ended without answers to its requests, so what it has at the servers must expire.
    ended: bool,
    calm: Calm,
    pub(crate) subject: Subject,
    pub(crate) handles: Handles,
    order: Order,
    delays: Delays,
    story: Option<Vec<String>>,
}

/// The trouble that remains at the end. It lets each promise have a bound of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calm {
    Quiet,
    MessagesLost,
    ProcessesDie,
}

/// A server, its clock, and its states of a moment ago.
struct Host {
    server: Server,
    /// How much faster its clock runs, in millionths.
    skew: i64,
    ahead_us: u64,
    older: Vec<(Instant, Server)>,
    has_lost_data: bool,
    stands_still_until: Instant,
    refuses_until: Instant,
}

pub(crate) struct Client {
    pub session: Session,
    pub calls: Slab<()>,
    pub callers: BTreeMap<CallId, Caller>,
    /// Pending changes of holds, and requests with handles.
    pub changes: BTreeMap<CallId, Change>,
    connections: BTreeMap<NodeId, Connection>,
    /// The client's part of each request. Late copies need it too.
    settings: server::Client,
    pub next_owner: u64,
    stands_still_until: Instant,
    pub life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Open,
    Closed,
    /// Its process has ended.
    Dead,
}

pub(crate) enum Happening {
    Act(usize),
    Claim(usize, CallId),
    End(usize, CallId),
    /// A caller changes the hold of its guard.
    Change(usize, CallId),
    /// A client releases all remaining handles.
    HandlesEnd,
    Disturb(usize, CallId),
    Arrives {
        client: usize,
        id: RequestId,
        host: usize,
        request: Arc<Request>,
    },
    Answers {
        client: usize,
        id: RequestId,
        reply: Result<Reply, RequestError>,
    },
    Pushed {
        client: usize,
        connection: Connection,
        message: Message,
    },
    Breaks(usize, NodeId),
    Connects(usize, NodeId),
    Force,
    ClientRests(usize),
    HostRests(usize),
    HostRefuses(usize),
    Restarts(usize, Restart),
    Moves,
    Serves {
        client: usize,
        lock: String,
    },
    Closes(usize),
    RuntimeGone(usize),
    Dies(usize),
    Wakes,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Restart {
    WithItsData,
    WithOlderData,
    Empty,
}

impl World {
    /// A world of two locks.
    pub fn new(seed: u64) -> Self {
        Self::about(Subject::Locks, seed)
    }

    pub fn about(subject: Subject, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let topology = if random.u8(..4) == 0 { Topology::Cluster } else { Topology::OneServer };
        let hosts = if topology == Topology::Cluster { 2 } else { 1 };
        let calm = [Calm::Quiet, Calm::MessagesLost, Calm::ProcessesDie][random.usize(..3)];
        let mut world = Self {
            steps: 0,
            seed,
            checker: Checker::default(),
            coverage: Coverage::default(),
            now: Instant::from_micros(1_000_000),
            topology,
            hosts: (0..hosts).map(|_| Host::new(&mut random)).collect(),
            clients: (0..CLIENTS).map(|number| Client::new(number, topology)).collect(),
            agenda: BTreeMap::new(),
            number: 0,
            ended: false,
            calm,
            subject,
            handles: Handles::default(),
            order: Order::default(),
            delays: Delays::default(),
            story: None,
            random,
        };
        if subject == Subject::Kinds {
            // The servers' clocks set the ends of shares, so they must agree if slots move (docs/deploying.md).
            let Host { skew, ahead_us, .. } = world.hosts[0];
            world.hosts.iter_mut().for_each(|host| (host.skew, host.ahead_us) = (skew, ahead_us));
        }
        world.begin();
        world
    }

    /// Records a story of the run.
    pub fn with_story(mut self) -> Self {
        self.story = Some(Vec::new());
        self
    }

    pub fn story(&self) -> String {
        self.story.as_deref().unwrap_or_default().join("\n")
    }

    fn begin(&mut self) {
        for client in 0..CLIENTS {
            for host in 0..self.hosts.len() {
                self.connect(client, node(host));
            }
            if self.topology == Topology::Cluster {
                for (host, slots) in [(0, 0..=SLOTS / 2), (1, SLOTS / 2 + 1..=SLOTS - 1)] {
                    self.step(client, Event::Link(LinkEvent::Serves(node(host), slots)));
                }
            }
            self.soon(500, Happening::Act(client));
            self.perhaps(2, 20_000, |world| Happening::Breaks(client, world.some_node()));
            self.perhaps(6, 30_000, |_| Happening::ClientRests(client));
            self.perhaps(8, 60_000, |_| Happening::Closes(client));
            self.perhaps(12, 60_000, |_| Happening::RuntimeGone(client));
            if self.calm == Calm::ProcessesDie && client > 0 {
                let after = SETTLED + Duration::from_millis(self.below(18_000));
                self.at(Instant::default() + after, Happening::Dies(client));
            }
        }
        if self.subject == Subject::Kinds {
            self.at(Instant::default() + LAST_CALL, Happening::HandlesEnd);
        }
        self.perhaps(2, 30_000, |_| Happening::Force);
        for host in 0..self.hosts.len() {
            self.perhaps(6, 30_000, |_| Happening::HostRests(host));
            self.perhaps(3, 30_000, |_| Happening::HostRefuses(host));
            let kind = [Restart::WithItsData, Restart::WithOlderData, Restart::Empty][self.below(3) as usize];
            self.perhaps(4, 30_000, |_| Happening::Restarts(host, kind));
        }
        if self.topology == Topology::Cluster {
            self.perhaps(2, 30_000, |_| Happening::Moves);
        }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn is_trouble(&self) -> bool {
        self.now < Instant::default() + TROUBLE
    }

    fn is_settled(&self) -> bool {
        self.now >= Instant::default() + SETTLED
    }

    pub(crate) fn soon(&mut self, within_ms: u64, happening: Happening) {
        let micros = self.below(within_ms * 1000) + 1;
        self.at(self.now + Duration::from_micros(micros), happening);
    }

    pub(crate) fn perhaps(&mut self, one_in: u64, within_ms: u64, happening: impl FnOnce(&mut Self) -> Happening) {
        if self.one_in(one_in) {
            let happening = happening(self);
            self.soon(within_ms, happening);
        }
    }

    fn at(&mut self, when: Instant, happening: Happening) {
        self.number += 1;
        self.agenda.insert((when, self.number), happening);
    }

    fn some_node(&mut self) -> NodeId {
        let hosts = self.hosts.len() as u64;
        node(self.below(hosts) as usize)
    }

    /// Runs until nothing more can happen. Returns the first violation.
    pub fn run(&mut self) -> Result<(), String> {
        loop {
            let happening = self.agenda.first_key_value().map(|((when, _), _)| *when);
            let timers = self.clients.iter().enumerate();
            let timer = timers.filter_map(|(number, client)| Some((client.next_timer()?, number))).min();
            match (happening, timer) {
                (None, None) => break,
                (when, Some((due, client))) if when.is_none_or(|when| due <= when) => {
                    self.now = self.now.max(due);
                    self.step(client, Event::Time);
                    self.checker.timer(client, due);
                }
                _ => {
                    if let Some(((when, _), happening)) = self.agenda.pop_first() {
                        self.now = self.now.max(when);
                        self.happen(happening);
                    }
                }
            }
            self.look();
            if let Some(broken) = self.checker.broken() {
                return Err(self.tell(broken));
            }
            if self.now > Instant::default() + OVER {
                break;
            }
        }
        self.check_end();
        self.checker.broken().map_or(Ok(()), |broken| Err(self.tell(broken)))
    }

    fn tell(&self, broken: String) -> String {
        let run = if self.subject == Subject::Kinds { "kinds" } else { "world" };
        format!("{run} {}: {broken}", self.seed)
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(later) = self.rests(&happening) {
            return self.at(later, happening);
        }
        let is_of_dead = happening.client().is_some_and(|client| self.clients[client].life == Life::Dead);
        if is_of_dead || !self.is_trouble() && happening.is_fault() {
            return;
        }
        match happening {
            Happening::Act(client) => self.act(client),
            Happening::Claim(client, call) => self.claim(client, call),
            Happening::End(client, call) => self.end(client, call),
            Happening::Change(client, call) => self.change(client, call),
            Happening::HandlesEnd => self.give_handles_back(),
            Happening::Disturb(client, call) => self.step(client, Event::Disturbed(call)),
            Happening::Arrives { client, id, host, request } => self.arrives(client, id, host, &request),
            Happening::Answers { client, id, reply } => self.step(client, Event::Replied(id, reply)),
            Happening::Pushed { client, connection, message } => self.pushed(client, connection, &message),
            Happening::Breaks(client, node) => self.breaks(client, node),
            Happening::Connects(client, node) => self.connect(client, node),
            Happening::Force => self.force(),
            Happening::ClientRests(client) => {
                let rests = self.rest(60_000);
                self.clients[client].stands_still_until = self.now + rests;
                self.say(|| format!("c{client} stands still for {rests:?}"));
                self.at(self.now + rests, Happening::Wakes);
            }
            Happening::HostRests(host) => {
                let rests = self.rest(30_000);
                self.hosts[host].stands_still_until = self.now + rests;
                self.say(|| format!("server {host} stands still for {rests:?}"));
            }
            Happening::HostRefuses(host) => {
                let refuses = Duration::from_millis(self.below(5_000));
                self.hosts[host].refuses_until = self.now + refuses;
                self.say(|| format!("server {host} refuses for {refuses:?}"));
            }
            Happening::Restarts(host, restart) => self.restart(host, restart),
            Happening::Moves => self.move_slot(),
            Happening::Serves { client, lock } => {
                let (slot, host) = (slot_of(&lock), self.host_of(&lock));
                self.step(client, Event::Link(LinkEvent::Serves(node(host), slot..=slot)));
            }
            Happening::Closes(client) => {
                self.say(|| format!("c{client} is closed"));
                self.step(client, Event::Close);
            }
            Happening::RuntimeGone(client) => {
                self.say(|| format!("the runtime of c{client} has ended"));
                self.clients[client].life = Life::Closed;
                self.ended = true;
                for host in 0..self.hosts.len() {
                    self.clients[client].connections.remove(&node(host));
                    self.hosts[host].server.reachable.remove(&format!("c{client}"));
                }
                self.step(client, Event::RuntimeGone);
            }
            Happening::Dies(client) => self.dies(client),
            Happening::Wakes => {}
        }
    }

    /// Lasts at most until the end of trouble.
    fn rest(&mut self, longest_ms: u64) -> Duration {
        let left = (Instant::default() + TROUBLE).since(self.now);
        Duration::from_millis(self.below(longest_ms)).min(left)
    }

    /// The client's process ends. The servers may take its connections for alive.
    fn dies(&mut self, client: usize) {
        let is_noticed = self.one_in(2);
        self.say(|| {
            format!("c{client} dies, and the servers {} it", if is_noticed { "notice" } else { "do not notice" })
        });
        let this = &mut self.clients[client];
        this.life = Life::Dead;
        this.callers.clear();
        this.changes.clear();
        this.connections.clear();
        self.ended = true;
        if is_noticed {
            self.hosts.iter_mut().for_each(|host| host.server.reachable.retain(|id| *id != format!("c{client}")));
        }
    }

    /// Until when the process that this event concerns is paused.
    fn rests(&self, happening: &Happening) -> Option<Instant> {
        let until = match happening {
            Happening::Arrives { host, .. } => self.hosts[*host].stands_still_until,
            other => self.clients[other.client()?].stands_still_until,
        };
        (until > self.now).then_some(until)
    }

    /// A new call, by a new owner or by an owner of other calls.
    fn act(&mut self, client: usize) {
        if self.now >= Instant::default() + LAST_CALL || self.clients[client].life != Life::Open {
            return;
        }
        if self.subject == Subject::Kinds && self.one_in(3) && self.uses_handle(client) {
            return self.soon(1500, Happening::Act(client));
        }
        let name = self.some_name();
        let share = self.some_share(name);
        // Permits do not nest.
        let may_nest = keys(name).kind != Kind::Semaphore;
        let scope = if may_nest && self.one_in(2) { Scope::Owner } else { Scope::Call };
        let this = &mut self.clients[client];
        this.next_owner += 1;
        let fresh = this.next_owner;
        let call = CallId(this.calls.insert(()));
        let owner = if scope == Scope::Owner { 1 + self.below(2) } else { fresh };
        let limit = self.now + Duration::from_millis(1 + self.below(6000));
        let manner = match self.below(8) {
            0 | 1 => Manner::Tries { limit, proposed: None },
            2 => Manner::Waits { limit: Some(limit) },
            _ => Manner::Waits { limit: None },
        };
        let lease = if self.one_in(4) { Lease::Fixed(LEASE) } else { Lease::Renewed(LEASE) };
        let (waits, limit, weight) = (manner.waits(), manner.limit(), share.weight);
        let caller = Caller { name, owner, waits, limit, weight, attaches: None, state: State::Waits };
        self.clients[client].callers.insert(call, caller);
        let (owner_id, terms) = (format!("c{client}:{owner}").into(), terms(name, share));
        let (keys, task) = (keys(name), TaskId(self.below(3)));
        self.say(|| format!("c{client} {call:?} calls {name} as {owner}: {manner:?} {lease:?}"));
        let want = Want { keys, owner, owner_id, scope, manner, lease, weight, terms, task };
        self.step(client, Event::Call(call, want));
        // Some callers give up at any time.
        self.perhaps(6, 5000, |_| Happening::End(client, call));
        self.perhaps(6, 5000, |_| Happening::Disturb(client, call));
        self.soon(1500, Happening::Act(client));
    }

    fn some_name(&mut self) -> usize {
        let names = self.subject.names();
        names.start + self.below(names.len() as u64) as usize
    }

    fn some_share(&mut self, name: usize) -> Share {
        let shares = shares(name);
        match *shares.as_slice() {
            [only] => only,
            _ => shares[self.below(shares.len() as u64) as usize],
        }
    }

    fn claim(&mut self, client: usize, call: CallId) {
        let Some(caller) = self.clients[client].callers.get_mut(&call) else { return };
        if caller.state == State::Offered {
            caller.state = State::Holds;
            self.step(client, Event::Claimed(call));
            let for_ms = if self.one_in(5) { 8000 } else { 300 };
            self.soon(for_ms, Happening::End(client, call));
            if self.subject == Subject::Kinds {
                self.perhaps(3, 400, |_| Happening::Change(client, call));
            }
        }
    }

    fn end(&mut self, client: usize, call: CallId) {
        let unlocks = self.one_in(2);
        // A detach takes its guard along.
        let unlocks = !matches!(self.drop_change(client, call), Some(Change::Detach(..))) && unlocks;
        let Some(caller) = self.clients[client].callers.get_mut(&call) else { return };
        self.checker.ends(client, call);
        if caller.state == State::Holds && unlocks {
            caller.state = State::Unlocks;
            self.say(|| format!("c{client} {call:?} unlocks"));
            self.step(client, Event::Unlock(call));
        } else {
            self.forget(client, call);
            self.say(|| format!("c{client} {call:?} is dropped"));
            self.step(client, Event::Gone(call));
        }
    }

    pub(crate) fn forget(&mut self, client: usize, call: CallId) {
        self.checker.ends(client, call);
        if let Some(caller) = self.clients[client].callers.remove(&call) {
            self.order.given_up(&keys(caller.name).lock, &caller.id(client));
        }
        self.clients[client].calls.remove(call.0);
    }

    fn breaks(&mut self, client: usize, node: NodeId) {
        if let Some(connection) = self.clients[client].connections.remove(&node) {
            self.hosts[usize::from(node.0)].server.reachable.remove(&format!("c{client}"));
            self.say(|| format!("c{client} loses its connection to {}", node.0));
            self.step(client, Event::Link(LinkEvent::Down(connection, Fault::Disconnected.into())));
            self.soon(3000, Happening::Connects(client, node));
        }
    }

    fn connect(&mut self, client: usize, node: NodeId) {
        if self.clients[client].connections.contains_key(&node) || self.clients[client].is_gone() {
            return;
        }
        self.number += 1;
        let connection = Connection { node, number: self.number as u32 };
        self.clients[client].connections.insert(node, connection);
        let host = &mut self.hosts[usize::from(node.0)];
        host.server.reachable.insert(format!("c{client}"));
        let frozen_until = ServerTime((host.server.frozen_until_us / 1000).cast_signed());
        let server_micros = Some(host.micros(self.now).cast_signed());
        self.say(|| format!("c{client} connects to {}", node.0));
        self.step(client, Event::Link(LinkEvent::Up { connection, server_micros, frozen_until }));
        if self.is_trouble() {
            self.soon(20_000, Happening::Breaks(client, node));
        }
    }

    pub(crate) fn step(&mut self, client: usize, event: Event<'_>) {
        let mut effects = Vec::new();
        self.steps += 1;
        let this = &mut self.clients[client];
        let concerned = self.coverage.before(&this.session, &event, self.now);
        let kind = crate::coverage::kind(&event);
        this.session.step(self.now, event, &mut effects);
        self.coverage.after(&this.session, kind, concerned);
        for effect in effects {
            self.do_effect(client, effect);
        }
    }

    fn do_effect(&mut self, client: usize, effect: Effect) {
        match effect {
            Effect::Send(id, connection, request) => self.send(client, id, connection, request),
            Effect::Tell(call, outcome) => self.told(client, call, outcome),
            Effect::Valid(call, until) => {
                let caller = self.clients[client].callers.get(&call).cloned();
                caller.into_iter().for_each(|caller| self.checker.valid(client, call, &caller, until, self.now));
            }
            Effect::Lost(call, loss) => {
                self.say(|| format!("c{client} {call:?} is lost: {loss:?}"));
                self.checker.ends(client, call);
            }
            Effect::Closed { unfinished } => {
                self.say(|| format!("c{client} has closed, {unfinished} unfinished"));
                self.clients[client].life = Life::Closed;
                // The leftovers of unanswered requests last until they expire.
                self.ended |= unfinished > 0;
            }
            Effect::Note(note) => self.say(|| format!("c{client} notes {note:?}")),
            Effect::Ended(..) | Effect::Suspect(_) | Effect::Wanted(_) => {}
        }
    }

    fn told(&mut self, client: usize, call: CallId, outcome: Outcome) {
        self.say(|| format!("c{client} {call:?} hears {outcome:?}"));
        let now = self.now;
        if self.change_is_told(client, call, &outcome) {
            return;
        }
        let Some(caller) = self.clients[client].callers.get_mut(&call) else { return };
        if let Outcome::Granted { weight, .. } = outcome {
            caller.weight = weight;
        }
        self.checker.told(client, call, caller, &outcome, now);
        if let Outcome::Granted { .. } = outcome {
            caller.state = State::Offered;
            let rests = self.is_trouble() && self.one_in(10);
            return self.soon(if rests { 2000 } else { 100 }, Happening::Claim(client, call));
        }
        self.forget(client, call);
    }

    fn send(&mut self, client: usize, id: RequestId, connection: Connection, request: Request) {
        self.say(|| format!("c{client} sends {:?} {}", id.number.0, brief(&request)));
        if self.clients[client].connections.get(&connection.node) != Some(&connection) {
            let reply = Err(RequestError::NotSent(Fault::Disconnected.into()));
            return self.soon(1, Happening::Answers { client, id, reply });
        }
        if self.is_trouble() && self.one_in(20) {
            // A reply that the client cannot read, or a request that it could not write.
            let cause = Fault::Disconnected.into();
            let is_sent = self.one_in(2);
            let error = if is_sent { RequestError::Unanswered(cause) } else { RequestError::NotSent(cause) };
            self.soon(1500, Happening::Answers { client, id, reply: Err(error) });
            if !is_sent {
                return;
            }
        }
        if let Request::Acquire(acquire) = &request {
            self.order.asked(&acquire.keys.lock, &acquire.owner, acquire.seq);
        }
        let host = usize::from(connection.node.0);
        let is_lost = self.is_trouble() && self.one_in(12);
        let is_repeated = self.is_trouble() && self.one_in(12) && !matches!(request, Request::Acquire(_));
        let request = Arc::new(request);
        for copy in 0..if is_lost { 0 } else { 1 + u8::from(is_repeated) } {
            let is_late = copy > 0 || self.is_trouble() && self.one_in(20);
            let arrives = Happening::Arrives { client, id, host, request: request.clone() };
            self.soon(if is_late { 6000 } else { 20 }, arrives);
        }
    }

    fn arrives(&mut self, client: usize, id: RequestId, host: usize, request: &Request) {
        let refusal = self.refusal(host, request);
        let mut messages = Vec::new();
        let is_half_way = self.now < Instant::default() + TROUBLE && self.random.u8(..40) == 0;
        let reply = if let Some(kind) = refusal {
            Err(RequestError::Refused(Refusal { kind, cause: Cause::new(Fault::NotConnected) }))
        } else {
            let micros = self.hosts[host].micros(self.now);
            self.hosts[host].keep(self.now);
            self.order.serves(lock_of(request), &self.hosts[host].server, micros);
            let settings = &self.clients[client].settings;
            let reply = self.hosts[host].server.run(request, settings, micros, &mut messages);
            // The server stops the script after its last write.
            let half_way = Refusal { kind: RefusalKind::HalfWay, cause: Cause::new(Fault::NotConnected) };
            self.check_order(lock_of(request), host);
            if is_half_way { Err(RequestError::Refused(half_way)) } else { Ok(reply) }
        };
        self.publish(host, messages);
        self.say(|| format!("server {host} runs {:?} of c{client}: {reply:?}", id.number.0));
        if self.is_trouble() && self.one_in(12) {
            return;
        }
        let is_late = self.is_trouble() && self.one_in(20);
        self.soon(if is_late { 4000 } else { 20 }, Happening::Answers { client, id, reply });
    }

    fn refusal(&self, host: usize, request: &Request) -> Option<RefusalKind> {
        if self.hosts[host].refuses_until > self.now {
            return Some(RefusalKind::ServerForNow);
        }
        let served_by = self.host_of(lock_of(request));
        (served_by != host).then_some(RefusalKind::SlotForNow)
    }

    /// The server that has the data of a name.
    fn host_of(&self, lock: &str) -> usize {
        match self.topology {
            Topology::OneServer => 0,
            Topology::Cluster => {
                self.checker.moved.get(lock).copied().unwrap_or(usize::from(slot_of(lock) > SLOTS / 2))
            }
        }
    }

    fn publish(&mut self, host: usize, messages: Vec<Message>) {
        for message in messages {
            let client = message.client.trim_start_matches('c').parse().unwrap_or(0);
            let Some(connection) = self.clients[client].connections.get(&node(host)).copied() else { continue };
            let lost = match self.calm {
                _ if self.is_trouble() => 10,
                Calm::MessagesLost => 3,
                Calm::Quiet | Calm::ProcessesDie => u64::MAX,
            };
            if self.one_in(lost) {
                continue;
            }
            for _ in 0..1 + u8::from(self.is_trouble() && self.one_in(20)) {
                let is_late = self.is_trouble() && self.one_in(10);
                let pushed = Happening::Pushed { client, connection, message: message.clone() };
                self.soon(if is_late { 3000 } else { 20 }, pushed);
            }
        }
    }

    fn pushed(&mut self, client: usize, connection: Connection, Message { lock, text, .. }: &Message) {
        self.say(|| format!("c{client} gets {text:?}"));
        let push = match text {
            Text::Grant { token, lease_ms, ticket } => {
                Push::Grant { token: *token, lease: Duration::from_millis(*lease_ms), ticket, lock }
            }
            Text::Revoked { token, owner } => Push::Revoked { token: *token, owner, lock },
        };
        self.step(client, Event::Pushed(connection, push));
    }

    fn force(&mut self) {
        let name = self.some_name();
        let keys = keys(name);
        let host = self.host_of(&keys.lock);
        let (micros, mut messages) = (self.hosts[host].micros(self.now), Vec::new());
        let settings = self.clients[0].settings.clone();
        self.order.serves(&keys.lock, &self.hosts[host].server, micros);
        let expected = self.some_token(name, host);
        self.hosts[host].server.run(&force_unlock(name, expected), &settings, micros, &mut messages);
        let token = server::revoked(&messages);
        self.say(|| format!("force_unlock of {}: {token:?}", keys.name));
        self.check_order(&keys.lock, host);
        token.into_iter().for_each(|token| self.checker.forced(name, token, self.now));
        if self.now < Instant::default() + LAST_CALL {
            self.soon(10_000, Happening::Force);
        }
        self.publish(host, messages);
    }

    /// The token of some hold of a shared name, which a forced unlock is to end.
    fn some_token(&mut self, name: usize, host: usize) -> Option<u64> {
        let at_server = self.hosts[host].server.names.get(&*keys(name).lock).filter(|_| is_shared(name))?;
        let tokens: Vec<_> = at_server.holders().map(|holder| holder.token).collect();
        if tokens.is_empty() { None } else { Some(tokens[self.below(tokens.len() as u64) as usize]) }
    }

    /// All connections of the server end. If it may have forgotten something, it freezes for the longest lease.
    fn restart(&mut self, host: usize, restart: Restart) {
        self.say(|| format!("server {host} restarts: {restart:?}"));
        let micros = self.hosts[host].micros(self.now);
        let now = self.now;
        let this = &mut self.hosts[host];
        match restart {
            Restart::WithItsData => {}
            Restart::WithOlderData => {
                this.older.retain(|(when, _)| now.since(*when) < Duration::from_secs(5));
                if let Some((_, older)) = this.older.first() {
                    this.server = older.clone();
                }
            }
            Restart::Empty => this.server = Server::new(TokenClock::Time),
        }
        this.server.reachable.clear();
        this.has_lost_data |= !matches!(restart, Restart::WithItsData);
        // A node that comes back learns from the others which slots have gone.
        let gone: Vec<_> =
            self.hosts[host].server.names.keys().filter(|lock| self.host_of(lock) != host).cloned().collect();
        let this = &mut self.hosts[host];
        gone.iter().for_each(|lock| drop(this.server.names.remove(lock)));
        if !matches!(restart, Restart::WithItsData) {
            // Includes twice the difference of the clocks (R14).
            let freeze = LEASE.max(FIRST_LEASE) + Duration::from_secs(7);
            this.server.frozen_until_us = micros + u64::try_from(freeze.as_micros()).unwrap_or(0);
        }
        this.older.clear();
        let served: Vec<_> = self.subject.names().map(keys).filter(|keys| self.host_of(&keys.lock) == host).collect();
        served.iter().for_each(|keys| self.order.begin_anew(&keys.lock, &self.hosts[host].server));
        (0..CLIENTS).for_each(|client| self.breaks(client, node(host)));
    }

    /// A name moves to the other server, and the clients learn of it one by one.
    fn move_slot(&mut self) {
        let keys = keys(self.some_name());
        let from = self.host_of(&keys.lock);
        let to = 1 - from;
        // The other server would grant what a frozen one has forgotten.
        if self.hosts[from].server.frozen_until_us > self.hosts[from].micros(self.now) {
            return;
        }
        let (from_us, to_us) = (self.hosts[from].micros(self.now), self.hosts[to].micros(self.now));
        if let Some(name) = self.hosts[from].server.names.remove(&*keys.lock) {
            self.hosts[to].server.names.insert(keys.lock.to_string(), name.moved(from_us, to_us));
        }
        self.checker.moved.insert(keys.lock.to_string(), to);
        self.order.begin_anew(&keys.lock, &self.hosts[to].server);
        self.hosts[to].has_lost_data |= self.hosts[from].has_lost_data;
        self.say(|| format!("{} goes from server {from} to {to}", keys.name));
        for client in 0..CLIENTS {
            self.soon(1000, Happening::Serves { client, lock: keys.lock.to_string() });
        }
        self.perhaps(2, 20_000, |_| Happening::Moves);
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(story) = &mut self.story {
            story.push(format!("{at:?} {}", line()));
        }
    }

    /// Checks what must be true after each event.
    fn look(&mut self) {
        let is_trouble = self.is_trouble();
        for name in self.subject.names() {
            let awake = self.clients.iter().filter(|client| client.stands_still_until <= self.now);
            let waiting = awake.flat_map(|client| client.callers.values());
            let waits =
                waiting.filter(|caller| caller.name == name && caller.waits && caller.state == State::Waits).count();
            self.checker.progress(name, waits > 0, is_trouble, self.now);
            self.check_counts(name);
            self.note_grant(name);
            self.check_idle(name);
            if self.is_settled() {
                let hindrance = match self.subject {
                    Subject::Locks => self.hindrance(name),
                    // A handle's hold keeps others waiting too.
                    Subject::Kinds => self.unheard(name),
                };
                let late = self.delays.look(name, hindrance, self.now);
                late.into_iter().for_each(|late| self.checker.breaks(late));
            }
        }
        let is_awake = |client: usize| {
            let client = &self.clients[client];
            client.life == Life::Open && client.stands_still_until + NOTIFIED <= self.now
        };
        self.checker.notified(is_awake, self.calm == Calm::Quiet && self.is_settled(), self.now);
    }

    fn check_order(&mut self, lock: &str, host: usize) {
        let clients = &self.clients;
        let waits = |id: &str| {
            let (client, owner) = owner_of(id);
            let mut callers = clients[client].callers.values();
            callers.any(|it| it.state == State::Waits && it.owner == owner && *keys(it.name).lock == *lock)
        };
        let overtaken = self.order.served(lock, &self.hosts[host].server, waits);
        if let Some((first, owner)) = overtaken {
            self.checker.breaks(format!("P3: {owner:?} gets {lock} before {first:?}, which was first in line"));
        }
    }

    /// P4: the server counts as many holds as there are guards.
    fn check_counts(&mut self, name: usize) {
        let lock = keys(name).lock.clone();
        let host = &self.hosts[self.host_of(&lock)];
        let Some(at_server) = host.server.names.get(&*lock).filter(|_| !host.has_lost_data) else { return };
        for Holder { owner: owner_id, token, holds, share, .. } in at_server.holders() {
            let Some((client, owner)) = client_owner(owner_id) else { continue };
            let guards = settled_guards(&self.clients[client].session, owner, &lock).filter(|(of, _)| of == token);
            let Some((_, guards)) = guards else { continue };
            let is_weighed = !is_shared(name) || guards.weight == share.weight;
            if guards.holds != *holds || !is_weighed {
                self.checker.breaks(format!(
                    "P4: c{client} has {guards:?} of {lock}, and the server counts {holds} of {share:?}"
                ));
                return;
            }
        }
    }

    /// P5: a caller or the machine will end whatever a client has at a server.
    fn check_idle(&mut self, name: usize) {
        let lock = keys(name).lock.clone();
        let host = &self.hosts[self.host_of(&lock)];
        let Some(at_server) = host.server.names.get(&*lock).filter(|_| !host.has_lost_data) else { return };
        let micros = host.micros(self.now);
        let is_idle = |client: usize| self.clients[client].life == Life::Open && self.clients[client].session.is_idle();
        let is_left = |holder: &&Holder| {
            let (client, _) = owner_of(&holder.owner);
            let is_in_hand = self.handles.are_in_hand(&holder.owner);
            let is_given_back = self.handles.is_given_back(&holder.owner);
            holder.until_us > micros && (is_given_back || is_idle(client) && !is_in_hand)
        };
        if let Some(holder) = at_server.holders().find(is_left) {
            self.checker.breaks(format!("P5: nobody will give back {holder:?} of name {name}"));
        }
    }

    /// A waiter that does not know of its grant.
    fn unheard(&self, name: usize) -> Option<Hindrance> {
        let lock = keys(name).lock.clone();
        let host = &self.hosts[self.host_of(&lock)];
        let micros = host.micros(self.now);
        let mut holders = host.server.names.get(&*lock)?.holders().filter(|holder| holder.until_us > micros);
        let is_unheard = |owner: &str| !owner.contains('-') && self.caller(owner, name) == Some(State::Waits);
        holders.find(|holder| is_unheard(&holder.owner)).map(|holder| Hindrance::Unheard(holder.token))
    }

    fn note_grant(&mut self, name: usize) {
        let lock = keys(name).lock.clone();
        let holder = self.hosts[self.host_of(&lock)].server.names.get(&*lock).and_then(|name| name.holder.as_ref());
        holder.into_iter().for_each(|holder| self.delays.granted(name, holder.token, self.now));
    }

    /// The obstacle between this name and its live waiters.
    fn hindrance(&self, name: usize) -> Option<Hindrance> {
        let lock = keys(name).lock.clone();
        let host = &self.hosts[self.host_of(&lock)];
        let (micros, at_server) = (host.micros(self.now), host.server.names.get(&*lock)?);
        let caller = |id: &str| self.caller(id, name);
        let waits = at_server.queue.iter().any(|place| caller(&place.owner) == Some(State::Waits));
        match &at_server.holder {
            Some(holder) => match caller(&holder.owner) {
                Some(State::Waits) => Some(Hindrance::Unheard(holder.token)),
                Some(State::Offered | State::Holds) => None,
                Some(State::Unlocks) | None => {
                    let (left, over) = (holder.until_us.saturating_sub(micros), micros.saturating_sub(holder.until_us));
                    let lease_ends = self.now + Duration::from_micros(left) - Duration::from_micros(over);
                    waits.then_some(Hindrance::DeadHolder { token: holder.token, lease_ends })
                }
            },
            None if !waits => None,
            None => Some(Hindrance::Unserved),
        }
    }

    /// The furthest state of an owner's callers: whether one of them has the lock, else whether one waits.
    fn caller(&self, id: &str, name: usize) -> Option<State> {
        let (client, owner) = owner_of(id);
        let callers = self.clients[client].callers.values();
        let states = callers.filter(|caller| (caller.name, caller.owner) == (name, owner)).map(|caller| caller.state);
        states.max()
    }

    fn check_end(&mut self) {
        let living = self.clients.iter().enumerate().filter(|(_, client)| client.life != Life::Dead);
        for (number, client) in living {
            let left: Vec<_> = client.callers.iter().map(|(call, caller)| format!("{call:?} {caller:?}")).collect();
            let changes = client.changes.iter().map(|(call, change)| format!("{call:?} {change:?}"));
            let left: Vec<_> = left.into_iter().chain(changes).collect();
            self.checker.left(number, &left, client.session.is_idle());
        }
        // The places of an ended client go with their queue.
        let later = if self.ended || self.handles.are_left() { Duration::from_secs(100) } else { Duration::ZERO };
        for host in &mut self.hosts {
            host.server.expire(host.micros(self.now + later));
            let micros = host.micros(self.now + later);
            let is_free = host.server.names.values().all(|name| name.is_free(micros));
            self.checker.left_at_server(is_free, &format!("{:?}", host.server.names));
        }
    }
}

/// The client and the number of an owner. `None`: a handle's owner.
fn client_owner(id: &str) -> Option<(usize, u64)> {
    (!id.contains('-')).then(|| owner_of(id))
}

/// The client and the number of an owner. A handle's owner, such as `c0-5:0`, belongs to the client that made it.
fn owner_of(id: &str) -> (usize, u64) {
    let (client, owner) = id.trim_start_matches('c').split_once(':').unwrap_or_default();
    let (client, _) = client.split_once('-').unwrap_or((client, ""));
    (client.parse().unwrap_or(0), owner.parse().unwrap_or(0))
}

fn node(host: usize) -> NodeId {
    NodeId(host as u16)
}

pub fn lock_of(request: &Request) -> &str {
    &request.keys().lock
}

/// A forced unlock that is never late.
pub fn force_unlock(name: usize, expected: Option<u64>) -> Request {
    Request::ForceUnlock(ForceUnlock { keys: keys(name), expected, not_after: i64::MAX })
}

pub fn brief(request: &Request) -> String {
    match request {
        Request::Acquire(it) => format!("acquire {} seq {} {:?} until {}", it.owner, it.seq, it.mode, it.not_after),
        Request::Release(it) => format!("release {} seq {} to {} of token {}", it.owner, it.seq, it.holds, it.token),
        Request::Renew(it) => format!("renew {} token {} {:?} {:?}", it.owner, it.token, it.lease, it.only),
        Request::Poll(it) => format!("poll {} {:?}", it.keys.name, it.tickets),
        Request::Leave(it) => {
            format!("leave {} seq {} place {:?} until {}", it.owner, it.seq, it.place, it.copies_until)
        }
        Request::Give(it) => {
            let Give { from, seq, token, to, attempt, not_after, .. } = &**it;
            format!("give token {token} from {from} seq {seq} to {to} seq {attempt} until {not_after}")
        }
        Request::Inspect(it) => format!("inspect {}", it.keys.name),
        Request::ForceUnlock(it) => {
            format!("force_unlock {} of {:?} until {}", it.keys.name, it.expected, it.not_after)
        }
        Request::SetLimit(it) => format!("set_limit {} to {:?} until {}", it.keys.name, it.limit, it.not_after),
        Request::Raise(it) => format!("raise {} token {} to {}", it.owner, it.token, it.floor),
    }
}

impl Happening {
    /// The client that the event concerns.
    fn client(&self) -> Option<usize> {
        match self {
            Self::Act(client)
            | Self::Claim(client, _)
            | Self::End(client, _)
            | Self::Change(client, _)
            | Self::Disturb(client, _)
            | Self::Answers { client, .. }
            | Self::Pushed { client, .. }
            | Self::Breaks(client, _)
            | Self::Connects(client, _)
            | Self::Serves { client, .. }
            | Self::RuntimeGone(client)
            | Self::Closes(client) => Some(*client),
            _ => None,
        }
    }

    /// Whether the event belongs to the time of trouble.
    fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Breaks(..)
                | Self::ClientRests(_)
                | Self::HostRests(_)
                | Self::HostRefuses(_)
                | Self::Restarts(..)
                | Self::Moves
        )
    }
}

impl Host {
    fn new(random: &mut fastrand::Rng) -> Self {
        Self {
            server: Server::new(TokenClock::Time),
            skew: random.i64(-4000..4000),
            ahead_us: random.u64(..3_000_000),
            older: Vec::new(),
            has_lost_data: false,
            stands_still_until: Instant::default(),
            refuses_until: Instant::default(),
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        let passed = now.micros().cast_signed();
        let passed = passed + passed / 1_000_000 * self.skew + passed % 1_000_000 * self.skew / 1_000_000;
        SERVERS_EPOCH + self.ahead_us + passed.cast_unsigned()
    }

    /// Keeps a copy now and then, for a restart with older data.
    fn keep(&mut self, now: Instant) {
        if self.older.last().is_none_or(|(when, _)| now.since(*when) > Duration::from_millis(500)) {
            self.older.push((now, self.server.clone()));
            self.older.retain(|(when, _)| now.since(*when) < Duration::from_secs(5));
        }
    }
}

impl Client {
    fn new(number: usize, topology: Topology) -> Self {
        let waiter_ttl_ms = i64::try_from(WAITER_TTL.as_millis()).unwrap_or(0);
        Self {
            session: Session::new(settings(number), topology),
            calls: Slab::default(),
            callers: BTreeMap::new(),
            changes: BTreeMap::new(),
            connections: BTreeMap::new(),
            settings: server::Client { id: format!("c{number}"), waiter_ttl_ms, max_waiters: 100 },
            next_owner: 100,
            stands_still_until: Instant::default(),
            life: Life::Open,
        }
    }

    fn is_gone(&self) -> bool {
        self.life != Life::Open && self.connections.is_empty()
    }

    fn next_timer(&self) -> Option<Instant> {
        self.session.next_timer().filter(|_| self.life != Life::Dead).map(|due| due.max(self.stands_still_until))
    }
}
