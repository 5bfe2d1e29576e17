//! From options to a client. The constructors of [`LockClient`] are here too, so that the client does
//! not need to know its builder.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::backend::Backend;
use crate::client::LockClient;
use crate::driver::client::{Client, Driver};
use crate::driver::context::Context;
#[cfg(feature = "embedded")]
use crate::driver::owner::Owner;
#[cfg(feature = "embedded")]
use crate::embedded::EmbeddedServer;
use crate::error::ConnectError;
use crate::metrics::Metrics;
use crate::quorum::context::Quorum;
use crate::quorum::majority;
use crate::quorum::nodes::Nodes;
use crate::servers::{IntoConnectOptions, IntoServers};
#[cfg(feature = "_simulation")]
use crate::store::cluster::{router::Router, table::Table};
use crate::store::connect_options::{ConnectOptions, Topology};
use crate::store::dial::Access;
#[cfg(feature = "embedded")]
use crate::store::embedded::EmbeddedNode;
#[cfg(feature = "_simulation")]
use crate::store::embedded::EmbeddedWire;
#[cfg(feature = "embedded")]
use crate::store::error::Fault;
use crate::store::location::Location;
use crate::store::node::network::{NetworkNode, Purpose};
use crate::store::options::{Options, OptionsError};
use crate::store::runner::Runner;
use crate::store::{ServedKeys, SpawnHook, Store, cluster, runtime, sentinel};

/// The default of `clock_difference`.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
/// Fewer servers cannot survive the loss of one.
const FEWEST: usize = 3;

impl LockClient {
    /// Connects to one server, or to a majority of several, with the default options; see
    /// [`LockClientBuilder::connect`]. Takes at most twice the operation time-out, three times for Sentinels, clusters
    /// and several servers, and longer if it has to look up a host name.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use fairlock::LockClient;
    ///
    /// let one = LockClient::connect("redis://127.0.0.1/").await?;
    /// let sentinels = LockClient::connect("redis-sentinel://s1,s2,s3/mymaster").await?;
    /// let cluster = LockClient::connect("redis+cluster://n1,n2").await?;
    /// let majority = LockClient::connect(["redis://a/", "redis://b/", "redis://c/"]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] describes the problem with the URL, the server or the credentials.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(servers: impl IntoServers) -> Result<Self, ConnectError> {
        Self::builder().connect(servers).await
    }

    /// Creates a client with its own server inside this process, for a first look and for tests. It runs the same
    /// scripts and keeps the same promises, but only within this process.
    ///
    /// For several clients of one such server, see [`LockClientBuilder::embedded`].
    ///
    /// ```
    /// use fairlock::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::embedded()?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert!(client.lock("orders:42").try_lock().await?.is_busy());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::NoRuntime`] outside of a tokio runtime.
    #[cfg(feature = "embedded")]
    #[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
    pub fn embedded() -> Result<Self, ConnectError> {
        Self::builder().embedded(&EmbeddedServer::new())
    }

    /// Returns a builder, to change options before connecting.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use std::time::Duration;
    ///
    /// let builder = fairlock::LockClient::builder().lease(Duration::from_secs(10));
    /// let client = builder.connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder {
            options: Options::default(),
            waiter_ttl: None,
            clock_difference: CLOCK_DIFFERENCE,
            without_strict_restart: false,
            root_certificate: None,
            runtime: None,
            goes_on: false,
        }
    }
}

