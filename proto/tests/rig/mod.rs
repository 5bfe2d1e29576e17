//! One session, driven by hand.

use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::{Effect, Note, Outcome};
use fairlock_proto::error::{Ended, Fault, RequestError};
use fairlock_proto::event::{
    CallId, Connection, Event, Lease, LinkEvent, Manner, NodeId, RequestId, Scope, TaskId, Want,
};
use fairlock_proto::keys::Keys;
use fairlock_proto::request::{Answer, Reply, Request};
use fairlock_proto::requests::acquire::Acquired;
use fairlock_proto::requests::release::Released;
use fairlock_proto::requests::renew::Renewed;
use fairlock_proto::session::Session;
use fairlock_proto::settings::Settings;
use fairlock_proto::slab::Slab;
use fairlock_proto::slots::Topology;
use fairlock_proto::time::{Instant, ServerTime};

pub const SECOND: Duration = Duration::from_secs(1);
pub const LEASE: Duration = Duration::from_secs(30);
/// The server's clock at the start, in µs.
pub const EPOCH: i64 = 1_700_000_000_000_000;

pub struct Rig {
    pub session: Session,
    pub now: Instant,
    pub sent: Vec<(RequestId, Connection, Request)>,
    pub told: Vec<(CallId, Outcome)>,
    pub lost: Vec<CallId>,
    pub notes: Vec<Note>,
    pub wanted: Vec<NodeId>,
    pub suspected: Vec<Connection>,
    pub ended: Vec<Ended>,
    pub closed: Option<usize>,
    pub calls: Slab<()>,
    next_owner: u64,
    connections: u32,
    clock: i64,
}

pub fn settings() -> Settings {
    Settings {
        client: "c".into(),
        prefix: "p".into(),
        operation_timeout: 2 * SECOND,
        waiter_ttl: 7 * SECOND,
        poll_interval: 2 * SECOND,
        grant_ttl: 3 * SECOND,
        first_lease: 5 * SECOND,
        token_ttl: 60 * SECOND,
        lease: LEASE,
        max_hold: None,
        in_flight: 4,
    }
}

impl Rig {
    /// Connected to one server.
    pub fn new(settings: Settings) -> Self {
        let mut rig = Self::unconnected(settings, Topology::OneServer);
        rig.connect(NodeId(0));
        rig
    }

    pub fn unconnected(settings: Settings, topology: Topology) -> Self {
        Self {
            session: Session::new(settings, topology),
            now: Instant::from_micros(100_000_000),
            sent: Vec::new(),
            told: Vec::new(),
            lost: Vec::new(),
            notes: Vec::new(),
            wanted: Vec::new(),
            suspected: Vec::new(),
            ended: Vec::new(),
            closed: None,
            calls: Slab::default(),
            next_owner: 0,
            connections: 0,
            clock: EPOCH - 100_000_000,
        }
    }

    pub fn step(&mut self, event: Event<'_>) -> usize {
        let mut effects = Vec::new();
        self.session.step(self.now, event, &mut effects);
        let count = effects.len();
        for effect in effects {
            match effect {
                Effect::Send(id, connection, request) => self.sent.push((id, connection, request)),
                Effect::Tell(call, outcome) => self.told.push((call, outcome)),
                Effect::Lost(call, _) => self.lost.push(call),
                Effect::Note(note) => self.notes.push(note),
                Effect::Closed { unfinished } => self.closed = Some(unfinished),
                Effect::Wanted(node) => self.wanted.push(node),
                Effect::Suspect(connection) => self.suspected.push(connection),
                Effect::Ended(_, ended) => self.ended.push(ended),
                Effect::Valid(..) => {}
            }
        }
        count
    }

    /// The server's clock now.
    pub fn server_micros(&self) -> i64 {
        self.clock + self.now.micros().cast_signed()
    }

    pub fn shift_server_clock(&mut self, micros: i64) {
        self.clock += micros;
    }

    pub fn connect(&mut self, node: NodeId) -> Connection {
        self.connect_frozen_for(node, Duration::ZERO)
    }

