//! The store inside this process: the way to a server, or a node of a cluster, that runs the same scripts on keys in
//! memory.
//!
//! By default requests take no time and nothing is lost. `Faults` can change that.

use std::iter::once;
use std::sync::Arc;

use fairlock_emulator::{Connection, Delivery, Pushes, Reply, Request, Server};
use fairlock_proto::command::Arg;
use fairlock_proto::keys;
use fairlock_proto::reply::{Field, ScriptReply};
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::call::Call;
use super::clock::now;
use super::cluster::slots::slot_of;
use super::connect_options::Address;
use super::error::{Fault, Refusal, RequestError};
use super::link;
use super::node::Node;
use super::node::wire::{Supervised, Wire};
use super::options::Options;
use super::script;
use super::server::Told;
use super::{ServedKeys, SpawnHook};
use crate::sync::Mutex;

pub type EmbeddedNode = Node<EmbeddedWire>;

impl link::Connection for Connection {
    fn dead(&self) -> &CancellationToken {
        &self.dead
    }
}

pub struct EmbeddedWire {
    /// One server, or all nodes of a cluster.
    servers: Vec<Server>,
    /// The server to which it is connected or should connect. `None`: not in use now.
    current: Mutex<Option<Server>>,
    /// Notified when `current` has changed.
    moved: Notify,
    client: String,
    channel_prefix: String,
}

impl Node<EmbeddedWire> {
    /// If the server is down, the node keeps trying to connect. Returns whether it is connected.
    pub fn connect_or_go_on(server: &Server, options: &Options, client: &str) -> (Self, bool) {
        let node = Self::seat(vec![server.clone()], ServedKeys::All, options, client, watch::Sender::default());
        let inner = node.inner();
        *inner.wire.current.lock() = Some(server.clone());
        let first = server.attach(&inner.wire.channel(server));
        let is_connected = first.is_some();
        match first {
            Some(first) => {
                inner.greet(server);
                node.begin(first);
            }
            None => node.go_on(Arc::new(Fault::Disconnected)),
        }
        (node, is_connected)
    }

    /// A seat among the nodes of a cluster.
    pub fn seat(
        nodes: Vec<Server>,
        keys: ServedKeys,
        options: &Options,
        client: &str,
        changes: watch::Sender<()>,
    ) -> Self {
        let wire = EmbeddedWire {
            servers: nodes,
            current: Mutex::default(),
            moved: Notify::new(),
            client: client.to_owned(),
            channel_prefix: keys::channel_prefix(&options.prefix),
        };
        // With a known seed, so that a simulated run can be repeated.
        Self::start(Supervised::new(wire, keys, options, changes), &Handle::current())
    }

    /// Wraps this client's background tasks, so that a simulator can pause or end them.
    pub fn spawn_hook(&self) -> SpawnHook {
        let node = self.inner().clone();
        Arc::new(move |task| node.wire.wrap_task(task))
    }
}

impl Wire for EmbeddedWire {
    type Connection = Connection;
    type Attached = (Connection, Pushes);

    fn connection((connection, _): &(Connection, Pushes)) -> &Connection {
        connection
    }

    async fn connect(node: &Arc<Supervised<Self>>, _backoff: &mut Backoff) -> Option<(Connection, Pushes)> {
        while node.is_wanted() {
            // Register before looking, so that no change between the look and the await is missed.
            let moved = node.wire.moved.notified();
            let Some(server) = node.wire.server() else {
                moved.await;
                continue;
            };
            let channel = node.wire.channel(&server);
            let attached = tokio::select! {
                // A fixed order, so that a simulated run can be repeated.
                biased;
                () = node.wire.left(&server) => continue,
                attached = server.reattach(&node.wire.client, &channel) => attached,
            };
            node.greet(&server);
            return Some(attached);
        }
        None
    }

    /// Passes pushes to the listener until then.
    async fn over(node: &Supervised<Self>, (connection, pushes): &mut (Connection, Pushes)) -> bool {
        let messages = async {
            while let Some(message) = pushes.recv().await {
                node.link.listener().iter().for_each(|listener| listener.pushed(&node.link.keys, &message));
            }
        };
        let _ = connection.dead.run_until_cancelled(messages).await;
        false
    }

