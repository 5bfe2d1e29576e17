//! Whether a client is connected.

use std::fmt;
use std::time::Duration;

use futures::future::select_all;

use crate::backend::Backend;
use crate::error::Cause;
use crate::quorum::majority;
use crate::store::server::{Line, Server};

/// Whether a client is connected, as far as it knows: a connection that broke a moment ago counts as connected until
/// the next request or ping fails.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClientState {
    /// The single server, each master of a cluster, or each of several servers.
    pub servers: Vec<ServerState>,
    /// How many must be connected. `None`: all servers in use.
    #[cfg_attr(feature = "serde", serde(skip))]
    needed: Option<usize>,
}

/// The connection to one server.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerState {
    /// Host and port, or the path of the socket. `unknown` until Sentinels have named a server.
    pub address: String,
    /// Whether it is connected.
    pub connection: ConnectionState,
    /// How long it has been [`Reconnecting`](ConnectionState::Reconnecting), if the client was connected to it before.
    #[cfg_attr(feature = "serde", serde(rename = "down_for_ms", serialize_with = "crate::serialize::millis_if_any"))]
    pub down_for: Option<Duration>,
    /// Why it is [`Reconnecting`](ConnectionState::Reconnecting): the error of the last attempt.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::cause"))]
    pub fault: Option<Cause>,
    /// Whether its messages arrived on the last connection. A proxy may swallow them; then each hand-over takes up to
    /// one poll interval.
    pub hears_messages: bool,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client sends requests at once.
    Connected,
    /// The connection broke, or is back and the client is checking its holds. The client keeps trying.
    Reconnecting,
    /// A master of a cluster whose locks the client has not used yet. The client connects to it when a call needs a
    /// lock there.
    Idle,
    /// The client's runtime has ended.
    RuntimeGone,
    /// The client is closed.
    Closed,
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connected => "connected",
            Self::Reconnecting => "reconnecting",
            Self::Idle => "idle",
            Self::RuntimeGone => "its runtime has ended",
            Self::Closed => "closed",
        })
    }
}

impl ClientState {
    pub(crate) fn of(backend: &Backend) -> Self {
        let runners = backend.contexts().map(|context| &context.runner);
        let servers =
            runners.flat_map(|runner| runner.store.seats().into_iter().filter_map(|seat| runner.store.server(seat)));
        let count = backend.contexts().count();
        let needed = (count > 1).then(|| majority(count));
        Self { servers: servers.map(ServerState::of).collect(), needed }
    }

    /// The combined state of all servers: connected if each server in use is, or, with several servers, if a majority
    /// is.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// assert_eq!(client.state().connection(), fairlock::ConnectionState::Connected);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn connection(&self) -> ConnectionState {
        let count = |state| self.servers.iter().filter(|server| server.connection == state).count();
        let any = |state| count(state) > 0;
        let is_served = self.needed.is_some_and(|needed| count(ConnectionState::Connected) >= needed);
        // The worst state. A client ends on all servers at once.
        [
            ConnectionState::Closed,
            ConnectionState::RuntimeGone,
            ConnectionState::Reconnecting,
            ConnectionState::Connected,
        ]
        .into_iter()
        .find(|state| any(*state) && !(is_served && *state == ConnectionState::Reconnecting))
        // A cluster without a master, or whose locks no call has used.
        .unwrap_or(if self.servers.is_empty() { ConnectionState::Reconnecting } else { ConnectionState::Idle })
    }

    fn is_like(&self, other: &Self) -> bool {
        let known = |state: &Self| -> Vec<_> {
            state.servers.iter().map(|server| (server.address.clone(), server.connection)).collect()
        };
        known(self) == known(other)
    }
}

impl ServerState {
    fn of(server: &dyn Server) -> Self {
        let (connection, fault) = match server.line() {
            Line::Idle => (ConnectionState::Idle, None),
            Line::Down(fault) => (ConnectionState::Reconnecting, Some(fault)),
            Line::Up => (ConnectionState::Connected, None),
            Line::RuntimeGone => (ConnectionState::RuntimeGone, None),
            Line::Closed => (ConnectionState::Closed, None),
        };
        let is_down = connection == ConnectionState::Reconnecting;
        Self {
            address: server.address(),
            connection,
            down_for: server.down_for().filter(|_| is_down),
            fault,
            hears_messages: server.hears(),
        }
    }
}

/// Watches whether a client is connected, reconnecting or closed; see
/// [`LockClient::watch_state`](crate::LockClient::watch_state). It keeps the client open, just as a clone does.
pub struct StateWatch {
    backend: Backend,
    last: ClientState,
}

impl StateWatch {
    pub(crate) fn new(backend: Backend) -> Self {
        let last = ClientState::of(&backend);
        Self { backend, last }
    }

    /// Waits for a state that differs from the last one in the connection or the address of a server, and returns it.
    /// It may miss a change that is undone between two calls. Returns `None` if it has already returned the state of a
    /// client that is closed or whose runtime has ended.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{ConnectionState, EmbeddedServer, LockClient};
    ///
    /// let server = EmbeddedServer::new();
    /// let client = LockClient::builder().embedded(&server)?;
    /// let mut watch = client.watch_state();
    /// server.shut_down();
    /// let state = watch.changed().await.expect("it is open");
    /// assert_eq!(state.connection(), ConnectionState::Reconnecting);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) -> Option<ClientState> {
        if matches!(self.last.connection(), ConnectionState::Closed | ConnectionState::RuntimeGone) {
            return None;
        }
        // Subscribe before reading the state, so that no change is missed.
        let mut changes: Vec<_> = self.backend.contexts().map(|context| context.runner.store.changes()).collect();
        loop {
            let state = ClientState::of(&self.backend);
            if !state.is_like(&self.last) {
                self.last = state.clone();
                return Some(state);
            }
            // It cannot fail: the stores live as long as this watch.
            let _ = select_all(changes.iter_mut().map(|changes| Box::pin(changes.changed()))).await;
        }
    }
}

impl fmt::Debug for StateWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateWatch").field("last", &self.last).finish_non_exhaustive()
    }
}
