//! The store inside this process: a client's line to an [`EmbeddedServer`].
//!
//! A request is a journey: there, the script, and back. By default it takes no time and nothing gets
//! lost; [`Faults`] may have it otherwise.

mod engine;
mod keyspace;
mod server;

use std::iter::once;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::keys;
use super::link::{Disconnected, Link, State};
use super::reply::Field;
use super::script::Script;
use super::{Arg, Call, Host, Listener, Refusal, Source, Store, StoreError, Terms, now};

use server::{Connection, Pushes};
pub use server::{EmbeddedServer, Faults, Published, Ran, Task, Trip};

/// A call that outlives the future which made it.
pub(crate) struct Request {
    client: String,
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<String>,
    sent: std::time::Instant,
}

type Answer = Result<Vec<Field>, Refusal>;

pub(crate) struct EmbeddedStore {
    shared: Arc<Shared>,
}

struct Shared {
    server: EmbeddedServer,
    client: String,
    channel: String,
    patience: Duration,
    link: Link<Connection>,
}

impl EmbeddedStore {
    pub(crate) fn connect(server: &EmbeddedServer, terms: &Terms) -> Result<Self, Disconnected> {
        let channel = format!("{}{}", keys::channel_prefix(&terms.prefix), terms.client);
        let (first, pushes) = server.attach(&channel).ok_or(Disconnected)?;
        let shared = Arc::new(Shared {
            server: server.clone(),
            client: terms.client.clone(),
            channel,
            patience: terms.operation_timeout,
            link: Link::new(),
        });
        shared.link.offer(State::Ready(first.clone()));
        let driver = drive(shared.clone(), first, pushes).boxed();
        tokio::spawn(server.host(&shared.client, driver));
        Ok(Self { shared })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for EmbeddedStore {
    fn is_ready(&self, urgent: bool) -> bool {
        self.shared.link.connection(urgent).is_some()
    }

    fn ready(&self, urgent: bool) -> BoxFuture<'_, Result<(), StoreError>> {
        self.shared.link.ready(urgent).boxed()
    }

    fn fault(&self) -> Source {
        self.shared.link.fault()
    }

    fn run<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Vec<Field>, StoreError>> {
        self.shared.run(call).boxed()
    }

    fn distrust(&self) {
        if let Some(connection) = self.shared.link.connection(true) {
            self.shared.server.detach(&connection);
        }
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.link.listen(listener);
    }

    fn host(&self) -> Option<Host> {
        let (server, client) = (self.shared.server.clone(), self.shared.client.clone());
        Some(Arc::new(move |task| server.host(&client, task)))
    }

    fn close(&self) {
        if let Some(connection) = self.shared.link.connection(true) {
            self.shared.server.detach(&connection);
        }
        self.shared.link.close();
    }
}

impl Shared {
    async fn run(&self, call: Call<'_>) -> Result<Vec<Field>, StoreError> {
        let Some(connection) = self.link.connection(true) else {
            return Err(StoreError::NotSent(self.link.fault()));
        };
        let request = Request::of(&self.client, call);
        let trips = self.server.trips(&request);
        let (answer, mut answered) = mpsc::channel(trips.len().max(1));
        let unknown = || StoreError::Unknown(Arc::new(Disconnected));
        if trips == [Trip::AT_ONCE] {
            let served = self.server.serve(&request);
            // The way back: a caller who never waits would let nobody else run.
            tokio::task::yield_now().await;
            return served.ok_or_else(unknown)?.map_err(StoreError::Refused);
        }
        // What is under way arrives, whether or not anybody still waits for the answer.
        let request = Arc::new(request);
        for trip in trips {
            tokio::spawn(travel(self.server.clone(), connection.clone(), request.clone(), trip, answer.clone()));
        }
        tokio::select! {
            biased;
            () = connection.dead.cancelled() => Err(unknown()),
            // `answer` lives until here, so without any answer this waits for the time-out.
            served = answered.recv() => served.ok_or_else(unknown)?.map_err(StoreError::Refused),
        }
    }
}

/// One copy of a request.
async fn travel(
    server: EmbeddedServer,
    connection: Connection,
    request: Arc<Request>,
    trip: Trip,
    answer: mpsc::Sender<Answer>,
) {
    sleep(trip.there).await;
    // A server that ended took its connections with it; one that was only left still gets this.
    if !server.still_has_the_era_of(&connection) {
        return;
    }
    let served = server.serve(&request);
    if let (Some(served), Some(back)) = (served, trip.back) {
        sleep(back).await;
        // Nobody listens any more, or another copy was faster.
        let _ = answer.try_send(served);
    }
}

impl Request {
    fn of(client: &str, call: Call<'_>) -> Self {
        let text = |arg: &Arg<'_>| match arg {
            Arg::Text(text) => (*text).to_owned(),
            Arg::Int(number) => number.to_string(),
        };
        Self {
            client: client.to_owned(),
            script: call.script,
            keys: call.keys.iter().map(ToString::to_string).collect(),
            args: once(call.request.to_string()).chain(call.args.iter().map(text)).collect(),
            sent: now(),
        }
    }
}

/// Keeps the connection until the store is closed.
async fn drive(shared: Arc<Shared>, first: Connection, pushes: Pushes) {
    let stop = shared.link.stop.clone();
    stop.run_until_cancelled(async {
        hear(&shared, &first, pushes).await;
        loop {
            shared.link.offer(State::Down(Arc::new(Disconnected)));
            let (connection, pushes) = shared.server.reattach(&shared.client, &shared.channel).await;
            // Grants come while the waits of before the break ask for theirs.
            join(shared.link.resume(&connection, shared.patience), hear(&shared, &connection, pushes)).await;
        }
    })
    .await;
}

/// Hands pushes on until the connection is dead.
async fn hear(shared: &Shared, connection: &Connection, mut pushes: Pushes) {
    let messages = async {
        while let Some(message) = pushes.recv().await {
            if let Some(listener) = shared.link.listener() {
                listener.pushed(&message);
            }
        }
    };
    connection.dead.run_until_cancelled(messages).await;
}
