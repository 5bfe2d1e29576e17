//! A fair, reentrant, fenced distributed lock on Redis (7.0 or later) or Valkey (7.2 or later).
//!
//! - **Fair**: first come, first served, over all processes. The lock goes from hand to hand: while
//!   others wait it is never free for a newcomer to take.
//! - **Reentrant** where you ask for it: calls under one [`Owner`] nest, and the count stays exact when
//!   replies get lost. Outside an [`owner::scope`] each call excludes all others, in the same task too.
//! - **Fenced**: each hold has a [token](Held::token) that is greater than any before it.
//! - **Honest about loss**: a holder [is notified](LockGuard::lost) that it lost the lock, at its local deadline
//!   without any network.
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
//! A [`LockClient`] is the connection to one server, or to several. A [`FairLock`] is a lock by its name. A [`LockGuard`]
//! is one hold on it, and a [`Held`] is a view of that hold. A [`FairSemaphore`] has permits for several at a time, and a
//! [`FairRwLock`] many readers or one writer: as fair, and as honest about loss.
//!
//! # More to read
//!
//! - [`guide`]: waiting, leases, nesting, losing a lock, fencing, several names, errors, closing, tests.
//! - [`readme`]: the promises P1 to P10, and a comparison with other locks.
//! - [`design`]: the protocol as it is built, its rules, and which test holds which promise.
//! - [`masters`]: a lock on several independent masters, and what of the critique of Redlock it answers.
//! - [`deploying`]: single servers, Sentinel, clusters, managed services, what to set there, and a user with few rights.
//! - [`reliability`]: what is proven by what: tests, model, simulator, campaigns under faults; and what is not.
//! - [`operating`]: what a service shows of its locks: log, spans, metrics, alerts and a dashboard.
//! - [`migrating`]: from other locks to this one.
//! - [`command`]: the command `fairlock`.
//! - [`recipes`]: several names at once, leader election, cron jobs, HTTP services, code that is not async.
//! - [`performance`]: how fast it is, and how that is measured.
//!
//! # When not to use it
//!
//! - Within one process: [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html)
//!   is fair and a thousand times faster.
//! - Where two holders at once would do lasting harm and the resource cannot check a token. No lock
//!   with a lease can promise that. Use a transaction of the database that holds the data.
//! - Where the lock must outlive the loss of its server. Redis replicates asynchronously, so a failover
//!   can forget a lock. Use etcd, ZooKeeper or a database.
//! - On a server that evicts keys.
//!
//! The [promises](readme#promises) apply where it does fit.
//!
//! # Features
//!
//! - `tls`: `rediss://` by rustls. It installs no crypto provider for the process: it uses the provider that the
//!   application installed, or ring.
//! - `embedded`: a server inside this process, for a first look and for tests of code that locks; see
//!   the module of that name.
//! - `metrics`: counters, gauges and histograms for the recorder of the crate `metrics`; see [`operating`](operating#metrics).
//! - `serde`: `Serialize` for [`LockStatus`], [`ClientState`] and what they have. Times are written as RFC 3339 in UTC,
//!   durations as milliseconds in fields whose names end in `_ms`.
//!
//! The command `fairlock` is a package of its own, `fairlock-cli`; see [`command`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Four layers, from top to bottom: the public page (the other modules here), the quorum, the driver, the store. Below
// them are the metrics, to which each of them reports. Calls go down. tests/house.rs checks that no file imports from a
// layer above.
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

// The pages of the repository, as modules of the documentation. A page names its links at its end; of two
// definitions of a link the first one counts, so those here replace a path by a module.

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
// Its code blocks are tests, and one of them needs the feature.
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

/// The command `fairlock`, a package of its own: `fairlock-cli`.
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

/// The reasons for single choices.
///
/// [design]: crate::design
/// [deploying]: crate::deploying
#[doc = include_str!("../docs/decisions.md")]
#[cfg(doc)]
pub mod decisions {}

/// The bugs that taught something.
///
/// [reliability]: crate::reliability
#[doc = include_str!("../docs/history.md")]
#[cfg(doc)]
pub mod history {}

/// What is proven, and by what.
///
/// [performance]: crate::performance
#[doc = include_str!("../docs/reliability.md")]
#[cfg(doc)]
pub mod reliability {}

/// Where the lock runs.
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

/// For those on call.
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

/// What locks are used for.
///
/// [migrating]: crate::migrating
/// [leases]: crate::guide#leases
/// [testing]: crate::guide#testing-code-that-locks
/// [semaphores]: crate::guide#semaphores
/// [statements]: crate::guide#fencing
#[doc = include_str!("../docs/recipes.md")]
#[cfg(all(doc, any(feature = "embedded", not(doctest))))]
pub mod recipes {}

/// From other locks to this one.
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

// As docs/plots.md, whose paths of files lead nowhere here.
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
