//! The way to a server.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;
use uuid::Uuid;

use crate::core::Core;
use crate::error::{CloseError, ConnectError, Loss};
use crate::lock::FairLock;
use crate::options::{LockClientBuilder, Options};
#[cfg(feature = "embedded")]
use crate::store::embedded::{EmbeddedServer, EmbeddedStore};
use crate::store::redis::{RedisStore, Target};
use crate::store::{Scripts, ServerClock, Store, Terms};

/// A client: one connection to one server, and everything that is held and waited for over it.
///
/// Cheap to clone; clones share it. Two clients share nothing, also in one process.
#[derive(Clone)]
pub struct LockClient {
    core: Arc<Core>,
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("id", &self.core.client).finish_non_exhaustive()
    }
}

impl LockClient {
    /// Connects with the defaults; see [`LockClientBuilder`] for them.
    ///
    /// # Errors
    /// [`ConnectError`] says what is wrong with the URL, the server or the credentials, in bounded
    /// time.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// A client of a server of its own inside this process: for a first look and for tests. It runs
    /// the same scripts, and keeps the same promises, within this process only.
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
    /// assert!(client.lock("orders:42").try_lock().await?.is_none());
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

    /// Settings to change before connecting.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    pub(crate) async fn open(builder: LockClientBuilder, url: &str) -> Result<Self, ConnectError> {
        let options = builder.options;
        let runtime = checked(&options)?;
        let terms = terms(&options, Uuid::new_v4().simple().to_string());
        let target = Target {
            url: url.to_owned(),
            root_certificate: builder.root_certificate,
            patience: options.operation_timeout,
        };
        let clock = Arc::new(ServerClock::new());
        let store = RedisStore::connect(target, &terms, clock.clone()).await?;
        Ok(Self::over(Box::new(store), clock, terms, options, runtime))
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn open_embedded(builder: LockClientBuilder, server: &EmbeddedServer) -> Result<Self, ConnectError> {
        let options = builder.options;
        let runtime = checked(&options)?;
        let terms = terms(&options, server.next_client());
        let store =
            EmbeddedStore::connect(server, &terms).map_err(|fault| ConnectError::Unreachable(Arc::new(fault)))?;
        Ok(Self::over(Box::new(store), Arc::new(ServerClock::new()), terms, options, runtime))
    }

    fn over(store: Box<dyn Store>, clock: Arc<ServerClock>, terms: Terms, options: Options, runtime: Handle) -> Self {
        let client = terms.client.clone();
        Self { core: Core::new(options, client, Scripts::new(store, clock, terms), runtime) }
    }

    /// The lock of that name: 1 to 1024 bytes of anything. Costs nothing; a name that cannot be is
    /// told by the first call that needs the server.
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::new(self.core.clone(), name.as_ref())
    }

    /// This client's id: the first part of its owners' ids in [`FairLock::status`].
    #[must_use]
    pub fn id(&self) -> &str {
        &self.core.client
    }

    /// Releases all that this client holds, leaves every queue, and waits for both, at most three
    /// operation time-outs. Guards that live on are lost with [`Loss::Closed`], waits end with
    /// [`LockError::Closed`](crate::LockError::Closed), and so does every later call.
    ///
    /// Without it, when the last clone and guard are dropped, the connection closes, and what is
    /// still on its way ends with its lease.
    ///
    /// # Errors
    /// [`CloseError`] if the server did not answer to all of it in time.
    ///
    /// # Cancel safety
    /// Dropped, the client is closed, but nobody waited; call it again to wait.
    pub async fn close(&self) -> Result<(), CloseError> {
        let core = &self.core;
        core.closing.cancel();
        for hold in core.seats.holds() {
            hold.lose(Loss::Closed);
        }
        core.tasks.close();
        let finished = tokio::time::timeout(3 * core.patience(), core.tasks.wait()).await;
        core.scripts.close();
        finished.map_err(|_| CloseError { unfinished: core.tasks.len() })
    }
}

fn checked(options: &Options) -> Result<Handle, ConnectError> {
    options.check()?;
    Handle::try_current().map_err(|_| ConnectError::NoRuntime)
}

fn terms(options: &Options, client: String) -> Terms {
    Terms {
        prefix: options.prefix.clone(),
        client,
        label: options.label.clone(),
        waiter_ttl: options.waiter_ttl,
        grant_ttl: options.grant_ttl,
        token_ttl: options.token_ttl,
        max_waiters: options.max_waiters,
        operation_timeout: options.operation_timeout,
    }
}

#[cfg(test)]
#[cfg(feature = "embedded")]
mod tests {
    use super::LockClient;
    use std::time::Duration;

    /// What has ended must not stay on the list until it would have been due.
    #[tokio::test(start_paused = true)]
    async fn only_what_is_held_is_on_the_watchdogs_list() {
        let client = LockClient::embedded().unwrap();
        let lock = client.lock("a");
        let kept = client.lock("kept").lock().await.unwrap();
        let listed = || client.core.watchdog.listed();
        for _ in 0..3 {
            let guard = lock.lock().await.unwrap();
            assert_eq!(listed(), 2);
            guard.unlock().await.unwrap();
            drop(lock.lock().await.unwrap());
            // Its release is the background's.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(listed(), 1);
        }
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(kept.is_valid());
        assert_eq!(listed(), 1);
        client.close().await.unwrap();
        assert_eq!(listed(), 0);
    }
}
