//! The state of the line between a client and one server: down, ready, gone, or closed.
//!
//! Redis and the embedded server each bring their own kind of connection.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::clock::now;
use super::error::{Cause, Fault, RequestError};
use super::server::Line;
use super::{Listener, ServedKeys};
use crate::metrics::{Counted, Metrics};
use crate::sync::Mutex;

pub trait Connection: Clone + Send + Sync + 'static {
    /// Cancelled when this connection is not to be used any longer.
    fn dead(&self) -> &CancellationToken;
}

#[derive(Clone)]
pub enum State<C> {
    Down(Cause),
    Ready(C),
    /// The runtime that kept the connection has ended.
    Gone,
    Closed,
}

pub struct Link<C> {
    state: Mutex<State<C>>,
    /// Not a `watch` channel: that wakes its receivers in random order, and the simulator must be
    /// able to repeat a run.
    changed: Notify,
    /// The same for watchers of all connections of the client, of which a simulated client has none.
    pub changes: watch::Sender<()>,
    listener: OnceLock<Weak<dyn Listener>>,
    /// The keys that the server serves.
    pub keys: ServedKeys,
    /// When the end of the last connection was noticed.
    broke: Mutex<Option<Instant>>,
    metrics: Metrics,
    /// Counted among the connected servers, or among the others.
    counted: Mutex<Option<Counted>>,
    /// Cancelled by `close`: the task that keeps the connection ends.
    pub stop: CancellationToken,
}

impl<C: Connection> Link<C> {
    pub fn new(keys: ServedKeys, changes: watch::Sender<()>, metrics: Metrics) -> Self {
        let state = Mutex::new(State::Down(Arc::new(Fault::NotConnected)));
        let (changed, broke) = (Notify::new(), Mutex::new(None));
        let (listener, counted, stop) = (OnceLock::new(), Mutex::default(), CancellationToken::new());
        Self { state, changed, changes, listener, keys, broke, metrics, counted, stop }
    }

    pub fn connection(&self) -> Option<C> {
        usable(&self.state.lock()).cloned()
    }

    /// Whether there is one, for a look that needs no copy of it: each request looks twice.
    pub fn is_ready(&self) -> bool {
        usable(&self.state.lock()).is_some()
    }

    /// Resolves when there is a usable connection, or with `Closed` or `RuntimeGone`.
    pub async fn ready(&self) -> Result<(), RequestError> {
        loop {
            // Register before looking: a change between the look and the await is not missed.
            let changed = self.changed.notified();
            // The guard must be gone before `is_ready` locks the state again. It ends with this
            // match.
            match *self.state.lock() {
                State::Closed => return Err(RequestError::Closed),
                State::Gone => return Err(RequestError::RuntimeGone),
                _ => {}
            }
            if self.is_ready() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Why there is no connection.
    pub fn fault(&self) -> Cause {
        match &*self.state.lock() {
            State::Down(fault) => fault.clone(),
            _ => Arc::new(Fault::Disconnected),
        }
    }

    /// The state of the connection. A connection that is down and not wanted is idle.
    pub fn line(&self, is_wanted: bool) -> Line {
        let down = |cause| if is_wanted { Line::Down(cause) } else { Line::Idle };
        match &*self.state.lock() {
            State::Down(cause) => down(cause.clone()),
            State::Ready(connection) if connection.dead().is_cancelled() => down(Arc::new(Fault::Disconnected)),
            State::Ready(_) => Line::Up,
            State::Gone => Line::RuntimeGone,
            State::Closed => Line::Closed,
        }
    }

    /// How long it has been down, if it was up before.
    pub fn down_for(&self) -> Option<Duration> {
        let is_down = matches!(*self.state.lock(), State::Down(_));
        is_down.then(|| *self.broke.lock()).flatten().map(|broke| now().saturating_duration_since(broke))
    }

    /// Enters the next state. `Closed` is final, and `Gone` ends by it only: a supervisor that is about
    /// to offer a fresh connection must not reopen a client that was closed meanwhile.
    pub fn enter(&self, next: State<C>) {
        let mut state = self.state.lock();
        // Not when only the reason for its absence has changed.
        let breaks = matches!((&*state, &next), (State::Ready(_), State::Down(_)));
        if breaks {
            *self.broke.lock() = Some(now());
        }
        if !matches!((&*state, &next), (State::Closed, _) | (State::Gone, State::Down(_) | State::Ready(_))) {
            *state = next;
        }
        // Woken waiters lock the state at once, and a recorder of metrics may ask for it: so let go of it first.
        drop(state);
        self.count();
        self.changed.notify_waiters();
        self.changes.send_replace(());
        if breaks {
            self.listener().into_iter().for_each(|listener| listener.broke(&self.keys));
        }
    }

    fn count(&self) {
        let is_up = self.is_up();
        // Before the lock is taken: the recorder is the user's.
        let mut news = is_up.map(|is_up| if is_up { self.metrics.connected() } else { self.metrics.disconnected() });
        let mut counted = self.counted.lock();
        // A caller that has changed the state meanwhile counts it.
        if self.is_up() == is_up {
            std::mem::swap(&mut *counted, &mut news);
        }
        drop(counted);
    }

    fn is_up(&self) -> Option<bool> {
        match *self.state.lock() {
            State::Down(_) => Some(false),
            State::Ready(_) => Some(true),
            State::Gone | State::Closed => None,
        }
    }

    /// No connection is wanted: it is not missed either.
    pub fn rest(&self) {
        // Dropped when the mutex is free: a recorder is the user's.
        let _before = self.counted.lock().take();
    }

    pub fn listen(&self, listener: Weak<dyn Listener>) {
        // Set once, right after the client was made.
        let _ = self.listener.set(listener);
    }

    pub fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.get().and_then(Weak::upgrade)
    }

    /// Takes a new connection into use.
    pub fn resume(&self, connection: &C) {
        self.enter(State::Ready(connection.clone()));
        if self.broke.lock().is_some() {
            self.metrics.reconnected();
        }
        // Unless the client was closed meanwhile.
        if self.is_up() == Some(true) {
            self.listener().into_iter().for_each(|listener| listener.resumed(&self.keys));
        }
    }

    pub fn close(&self) {
        self.stop.cancel();
        self.enter(State::Closed);
    }

    /// The supervisor was dropped before it had ended: with its runtime.
    pub fn gone(&self) {
        // `close` ends the supervisor too. That is not the end of a runtime.
        if self.stop.is_cancelled() {
            return;
        }
        // Before the listener is notified, so that what it wakes finds the link gone (decision 46).
        self.enter(State::Gone);
        if let Some(listener) = self.listener() {
            listener.gone();
        }
    }
}

/// Calls back when it is dropped, with the task that keeps it: the only notice of a runtime's end.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn usable<C: Connection>(state: &State<C>) -> Option<&C> {
    match state {
        State::Ready(connection) => Some(connection),
        _ => None,
    }
    // A connection may be dead before its supervisor has noticed and entered `Down`.
    .filter(|connection| !connection.dead().is_cancelled())
}
