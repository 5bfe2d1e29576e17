//! Hooks for the simulator in `verify/simulate`, which decides over every single message. Not part of
//! the public API: they change without notice.

pub use crate::store::embedded::faults::{Delivery, Faults, Published, Ran, Task};

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