/// Options of a [`LockClient`]. [`connect`](Self::connect) checks each of them, and whether they fit together, and
/// makes the client. Times count in whole milliseconds.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `lease` | 30 s | how long the server keeps a lock without a renewal; the client renews it every third of that |
/// | `operation_timeout` | 2 s | how long one request may take |
/// | `waiter_ttl` | 7 s, or three `poll_interval`, or `grant_ttl` and two `poll_interval`, whichever is longest | how long a client's waiters keep their places while the server receives nothing from the client |
/// | `poll_interval` | 2 s | how often a waiting client polls, in case it missed a message |
/// | `grant_ttl` | 3 s | how long a lock handed to a waiter of this client is valid at first, at least |
/// | `token_ttl` | 24 h | how long the server remembers the last token of an unused name, at least |
/// | `max_waiters` | 65,536 | how many may wait for one name; a waiter whose process died counts until its `waiter_ttl` has expired, and for one more `waiter_ttl` if the server received nothing from any client in the meantime |
/// | `strict_restart` | off; on several servers the lease | how long a restarted server grants nothing, at least |
/// | `clock_difference` | 1 s | on several servers: by how much the clock of each may be off |
/// | `server_timeout` | `operation_timeout` / 4 | on several servers: how long one may take before the client proceeds without it |
/// | `max_hold` | off | the client stops renewing a hold after this long, so a forgotten guard cannot keep the lock forever |
/// | `label` | host:pid | the text that `status()` shows next to this client's holds and waits |
/// | `prefix` | `fairlock` | the beginning of all keys |
///
/// Clients with different options work together. The longest `waiter_ttl` then sets the bound of P6, and the waiter's
/// `poll_interval` the bound of P7 if it is longer than the holder's lease.
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// use fairlock::LockClient;
/// use std::time::Duration;
///
/// let client = LockClient::builder()
///     .lease(Duration::from_secs(10))
///     .label("billing worker 7")
///     .connect("redis://127.0.0.1/")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    options: Options,
    /// `None`: derived from the poll interval and `grant_ttl`.
    waiter_ttl: Option<Duration>,
    /// For several servers. Not in `options`, since a single server does not use it.
    clock_difference: Duration,
    /// For several servers, which have it on by default.
    without_strict_restart: bool,
    root_certificate: Option<Vec<u8>>,
    runtime: Option<Handle>,
    /// Whether the client keeps trying if its first attempt to connect fails.
    goes_on: bool,
}

