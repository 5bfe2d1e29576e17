//! A client's connection to an [`EmbeddedServer`], or to a node of a cluster of them.
//!
//! By default a request takes no time and nothing is lost. `Faults` can change that.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::faults::Delivery;
use super::request::{Answer, Request};
use super::server::{Connection, EmbeddedServer, Pushed, Pushes};
use crate::store::admission::Admission;
use crate::store::call::Call;
use crate::store::changes::Changes;
use crate::store::clock::{ServerClock, now};
use crate::store::cluster::table::Seat;
use crate::store::connect_options::Address;
use crate::store::error::{Cause, Disconnected, RequestError};
use crate::store::keys;
use crate::store::link::{Link, OnDrop, State};
use crate::store::options::Options;
use crate::store::reply::ScriptReply;
use crate::store::server::{Line, Told};
use crate::store::verbs::boot::{self, Boot};
use crate::store::{Listener, Priority, Ran, ServedKeys, Server, SpawnHook, Store};
use crate::sync::Mutex;

pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// One, or all nodes of a cluster.
    servers: Vec<EmbeddedServer>,
    /// Where it is connected, or is to be. `None`: nobody needs it now.
    current: Mutex<Option<EmbeddedServer>>,
    /// Whether a connection is wanted.
    is_wanted: AtomicBool,
    /// Notified when either of these has changed.
    changed: Notify,
    keys: ServedKeys,
    client: String,
    channel_prefix: String,
    operation_timeout: Duration,
    /// With `strict_restart`.
    boot: Option<Boot>,
    link: Link<Connection>,
    admission: Admission,
    clock: ServerClock,
}

impl EmbeddedStore {
    /// If the server is down the store goes on by itself. Says whether it is connected.
    pub fn connect_or_go_on(server: &EmbeddedServer, options: &Options, client: &str) -> (Self, bool) {
        let shared = Shared::new(vec![server.clone()], ServedKeys::All, options, client, Arc::default());
        let first = server.attach(&shared.channel(server));
        let is_connected = first.is_some();
        (Self::begun(shared, server, first), is_connected)
    }

    fn begun(shared: Arc<Shared>, server: &EmbeddedServer, first: Option<(Connection, Pushes)>) -> Self {
        *shared.current.lock() = Some(server.clone());
        shared.want();
        if let Some((first, _)) = &first {
            shared.boot(server);
            shared.link.enter(State::Ready(first.clone()));
        }
        Self::supervised(shared, first)
    }

    /// A seat among the nodes of a cluster.
    pub fn seat(
        nodes: Vec<EmbeddedServer>,
        keys: ServedKeys,
        options: &Options,
        client: &str,
        changes: Arc<Changes>,
    ) -> Self {
        Self::supervised(Shared::new(nodes, keys, options, client, changes), None)
    }

    fn supervised(shared: Arc<Shared>, first: Option<(Connection, Pushes)>) -> Self {
        let (kept, told) = (shared.clone(), shared.clone());
        let on_drop = OnDrop(move || told.link.gone());
        let supervisor = async move {
            let _on_drop = on_drop;
            supervise(kept, first).await;
        };
        tokio::spawn(shared.wrap_task(supervisor.boxed()));
        Self { shared }
    }

