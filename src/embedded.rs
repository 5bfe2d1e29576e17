//! A server inside this process: for a first look, and for tests of code that locks.
//!
//! An [`EmbeddedServer`] runs the very scripts that run on Redis, in a Lua of its own, over keys in
//! memory. Its clients are the same clients with the same promises, but only within this process. It
//! locks nothing between processes, and its data is gone when it is dropped.
//!
//! # Test your code that locks
//!
//! Its clock is tokio's. Under paused time (tokio's feature `test-util`) an hour of leases passes in
//! milliseconds, and a test does not depend on how busy the machine is:
//!
//! ```
//! use fairlock::{EmbeddedServer, LockClient, Loss};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] // in a test: #[tokio::test(start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = EmbeddedServer::new();
//! let client = LockClient::builder().embedded(&server)?;
//! let guard = client.lock("report").lock().await?;
//!
//! // The watchdog keeps the lock for as long as the server is there …
//! tokio::time::sleep(Duration::from_secs(3600)).await;
//! assert!(guard.is_valid());
//!
//! // … and when it is not, the holder is notified of the loss at the end of its lease.
//! server.shut_down();
//! assert_eq!(guard.lost().await, Loss::Expired);
//! # Ok(()) }
//! ```
//!
//! Code that locks does not see where its locks are. It takes a [`FairLock`](crate::FairLock) or a
//! [`LockClient`](crate::LockClient), and needs no trait to run on this server, on a real one, and on several:
//!
//! ```
//! use fairlock::{EmbeddedServer, FairLock, LockClient, LockError};
//!
//! async fn next_token(lock: &FairLock) -> Result<u64, LockError> {
//!     Ok(lock.lock().await?.token())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let one = LockClient::embedded()?;
//! let servers = [EmbeddedServer::new(), EmbeddedServer::new(), EmbeddedServer::new()];
//! let three = LockClient::builder().without_strict_restart().embedded(&servers)?;
//! for client in [one, three] {
//!     let lock = client.lock("orders:42");
//!     assert!(next_token(&lock).await? < next_token(&lock).await?);
//! }
//! # Ok(()) }
//! ```
//!
//! [`shut_down`](EmbeddedServer::shut_down), [`start_up`](EmbeddedServer::start_up),
//! [`flush`](EmbeddedServer::flush) and [`disconnect`](EmbeddedServer::disconnect) do what happens to
//! servers in production.

pub use crate::store::embedded::EmbeddedServer;
