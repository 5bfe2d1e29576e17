//! The identity that holds a lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

// A server sorts owners by their numbers, and a simulated run must not depend on the rest of its process.
#[cfg(feature = "_simulation")]
thread_local! {
    static LAST_OF_THE_RUN: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread numbers its owners from 1.
#[cfg(feature = "_simulation")]
pub fn begin_run() {
    LAST_OF_THE_RUN.set(Some(0));
}

/// The identity that holds a lock. Calls under the same owner re-enter its holds; calls under different owners exclude
/// each other.
///
/// An owner is a number that this process never uses twice. It does not depend on tasks or threads:
/// [`owner::scope`](crate::owner::scope) binds an owner to a future, and [`Owner::scope`](crate::Owner::scope) carries
/// it over a `spawn`.
///
/// ```
/// use fairlock::{Owner, owner};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let me = Owner::new();
/// let task = tokio::spawn(me.scope(async move { owner::current() == Some(me) }));
/// assert!(task.await.unwrap());
/// # });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u64);

impl Owner {
    /// A new owner, different from every other owner of this process.
    ///
    /// ```
    /// assert_ne!(fairlock::Owner::new(), fairlock::Owner::new());
    /// ```
    #[allow(clippy::new_without_default)] // two calls give two owners, which is not what Default promises
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        #[cfg(feature = "_simulation")]
        if let Some(last) = LAST_OF_THE_RUN.get() {
            LAST_OF_THE_RUN.set(Some(last + 1));
            return Self(last + 1);
        }
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The owner's ID at the servers, `<client id>:<number>`.
    pub(crate) fn id(self, client: &str) -> Arc<str> {
        [client, ":", &self.0.to_string()].concat().into()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}
