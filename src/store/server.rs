//! One of a client's servers. Its methods take no key: `Store` finds the server of a lock.

use std::time::Duration;

use fairlock_proto::reply::ScriptReply;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::boot::Boot;
use super::call::Call;
use super::clock::ServerClock;
use super::error::{Cause, RequestError};

pub trait Server: Send + Sync + 'static {
    /// Whether a request could go out at once.
    fn is_ready(&self) -> bool;
    /// Resolves when [`is_ready`](Self::is_ready) holds, or with `Closed` or `RuntimeGone`.
    fn ready(&self) -> BoxFuture<'_, Result<(), RequestError>>;
    /// Connects the server if it is not connected.
    fn want(&self);
    /// Why there is no connection.
    fn fault(&self) -> Cause;
    /// Runs one script; `request` is its first argument, which the reply echoes.
    fn run<'a>(&'a self, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<ScriptReply, RequestError>>;
    /// Sends one command that changes nothing.
    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Told, RequestError>>;
    /// Drops the connection, because it delivered a reply that belongs to another request.
    fn distrust(&self);
    /// An answer did not come in time. The connection may be half-open, so this finds out at once.
    fn suspect(&self);
    fn clock(&self) -> &ServerClock;
    /// Host and port, or the path of the socket.
    fn address(&self) -> String;
    fn line(&self) -> Line;
    /// How long the connection has been down or resuming, if it was up before.
    fn down_for(&self) -> Option<Duration>;
    /// Whether messages from it arrive: a proxy may swallow them.
    fn hears(&self) -> bool;
    /// Its freezes, with `strict_restart`.
    fn boot(&self) -> Option<&Boot>;
    /// The server's identity: if two clients see the same one, they are connected to the same server. `None`: the
    /// user may not ask for it.
    fn server_id(&self) -> Option<String>;
}

#[derive(Debug, Clone)]
pub enum Line {
    /// Nobody has asked for a lock there yet.
    Idle,
    Down(Cause),
    Up,
    RuntimeGone,
    Closed,
}

/// The answer to a command.
pub struct Told {
    /// The answer's texts, without the lists that contain them.
    pub texts: Vec<Vec<u8>>,
    /// Cancelled when the connection that brought the answer has ended.
    pub connection: CancellationToken,
}
