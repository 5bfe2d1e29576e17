//! Hooks for the simulator in `verify/simulate`, which decides over every single message. Not part of
//! the public API: they change without notice.

use std::sync::{Arc, Weak};

pub use crate::store::embedded::faults::{Delivery, Faults, Published, Ran, Redirected, Task};
pub use crate::store::embedded::member::Slot;
pub use fairlock_emulator::{RefusedCommands, Snapshot};

use crate::engine::owner;
use crate::store::cluster::table::Table;
use crate::store::embedded::EmbeddedNode;
use crate::{ConnectError, EmbeddedServer, LockClient, LockClientBuilder, Owner};

/// An embedded server around which things go wrong.
#[must_use]
pub fn server(faults: impl Faults) -> EmbeddedServer {
    EmbeddedServer::with_faults(faults)
}

/// Servers that know nothing of each other, as those of a quorum. Their clocks differ as the faults say.
#[must_use]
pub fn servers<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    EmbeddedServer::several(faults)
}

/// Runs one command on the server's keys, outside of any script: what an administrator might do, or a look at the
/// state. The words of the reply; nil is an empty one.
#[must_use]
pub fn command(server: &EmbeddedServer, words: &[&str]) -> Vec<String> {
    server.command(words)
}

/// FLUSHDB of another database: connections are notified as of any flush, and no key of a lock is gone.
pub fn flush_elsewhere(server: &EmbeddedServer) {
    server.tell_of_flush();
}

/// How the server calls this owner at this client.
#[must_use]
pub fn owner_id(client: &LockClient, owner: Owner) -> String {
    owner.id(client.id())
}

/// All keys of the server now, with the times at which they expire. `None`: its engine did not start.
#[must_use]
pub fn snapshot(server: &EmbeddedServer) -> Option<Snapshot> {
    server.snapshot()
}

/// Puts an earlier state in place of the present one, as a failover to a replica does that was behind.
pub fn restore(server: &EmbeddedServer, snapshot: Snapshot) {
    server.restore(snapshot);
}

/// After a shut-down: the server was not ended. Clients only did not get to it, and another one took over from it meanwhile,
/// which it took no notice of. Only Sentinels know.
pub fn was_replaced(server: &EmbeddedServer) {
    server.was_replaced();
}

/// The primary was demoted, loaded this earlier state of a replica, and is the primary again. Connections stay.
pub fn was_demoted(server: &EmbeddedServer, snapshot: Snapshot) {
    server.was_demoted(snapshot);
}

/// The nodes of a cluster, with the faults around each of them. No slot has a node yet.
#[must_use]
pub fn cluster<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    EmbeddedServer::cluster(faults)
}

/// How the nodes of a cluster call this one.
#[must_use]
pub fn address(node: &EmbeddedServer) -> String {
    node.address().map(|address| address.to_string()).unwrap_or_default()
}

/// CLUSTER SETSLOT: what this node knows of the slot of a lock.
pub fn set_slot(node: &EmbeddedServer, lock_key: &str, slot: Slot) {
    node.set_slot(lock_key, slot);
}

/// MIGRATE: moves one key, with what is left of its lifetime, to another node.
pub fn migrate(node: &EmbeddedServer, key: &str, to: &EmbeddedServer) {
    node.migrate(key, to);
}

/// A client of a cluster. It knows only the slots that `node` names, until it is redirected or looks again.
///
/// # Errors
/// As [`LockClientBuilder::embedded`].
pub fn connect(
    builder: LockClientBuilder,
    nodes: &[EmbeddedServer],
    node: &EmbeddedServer,
) -> Result<(LockClient, Looks), ConnectError> {
    let (client, table) = builder.embedded_cluster(nodes, |table| table.replace(&node.ranges()))?;
    Ok((client, Looks(Arc::downgrade(&table))))
}

/// In place of the watch of a client, which asks the nodes who serves which slot.
#[derive(Clone)]
pub struct Looks(Weak<Table<EmbeddedNode>>);

impl Looks {
    /// What this node says. `false`: the client is gone.
    #[must_use]
    pub fn look(&self, node: &EmbeddedServer) -> bool {
        let table = self.0.upgrade();
        table.iter().for_each(|table| table.replace(&node.ranges()));
        table.is_some()
    }

    /// Resolves when the client has a reason to look.
    pub async fn doubt(&self) {
        let Some(doubt) = self.0.upgrade().map(|table| table.doubt.clone()) else { return };
        doubt.notified().await;
    }
}

/// A run begins on this thread: its owners are numbered from 1, and it runs on no other thread.
pub fn begin_run() {
    owner::begin_run();
}