impl LockClientBuilder {
    /// How long the server keeps a lock without a renewal, and so how long others wait when a holder dies. Defaults to
    /// 30 s. The client renews it every third of that. Over a slow link, choose a lease of many round trips: a lock is
    /// valid for the lease less the time that its answer took.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().lease(Duration::from_secs(10));
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long one request may take, including the wait for a connection. Defaults to 2 s. Connecting takes three
    /// round trips or more within one such time: over a slow link choose at least four, or the client never reconnects.
    /// The look-up of a host name may take as long again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().operation_timeout(Duration::from_secs(5));
    /// ```
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.options.operation_timeout = timeout;
        self
    }

    /// How long the waiters of this client keep their places while the server receives nothing from it: at least three
    /// times [`poll_interval`](Self::poll_interval), and at least [`grant_ttl`](Self::grant_ttl). Defaults to the
    /// longest of 7 s, three `poll_interval`, and `grant_ttl` plus two `poll_interval`. If it is shorter than
    /// `grant_ttl` plus two `poll_interval`, a hand-over may cost its waiter one more round trip.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().waiter_ttl(Duration::from_secs(10));
    /// ```
    pub fn waiter_ttl(mut self, ttl: Duration) -> Self {
        self.waiter_ttl = Some(ttl);
        self
    }

    /// How often a waiting client polls the server, in case it missed a message. Defaults to 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().poll_interval(Duration::from_secs(1));
    /// ```
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.options.poll_interval = interval;
        self
    }

    /// How long a lock handed to a waiter of this client is valid at least, less 1 % and 2 ms, unless its lease is
    /// shorter. Defaults to 3 s.
    ///
    /// The first renewal, 50 ms and a round trip later, gives the lock its whole lease. Until then the server keeps the
    /// lock for `grant_ttl` plus a [`poll_interval`](Self::poll_interval), since the waiter counts from its last poll.
    /// If the answer to that poll is late, the waiter asks once more.
    ///
    /// Make it longer than two round trips: a waiter that missed its message finds the lock with its next poll, and
    /// needs one more request to confirm it. If `grant_ttl` is too short for that, the lock goes to the next waiter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().grant_ttl(Duration::from_secs(4));
    /// ```
    pub fn grant_ttl(mut self, ttl: Duration) -> Self {
        self.options.grant_ttl = ttl;
        self
    }

    /// How long the server remembers the last token of an unused name; it may remember it for up to 100 s longer.
    /// Defaults to 24 h.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().token_ttl(Duration::from_secs(3600));
    /// ```
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.options.token_ttl = ttl;
        self
    }

    /// How many may wait for one name. Above that, `lock` fails with
    /// [`LockError::QueueFull`](crate::LockError::QueueFull). Defaults to 65,536.
    ///
    /// ```
    /// let builder = fairlock::LockClient::builder().max_waiters(1000);
    /// ```
    pub fn max_waiters(mut self, waiters: u32) -> Self {
        self.options.max_waiters = waiters;
        self
    }

    /// Stops renewing a hold after this long, so a forgotten guard cannot keep the lock forever. Defaults to no limit.
    ///
    /// It never ends a hold before the hold's first lease has ended. The first lease of a hold that had to wait is its
    /// grant, which ends a [`grant_ttl`](Self::grant_ttl) plus a [`poll_interval`](Self::poll_interval) after the last
    /// request of the wait. Neither nested locks nor [`extend`](crate::LockGuard::extend) prolong a hold beyond this
    /// limit.
    ///
    /// For a set of locks, the time counts from the moment when the call holds all of them, or from the first guard
    /// that its owner gets for one of them before that. The limit applies to guards only, neither to the lease of a
    /// [detach](crate::LockGuard::detach) nor to the lease that [`LockClient::extend`] sets for a handle. Attaching a
    /// handle starts the time again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().max_hold(Duration::from_secs(3600));
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.max_hold = Some(longest);
        self
    }

    /// Keeps P1 over a restart: a server that has restarted, was promoted, or lost its data grants no lock until every
    /// lock that it may have forgotten has ended. Off by default on one server: there, after a restart without data,
    /// the server may grant a lock whose holder still relies on the rest of its lease. On by default on several
    /// servers, with the lease; a restarted server then does not count until it grants again.
    ///
    /// `longest_lease` is the longest lease that any client of this prefix asks for, here and in
    /// [`with_lease`](crate::FairLock::with_lease). It must be at least the longest [`grant_ttl`](Self::grant_ttl) plus
    /// [`poll_interval`](Self::poll_interval), the first lease of a waiter.
    ///
    /// # What it costs
    /// - Every restart, every failover and every `FLUSHALL` stops all grants for `longest_lease` + 1 s, even if no data
    ///   was lost. With several servers, each stops for twice the [`clock_difference`](Self::clock_difference) more.
    ///   The very first client at a new server waits as long.
    /// - During that time waiters queue and keep their order (if the server lost their queue, they queue again, in any
    ///   order). [`try_lock`](crate::FairLock::try_lock) returns `Busy`, or on several servers
    ///   [`Unreachable`](crate::LockError::Unreachable). The server renews, re-enters and releases held locks as usual.
    ///   [`LockStatus::frozen_for`](crate::LockStatus::frozen_for) and a warning in the log show the remaining time.
    /// - Two round trips more for each connection; one more key for each request that grants or releases; the right to
    ///   `INFO` (`+info`). A key `<prefix>:{boot}` stays on the server.
    ///
    /// # What it needs
    /// - All clients of the prefix must set it, to the same time. A client without it takes a lock that is frozen for
    ///   the others.
    /// - A single server, several servers, or Sentinel. After a failover, a primary that is cut off but alive may keep
    ///   granting for as long as clients reach it; `min-replicas-to-write` prevents that. If its `min-replicas-max-lag`
    ///   is above 1 s, add the rest to `longest_lease`.
    /// - Do not use a [handle](crate::HoldHandle) again after it was attached, released or forced. On a server that
    ///   comes back with older data, such a handle may hold the lock once more.
    /// - Direct connections to the server. A proxy that keeps a client's connection but switches to another server
    ///   hides the restart. So does a manual `REPLICAOF`, there and back, for clients whose connections stay open.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lease = Duration::from_secs(10);
    /// let builder = fairlock::LockClient::builder().lease(lease).strict_restart(lease);
    /// ```
    pub fn strict_restart(mut self, longest_lease: Duration) -> Self {
        self.options.strict_restart = Some(longest_lease);
        self.without_strict_restart = false;
        self
    }

    /// Makes [`connect`](Self::connect) succeed even if a server is [not ready yet](ConnectError::may_pass): it is down
    /// or loading its data, it is full, a cluster lacks slots, or Sentinels do not know the service yet. For services
    /// that start without their servers, or together with them.
    ///
    /// The client keeps trying, as it does after losing a connection. Until it connects, `lock` waits, calls with a
    /// limit return [`Unreachable`](crate::LockError::Unreachable), and [`state`](LockClient::state) shows the reason
    /// (until the client knows a server of a cluster, only those errors have it).
    ///
    /// A permanent problem is still an error: a wrong password, a missing right, a certificate, options that do not
    /// fit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{ConnectionState, LockClient};
    ///
    /// let client = LockClient::builder().retry_on_initial_connect().connect("redis://127.0.0.1:1/").await?;
    /// assert_eq!(client.state().connection(), ConnectionState::Reconnecting);
    /// # Ok(()) }
    /// ```
    pub fn retry_on_initial_connect(mut self) -> Self {
        self.goes_on = true;
        self
    }

    /// Turns off [`strict_restart`](Self::strict_restart) on several servers, which have it on by default. For tests:
    /// two owners may hold a lock at once after a server comes back empty.
    ///
    /// ```
    /// let for_tests = fairlock::LockClient::builder().without_strict_restart();
    /// ```
    pub fn without_strict_restart(mut self) -> Self {
        self.options.strict_restart = None;
        self.without_strict_restart = true;
        self
    }

    /// How far the clock of each of several servers may be off the true time, while a server is down and until it
    /// grants again. Defaults to 1 s. Tokens come from these clocks; validity does not. A single server does not use
    /// it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().clock_difference(Duration::from_millis(200));
    /// ```
    pub fn clock_difference(mut self, difference: Duration) -> Self {
        self.clock_difference = difference;
        self
    }

    /// How long one of several servers may take to answer before the client proceeds without it. The client then skips
    /// that server until it answers. Must be longer than a round trip to the slowest server, and at most the operation
    /// time-out; defaults to a quarter of the operation time-out. With one server only the operation time-out counts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::LockClient::builder().server_timeout(Duration::from_millis(100));
    /// ```
    pub fn server_timeout(mut self, limit: Duration) -> Self {
        self.options.server_timeout = Some(limit);
        self
    }

    /// Free text that [`status`](crate::FairLock::status) shows next to this client's holds and waits. At most 256
    /// bytes. Defaults to host name and process id. The server's CLIENT LIST names the client's connection `fairlock:`
    /// and the label, with `_` for each space and each character that is not ASCII.
    ///
    /// ```
    /// let builder = fairlock::LockClient::builder().label("billing worker 7");
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// The prefix of all keys. Clients with different prefixes do not see each other's locks.
    /// Defaults to `fairlock`.
    ///
    /// ```
    /// let builder = fairlock::LockClient::builder().prefix("staging");
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// Distinguishes the locks of this client in the [metrics](crate::operating#metrics): `group` maps a name to the
    /// value of the label `lock`. By default the metrics lack this label, because the server that stores them keeps a
    /// series for each value, and there may be many names. So make few groups: after the first 1000, all others are
    /// `other`.
    ///
    /// The client calls `group` once for each [`LockClient::lock`]. If it panics, the group is `other`. Install the
    /// recorder before the client connects, as for all metrics.
    ///
    /// ```
    /// // `orders:42` and `orders:43` count together, as `orders`.
    /// let group = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    /// let builder = fairlock::LockClient::builder().metrics_group(group);
    /// ```
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics_group(mut self, group: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.options.metrics_options.set_group_of(group);
        self
    }

    /// The runtime of the client's connection and background tasks. Defaults to the runtime that calls
    /// [`connect`](Self::connect).
    ///
    /// When that runtime ends, the client becomes useless: calls fail with
    /// [`LockError::RuntimeGone`](crate::LockError::RuntimeGone), and its holds end with their leases. So a client that
    /// serves several runtimes needs a runtime that outlives them, for example a `static` client in tests, where each
    /// `#[tokio::test]` has its own runtime:
    ///
    /// ```no_run
    /// use std::sync::LazyLock;
    ///
    /// use fairlock::LockClient;
    /// use tokio::runtime::Runtime;
    /// use tokio::sync::OnceCell;
    ///
    /// async fn client() -> &'static LockClient {
    ///     static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
    ///     static CLIENT: OnceCell<LockClient> = OnceCell::const_new();
    ///     let connect = || async {
    ///         let builder = LockClient::builder().runtime(RUNTIME.handle().clone());
    ///         builder.connect("redis://127.0.0.1/").await.expect("the server is there")
    ///     };
    ///     CLIENT.get_or_init(connect).await
    /// }
    ///
    /// // #[tokio::test]
    /// async fn a_test() {
    ///     let guard = client().await.lock("orders:42").lock().await.unwrap();
    ///     guard.unlock().await.unwrap();
    /// }
    /// ```
    ///
    /// The runtime must be driven all the time: a multi-thread runtime always is, a current-thread runtime only within
    /// its `block_on`. Callers may be in other tokio runtimes: each call uses the timers of the runtime that polls it
    /// first, and must stay there. That runtime needs `enable_time`; without it the call panics, as any timer of tokio
    /// does.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The certificate authority for `rediss://`, and for a redis client or description that uses TLS, as PEM. Defaults
    /// to the machine's authorities. Connecting fails if nothing would use the certificate: with another URL, and with
    /// [`connect_with`](Self::connect_with), which has [`ConnectOptions::root_certificate`].
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// let builder = fairlock::LockClient::builder().root_certificate(std::fs::read("ca.pem")?);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// Checks the options and connects to a server, to the primary that Sentinels name, to a cluster, or to a majority
    /// of several servers: see [`ConnectOptions::from_url`] for the URLs, and [`IntoServers`] for the other arguments,
    /// such as a [`redis::Client`].
    ///
    /// Takes at most twice the operation time-out for a single server, and three times for Sentinels, clusters and
    /// several servers; with a cluster half a second more for each master that does not answer. Looking up a host name
    /// takes at most one operation time-out more; with Sentinels and clusters two, since they may answer with host
    /// names too. After that the client keeps the connection alive, and follows a host name that moves to another
    /// server.
    ///
    /// # Several servers
    /// With three URLs or more, a hold needs a majority of the servers: see [`masters`](crate::masters). Each URL names
    /// one server, or the primary of a service that Sentinels watch. All clients of the same locks need the same
    /// servers in the same order, and the same [`strict_restart`](Self::strict_restart), which is on here and defaults
    /// to the lease. A minority of the servers may be out of reach or [not ready yet](ConnectError::may_pass); the
    /// client uses them as soon as they answer.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use fairlock::LockClient;
    ///
    /// let client = LockClient::builder().label("worker 7").connect("redis://127.0.0.1/").await?;
    /// let urls = ["redis://one.internal/", "redis://two.internal/", "redis://three.internal/"];
    /// let of_three = LockClient::builder().label("worker 7").connect(urls).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] names the option, address, credential or server at fault. The call has changed nothing on the
    /// server.
    ///
    /// With several servers it names [the wrong one](ConnectError::Server) if the error is permanent, even if a
    /// majority could serve, and returns [`ConnectError::NoQuorum`] if the client reaches too few. It refuses two URLs
    /// that lead to one server; if the user may not run INFO, it detects that only if the URLs are alike.
    /// [`ConnectError::ConnectionInfo`] names the part of a `redis::ConnectionInfo` that fairlock does not support.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(mut self, servers: impl IntoServers) -> Result<LockClient, ConnectError> {
        let mut servers = all_of(servers.each())?;
        for tls in servers.iter_mut().filter_map(|server| server.tls.as_mut()) {
            tls.fixed.root.clone_from(&self.root_certificate);
        }
        if servers.iter().any(|server| server.tls.is_some()) {
            self.root_certificate = None;
        }
        self.connect_to(servers).await
    }

    /// Checks the options and connects with more than a URL contains: a provider of credentials, a client certificate.
    /// See [`IntoConnectOptions`] for what else it takes.
    ///
    /// Takes as long as [`connect`](Self::connect), to one server or to several. After that the client keeps the
    /// connection alive, and uses the same options for each reconnect.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use fairlock::{ConnectOptions, LockClient};
    ///
    /// let options = ConnectOptions::unix("/run/redis/redis.sock").username("worker").password("secret");
    /// let client = LockClient::builder().label("worker 7").connect_with(options).await?;
    /// let servers = ["one.internal", "two.internal", "three.internal"].map(|host| ConnectOptions::tcp(host, 6379));
    /// let of_three = LockClient::builder().connect_with(servers).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The same as [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect_with(self, options: impl IntoConnectOptions) -> Result<LockClient, ConnectError> {
        self.connect_to(all_of(options.each())?).await
    }

    async fn connect_to(self, servers: Vec<ConnectOptions>) -> Result<LockClient, ConnectError> {
        let prepared = Prepared::new(self, servers.len(), true)?;
        if servers.len() > 1 && servers.iter().any(ConnectOptions::is_cluster) {
            return Err(OptionsError::QuorumOfClusters.into());
        }
        // All clients share the id, so that an owner has one name.
        let id = Uuid::new_v4().simple().to_string();
        let connecting = servers.into_iter().map(|server| prepared.connect(server, &id));
        let tried = join_all(connecting).await.into_iter().collect::<Result<_, _>>()?;
        prepared.client(tried)
    }

    /// Checks the options and connects to a server inside this process, or to several.
    ///
    /// ```
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = EmbeddedServer::new();
    /// let one = LockClient::builder().label("one").embedded(&server)?;
    /// let two = LockClient::builder().label("two").embedded(&server)?;
    /// let guard = one.lock("x").lock().await?;
    /// assert_eq!(two.lock("x").status().await?.holder.map(|holder| holder.label), Some("one".into()));
    /// # drop(guard);
    ///
    /// let servers = [EmbeddedServer::new(), EmbeddedServer::new(), EmbeddedServer::new()];
    /// let client = LockClient::builder().without_strict_restart().embedded(&servers)?;
    /// servers[1].shut_down();
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.servers(), [0, 2]);
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] names the option at fault, or reports that the runtime is missing or the server is [shut
    /// down](crate::EmbeddedServer::shut_down).
    #[cfg(feature = "embedded")]
    #[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
    pub fn embedded(self, servers: &(impl AsRef<[EmbeddedServer]> + ?Sized)) -> Result<LockClient, ConnectError> {
        let servers = servers.as_ref();
        let prepared = Prepared::new(self, servers.len(), false)?;
        let _entered = prepared.runtime.enter();
        let id = embedded_id();
        let tried = servers.iter().enumerate().map(|(number, server)| {
            let address =
                if servers.len() > 1 { format!("embedded server {number}") } else { "the embedded server".into() };
            let options = prepared.options_at(&server.0, address.clone(), &id);
            let (store, is_connected) = EmbeddedNode::connect_or_go_on(&server.0, &options, &id);
            let spawn_hook = Some(store.spawn_hook());
            let unreachable = ConnectError::Unreachable { address, cause: Arc::new(Fault::Disconnected) };
            let outcome = if is_connected { Ok(()) } else { Err(unreachable) };
            (prepared.start(Box::new(store), options, id.clone(), spawn_hook), outcome)
        });
        let tried = tried.collect();
        prepared.client(tried)
    }

    /// Like `embedded`, for a cluster of such servers, for simulators: `look` fills the table.
    #[cfg(feature = "_simulation")]
    pub(crate) fn embedded_cluster(
        self,
        nodes: &[EmbeddedServer],
        look: impl FnOnce(&Table<EmbeddedWire>),
    ) -> Result<(LockClient, Arc<Table<EmbeddedWire>>), ConnectError> {
        let prepared = Prepared::new(self, 1, false)?;
        let _entered = prepared.runtime.enter();
        let id = embedded_id();
        let address = "an embedded cluster".to_owned();
        let options = match nodes.first() {
            Some(first) => prepared.options_at(&first.0, address, &id),
            None => prepared.options(address),
        };
        let changes = watch::Sender::default();
        let (all, seat_options, client, seat_changes) =
            (nodes.iter().map(|node| node.0.clone()).collect::<Vec<_>>(), options.clone(), id.clone(), changes.clone());
        let seat = move |keys| EmbeddedNode::seat(all.clone(), keys, &seat_options, &client, seat_changes.clone());
        let table = Arc::new(Table::new(Arc::default(), seat));
        look(&table);
        let router = Router::new(table.clone(), options.operation_timeout, changes);
        let spawn_hook = table.all().next().map(EmbeddedNode::spawn_hook);
        let client = prepared.start(Box::new(router), options, id, spawn_hook);
        Ok((prepared.client(vec![(client, Ok(()))])?, table))
    }
}