    /// Wraps the background tasks of this client, so that a simulator can pause and end them.
    pub fn spawn_hook(&self) -> SpawnHook {
        let shared = self.shared.clone();
        Arc::new(move |task| shared.wrap_task(task))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// There is one server at a time for all locks, so `lock_key` is not used.
impl Store for EmbeddedStore {
    fn is_ready(&self, _lock_key: &str, priority: Priority) -> bool {
        self.shared.link.is_ready(priority)
    }

    fn ready<'a>(&'a self, _lock_key: &'a str, priority: Priority) -> BoxFuture<'a, Result<(), RequestError>> {
        self.shared.want();
        self.shared.link.ready(priority).boxed()
    }

    fn fault(&self, _lock_key: &str) -> Cause {
        self.shared.link.fault()
    }

    fn run<'a>(&'a self, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<Ran<'a>, RequestError>> {
        async move { Ok(Ran { reply: self.shared.run(call, request).await?, by: self }) }.boxed()
    }

    fn distrust(&self, _lock_key: &str) {
        self.shared.disconnect();
    }

    fn suspect(&self, _lock_key: &str) {
        // Its connections are never half-open without being cancelled later.
    }

    fn admission(&self, _lock_key: &str) -> &Admission {
        &self.shared.admission
    }

    fn clock(&self, _lock_key: &str) -> &ServerClock {
        &self.shared.clock
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.link.listen(listener);
    }

    fn seats(&self) -> Vec<u16> {
        vec![0]
    }

    fn server(&self, seat: u16) -> Option<&dyn Server> {
        (seat == 0).then_some(self)
    }

    fn changes(&self) -> &Changes {
        &self.shared.link.changes
    }

    fn frozen_until(&self) -> u64 {
        self.shared.boot.as_ref().map_or(0, Boot::frozen_until)
    }

    fn server_id(&self) -> Option<String> {
        self.shared.server().map(|server| server.id())
    }

    fn close(&self) {
        // In this order: a closed link has no connection left to detach.
        self.shared.disconnect();
        self.shared.link.close();
    }
}

impl Server for EmbeddedStore {
    fn address(&self) -> String {
        let address = self.shared.server().and_then(|server| server.address());
        address.map_or_else(|| "the embedded server".into(), |address| address.to_string())
    }

    fn line(&self) -> Line {
        self.shared.link.line(self.shared.is_wanted.load(Ordering::Relaxed))
    }

    fn down_for(&self) -> Option<Duration> {
        self.shared.link.down_for()
    }

    fn hears(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Told, RequestError>> {
        self.shared.ask(words).boxed()
    }
}

impl Seat for EmbeddedStore {
    fn move_to(&self, address: Option<&Address>) {
        let shared = &self.shared;
        let next = shared.servers.iter().find(|server| address.is_some() && server.address().as_ref() == address);
        let is_same = match (&*shared.current.lock(), next) {
            (Some(before), Some(next)) => before.is(next),
            (before, next) => before.is_none() && next.is_none(),
        };
        shared.is_wanted.store(false, Ordering::Relaxed);
        if !is_same {
            // While the server of before is still known.
            shared.disconnect();
            *shared.current.lock() = next.cloned();
        } else if address.is_some() && shared.link.is_ready(Priority::Urgent) {
            shared.want();
        }
        shared.changed.notify_waiters();
    }

    fn gained_slots(&self) {
        self.shared.link.gained_slots();
    }

    fn open(&self) {
        self.shared.want();
    }

    fn is_open(&self) -> bool {
        self.shared.is_wanted.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// One command that changes nothing. It takes no time, and no fault is applied to it.
    async fn ask(&self, words: &[&str]) -> Result<Told, RequestError> {
        let (Some(connection), Some(server)) = (self.link.connection(Priority::Question), self.server()) else {
            return Err(RequestError::NotSent(self.link.fault()));
        };
        let answer = server.answer(words);
        // For the reason that `run` has.
        tokio::task::yield_now().await;
        let texts = answer.ok_or_else(|| RequestError::Unanswered(Arc::new(Disconnected)))?;
        Ok(Told { texts: texts.map_err(RequestError::Refused)?, connection: connection.dead })
    }

    fn new(
        servers: Vec<EmbeddedServer>,
        keys: ServedKeys,
        options: &Options,
        client: &str,
        changes: Arc<Changes>,
    ) -> Arc<Self> {
        let in_flight = servers.first().map_or(1, |server| server.in_flight(client));
        Arc::new(Self {
            servers,
            current: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            changed: Notify::new(),
            keys,
            client: client.to_owned(),
            channel_prefix: keys::channel_prefix(&options.prefix),
            operation_timeout: options.operation_timeout,
            boot: Boot::new(options),
            link: Link::new(changes, options.metrics.clone()),
            // With a known seed, so that a simulated run can be repeated.
            admission: Admission::new(in_flight, 0),
            clock: ServerClock::new(),
        })
    }

    fn wrap_task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        // Each of them would do, and there is at least one.
        match self.servers.first() {
            Some(server) => server.wrap_task(&self.client, task),
            None => task,
        }
    }