    async fn run(node: &Arc<Supervised<Self>>, call: Call<'_>, request: u64) -> Result<ScriptReply, RequestError> {
        let (Some(connection), Some(server)) = (node.link.connection(), node.wire.server()) else {
            return Err(RequestError::NotSent(node.link.fault()));
        };
        let request = copied(&node.wire.client, call, request, &tag(&server));
        let deliveries = server.deliveries(&request);
        let unanswered = || RequestError::Unanswered(Arc::new(Fault::Disconnected));
        if deliveries == [Delivery::AT_ONCE] {
            // Served before the first await: dropping the future from here on cannot take the request back.
            let served = node.serve(&server, &request);
            // Yield, as a request over a real connection does. Otherwise a loop of calls would keep other tasks from
            // running.
            tokio::task::yield_now().await;
            return script_reply(served.ok_or_else(unanswered)?);
        }
        let (answer, mut answers) = mpsc::channel(deliveries.len().max(1));
        // In tasks of their own, because a sent request arrives even without its caller (R9).
        let request = Arc::new(request);
        for delivery in deliveries {
            let sent = SentRequest { server: server.clone(), connection: connection.clone(), request: request.clone() };
            tokio::spawn(deliver(node.clone(), sent, delivery, answer.clone()));
        }
        tokio::select! {
            // A fixed order, so that a simulated run can be repeated. Once the connection is dead, its answers count
            // as lost, as over a real connection.
            biased;
            () = connection.dead.cancelled() => Err(unanswered()),
            // `answer` is still alive here, so if no copy arrives, this waits until the caller times out.
            served = answers.recv() => script_reply(served.ok_or_else(unanswered)?),
        }
    }

    /// Takes no time, and is not subject to faults.
    async fn ask(node: &Supervised<Self>, words: &[&str]) -> Result<Told, RequestError> {
        let (Some(connection), Some(server)) = (node.link.connection(), node.wire.server()) else {
            return Err(RequestError::NotSent(node.link.fault()));
        };
        let answer = server.answer(words);
        tokio::task::yield_now().await;
        match answer {
            None => Err(RequestError::Unanswered(Arc::new(Fault::Disconnected))),
            Some(Reply::Error(text)) => Err(refused(&text)),
            Some(reply) => Ok(Told { texts: texts(reply), connection: connection.dead }),
        }
    }

    fn address(&self) -> String {
        let server = self.server();
        server.as_ref().and_then(Server::address).unwrap_or("the embedded server").to_owned()
    }

    fn hears(&self) -> bool {
        true
    }

    fn server_id(&self) -> Option<String> {
        self.server().map(|server| server.id())
    }

    fn suspect(&self) {
        // These connections are never half-open without being cancelled later.
    }

    fn disconnect(&self, connection: &Connection) {
        self.server().iter().for_each(|server| server.detach(connection));
    }

    fn move_to(&self, address: Option<&Address>) {
        let next = self.servers.iter().find(|server| address.is_some() && address_of(server).as_ref() == address);
        let is_same = match (&*self.current.lock(), next) {
            (Some(before), Some(next)) => before.is(next),
            (before, next) => before.is_none() && next.is_none(),
        };
        if !is_same {
            // Before the wire forgets the previous server.
            self.close();
            *self.current.lock() = next.cloned();
        }
        self.moved.notify_waiters();
    }

    fn wrap_task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        // Any of the servers will do, and there is at least one.
        match self.servers.first() {
            Some(server) => server.wrap_task(&self.client, task),
            None => task,
        }
    }

    /// Otherwise the server would keep the subscription, and could grant the lock to a place of this client that a
    /// failover brings back.
    fn close(&self) {
        self.server().iter().for_each(|server| server.disconnect(&self.client));
    }
}

impl EmbeddedWire {
    fn server(&self) -> Option<Server> {
        self.current.lock().clone()
    }

    fn channel(&self, server: &Server) -> String {
        format!("{}{}{}", self.channel_prefix, tag(server), self.client)
    }

    /// Resolves when this is not the server to connect to.
    async fn left(&self, server: &Server) {
        loop {
            let moved = self.moved.notified();
            if !self.server().is_some_and(|current| current.is(server)) {
                return;
            }
            moved.await;
        }
    }
}

impl Supervised<EmbeddedWire> {
    /// The same as the probe of a node over the network. Without the server's time, the client's first request would
    /// be late (R2), and later ones would overtake it (P3). A client that sends nothing during a freeze would not
    /// know when the freeze ends.
    fn greet(&self, server: &Server) {
        self.clock.learn(now(), 0, server.micros());
        self.boot(server);
    }

