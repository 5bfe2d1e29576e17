//! The way to Redis or Valkey: requests, pings and reconnects.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fairlock_proto::keys::{self, Keys};
use fairlock_proto::reply::ScriptReply;
use futures::{FutureExt, future::BoxFuture, pending};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::unconstrained;
use tokio::time::{sleep, timeout};

use super::Node;
use super::wire::{Supervised, Wire};
use crate::store::ServedKeys;
use crate::store::backoff::Backoff;
use crate::store::call::{Call, Post};
use crate::store::clock::now;
use crate::store::connect_options::Address;
use crate::store::connection::{Connection, KnownScripts};
use crate::store::dial::{Place, Target};
use crate::store::error::{ConnectError, RequestError};
use crate::store::link::State;
use crate::store::location::Location;
use crate::store::names::Name;
use crate::store::options::Options;
use crate::store::rights;
use crate::store::server::Told;
use crate::sync::Mutex;

pub type NetworkNode = Node<NetworkWire>;

pub struct Purpose {
    pub location: Arc<Location>,
    pub database: u32,
    /// If the server is a node of a cluster, the keys in its slots.
    pub keys: ServedKeys,
    /// Shared by all of the client's servers.
    pub changes: watch::Sender<()>,
}

pub struct NetworkWire {
    pub location: Arc<Location>,
    pub database: u32,
    pub channel: Channel,
    /// The name of its connections in CLIENT LIST.
    pub client_name: String,
    /// The keys of a lock that no client can hold, for the probe.
    pub probe: Keys,
    /// The arguments of the script that checks the user's rights.
    pub rights: Vec<String>,
    /// The `run_id` of the last connection's server, if the user may ask for it.
    pub server_id: Mutex<Option<String>>,
    /// The server to which the host name led. `None`: the client used no host name.
    pub named: Mutex<Option<NamedServer>>,
    /// Set by the first connection, so that reconnects do not repeat the warning.
    pub eviction_is_checked: AtomicBool,
    pub echo: Echo,
    pub known: KnownScripts,
    /// When the server last answered anything.
    heard: Mutex<Instant>,
    /// Notified when a request got no answer in time.
    suspected: Notify,
}

/// This client's channel at a server.
pub struct Channel {
    prefix: String,
    client: String,
}

impl Channel {
    pub fn at(&self, tag: &str) -> String {
        format!("{}{tag}{}", self.prefix, self.client)
    }
}

/// The server accepts visible ASCII without spaces. `Options` has checked the label's length.
fn client_name(label: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() { c } else { '_' };
    "fairlock:".chars().chain(label.chars().map(shown)).collect()
}

#[derive(Default)]
pub struct Echo {
    pub heard: Notify,
    pub is_missing: AtomicBool,
}

/// A server to which a host name led. An address identifies no server, so its `run_id` tells it from others.
#[derive(Debug, Clone)]
pub struct NamedServer {
    pub name: Name,
    pub address: SocketAddr,
    pub run_id: String,
}

/// A connection, and where it leads.
pub struct Established {
    pub connection: Arc<Connection>,
    pub target: Target,
    /// `None`: the client used no host name, or the user may not ask for the `run_id`.
    pub server: Option<NamedServer>,
    /// The connection uses an earlier address of the name, and the look-up may still be under way.
    pub is_late: bool,
}

impl Node<NetworkWire> {
    pub fn new(purpose: Purpose, options: &Options, client: &str, runtime: &Handle) -> Self {
        let Purpose { location, database, keys, changes } = purpose;
        let channel = Channel { prefix: keys::channel_prefix(&options.prefix), client: client.to_owned() };
        let more: &[&[&str]] = match database {
            _ if keys.is_of_cluster() => &[&["asking"]],
            0 => &[],
            _ => &[&["select", "0"]],
        };
        let is_strict = options.strict_restart.is_some();
        let wire = NetworkWire {
            rights: rights::question(&options.prefix, &channel.at(""), more, is_strict),
            location,
            database,
            channel,
            client_name: client_name(&options.label),
            probe: Keys::new(&options.prefix, ""),
            server_id: Mutex::default(),
            named: Mutex::default(),
            eviction_is_checked: AtomicBool::new(false),
            echo: Echo::default(),
            known: KnownScripts::default(),
            heard: Mutex::new(now()),
            suspected: Notify::new(),
        };
        Self::start(Supervised::new(wire, keys, options, changes), runtime)
    }

    /// Makes the first connection, in bounded time, to report a wrong URL or password at once. After that, a task
    /// keeps the connection.
    pub async fn connect(&self) -> Result<(), ConnectError> {
        let target = self.inner().wire.location.known().await;
        let established = self.inner().establish(&target).await?;
        tracing::debug!(target: "fairlock::server", address = %target.address(), "connected");
        self.begin(established);
        Ok(())
    }
}

impl Wire for NetworkWire {
    type Connection = Arc<Connection>;
    type Attached = Established;

