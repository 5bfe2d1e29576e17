//! Sends each request to the node that it is for, follows ASK, and reports slots that have moved.

use std::future::Future;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::slots::slot_of;
use super::table::Table;
use crate::store::call::{Call, Post};
use crate::store::connect_options::Address;
use crate::store::error::{Cause, ConnectError, Fault, Refusal, RequestError};
use crate::store::node::Node;
use crate::store::node::wire::Wire;
use crate::store::server::Server;
use crate::store::{Listener, Ran, Store};

/// The store of a cluster.
pub struct Router<W: Wire> {
    table: Arc<Table<W>>,
    /// Why no node was found at first.
    first_fault: OnceLock<Cause>,
    closed: CancellationToken,
    /// How long a redirected request waits for the other node.
    patience: Duration,
    changes: watch::Sender<()>,
}

impl<W: Wire> Router<W> {
    pub fn new(table: Arc<Table<W>>, operation_timeout: Duration, changes: watch::Sender<()>) -> Self {
        // Half: so there is time for the answer of the other node, within the same operation time-out.
        Self {
            table,
            first_fault: OnceLock::new(),
            closed: CancellationToken::new(),
            patience: operation_timeout / 2,
            changes,
        }
    }

    /// The first look at the cluster has failed.
    pub fn begins_without_table(&self, error: &ConnectError) {
        // Set once.
        let _ = self.first_fault.set(Arc::new(error.clone()));
    }

    /// Runs a task as long as the store is open.
    pub fn accompany(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.closed.clone().run_until_cancelled_owned(task));
    }

    fn node(&self, lock_key: &str) -> Option<&Node<W>> {
        self.table.serving(slot_of(lock_key))
    }

    /// Runs it at the server of this seat. Where its slot has gone is the listener's to know: it asks anew there.
    async fn find_at<'a>(&'a self, seat: u16, call: Call<'a>, request: u64) -> Result<Ran<'a>, RequestError> {
        let ran = self.ask(seat, call, request).await?;
        if is_lost_elsewhere(&ran, self.table.seat(seat)) { self.ask(seat, call, request).await } else { Ok(ran) }
    }

    /// Goes on only to a node that is about to get the slot.
    async fn ask<'a>(&'a self, seat: u16, call: Call<'a>, request: u64) -> Result<Ran<'a>, RequestError> {
        let slot = slot_of(call.lock_key);
        let uncovered = || RequestError::NotSent(Arc::new(Fault::Uncovered(slot)));
        let node = self.table.seat(seat).ok_or_else(uncovered)?;
        let outcome = Server::run(node, call, request).await.map(|reply| Ran { reply, by: node });
        let Err(RequestError::Refused(refusal)) = &outcome else { return outcome };
        match Redirect::read(refusal, || self.table.address_at(seat)) {
            Some(Redirect::Ask(to)) => {
                let node = self.table.at(&to).ok_or_else(uncovered)?;
                self.wait_for(node).await?;
                return Server::run(node, call.asking(), request).await.map(|reply| Ran { reply, by: node });
            }
            Some(Redirect::Moved(to)) => drop(self.table.moved(slot, &to)),
            None if matches!(refusal.code.as_str(), "CLUSTERDOWN" | "MOVED") => self.table.doubt.notify_one(),
            None => {}
        }
        outcome
    }

    async fn wait_for(&self, node: &Node<W>) -> Result<(), RequestError> {
        if node.is_ready() {
            return Ok(());
        }
        match timeout(self.patience, Server::ready(node)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(RequestError::NotSent(Server::fault(node))),
        }
    }
}

/// A node that is about to get a slot says of a hold that it is lost, because its key is not there. But the key may have gone
/// back meanwhile to the node that has the slot, so that one is asked once more. Nothing was changed (R4).
fn is_lost_elsewhere<W: Wire>(ran: &Ran<'_>, has_slot: Option<&Node<W>>) -> bool {
    ran.reply.is_status("lost") && !has_slot.is_some_and(|node| std::ptr::addr_eq(ran.by, node))
}

/// Where a node sends a request.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// The slot is there now.
    Moved(Address),
    /// The slot is about to go there, and these keys have gone already.
    Ask(Address),
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381`. A node that does not know its own address leaves the host out: it
    /// is the host that was asked.
    fn read(refusal: &Refusal, asked: impl FnOnce() -> Option<Address>) -> Option<Self> {
        if !matches!(refusal.code.as_str(), "MOVED" | "ASK") {
            return None;
        }
        let (_slot, place) = refusal.message.split_once(' ')?;
        let (host, port) = place.trim().rsplit_once(':')?;
        let host = match host {
            "" => match asked()? {
                Address::Tcp { host, .. } => host,
                Address::Unix(_) => return None,
            },
            // It has no name, and only CLUSTER SLOTS has its address.
            "?" => return None,
            host => host.to_owned(),
        };
        let address = Address::Tcp { host, port: port.parse().ok()? };
        Some(if refusal.code == "MOVED" { Self::Moved(address) } else { Self::Ask(address) })
    }
}

impl<W: Wire> Store for Router<W> {
    fn serving(&self, lock_key: &str) -> Option<&dyn Server> {
        self.node(lock_key).map(|node| node as &dyn Server)
    }

    fn fault(&self, lock_key: &str) -> Cause {
        if let Some(node) = self.node(lock_key) {
            return Server::fault(node);
        }
        let first = self.first_fault.get().filter(|_| self.table.all().next().is_none());
        first.cloned().unwrap_or_else(|| Arc::new(Fault::Uncovered(slot_of(lock_key))))
    }

    fn run_at<'a>(&'a self, seat: u16, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<Ran<'a>, RequestError>> {
        self.find_at(seat, call, request).boxed()
    }

    fn post(&self, seat: u16) -> Option<Box<dyn Post>> {
        W::post(self.table.seat(seat)?.inner())
    }

    fn seat_of(&self, slot: u16) -> Option<u16> {
        self.table.seat_of(slot)
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.table.listen(listener);
    }

    fn seats(&self) -> Vec<u16> {
        self.table.seats_in_use()
    }

    fn server(&self, seat: u16) -> Option<&dyn Server> {
        self.table.seat(seat).map(|node| node as &dyn Server)
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn close(&self) {
        self.closed.cancel();
        self.table.close();
        self.table.all().for_each(Node::end);
    }
}

impl<W: Wire> Drop for Router<W> {
    fn drop(&mut self) {
        // The seats close themselves when they are dropped.
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_read() {
        let at = |host: &str, port| Address::Tcp { host: host.into(), port };
        let asked = at("n1.internal", 7000);
        let read = |code, message| Redirect::read(&Refusal::new(code, message), || Some(asked.clone()));
        assert_eq!(read("MOVED", "3999 10.0.0.2:7001"), Some(Redirect::Moved(at("10.0.0.2", 7001))));
        assert_eq!(read("ASK", "3999 ::1:7001"), Some(Redirect::Ask(at("::1", 7001))));
        // A node without a name of its own.
        assert_eq!(read("MOVED", "890 :7106"), Some(Redirect::Moved(at("n1.internal", 7106))));
        assert_eq!(read("MOVED", "890 ?:7106"), None);
        assert_eq!(read("MOVED", "nonsense"), None);
        assert_eq!(read("TRYAGAIN", "890 :7106"), None);
    }
}
