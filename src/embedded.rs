//! A server inside this process: for a first look, for tests of code that locks, for simulators.
//!
//! An [`EmbeddedServer`] runs the very scripts that run on Redis, in a Lua of its own, over keys in
//! memory. Clients of it are the same clients with the same promises, but only within this
//! process: it is no way to lock between processes, and what it knows is gone with it.
//!
//! # Test your code that locks
//!
//! Its clock is tokio's. Under paused time (tokio's feature `test-util`) an hour of leases passes in
//! milliseconds, and nothing of the test depends on how busy the machine is:
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
//! // … and when it is not, the holder hears of the loss at the end of its lease.
//! server.shut_down();
//! assert_eq!(guard.lost().await, Loss::Expired);
//! # Ok(()) }
//! ```
//!
//! [`shut_down`](EmbeddedServer::shut_down), [`start_up`](EmbeddedServer::start_up),
//! [`flush`](EmbeddedServer::flush) and [`disconnect`](EmbeddedServer::disconnect) are what happens
//! to servers in production. [`Faults`] goes further: it decides over every single message, which is
//! what `examples/simulate` of the repository does.

pub use crate::store::embedded::{EmbeddedServer, Faults, Published, Ran, Task, Trip};
