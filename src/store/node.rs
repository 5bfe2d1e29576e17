//! One server, Redis or Valkey, and the supervised connection to it.
//!
//! The redis crate's `ConnectionManager` does not fit: it reconnects twice under load, never
//! subscribes again when it is idle, and stays with a demoted primary. Here one task owns the
//! connection. It notices that the connection is dead, connects again without giving up, subscribes,
//! lets the listener resume, and only then lets everybody use it.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::admission::{Admission, IN_FLIGHT};
use super::backoff::Backoff;
use super::call::{Call, arg, key};
use super::changes::Changes;
use super::clock::{ServerClock, now};
use super::cluster::table::Seat;
use super::connect_options::{Address, Credentials};
use super::connection::{Connection, Unasked, refusal};
use super::dial::{FirstBytes, Limit, Place, Stream, Target};
use super::error::{Cause, ConnectError, Disconnected, Refusal, RequestError};
use super::keys::{self, Keys};
use super::link::{Link, OnDrop, State};
use super::location::Location;
use super::options::Options;
use super::reply::{Fields, Malformed, ScriptReply};
use super::rights;
use super::runtime::{AFTER_PANIC, survive};
use super::script::Script;
use super::server::{Line, Told};
use super::verbs::boot::{self, Boot};
use super::verbs::{self, renew};
use super::{Listener, Priority, Ran, ServedKeys, Server, Store};
use crate::sync::Mutex;

/// The oldest server whose scripts know `#!lua` flags.
const OLDEST: (u32, u32) = (7, 0);

/// Everything that exists once per server.
pub struct Node {
    shared: Arc<Shared>,
}

/// What a node is made for.
pub struct Purpose {
    pub location: Arc<Location>,
    pub database: u32,
    pub keys: ServedKeys,
    /// Which kind of server has to be there.
    pub is_in_cluster: bool,
    /// Those of the client.
    pub changes: Arc<Changes>,
}

struct Shared {
    purpose: Purpose,
    operation_timeout: Duration,
    channel: Channel,
    /// A lock that no client can hold, for the probe.
    probe: Keys,
    /// The arguments of the question for the user's rights.
    rights: Vec<String>,
    /// With `strict_restart`.
    boot: Option<Boot>,
    /// The `run_id` of the server that the last connection led to, with `strict_restart`.
    server_id: Mutex<Option<String>>,
    /// Set by the first connection, so that reconnects do not repeat the warning.
    eviction_is_checked: AtomicBool,
    echo: Echo,
    /// Whether the server has run this script. It may forget it by SCRIPT FLUSH or a restart, and then says so.
    known: Vec<(&'static Script, AtomicBool)>,
    link: Link<Connection>,
    /// Whether a connection is wanted: the first one is made when somebody asks for a lock.
    is_wanted: AtomicBool,
    /// Notified when it becomes wanted.
    wanted: Notify,
    /// The first connection, for the task that is to keep it.
    first: Mutex<Option<Established>>,
    /// When the server last answered anything.
    heard: Mutex<Instant>,
    /// Notified when a request had no answer in time.
    suspected: Notify,
    admission: Admission,
    clock: ServerClock,
}

/// This client's channel at a server.
struct Channel {
    prefix: String,
    client: String,
}

impl Channel {
    /// `tag`: see `Connection::channel_tag`.
    fn at(&self, tag: &str) -> String {
        format!("{}{tag}{}", self.prefix, self.client)
    }
}

/// A connection, and where it leads.
#[derive(Clone)]
struct Established {
    connection: Connection,
    place: Place,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.shared.address()).finish_non_exhaustive()
    }
}

