//! A client's connection to an [`EmbeddedServer`].
//!
//! By default a request takes no time and nothing is lost. `Faults` can change that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::faults::Delivery;
use super::request::{Answer, Request};
use super::server::{Connection, EmbeddedServer, Pushes};
use crate::store::admission::Admission;
use crate::store::call::Call;
use crate::store::clock::ServerClock;
use crate::store::error::{Cause, ConnectError, Disconnected, RequestError};
use crate::store::keys;
use crate::store::link::{Link, OnDrop, State};
use crate::store::options::Options;
use crate::store::reply::ScriptReply;
use crate::store::verbs::boot::{self, Boot};
use crate::store::{Listener, Priority, Ran, ServedKeys, SpawnHook, Store};

pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

struct Shared {
    server: EmbeddedServer,
    client: String,
    channel: String,
    operation_timeout: Duration,
    /// With `strict_restart`.
    boot: Option<Boot>,
    link: Link<Connection>,
    admission: Admission,
    clock: ServerClock,
}

impl EmbeddedStore {
    pub fn connect(server: &EmbeddedServer, options: &Options, client: &str) -> Result<Self, ConnectError> {
        let channel = format!("{}{client}", keys::channel_prefix(&options.prefix));
        let (first, pushes) = server.attach(&channel).ok_or_else(|| ConnectError::Unreachable {
            address: "the embedded server".into(),
            cause: Arc::new(Disconnected),
        })?;
        let shared = Arc::new(Shared {
            server: server.clone(),
            client: client.to_owned(),
            channel,
            operation_timeout: options.operation_timeout,
            boot: Boot::new(options),
            link: Link::new(),
            // With a known seed, so that a simulated run can be repeated.
            admission: Admission::new(server.in_flight(client), 0),
            clock: ServerClock::new(),
        });
        shared.boot();
        shared.link.enter(State::Ready(first.clone()));
        let (kept, told) = (shared.clone(), shared.clone());
        let on_drop = OnDrop(move || told.link.gone());
        let supervisor = async move {
            let _on_drop = on_drop;
            supervise(kept, first, pushes).await;
        };
        tokio::spawn(server.wrap_task(&shared.client, supervisor.boxed()));
        Ok(Self { shared })
    }

    /// Wraps the background tasks of this client, so that a simulator can pause and end them.
    pub fn spawn_hook(&self) -> SpawnHook {
        let (server, client) = (self.shared.server.clone(), self.shared.client.clone());
        Arc::new(move |task| server.wrap_task(&client, task))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// There is one server for all locks, so `lock_key` is not used.
impl Store for EmbeddedStore {
    fn is_ready(&self, _lock_key: &str, priority: Priority) -> bool {
        self.shared.link.connection(priority).is_some()
    }

    fn ready<'a>(&'a self, _lock_key: &'a str, priority: Priority) -> BoxFuture<'a, Result<(), RequestError>> {
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

    fn close(&self) {
        // In this order: a closed link has no connection left to detach.
        self.shared.disconnect();
        self.shared.link.close();
    }
}

impl Shared {
    fn disconnect(&self) {
        if let Some(connection) = self.link.connection(Priority::Urgent) {
            self.server.detach(&connection);
        }
    }

    /// With `strict_restart`: freezes the server if it may have forgotten a grant. Here it needs no message that could
    /// be lost.
    fn boot(&self) {
        let Some(boot) = &self.boot else { return };
        let life = self.server.life();
        let (keys, args) = (boot.keys(), boot.args(&life, 0));
        let request = Request::new(&self.client, Call::new(&boot::SCRIPT, &keys, &args), 0);
        if let Some(Ok(reply)) = self.server.serve(&request) {
            // A reply that cannot be read leaves the requests that follow without a record, and they say so.
            let _ = boot.booted(&reply, "the embedded server");
        }
    }

    /// `None`: the server is shut down.
    fn serve(&self, request: &Request) -> Option<Answer> {
        let served = self.server.serve(request)?;
        if !matches!(&served, Err(refusal) if refusal.lacks_boot()) {
            return Some(served);
        }
        self.boot();
        self.server.serve(request)
    }

    async fn run(self: &Arc<Self>, call: Call<'_>, request: u64) -> Result<ScriptReply, RequestError> {
        let Some(connection) = self.link.connection(Priority::Urgent) else {
            return Err(RequestError::NotSent(self.link.fault()));
        };
        let request = Request::new(&self.client, call, request);
        let deliveries = self.server.deliveries(&request);
        let unanswered = || RequestError::Unanswered(Arc::new(Disconnected));
        if deliveries == [Delivery::AT_ONCE] {
            // Served before the first await. A future that is dropped there cannot take back what was
            // sent.
            let served = self.serve(&request);
            // Yields, as a request over a real connection does. Otherwise a loop of calls would keep other tasks from
            // running.
            tokio::task::yield_now().await;
            return served.ok_or_else(unanswered)?.map_err(RequestError::Refused);
        }
        let (answer, mut answers) = mpsc::channel(deliveries.len().max(1));
        // In tasks of their own, because what was sent arrives even if the caller is dropped (R9).
        let request = Arc::new(request);
        for delivery in deliveries {
            let (shared, connection) = (self.clone(), connection.clone());
            tokio::spawn(deliver(shared, connection, request.clone(), delivery, answer.clone()));
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

/// One copy of a request.
async fn deliver(
    shared: Arc<Shared>,
    connection: Connection,
    request: Arc<Request>,
    delivery: Delivery,
    answer: mpsc::Sender<Answer>,
) {
    sleep(delivery.request).await;
    // A shutdown drops the connections and all requests in them. After a mere disconnect by the client, the server
    // still receives what was sent before.
    if shared.server.was_shut_down_since(&connection) {
        return;
    }
    let served = shared.serve(&request);
    if let (Some(served), Some(delay)) = (served, delivery.reply) {
        sleep(delay).await;
        // Fails if the caller no longer waits, or if another copy was answered first.
        let _ = answer.try_send(served);
    }
}

/// Keeps the connection until the store is closed.
async fn supervise(shared: Arc<Shared>, first: Connection, pushes: Pushes) {
    let stop = shared.link.stop.clone();
    stop.run_until_cancelled(async {
        // Without `resume`: a new client has no waits and no holds to check.
        receive(&shared, &first, pushes).await;
        loop {
            shared.link.enter(State::Down(Arc::new(Disconnected)));
            let (connection, pushes) = shared.server.reattach(&shared.client, &shared.channel).await;
            shared.boot();
            let resume = shared.link.resume(&connection, &ServedKeys::All, shared.operation_timeout);
            // Both at once: while `resume` polls for the waiters, pushed grants may arrive.
            join(resume, receive(&shared, &connection, pushes)).await;
        }
    })
    .await;
}

/// Hands pushes to the listener until the connection is closed.
async fn receive(shared: &Shared, connection: &Connection, mut pushes: Pushes) {
    let messages = async {
        while let Some(message) = pushes.recv().await {
            if let Some(listener) = shared.link.listener() {
                listener.pushed(&ServedKeys::All, &message);
            }
        }
    };
    connection.dead.run_until_cancelled(messages).await;
}
