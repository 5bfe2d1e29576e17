//! Hooks for the simulator in `verify/simulate`, which decides over every single message. Not part of
//! the public API: they change without notice.

pub use crate::store::embedded::faults::{Delivery, Faults, Published, Ran, Task};
pub use crate::store::embedded::keyspace::Snapshot;

use crate::EmbeddedServer;

/// An embedded server around which things go wrong.
#[must_use]
pub fn server(faults: impl Faults) -> EmbeddedServer {
    EmbeddedServer::with_faults(faults)
}

/// Runs one command on the server's keys, outside of any script: what an administrator might do, or a look at the
/// state. The words of the reply; nil is an empty one.
#[must_use]
pub fn command(server: &EmbeddedServer, words: &[&str]) -> Vec<String> {
    server.command(words)
}

/// All keys of the server as they are now, with the times at which they expire. `None`: its engine did not start.
#[must_use]
pub fn snapshot(server: &EmbeddedServer) -> Option<Snapshot> {
    server.snapshot()
}

/// Puts an earlier state in place of the present one, as a failover to a replica does that was behind.
pub fn restore(server: &EmbeddedServer, snapshot: Snapshot) {
    server.restore(snapshot);
}