impl Node {
    /// Connects when it is asked for the first time. Its task lives in the runtime that it is given.
    pub fn new(purpose: Purpose, options: &Options, client: &str, runtime: &Handle) -> Self {
        let channel = Channel { prefix: keys::channel_prefix(&options.prefix), client: client.to_owned() };
        let boot = Boot::new(options);
        let more: &[&[&str]] = match &purpose {
            Purpose { is_in_cluster: true, .. } => &[&["asking"]],
            Purpose { database: 0, .. } => &[],
            Purpose { .. } => &[&["select", "0"]],
        };
        let link = Link::new(purpose.changes.clone(), options.metrics.clone());
        let shared = Arc::new(Shared {
            rights: rights::question(&options.prefix, &channel.at(""), &verbs::ALL, more, boot.is_some()),
            boot,
            server_id: Mutex::default(),
            purpose,
            operation_timeout: options.operation_timeout,
            eviction_is_checked: AtomicBool::new(false),
            echo: Echo::default(),
            channel,
            probe: Keys::new(&options.prefix, ""),
            known: verbs::ALL.iter().map(|script| (*script, AtomicBool::new(false))).collect(),
            link,
            is_wanted: AtomicBool::new(false),
            wanted: Notify::new(),
            first: Mutex::default(),
            heard: Mutex::new(now()),
            suspected: Notify::new(),
            admission: Admission::new(IN_FLIGHT, uuid::Uuid::new_v4().as_u64_pair().0),
            clock: ServerClock::new(),
        });
        let (kept, told) = (shared.clone(), shared.clone());
        // The task owns this. So it is dropped when the runtime drops the task, even one that was
        // never polled (decision 46).
        let on_drop = OnDrop(move || told.link.gone());
        runtime.spawn(async move {
            let _on_drop = on_drop;
            tokio::select! {
                () = supervise(&kept) => {}
                () = kept.admission.watch() => {}
            }
        });
        Self { shared }
    }

    /// Runs a task as long as the node is open.
    pub fn accompany(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.shared.link.stop.clone().run_until_cancelled_owned(task));
    }

    /// Connects by itself, after the first attempt has failed.
    pub fn go_on(&self, error: &ConnectError) {
        self.shared.link.enter(State::Down(Arc::new(error.clone())));
        self.shared.want();
    }

    /// Makes the first connection, in bounded time, so that a wrong URL or password is reported at once. From
    /// then on a task keeps the connection.
    pub async fn connect(&self) -> Result<(), ConnectError> {
        let shared = &self.shared;
        let target = shared.purpose.location.known().await;
        let connection = shared.establish(&target).await?;
        // Ready without `resume`: a new client has no waits and no holds to check.
        shared.link.enter(State::Ready(connection.clone()));
        tracing::debug!(target: "fairlock::server", address = %target.address(), "connected");
        *shared.first.lock() = Some(Established { connection, place: target.place() });
        shared.want();
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close();
    }
}

/// A single server is asked about every lock.
impl Store for Node {
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
        if let Some(connection) = self.shared.link.connection(Priority::Urgent) {
            tracing::warn!(target: "fairlock::server", address = %self.shared.address(), "a reply belongs to another request: reconnecting");
            connection.dead.cancel();
        }
    }

    fn suspect(&self, _lock_key: &str) {
        // `notify_one` keeps its notice when no one listens. So a suspicion that arises during a ping
        // is not lost.
        self.shared.suspected.notify_one();
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
        &self.shared.purpose.changes
    }

    fn close(&self) {
        self.shared.link.close();
    }

    fn frozen_until(&self) -> u64 {
        self.shared.boot.as_ref().map_or(0, Boot::frozen_until)
    }

    fn server_id(&self) -> Option<String> {
        self.shared.server_id.lock().clone()
    }
}

impl Server for Node {
    fn address(&self) -> String {
        self.shared.purpose.location.current().map_or_else(|| "unknown".into(), |target| target.address.to_string())
    }

    fn line(&self) -> Line {
        self.shared.link.line(self.shared.is_wanted.load(Ordering::Relaxed))
    }

    fn down_for(&self) -> Option<Duration> {
        self.shared.link.down_for()
    }

    fn hears(&self) -> bool {
        !self.shared.echo.is_missing.load(Ordering::Relaxed)
    }

    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Told, RequestError>> {
        self.shared.ask(words).boxed()
    }
}

