//! A fair, reentrant, fenced distributed lock on Redis (7.0 or later) or Valkey (7.2 or later).
//!
//! - **Fair**: first come, first served, across all processes. The lock goes from hand to hand: while others wait, it
//!   is never free for a newcomer to take.
//! - **Reentrant** on request: calls under one [`Owner`] nest, and the count stays exact even if replies get lost.
//!   Outside an [`owner::scope`] each call excludes all others, even those in the same task.
//! - **Fenced**: each hold has a [token](Held::token) that is greater than any before it.
//! - **Honest about loss**: the client [notifies](LockGuard::lost) a holder that has lost the lock, at the holder's
//!   local deadline and without any network.
//!
//! ```no_run
//! use fairlock::{FairLock, LockClient, LockGuard};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::connect("redis://127.0.0.1/").await?;
//! let lock: FairLock = client.lock("orders:42");
//!
//! let guard: LockGuard = lock.lock().await?;
//! println!("alone with order 42, token {}", guard.token());
//! guard.unlock().await?;
//!
//! client.close().await?;
//! # Ok(()) }
//! ```
//!
//! A [`LockClient`] is the connection to one server, or to several. A [`FairLock`] is a lock by its name. A
//! [`LockGuard`] is one hold on it, and a [`Held`] is a view of that hold. A [`FairSemaphore`] lets in several holders
//! at a time, and a [`FairRwLock`] many readers or one writer. Both are as fair as the lock, and as honest about loss.
//!
//! # More to read
//!
//! - [`guide`]: waiting, leases, nesting, losing a lock, fencing, several names, errors, closing, tests.
//! - [`readme`]: the promises P1 to P10, and a comparison with other locks.
//! - [`design`]: the protocol as built, its rules, and the tests for each promise; [`decisions`] has the reasons for single
//!   choices, [`history`] the bugs that taught us something.
//! - [`masters`]: a lock on several independent masters, and which parts of the critique of Redlock it answers.
//! - [`deploying`]: single servers, Sentinel, clusters, managed services, their settings, and a user with few rights.
//! - [`reliability`]: the evidence (tests, model, simulator, campaigns under faults), and the gaps.
//! - [`operating`]: log, spans, metrics, alerts and a dashboard for the locks of a service.
//! - [`migrating`]: from other locks to this one.
//! - [`command`]: the command `fairlock`.
//! - [`recipes`]: several names at once, leader election, cron jobs, HTTP services, code that is not async.
//! - [`performance`]: how fast it is, and how we measured that.
//!
//! # When not to use it
//!
//! - Within one process: [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html) is fair and
//!   a thousand times faster.
//! - If two holders at once would do lasting harm and the resource cannot check a token. No lock with a lease can rule
//!   that out. Use a transaction of the database that holds the data.
//! - If the lock must survive the loss of its server. Redis replicates asynchronously, so a failover can forget a lock.
//!   Use etcd, ZooKeeper or a database.
//! - On a server that evicts keys.
//!
//! Otherwise, the [promises](readme#promises) apply.
//!
//! # Features
//!
//! - `tls`: `rediss://`, with rustls. It installs no crypto provider for the process: it uses the provider that the
//!   application installed, or ring.
//! - `embedded`: a server inside this process, for a first look and for tests of code that locks; see the module of
//!   that name.
//! - `metrics`: counters, gauges and histograms for the recorder of the crate `metrics`; see
//!   [`operating`](operating#metrics).
//! - `serde`: `Serialize` for [`LockStatus`], [`ClientState`] and the types in them. Times are RFC 3339 in UTC;
//!   durations are milliseconds, in fields whose names end in `_ms`.
//!
//! The command `fairlock` is in its own package, `fairlock-cli`; see [`command`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Four layers, from top to bottom: the public types (the other modules here), the quorum, the driver, the store. All of
// them report to the metrics below. Calls go down. tests/house.rs checks that no file imports from a layer above.
mod driver;
mod metrics;
mod quorum;
mod store;
mod sync;

mod all;
mod backend;
mod builder;
#[cfg(feature = "_cli")]
#[doc(hidden)]
pub mod cli;
mod client;
mod common_error;
#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub mod embedded;
mod error;
#[doc(hidden)]
pub mod example;
mod guard;
mod handle;
mod list;
mod lock;
pub mod owner;
mod rw_lock;
mod semaphore;
#[cfg(feature = "serde")]
mod serialize;
mod servers;
#[cfg(feature = "_simulation")]
#[doc(hidden)]
pub mod simulation;
mod state;
mod status;

pub use all::{AllGuard, LockAll};
pub use builder::LockClientBuilder;
pub use client::LockClient;
pub use common_error::{Error, ErrorKind};
pub use driver::tried::{Busy, HeldBy, Tried};
#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub use embedded::EmbeddedServer;
pub use error::{
    Cause, CloseError, ConnectError, ConnectionInfoError, Ended, HoldError, LockError, Loss, NameError, OptionsError,
    Refusal, RequestError, UnlockAllError, UnlockError, WithError,
};
#[doc(inline)]
pub use fairlock_proto::keys::Kind;
pub use guard::{Held, LockGuard, Unlocked};
pub use handle::{DetachError, HandleError, HoldHandle, ParseHandleError};
pub use list::{Listed, LockList};
pub use lock::FairLock;
pub use owner::Owner;
pub use rw_lock::{FairRwLock, ReadGuard, WriteGuard};
pub use semaphore::{FairSemaphore, Permit};
pub use servers::{IntoConnectOptions, IntoServers};
pub use state::{ClientState, ConnectionState, ServerState, StateWatch};
pub use status::{Holder, LockStatus, RwLockStatus, SemaphoreStatus, ServerStatus, Waiter};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use store::certificates::Certificates;
pub use store::connect_options::{ConnectOptions, Credentials};