/// The options of each server. If there are several, an error names its server.
fn all_of(servers: Vec<Result<ConnectOptions, ConnectError>>) -> Result<Vec<ConnectOptions>, ConnectError> {
    let is_one = servers.len() == 1;
    // The error names the server by its number: in a URL that cannot be parsed, any part may be the password.
    let of_server = |(index, server): (usize, Result<_, ConnectError>)| {
        server.map_err(|error| if is_one { error } else { error.of_server(format!("server {}", index + 1)) })
    };
    servers.into_iter().enumerate().map(of_server).collect()
}

/// Not random, so that it is the same in each run of the simulator. Not counted per server either: a client of several
/// servers could then have the id of another client at one of them.
#[cfg(feature = "embedded")]
fn embedded_id() -> String {
    format!("{:032x}", Owner::new().number())
}

/// Checked options, and the runtime of a client.
struct Prepared {
    options: Options,
    runtime: Handle,
    /// Whether this is another runtime than the caller's.
    elsewhere: bool,
    goes_on: bool,
    /// The number of servers.
    servers: usize,
}

impl Prepared {
    /// `sockets`: whether the runtime needs an IO driver.
    fn new(builder: LockClientBuilder, servers: usize, sockets: bool) -> Result<Self, ConnectError> {
        let LockClientBuilder { mut options, runtime, goes_on, .. } = builder;
        let poll_interval = options.poll_interval;
        // The server caps a grant by its client's deadline. When it grants, the client's last poll may be one interval
        // old, and the waiter counts the grant from that poll: two intervals together. This leaves the waiter
        // `grant_ttl` (R7).
        let two_polls_ago = options.first_lease().saturating_add(poll_interval);
        let waiter_ttl = || options.waiter_ttl.max(poll_interval.saturating_mul(3)).max(two_polls_ago);
        options.waiter_ttl = builder.waiter_ttl.unwrap_or_else(waiter_ttl);
        if servers != 1 {
            if servers < FEWEST {
                return Err(OptionsError::TooFewServers(servers).into());
            }
            options.clock_difference = builder.clock_difference;
            let longest = options.strict_restart.unwrap_or(options.lease);
            options.strict_restart = (!builder.without_strict_restart).then_some(longest);
        }
        options.check()?;
        // If nothing read the certificate, the user would believe in a check that never happens.
        if builder.root_certificate.is_some() {
            return Err(OptionsError::UnusedRootCertificate.into());
        }
        let is_gone = runtime.as_ref().is_some_and(runtime::is_gone);
        let elsewhere = runtime.is_some();
        let runtime = runtime.or_else(|| Handle::try_current().ok()).ok_or(ConnectError::NoRuntime)?;
        if is_gone || !runtime::has_drivers(&runtime, sockets) {
            return Err(ConnectError::NoRuntime);
        }
        Ok(Self { options, runtime, elsewhere, goes_on, servers })
    }