impl Seat for Node {
    fn move_to(&self, address: Option<&Address>) {
        // The next address is connected to when somebody asks for a lock there.
        self.shared.is_wanted.store(false, Ordering::Relaxed);
        self.shared.echo.is_missing.store(false, Ordering::Relaxed);
        self.shared.purpose.location.move_to(address.cloned().map(Place::at));
        // It may be the same address as a moment ago, and then the connection was not given up.
        if address.is_some() && self.shared.link.is_ready(Priority::Urgent) {
            self.shared.want();
        }
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
    /// For messages.
    fn address(&self) -> String {
        self.purpose.location.current().map_or_else(|| "an unknown address".into(), |target| target.address())
    }

    fn want(&self) {
        // Relaxed: the notice orders what comes after it.
        if !self.is_wanted.swap(true, Ordering::Relaxed) {
            // It keeps its notice when the task does not listen yet.
            self.wanted.notify_one();
        }
    }

    fn heard(&self) {
        *self.heard.lock() = now();
    }

    fn silent_for(&self) -> Duration {
        now().saturating_duration_since(*self.heard.lock())
    }

    async fn run(&self, call: Call<'_>, request: u64) -> Result<ScriptReply, RequestError> {
        // Admission has looked at the priority already. Here each connection that is up will do.
        let Some(mut connection) = self.link.connection(Priority::Urgent) else {
            return Err(RequestError::NotSent(self.link.fault()));
        };
        let outcome = self.evaluate(&mut connection, call, request).await;
        // A demoted primary may keep its connections open. Without this the client would stay with it
        // and hear READONLY forever. Dialling again asks for the name anew.
        if let Err(RequestError::Refused(refusal)) = &outcome
            && refusal.means_another_primary()
        {
            connection.dead.cancel();
        }
        outcome
    }

    async fn evaluate(
        &self,
        connection: &mut Connection,
        call: Call<'_>,
        request: u64,
    ) -> Result<ScriptReply, RequestError> {
        let Some(is_known) = self.is_known(call.script) else { return Err(RequestError::Closed) };
        let mut outcome = connection.evaluate(is_known, call, request).await;
        // Nothing was run, so this is still the first copy of the request.
        if matches!(&outcome, Err(RequestError::Refused(refusal)) if refusal.lacks_boot())
            // Boxed, because it is rare: every call would have room for it otherwise.
            && Box::pin(self.boot_again(connection)).await
        {
            outcome = Box::pin(connection.evaluate(is_known, call, request)).await;
        }
        // A refusal is an answer too.
        if matches!(outcome, Ok(_) | Err(RequestError::Refused(_))) {
            self.heard();
        }
        // A right was taken away since the connection was made. Of one that is missing inside a script the
        // server does not say which it is.
        if let Err(RequestError::Refused(refusal)) = &mut outcome
            && refusal.is_about_rights()
        {
            let missing = Box::pin(self.missing_rights(connection)).await;
            if !missing.is_empty() {
                refusal.lacks(&missing);
            }
        }
        outcome
    }

    /// Each script is there.
    fn is_known(&self, script: &Script) -> Option<&AtomicBool> {
        self.known.iter().find(|(known, _)| known.name == script.name).map(|(_, is_known)| is_known)
    }

    /// One command that changes nothing.
    async fn ask(&self, words: &[&str]) -> Result<Told, RequestError> {
        let Some(mut connection) = self.link.connection(Priority::Question) else {
            return Err(RequestError::NotSent(self.link.fault()));
        };
        let Some((name, arguments)) = words.split_first() else { return Err(RequestError::Closed) };
        let outcome = connection.send(redis::cmd(name).arg(arguments)).await;
        if matches!(outcome, Ok(_) | Err(RequestError::Refused(_))) {
            self.heard();
        }
        match outcome {
            Ok(value) => Ok(Told { texts: flat(value), connection: connection.dead }),
            // Servers say it in different words.
            Err(RequestError::Refused(mut refusal)) if refusal.is_about_rights() => {
                refusal.lacks(&[format!("+{}", name.to_ascii_lowercase())]);
                Err(RequestError::Refused(refusal))
            }
            Err(error) => Err(error),
        }
    }

    /// Connects, checks that this server can serve, learns its time, and subscribes.
    async fn establish(self: &Arc<Self>, target: &Target) -> Result<Connection, ConnectError> {
        let limit = self.limit();
        // Before dialling: a provider that takes long must not keep a connection waiting that has not
        // signed in.
        let credentials = target.credentials(limit).await?;
        let stream = target.dial(limit).await?;
        // Kept, because the connection takes the stream. They tell an HTTP or TLS server from one that
        // is silent.
        let first = stream.first_bytes();
        let silent = || target.silent(&first, limit);
        let mut connection = limit.run(self.sign_in(target, stream, &credentials)).await.ok_or_else(silent)??;
        // A new limit. The time that dialling took must not make a server that works look silent.
        let limit = self.limit();
        let silent = || target.silent(&first, limit);
        limit.run(self.greet(target, &mut connection)).await.ok_or_else(silent)??;
        Ok(connection)
    }

    async fn sign_in(
        self: &Arc<Self>,
        target: &Target,
        stream: Stream,
        credentials: &Credentials,
    ) -> Result<Connection, ConnectError> {
        let first = stream.first_bytes();
        // Weak, because the driver keeps this closure and the link keeps the connection. With a strong
        // one the two would keep each other alive.
        let shared = Arc::downgrade(self);
        let handle = move |unasked: Unasked<'_>| {
            let Some(shared) = shared.upgrade() else { return };
            if matches!(unasked, Unasked::Message(ECHO)) {
                return shared.echo.heard.notify_one();
            }
            match (unasked, shared.link.listener()) {
                (Unasked::Message(payload), Some(listener)) => listener.pushed(&shared.purpose.keys, payload),
                (Unasked::Flushed, Some(_)) => shared.link.flushed(),
                (_, None) => {}
            }
        };
        let opened = Connection::open(stream, credentials, handle).await;
        opened.map_err(|error| sign_in_error(target, error, &first))
    }