// The repository's pages, as modules of the documentation. Each page defines its links at its end. rustdoc uses the
// first definition of a link, so the definitions here replace the paths with modules.

/// The README.
///
/// [design]: crate::design
/// [performance]: crate::performance
/// [deploying]: crate::deploying
/// [quorum]: crate::masters
/// [operating]: crate::operating
/// [recipes]: crate::recipes
/// [migrating]: crate::migrating
/// [cli]: crate::command
/// [guide]: crate::guide
/// [reliability]: crate::reliability
/// [fencing]: crate::guide#fencing
/// [life]: crate::guide#the-life-of-a-lock
/// [limits]: crate::guide#the-limits-of-the-promises
#[doc = include_str!("../README.md")]
// Its code blocks run as tests, and one of them needs the feature.
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod readme {}

/// How to use it.
///
/// [promises]: crate::readme#promises
/// [builder]: crate::LockClientBuilder
/// [options]: crate::ConnectOptions
/// [info-error]: crate::ConnectionInfoError
/// [quorum]: crate::masters
/// [recipes]: crate::recipes
/// [deploying]: crate::deploying
/// [operating]: crate::operating#what-it-costs-the-server
#[doc = include_str!("../docs/guide.md")]
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod guide {}

/// The command `fairlock`, in its own package: `fairlock-cli`.
///
/// [quorum]: crate::masters
/// [deploying]: crate::deploying
/// [schema]: https://docs.rs/crate/fairlock/latest/source/docs/command.schema.json
#[doc = include_str!("../docs/cli.md")]
#[cfg(doc)]
pub mod command {}

/// How the lock works.
///
/// [promises]: crate::readme#promises
/// [reliability]: crate::reliability
/// [decisions]: crate::decisions
/// [history]: crate::history
/// [quorum]: crate::masters
/// [layers]: crate::plots#layers
/// [hand-over]: crate::plots#a-hand-over
#[doc = include_str!("../docs/design.md")]
#[cfg(doc)]
pub mod design {}

/// Why the design is the way it is.
///
/// [design]: crate::design
/// [deploying]: crate::deploying
#[doc = include_str!("../docs/decisions.md")]
#[cfg(doc)]
pub mod decisions {}

/// Bugs that taught us something.
///
/// [reliability]: crate::reliability
#[doc = include_str!("../docs/history.md")]
#[cfg(doc)]
pub mod history {}

/// The evidence for the promises.
///
/// [performance]: crate::performance
#[doc = include_str!("../docs/reliability.md")]
#[cfg(doc)]
pub mod reliability {}

/// Where and how to run the server.
///
/// [quorum]: crate::masters
/// [guide]: crate::guide#connecting
/// [changelog]: https://docs.rs/crate/fairlock/latest/source/CHANGELOG.md
/// [keys]: crate::operating#keys-restarts-clocks
/// [handle]: crate::guide#holds-that-outlive-a-guard
/// [design]: crate::design
/// [promises]: crate::readme#promises
#[doc = include_str!("../docs/deploying.md")]
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod deploying {}

/// A lock over several masters.
///
/// [deploying]: crate::deploying
/// [design]: crate::design
/// [performance]: crate::performance
#[doc = include_str!("../docs/quorum.md")]
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod masters {}

/// Running it in production: logs, metrics, alerts.
///
/// [dashboard]: crate::plots#the-dashboard
/// [oncall]: crate::command
/// [deploying]: crate::deploying#restarts
/// [quorum]: crate::masters
/// [readme]: crate::readme#promises
/// [fencing]: crate::guide#fencing
/// [closing]: crate::guide#closing
/// [upgrades]: crate::deploying#upgrades
/// [guide]: crate::guide#good-to-know
/// [which-cluster]: crate::deploying#which-cluster
/// [moves]: crate::deploying#names-that-move
#[doc = include_str!("../docs/operating.md")]
#[cfg(doc)]
pub mod operating {}

/// Common uses of the locks.
///
/// [migrating]: crate::migrating
/// [leases]: crate::guide#leases
/// [testing]: crate::guide#testing-code-that-locks
/// [semaphores]: crate::guide#semaphores
/// [statements]: crate::guide#fencing
#[doc = include_str!("../docs/recipes.md")]
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod recipes {}

/// Moving from other locks to this one.
///
/// [quorum]: crate::masters
/// [cli]: crate::command
/// [recipes]: crate::recipes#fencing
#[doc = include_str!("../docs/migrating.md")]
#[cfg(doc)]
pub mod migrating {}

/// How fast the lock is.
///
/// [plots]: crate::plots
#[doc = include_str!("../docs/performance.md")]
#[cfg(doc)]
pub mod performance {}

// As docs/plots.md, whose relative links would be broken here.
/// Drawings and plots of the other pages.
///
/// # Layers
///
#[doc = include_str!("../docs/plots/layers.svg")]
///
/// # A hand-over
///
#[doc = include_str!("../docs/plots/hand-over.svg")]
///
/// # Hand-off latency against the number of waiters
///
#[doc = include_str!("../docs/plots/hand-off.svg")]
///
/// # Throughput against the number of tasks
///
#[doc = include_str!("../docs/plots/throughput.svg")]
///
/// # What each of 16 tasks got, in the last round
///
#[doc = include_str!("../docs/plots/fairness.svg")]
///
/// # CPU of client and Redis against the number of waiters
///
#[doc = include_str!("../docs/plots/waiting.svg")]
///
/// # The dashboard
///
#[doc = include_str!("../docs/plots/dashboard.svg")]
#[cfg(doc)]
pub mod plots {}
