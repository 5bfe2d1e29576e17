//! A server: an interpreter, the connections to it, and the faults around them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::faults::{Delivery, Faults, NoFaults, Published, Ran, Redirected, Task};
use crate::interpreter::Interpreter;
use crate::keyspace::{Message, Moves, Reply, Snapshot};
use crate::member::{Member, Slot};
use crate::request::Request;
use crate::sync::lock;

/// A server inside this process, to which clients connect. Clones refer to the same server.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    /// If Lua did not start: the error with which all calls fail.
    engine: Result<Mutex<Interpreter>, String>,
    /// When it started, by the server's clock in whole seconds since 1970; `began` is the same by tokio's clock.
    epoch: Duration,
    began: Instant,
    faults: Box<dyn Faults>,
    /// By channel: a client has one connection at a time.
    connections: Mutex<BTreeMap<String, Subscriber>>,
    up: AtomicBool,
    /// Notified by each `start_up`.
    started: Notify,
    /// How often it was shut down.
    shutdowns: AtomicU64,
    /// How often another server took over in between without this one noticing.
    unnoticed: AtomicU64,
    /// The number of the next connection.
    next_number: AtomicU64,
    /// `None`: it is not a node of a cluster.
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
    /// Cancelled when the connection ends.
    pub dead: CancellationToken,
}

/// The messages on a client's channel. Unbounded, since the scripts bound the number of messages. The scripts of
/// fairlock send a client one message for each of its places, and `max_waiters` bounds the places.
pub type Pushes = mpsc::UnboundedReceiver<Vec<u8>>;