    fn limit(&self) -> Limit {
        Limit { limit: self.operation_timeout, until: now() + self.operation_timeout }
    }

    async fn greet(&self, target: &Target, connection: &mut Connection) -> Result<(), ConnectError> {
        // Sent together, to save a round trip. What the server is comes first: a Sentinel knows no scripts.
        let (server, rights, ()) = futures::join!(
            self.check_server(target, connection),
            self.check_rights(connection),
            self.warn_of_eviction(connection)
        );
        server.and(rights)?;
        let mut io = connection.io.clone();
        // SELECT after the check of the server: a cluster and a Sentinel refuse it, and that error
        // would not say what they are.
        if self.purpose.database != 0 {
            let select = redis::cmd("SELECT").arg(self.purpose.database).exec_async(&mut io).await;
            select.map_err(|error| connect_error(target, error))?;
        }
        // Acquires need the server's time for their `not_after` (R2). A reconnect learns it anew, as
        // it may have led to another server.
        if self.purpose.is_in_cluster {
            self.ask_time(target, &mut io).await?;
            connection.channel_tag = ask_id(target, &mut io).await?.into();
        } else {
            self.probe(target, connection).await?;
        }
        // Before any request that may grant a lock.
        self.boot(target, connection).await?;
        // We need to subscribe _last_. From then on the server takes this client for reachable and
        // grants locks to it (R6), so all that can still fail comes before. These are sent together and served in this
        // order, so that the echo is heard.
        let channel = self.channel.at(&connection.channel_tag);
        let publish = redis::cmd("PUBLISH").arg(&channel).arg(ECHO).to_owned();
        let (mut flushes, mut echo) = (io.clone(), io.clone());
        let ((), subscribed, echoed) =
            futures::join!(self.ask_for_flushes(&mut flushes), io.subscribe(channel), publish.query_async(&mut echo));
        subscribed.map_err(|error| connect_error(target, error))?;
        self.check_echo(target, echoed).await;
        Ok(())
    }

    /// Whether messages arrive: a proxy may swallow them, or count them wrongly. Then polls find the grants,
    /// and each hand-off takes up to a poll interval.
    async fn check_echo(&self, target: &Target, published: RedisResult<i64>) {
        // Once it has failed it is not waited for again: each reconnect would take that long.
        if self.echo.is_missing.load(Ordering::Relaxed) {
            return;
        }
        let is_heard = match published {
            // The right is one of those that are asked for, so an error here is one of the connection, which
            // the next request reports. (A right that is taken away later is not fatal.)
            Err(_) => return,
            Ok(0) => false,
            Ok(_) => timeout(ECHO_LIMIT, self.echo.heard.notified()).await.is_ok(),
        };
        if !is_heard {
            self.echo.is_missing.store(true, Ordering::Relaxed);
            tracing::warn!(
                target: "fairlock::server",
                address = %target.address(),
                "no messages arrive from this server: a proxy may be in between; polls find what was granted, only later"
            );
        }
    }

