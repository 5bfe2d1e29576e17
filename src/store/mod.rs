//! The only door to the server: one typed function for each script, over whatever runs them.
//!
//! Nothing here knows who waits or why. It sends, tells answers from errors, and reads the
//! server's clock from every reply.

#[cfg(feature = "embedded")]
pub(crate) mod embedded;
pub(crate) mod keys;
pub(crate) mod link;
pub(crate) mod redis;
pub(crate) mod reply;
pub(crate) mod script;

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use keys::Keys;
use reply::{Acquired, Decode, Field, Fields, ForceUnlocked, Inspected, Left, Malformed, Polled, Released, Renewed};
use script::Script;

/// A cause that several waiting tasks may share.
pub(crate) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// The server's refusal of a request: it ran nothing and changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The first word of the server's error, such as `WRONGTYPE`, `NOPERM` or `OOM`.
    pub code: String,
    /// The server's own words.
    pub message: String,
}

impl Refusal {
    /// Whether it may pass by itself: a failover, a start, a script of somebody else.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self.code.as_str(),
            "LOADING" | "READONLY" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOREPLICAS"
        )
    }

    /// Whether asking again is of no use until somebody mends something.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.code.as_str(), "WRONGTYPE" | "NOPERM" | "NOAUTH" | "WRONGPASS")
    }

    fn advice(&self) -> &'static str {
        match self.code.as_str() {
            "WRONGTYPE" => "delete that key, or use another lock name or key prefix",
            "NOPERM" => "give the user the keys and channels of the prefix and the commands that README.md lists",
            "NOAUTH" | "WRONGPASS" => "put the right user and password into the URL",
            "OOM" => "free memory on the server, and use maxmemory-policy noeviction",
            "READONLY" => "connect to the primary: this server is a replica",
            "MISCONF" => "the server cannot persist: see its log",
            "NOREPLICAS" => "min-replicas-to-write is not met: see the server's replicas",
            "LOADING" | "MASTERDOWN" | "BUSY" => "the server is not ready: try again",
            _ => "nothing was changed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.code, self.message, self.advice())
    }
}

impl std::error::Error for Refusal {}

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("there is no connection, so nothing was sent")]
    NotSent(#[source] Source),
    #[error("sent, but no answer came: it may have run, or run later")]
    Unknown(#[source] Source),
    #[error("the server refused: {0}")]
    Refused(Refusal),
    #[error("the client is closed")]
    Closed,
}

/// What a store reports by itself.
pub(crate) trait Listener: Send + Sync + 'static {
    /// A message to this client's channel. It runs inside the connection's driver: no blocking.
    fn pushed(&self, payload: &[u8]);
    /// A new connection is up: ask again whatever may have been missed, before anybody else is
    /// served.
    fn resumed(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// One argument of a script.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Int(i64),
}

impl Arg<'_> {
    /// In bytes as text, or a little more.
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Int(_) => 20,
        }
    }
}

/// One run of a script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: &'a [&'a str],
    /// The first argument of every script, which its answer echoes.
    pub(crate) request: u64,
    pub(crate) args: &'a [Arg<'a>],
}

/// Runs a client's background tasks otherwise than plainly: a simulator holds them up and ends them.
pub(crate) type Host = Arc<dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync>;

/// What runs the scripts.
pub(crate) trait Store: Send + Sync + 'static {
    /// Whether a call would be sent at once. An urgent call may also go while the connection
    /// is being resumed.
    fn is_ready(&self, urgent: bool) -> bool;
    /// Resolves when [`is_ready`](Self::is_ready) holds, or with `Closed`.
    fn ready(&self, urgent: bool) -> BoxFuture<'_, Result<(), StoreError>>;
    /// Why there is no connection.
    fn fault(&self) -> Source;
    fn run<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Vec<Field>, StoreError>>;
    /// Drops the connection: it gave an answer that belongs to somebody else.
    fn distrust(&self);
    fn listen(&self, listener: Weak<dyn Listener>);
    fn host(&self) -> Option<Host> {
        None
    }
    fn close(&self);
}

