//! Whether a client is connected.

use std::fmt;
use std::time::Duration;

use futures::future::select_all;

use crate::backend::Backend;
use crate::error::Cause;
use crate::quorum::majority;
use crate::store::server::{Line, Server};

/// Whether a client is connected, as far as it knows: a line that was cut a moment ago counts as connected until the next
/// request or ping finds out.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClientState {
    /// Each server: one, each master of a cluster, or each of several.
    pub servers: Vec<ServerState>,
    /// How many have to be connected. `None`: all that are in use.
    #[cfg_attr(feature = "serde", serde(skip))]
    needed: Option<usize>,
}

/// The connection to one server.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerState {
    /// Host and port, or the path of the socket. `unknown` before Sentinels have named one.
    pub address: String,
    /// Whether it is connected.
    pub connection: ConnectionState,
    /// How long it has been [`Reconnecting`](ConnectionState::Reconnecting), if it was connected before.
    #[cfg_attr(feature = "serde", serde(rename = "down_for_ms", serialize_with = "crate::serialize::millis_if_any"))]
    pub down_for: Option<Duration>,
    /// Why it is [`Reconnecting`](ConnectionState::Reconnecting): what the last try has met.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::cause"))]
    pub fault: Option<Cause>,
    /// Whether messages from it arrived when it was connected last. A proxy may swallow them: then each hand-over takes up
    /// to a poll interval.
    pub hears_messages: bool,
}

/// Whether there is a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ConnectionState {
    /// Requests are sent at once.
    Connected,
    /// The connection is lost, or was made again and what is held is being checked. The client goes on trying.
    Reconnecting,
    /// A master of a cluster whose locks were not used yet. The client connects to it when a lock there is asked for.
    Idle,
    /// The runtime that the client was made in has ended.
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

    /// The state of all servers together: connected if each one is that is in use, and of several if a majority is.
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
        // The worst one. A client ends on all servers at once.
        [
            ConnectionState::Closed,
            ConnectionState::RuntimeGone,
            ConnectionState::Reconnecting,
            ConnectionState::Connected,
        ]
        .into_iter()
        .find(|state| any(*state) && !(is_served && *state == ConnectionState::Reconnecting))
        // A cluster without a master, or one of which no lock was asked for.
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

/// Watches whether a client is connected, reconnecting or closed:
/// [`LockClient::watch_state`](crate::LockClient::watch_state).
/// It keeps the client open, as a clone of it does.
pub struct StateWatch {
    backend: Backend,
    last: ClientState,
}

impl StateWatch {
    pub(crate) fn new(backend: Backend) -> Self {
        let last = ClientState::of(&backend);
        Self { backend, last }
    }

    /// The next state that differs from the one before, in the connection or the address of a server. What changes and
    /// changes back between two calls may be missed. `None`: the client is closed or its runtime has ended, and that was
    /// told.
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
        // Before the look: a change after it is waited for.
        let mut changes: Vec<_> = self.backend.contexts().map(|context| context.runner.store.changes()).collect();
        loop {
            let state = ClientState::of(&self.backend);
            if !state.is_like(&self.last) {
                self.last = state.clone();
                return Some(state);
            }
            // The stores live as long as this, so it does not fail.
            let _ = select_all(changes.iter_mut().map(|changes| Box::pin(changes.changed()))).await;
        }
    }
}

impl fmt::Debug for StateWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateWatch").field("last", &self.last).finish_non_exhaustive()
    }
}