    /// With `strict_restart`: freezes the server if it may have forgotten a grant. Here this takes no message that
    /// could get lost.
    fn boot(&self, server: &Server) {
        let Some(boot) = &self.boot else { return };
        let boots = boot.request(server.life(), server.epoch());
        let command = || boots.command();
        let call = Call::new(&command, &boots.key);
        let request = copied(&self.wire.client, call, 0, "");
        if let Some(Ok(reply)) = server.serve(&request).map(script_reply) {
            // After an unreadable reply, the next requests find no record, and report that.
            let _ = boot.booted(&reply, "the embedded server");
        }
    }

    /// `None`: the server is shut down.
    fn serve(&self, server: &Server, request: &Request) -> Option<Reply> {
        let served = server.serve(request)?;
        if !matches!(&served, Reply::Error(text) if refusal(text).lacks_boot()) {
            return Some(served);
        }
        self.boot(server);
        server.serve(request)
    }
}

struct SentRequest {
    server: Server,
    connection: Connection,
    request: Arc<Request>,
}

/// Delivers one copy of a request.
async fn deliver(
    node: Arc<Supervised<EmbeddedWire>>,
    sent: SentRequest,
    delivery: Delivery,
    answer: mpsc::Sender<Reply>,
) {
    sleep(delivery.request).await;
    // A shutdown drops the connections and all requests in them. After a mere disconnect by the client, the server
    // still receives the requests sent before.
    if sent.server.was_shut_down_since(&sent.connection) {
        return;
    }
    let served = node.serve(&sent.server, &sent.request);
    if let (Some(served), Some(delay)) = (served, delivery.reply) {
        sleep(delay).await;
        // Fails if the caller no longer waits, or another copy's answer came first.
        let _ = answer.try_send(served);
    }
}

/// `tag`: see [`tag`].
fn copied(client: &str, call: Call<'_>, request: u64, tag: &str) -> Request {
    let command = (call.command)();
    // Redis passes each argument to a script as text, including numbers.
    let texts = |arg: &Arg<'_>| match arg {
        Arg::Text(text) => vec![text.clone().into_owned()],
        Arg::Texts(texts) => texts.to_vec(),
        Arg::Channel(text) => vec![format!("{text}{tag}")],
        Arg::Int(number) => vec![number.to_string()],
        Arg::Natural(number) => vec![number.to_string()],
    };
    Request {
        client: client.to_owned(),
        name: command.script.name(),
        text: script::of(command.script).text(),
        keys: command.keys().map(ToOwned::to_owned).collect(),
        // The request's number is the first argument of every script.
        args: once(request.to_string()).chain(command.args().flat_map(texts)).collect(),
        slot: slot_of(call.lock_key),
        asking: call.asking,
        sent: now(),
    }
}

/// The part of a node's channel names that distinguishes them from other nodes' channels.
fn tag(server: &Server) -> String {
    server.address().map(|address| address.replace(':', "/") + ":").unwrap_or_default()
}

fn address_of(server: &Server) -> Option<Address> {
    address(server.address()?)
}

pub fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some(Address::Tcp { host: host.to_owned(), port: port.parse().ok()? })
}

/// Splits an error reply: a code, then a text.
pub fn refusal(text: &str) -> Refusal {
    // The same way as the redis crate splits a real server's errors, so that `Refusal` reads both alike.
    let (code, message) = text.split_once(' ').unwrap_or(("ERR", text));
    Refusal::new(code, message)
}

fn refused(text: &str) -> RequestError {
    RequestError::Refused(refusal(text))
}

fn script_reply(reply: Reply) -> Result<ScriptReply, RequestError> {
    let malformed = |what: Reply| refused(&format!("ERR the script answered {what:?}"));
    let field = |reply| match reply {
        Reply::Int(number) => Ok(Field::Int(number)),
        Reply::Bulk(bytes) => Ok(Field::Text(bytes)),
        other => Err(malformed(other)),
    };
    match reply {
        Reply::Error(text) => Err(refused(&text)),
        Reply::Bulk(text) => Ok(ScriptReply::Text(text)),
        Reply::List(replies) => replies.into_iter().map(field).collect::<Result<_, _>>().map(ScriptReply::List),
        other => Err(malformed(other)),
    }
}

/// The words of a reply; nil is an empty one.
pub fn texts(reply: Reply) -> Vec<Vec<u8>> {
    match reply {
        Reply::Ok => vec![b"OK".to_vec()],
        Reply::Nil => vec![Vec::new()],
        Reply::Int(number) => vec![number.to_string().into_bytes()],
        Reply::Bulk(bytes) => vec![bytes],
        Reply::Error(text) => vec![text.into_bytes()],
        Reply::List(replies) => replies.into_iter().flat_map(texts).collect(),
    }
}
