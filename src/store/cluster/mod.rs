//! A Redis or Valkey Cluster: one node for each master, connected on demand, and a task that watches the table of
//! slots.
//!
//! The redis crate's cluster connection does not fit: when a slot with a subscription moves, replies shift by one,
//! and its retries run a script twice. Here each node has the same supervised connection as a single server. Each
//! script goes to the node that serves the slot of its keys. The client subscribes at each node, so that PUBLISH
//! counts it there (reachability is local).

pub mod identity;
pub mod router;
pub mod slots;
pub mod table;
pub mod view;
mod watch;

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::connect_options::{Address, list};
use super::dial::Access;
use super::error::ConnectError;
use super::link::OnDrop;
use super::location::Location;
use super::node::network::{NetworkNode, NetworkWire, Purpose};
use super::options::Options;
use super::runtime::{AFTER_PANIC, survive};
use router::Router;
use table::Table;
use watch::{PATIENCE, Watch};

/// Asks the seeds for the cluster, and connects to one master, so that a wrong password or a missing right is
/// reported at once. Returns a router even if this failed; the router keeps trying while it exists.
pub async fn connect(
    seeds: Vec<Address>,
    access: Arc<Access>,
    options: &Arc<Options>,
    client: &str,
) -> (Router<NetworkWire>, Result<(), ConnectError>) {
    let (doubt, changes) = (Arc::new(Notify::new()), tokio::sync::watch::Sender::default());
    let named_by: Arc<str> = format!("of the cluster at {}", list(&seeds)).into();
    let (runtime, client, seat_options) = (Handle::current(), client.to_owned(), options.clone());
    let (seat_access, seat_doubt, seat_changes) = (access.clone(), doubt.clone(), changes.clone());
    let table = Arc::new(Table::new(doubt, move |keys| {
        let location = Location::unknown(seat_access.clone(), named_by.clone(), seat_doubt.clone());
        let (location, changes) = (Arc::new(location), seat_changes.clone());
        let purpose = Purpose { location, database: 0, keys, changes };
        NetworkNode::new(purpose, &seat_options, &client, &runtime)
    }));
    let mut watch = Watch::new(table.clone(), access, seeds, options.operation_timeout);
    let outcome = async {
        watch.look_first().await?;
        connect_to_one(&table).await
    };
    let outcome = outcome.await;
    let router = Router::new(table.clone(), options.operation_timeout, changes);
    outcome.as_ref().err().into_iter().for_each(|error| router.begins_without_table(error));
    let told = table.clone();
    let on_drop = OnDrop(move || told.gone());
    router.accompany(async move {
        let _on_drop = on_drop;
        while survive(watch.run()).await.is_none() {
            sleep(AFTER_PANIC).await;
        }
    });
    (router, outcome)
}

/// Any master will do: usually all have the same users.
async fn connect_to_one(table: &Table<NetworkWire>) -> Result<(), ConnectError> {
    let (mut connecting, mut nodes, mut first_error) = (FuturesUnordered::new(), table.all(), None);
    loop {
        // One by one. If the earlier ones are silent, start the next one: a dead master must not hold up the rest.
        match nodes.next() {
            Some(node) => connecting.push(node.connect()),
            // There is at least one node, so there is an error. Otherwise the look would have failed.
            None if connecting.is_empty() => return first_error.map_or(Ok(()), Err),
            None => {}
        }
        match timeout(PATIENCE, connecting.next()).await {
            Ok(Some(Ok(()))) => return Ok(()),
            // The master may be down and about to be replaced, or not ready yet. The other masters work without it.
            Ok(Some(Err(error))) if error.may_pass() => drop(first_error.get_or_insert(error)),
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
}
