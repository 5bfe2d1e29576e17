//! The line between a client and its server: down, up but not yet for everybody, up, or closed.
//!
//! Every store has one; what a connection is, each store says itself.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::{Listener, Source, StoreError, now};

pub(crate) trait Connection: Clone + Send + Sync + 'static {
    /// Cancelled when this connection is not to be used any more, whoever found that out.
    fn dead(&self) -> &CancellationToken;
}

#[derive(Clone)]
pub(crate) enum State<C> {
    Down(Source),
    /// Up, but the waits and holds of before the break come first.
    Resuming(C),
    Ready(C),
    Closed,
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the connection was closed")]
pub(crate) struct Disconnected;

pub(crate) struct Link<C> {
    state: Mutex<State<C>>,
    /// Not a `watch` channel: that wakes its receivers in a random order, and the simulator repeats
    /// its runs.
    changed: Notify,
    listener: OnceLock<Weak<dyn Listener>>,
    /// Cancelled by `close`: whoever keeps the connection stops.
    pub(crate) stop: CancellationToken,
}

impl<C: Connection> Link<C> {
    pub(crate) fn new() -> Self {
        let state = Mutex::new(State::Down(Arc::new(Disconnected)));
        Self { state, changed: Notify::new(), listener: OnceLock::new(), stop: CancellationToken::new() }
    }

    pub(crate) fn connection(&self, urgent: bool) -> Option<C> {
        usable(&self.state(), urgent).cloned()
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there is a usable connection, or with `Closed`.
    pub(crate) async fn ready(&self, urgent: bool) -> Result<(), StoreError> {
        loop {
            // Listening before looking: a change in between is not missed.
            let changed = self.changed.notified();
            if matches!(*self.state(), State::Closed) {
                return Err(StoreError::Closed);
            }
            if self.connection(urgent).is_some() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Why there is no connection.
    pub(crate) fn fault(&self) -> Source {
        match &*self.state() {
            State::Down(fault) => fault.clone(),
            _ => Arc::new(Disconnected),
        }
    }

    /// Moves on, but never away from `Closed`.
    pub(crate) fn offer(&self, next: State<C>) {
        let mut state = self.state();
        if !matches!(*state, State::Closed) {
            *state = next;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        // Set once, right after the client was made.
        let _ = self.listener.set(listener);
    }

    pub(crate) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.get().and_then(Weak::upgrade)
    }

    /// A new connection: the listener asks again first, in bounded time, then it is for everybody.
    pub(crate) async fn resume(&self, connection: &C, patience: Duration) {
        self.offer(State::Resuming(connection.clone()));
        if let Some(listener) = self.listener() {
            tokio::select! {
                biased;
                () = connection.dead().cancelled() => {}
                _ = timeout_at((now() + patience).into(), listener.resumed()) => {}
            }
        }
        self.offer(State::Ready(connection.clone()));
    }

    pub(crate) fn close(&self) {
        self.stop.cancel();
        self.offer(State::Closed);
    }
}

fn usable<C: Connection>(state: &State<C>, urgent: bool) -> Option<&C> {
    match state {
        State::Ready(connection) => Some(connection),
        State::Resuming(connection) if urgent => Some(connection),
        _ => None,
    }
    .filter(|connection| !connection.dead().is_cancelled())
}