    fn server(&self) -> Option<EmbeddedServer> {
        self.current.lock().clone()
    }

    fn channel(&self, server: &EmbeddedServer) -> String {
        format!("{}{}{}", self.channel_prefix, server.tag(), self.client)
    }

    fn want(&self) {
        if !self.is_wanted.swap(true, Ordering::Relaxed) {
            self.changed.notify_waiters();
        }
    }

    /// The server to connect to, once a connection is wanted.
    async fn wanted(&self) -> EmbeddedServer {
        loop {
            // Register before looking: a change between the look and the await is not missed.
            let changed = self.changed.notified();
            if let Some(server) = self.server().filter(|_| self.is_wanted.load(Ordering::Relaxed)) {
                return server;
            }
            changed.await;
        }
    }

    /// Resolves when this is not the server to connect to.
    async fn left(&self, server: &EmbeddedServer) {
        loop {
            let changed = self.changed.notified();
            if !self.server().is_some_and(|current| current.is(server)) {
                return;
            }
            changed.await;
        }
    }

    fn disconnect(&self) {
        if let (Some(connection), Some(server)) = (self.link.connection(Priority::Urgent), self.server()) {
            server.detach(&connection);
        }
    }

    /// With `strict_restart`: freezes the server if it may have forgotten a grant. Here it needs no message that could
    /// be lost.
    fn boot(&self, server: &EmbeddedServer) {
        let Some(boot) = &self.boot else { return };
        // As by the probe of a node: a client that sends nothing during a freeze knows when it is over.
        self.clock.learn(now(), 0, server.micros());
        let life = server.life();
        let (keys, args) = (boot.keys(), boot.args(&life, server.epoch()));
        let request = Request::new(&self.client, Call::new(&boot::SCRIPT, &keys, &args), 0, "");
        if let Some(Ok(reply)) = server.serve(&request) {
            // A reply that cannot be read leaves the requests that follow without a record, and they say so.
            let _ = boot.booted(&reply, "the embedded server");
        }
    }

    /// The message of a flush has arrived.
    fn flushed(&self, connection: &Connection) {
        if connection.hears_of_flush() {
            self.link.flushed();
        }
    }

    /// `None`: the server is shut down.
    fn serve(&self, server: &EmbeddedServer, request: &Request) -> Option<Answer> {
        let served = server.serve(request)?;
        if !matches!(&served, Err(refusal) if refusal.lacks_boot()) {
            return Some(served);
        }
        self.boot(server);
        server.serve(request)
    }