    pub fn connect_frozen_for(&mut self, node: NodeId, freeze: Duration) -> Connection {
        self.connections += 1;
        let connection = Connection { node, number: self.connections };
        let server_micros = self.server_micros();
        let frozen_until = ServerTime(server_micros / 1000) + freeze;
        self.step(Event::Link(LinkEvent::Up { connection, server_micros: Some(server_micros), frozen_until }));
        connection
    }

    pub fn disconnect(&mut self) {
        let connection = Connection { node: NodeId(0), number: self.connections };
        self.step(Event::Link(LinkEvent::Down(connection, Fault::Disconnected.into())));
    }

    /// Lets this much time pass, with a step for each timer.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.session.next_timer().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.step(Event::Time);
        }
        self.now = until;
    }

    /// The whole process pauses for this long.
    pub fn stand_still(&mut self, time: Duration) {
        self.now = self.now + time;
        self.settle();
    }

    /// Does everything that is due now.
    pub fn settle(&mut self) {
        while self.session.next_timer().is_some_and(|due| due <= self.now) {
            self.step(Event::Time);
        }
    }

    pub fn want(&mut self, name: &str) -> Want {
        self.next_owner += 1;
        let owner = self.next_owner;
        Want {
            keys: Arc::new(Keys::new("p", name)),
            owner,
            owner_id: format!("c:{owner}").into(),
            scope: Scope::Call,
            manner: Manner::Waits { limit: None },
            weight: 1,
            lease: Lease::Renewed(LEASE),
            terms: "5000/label".into(),
            task: TaskId(1),
        }
    }

    pub fn new_call(&mut self) -> CallId {
        CallId(self.calls.insert(()))
    }

    pub fn call(&mut self, want: Want) -> CallId {
        let call = self.new_call();
        self.step(Event::Call(call, want));
        call
    }

    pub fn lock(&mut self, name: &str) -> CallId {
        let want = self.want(name);
        self.call(want)
    }

    /// Takes the last request out of `sent`.
    pub fn last(&mut self) -> (RequestId, Request) {
        let (id, _, request) = self.sent.pop().expect("nothing was sent");
        (id, request)
    }

    pub fn answer(&mut self, id: RequestId, answer: Answer) {
        let server_micros = Some(self.server_micros());
        self.step(Event::Replied(id, Ok(Reply { server_micros, answer })));
    }

    pub fn refuse(&mut self, id: RequestId, error: RequestError) {
        self.step(Event::Replied(id, Err(error)));
    }

    /// Gets and claims a lock.
    pub fn hold(&mut self, name: &str, token: u64) -> CallId {
        let want = self.want(name);
        self.hold_as(want, token)
    }

    /// The same with this want.
    pub fn hold_as(&mut self, want: Want, token: u64) -> CallId {
        let call = self.call(want);
        let (id, _) = self.last();
        self.answer(id, held(token, LEASE));
        let told = self.told.last();
        assert!(matches!(told, Some((to, Outcome::Granted { .. })) if *to == call), "{told:?}");
        self.step(Event::Claimed(call));
        call
    }

    /// Gets and releases a lock.
    pub fn hold_and_release(&mut self, name: &str) {
        let call = self.hold(name, 7);
        self.step(Event::Unlock(call));
        let (id, _) = self.last();
        self.answer(id, freed(7));
    }

    pub fn is_granted(&self, call: CallId) -> bool {
        self.told.iter().any(|(told, outcome)| *told == call && matches!(outcome, Outcome::Granted { .. }))
    }

    pub fn outcome(&self, call: CallId) -> Option<&Outcome> {
        self.told.iter().rev().find(|(told, _)| *told == call).map(|(_, outcome)| outcome)
    }
}

pub fn held(token: u64, lease_left: Duration) -> Answer {
    Answer::Acquired(Acquired::Held { token, holds: 1, lease_left })
}

pub fn queued(floor: u64) -> Answer {
    Answer::Acquired(Acquired::Queued { floor, lease_left: Some(LEASE), more: false, known: true, holder: None })
}

pub fn renewed(lease_left: Duration) -> Answer {
    Answer::Renewed(Renewed::Renewed { lease_left })
}

pub fn freed(token: u64) -> Answer {
    Answer::Released(Released::Freed { token, more: false })
}
