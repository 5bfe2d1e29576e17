//! The embedded server: one script engine, the connections to it, and the faults around them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use fairlock_emulator::{Interpreter, Moves, Reply, Snapshot};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::faults::{Delivery, Faults, NoFaults, Published, Ran, Redirected, Task};
use super::member::{Member, Slot, address};
use super::request::{Request, Served};
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::table::SlotRange;
use crate::store::connect_options::Address;
use crate::store::error::Refusal;
use crate::store::link;
use crate::store::reply::{Field, ScriptReply};
use crate::sync::Mutex;

/// A server inside this process. Clones are the same server. See the [module](crate::embedded).
///
/// ```
/// use fairlock::{EmbeddedServer, LockClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = EmbeddedServer::new();
/// let here = LockClient::builder().embedded(&server)?;
/// let there = LockClient::builder().embedded(&server)?;
/// let guard = here.lock("x").lock().await?;
/// assert!(there.lock("x").try_lock().await?.is_none());
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EmbeddedServer {
    shared: Arc<Shared>,
}

/// So that one of them, an array and a `Vec` can all be given to a builder.
impl AsRef<[EmbeddedServer]> for EmbeddedServer {
    fn as_ref(&self) -> &[EmbeddedServer] {
        std::slice::from_ref(self)
    }
}

struct Shared {
    /// Or the error with which Lua did not start. Then all calls fail with it.
    engine: Result<Mutex<Interpreter>, String>,
    /// The time when it started, by the server's clock in whole seconds since 1970, and by tokio's.
    epoch: Duration,
    began: Instant,
    faults: Box<dyn Faults>,
    /// Keyed by channel: a client has one connection at a time.
    connections: Mutex<BTreeMap<String, Subscriber>>,
    up: AtomicBool,
    /// Notified by each start_up.
    started: Notify,
    /// How often it was shut down.
    shutdowns: AtomicU64,
    /// How often another one took over in between, and this one took no notice of it.
    unnoticed: AtomicU64,
    /// How often it was promoted, its connections having stayed.
    promotions: AtomicU64,
    /// The next number for a client or a connection.
    next_number: AtomicU64,
    /// As a node of a cluster.
    member: Option<Member>,
    /// The other nodes. The bus carries each message to all of them.
    bus: OnceLock<Vec<Weak<Shared>>>,
}

/// A client's connection, as the client sees it.
#[derive(Clone)]
pub struct Connection {
    number: u64,
    /// How often the server had been shut down when the connection began.
    shutdowns: u64,
    channel: String,
    pub dead: CancellationToken,
    /// Keys were flushed, and the message of it is on its way.
    flushed: Arc<AtomicBool>,
}

impl Connection {
    /// The message of a flush is here. `false`: an answer has brought it along before, or the connection is over.
    pub fn hears_of_flush(&self) -> bool {
        self.flushed.swap(false, Ordering::Relaxed) && !self.dead.is_cancelled()
    }
}

impl link::Connection for Connection {
    fn dead(&self) -> &CancellationToken {
        &self.dead
    }
}

pub enum Pushed {
    Message(Vec<u8>),
    /// As CLIENT TRACKING reports it.
    Flushed,
}

/// Unbounded: a connection gets one message for each of its own tickets, and max_waiters bounds those. Of flushes one at a time
/// is on its way.
pub type Pushes = mpsc::UnboundedReceiver<Pushed>;

struct Subscriber {
    connection: Connection,
    pushes: mpsc::UnboundedSender<Pushed>,
}

impl fmt::Debug for EmbeddedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedServer").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Default for EmbeddedServer {
    fn default() -> Self {
        Self::new()
    }
}

