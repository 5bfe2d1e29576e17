//! One server, Redis or Valkey, and the supervised connection to it.
//!
//! The redis crate's `ConnectionManager` does not fit: it reconnects twice under load, never
//! subscribes again when it is idle, and stays with a demoted primary. Here one task owns the
//! connection. It notices that the connection is dead, connects again without giving up, subscribes,
//! lets the listener resume, and only then lets everybody use it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::admission::{Admission, IN_FLIGHT};
use super::backoff::Backoff;
use super::call::{Call, arg, key};
use super::clock::{ServerClock, now};
use super::connect_options::{ConnectOptions, Credentials};
use super::connection::{Connection, Hash, Unasked, refusal};
use super::dial::{FirstBytes, Limit, Stream, Target};
use super::error::{Cause, ConnectError, Disconnected, Refusal, RequestError};
use super::keys::{self, Keys};
use super::link::{Link, OnDrop, State};
use super::options::Options;
use super::reply::{Fields, Malformed, ScriptReply};
use super::rights;
use super::verbs::{self, renew};
use super::{Listener, Priority, ServedKeys, Store};

/// The oldest server whose scripts know `#!lua` flags.
const OLDEST: (u32, u32) = (7, 0);

/// Everything that exists once per server.
pub struct Node {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    address: String,
    operation_timeout: Duration,
    channel: String,
    /// A lock that no client can hold, for the probe.
    probe: Keys,
    /// The arguments of the question for the user's rights.
    rights: Vec<String>,
    /// Set by the first connection, so that reconnects do not repeat the warning.
    eviction_is_checked: AtomicBool,
    /// What EVALSHA calls each script.
    hashes: HashMap<&'static str, Hash>,
    link: Link<Connection>,
    /// When the server last answered anything.
    heard: Mutex<Instant>,
    /// Notified when a request had no answer in time.
    suspected: Notify,
    admission: Admission,
    clock: ServerClock,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

impl Node {
    /// Connects once, in bounded time, so that a wrong URL or password is reported at once. From then
    /// on a task keeps the connection.
    pub async fn connect(server: ConnectOptions, options: &Options, client: &str) -> Result<Self, ConnectError> {
        let target = Target::new(server)?;
        let channel = format!("{}{client}", keys::channel_prefix(&options.prefix));
        let shared = Arc::new(Shared {
            // These two first, because `target` moves in the line after them.
            address: target.address(),
            rights: rights::question(&options.prefix, &channel, &verbs::ALL, target.options.database != 0),
            target,
            operation_timeout: options.operation_timeout,
            eviction_is_checked: AtomicBool::new(false),
            channel,
            probe: Keys::new(&options.prefix, ""),
            hashes: verbs::ALL.iter().map(|script| (script.name, Hash::of(script))).collect(),
            link: Link::new(),
            heard: Mutex::new(now()),
            suspected: Notify::new(),
            admission: Admission::new(IN_FLIGHT, uuid::Uuid::new_v4().as_u64_pair().0),
            clock: ServerClock::new(),
        });
        let first = shared.establish().await?;
        // Ready without `resume`: a new client has no waits and no holds to check.
        shared.link.enter(State::Ready(first.clone()));
        let (kept, told) = (shared.clone(), shared.clone());
        // The task owns this. So it is dropped when the runtime drops the task, even one that was
        // never polled (decision 46).
        let on_drop = OnDrop(move || told.link.gone());
        tokio::spawn(async move {
            let _on_drop = on_drop;
            supervise(kept, first).await;
        });
        Ok(Self { shared })
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
        self.shared.link.connection(priority).is_some()
    }

    fn ready<'a>(&'a self, _lock_key: &'a str, priority: Priority) -> BoxFuture<'a, Result<(), RequestError>> {
        self.shared.link.ready(priority).boxed()
    }

    fn fault(&self, _lock_key: &str) -> Cause {
        self.shared.link.fault()
    }

    fn run<'a>(&'a self, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<ScriptReply, RequestError>> {
        self.shared.run(call, request).boxed()
    }