    fn connection(attached: &Established) -> &Arc<Connection> {
        &attached.connection
    }

    /// Pauses for up to 2 s between attempts. Logs why it cannot connect, but not the same error twice in a row.
    async fn connect(node: &Arc<Supervised<Self>>, backoff: &mut Backoff) -> Option<Established> {
        let location = &node.wire.location;
        let mut said = String::new();
        while node.is_wanted() {
            let target = location.known().await;
            let attempt = async {
                // After a long-lived connection this pause is zero, so it does not delay the usual reconnect.
                backoff.pause().await;
                node.establish(&target).await
            };
            let outcome = tokio::select! {
                biased;
                // Move on at once, despite the pause or a server that does not answer.
                () = location.left(&target.place) => {
                    // The pauses were for the previous place.
                    *backoff = Backoff::reconnect();
                    continue;
                }
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(established) => return Some(established),
                Err(error) => {
                    let text = error.to_string();
                    if said != text {
                        tracing::warn!(target: "fairlock::server", address = %target.address(), %error, "cannot connect yet");
                        said = text;
                    }
                    // Callers that run out of time get this error. It should be the latest reason, not merely that
                    // the connection was closed.
                    node.link.enter(State::Down(Arc::new(error)));
                    location.doubt();
                }
            }
        }
        None
    }

    async fn over(node: &Supervised<Self>, attached: &mut Established) -> bool {
        let Established { connection, target: Target { place, .. }, .. } = &*attached;
        let location = &node.wire.location;
        tokio::select! {
            biased;
            () = until_dead(node, connection) => {
                location.doubt();
                false
            }
            // A demoted primary may still answer, and even grant.
            () = location.left(place) => {
                tracing::info!(target: "fairlock::server", address = %place.address, "the server is at another address now, or was made the primary again; reconnecting");
                true
            }
            other = node.name_moved(attached) => {
                tracing::warn!(target: "fairlock::server", address = %place.address, server = %other.address, "the host name leads to another server now; reconnecting");
                // Even if the next look-up is late, the client can reach the server at this address.
                *node.wire.named.lock() = Some(other);
                true
            }
        }
    }

    async fn run(node: &Arc<Supervised<Self>>, call: Call<'_>, request: u64) -> Result<ScriptReply, RequestError> {
        let Some(connection) = node.link.connection() else {
            return Err(RequestError::NotSent(node.link.fault()));
        };
        let known = &node.wire.known;
        let mut outcome = connection.evaluate(known, call, request).await;
        // Nothing ran, so this is still the first copy of the request. Boxed, because it is rare: otherwise every
        // call would reserve room for it.
        if matches!(&outcome, Err(RequestError::Refused(refusal)) if refusal.lacks_boot())
            && Box::pin(node.boot_again(&connection)).await.is_ok()
        {
            outcome = Box::pin(connection.evaluate(known, call, request)).await;
        }
        node.learn_from(&connection, &mut outcome).await;
        outcome
    }

    fn post(node: &Arc<Supervised<Self>>) -> Option<Box<dyn Post>> {
        Some(Box::new(NetworkPost::new(node.clone())))
    }

    async fn ask(node: &Supervised<Self>, words: &[&str]) -> Result<Told, RequestError> {
        let Some(connection) = node.link.connection() else {
            return Err(RequestError::NotSent(node.link.fault()));
        };
        let Some((name, arguments)) = words.split_first() else { return Err(RequestError::Closed) };
        let outcome = connection.send(redis::cmd(name).arg(arguments)).await;
        if matches!(outcome, Ok(_) | Err(RequestError::Refused(_))) {
            node.wire.hear();
        }
        match outcome {
            Ok(value) => Ok(Told { texts: flat(value), connection: connection.dead.clone() }),
            // Servers report this in different words.
            Err(RequestError::Refused(mut refusal)) if refusal.is_about_rights() => {
                refusal.lacks(&[format!("+{}", name.to_ascii_lowercase())]);
                Err(RequestError::Refused(refusal))
            }
            Err(error) => Err(error),
        }
    }

    fn address(&self) -> String {
        self.location.current().map_or_else(|| "unknown".into(), |target| target.place.address.to_string())
    }

    fn hears(&self) -> bool {
        !self.echo.is_missing.load(Ordering::Relaxed)
    }

    fn server_id(&self) -> Option<String> {
        self.server_id.lock().clone()
    }

    fn suspect(&self) {
        // `notify_one` keeps its notice even if nobody listens, so this also works during a ping.
        self.suspected.notify_one();
    }

    fn disconnect(&self, connection: &Arc<Connection>) {
        connection.dead.cancel();
    }

    fn move_to(&self, address: Option<&Address>) {
        self.echo.is_missing.store(false, Ordering::Relaxed);
        self.location.move_to(address.cloned().map(Place::at));
    }
}