struct Subscriber {
    connection: Connection,
    pushes: mpsc::UnboundedSender<Vec<u8>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// A server without keys. Its clock starts at the machine's time and advances with tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_faults(NoFaults)
    }

    /// A server with faults.
    pub fn with_faults(faults: impl Faults) -> Self {
        Self::start(Box::new(faults), since_1970(), None)
    }

    /// Servers that know nothing of each other, each with its own faults.
    pub fn several<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<Self> {
        // One epoch for all, so that their clocks differ only by their faults.
        let epoch = since_1970();
        faults.into_iter().map(|faults| Self::start(Box::new(faults), epoch, None)).collect()
    }

    /// The nodes of a cluster, each with its own faults. No node serves a slot yet.
    pub fn cluster<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<Self> {
        // One epoch for all, so that their clocks differ only by their faults.
        let epoch = since_1970();
        let ports = 7000_u16..;
        let node =
            |(port, faults): (u16, F)| Self::start(Box::new(faults), epoch, Some(Member::new(format!("node:{port}"))));
        let nodes: Vec<_> = ports.zip(faults).map(node).collect();
        for node in &nodes {
            let others = nodes.iter().filter(|other| !Arc::ptr_eq(&other.shared, &node.shared));
            // Set only here.
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
                next_number: AtomicU64::new(1),
                member,
                bus: OnceLock::new(),
            }),
        }
    }

    /// The names of all keys, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        // This sets the clock first, which removes expired keys.
        let keys = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.keys()).unwrap_or_default());
        keys.unwrap_or_default().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Deletes all keys, as FLUSHALL does.
    pub fn flush(&self) {
        let _ = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.execute(&[b"FLUSHALL".to_vec()])));
    }

    /// Runs one command outside of any script.
    pub fn command(&self, words: &[&str]) -> Reply {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let reply = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.execute(&words)));
        reply.ok().flatten().unwrap_or(Reply::Nil)
    }

    /// Runs one command of a client outside of any script. `None`: the server is shut down.
    pub fn answer(&self, words: &[&str]) -> Option<Reply> {
        self.is_up().then(|| self.command(words))
    }

    /// All keys now. `None`: the engine did not start.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.snapshot())).ok().flatten()
    }

    /// Replaces the present state by an earlier one, like a failover to a replica that lagged.
    pub fn restore(&self, snapshot: Snapshot) {
        let _ = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.restore(snapshot)));
    }

    /// The node's address. `None`: the server is in no cluster.
    pub fn address(&self) -> Option<&str> {
        Some(&self.shared.member.as_ref()?.address)
    }

    /// CLUSTER SETSLOT: sets this node's knowledge of a slot.
    pub fn set_slot(&self, number: u16, slot: Slot) {
        self.shared.member.iter().for_each(|member| member.set(number, slot.clone()));
    }

    /// The slots that this node knows, with the addresses of the nodes that serve them, as in CLUSTER SLOTS.
    pub fn slots(&self) -> Vec<(u16, String)> {
        self.shared.member.as_ref().map(Member::slots).unwrap_or_default()
    }

    /// MIGRATE: the key is at one of the two servers at each moment.
    pub fn migrate(&self, key: &str, to: &Self) {
        let dump = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.dump(key.as_bytes())));
        if let Some(dump) = dump.ok().flatten().flatten() {
            let _ = to.with_engine(|engine| engine.keyspace(|keyspace| keyspace.load(key.as_bytes(), dump)));
        }
    }

    /// Whether both are clones of the same server.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Closes all connections and accepts no new ones. The keys stay, and expire in time.
    pub fn shut_down(&self) {
        // Refuse new connections first, then end the present ones. Otherwise a client could attach in between and
        // stay with a server that is down.
        self.shared.up.store(false, Ordering::Relaxed);
        self.shared.shutdowns.fetch_add(1, Ordering::Relaxed);
        self.connections().iter().for_each(|connection| self.detach(connection));
    }

    /// Accepts connections again. Clients reconnect automatically.
    pub fn start_up(&self) {
        self.shared.up.store(true, Ordering::Relaxed);
        self.shared.started.notify_waiters();
    }

    /// Closes the connection of the client with this id, which reconnects automatically.
    pub fn disconnect(&self, client: &str) {
        let connections = self.connections();
        let of_client = connections.iter().filter(|connection| connection.channel.ends_with(client));
        of_client.for_each(|connection| self.detach(connection));
    }

    /// A copy, because `detach` needs the map.
    fn connections(&self) -> Vec<Connection> {
        lock(&self.shared.connections).values().map(|subscriber| subscriber.connection.clone()).collect()
    }

    /// Connects and subscribes, unless the server is shut down.
    pub fn attach(&self, channel: &str) -> Option<(Connection, Pushes)> {
        if !self.is_up() {
            return None;
        }
        let (pushes, pushed) = mpsc::unbounded_channel();
        let connection = Connection {
            number: self.shared.next_number.fetch_add(1, Ordering::Relaxed),
            shutdowns: self.shutdowns(),
            channel: channel.to_owned(),
            dead: CancellationToken::new(),
        };
        let subscriber = Subscriber { connection: connection.clone(), pushes };
        lock(&self.shared.connections).insert(channel.to_owned(), subscriber);
        self.subscribe(channel, true);
        Some((connection, pushed))
    }

    /// Retries `attach` until it succeeds.
    pub async fn reattach(&self, client: &str, channel: &str) -> (Connection, Pushes) {
        loop {
            sleep(self.shared.faults.reconnect(client)).await;
            // Register before `attach` looks, so that no start in between is missed.
            let started = self.shared.started.notified();
            if let Some(attached) = self.attach(channel) {
                return attached;
            }
            started.await;
        }
    }

    /// Closes a connection on both sides.
    pub fn detach(&self, connection: &Connection) {
        connection.dead.cancel();
        let mut connections = lock(&self.shared.connections);
        // The client may have reconnected already, and its new connection stays.
        // Compare numbers, as the channel stays the same over reconnects.
        let is_current = |current: &Subscriber| current.connection.number == connection.number;
        if connections.get(&connection.channel).is_some_and(is_current) {
            connections.remove(&connection.channel);
            // Release this lock first: `subscribe` calls the faults and takes the engine's lock.
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

    /// Distinguishes this server from others in the process.
    pub fn id(&self) -> String {
        format!("embedded at {:p}", Arc::as_ptr(&self.shared))
    }

    /// Identifies this life of the server: new after each start.
    pub fn life(&self) -> String {
        format!("embedded/{}", self.shutdowns() - self.epoch())
    }

    /// Counts failovers as Sentinels do, but only those that did not change the server's life.
    pub fn epoch(&self) -> u64 {
        self.shared.unnoticed.load(Ordering::Relaxed)
    }

    /// During its last shutdown, another server was the primary.
    pub fn was_replaced(&self) {
        self.shared.unnoticed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was shut down since this connection began.
    pub fn was_shut_down_since(&self, connection: &Connection) -> bool {
        connection.shutdowns != self.shutdowns()
    }

    /// The copies of a request that the faults send.
    pub fn deliveries(&self, request: &Request) -> Vec<Delivery> {
        self.shared.faults.request(&request.client, request.name)
    }

    /// See [`Faults::in_flight`].
    pub fn in_flight(&self, client: &str) -> usize {
        self.shared.faults.in_flight(client)
    }

    /// See [`Faults::spawn`].
    pub fn wrap_task(&self, client: &str, task: Task) -> Task {
        self.shared.faults.spawn(client, task)
    }

    /// Sets the clock of the keys, then calls `use_it`.
    fn with_engine<T>(&self, use_it: impl FnOnce(&mut Interpreter) -> T) -> Result<T, String> {
        let mut engine = lock(self.shared.engine.as_ref().map_err(Clone::clone)?);
        // Once for each call, so that time does not advance while a script runs. Redis does the same since 7.2.
        let now = self.wall_clock();
        engine.keyspace(|keyspace| keyspace.at(now));
        Ok(use_it(&mut engine))
    }

    /// The server's clock in microseconds since 1970, which TIME returns to scripts.
    pub fn micros(&self) -> i64 {
        let now = self.with_engine(|engine| engine.keyspace(|keyspace| keyspace.now()));
        now.ok().flatten().unwrap_or_else(|| self.wall_clock())
    }

    fn wall_clock(&self) -> i64 {
        let elapsed = Instant::now().saturating_duration_since(self.shared.began);
        let now = self.shared.epoch + self.shared.faults.server_time(elapsed);
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
    }

    /// Runs the script and pushes its messages. `None`: the server is shut down.
    pub fn serve(&self, request: &Request) -> Option<Reply> {
        if !self.is_up() {
            return None;
        }
        let moves = match self.route(request) {
            Ok(moves) => moves,
            Err(elsewhere) => return Some(Reply::Error(elsewhere)),
        };
        let faults = &self.shared.faults;
        let Request { client, name, .. } = request;
        // Like LOADING or READONLY: Redis returns these before the script begins, so nothing has run.
        if let Some(refusal) = faults.refuse(client, name) {
            return Some(Reply::Error(refusal.to_owned()));
        }
        let (reply, published) = self.run(request, moves);
        let published: Vec<_> = published.iter().map(Published::new).collect();
        // Before the messages go out: a checker must know of a grant before its client can act on it.
        faults.ran(&Ran {
            client,
            script: name,
            keys: &request.keys,
            args: &request.args,
            reply: words(&reply),
            published: &published,
            sent: request.sent,
            at: self.micros(),
        });
        // Push before replying, like Redis 7.0. Later versions send the reply first, and the client relies on
        // neither.
        for Published { channel, message, .. } in published {
            for other in self.shared.bus.get().into_iter().flatten().filter_map(Weak::upgrade) {
                Self { shared: other }.push(&channel, message.clone());
            }
            self.push(&channel, message);
        }
        Some(reply)
    }

    /// Returns the reply and the published messages.
    fn run(&self, request: &Request, moves: Moves) -> (Reply, Vec<Message>) {
        let Request { client, name, text, keys, args, .. } = request;
        let keys: Vec<_> = keys.iter().map(String::as_bytes).collect();
        let args: Vec<_> = args.iter().map(String::as_bytes).collect();
        let refused = self.shared.faults.refuse_inside(client, name);
        let behind = self.shared.faults.behind();
        let ran = self.with_engine(|engine| {
            engine.keyspace(|keyspace| {
                (keyspace.refused, keyspace.moves, keyspace.behind) = (refused, moves, behind);
            });
            let reply = engine.eval(name, text, &keys, &args);
            // A script with fewer commands must not leave this to the next one.
            engine.keyspace(|keyspace| (keyspace.refused, keyspace.moves) = (None, Moves::Rests));
            // Under the same lock as the run. Otherwise another script's messages could mix with these.
            let published = engine.keyspace(|keyspace| std::mem::take(&mut keyspace.published));
            (reply, published.unwrap_or_default())
        });
        let (reply, published) = ran.unwrap_or_else(|why| (Reply::Error(format!("ERR {why}")), Vec::new()));
        match reply {
            // Redis adds this to an error raised inside a script.
            Reply::Error(text) => (Reply::Error(format!("{text} script: embedded")), published),
            reply => (reply, published),
        }
    }

    /// Whether a script may run here. Otherwise returns the error that redirects it.
    fn route(&self, request: &Request) -> Result<Moves, String> {
        let Some(member) = &self.shared.member else { return Ok(Moves::Rests) };
        let route = self.with_engine(|engine| engine.keyspace(|keyspace| member.route(request, keyspace)));
        let route = route.ok().flatten().unwrap_or(Ok(Moves::Rests));
        if let Err(error) = &route {
            let Request { client, name: script, keys, args, sent, .. } = request;
            self.shared.faults.redirected(&Redirected { client, script, keys, args, sent: *sent, error });
        }
        route
    }

    fn push(&self, channel: &str, message: String) {
        // Cloned, so that the map is not locked while the faults decide about the message.
        let subscriber = lock(&self.shared.connections).get(channel).map(|subscriber| subscriber.pushes.clone());
        let Some(pushes) = subscriber else { return };
        for delay in self.shared.faults.push(client_of(channel)) {
            arrive(pushes.clone(), message.clone().into_bytes(), delay);
        }
    }
}

fn arrive(pushes: mpsc::UnboundedSender<Vec<u8>>, message: Vec<u8>, delay: Duration) {
    // Sending fails if the connection is closed. The message disappears with it.
    if delay.is_zero() {
        let _ = pushes.send(message);
    } else {
        tokio::spawn(async move {
            sleep(delay).await;
            let _ = pushes.send(message);
        });
    }
}

fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Whole seconds, so that a simulation does not depend on when it runs.
    Duration::from_secs(since.as_secs())
}

/// A channel ends with its client's id.
fn client_of(channel: &str) -> &str {
    channel.rsplit(':').next().unwrap_or_default()
}

/// The words of a script's reply, or the error.
fn words(reply: &Reply) -> Result<Vec<String>, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let word = |reply: &Reply| match reply {
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(bytes) => text(bytes),
        other => format!("{other:?}"),
    };
    match reply {
        Reply::Error(error) => Err(error.clone()),
        Reply::Bulk(bytes) => Ok(text(bytes).split(' ').map(str::to_owned).collect()),
        Reply::List(replies) => Ok(replies.iter().map(word).collect()),
        other => Ok(vec![word(other)]),
    }
}
