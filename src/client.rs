//! A client: the holds and waits that share one connection.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, resume_unwind};
use std::time::Duration;

use fairlock_proto::keys::{Kind, Share};
use futures::FutureExt;
use futures::future::join_all;

use crate::backend::Backend;
use crate::error::{CloseError, RequestError};
use crate::list::LockList;
use crate::lock::FairLock;
use crate::quorum::error::of_majority;
use crate::quorum::majority;
use crate::rw_lock::FairRwLock;
use crate::semaphore::FairSemaphore;
use crate::state::{ClientState, StateWatch};

/// A client: the connection to one server or to [several](crate::masters), with all holds and waits on it.
///
/// Cheap to clone; clones share the connections. Two clients share nothing, even in one process.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use fairlock::LockClient;
///
/// let client = LockClient::connect("redis://127.0.0.1/").await?;
/// let guard = client.lock("orders:42").lock().await?;
/// guard.unlock().await?;
/// client.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockClient {
    backend: Backend,
}

// Its shared state is behind locks that a panic does not poison, and user code runs outside of them. So callers may use
// it after they caught a panic, for example in a test or in a handler of a server.
impl UnwindSafe for LockClient {}
impl RefUnwindSafe for LockClient {}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl LockClient {
    pub(crate) fn new(backend: Backend) -> Self {
        Self { backend }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the lock of that name: 1 to 1024 bytes of anything. No round trip.
    ///
    /// If the name is too short or too long, the first call that needs the server returns an error.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let lock = client.lock("orders:42");
    /// assert_eq!(lock.name(), "orders:42");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::new(self.backend.lock(Kind::Lock, Share::LOCK, name.as_ref()))
    }

