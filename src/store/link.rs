//! The state of the connection between a client and one server: down, ready, gone, or closed.
//!
//! Redis and the embedded server each have their own kind of connection.

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
    /// Cancelled when nobody may use this connection any longer.
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
    /// Not a `watch` channel: it wakes its receivers in random order, and the simulator must be able to repeat a run.
    changed: Notify,
    /// The same, for watchers of all the client's connections. A simulated client has none.
    pub changes: watch::Sender<()>,
    listener: OnceLock<Weak<dyn Listener>>,
    pub keys: ServedKeys,
    /// When the end of the last connection was noticed.
    broke: Mutex<Option<Instant>>,
    metrics: Metrics,
    /// Whether the metrics count this server as connected or as disconnected.
    counted: Mutex<Option<Counted>>,
    /// `close` cancels it, which ends the task that keeps the connection.
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

    /// Whether there is a usable connection, without cloning it: each request checks twice.
    pub fn is_ready(&self) -> bool {
        usable(&self.state.lock()).is_some()
    }

    /// Resolves when there is a usable connection, or with `Closed` or `RuntimeGone`.
    pub async fn ready(&self) -> Result<(), RequestError> {
        loop {
            // Register before looking, so that no change between the look and the await is missed.
            let changed = self.changed.notified();
            // The guard must end before `is_ready` locks the state again. It ends with this match.
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

    /// Enters the next state. `Closed` is final, and only `Closed` ends `Gone`. Otherwise a supervisor with a fresh
    /// connection could reopen a client that was closed in the meantime.
    pub fn enter(&self, next: State<C>) {
        let mut state = self.state.lock();
        // Not if only the reason for being down has changed.
        let breaks = matches!((&*state, &next), (State::Ready(_), State::Down(_)));
        if breaks {
            *self.broke.lock() = Some(now());
        }
        if !matches!((&*state, &next), (State::Closed, _) | (State::Gone, State::Down(_) | State::Ready(_))) {
            *state = next;
        }
        // Release it first: woken waiters lock the state at once, and a metrics recorder may ask for it.
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
        // Before taking the lock: this calls the user's recorder.
        let mut news = is_up.map(|is_up| if is_up { self.metrics.connected() } else { self.metrics.disconnected() });
        let mut counted = self.counted.lock();
        // If another caller has changed the state in the meantime, that caller counts it.
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

    /// No connection is wanted, so the metrics do not count it as missing.
    pub fn rest(&self) {
        // Dropped after releasing the lock: the recorder is the user's.
        let _before = self.counted.lock().take();
    }

    pub fn listen(&self, listener: Weak<dyn Listener>) {
        // Set once, right after the client is made.
        let _ = self.listener.set(listener);
    }

    pub fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.get().and_then(Weak::upgrade)
    }

    /// Starts to use a new connection.
    pub fn resume(&self, connection: &C) {
        self.enter(State::Ready(connection.clone()));
        if self.broke.lock().is_some() {
            self.metrics.reconnected();
        }
        // Unless the client was closed in the meantime.
        if self.is_up() == Some(true) {
            self.listener().into_iter().for_each(|listener| listener.resumed(&self.keys));
        }
    }

    pub fn close(&self) {
        self.stop.cancel();
        self.enter(State::Closed);
    }

    /// The supervisor was dropped before its end, so its runtime has ended.
    pub fn gone(&self) {
        // `close` ends the supervisor too, without the end of the runtime.
        if self.stop.is_cancelled() {
            return;
        }
        // Before notifying the listener, so that the tasks it wakes find the link gone (decision 46).
        self.enter(State::Gone);
        if let Some(listener) = self.listener() {
            listener.gone();
        }
    }
}

/// Calls back when it is dropped with the task that owns it. That is the only notice of a runtime's end.
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