/// The server's clock as seen from here.
#[derive(Debug)]
pub(crate) struct ServerClock {
    base: Instant,
    offset: AtomicI64,
}

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self { base: now(), offset: AtomicI64::new(0) }
    }

    /// Learns from the TIME of a reply whose request was sent at `sent`. The server read its clock
    /// later than that, so the estimate is ahead of the truth by up to the time that the request
    /// took: nothing that is sent in time is ever refused as late.
    pub(crate) fn learn(&self, sent: Instant, server_ms: i64) {
        self.offset.store(server_ms - self.local(sent), Ordering::Relaxed);
    }

    pub(crate) fn at(&self, instant: Instant) -> i64 {
        self.local(instant) + self.offset.load(Ordering::Relaxed)
    }

    fn local(&self, instant: Instant) -> i64 {
        millis(instant.saturating_duration_since(self.base))
    }
}

/// The clock of the runtime: tokio's, so that paused time pauses this library too.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// An answer, with the instant before its request was sent (R5).
#[derive(Debug, Clone)]
pub(crate) struct Answer<T> {
    pub(crate) sent: Instant,
    pub(crate) body: T,
}

/// What the scripts have to know of this client, fixed for its life.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) prefix: String,
    pub(crate) client: String,
    pub(crate) label: String,
    pub(crate) waiter_ttl: Duration,
    pub(crate) grant_ttl: Duration,
    pub(crate) token_ttl: Duration,
    pub(crate) max_waiters: u32,
    pub(crate) operation_timeout: Duration,
}

/// What acquire.lua is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) owner: &'a str,
    pub(crate) seq: u64,
    /// The hold to re-enter: its token and how many holds there are.
    pub(crate) nested: Option<(u64, u32)>,
    pub(crate) wait: bool,
    pub(crate) lease: Duration,
}

/// What ends an attempt or a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending<'a> {
    pub(crate) owner: &'a str,
    pub(crate) seq: u64,
    /// The attempt itself, or the one that began the hold.
    pub(crate) attempt: u64,
    /// Server time until which an earlier copy of a request may still be served; 0: no copy.
    pub(crate) last_ms: i64,
}

/// The typed functions.
pub(crate) struct Scripts {
    store: Box<dyn Store>,
    clock: Arc<ServerClock>,
    terms: Terms,
    channel: String,
    requests: AtomicU64,
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Scripts {
    pub(crate) fn new(store: Box<dyn Store>, clock: Arc<ServerClock>, terms: Terms) -> Self {
        let channel = keys::channel_prefix(&terms.prefix);
        Self { store, clock, terms, channel, requests: AtomicU64::new(1) }
    }

    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.store.listen(listener);
    }

    pub(crate) fn host(&self) -> Option<Host> {
        self.store.host()
    }

    pub(crate) fn close(&self) {
        self.store.close();
    }

    /// Server time up to which a request that is sent now may be served (R2).
    pub(crate) fn not_after(&self) -> i64 {
        self.clock.at(now()) + millis(self.terms.operation_timeout)
    }