    /// Returns the semaphore of that name with this number of permits, across all processes. The name is 1 to 1024
    /// bytes of anything. No round trip.
    ///
    /// If the name is too short or too long, the first call that needs the server returns an error.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let gate = client.semaphore("render", 5);
    /// let permit = gate.acquire().await?;
    /// permit.release().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> FairSemaphore {
        let share = Share { weight: 1, limit: permits };
        FairSemaphore::new(self.backend.lock(Kind::Semaphore, share, name.as_ref()), permits)
    }

    /// Returns the read-write lock of that name: 1 to 1024 bytes of anything. No round trip.
    ///
    /// If the name is too short or too long, the first call that needs the server returns an error.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let document = client.rw_lock("document:7");
    /// document.read().await?.unlock().await?;
    /// document.write().await?.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> FairRwLock {
        let of = |share| self.backend.lock(Kind::RwLock, share, name.as_ref());
        FairRwLock::new(of(Share::READER), of(Share::WRITER))
    }

    /// This client's id: the first part of its owners' ids in [`FairLock::status`]. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let holder = client.lock("orders:42").status().await?.holder.expect("it is held");
    /// assert!(holder.owner.starts_with(client.id()));
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        self.backend.id()
    }

    /// Lists the names of this client's prefix that match and have a holder or a waiter, in no particular order; `*`
    /// matches all. A free lock is not listed, but a semaphore is if its number of permits is [set for all
    /// clients](crate::FairSemaphore::set_permits). A name in use both as a lock and as a semaphore appears twice: see
    /// [`Listed::kind`](crate::Listed).
    ///
    /// The pattern has the syntax of Redis' KEYS: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\` to escape a character.
    /// The stream scans the server's keys page by page with SCAN, in a cluster the keys of each master. It costs one
    /// round trip for 250 keys of the database, including keys of others. A page takes about 0.2 ms of the server's
    /// time, and the client keeps the names of one page in memory. A list of 100,000 locks takes half a second on a
    /// local server; in a database with many more keys than locks, the number of keys decides.
    ///
    /// A lock that someone takes and releases while the list runs may be in it or not; a lock that is in use all the
    /// time is in it once. (A list of more than a million names may repeat one.) While a slot of a cluster moves, its
    /// locks may be missing. With several servers, the stream scans one after the other and returns each name once; a
    /// minority of them may be out of reach.
    ///
    /// For the [`status`](FairLock::status) of many locks, request several at the same time: they share the connection.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use futures::TryStreamExt;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// let locks = client.list("orders:*").try_filter(|listed| std::future::ready(listed.kind == fairlock::Kind::Lock));
    /// let status = async |lock: fairlock::Listed| Ok::<_, fairlock::RequestError>((client.lock(&lock.name).status().await?, lock.name));
    /// let mut all = std::pin::pin!(locks.map_ok(status).try_buffer_unordered(64));
    /// while let Some((status, name)) = all.try_next().await? {
    ///     println!("{name}: {:?}, {} waiting", status.holder.map(|holder| holder.label), status.waiters);
    /// }
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The stream ends with the first [`RequestError`]. `Refused`: the user lacks the right to SCAN (`+scan`), which
    /// only this method needs. That right lets a user see the names of all keys of the server. `Unanswered`: the
    /// connection broke; start the list again.
    pub fn list(&self, glob: impl AsRef<str>) -> LockList {
        LockList::new(&self.backend, glob.as_ref())
    }

    /// Measures one round trip to the server. In a cluster it pings all masters at the same time, connects to those
    /// that were idle, and returns the longest time. With several servers it returns the time after which a majority
    /// has answered.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// println!("the server answers in {:?}", client.ping().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. Without an answer within the operation time-out, it is `NotSent` or `Unanswered`.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn ping(&self) -> Result<Duration, RequestError> {
        let mut times = of_majority(join_all(self.backend.contexts().map(|context| context.ping())).await)?;
        times.sort_unstable();
        // The index exists, since a majority has answered.
        Ok(times.get(majority(self.backend.contexts().count()) - 1).copied().unwrap_or_default())
    }

    /// Returns whether each server is connected, as far as the client knows. No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// for server in client.state().servers {
    ///     println!("{}: {}", server.address, server.connection);
    /// }
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn state(&self) -> ClientState {
        ClientState::of(&self.backend)
    }

    /// Watches changes of [`state`](Self::state). No round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let mut watch = client.watch_state();
    /// tokio::spawn(async move {
    ///     while let Some(state) = watch.changed().await {
    ///         println!("the client is {}", state.connection());
    ///     }
    /// });
    /// # client.close().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use = "it tells nothing unless it is asked"]
    pub fn watch_state(&self) -> StateWatch {
        StateWatch::new(self.backend.clone())
    }

    /// Finishes every release under way, releases all other holds of this client, leaves every queue, and waits until
    /// the server has answered, for at most three operation time-outs.
    ///
    /// Guards that are still alive end with [`Loss::Closed`](crate::Loss::Closed). Waits fail with
    /// [`LockError::Closed`](crate::LockError::Closed), and so does every later call. Futures of this client that you
    /// do not poll in the meantime do not delay it.
    ///
    /// # At the end of the process
    /// Without `close`, the client closes the connection when the runtime ends, or when the last thing made from the
    /// client is dropped (clones, locks, guards, [`Held`](crate::Held)s, lists, a [`StateWatch`]). Releases under way
    /// at that moment may not arrive: those locks end with their leases. The end of `main` is such a moment, even after
    /// a `?` or a panic; to cover these two, let [`run`](Self::run) close the client. `std::process::exit`, an abort
    /// and a kill run no code of ours: the holds then end with their leases.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// client.close().await?;
    /// assert!(matches!(client.lock("orders:42").lock().await, Err(fairlock::LockError::Closed)));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`CloseError`] if the server did not answer all requests in time, or, of several servers, fewer than a majority
    /// did. After the client's runtime has ended, the client can release nothing: `Ok` then only means that no guard was
    /// alive, and each hold ends with its lease.
    ///
    /// # Cancel safety
    /// Once polled, the close runs in the background: the client closes even if you drop the future or stop polling it.
    /// Call it again to wait for the same outcome.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.backend.close().await
    }

    /// Runs `work` and then [closes](Self::close) the client, whether `work` succeeds, returns an error, or panics, so
    /// that the releases arrive before `main` ends. A panic continues afterwards.
    ///
    /// Takes the time of `work` and of `close`. If `close` could not finish, the client logs a warning; the remaining
    /// locks end with their leases.
    ///
    /// It does not help against `std::process::exit`, an abort or a kill. A signal must end `work`, with
    /// `tokio::signal` and `select!`.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let client = fairlock::LockClient::embedded()?;
    ///     client
    ///         .run(async {
    ///             let _guard = client.lock("nightly").lock().await?;
    ///             let number: u32 = "42".parse()?; // returns early, and the lock is free all the same
    ///             println!("report {number}");
    ///             Ok(())
    ///         })
    ///         .await
    /// }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` at its current point, and does not close the client.
    pub async fn run<F: Future>(&self, work: F) -> F::Output {
        // Drops the work with all its guards before the client closes. After a panic, which resumes below, nothing
        // looks at the work again.
        let outcome = AssertUnwindSafe(work).catch_unwind().await;
        if let Err(error) = self.close().await {
            tracing::warn!(target: "fairlock::client", %error, "closed before all answers came");
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
