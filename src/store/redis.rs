//! Redis and Valkey: one supervised RESP3 connection that carries scripts and pushes.
//!
//! Not a `ConnectionManager`: that one reconnects twice under load, never subscribes again when
//! idle, and stays with a demoted primary. Here one task owns the connection. It notices death,
//! connects again for ever, subscribes, lets the listener resume, and only then serves everybody.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::keys::{self, Keys};
use super::link::{self, Disconnected, Link, State};
use super::reply::{Field, Fields, Malformed};
use super::script::{self, Script};
use super::{Arg, Call, Listener, Refusal, ServerClock, Source, Store, StoreError, Terms, now};

/// The oldest server whose scripts know `#!lua` flags.
const OLDEST: (u32, u32) = (7, 0);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// A connection that died before this age is no sign of a server that works.
const YOUNG: Duration = Duration::from_secs(1);
const YOUNG_BACKOFF: Duration = Duration::from_millis(25);
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why a connection could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    #[error("not a Redis URL: {0}")]
    Url(String),
    #[cfg(not(feature = "tls"))]
    #[error("TLS was asked for, but fairlock was built without its feature `tls`")]
    NoTls,
    #[error("no connection to {address}")]
    Unreachable { address: String, source: Source },
    #[error("no answer from {address} within {after:?}")]
    Silent { address: String, after: Duration },
    #[error("the server does not accept these credentials: {0}")]
    Credentials(Refusal),
    #[error("the server is Redis {found}; fairlock needs Redis 7.0 or later, or Valkey 7.2 or later")]
    TooOld { found: String },
    #[error("the server is a replica and takes no writes; connect to the primary")]
    ReadOnly,
    #[error("the server refused: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
}

/// Where the server is and how long it may take.
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) root_certificate: Option<Vec<u8>>,
    pub(crate) patience: Duration,
}

#[derive(Clone)]
struct Connection {
    io: MultiplexedConnection,
    dead: CancellationToken,
}

impl link::Connection for Connection {
    fn dead(&self) -> &CancellationToken {
        &self.dead
    }
}