    /// Also returns `not_after`, past which no copy of this request is served.
    pub(crate) async fn acquire(
        &self,
        keys: &Keys,
        ask: Ask<'_>,
        patience: Duration,
        last_ms: &mut i64,
    ) -> Result<Answer<Acquired>, StoreError> {
        let deadline = now() + patience;
        self.ready(false, deadline).await?;
        let not_after = self.not_after();
        let (token, holds) = ask.nested.map_or((String::new(), 0), |(token, holds)| (token.to_string(), holds));
        let left = keys.left(ask.owner);
        let terms = &self.terms;
        let args = [
            Arg::Int(not_after),
            Arg::Text(ask.owner),
            int(ask.seq),
            int(u64::from(holds)),
            Arg::Text(&token),
            Arg::Int(ask.wait.into()),
            Arg::Int(millis(ask.lease)),
            Arg::Int(millis(terms.waiter_ttl)),
            Arg::Int(terms.max_waiters.into()),
            Arg::Int(millis(terms.grant_ttl)),
            Arg::Int(millis(terms.token_ttl)),
            Arg::Text(&self.channel),
            Arg::Text(&terms.label),
        ];
        let all = [&*keys.lock, &keys.queue, &keys.deadlines, &keys.tokens, &left];
        // Before the first await that may lose the answer: from here on a copy may be under way.
        let earlier = *last_ms;
        *last_ms = earlier.max(not_after);
        let outcome = self.run(&script::ACQUIRE, &all, &args, deadline).await;
        if !matches!(outcome, Err(StoreError::Unknown(_))) {
            *last_ms = earlier;
        }
        outcome
    }

    pub(crate) async fn poll(
        &self,
        keys: &Keys,
        tickets: &[(String, Duration)],
        patience: Duration,
    ) -> Result<Answer<Polled>, StoreError> {
        let deadline = now() + patience;
        self.ready(true, deadline).await?;
        let mut args = Vec::with_capacity(5 + 2 * tickets.len());
        args.push(Arg::Int(millis(self.terms.waiter_ttl)));
        args.extend(self.grant_args());
        args.push(Arg::Text(&self.terms.client));
        for (ticket, lease) in tickets {
            args.push(Arg::Text(ticket));
            args.push(Arg::Int(millis(*lease)));
        }
        let all = [&*keys.lock, &keys.queue, &keys.deadlines, &keys.tokens];
        let answer: Answer<Polled> = self.run(&script::POLL, &all, &args, deadline).await?;
        if answer.body.places.keys().all(|index| *index < tickets.len()) {
            return Ok(answer);
        }
        self.store.distrust();
        Err(malformed("places for other tickets than asked"))
    }

    pub(crate) async fn leave(
        &self,
        keys: &Keys,
        ending: Ending<'_>,
        patience: Duration,
    ) -> Result<Answer<Left>, StoreError> {
        let deadline = now() + patience;
        self.ready(true, deadline).await?;
        let left = keys.left(ending.owner);
        let place = self.place(&ending);
        let [grant_ttl, token_ttl, channel] = self.grant_args();
        let args = [
            Arg::Int(ending.last_ms),
            Arg::Text(ending.owner),
            int(ending.seq),
            Arg::Text(&place),
            grant_ttl,
            token_ttl,
            channel,
        ];
        let all = [&*keys.lock, &keys.queue, &keys.deadlines, &keys.tokens, &left];
        self.run(&script::LEAVE, &all, &args, deadline).await
    }

    /// `only`: the attempt whose lease may also get shorter, see renew.lua.
    pub(crate) async fn renew(
        &self,
        keys: &Keys,
        owner: &str,
        token: u64,
        lease: Duration,
        only: Option<u64>,
        patience: Duration,
    ) -> Result<Answer<Renewed>, StoreError> {
        let deadline = now() + patience;
        self.ready(true, deadline).await?;
        let token = token.to_string();
        let args = [Arg::Text(owner), Arg::Text(&token), Arg::Int(millis(lease)), int(only.unwrap_or(0))];
        self.run(&script::RENEW, &[&keys.lock], &args, deadline).await
    }