    /// The options for one server.
    fn options(&self, address: String) -> Arc<Options> {
        let node = (self.servers > 1).then(|| address.clone());
        // Finds the recorder once, now, so that no call has to.
        let metrics = Metrics::new(&self.options.metrics_options, node.as_deref());
        Arc::new(Options { address, node, metrics, ..self.options.clone() })
    }

    /// The options for a server in memory. A simulator may allow fewer requests under way.
    #[cfg(feature = "embedded")]
    fn options_at(&self, server: &fairlock_emulator::Server, address: String, client: &str) -> Arc<Options> {
        let options = self.options(address);
        let in_flight = server.in_flight(client).min(options.in_flight);
        Arc::new(Options { in_flight, ..(*options).clone() })
    }

    fn start(
        &self,
        store: Box<dyn Store>,
        options: Arc<Options>,
        id: String,
        spawn_hook: Option<SpawnHook>,
    ) -> Arc<Client> {
        let context = Context::new(Runner::new(store, options, id), self.runtime.clone(), spawn_hook);
        Driver::start(Arc::new(context))
    }

    /// Returns the outcome of the first attempt, and a client that keeps connecting if that attempt failed.
    async fn connect(&self, server: ConnectOptions, id: &str) -> Result<Connecting, ConnectError> {
        let (address, id) = (server.to_string(), id.to_owned());
        let options = self.options(address.clone());
        // Sockets and timers belong to the runtime that makes them. So connect there, not in the runtime that polls
        // this future.
        let connected = if self.elsewhere {
            let (options, id) = (options.clone(), id.clone());
            let connecting = self.runtime.spawn(async move { connect(server, &options, &id).await });
            // Aborts the task when this future is dropped. An error here means that the runtime has ended.
            AbortOnDropHandle::new(connecting).await.map_err(|_| ConnectError::NoRuntime)?
        } else {
            connect(server, &options, &id).await
        };
        let (store, outcome) = connected.map_err(|error| self.of_server(error, &address))?;
        Ok((self.start(store, options, id, None), outcome))
    }