    /// In a cluster: each key belongs to one node, so the lock that nobody holds cannot be asked of all.
    async fn ask_time(&self, target: &Target, io: &mut MultiplexedConnection) -> Result<(), ConnectError> {
        let sent = now();
        let time = redis::cmd("TIME").query_async::<(i64, i64)>(io).await;
        let (seconds, micros) = time.map_err(|error| connect_error(target, error))?;
        self.clock.learn(sent, seconds, micros);
        Ok(())
    }

    /// Tracking without any tracked key: the server keeps nothing for it, and says when all keys are
    /// flushed. There is no such way to hear of a DEL, which the next renewal finds.
    async fn ask_for_flushes(&self, io: &mut MultiplexedConnection) {
        let tracking = redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").exec_async(io).await;
        if let Err(error) = tracking {
            // A right that is nice to have: without it the next renewal finds the loss.
            tracing::debug!(target: "fairlock::server", address = %self.address(), %error, "no CLIENT TRACKING: a flush is found by the next renewal");
        }
    }

    async fn check_server(&self, target: &Target, connection: &Connection) -> Result<(), ConnectError> {
        let check = |mode: Option<&str>, version: Option<&str>| {
            check_version(version)?;
            match mode {
                Some("sentinel") => Err(ConnectError::Sentinel),
                Some("cluster") if !self.purpose.is_in_cluster => Err(ConnectError::Cluster),
                Some("standalone") if self.purpose.is_in_cluster => {
                    Err(ConnectError::NotCluster { address: target.address.to_string() })
                }
                _ => Ok(()),
            }
        };
        let mut io = connection.io.clone();
        match redis::cmd("INFO").arg("server").query_async::<String>(&mut io).await {
            Ok(info) => {
                // Valkey 8 calls it server_mode.
                let mode = field(&info, "redis_mode").or_else(|| field(&info, "server_mode"));
                check(mode, field(&info, "redis_version"))
            }
            // Not allowed to ask. HELLO needs no right, and tells less.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = redis::cmd("HELLO").query_async::<HashMap<String, Value>>(&mut io).await;
                let hello = hello.map_err(|error| connect_error(target, error))?;
                let text = |name: &str| match hello.get(name) {
                    Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
                    _ => None,
                };
                check(text("mode"), text("version"))
            }
            Err(error) => Err(connect_error(target, error)),
        }
    }

    async fn check_rights(&self, connection: &Connection) -> Result<(), ConnectError> {
        let missing = self.missing_rights(connection).await;
        if missing.is_empty() { Ok(()) } else { Err(ConnectError::Rights { missing }) }
    }

    /// Names every right that the user lacks.
    async fn missing_rights(&self, connection: &Connection) -> Vec<String> {
        let mut question = redis::cmd("EVAL");
        // The names of the keys go as ARGV. As KEYS the server would check them itself, and refuse the
        // question rather than answer it.
        question.arg(rights::SCRIPT).arg(0).arg(&self.rights);
        let missing = match question.query_async::<Vec<String>>(&mut connection.io.clone()).await {
            Ok(missing) => missing,
            Err(error) if error.code() == Some("NOPERM") => vec!["+eval".to_owned()],
            // A server that cannot tell is asked by the probe instead, and by use.
            Err(error) => {
                tracing::debug!(target: "fairlock::server", address = %self.address(), %error, "the server does not tell the rights of its user");
                Vec::new()
            }
        };
        let mut named = Vec::new();
        // Many commands lack the same right to the keys. Each is named once, in the order of the
        // scripts.
        for right in missing {
            if !named.contains(&right) {
                named.push(right);
            }
        }
        named
    }

    /// Once in the life of a client: a server that evicts keys forgets locks that are held.
    async fn warn_of_eviction(&self, connection: &Connection) {
        if self.eviction_is_checked.swap(true, Ordering::Relaxed) {
            return;
        }
        let info = redis::cmd("INFO").arg("memory").query_async::<String>(&mut connection.io.clone()).await;
        // A user may have no right to ask.
        let Ok(info) = info else { return };
        if let Some(policy) = field(&info, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                target: "fairlock::server",
                address = %self.address(),
                %policy,
                "maxmemory-policy is not noeviction: the server may evict a lock that is held, and two then hold it; use noeviction"
            );
        }
    }

    /// Renews a lock that cannot be held: tells the time, and whether scripts may write here.
    async fn probe(&self, target: &Target, connection: &Connection) -> Result<(), ConnectError> {
        let keys = [key("lock", &self.probe.lock)];
        // No owner has the name '', so renew.lua answers `lost` and changes nothing (R4).
        let args = [arg("owner", ""), arg("token", ""), arg("lease", 1_u64), arg("only", 0_u64)];
        // Before the request is sent, as `ServerClock::learn` expects.
        let sent = now();
        let reply = self
            .evaluate(&mut connection.clone(), Call::new(&renew::SCRIPT, &keys, &args), 0)
            .await
            .map_err(|error| probe_error(target, error))?;
        let time = || {
            let mut fields = Fields::new(&reply)?;
            let (_status, _request) = (fields.text()?, fields.int()?);
            Ok::<_, Malformed>((fields.int()?, fields.int()?))
        };
        let (seconds, micros) = time().map_err(|error| target.unreachable(Arc::new(error)))?;
        self.clock.learn(sent, seconds, micros);
        Ok(())
    }

    /// With `strict_restart`: freezes the server if it may have forgotten a grant.
    async fn boot(&self, target: &Target, connection: &Connection) -> Result<(), ConnectError> {
        let Some(boot) = &self.boot else { return Ok(()) };
        let life = self.life(target, connection).await?;
        let (keys, args) = (boot.keys(), boot.args(&life, target.epoch));
        let Some(is_known) = self.is_known(&boot::SCRIPT) else { return Ok(()) };
        let call = Call::new(&boot::SCRIPT, &keys, &args);
        let reply = connection.clone().evaluate(is_known, call, 0).await.map_err(|error| probe_error(target, error))?;
        boot.booted(&reply, &target.address()).map_err(|error| target.unreachable(Arc::new(error)))
    }

    /// The same where a request found that the record is gone. Returns whether it is there again.
    async fn boot_again(&self, connection: &Connection) -> bool {
        let Some(target) = self.purpose.location.current() else { return false };
        self.boot(&target, connection).await.is_ok()
    }

    /// What tells one life of the server from another one: it is new after each start, and after each promotion. A
    /// primary that was demoted and promoted again may lack what the other one granted meanwhile.
    async fn life(&self, target: &Target, connection: &Connection) -> Result<String, ConnectError> {
        let info = |section| self.info(target, connection, section);
        let (server, replication) = futures::try_join!(info("server"), info("replication"))?;
        let named = |info, missing| field(info, missing).ok_or(ConnectError::NoLife { missing });
        let run_id = named(&server, "run_id")?;
        *self.server_id.lock() = Some(run_id.to_owned());
        // Not `master_replid`, which is also new when the first replica comes, and when none has been there for an hour.
        Ok(format!("{run_id}/{}", named(&replication, "master_replid2")?))
    }

    async fn info(&self, target: &Target, connection: &Connection, section: &str) -> Result<String, ConnectError> {
        let info = redis::cmd("INFO").arg(section).query_async::<String>(&mut connection.io.clone()).await;
        info.map_err(|error| match error.code() {
            Some("NOPERM") => ConnectError::Rights { missing: vec!["+info".to_owned()] },
            _ => connect_error(target, error),
        })
    }
}