impl Supervised<NetworkWire> {
    async fn learn_from(&self, connection: &Connection, outcome: &mut Result<ScriptReply, RequestError>) {
        // A refusal is an answer too.
        if matches!(outcome, Ok(_) | Err(RequestError::Refused(_))) {
            self.wire.hear();
        }
        if let Err(RequestError::Refused(refusal)) = outcome {
            // A demoted primary may keep its connections open. Without this the client would stay and get READONLY
            // forever. Dialling again looks for the primary again.
            if refusal.means_another_primary() {
                connection.dead.cancel();
            }
            // The user has lost a right since the client connected. Inside a script, the server does not name the
            // missing right.
            if refusal.is_about_rights() {
                let missing = Box::pin(self.missing_rights(connection)).await;
                if !missing.is_empty() {
                    refusal.lacks(&missing);
                }
            }
        }
    }
}

impl NetworkWire {
    pub fn led_to(&self, name: Option<Name>) -> Option<NamedServer> {
        self.named.lock().clone().filter(|server| Some(&server.name) == name.as_ref())
    }

    fn hear(&self) {
        *self.heard.lock() = now();
    }

    fn silent_for(&self) -> Duration {
        now().saturating_duration_since(*self.heard.lock())
    }
}

/// Sends requests without a new future for each: one future handles them all, one after the other. A new future would
/// take more than a kilobyte to allocate, move and free.
pub struct NetworkPost {
    node: Arc<Supervised<NetworkWire>>,
    bag: Arc<Bag>,
    rounds: BoxFuture<'static, ()>,
}

/// Passes commands and replies between the post and its future.
#[derive(Default)]
struct Bag {
    taken: Mutex<Option<(Arc<Connection>, redis::Cmd)>>,
    reply: Mutex<Option<Result<ScriptReply, RequestError>>>,
}

impl NetworkPost {
    pub fn new(node: Arc<Supervised<NetworkWire>>) -> Self {
        let bag = Arc::new(Bag::default());
        Self { rounds: rounds(node.clone(), bag.clone()).boxed(), node, bag }
    }
}

async fn rounds(node: Arc<Supervised<NetworkWire>>, bag: Arc<Bag>) {
    loop {
        let taken = bag.taken.lock().take();
        match taken {
            Some((connection, command)) => {
                let mut outcome = connection.evaluate_command(&command).await;
                node.learn_from(&connection, &mut outcome).await;
                *bag.reply.lock() = Some(outcome);
            }
            None => pending!(),
        }
    }
}

impl Post for NetworkPost {
    fn take(&mut self, call: Call<'_>, request: u64) -> bool {
        let Some(connection) = self.node.link.connection() else { return false };
        let Some(command) = connection.command_by_sha1(&self.node.wire.known, call, request) else { return false };
        *self.bag.taken.lock() = Some((connection, command));
        true
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ScriptReply, RequestError>> {
        // Without tokio's budget, which belongs to the task that happens to run now.
        let _ = pin!(unconstrained(&mut self.rounds)).poll(context);
        let reply = self.bag.reply.lock().take();
        reply.map_or(Poll::Pending, Poll::Ready)
    }
}

/// The texts and numbers of a reply, without the lists that contain them.
fn flat(value: Value) -> Vec<Vec<u8>> {
    match value {
        Value::Array(values) => values.into_iter().flat_map(flat).collect(),
        Value::BulkString(bytes) => vec![bytes],
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => vec![text.into_bytes()],
        Value::Int(number) => vec![number.to_string().into_bytes()],
        Value::Okay => vec![b"OK".to_vec()],
        _ => Vec::new(),
    }
}

/// The limit for a ping after a request without an answer. With it, the client replaces a half-open connection within
/// the operation time-out + 1 s, before the shortest lease and the waiter time-to-live end.
const PING_LIMIT: Duration = Duration::from_millis(900);

/// A connection is dead when its driver or its user marks it, or when the server does not answer a ping: a frozen
/// server or a cut cable causes no error. The client pings when the server was silent for an operation time-out, and
/// at once when a request got no answer in time.
async fn until_dead(node: &Supervised<NetworkWire>, connection: &Connection) {
    loop {
        tokio::select! {
            () = connection.dead.cancelled() => return,
            () = node.wire.suspected.notified() => {}
            () = sleep(node.operation_timeout) => {
                if node.wire.silent_for() < node.operation_timeout {
                    continue;
                }
            }
        }
        let asked = now();
        // Outside the machine's lanes: the ping must not wait for unanswered requests, which may fill all lanes.
        match timeout(PING_LIMIT, connection.send(&redis::cmd("PING"))).await {
            // Any other reply belongs to another request, for example after a proxy has lost a reply.
            Ok(Ok(Value::SimpleString(said))) if said == "PONG" => node.wire.hear(),
            // This is an answer as well: the user may lack the right to PING.
            Ok(Err(RequestError::Refused(_))) => node.wire.hear(),
            // On a busy machine this task may be late, and the server may have answered other requests.
            Err(_) if node.wire.silent_for() < now().saturating_duration_since(asked) => {}
            _ => return,
        }
    }
}