    /// Adds the server's address to the error, if there are several servers.
    fn of_server(&self, error: ConnectError, address: &str) -> ConnectError {
        if self.servers > 1 { error.of_server(address.to_owned()) } else { error }
    }

    /// Returns the client if enough servers are connected and no error is permanent.
    fn client(self, tried: Vec<Connecting>) -> Result<LockClient, ConnectError> {
        let (all, majority) = (tried.len(), majority(tried.len()));
        let (mut clients, mut connected, mut first_error) = (Vec::new(), 0, None);
        for (client, outcome) in tried {
            match outcome.map_err(|error| self.of_server(error, &client.driver().context().options().address)) {
                Ok(()) => connected += 1,
                Err(error) if error.may_pass() => drop(first_error.get_or_insert(error)),
                Err(error) => return Err(error),
            }
            clients.push(client);
        }
        let backend = match clients.as_slice() {
            [client] => Backend::One(client.clone()),
            _ => {
                let nodes = Nodes::new(clients, self.options.server_timeout())?;
                Backend::Several(Quorum::new(nodes, Metrics::new(&self.options.metrics_options, None)))
            }
        };
        match first_error {
            Some(error) if connected < majority && !self.goes_on => Err(match backend {
                Backend::Several(_) => ConnectError::NoQuorum { connected, all, majority, cause: Box::new(error) },
                _ => error,
            }),
            _ => Ok(LockClient::new(backend)),
        }
    }
}