/// An error of the first exchange: here it shows that something else than Redis answers.
pub fn sign_in_error(target: &Target, error: RedisError, first: &FirstBytes) -> ConnectError {
    if refusal(&error).is_some() || error.kind() == ErrorKind::RESP3NotSupported {
        return connect_error(target, error);
    }
    target.broken_off(first, Arc::new(error))
}

pub fn connect_error(target: &Target, error: RedisError) -> ConnectError {
    if error.kind() == ErrorKind::RESP3NotSupported {
        // RESP3 came with Redis 6.0.
        return ConnectError::TooOld { found: "older than 6.0".into() };
    }
    match refusal(&error) {
        Some(refusal) => refused(refusal),
        None => target.unreachable(Arc::new(error)),
    }
}

fn probe_error(target: &Target, error: RequestError) -> ConnectError {
    match error {
        RequestError::Refused(refusal) => refused(refusal),
        RequestError::NotSent(cause) | RequestError::Unanswered(cause) => target.unreachable(cause),
        RequestError::Closed | RequestError::RuntimeGone | RequestError::Name(_) => {
            target.unreachable(Arc::new(Disconnected))
        }
    }
}

fn refused(refusal: Refusal) -> ConnectError {
    match refusal.code.as_str() {
        "READONLY" => ConnectError::ReadOnly,
        "NOAUTH" | "WRONGPASS" => ConnectError::Credentials(refusal),
        // Redis before 7.0 takes `#!lua` for a syntax error.
        _ if refusal.message.contains("unexpected symbol near '#'") => {
            ConnectError::TooOld { found: "older than 7.0".into() }
        }
        _ => ConnectError::Refused(refusal),
    }
}