    pub(crate) async fn release(
        &self,
        keys: &Keys,
        ending: Ending<'_>,
        token: u64,
        holds: u32,
        patience: Duration,
    ) -> Result<Answer<Released>, StoreError> {
        let deadline = now() + patience;
        self.ready(true, deadline).await?;
        let token = token.to_string();
        let [grant_ttl, token_ttl, channel] = self.grant_args();
        let args = [
            Arg::Int(ending.last_ms),
            Arg::Text(ending.owner),
            int(ending.seq),
            int(u64::from(holds)),
            Arg::Text(&token),
            grant_ttl,
            token_ttl,
            channel,
        ];
        let usual = [&*keys.lock, &keys.queue, &keys.deadlines, &keys.tokens];
        if ending.last_ms == 0 {
            return self.run(&script::RELEASE, &usual, &args, deadline).await;
        }
        // A late copy of the acquire may still queue, or take the lock: it finds a tombstone (R3).
        let (left, place) = (keys.left(ending.owner), self.place(&ending));
        let all = [&usual[..], &[&left]].concat();
        self.run(&script::RELEASE, &all, &[&args[..], &[Arg::Text(&place)]].concat(), deadline).await
    }

    pub(crate) async fn force_unlock(
        &self,
        keys: &Keys,
        patience: Duration,
    ) -> Result<Answer<ForceUnlocked>, StoreError> {
        let deadline = now() + patience;
        self.ready(false, deadline).await?;
        let [grant_ttl, token_ttl, channel] = self.grant_args();
        let args = [Arg::Int(self.not_after()), grant_ttl, token_ttl, channel, Arg::Text(&self.terms.client)];
        let all = [&*keys.lock, &keys.queue, &keys.deadlines, &keys.tokens];
        self.run(&script::FORCE_UNLOCK, &all, &args, deadline).await
    }

    pub(crate) async fn inspect(
        &self,
        keys: &Keys,
        most: u32,
        patience: Duration,
    ) -> Result<Answer<Inspected>, StoreError> {
        let deadline = now() + patience;
        self.ready(false, deadline).await?;
        let all = [&*keys.lock, &keys.queue, &keys.deadlines];
        self.run(&script::INSPECT, &all, &[Arg::Int(most.into())], deadline).await
    }

    /// What an attempt puts into the queue.
    fn place(&self, ending: &Ending<'_>) -> String {
        format!("{}/{}", keys::ticket(ending.owner, ending.attempt), self.terms.label)
    }

    fn grant_args(&self) -> [Arg<'_>; 3] {
        [Arg::Int(millis(self.terms.grant_ttl)), Arg::Int(millis(self.terms.token_ttl)), Arg::Text(&self.channel)]
    }

    async fn ready(&self, urgent: bool, deadline: Instant) -> Result<(), StoreError> {
        if self.store.is_ready(urgent) {
            return Ok(());
        }
        match tokio::time::timeout_at(deadline.into(), self.store.ready(urgent)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(StoreError::NotSent(self.store.fault())),
        }
    }

    /// Sends, waits, checks that the answer is to this very request, and learns the time.
    async fn run<T: Decode>(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[Arg<'_>],
        deadline: Instant,
    ) -> Result<Answer<T>, StoreError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let sent = now();
        let call = Call { script, keys, request, args };
        let fields = match tokio::time::timeout_at(deadline.into(), self.store.run(call)).await {
            Ok(outcome) => outcome?,
            Err(elapsed) => return Err(StoreError::Unknown(Arc::new(elapsed))),
        };
        self.open(request, sent, fields).map_err(|error| {
            self.store.distrust();
            StoreError::Unknown(Arc::new(error))
        })
    }

    fn open<T: Decode>(&self, request: u64, sent: Instant, fields: Vec<Field>) -> Result<Answer<T>, Malformed> {
        let mut fields = Fields::new(fields);
        let status = fields.text()?;
        let echo = fields.int()?;
        if u64::try_from(echo) != Ok(request) {
            return Err(Malformed(format!("the answer to request {echo} in place of {request}")));
        }
        let at = fields.int()?;
        // 0: the script did not look at the clock.
        if at > 0 {
            self.clock.learn(sent, at);
        }
        Ok(Answer { sent, body: T::decode(&status, &mut fields)? })
    }
}

fn int(number: u64) -> Arg<'static> {
    Arg::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn malformed(what: &str) -> StoreError {
    StoreError::Unknown(Arc::new(Malformed(what.to_owned())))
}
