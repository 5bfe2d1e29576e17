//! One server, and the supervised connection to it: Redis or Valkey over the network, or an embedded server.
//!
//! The redis crate's `ConnectionManager` does not fit: under load it reconnects twice, when idle it does not
//! subscribe again, and it stays with a demoted primary. Here one task owns the connection.

mod error;
mod handshake;
mod name;
pub mod network;
mod sign_in;
mod supervisor;
pub mod wire;

pub use error::{cluster_error, connect_error};
pub use sign_in::{SignedIn, sign_in};

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fairlock_proto::reply::ScriptReply;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::boot::Boot;
use super::call::{Call, Post};
use super::clock::ServerClock;
use super::connect_options::Address;
use super::error::{Cause, RequestError};
use super::link::{OnDrop, State};
use super::runtime::log_line;
use super::server::{Line, Server, Told};
use super::{Listener, Ran, Store};
use wire::{Supervised, Wire};

pub struct Node<W: Wire> {
    inner: Arc<Supervised<W>>,
}

impl<W: Wire> Node<W> {
    /// Connects when it is first asked to. Its task runs in the given runtime.
    pub fn start(inner: Supervised<W>, runtime: &Handle) -> Self {
        let inner = Arc::new(inner);
        let (kept, told) = (inner.clone(), inner.clone());
        // The task owns this, so the runtime drops it with the task, even before its first poll (decision 46).
        let on_drop = OnDrop(move || told.link.gone());
        let task = async move {
            let _on_drop = on_drop;
            supervisor::supervise(&kept).await;
        };
        runtime.spawn(inner.wire.wrap_task(task.boxed()));
        Self { inner }
    }

    pub fn inner(&self) -> &Arc<Supervised<W>> {
        &self.inner
    }

    pub fn accompany(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.inner.link.stop.clone().run_until_cancelled_owned(task));
    }

    /// Keeps trying to connect after the first attempt has failed.
    pub fn go_on(&self, cause: Cause) {
        self.inner.link.enter(State::Down(cause));
        self.inner.want();
    }

    /// Starts to use the first connection. From now on the task owns it.
    pub fn begin(&self, first: W::Attached) {
        // Ready without `resume`: a new client does not have waits or holds to check.
        self.inner.link.enter(State::Ready(W::connection(&first).clone()));
        *self.inner.first.lock() = Some(first);
        self.inner.want();
    }

    /// Serves another address. `None`: it is not in use now, and gives up its connection.
    pub fn move_to(&self, address: Option<&Address>) {
        self.inner.move_to(address);
        // If the address is the same as a moment ago, the node has not given up its connection.
        if address.is_some() && self.inner.link.is_ready() {
            self.inner.want();
        }
    }

    pub fn end(&self) {
        // In this order: a closed link drops its connection.
        self.inner.wire.close();
        self.inner.link.close();
        // The supervising task may have ended before it took over the first connection.
        let _first = self.inner.first.lock().take();
    }
}

impl<W: Wire> Drop for Node<W> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<W: Wire> Server for Node<W> {
    fn is_ready(&self) -> bool {
        self.inner.link.is_ready()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), RequestError>> {
        self.inner.want();
        self.inner.link.ready().boxed()
    }

    fn want(&self) {
        self.inner.want();
    }

    fn fault(&self) -> Cause {
        self.inner.link.fault()
    }

    fn run<'a>(&'a self, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<ScriptReply, RequestError>> {
        W::run(&self.inner, call, request).boxed()
    }

    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Told, RequestError>> {
        W::ask(&self.inner, words).boxed()
    }

    fn distrust(&self) {
        if let Some(connection) = self.inner.link.connection() {
            log_line(|| {
                tracing::warn!(target: "fairlock::server", address = %self.address(), "a reply belongs to another request: reconnecting");
            });
            self.inner.wire.disconnect(&connection);
        }
    }

    fn suspect(&self) {
        self.inner.wire.suspect();
    }

    fn clock(&self) -> &ServerClock {
        &self.inner.clock
    }

    fn address(&self) -> String {
        self.inner.wire.address()
    }

    fn line(&self) -> Line {
        self.inner.link.line(self.inner.is_wanted())
    }

    fn down_for(&self) -> Option<Duration> {
        self.inner.link.down_for()
    }

    fn hears(&self) -> bool {
        self.inner.wire.hears()
    }

    fn boot(&self) -> Option<&Boot> {
        self.inner.boot.as_ref()
    }

    fn server_id(&self) -> Option<String> {
        self.inner.wire.server_id()
    }
}

/// The only server of a client, which serves every lock.
impl<W: Wire> Store for Node<W> {
    fn serving(&self, _lock_key: &str) -> Option<&dyn Server> {
        Some(self)
    }

    fn fault(&self, _lock_key: &str) -> Cause {
        self.inner.link.fault()
    }

    fn run_at<'a>(&'a self, _seat: u16, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<Ran<'a>, RequestError>> {
        async move { Ok(Ran { reply: W::run(&self.inner, call, request).await?, by: self }) }.boxed()
    }

    fn post(&self, _seat: u16) -> Option<Box<dyn Post>> {
        W::post(&self.inner)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.inner.link.listen(listener);
    }

    fn seats(&self) -> Vec<u16> {
        vec![0]
    }

    fn server(&self, seat: u16) -> Option<&dyn Server> {
        (seat == 0).then_some(self)
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.inner.link.changes.subscribe()
    }

    fn close(&self) {
        self.end();
    }
}