impl EmbeddedServer {
    /// A server without keys. Its clock starts at the machine's time and advances with tokio's clock.
    ///
    /// ```
    /// let server = fairlock::EmbeddedServer::new();
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::with_faults(NoFaults)
    }

    /// A server with faults.
    pub(crate) fn with_faults(faults: impl Faults) -> Self {
        Self::start(Box::new(faults), since_1970(), None)
    }

    /// Servers that know nothing of each other, with the faults around each of them.
    pub(crate) fn several<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<Self> {
        // One for all, so that their clocks differ as the faults say.
        let epoch = since_1970();
        faults.into_iter().map(|faults| Self::start(Box::new(faults), epoch, None)).collect()
    }

    /// The nodes of a cluster, with the faults around each of them. No slot has a node yet.
    pub(crate) fn cluster<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<Self> {
        // One for all, so that their clocks differ as the faults say.
        let epoch = since_1970();
        let ports = 7000_u16..;
        let node =
            |(port, faults): (u16, F)| Self::start(Box::new(faults), epoch, Some(Member::new(format!("node:{port}"))));
        let nodes: Vec<_> = ports.zip(faults).map(node).collect();
        for node in &nodes {
            let others = nodes.iter().filter(|other| !Arc::ptr_eq(&other.shared, &node.shared));
            // Set here only.
            let _ = node.shared.bus.set(others.map(|other| Arc::downgrade(&other.shared)).collect());
        }
        nodes
    }

    fn start(faults: Box<dyn Faults>, epoch: Duration, member: Option<Member>) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine: Interpreter::new().map(Mutex::new).map_err(|error| error.to_string()),
                epoch,
                began: Instant::now(),
                faults,
                connections: Mutex::default(),
                up: AtomicBool::new(true),
                started: Notify::new(),
                shutdowns: AtomicU64::new(0),
                unnoticed: AtomicU64::new(0),
                promotions: AtomicU64::new(0),
                next_number: AtomicU64::new(1),
                member,
                bus: OnceLock::new(),
            }),
        }
    }

    /// The keys that exist, sorted. A free name without waiters has at most one key, the one with its last token.
    ///
    /// ```
    /// assert!(fairlock::EmbeddedServer::new().keys().is_empty());
    /// ```
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        // The clock is set first, so that keys which have expired are not shown.
        let keys = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.keys()).unwrap_or_default());
        keys.unwrap_or_default().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Deletes all keys, as FLUSHALL does. Holders are notified at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient, Loss};
    ///
    /// let server = EmbeddedServer::new();
    /// let guard = LockClient::builder().embedded(&server)?.lock("x").lock().await?;
    /// server.flush();
    /// assert_eq!(guard.lost().await, Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) {
        let _ = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.execute(&[b"FLUSHALL".to_vec()])));
        self.tell_of_flush();
    }

    /// Keys were flushed, of this or of another database: Redis notifies all connections, and does not say which.
    pub(crate) fn tell_of_flush(&self) {
        let subscribers = self.shared.connections.lock();
        let subscribers =
            subscribers.values().map(|subscriber| (subscriber.connection.clone(), subscriber.pushes.clone()));
        // Collected, so that the map is not locked while the faults decide about the messages.
        for (connection, pushes) in subscribers.collect::<Vec<_>>() {
            if !connection.flushed.swap(true, Ordering::Relaxed) {
                arrive(pushes, Pushed::Flushed, self.shared.faults.flushed(client_of(&connection.channel)));
            }
        }
    }

    /// One command of an administrator, or a look of a simulator. The words of the reply; nil is an empty one.
    pub(crate) fn command(&self, words: &[&str]) -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let reply = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.execute(&words)));
        reply.ok().flatten().map_or_else(Vec::new, flat)
    }

    /// One command of a client, outside of any script. `None`: the server is shut down.
    pub(crate) fn answer(&self, words: &[&str]) -> Option<Result<Vec<Vec<u8>>, Refusal>> {
        if !self.is_up() {
            return None;
        }
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let reply = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.execute(&words)));
        Some(match reply.ok().flatten().unwrap_or(Reply::Nil) {
            Reply::Error(text) => Err(refused(&text)),
            reply => Ok(texts(reply)),
        })
    }

    /// All keys now. `None`: the engine did not start.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.snapshot())).ok().flatten()
    }

    pub(crate) fn restore(&self, snapshot: Snapshot) {
        let _ = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.restore(snapshot)));
    }

    /// Its address in the cluster. `None`: it is in none.
    pub(crate) fn address(&self) -> Option<Address> {
        address(&self.shared.member.as_ref()?.address)
    }

    /// The part of its channels that distinguishes them from those of other nodes of its cluster.
    pub(crate) fn tag(&self) -> String {
        self.shared.member.as_ref().map(Member::tag).unwrap_or_default()
    }

    pub(crate) fn set_slot(&self, key: &str, slot: Slot) {
        self.shared.member.iter().for_each(|member| member.set(slot_of(key), slot.clone()));
    }

    pub(crate) fn ranges(&self) -> Vec<SlotRange> {
        self.shared.member.as_ref().map(Member::ranges).unwrap_or_default()
    }

    /// MIGRATE: the key is at one of the two at each moment.
    pub(crate) fn migrate(&self, key: &str, to: &Self) {
        let dump = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.dump(key.as_bytes())));
        if let Some(dump) = dump.ok().flatten().flatten() {
            let _ = to.with_engine(|engine| engine.keyspace(|keyspace| keyspace.load(key.as_bytes(), dump)));
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Closes all connections and accepts no new ones. The keys stay, and expire in time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient, Loss};
    ///
    /// let server = EmbeddedServer::new();
    /// let guard = LockClient::builder().embedded(&server)?.lock("x").lock().await?;
    /// server.shut_down();
    /// assert_eq!(guard.lost().await, Loss::Expired);
    /// # Ok(()) }
    /// ```
    pub fn shut_down(&self) {
        // No new connections first, then the end of the present ones. The other way round, a client could attach in
        // between and stay with a server that is down.
        self.shared.up.store(false, Ordering::Relaxed);
        self.shared.shutdowns.fetch_add(1, Ordering::Relaxed);
        self.connections().iter().for_each(|connection| self.detach(connection));
    }

    /// Accepts connections again. Clients reconnect by themselves.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// let server = EmbeddedServer::new();
    /// let client = LockClient::builder().embedded(&server)?;
    /// server.shut_down();
    /// server.start_up();
    /// client.lock("x").lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn start_up(&self) {
        self.shared.up.store(true, Ordering::Relaxed);
        self.shared.started.notify_waiters();
    }

    /// Closes the connection of the client with this [`id`](crate::LockClient::id). The client reconnects by
    /// itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// let server = EmbeddedServer::new();
    /// let client = LockClient::builder().embedded(&server)?;
    /// let guard = client.lock("x").lock().await?;
    /// server.disconnect(client.id());
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn disconnect(&self, client: &str) {
        let connections = self.connections();
        let of_client = connections.iter().filter(|connection| connection.channel.ends_with(client));
        of_client.for_each(|connection| self.detach(connection));
    }

    /// A copy, because `detach` needs the map.
    fn connections(&self) -> Vec<Connection> {
        self.shared.connections.lock().values().map(|subscriber| subscriber.connection.clone()).collect()
    }

    fn next_number(&self) -> u64 {
        self.shared.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Connects and subscribes, unless it is shut down.
    pub(crate) fn attach(&self, channel: &str) -> Option<(Connection, Pushes)> {
        if !self.is_up() {
            return None;
        }
        let (pushes, pushed) = mpsc::unbounded_channel();
        let connection = Connection {
            number: self.next_number(),
            shutdowns: self.shutdowns(),
            channel: channel.to_owned(),
            dead: CancellationToken::new(),
            flushed: Arc::default(),
        };
        let subscriber = Subscriber { connection: connection.clone(), pushes };
        self.shared.connections.lock().insert(channel.to_owned(), subscriber);
        self.subscribe(channel, true);
        Some((connection, pushed))
    }

    /// Retries `attach` until it succeeds.
    pub(crate) async fn reattach(&self, client: &str, channel: &str) -> (Connection, Pushes) {
        loop {
            sleep(self.shared.faults.reconnect(client)).await;
            // Register before `attach` looks: a start between the two is not missed.
            let started = self.shared.started.notified();
            if let Some(attached) = self.attach(channel) {
                return attached;
            }
            started.await;
        }
    }

    /// Closes a connection on both sides.
    pub(crate) fn detach(&self, connection: &Connection) {
        connection.dead.cancel();
        let mut connections = self.shared.connections.lock();
        // The client may have reconnected already. Its new connection stays.
        // Compares numbers, as the channel stays the same over reconnects.
        let is_current = |current: &Subscriber| current.connection.number == connection.number;
        if connections.get(&connection.channel).is_some_and(is_current) {
            connections.remove(&connection.channel);
            // `subscribe` calls the faults and takes the engine's lock. Do not hold this one
            // meanwhile.
            drop(connections);
            self.subscribe(&connection.channel, false);
        }
    }

    fn subscribe(&self, channel: &str, on: bool) {
        self.shared.faults.connected(client_of(channel), on);
        let channel = channel.as_bytes().to_vec();
        let _ = self.with_engine(|engine| {
            engine.keyspace(|keyspace| match on {
                true => keyspace.channels.insert(channel),
                false => keyspace.channels.remove(&channel),
            })
        });
    }

    fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }

    fn shutdowns(&self) -> u64 {
        self.shared.shutdowns.load(Ordering::Relaxed)
    }

    pub(crate) fn id(&self) -> String {
        format!("embedded at {:p}", Arc::as_ptr(&self.shared))
    }

    /// The identity of this life of the server, see boot.lua.
    pub(crate) fn life(&self) -> String {
        let promotions = self.shared.promotions.load(Ordering::Relaxed);
        format!("embedded/{}", self.shutdowns() - self.epoch() + promotions)
    }

    /// Demoted to a replica of one that was behind, and promoted again. Redis reports that as a flush.
    pub(crate) fn was_demoted(&self, snapshot: Snapshot) {
        self.restore(snapshot);
        self.shared.promotions.fetch_add(1, Ordering::Relaxed);
        self.tell_of_flush();
    }

    /// What Sentinels count: one for each failover that changed nothing of its life.
    pub(crate) fn epoch(&self) -> u64 {
        self.shared.unnoticed.load(Ordering::Relaxed)
    }

    /// While it was shut down the last time, another server was the primary.
    pub(crate) fn was_replaced(&self) {
        self.shared.unnoticed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn was_shut_down_since(&self, connection: &Connection) -> bool {
        connection.shutdowns != self.shutdowns()
    }

    pub(crate) fn deliveries(&self, request: &Request) -> Vec<Delivery> {
        self.shared.faults.request(&request.client, request.script.name)
    }

    pub(crate) fn in_flight(&self, client: &str) -> usize {
        self.shared.faults.in_flight(client)
    }

    pub(crate) fn wrap_task(&self, client: &str, task: Task) -> Task {
        self.shared.faults.spawn(client, task)
    }

    /// Sets the clock of the keys, then calls `use_it`.
    fn with_engine<T>(&self, use_it: impl FnOnce(&mut Interpreter) -> T) -> Result<T, String> {
        let mut engine = self.shared.engine.as_ref().map_err(Clone::clone)?.lock();
        // Once for each call, so that the time stands still while a script runs, as in Redis since
        // 7.2.
        let now = self.micros();
        engine.keyspace(|keyspace| keyspace.at(now));
        Ok(use_it(&mut engine))
    }

    /// The time of its clock, in microseconds since 1970.
    pub(crate) fn micros(&self) -> i64 {
        let elapsed = Instant::now().saturating_duration_since(self.shared.began);
        let now = self.shared.epoch + self.shared.faults.server_time(elapsed);
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
    }

    /// Runs the script and pushes what it published. `None`: the server is shut down.
    pub(crate) fn serve(&self, request: &Request) -> Option<Served> {
        if !self.is_up() {
            return None;
        }
        let moves = match self.route(request) {
            Ok(moves) => moves,
            Err(elsewhere) => return Some(Err(refused(&elsewhere))),
        };
        // Like LOADING or READONLY: Redis returns these before the script begins, so nothing has run.
        if let Some(refusal) = self.shared.faults.refuse(&request.client, request.script.name) {
            return Some(Err(refused(refusal)));
        }
        let keys: Vec<_> = request.keys.iter().map(String::as_bytes).collect();
        let args: Vec<_> = request.args.iter().map(String::as_bytes).collect();
        let script = request.script;
        let refused = self.shared.faults.refuse_inside(&request.client, request.script.name);
        let behind = self.shared.faults.behind();
        let ran = self.with_engine(|engine| {
            engine.keyspace(|keyspace| {
                (keyspace.refused, keyspace.moves, keyspace.behind) = (refused, moves, behind);
            });
            let reply = engine.eval(script.name, script.text(), &keys, &args);
            // A script with fewer commands must not leave this to the next one.
            engine.keyspace(|keyspace| (keyspace.refused, keyspace.moves) = (None, Moves::Rests));
            // Taken under the same lock as the run. Otherwise another script's messages could get
            // among them.
            let published = engine.keyspace(|keyspace| std::mem::take(&mut keyspace.published));
            (reply, published.unwrap_or_default())
        });
        let (reply, published) = ran.unwrap_or_else(|why| (Reply::Error(format!("ERR {why}")), Vec::new()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let published = published.iter().map(|(channel, message, received)| Published {
            channel: text(channel),
            message: text(message),
            received: *received,
        });
        let published: Vec<_> = published.collect();
        let answer = answer(reply);
        // Before the messages go out. A checker must know of a grant before its client can act on it.
        self.shared.faults.ran(&Ran {
            client: &request.client,
            script: script.name,
            keys: &request.keys,
            args: &request.args,
            reply: answer.as_ref().map(words).map_err(ToString::to_string),
            published: &published,
            sent: request.sent,
            at: self.micros(),
        });
        // Pushes go before the reply, as in Redis 7.0. Later versions send the reply first, so the
        // client relies on neither.
        for Published { channel, message, .. } in published {
            for other in self.shared.bus.get().into_iter().flatten().filter_map(Weak::upgrade) {
                Self { shared: other }.push(&channel, message.clone());
            }
            self.push(&channel, message);
        }
        Some(answer)
    }

    /// Whether a script may run here; otherwise the error that redirects it.
    fn route(&self, request: &Request) -> Result<Moves, String> {
        let Some(member) = &self.shared.member else { return Ok(Moves::Rests) };
        let route = self.with_engine(|engine| engine.keyspace(|keyspace| member.route(request, keyspace)));
        let route = route.ok().flatten().unwrap_or(Ok(Moves::Rests));
        if let Err(error) = &route {
            let Request { client, script, keys, args, .. } = request;
            self.shared.faults.redirected(&Redirected { client, script: script.name, keys, args, error });
        }
        route
    }

    fn push(&self, channel: &str, message: String) {
        // Cloned, so that the map is not locked while the faults decide about the message.
        let subscriber = self.shared.connections.lock().get(channel).map(|subscriber| subscriber.pushes.clone());
        let Some(pushes) = subscriber else { return };
        for delay in self.shared.faults.push(client_of(channel)) {
            arrive(pushes.clone(), Pushed::Message(message.clone().into_bytes()), delay);
        }
    }
}

fn arrive(pushes: mpsc::UnboundedSender<Pushed>, pushed: Pushed, delay: Duration) {
    // An error means that the connection is closed. The message is lost with it.
    if delay.is_zero() {
        let _ = pushes.send(pushed);
    } else {
        tokio::spawn(async move {
            sleep(delay).await;
            let _ = pushes.send(pushed);
        });
    }
}

fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Whole seconds, so that a simulation does not depend on when it is run.
    Duration::from_secs(since.as_secs())
}

/// A channel ends with the id of its client.
fn client_of(channel: &str) -> &str {
    channel.rsplit(':').next().unwrap_or_default()
}

/// Splits an error reply: a code, then a text.
fn refused(text: &str) -> Refusal {
    // As the redis crate splits the errors of a real server, so that `Refusal` reads both alike.
    let (code, message) = text.split_once(' ').unwrap_or(("ERR", text));
    Refusal::new(code, message)
}

fn answer(reply: Reply) -> Served {
    let malformed = |what: &Reply| Refusal::new("ERR", &format!("the script answered {what:?}"));
    match reply {
        // Redis' text for an error that was raised inside a script.
        Reply::Error(text) => Err(refused(&format!("{text} script: embedded"))),
        Reply::Bulk(text) => Ok(ScriptReply::Text(text)),
        Reply::List(replies) => {
            let fields = replies.into_iter().map(|reply| field(reply).map_err(|reply| malformed(&reply)));
            fields.collect::<Result<_, _>>().map(ScriptReply::List)
        }
        other => Err(malformed(&other)),
    }
}

fn flat(reply: Reply) -> Vec<String> {
    texts(reply).iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

fn texts(reply: Reply) -> Vec<Vec<u8>> {
    match reply {
        Reply::Ok => vec![b"OK".to_vec()],
        Reply::Nil => vec![Vec::new()],
        Reply::Int(number) => vec![number.to_string().into_bytes()],
        Reply::Bulk(bytes) => vec![bytes],
        Reply::Error(text) => vec![text.into_bytes()],
        Reply::List(replies) => replies.into_iter().flat_map(texts).collect(),
    }
}

fn field(reply: Reply) -> Result<Field, Reply> {
    match reply {
        Reply::Int(number) => Ok(Field::Int(number)),
        Reply::Bulk(bytes) => Ok(Field::Text(bytes)),
        other => Err(other),
    }
}

fn words(reply: &ScriptReply) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match reply {
        ScriptReply::Text(bytes) => text(bytes).split(' ').map(str::to_owned).collect(),
        ScriptReply::List(fields) => {
            let word = |field: &Field| match field {
                Field::Int(number) => number.to_string(),
                Field::Text(bytes) => text(bytes),
            };
            fields.iter().map(word).collect()
        }
    }
}