pub(crate) struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    server: redis::Client,
    address: String,
    patience: Duration,
    probe: Keys,
    channel: String,
    hashes: HashMap<&'static str, String>,
    link: Link<Connection>,
    heard: Mutex<Instant>,
    clock: Arc<ServerClock>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects once, in bounded time, so that a wrong URL or password is told at once; from then
    /// on a task of its own keeps the connection.
    pub(crate) async fn connect(target: Target, terms: &Terms, clock: Arc<ServerClock>) -> Result<Self, Fault> {
        let info = connection_info(&target.url)?;
        let address = info.addr().to_string();
        let server = open(info, target.root_certificate)?;
        let shared = Arc::new(Shared {
            server,
            address,
            patience: target.patience,
            // No lock has an empty name, so the probe's key belongs to nobody.
            probe: Keys::new(&terms.prefix, ""),
            channel: format!("{}{}", keys::channel_prefix(&terms.prefix), terms.client),
            hashes: script::ALL.iter().map(|script| (script.name, hash(script))).collect(),
            link: Link::new(),
            heard: Mutex::new(now()),
            clock,
        });
        let first = shared.establish().await?;
        shared.link.offer(State::Ready(first.clone()));
        tokio::spawn(supervise(shared.clone(), first));
        Ok(Self { shared })
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for RedisStore {
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
        async move {
            let Some(mut connection) = self.shared.link.connection(true) else {
                return Err(StoreError::NotSent(self.fault()));
            };
            match self.shared.evaluate(&mut connection, call).await {
                Ok(fields) => Ok(fields),
                Err(StoreError::Refused(refusal)) => {
                    // The primary is elsewhere, or not up yet: look for it again (section 7).
                    if matches!(refusal.code.as_str(), "READONLY" | "LOADING" | "MASTERDOWN") {
                        connection.dead.cancel();
                    }
                    Err(StoreError::Refused(refusal))
                }
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn distrust(&self) {
        if let Some(connection) = self.shared.link.connection(true) {
            tracing::warn!(address = %self.shared.address, "an answer that belongs to another request: reconnecting");
            connection.dead.cancel();
        }
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

    /// EVALSHA; a server that has forgotten the script is sent its text once.
    async fn evaluate(&self, connection: &mut Connection, call: Call<'_>) -> Result<Vec<Field>, StoreError> {
        let hash = self.hashes.get(call.script.name).map_or("", String::as_str);
        match self.send(connection, &command("EVALSHA", hash, call)).await {
            // NOSCRIPT ran nothing, so this is no second copy.
            Err(StoreError::Refused(refusal)) if refusal.code == "NOSCRIPT" => {
                self.send(connection, &command("EVAL", &call.script.source, call)).await
            }
            outcome => outcome,
        }
        .and_then(|value| fields(value).map_err(|error| StoreError::Unknown(Arc::new(error))))
    }

    async fn send(&self, connection: &mut Connection, command: &redis::Cmd) -> Result<Value, StoreError> {
        let outcome = tokio::select! {
            outcome = connection.io.send_packed_command(command) => outcome.and_then(Value::extract_error),
            // Whatever is in flight on a dead connection may have run: unknown, at once.
            () = connection.dead.cancelled() => return Err(StoreError::Unknown(Arc::new(Disconnected))),
        };
        match outcome {
            Ok(value) => {
                self.heard();
                Ok(value)
            }
            Err(error) => Err(match refusal(&error) {
                Some(refusal) => {
                    self.heard();
                    StoreError::Refused(refusal)
                }
                None => {
                    connection.dead.cancel();
                    StoreError::Unknown(Arc::new(error))
                }
            }),
        }
    }

    /// Connects, checks that this server can serve, learns its time, and subscribes.
    async fn establish(self: &Arc<Self>) -> Result<Connection, Fault> {
        let dead = CancellationToken::new();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(None)
            .set_push_sender(receiver(Arc::downgrade(self), dead.clone()));
        let io = self.server.get_multiplexed_async_connection_with_config(&config);
        let io = self.within(io).await?.map_err(|error| self.fault(error))?;
        let connection = Connection { io, dead };
        self.within(self.greet(&connection)).await??;
        Ok(connection)
    }

    async fn within<F: Future>(&self, future: F) -> Result<F::Output, Fault> {
        timeout(self.patience, future)
            .await
            .map_err(|_| Fault::Silent { address: self.address.clone(), after: self.patience })
    }

    async fn greet(&self, connection: &Connection) -> Result<(), Fault> {
        let mut io = connection.io.clone();
        match redis::cmd("INFO").arg("server").query_async::<String>(&mut io).await {
            Ok(info) => check_version(&info)?,
            // Not allowed to ask: a server that is too old is then found by its script error.
            Err(error) if error.code() == Some("NOPERM") => {}
            Err(error) => return Err(self.fault(error)),
        }
        self.probe(connection).await?;
        io.subscribe(&self.channel).await.map_err(|error| self.fault(error))
    }

    /// Renews a lock that nobody has: tells the time, and whether scripts may write here.
    async fn probe(&self, connection: &Connection) -> Result<(), Fault> {
        let args = [Arg::Text(""), Arg::Text(""), Arg::Int(1), Arg::Int(0)];
        let call = Call { script: &script::RENEW, keys: &[&self.probe.lock], request: 0, args: &args };
        let sent = now();
        let fields = self.evaluate(&mut connection.clone(), call).await.map_err(|error| self.store_fault(error))?;
        let mut fields = Fields::new(fields);
        fields.text()?;
        fields.int()?;
        self.clock.learn(sent, fields.int()?);
        Ok(())
    }

    fn fault(&self, error: RedisError) -> Fault {
        if error.kind() == ErrorKind::RESP3NotSupported {
            return Fault::TooOld { found: "older than 6.0".into() };
        }
        if error.is_timeout() {
            return Fault::Silent { address: self.address.clone(), after: self.patience };
        }
        let credentials = error.kind() == ErrorKind::AuthenticationFailed;
        match refusal(&error) {
            Some(refusal) => refused(refusal),
            None if credentials => Fault::Credentials(Refusal { code: "WRONGPASS".into(), message: error.to_string() }),
            None => Fault::Unreachable { address: self.address.clone(), source: Arc::new(error) },
        }
    }

    fn store_fault(&self, error: StoreError) -> Fault {
        match error {
            StoreError::Refused(refusal) => refused(refusal),
            StoreError::NotSent(source) | StoreError::Unknown(source) => {
                Fault::Unreachable { address: self.address.clone(), source }
            }
            StoreError::Closed => Disconnected.into(),
        }
    }
}

fn refused(refusal: Refusal) -> Fault {
    match refusal.code.as_str() {
        "READONLY" => Fault::ReadOnly,
        "NOAUTH" | "WRONGPASS" => Fault::Credentials(refusal),
        // Redis before 7.0 takes `#!lua` for a syntax error.
        _ if refusal.message.contains("unexpected symbol near '#'") => Fault::TooOld { found: "older than 7.0".into() },
        _ => Fault::Refused(refusal),
    }
}

/// The server's own error, as against one of the connection.
fn refusal(error: &RedisError) -> Option<Refusal> {
    let code = error.code().or_else(|| (error.kind() == ErrorKind::AuthenticationFailed).then_some("WRONGPASS"))?;
    Some(Refusal { code: code.to_owned(), message: error.detail().unwrap_or_default().to_owned() })
}

fn hash(script: &Script) -> String {
    redis::Script::new(&script.source).get_hash().to_owned()
}

fn command(verb: &str, script: &str, call: Call<'_>) -> redis::Cmd {
    let keys: usize = call.keys.iter().map(|key| key.len()).sum();
    let args: usize = call.args.iter().map(Arg::len).sum();
    // Made once: grown argument by argument it cost more than all else that a call does here.
    let mut command = redis::Cmd::with_capacity(4 + call.keys.len() + call.args.len(), 40 + script.len() + keys + args);
    command.arg(verb).arg(script).arg(call.keys.len()).arg(call.keys).arg(call.request);
    for arg in call.args {
        match arg {
            Arg::Text(text) => command.arg(text),
            Arg::Int(number) => command.arg(number),
        };
    }
    command
}

fn fields(value: Value) -> Result<Vec<Field>, Malformed> {
    let Value::Array(values) = value else {
        return Err(Malformed(format!("{value:?} in place of an array")));
    };
    let field = |value| match value {
        Value::Int(number) => Ok(Field::Int(number)),
        Value::BulkString(bytes) => Ok(Field::Text(bytes)),
        Value::SimpleString(text) => Ok(Field::Text(text.into_bytes())),
        Value::Okay => Ok(Field::Text(b"OK".to_vec())),
        other => Err(Malformed(format!("{other:?} inside an array"))),
    };
    values.into_iter().map(field).collect()
}

/// Runs inside the connection's driver: hands a message on, or marks the connection dead.
fn receiver(shared: Weak<Shared>, dead: CancellationToken) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync {
    move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => dead.cancel(),
            PushKind::Message => {
                let listener = shared.upgrade().and_then(|shared| shared.link.listener());
                if let (Some(listener), Some(Value::BulkString(payload))) = (listener, push.data.get(1)) {
                    listener.pushed(payload);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Owns the connection until the store is closed.
async fn supervise(shared: Arc<Shared>, first: Connection) {
    let stop = shared.link.stop.clone();
    stop.run_until_cancelled(async {
        let (mut connection, mut backoff) = (first, Backoff::new());
        loop {
            let up = now();
            until_dead(&shared, &connection).await;
            connection.dead.cancel();
            shared.link.offer(State::Down(Arc::new(Disconnected)));
            tracing::debug!(address = %shared.address, "the connection is down");
            backoff.after_a_life_of(now().saturating_duration_since(up));
            connection = reconnect(&shared, &mut backoff).await;
            shared.link.resume(&connection, shared.patience).await;
        }
    })
    .await;
}

/// Nothing, then 20 ms, doubling to 2 s, each with jitter, so that a thousand clients do not come
/// back in step.
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { next: Duration::ZERO }
    }

    /// A server that accepts and then closes, or answers nonsense, is not to be hammered; but one
    /// that can be reached is worth asking again soon.
    fn after_a_life_of(&mut self, life: Duration) {
        self.next = if life > YOUNG { Duration::ZERO } else { self.next.min(YOUNG_BACKOFF) };
    }

    async fn pause(&mut self) {
        sleep(self.next.mul_f64(0.5 + jitter())).await;
        self.next = (2 * self.next).clamp(Duration::from_millis(20), LONGEST_BACKOFF);
    }
}

/// A connection is dead when its driver says so, when somebody distrusts it, or when two pings
/// in a row have no answer: a frozen server or a cut cable makes no error by itself.
async fn until_dead(shared: &Shared, connection: &Connection) {
    let mut missed = 0;
    while missed < 2 {
        tokio::select! {
            () = connection.dead.cancelled() => return,
            () = sleep(shared.patience) => {}
        }
        if shared.silent_for() < shared.patience {
            missed = 0;
            continue;
        }
        let ping = redis::cmd("PING");
        match timeout(shared.patience, shared.send(&mut connection.clone(), &ping)).await {
            // A refusal is an answer too: a user may be allowed no PING.
            Ok(Ok(_) | Err(StoreError::Refused(_))) => missed = 0,
            _ => missed += 1,
        }
    }
}

/// Tries for ever.
async fn reconnect(shared: &Arc<Shared>, backoff: &mut Backoff) -> Connection {
    loop {
        backoff.pause().await;
        match shared.establish().await {
            Ok(connection) => return connection,
            Err(fault) => {
                tracing::warn!(address = %shared.address, %fault, "cannot reconnect yet");
                shared.link.offer(State::Down(Arc::new(fault)));
            }
        }
    }
}

/// A number from 0 to 1; a fresh uuid is random enough to spread reconnects.
fn jitter() -> f64 {
    f64::from(u16::from_ne_bytes([uuid::Uuid::new_v4().as_bytes()[0], uuid::Uuid::new_v4().as_bytes()[0]]))
        / f64::from(u16::MAX)
}

fn connection_info(url: &str) -> Result<ConnectionInfo, Fault> {
    // redis would call it a bad URL, and not say what to do.
    #[cfg(not(feature = "tls"))]
    if url.starts_with("rediss://") || url.starts_with("valkeys://") {
        return Err(Fault::NoTls);
    }
    let info = url.into_connection_info().map_err(|error| Fault::Url(error.to_string()))?;
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

#[cfg(feature = "tls")]
fn open(info: ConnectionInfo, root_certificate: Option<Vec<u8>>) -> Result<redis::Client, Fault> {
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return redis::Client::open(info).map_err(|error| Fault::Url(error.to_string()));
    }
    // Without a provider redis panics at connect. An application that chose one keeps its own.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: root_certificate };
    redis::Client::build_with_tls(info, certificates).map_err(|error| Fault::Url(error.to_string()))
}

#[cfg(not(feature = "tls"))]
fn open(info: ConnectionInfo, _root_certificate: Option<Vec<u8>>) -> Result<redis::Client, Fault> {
    redis::Client::open(info).map_err(|error| Fault::Url(error.to_string()))
}

/// Valkey names a redis_version too, 7.2.4 for all of its own.
fn check_version(info: &str) -> Result<(), Fault> {
    let Some(found) = info.lines().find_map(|line| line.strip_prefix("redis_version:")) else {
        return Ok(());
    };
    let mut parts = found.trim().split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST { Ok(()) } else { Err(Fault::TooOld { found: found.trim().to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["redis_version:7.0.15", "redis_version:10.1.0\r\nrest", "x:1\r\nredis_version:7.2.4\r\n", ""] {
            assert!(check_version(good).is_ok(), "{good:?}");
        }
        for old in ["redis_version:6.2.14", "redis_version:2.8", "redis_version:6.9"] {
            assert!(matches!(check_version(old), Err(Fault::TooOld { .. })), "{old:?}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_by_name() {
        assert!(matches!(connection_info("rediss://127.0.0.1:1/"), Err(Fault::NoTls)));
    }

    #[test]
    fn every_connection_sends_at_once_and_speaks_resp3() {
        let info = connection_info("redis://127.0.0.1:1/?protocol=resp2").unwrap();
        assert!(info.tcp_settings().nodelay());
        assert_eq!(info.redis_settings().protocol(), ProtocolVersion::RESP3);
    }
}
