//! Runs the scripts: sends the protocol's typed requests to a server.
//!
//! This layer does not know about waits or holds. It sends requests, and distinguishes replies from errors.

pub mod backoff;
pub mod boot;
pub mod call;
pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod connect_options;
mod connection;
mod connection_info;
pub mod dial;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;
pub mod glob;
pub mod link;
pub mod location;
pub mod names;
pub mod node;
pub mod options;
pub mod rights;
pub mod runner;
pub mod runtime;
pub mod script;
pub mod sentinel;
pub mod server;
pub mod source;
#[cfg(feature = "tls")]
mod tls;
mod url;

use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

use fairlock_proto::reply::ScriptReply;
use futures::future::BoxFuture;
use tokio::sync::watch;

use call::{Call, Post};
use cluster::identity::Masters;
use error::{Cause, RequestError};
use server::Server;

/// The servers of a client. Different names may live on different servers, so the methods take the key of a lock.
pub trait Store: Send + Sync + 'static {
    /// The server of this lock. `None`: no node of the cluster serves its slot at the moment.
    fn serving(&self, lock_key: &str) -> Option<&dyn Server>;
    /// Why there is no connection to the lock's server.
    fn fault(&self, lock_key: &str) -> Cause;
    /// Runs one script at the server of this seat. `request` is the script's first argument, which the reply echoes.
    /// If the keys have moved, the request fails, and the listener is notified of the move and asks again.
    fn run_at<'a>(&'a self, seat: u16, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<Ran<'a>, RequestError>>;
    /// A post to the server of this seat. `None`: use [`run_at`](Self::run_at).
    fn post(&self, _seat: u16) -> Option<Box<dyn Post>> {
        None
    }
    /// The seat of the server that serves this slot now. A single server serves all slots.
    fn seat_of(&self, _slot: u16) -> Option<u16> {
        Some(0)
    }
    fn listen(&self, listener: Weak<dyn Listener>);
    /// The seats of the servers. A single server has seat 0.
    fn seats(&self) -> Vec<u16>;
    fn server(&self, seat: u16) -> Option<&dyn Server>;
    /// Notified when a connection begins, breaks or closes.
    fn changes(&self) -> watch::Receiver<()>;
    fn close(&self);
    /// Whether the servers form a cluster, which distributes the slots among them.
    fn is_cluster(&self) -> bool {
        false
    }
}

/// The reply of a script, and the server that ran it. In a cluster this may be another server than the one asked
/// first.
pub struct Ran<'a> {
    pub reply: ScriptReply,
    pub by: &'a dyn Server,
}

/// Wraps a client's background tasks, so that a simulator can delay or end them.
pub type SpawnHook = Arc<dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Events that a store reports.
pub trait Listener: Send + Sync + 'static {
    /// The server of these keys sent a message to this client's channel. It runs inside the connection's driver, so
    /// it must not block.
    fn pushed(&self, from: &ServedKeys, payload: &[u8]);
    /// A new connection is up. The client may have missed messages for these keys. It runs inside the connection's
    /// driver, so it must not block.
    fn resumed(&self, keys: &ServedKeys);
    /// The connection that serves these keys has ended.
    fn broke(&self, keys: &ServedKeys);
    /// Another server now serves some of these slots.
    fn moved(&self, slots: RangeInclusive<u16>);
    /// The runtime that kept the connection has ended. It runs during the runtime's shutdown, so it must not block.
    fn gone(self: Arc<Self>);
}

/// The lock keys that a connection serves.
#[derive(Clone)]
pub enum ServedKeys {
    /// A single server serves every key.
    All,
    /// A node of a cluster serves the keys in the slots that it has at the moment.
    Slots {
        /// The node.
        seat: u16,
        /// The masters of the cluster that the node must belong to.
        masters: Arc<Masters>,
    },
}

impl ServedKeys {
    pub fn is_of_cluster(&self) -> bool {
        matches!(self, Self::Slots { .. })
    }

    /// The seat of the server. A single server has seat 0.
    pub fn seat(&self) -> u16 {
        match self {
            Self::All => 0,
            Self::Slots { seat, .. } => *seat,
        }
    }
}