/// A client of one server, and the outcome of its first attempt to connect.
type Connecting = (Arc<Client>, FirstConnect);

type FirstConnect = Result<(), ConnectError>;

/// Connects to a server or cluster. Returns a store even if the first attempt failed; while it lives, it keeps trying.
async fn connect(
    server: ConnectOptions,
    options: &Arc<Options>,
    client: &str,
) -> Result<(Box<dyn Store>, FirstConnect), ConnectError> {
    server.check()?;
    let access = match &server.topology {
        Topology::Cluster { seeds } => Access::of_cluster(seeds, server.sign_in, server.tls.as_ref())?,
        _ => Access::new(server.sign_in, server.tls.as_ref())?,
    };
    let database = server.database;
    let (node, outcome) = match server.topology {
        Topology::Single(address) => {
            let location = Arc::new(Location::fixed(address, access));
            let purpose = Purpose { location, database, keys: ServedKeys::All, changes: watch::Sender::default() };
            let node = NetworkNode::new(purpose, options, client, &Handle::current());
            let outcome = node.connect().await;
            (node, outcome)
        }
        Topology::Sentinel { service, sentinels } => {
            let tls = server.tls.as_ref().filter(|_| !server.sentinels_are_plain);
            let asked = Access::new(server.sentinel_sign_in.into(), tls)?;
            sentinel::connect(service, sentinels, &asked, access, database, options, client).await
        }
        Topology::Cluster { .. } if options.strict_restart.is_some() => {
            return Err(OptionsError::StrictRestartOnCluster.into());
        }
        Topology::Cluster { seeds } => {
            let (router, outcome) = cluster::connect(seeds, access, options, client).await;
            return Ok((Box::new(router), outcome));
        }
    };
    outcome.as_ref().err().into_iter().for_each(|error| node.go_on(Arc::new(error.clone())));
    Ok((Box::new(node), outcome))
}
