//! The identity that holds a lock: an [`Owner`], and the scope that carries it through a task.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task;

pub use crate::driver::owner::Owner;

// Our own thread-local, set during each poll, rather than `tokio::task_local!`: it also records which task polls.
thread_local! {
    static CURRENT: Cell<Option<PolledScope>> = const { Cell::new(None) };
}

/// A scope during one of its polls.
#[derive(Debug, Clone, Copy)]
struct PolledScope {
    owner: Owner,
    /// The task that polls it; `None` in a `block_on`. A `LocalSet` inside the scope polls tasks spawned elsewhere, and
    /// must not lend them the owner: two of them would hold the lock at once (P1).
    task: Option<task::Id>,
}

impl Owner {
    /// Runs `future` under this owner: every lock call in it re-enters this owner's holds, even inside another scope.
    /// No round trip.
    ///
    /// Use it to keep an owner across a `spawn`:
    ///
    /// ```
    /// use fairlock::{Owner, owner};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let me = Owner::new();
    /// let task = tokio::spawn(me.scope(async { owner::current() }));
    /// assert_eq!(task.await.unwrap(), Some(me));
    /// # });
    /// ```
    ///
    /// # Cancel safety
    /// As safe as `future` itself.
    pub fn scope<F: Future>(self, future: F) -> Scope<F> {
        Scope { owner: self, future: Box::pin(future) }
    }
}

/// Runs `future` under the owner of the current scope, or under a new one.
///
/// Nested lock calls inside re-enter. A nested `scope` keeps the outer owner, so a library that opens its own scope
/// still re-enters its caller's holds. The owner follows the future through `join!` and `select!`, but not into `spawn`
/// or `spawn_local`; use [`Owner::scope`] for those.
///
/// A future that moves to another task keeps its owner. Tasks of a `LocalSet` driven inside a scope do not get the
/// owner.
///
/// Two branches in one scope that ask for the same lock *share* it, since they have the same owner. If branches must
/// exclude each other, give them their own owners, or no scope.
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
///
/// # Cancel safety
/// As safe as `future` itself.
pub async fn scope<F: Future>(future: F) -> F::Output {
    current().unwrap_or_else(Owner::new).scope(future).await
}

/// Returns the owner of the current scope, if any. No round trip.
///
/// ```
/// assert_eq!(fairlock::owner::current(), None);
/// ```
#[must_use]
pub fn current() -> Option<Owner> {
    CURRENT.get().filter(|polled| polled.task == task::try_id()).map(|polled| polled.owner)
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
        // Reads the task at each poll, since the future may move to another task between polls.
        let polled = PolledScope { owner: self.owner, task: task::try_id() };
        // In a `Drop`, so that it also runs after a panic. Otherwise the next future on this thread would count as part
        // of this scope.
        let _restore = Restore { outer: CURRENT.replace(Some(polled)) };
        self.future.as_mut().poll(context)
    }
}

/// Restores the outer owner, even if the poll panics: this thread polls other tasks next.
struct Restore {
    outer: Option<PolledScope>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}