    fn distrust(&self, _lock_key: &str) {
        if let Some(connection) = self.shared.link.connection(Priority::Urgent) {
            tracing::warn!(address = %self.shared.address, "a reply belongs to another request: reconnecting");
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

    fn close(&self) {
        self.shared.link.close();
    }
}

impl Shared {
    fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = now();
    }

    fn silent_for(&self) -> Duration {
        now().saturating_duration_since(*self.heard.lock().unwrap_or_else(PoisonError::into_inner))
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
        // Each script is in the map.
        let Some(hash) = self.hashes.get(call.script.name) else { return Err(RequestError::Closed) };
        let mut outcome = connection.evaluate(hash, call, request).await;
        // A refusal is an answer too.
        if matches!(outcome, Ok(_) | Err(RequestError::Refused(_))) {
            self.heard();
        }
        // A right was taken away since the connection was made. Of one that is missing inside a script the
        // server does not say which it is.
        if let Err(RequestError::Refused(refusal)) = &mut outcome
            && refusal.is_about_rights()
        {
            let missing = self.missing_rights(connection).await;
            if !missing.is_empty() {
                refusal.lacks(&missing);
            }
        }
        outcome
    }

    /// Connects, checks that this server can serve, learns its time, and subscribes.
    async fn establish(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let limit = self.limit();
        // Before dialling: a provider that takes long must not keep a connection waiting that has not
        // signed in.
        let credentials = self.target.credentials(limit).await?;
        let stream = self.target.dial(limit).await?;
        // Kept, because the connection takes the stream. They tell an HTTP or TLS server from one that
        // is silent.
        let first = stream.first_bytes();
        let silent = || self.target.silent(&first, limit);
        let connection = limit.run(self.sign_in(stream, &credentials)).await.ok_or_else(silent)??;
        // A new limit. The time that dialling took must not make a server that works look silent.
        let limit = self.limit();
        let silent = || self.target.silent(&first, limit);
        limit.run(self.greet(&connection)).await.ok_or_else(silent)??;
        Ok(connection)
    }

    async fn sign_in(self: &Arc<Self>, stream: Stream, credentials: &Credentials) -> Result<Connection, ConnectError> {
        let first = stream.first_bytes();
        // Weak, because the driver keeps this closure and the link keeps the connection. With a strong
        // one the two would keep each other alive.
        let shared = Arc::downgrade(self);
        let handle = move |unasked: Unasked<'_>| {
            let listener = shared.upgrade().and_then(|shared| shared.link.listener());
            match (unasked, listener) {
                (Unasked::Message(payload), Some(listener)) => listener.pushed(payload),
                (Unasked::Flushed, Some(listener)) => listener.flushed(ServedKeys::All),
                (_, None) => {}
            }
        };
        let opened = Connection::open(stream, credentials, handle).await;
        opened.map_err(|error| self.sign_in_error(error, &first))
    }

    fn limit(&self) -> Limit {
        Limit { limit: self.operation_timeout, until: now() + self.operation_timeout }
    }

    async fn greet(&self, connection: &Connection) -> Result<(), ConnectError> {
        // Sent together, to save a round trip. What the server is comes first: a Sentinel knows no scripts.
        let (server, rights, ()) = futures::join!(
            self.check_server(connection),
            self.check_rights(connection),
            self.warn_of_eviction(connection)
        );
        server.and(rights)?;
        let mut io = connection.io.clone();
        // SELECT after the check of the server: a cluster and a Sentinel refuse it, and that error
        // would not say what they are.
        if self.target.options.database != 0 {
            let select = redis::cmd("SELECT").arg(self.target.options.database).exec_async(&mut io).await;
            select.map_err(|error| self.connect_error(error))?;
        }
        // Acquires need the server's time for their `not_after` (R2). A reconnect learns it anew, as
        // it may have led to another server.
        self.probe(connection).await?;
        self.ask_for_flushes(&mut io).await;
        // We need to subscribe _last_. From then on the server takes this client for reachable and
        // grants locks to it (R6), so all that can still fail comes before.
        io.subscribe(&self.channel).await.map_err(|error| self.connect_error(error))
    }

    /// Tracking without any tracked key: the server keeps nothing for it, and says when all keys are
    /// flushed (A13). There is no such way to hear of a DEL, which the next renewal finds.
    async fn ask_for_flushes(&self, io: &mut MultiplexedConnection) {
        let tracking = redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").exec_async(io).await;
        if let Err(error) = tracking {
            // A right that is nice to have: without it the next renewal finds the loss.
            tracing::debug!(address = %self.address, %error, "no CLIENT TRACKING: a flush is found by the next renewal");
        }
    }

