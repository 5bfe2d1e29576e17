//! The identity that holds a lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

// A run of the simulator is the same each time, whatever else its process does: a server sorts owners by their numbers.
#[cfg(feature = "_simulation")]
thread_local! {
    static LAST_OF_THE_RUN: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// From now on the owners that this thread makes are numbered from 1.
#[cfg(feature = "_simulation")]
pub fn begin_run() {
    LAST_OF_THE_RUN.set(Some(0));
}

/// The identity that holds a lock. Calls under the same owner re-enter what that owner holds; calls under
/// different owners exclude each other.
///
/// An owner is a number of this process that is never used twice. It has nothing to do with tasks or
/// threads: [`owner::scope`](crate::owner::scope) binds one to a future, and
/// [`Owner::scope`](crate::Owner::scope) carries it over a `spawn`.
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
    /// A new owner, different from every other one of this process.
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

    /// Its id at the servers, `<client id>:<number>`.
    pub(crate) fn id(self, client: &str) -> Arc<str> {
        [client, ":", &self.0.to_string()].concat().into()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}
