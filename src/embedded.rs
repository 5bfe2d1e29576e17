//! A server inside this process: for a first look, and for tests of code that locks.
//!
//! An [`EmbeddedServer`] runs the very scripts that run on Redis, in its own Lua, on keys in memory. Its clients are
//! normal clients and keep the same promises, but only within this process. It locks nothing between processes, and its
//! data is gone when it is dropped.
//!
//! # Test your code that locks
//!
//! The server uses tokio's clock. Under paused time (tokio's feature `test-util`) an hour of leases passes in
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
//! Code that locks does not see which server has its locks. It takes a [`FairLock`](crate::FairLock) or a
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
//! [`shut_down`](EmbeddedServer::shut_down), [`start_up`](EmbeddedServer::start_up), [`flush`](EmbeddedServer::flush)
//! and [`disconnect`](EmbeddedServer::disconnect) simulate events that servers meet in production.

use fairlock_emulator::Server;

/// A server inside this process. Clones are the same server. See the [module](self).
///
/// ```
/// use fairlock::{EmbeddedServer, LockClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = EmbeddedServer::new();
/// let here = LockClient::builder().embedded(&server)?;
/// let there = LockClient::builder().embedded(&server)?;
/// let guard = here.lock("x").lock().await?;
/// assert!(there.lock("x").try_lock().await?.is_busy());
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct EmbeddedServer(pub(crate) Server);

/// Lets a builder take one server, an array or a `Vec`.
impl AsRef<[EmbeddedServer]> for EmbeddedServer {
    fn as_ref(&self) -> &[EmbeddedServer] {
        std::slice::from_ref(self)
    }
}

impl EmbeddedServer {
    /// Creates a server without keys. Its clock starts at the machine's time and advances with tokio's clock.
    ///
    /// ```
    /// let server = fairlock::EmbeddedServer::new();
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self(Server::new())
    }

    /// Returns the existing keys, sorted. A free name without waiters has at most one key, with its last token, and for
    /// a while one more for each abandoned request that may still arrive.
    ///
    /// ```
    /// assert!(fairlock::EmbeddedServer::new().keys().is_empty());
    /// ```
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.0.keys()
    }

    /// Deletes all keys, like FLUSHALL. A holder learns of the loss by its next renewal, or at the end of a fixed
    /// lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient, Loss};
    ///
    /// let server = EmbeddedServer::new();
    /// let guard = LockClient::builder().embedded(&server)?.lock("x").lock().await?;
    /// server.flush();
    /// assert_eq!(guard.lost().await, Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Closes all connections and accepts no new ones. The keys stay, and expire in time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient, Loss};
    ///
    /// let server = EmbeddedServer::new();
    /// let guard = LockClient::builder().embedded(&server)?.lock("x").lock().await?;
    /// server.shut_down();
    /// assert_eq!(guard.lost().await, Loss::Expired);
    /// # Ok(()) }
    /// ```
    pub fn shut_down(&self) {
        self.0.shut_down();
    }

    /// Accepts connections again. Clients reconnect automatically.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// let server = EmbeddedServer::new();
    /// let client = LockClient::builder().embedded(&server)?;
    /// server.shut_down();
    /// server.start_up();
    /// client.lock("x").lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn start_up(&self) {
        self.0.start_up();
    }

    /// Closes the connection of the client with this [`id`](crate::LockClient::id). The client reconnects
    /// automatically.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// let server = EmbeddedServer::new();
    /// let client = LockClient::builder().embedded(&server)?;
    /// let guard = client.lock("x").lock().await?;
    /// server.disconnect(client.id());
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn disconnect(&self, client: &str) {
        self.0.disconnect(client);
    }
}
