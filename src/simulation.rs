//! Hooks for the simulator in `verify/simulate`, which controls every single message. Not part of the public API: they
//! change without notice.

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

/// Lets the simulator do more to servers than a user's test can.
impl Deref for EmbeddedServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

/// An embedded server with these faults around it.
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

/// Independent servers, like those in a quorum. The faults set how far their clocks differ.
#[must_use]
pub fn servers<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    Server::several(faults).into_iter().map(EmbeddedServer).collect()
}

/// Runs one command on the server's keys outside any script, as an administrator might, or to look at the state.
/// Returns the words of the reply; nil becomes an empty word.
#[must_use]
pub fn command(server: &EmbeddedServer, words: &[&str]) -> Vec<String> {
    texts(server.0.command(words)).iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

/// Whether the library assumes that a script with this error may have changed something.
#[must_use]
pub fn may_have_run(error: &str) -> bool {
    refusal(error).in_script
}

/// The id of this owner at the server.
#[must_use]
pub fn owner_id(client: &LockClient, owner: Owner) -> String {
    owner.id(client.id()).to_string()
}

/// The nodes of a cluster, with their faults. No slot has a node yet.
#[must_use]
pub fn cluster<F: Faults>(faults: impl IntoIterator<Item = F>) -> Vec<EmbeddedServer> {
    Server::cluster(faults).into_iter().map(EmbeddedServer).collect()
}

/// The address by which the nodes of a cluster know this one.
#[must_use]
pub fn address(node: &EmbeddedServer) -> String {
    node.0.address().unwrap_or_default().to_owned()
}

/// Sets this node's view of a lock's slot, like CLUSTER SETSLOT.
pub fn set_slot(node: &EmbeddedServer, lock_key: &str, slot: Slot) {
    node.0.set_slot(slot_of(lock_key), slot);
}

/// A client of a cluster. It knows only the slots that `node` lists, until a redirect or the next look.
///
/// # Errors
/// The same as [`LockClientBuilder::embedded`].
pub fn connect(
    builder: LockClientBuilder,
    nodes: &[EmbeddedServer],
    node: &EmbeddedServer,
) -> Result<(LockClient, Looks), ConnectError> {
    let (client, table) = builder.embedded_cluster(nodes, |table| table.replace(&ranges(&node.0)))?;
    Ok((client, Looks(Arc::downgrade(&table))))
}

/// The slots of this node, as CLUSTER SLOTS lists them.
fn ranges(node: &Server) -> Vec<SlotRange> {
    let range =
        |(slot, master): (u16, String)| Some(SlotRange { first: slot, last: slot, master: address_of(&master)? });
    node.slots().into_iter().filter_map(range).collect()
}

/// Replaces a client's watch, which asks the nodes which of them serves each slot.
#[derive(Clone)]
pub struct Looks(Weak<Table<EmbeddedWire>>);

impl Looks {
    /// Gives the client this node's view of the slots. Returns `false` if the client is gone.
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

/// Begins a run on this thread. Its owners are numbered from 1, and it runs on no other thread.
pub fn begin_run() {
    owner::begin_run();
}
