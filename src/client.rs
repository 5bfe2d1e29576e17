//! A client: everything that is held and waited for over one connection.

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

/// A client: the connection to one server or to [several](crate::masters), and everything that is held and waited for over it.
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

// What it shares is behind locks that a panic does not poison, and user code runs outside of them. So it may be used where a
// panic was caught, as in a test or in a handler of a server.
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

    /// The lock of that name: 1 to 1024 bytes of anything. No round trip.
    ///
    /// A name that is too short or too long is reported by the first call that needs the server.
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

    /// The semaphore of that name with this number of permits, over all processes: 1 to 1024 bytes of anything. No round trip.
    ///
    /// A name that cannot be is reported by the first call that needs the server.
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

    /// The read-write lock of that name: 1 to 1024 bytes of anything. No round trip.
    ///
    /// A name that cannot be is reported by the first call that needs the server.
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

    /// The names of this client's prefix that are held or waited for, and that match: `*` for all of them. In no order. A lock
    /// that is free is not among them, but a semaphore is whose number of permits is
    /// [set for all clients](crate::FairSemaphore::set_permits). A name that is in use as a lock and as a semaphore is there
    /// twice: see [`Listed::kind`](crate::Listed).
    ///
    /// The pattern is that of Redis' KEYS: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\` before a character that stands for
    /// itself. The stream looks through the keys of the server page by page with SCAN, in a cluster through those of each
    /// master, with one round trip for 250 keys of the database, others' among them. A page takes about 0.2 ms of the server,
    /// and the names of one page are in memory. A list of 100,000 locks takes half a second on a local server; in a
    /// database with many more keys than locks it takes as long as there are keys.
    ///
    /// A lock that is taken and released while the list runs may be in it or not, a lock that is held or waited for all
    /// the time is in it once. (A list of more than a million names may repeat one.) While a slot of a cluster moves,
    /// its locks may be missing. Several servers are listed one after the other, each name comes once, and a minority
    /// of them may be out of reach.
    ///
    /// Each can be asked for its [`status`](FairLock::status). To do this for many, ask for some at the same time: they share the
    /// connection.
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
    /// The stream ends with the first [`RequestError`]. `Refused`: the user has no right to SCAN (`+scan`), which nothing else
    /// needs. It lets a user see the names of all keys of the server. `Unanswered`: the connection broke; begin the list anew.
    pub fn list(&self, glob: impl AsRef<str>) -> LockList {
        LockList::new(&self.backend, glob.as_ref())
    }

    /// The time of one round trip to the server; in a cluster the longest of those to its masters, which are asked at the
    /// same time. It connects to masters that were idle. Of several servers: the time in which a majority answers.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// println!("the server answers in {:?}", client.ping().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`]. Without an answer within the operation time-out it is `NotSent` or `Unanswered`.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn ping(&self) -> Result<Duration, RequestError> {
        let mut times = of_majority(join_all(self.backend.contexts().map(|context| context.ping())).await)?;
        times.sort_unstable();
        // It is there: a majority has answered.
        Ok(times.get(majority(self.backend.contexts().count()) - 1).copied().unwrap_or_default())
    }

    /// Whether the client is connected, as far as it knows: one by one for each server. No round trip.
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

    /// Finishes every release that is under way, releases everything else that this client holds, leaves
    /// every queue, and waits for all that, at most for three operation time-outs.
    ///
    /// Guards that are still alive are lost with [`Loss::Closed`](crate::Loss::Closed). Waits end with
    /// [`LockError::Closed`](crate::LockError::Closed), and so does every later call. Futures of this
    /// client that are not polled meanwhile do not stall it.
    ///
    /// # At the end of the process
    /// Without `close`, the connection is closed when the last thing that was made of the client is dropped
    /// (clones, locks, guards, [`Held`](crate::Held)s, lists, a [`StateWatch`]), or when the runtime ends. Releases that are under way at that moment may not arrive: those locks end
    /// with their leases. So it is at the end of `main`, also at a `?` and a panic in it; against these,
    /// let [`run`](Self::run) close the client. `std::process::exit`, an abort and a kill run no code of
    /// ours: what is held then ends with its lease.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// client.close().await?;
    /// assert!(matches!(client.lock("orders:42").lock().await, Err(fairlock::LockError::Closed)));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`CloseError`] if the server, or a majority of several, did not answer all requests in time. After the end of the client's runtime
    /// nothing can be released: `Ok` then means only that no guard was alive, and each hold ends with its lease.
    ///
    /// # Cancel safety
    /// Once polled, the end runs in the background: a future that is dropped, or is not polled again, closes the client
    /// all the same. Call it again to wait for the same outcome.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.backend.close().await
    }

    /// Runs `work` and [closes](Self::close) the client, whether it returns, returns an error, or panics:
    /// the releases arrive before `main` ends. The panic goes on afterwards.
    ///
    /// Takes the time of `work` and of `close`. What `close` could not finish is logged as a warning; its
    /// locks end with their leases.
    ///
    /// It does not help against `std::process::exit`, an abort or a kill. A signal has to end `work`, with
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
    /// Dropping the future drops `work` where it is. The client is not closed then.
    pub async fn run<F: Future>(&self, work: F) -> F::Output {
        // The work is dropped with all its guards before the client is closed. It is not looked at again
        // after a panic, which goes on below.
        let outcome = AssertUnwindSafe(work).catch_unwind().await;
        if let Err(error) = self.close().await {
            tracing::warn!(target: "fairlock::client", %error, "closed without all answers");
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
