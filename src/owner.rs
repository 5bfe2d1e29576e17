//! Who may hold a lock: an [`Owner`], and the scope that carries it through a task.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

thread_local! {
    static CURRENT: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Who holds a lock. Calls under the same owner re-enter what that owner holds; calls under
/// different owners exclude each other.
///
/// An owner is a number of this process that is never given twice. It has nothing to do with tasks
/// or threads: [`scope`] binds one to a future, and [`Owner::scope`] carries it over a `spawn`.
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
    /// A new owner, unlike any other of this process.
    #[allow(clippy::new_without_default)] // two calls give two owners: not what Default promises
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs `future` under this owner, inside any scope: every lock call in it re-enters what this
    /// owner holds. No round trip.
    ///
    /// # Cancel safety
    /// As safe as `future` itself.
    pub fn scope<F: Future>(self, future: F) -> Scope<F> {
        Scope { owner: self, future: Box::pin(future) }
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

/// Runs `future` under the owner of the scope it is called in, or under a new one.
///
/// Inside, nested lock calls re-enter. A nested `scope` keeps the outer owner, so a library that
/// opens a scope of its own still re-enters what its caller holds. The owner follows the future
/// through `join!` and `select!` but not into `spawn`; for that there is [`Owner::scope`].
///
/// Two branches in one scope that ask for the same lock *share* it: they have the same owner. Give
/// branches that must exclude each other owners of their own, or no scope.
///
/// ```
/// use fairlock::owner;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert_eq!(owner::current(), None);
/// owner::scope(async {
///     let outer = owner::current();
///     assert!(outer.is_some());
///     owner::scope(async move { assert_eq!(owner::current(), outer) }).await;
/// })
/// .await;
/// # });
/// ```
pub async fn scope<F: Future>(future: F) -> F::Output {
    current().unwrap_or_else(Owner::new).scope(future).await
}

/// The owner of the scope that this runs in, if any.
pub fn current() -> Option<Owner> {
    CURRENT.get()
}

/// The future of [`Owner::scope`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Scope<F> {
    owner: Owner,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = Entered { outer: CURRENT.replace(Some(self.owner)) };
        self.future.as_mut().poll(context)
    }
}

/// Puts the outer owner back, also when the poll panics: the thread polls other tasks next.
struct Entered {
    outer: Option<Owner>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}
