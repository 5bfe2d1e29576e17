//! The state of each server, and the trait for what differs between the network and this process.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock_proto::reply::ScriptReply;
use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};

use crate::store::ServedKeys;
use crate::store::backoff::Backoff;
use crate::store::boot::Boot;
use crate::store::call::{Call, Post};
use crate::store::clock::ServerClock;
use crate::store::connect_options::Address;
use crate::store::error::RequestError;
use crate::store::link::{self, Link};
use crate::store::options::Options;
use crate::store::server::Told;
use crate::sync::Mutex;

pub trait Wire: Send + Sync + Sized + 'static {
    type Connection: link::Connection;
    /// A new connection, and the parts that only the task that keeps it needs.
    type Attached: Send;

    fn connection(attached: &Self::Attached) -> &Self::Connection;
    /// Tries to connect until it succeeds. `None`: no connection is wanted any longer.
    fn connect(
        node: &Arc<Supervised<Self>>,
        backoff: &mut Backoff,
    ) -> impl Future<Output = Option<Self::Attached>> + Send;
    /// Resolves when the connection has ended. Returns whether it ended because the server has moved.
    fn over(node: &Supervised<Self>, attached: &mut Self::Attached) -> impl Future<Output = bool> + Send;
    fn run(
        node: &Arc<Supervised<Self>>,
        call: Call<'_>,
        request: u64,
    ) -> impl Future<Output = Result<ScriptReply, RequestError>> + Send;
    fn post(_node: &Arc<Supervised<Self>>) -> Option<Box<dyn Post>> {
        None
    }
    /// Sends one command that changes nothing.
    fn ask(node: &Supervised<Self>, words: &[&str]) -> impl Future<Output = Result<Told, RequestError>> + Send;
    fn address(&self) -> String;
    /// Whether messages arrive.
    fn hears(&self) -> bool;
    /// The server's identity: if two clients see the same one, they are connected to the same server. `None`: the
    /// user may not ask for it.
    fn server_id(&self) -> Option<String>;
    /// Finds out at once whether the connection is alive.
    fn suspect(&self);
    fn disconnect(&self, connection: &Self::Connection);
    /// Serves another address. `None`: not in use now.
    fn move_to(&self, address: Option<&Address>);
    /// Wraps the task that keeps the connection.
    fn wrap_task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }
    /// Called when the node is closed, and again when the task that kept the connection has ended.
    fn close(&self) {}
}

pub struct Supervised<W: Wire> {
    pub wire: W,
    pub operation_timeout: Duration,
    /// With `strict_restart`.
    pub boot: Option<Boot>,
    pub link: Link<W::Connection>,
    /// Whether a connection is wanted. The first request for a lock makes it wanted.
    is_wanted: AtomicBool,
    /// Notified when a connection becomes wanted.
    pub wanted: Notify,
    /// The first connection, for the task that will keep it.
    pub first: Mutex<Option<W::Attached>>,
    pub clock: ServerClock,
}

impl<W: Wire> Supervised<W> {
    pub fn new(wire: W, keys: ServedKeys, options: &Options, changes: watch::Sender<()>) -> Self {
        Self {
            wire,
            operation_timeout: options.operation_timeout,
            boot: Boot::new(options),
            link: Link::new(keys, changes, options.metrics.clone()),
            is_wanted: AtomicBool::new(false),
            wanted: Notify::new(),
            first: Mutex::new(None),
            clock: ServerClock::new(),
        }
    }

    pub fn want(&self) {
        // Relaxed: the notice orders what comes after it.
        if !self.is_wanted.swap(true, Ordering::Relaxed) {
            // `Notify` keeps the notice if the task does not listen yet.
            self.wanted.notify_one();
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    pub fn move_to(&self, address: Option<&Address>) {
        // The next request for a lock connects to the new address.
        self.is_wanted.store(false, Ordering::Relaxed);
        self.wire.move_to(address);
    }
}