    async fn run(self: &Arc<Self>, call: Call<'_>, request: u64) -> Result<ScriptReply, RequestError> {
        let (Some(connection), Some(server)) = (self.link.connection(Priority::Urgent), self.server()) else {
            return Err(RequestError::NotSent(self.link.fault()));
        };
        let request = Request::new(&self.client, call, request, &server.tag());
        let deliveries = server.deliveries(&request);
        let unanswered = || RequestError::Unanswered(Arc::new(Disconnected));
        if deliveries == [Delivery::AT_ONCE] {
            // Served before the first await. A future that is dropped there cannot take back what was
            // sent.
            let served = self.serve(&server, &request);
            // Yields, as a request over a real connection does. Otherwise a loop of calls would keep other tasks from
            // running.
            tokio::task::yield_now().await;
            return served.ok_or_else(unanswered)?.map_err(RequestError::Refused);
        }
        let (answer, mut answers) = mpsc::channel(deliveries.len().max(1));
        // In tasks of their own, because what was sent arrives even if the caller is dropped (R9).
        let request = Arc::new(request);
        for delivery in deliveries {
            let sent = Sent { server: server.clone(), connection: connection.clone(), request: request.clone() };
            tokio::spawn(deliver(self.clone(), sent, delivery, answer.clone()));
        }
        tokio::select! {
            // A fixed order, so that a simulated run can be repeated. Once the connection is dead its
            // answers count as lost, as over a real one.
            biased;
            () = connection.dead.cancelled() => Err(unanswered()),
            // `answer` is still alive here, so if all copies are lost this waits until the caller times out.
            served = answers.recv() => served.ok_or_else(unanswered)?.map_err(RequestError::Refused),
        }
    }
}

/// A request, and where it goes.
struct Sent {
    server: EmbeddedServer,
    connection: Connection,
    request: Arc<Request>,
}

/// One copy of a request.
async fn deliver(shared: Arc<Shared>, sent: Sent, delivery: Delivery, answer: mpsc::Sender<Answer>) {
    sleep(delivery.request).await;
    // A shutdown drops the connections and all requests in them. After a mere disconnect by the client, the server
    // still receives what was sent before.
    if sent.server.was_shut_down_since(&sent.connection) {
        return;
    }
    let served = shared.serve(&sent.server, &sent.request);
    if let (Some(served), Some(delay)) = (served, delivery.reply) {
        sleep(delay).await;
        // In one read: before the caller looks at its answer, as in the driver of a real connection.
        shared.flushed(&sent.connection);
        // Fails if the caller no longer waits, or if another copy was answered first.
        let _ = answer.try_send(served);
    }
}

/// Keeps the connection until the store is closed.
async fn supervise(shared: Arc<Shared>, first: Option<(Connection, Pushes)>) {
    let keep = async {
        // Without `resume`: a new client has no waits and no holds to check.
        if let Some((first, pushes)) = first {
            until_dead(&shared, &first, pushes, shared.link.keep_checked(None, &shared.keys, shared.operation_timeout))
                .await;
        }
        loop {
            shared.link.enter(State::Down(Arc::new(Disconnected)));
            let server = shared.wanted().await;
            let channel = shared.channel(&server);
            let (connection, pushes) = tokio::select! {
                // A fixed order, so that a simulated run can be repeated.
                biased;
                () = shared.left(&server) => continue,
                attached = server.reattach(&shared.client, &channel) => attached,
            };
            if let ServedKeys::Slots { .. } = shared.keys {
                // As by the probe of a node.
                shared.clock.learn(now(), 0, server.micros());
            }
            shared.boot(&server);
            let checks = shared.link.keep_checked(Some(&connection), &shared.keys, shared.operation_timeout);
            until_dead(&shared, &connection, pushes, checks).await;
        }
    };
    tokio::select! {
        // In this order: `close` ends the connection first, and that end must not lead to another one.
        biased;
        () = shared.link.stop.cancelled() => {}
        () = keep => {}
        () = shared.admission.watch() => {}
    }
    // One that was made while `close` ran, on another thread. The server would keep the subscription for ever, and grant
    // the lock to a place of this client that a failover brings back.
    shared.server().iter().for_each(|server| server.disconnect(&shared.client));
}

/// Hands pushes to the listener until the connection is closed. At the same time as it is checked: while the waiters are
/// polled for, pushed grants may arrive.
async fn until_dead(shared: &Shared, connection: &Connection, mut pushes: Pushes, checks: impl Future<Output = ()>) {
    let messages = async {
        while let Some(pushed) = pushes.recv().await {
            match (pushed, shared.link.listener()) {
                (Pushed::Message(message), Some(listener)) => listener.pushed(&shared.keys, &message),
                (Pushed::Flushed, _) => shared.flushed(connection),
                (_, None) => {}
            }
        }
    };
    // In this order: a check whose answer came just before the end of the connection counts.
    tokio::select! {
        biased;
        () = checks => {}
        _ = connection.dead.run_until_cancelled(messages) => {}
    }
}
