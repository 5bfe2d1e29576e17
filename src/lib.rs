//! A fair, reentrant, fenced distributed lock on Redis (7.0 or later) or Valkey (7.2 or later).
//!
//! - **Fair**: first come, first served, over all processes. The lock goes from hand to hand; it is
//!   never free for a newcomer to snatch while somebody waits.
//! - **Reentrant** where you say so: calls under one [`Owner`] nest, exactly, also when replies get
//!   lost. Outside an [`owner::scope`] each call excludes all others, in the same task too.
//! - **Fenced**: each hold has a [token](Held::token) that is greater than any before it.
//! - **Honest about loss**: a holder [is told](Held::lost), at its local deadline without any
//!   network.
//!
//! ```no_run
//! use fairlock::LockClient;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::connect("redis://127.0.0.1/").await?;
//! let guard = client.lock("orders:42").lock().await?;
//! println!("alone with order 42, token {}", guard.token());
//! guard.unlock().await?;
//! # Ok(()) }
//! ```
//!
//! # When not to use it
//!
//! - Within one process: [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html)
//!   is fair and a thousand times faster.
//! - Where two holders at once would do lasting harm and the resource cannot check a token: no lock
//!   with a lease can promise that, whatever it is built on. Use a transaction of the database
//!   that holds the data.
//! - Where the lock must outlive the loss of the server that keeps it: Redis replicates
//!   asynchronously, so a failover can forget a lock. Use etcd, ZooKeeper or a database.
//! - For counting semaphores, read-write locks or leader election with callbacks: it is one lock.
//!
//! # Promises
//!
//! On one server with `maxmemory-policy noeviction` and a clock that does not jump:
//!
//! 1. One holder at a time, among those whose local deadline has not passed.
//! 2. Tokens grow strictly for each name, also over expiry, force-unlock and lost data.
//! 3. First in, first out among live waiters; [`FairLock::try_lock`] never overtakes.
//! 4. The server counts as many holds as there are guards, also after lost replies and retries.
//! 5. A wait that is dropped, times out or panics leaves nothing behind.
//! 6. Dead waiters delay the living by one waiter time-to-live at most, however many; a waiter
//!    whose connection is gone is passed over at once.
//! 7. A dead holder is replaced within its lease + 100 ms.
//! 8. A holder hears of its loss: at its local deadline, and at once after a force-unlock.
//! 9. A lost message costs a poll interval, never the lock.
//! 10. No busy loop, no blocking in `Drop`, no panic, no leaked key.
//!
//! # What a lost lock means
//!
//! A process can be paused for a minute at any line, between a check and the write after it. So a
//! holder may go on for a moment after others got the lock, whatever it checks. Stop the work when
//! [`Held::lost`] resolves, and let the resource refuse tokens smaller than one it has seen:
//!
//! ```
//! struct Resource { newest: u64, value: String }
//!
//! impl Resource {
//!     fn write(&mut self, token: u64, value: &str) -> Result<(), &'static str> {
//!         if token < self.newest {
//!             return Err("a later holder was here");
//!         }
//!         (self.newest, self.value) = (token, value.into());
//!         Ok(())
//!     }
//! }
//!
//! let mut resource = Resource { newest: 0, value: String::new() };
//! assert!(resource.write(8, "from the new holder").is_ok());
//! assert!(resource.write(7, "from one that was paused").is_err());
//! ```
//!
//! # Recipes
//!
//! Nested locking through functions that do not know of each other:
//!
//! ```no_run
//! # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
//! let account = client.lock("account:7");
//! let inner = account.clone();
//! account
//!     .with(|_| async move {
//!         // The same owner: re-enters, does not wait for itself.
//!         let _guard = inner.lock().await?;
//!         Ok::<_, fairlock::LockError>(())
//!     })
//!     .await??;
//! # Ok(()) }
//! ```
//!
//! Stop the work when the lock is lost:
//!
//! ```no_run
//! # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
//! let guard = client.lock("report").lock().await?;
//! tokio::select! {
//!     () = work() => { guard.unlock().await?; }
//!     loss = guard.lost() => eprintln!("stopped: {loss}"),
//! }
//! # Ok(()) }
//! # async fn work() {}
//! ```
//!
//! At most so long, for work that may hang:
//!
//! ```no_run
//! # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let lock = client.lock("nightly").with_lease(Duration::from_secs(600));
//! let Ok(guard) = lock.lock_timeout(Duration::from_secs(5)).await else { return Ok(()) };
//! # drop(guard);
//! # Ok(()) }
//! ```
//!
//! # Features
//!
//! - `tls`: `rediss://` by rustls.
//! - `embedded`: a server inside this process, for a first look and for tests of code that locks; see
//!   the module of that name.
//!
//! The protocol, its rules and where each is kept: `docs/design.md` in the repository.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Three layers, from top to bottom: the public page (the other modules here), the engine, the store.
// Calls go down. tests/house.rs checks that no file imports from a layer above.
mod engine;
mod store;

mod builder;
mod client;
#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub mod embedded;
mod error;
mod guard;
mod lock;
pub mod owner;
#[cfg(feature = "embedded")]
#[doc(hidden)]
pub mod simulation;
mod status;

pub use builder::LockClientBuilder;
pub use client::LockClient;
#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub use embedded::EmbeddedServer;
pub use error::{
    Cause, CloseError, ConnectError, Ended, LockError, Loss, NameError, OptionsError, Refusal, RequestError,
    UnlockError, WithError,
};
pub use guard::{Held, LockGuard, Unlocked};
pub use lock::FairLock;
pub use owner::Owner;
pub use status::{Holder, LockStatus, Waiter};

/// The code blocks of the README are tests; one of them needs the feature.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../README.md")]
struct Readme;