/// The texts and numbers of a reply, without the lists that they are in.
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

/// The value of a line of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Valkey reports a redis_version too: 7.2.4 for all of its own versions.
fn check_version(version: Option<&str>) -> Result<(), ConnectError> {
    // A server that tells no version is judged by the probe, which runs a script with `#!lua`.
    let Some(found) = version else { return Ok(()) };
    let mut parts = found.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST { Ok(()) } else { Err(ConnectError::TooOld { found: found.to_owned() }) }
}

/// So many of the 40 digits of a node's id are in its channels: each pair of calls carries the name twice, which costs a
/// server 2 %. Where two nodes share them, a grant that the bus brings from the other one is asked about all the same
/// (`Poller::granted`).
const DIGITS_OF_ID: usize = 8;

/// The id of a node of a cluster, as a part of its channels.
async fn ask_id(target: &Target, io: &mut MultiplexedConnection) -> Result<String, ConnectError> {
    let id = redis::cmd("CLUSTER").arg("MYID").query_async::<String>(io).await;
    let id = id.map_err(|error| cluster_error(target, error))?;
    Ok(id.chars().take(DIGITS_OF_ID).chain([':']).collect())
}

/// A server that answers CLUSTER with an error is not in a cluster, or its user may not ask.
pub fn cluster_error(target: &Target, error: RedisError) -> ConnectError {
    match refusal(&error) {
        Some(refusal) if refusal.is_about_rights() => {
            let missing = ["+cluster|info", "+cluster|myid", "+cluster|slots"].map(ToOwned::to_owned);
            ConnectError::Rights { missing: missing.to_vec() }
        }
        Some(refusal) if refusal.message.contains("unknown command") => ConnectError::Sentinel,
        Some(refusal) if refusal.message.contains("cluster support disabled") => {
            ConnectError::NotCluster { address: target.address.to_string() }
        }
        _ => connect_error(target, error),
    }
}

/// What a client says to itself, to hear whether messages arrive.
const ECHO: &[u8] = b"echo";
/// The echo comes with the answer that counts it, or a moment later.
const ECHO_LIMIT: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Echo {
    heard: Notify,
    is_missing: AtomicBool,
}

/// Owns the connection until the node is closed.
async fn supervise(shared: &Arc<Shared>) {
    let stop = shared.link.stop.clone();
    stop.run_until_cancelled(async {
        // One backoff for all connections. With a new one each time, a server that accepts and closes
        // at once would be dialled without a pause.
        let mut backoff = Backoff::reconnect();
        loop {
            shared.wanted.notified().await;
            let (mut first, mut has_panicked) = (shared.first.lock().take(), false);
            while survive(keep_connected(shared, first.take(), has_panicked, &mut backoff)).await.is_none() {
                // Nobody keeps the one that it had.
                shared.link.connection(Priority::Urgent).inspect(|connection| connection.dead.cancel());
                has_panicked = true;
                sleep(AFTER_PANIC).await;
            }
        }
    })
    .await;
}

