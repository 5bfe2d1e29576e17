//! Faults around a server, for simulators.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::keyspace::{Message, RefusedCommands};

/// A background task of a client.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How one copy of a request is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// How long the request takes to reach the server.
    pub request: Duration,
    /// How long the reply takes to reach the client. `None`: it never arrives.
    pub reply: Option<Duration>,
}

impl Delivery {
    /// No delay, nothing lost.
    pub const AT_ONCE: Self = Self { request: Duration::ZERO, reply: Some(Duration::ZERO) };
}

/// A message that a script published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// A client's channel.
    pub channel: String,
    /// The message's text.
    pub message: String,
    /// Whether the client was connected and subscribed.
    pub received: bool,
}

impl Published {
    pub(crate) fn new((channel, message, received): &Message) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { channel: text(channel), message: text(message), received: *received }
    }
}

/// A script that has run: the request, the reply, and the published messages.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ran<'a> {
    /// The id of the client that sent the request.
    pub client: &'a str,
    /// The name of the script.
    pub script: &'static str,
    /// Its KEYS.
    pub keys: &'a [String],
    /// Its ARGV.
    pub args: &'a [String],
    /// The reply, or the server's error.
    pub reply: Result<Vec<String>, String>,
    /// The messages that the script published.
    pub published: &'a [Published],
    /// When the client sent the request.
    pub sent: std::time::Instant,
    /// The server's clock when the script ran, in microseconds since 1970.
    pub at: i64,
}

/// A request that a node of a cluster did not serve.
#[derive(Debug)]
#[non_exhaustive]
pub struct Redirected<'a> {
    /// The id of the client that sent it.
    pub client: &'a str,
    /// The name of the script.
    pub script: &'static str,
    /// Its KEYS.
    pub keys: &'a [String],
    /// Its ARGV.
    pub args: &'a [String],
    /// When the client sent it.
    pub sent: std::time::Instant,
    /// `MOVED …`, `ASK …`, `TRYAGAIN …` or `CLUSTERDOWN …`.
    pub error: &'a str,
}

/// The faults of messages, clocks and processes around a [`Server`](crate::Server). By default nothing goes wrong.
///
/// The server calls the methods in the order of events. On a single-threaded runtime with paused time, an
/// implementation that decides by a seed repeats the same run for the same seed.
pub trait Faults: Send + Sync + 'static {
    /// The copies of a request that the client sends. An empty list: the request is lost.
    fn request(&self, client: &str, script: &str) -> Vec<Delivery> {
        let _ = (client, script);
        vec![Delivery::AT_ONCE]
    }

    /// The delays of a pushed message's copies. An empty list: the message is lost.
    fn push(&self, client: &str) -> Vec<Duration> {
        let _ = client;
        vec![Duration::ZERO]
    }

    /// An error with which the server refuses a request, such as `LOADING Redis is loading`. The script does not run.
    fn refuse(&self, client: &str, script: &str) -> Option<&'static str> {
        let _ = (client, script);
        None
    }

    /// How many requests of each priority a client may have in flight, if less than its own limit. With few, calls
    /// wait for each other as they do under overload.
    fn in_flight(&self, client: &str) -> usize {
        let _ = client;
        usize::MAX
    }

    /// The commands to refuse inside the script that is about to run.
    fn refuse_inside(&self, client: &str, script: &str) -> Option<RefusedCommands> {
        let _ = (client, script);
        None
    }

    /// The ids of clients that are connected to a server that was demoted to a replica of this one. Published
    /// messages reach them, but this server does not count them as subscribers.
    fn behind(&self) -> Vec<String> {
        Vec::new()
    }

    /// How long a client that lost its connection takes to reconnect.
    fn reconnect(&self, client: &str) -> Duration {
        let _ = client;
        Duration::ZERO
    }

    /// The server's clock, as the time since its start, after this much time on tokio's clock.
    fn server_time(&self, elapsed: Duration) -> Duration {
        elapsed
    }

    /// Wraps a background task of a client, to pause or end it.
    fn spawn(&self, client: &str, task: Task) -> Task {
        let _ = client;
        task
    }

    /// A client's connection has begun or ended.
    fn connected(&self, client: &str, on: bool) {
        let _ = (client, on);
    }

    /// A script has run.
    fn ran(&self, ran: &Ran<'_>) {
        let _ = ran;
    }

    /// A node of a cluster did not run a script, because the slot is at another node or moving.
    fn redirected(&self, redirected: &Redirected<'_>) {
        let _ = redirected;
    }
}

/// So that a simulator can keep a handle to the faults.
impl<F: Faults> Faults for Arc<F> {
    fn request(&self, client: &str, script: &str) -> Vec<Delivery> {
        (**self).request(client, script)
    }

    fn push(&self, client: &str) -> Vec<Duration> {
        (**self).push(client)
    }

    fn refuse(&self, client: &str, script: &str) -> Option<&'static str> {
        (**self).refuse(client, script)
    }

    fn in_flight(&self, client: &str) -> usize {
        (**self).in_flight(client)
    }

    fn refuse_inside(&self, client: &str, script: &str) -> Option<RefusedCommands> {
        (**self).refuse_inside(client, script)
    }

    fn behind(&self) -> Vec<String> {
        (**self).behind()
    }

    fn reconnect(&self, client: &str) -> Duration {
        (**self).reconnect(client)
    }

    fn server_time(&self, elapsed: Duration) -> Duration {
        (**self).server_time(elapsed)
    }

    fn spawn(&self, client: &str, task: Task) -> Task {
        (**self).spawn(client, task)
    }

    fn connected(&self, client: &str, on: bool) {
        (**self).connected(client, on);
    }

    fn ran(&self, ran: &Ran<'_>) {
        (**self).ran(ran);
    }

    fn redirected(&self, redirected: &Redirected<'_>) {
        (**self).redirected(redirected);
    }
}

pub struct NoFaults;

impl Faults for NoFaults {}
