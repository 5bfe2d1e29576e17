//! Hooks for the simulator in `verify/simulate`, which decides over every single message. Not part of
//! the public API: they change without notice.

use std::ops::Deref;
use std::sync::{Arc, Weak};

pub use fairlock_emulator::{
    Delivery, Faults, Published, Ran, Redirected, RefusedCommands, Server, Slot, Snapshot, Task,
};

use crate::driver::owner;
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::table::Table;
use crate::store::cluster::view::SlotRange;
use crate::store::embedded::{EmbeddedWire, address as address_of, refusal, texts};
use crate::{ConnectError, EmbeddedServer, LockClient, LockClientBuilder, Owner};

/// What happens to servers, beside what a user's test may do to them.
impl Deref for EmbeddedServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

/// An embedded server around which things go wrong.
///
/// ```
/// use fairlock::simulation::{Delivery, Faults, server};
/// use fairlock::{LockClient, LockError};
/// use std::time::Duration;
///
/// struct EveryReplyIsLost;
///
/// impl Faults for EveryReplyIsLost {
///     fn request(&self, _client: &str, _script: &str) -> Vec<Delivery> {
///         vec![Delivery { reply: None, ..Delivery::AT_ONCE }]
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder().embedded(&server(EveryReplyIsLost))?;
/// let outcome = client.lock("x").lock_timeout(Duration::from_secs(9)).await;
/// assert!(matches!(outcome, Err(LockError::Unreachable(_))));
/// # Ok(()) }
/// ```
#[must_use]
pub fn server(faults: impl Faults) -> EmbeddedServer {
    EmbeddedServer(Server::with_faults(faults))
}

/// Servers that know nothing of each other, as those of a quorum. Their clocks differ as the faults say.
#[must_use]
pub fn servers<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    Server::several(faults).into_iter().map(EmbeddedServer).collect()
}

/// Runs one command on the server's keys, outside of any script: what an administrator might do, or a look at the
/// state. The words of the reply; nil is an empty one.
#[must_use]
pub fn command(server: &EmbeddedServer, words: &[&str]) -> Vec<String> {
    texts(server.0.command(words)).iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

/// Whether a script that ended with this error may have changed something, as the library reads it.
#[must_use]
pub fn may_have_run(error: &str) -> bool {
    refusal(error).in_script
}

/// How the server calls this owner at this client.
#[must_use]
pub fn owner_id(client: &LockClient, owner: Owner) -> String {
    owner.id(client.id()).to_string()
}

/// The nodes of a cluster, with the faults around each of them. No slot has a node yet.
#[must_use]
pub fn cluster<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    Server::cluster(faults).into_iter().map(EmbeddedServer).collect()
}

/// How the nodes of a cluster call this one.
#[must_use]
pub fn address(node: &EmbeddedServer) -> String {
    node.0.address().unwrap_or_default().to_owned()
}

/// CLUSTER SETSLOT: what this node knows of the slot of a lock.
pub fn set_slot(node: &EmbeddedServer, lock_key: &str, slot: Slot) {
    node.0.set_slot(slot_of(lock_key), slot);
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
    let (client, table) = builder.embedded_cluster(nodes, |table| table.replace(&ranges(&node.0)))?;
    Ok((client, Looks(Arc::downgrade(&table))))
}

/// As in CLUSTER SLOTS.
fn ranges(node: &Server) -> Vec<SlotRange> {
    let range =
        |(slot, master): (u16, String)| Some(SlotRange { first: slot, last: slot, master: address_of(&master)? });
    node.slots().into_iter().filter_map(range).collect()
}

/// In place of the watch of a client, which asks the nodes who serves which slot.
#[derive(Clone)]
pub struct Looks(Weak<Table<EmbeddedWire>>);

impl Looks {
    /// What this node says. `false`: the client is gone.
    #[must_use]
    pub fn look(&self, node: &EmbeddedServer) -> bool {
        let table = self.0.upgrade();
        table.iter().for_each(|table| table.replace(&ranges(&node.0)));
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