/// Until no connection is wanted. `again`: after a panic, which gave up the one before.
async fn keep_connected(shared: &Arc<Shared>, first: Option<Established>, again: bool, backoff: &mut Backoff) {
    if again {
        shared.link.enter(State::Down(Arc::new(Disconnected)));
    }
    let mut was_connected = again || first.is_some();
    let mut known = first;
    while shared.is_wanted.load(Ordering::Relaxed) {
        let is_new = known.is_none();
        let Established { connection, place } = match known.take() {
            Some(first) => first,
            None => {
                let Some(next) = reconnect(shared, backoff).await else { break };
                if was_connected {
                    tracing::info!(target: "fairlock::server", address = %next.place.address, "reconnected");
                }
                next
            }
        };
        was_connected = true;
        let up = now();
        let new = is_new.then_some(&connection);
        let serve = shared.link.keep_checked(new, &shared.purpose.keys, shared.operation_timeout);
        let moved = tokio::select! {
            // A check whose answer came just before the end of the connection counts.
            biased;
            () = serve => false,
            () = until_dead(shared, &connection) => false,
            // A demoted primary may still answer, and even grant.
            () = shared.purpose.location.left(&place) => true,
        };
        // After a ping without an answer it is not cancelled yet. What is in flight must end now
        // as unanswered: waiting for its time-out would only delay the retry.
        connection.dead.cancel();
        shared.link.enter(State::Down(Arc::new(Disconnected)));
        if moved {
            tracing::info!(target: "fairlock::server", address = %place.address, "the server is at another address now, or was made the primary again; reconnecting");
        } else {
            tracing::warn!(target: "fairlock::server", address = %place.address, "lost the connection; reconnecting");
            shared.purpose.location.doubt();
        }
        backoff.connection_lived_for(now().saturating_duration_since(up));
    }
    shared.link.rest();
}

/// The limit for a ping after a request that had no answer. With it a half-open connection is replaced
/// within the operation time-out + 1 s, before the shortest lease and the waiter time-to-live end.
const PING_LIMIT: Duration = Duration::from_millis(900);

/// A connection is dead when its driver or its user says so, or when a ping has no answer: a frozen
/// server or a cut cable causes no error by itself. It pings when the server was silent for an
/// operation time-out, and at once when a request had no answer in time.
async fn until_dead(shared: &Shared, connection: &Connection) {
    loop {
        tokio::select! {
            () = connection.dead.cancelled() => return,
            () = shared.suspected.notified() => {}
            () = sleep(shared.operation_timeout) => {
                if shared.silent_for() < shared.operation_timeout {
                    continue;
                }
            }
        }
        let asked = now();
        // Not through admission. When all slots are taken by requests without an answer, the ping
        // would wait for just these.
        match timeout(PING_LIMIT, connection.clone().send(&redis::cmd("PING"))).await {
            // A refusal is an answer too: a user may have no right to PING.
            Ok(Ok(_) | Err(RequestError::Refused(_))) => shared.heard(),
            // On a busy machine this task may be late, and other requests have heard from the server.
            Err(_) if shared.silent_for() < now().saturating_duration_since(asked) => {}
            _ => return,
        }
    }
}

/// Tries until it succeeds, with pauses of up to 2 s. Says once why it does not: the same error again
/// is not worth a line in the log. `None`: no connection is wanted any longer.
async fn reconnect(shared: &Arc<Shared>, backoff: &mut Backoff) -> Option<Established> {
    let location = &shared.purpose.location;
    let mut said = String::new();
    while shared.is_wanted.load(Ordering::Relaxed) {
        let target = location.known().await;
        let place = target.place();
        let attempt = async {
            // After a connection that lived long this pause is zero, so it does not delay the usual
            // reconnect.
            backoff.pause().await;
            shared.establish(&target).await
        };
        let outcome = tokio::select! {
            biased;
            // Neither the pause nor a server that does not answer may keep it from the new place.
            () = location.left(&place) => {
                // The pauses were for the place before.
                *backoff = Backoff::reconnect();
                continue;
            }
            outcome = attempt => outcome,
        };
        match outcome {
            Ok(connection) => return Some(Established { connection, place }),
            Err(error) => {
                let text = error.to_string();
                if said != text {
                    tracing::warn!(target: "fairlock::server", address = %target.address(), %error, "cannot connect yet");
                    said = text;
                }
                // Callers who run out of time are told this, so it should be the latest reason and not
                // only that the connection was closed.
                shared.link.enter(State::Down(Arc::new(error)));
                location.doubt();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["redis_version:7.0.15", "redis_version:10.1.0\r\nrest", "x:1\r\nredis_version:7.2.4\r\n", ""] {
            assert!(check_version(field(good, "redis_version")).is_ok(), "{good:?}");
        }
        for old in ["redis_version:6.2.14", "redis_version:2.8", "redis_version:6.9"] {
            let checked = check_version(field(old, "redis_version"));
            assert!(matches!(checked, Err(ConnectError::TooOld { .. })), "{old:?}");
        }
    }
}
