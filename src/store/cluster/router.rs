//! Sends each request to the node that serves its slot, follows ASK, and reports slots that have moved.

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

pub struct Router<W: Wire> {
    table: Arc<Table<W>>,
    /// Why the first look found no node.
    first_fault: OnceLock<Cause>,
    closed: CancellationToken,
    /// How long a redirected request waits for a connection to the other node.
    patience: Duration,
    changes: watch::Sender<()>,
}

impl<W: Wire> Router<W> {
    pub fn new(table: Arc<Table<W>>, operation_timeout: Duration, changes: watch::Sender<()>) -> Self {
        // Half, which leaves time for the other node's answer within the same operation time-out.
        Self {
            table,
            first_fault: OnceLock::new(),
            closed: CancellationToken::new(),
            patience: operation_timeout / 2,
            changes,
        }
    }

    pub fn begins_without_table(&self, error: &ConnectError) {
        // Set once.
        let _ = self.first_fault.set(Arc::new(error.clone()));
    }

    pub fn accompany(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.closed.clone().run_until_cancelled_owned(task));
    }

    fn node(&self, lock_key: &str) -> Option<&Node<W>> {
        self.table.serving(slot_of(lock_key))
    }

    /// Runs a call at the server of this seat. If the slot has moved, the listener is notified and asks again at the
    /// new node.
    async fn find_at<'a>(&'a self, seat: u16, call: Call<'a>, request: u64) -> Result<Ran<'a>, RequestError> {
        let ran = self.ask(seat, call, request).await?;
        if is_lost_elsewhere(&ran, self.table.seat(seat)) { self.ask(seat, call, request).await } else { Ok(ran) }
    }

    /// Follows a redirect only to a node that is about to get the slot.
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

/// A node that is about to get a slot reports a hold as lost if its key is not there. But the key may have moved back
/// to the node that has the slot, so the client asks that node once more. The first request changed nothing (R4).
fn is_lost_elsewhere<W: Wire>(ran: &Ran<'_>, has_slot: Option<&Node<W>>) -> bool {
    ran.reply.is_status("lost") && !has_slot.is_some_and(|node| std::ptr::addr_eq(ran.by, node))
}

#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// Another node has the slot now.
    Moved(Address),
    /// The slot is about to move there, and these keys have moved already.
    Ask(Address),
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381`. A node that does not know its own address leaves out the host, which is
    /// then the host that the client asked.
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
            // The node lacks a name, and only CLUSTER SLOTS has its address.
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
        // A node that does not know its own name.
        assert_eq!(read("MOVED", "890 :7106"), Some(Redirect::Moved(at("n1.internal", 7106))));
        assert_eq!(read("MOVED", "890 ?:7106"), None);
        assert_eq!(read("MOVED", "nonsense"), None);
        assert_eq!(read("TRYAGAIN", "890 :7106"), None);
    }
}