    async fn check_server(&self, connection: &Connection) -> Result<(), ConnectError> {
        let mut io = connection.io.clone();
        match redis::cmd("INFO").arg("server").query_async::<String>(&mut io).await {
            Ok(info) => check_server(field(&info, "redis_mode"), field(&info, "redis_version")),
            // Not allowed to ask. HELLO needs no right, and tells less.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = redis::cmd("HELLO").query_async::<HashMap<String, Value>>(&mut io).await;
                let hello = hello.map_err(|error| self.connect_error(error))?;
                let text = |name: &str| match hello.get(name) {
                    Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
                    _ => None,
                };
                check_server(text("mode"), text("version"))
            }
            Err(error) => Err(self.connect_error(error)),
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
                tracing::debug!(address = %self.address, %error, "the server does not tell the rights of its user");
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
                address = %self.address,
                "maxmemory-policy is {policy}: the server may evict a lock that is held, and two then hold it; use noeviction"
            );
        }
    }

    /// Renews a lock that cannot be held: tells the time, and whether scripts may write here.
    async fn probe(&self, connection: &Connection) -> Result<(), ConnectError> {
        let keys = [key("lock", &self.probe.lock)];
        // No owner has the name '', so renew.lua answers `lost` and changes nothing (R4).
        let args = [arg("owner", ""), arg("token", ""), arg("lease", 1_u64), arg("only", 0_u64)];
        // Before the request is sent, as `ServerClock::learn` expects.
        let sent = now();
        let reply = self
            .evaluate(&mut connection.clone(), Call::new(&renew::SCRIPT, &keys, &args), 0)
            .await
            .map_err(|error| self.probe_error(error))?;
        let server_ms = || {
            let mut fields = Fields::new(&reply)?;
            let (_status, _request) = (fields.text()?, fields.int()?);
            Ok::<_, Malformed>(fields.int()? * 1000 + fields.int()? / 1000)
        };
        self.clock.learn(sent, server_ms().map_err(|error| self.unreachable(Arc::new(error)))?);
        Ok(())
    }

    fn unreachable(&self, cause: Cause) -> ConnectError {
        self.target.unreachable(cause)
    }

    /// An error of the first exchange: here it shows that something else than Redis answers.
    fn sign_in_error(&self, error: RedisError, first: &FirstBytes) -> ConnectError {
        if refusal(&error).is_some() || error.kind() == ErrorKind::RESP3NotSupported {
            return self.connect_error(error);
        }
        self.target.broken_off(first, Arc::new(error))
    }

    fn connect_error(&self, error: RedisError) -> ConnectError {
        if error.kind() == ErrorKind::RESP3NotSupported {
            // RESP3 came with Redis 6.0.
            return ConnectError::TooOld { found: "older than 6.0".into() };
        }
        match refusal(&error) {
            Some(refusal) => refused(refusal),
            None => self.unreachable(Arc::new(error)),
        }
    }

    fn probe_error(&self, error: RequestError) -> ConnectError {
        match error {
            RequestError::Refused(refusal) => refused(refusal),
            RequestError::NotSent(cause) | RequestError::Unanswered(cause) => self.unreachable(cause),
            RequestError::Closed | RequestError::RuntimeGone | RequestError::Name(_) => {
                self.unreachable(Arc::new(Disconnected))
            }
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

/// The value of a line of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Valkey reports a redis_version too: 7.2.4 for all of its own versions.
fn check_server(mode: Option<&str>, version: Option<&str>) -> Result<(), ConnectError> {
    match mode {
        Some("cluster") => return Err(ConnectError::Cluster),
        Some("sentinel") => return Err(ConnectError::Sentinel),
        _ => {}
    }
    // A server that tells no version is judged by the probe, which runs a script with `#!lua`.
    let Some(found) = version else { return Ok(()) };
    let mut parts = found.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST { Ok(()) } else { Err(ConnectError::TooOld { found: found.to_owned() }) }
}

/// Owns the connection until the node is closed.
async fn supervise(shared: Arc<Shared>, first: Connection) {
    let stop = shared.link.stop.clone();
    stop.run_until_cancelled(async {
        // One backoff for all connections. With a new one each time, a server that accepts and closes
        // at once would be dialled without a pause.
        let (mut connection, mut backoff) = (first, Backoff::reconnect());
        loop {
            let up = now();
            until_dead(&shared, &connection).await;
            // After a ping without an answer it is not cancelled yet. What is in flight must end now
            // as unanswered: waiting for its time-out would only delay the retry.
            connection.dead.cancel();
            shared.link.enter(State::Down(Arc::new(Disconnected)));
            tracing::warn!(address = %shared.address, "lost the connection; reconnecting");
            backoff.connection_lived_for(now().saturating_duration_since(up));
            connection = reconnect(&shared, &mut backoff).await;
            tracing::info!(address = %shared.address, "reconnected");
            // Waits and holds first, then new acquires. If the connection dies meanwhile this ends at
            // once, and `until_dead` sees it in the next round.
            shared.link.resume(&connection, ServedKeys::All, shared.operation_timeout).await;
        }
    })
    .await;
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
/// is not worth a line in the log.
async fn reconnect(shared: &Arc<Shared>, backoff: &mut Backoff) -> Connection {
    let mut said = String::new();
    loop {
        // After a connection that lived long this pause is zero, so it does not delay the usual
        // reconnect.
        backoff.pause().await;
        match shared.establish().await {
            Ok(connection) => return connection,
            Err(error) => {
                let text = error.to_string();
                if said != text {
                    tracing::warn!(address = %shared.address, %error, "cannot reconnect yet");
                    said = text;
                }
                // Callers who run out of time are told this, so it should be the latest reason and not
                // only that the connection was closed.
                shared.link.enter(State::Down(Arc::new(error)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["redis_version:7.0.15", "redis_version:10.1.0\r\nrest", "x:1\r\nredis_version:7.2.4\r\n", ""] {
            assert!(check_server(None, field(good, "redis_version")).is_ok(), "{good:?}");
        }
        for old in ["redis_version:6.2.14", "redis_version:2.8", "redis_version:6.9"] {
            let checked = check_server(None, field(old, "redis_version"));
            assert!(matches!(checked, Err(ConnectError::TooOld { .. })), "{old:?}");
        }
    }
}
