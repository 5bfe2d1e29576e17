//! One of a client's servers. It is asked about no key: `Store` finds the server of a lock.

use std::time::Duration;

use fairlock_proto::reply::ScriptReply;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::boot::Boot;
use super::call::Call;
use super::clock::ServerClock;
use super::error::{Cause, RequestError};

pub trait Server: Send + Sync + 'static {
    /// Whether a request would be sent at once.
    fn is_ready(&self) -> bool;
    /// Resolves when [`is_ready`](Self::is_ready) holds, or with `Closed` or `RuntimeGone`.
    fn ready(&self) -> BoxFuture<'_, Result<(), RequestError>>;
    /// Has it connected, if it is not.
    fn want(&self);
    /// Why there is no connection.
    fn fault(&self) -> Cause;
    /// Runs one script; `request` is its first argument, which the reply echoes.
    fn run<'a>(&'a self, call: Call<'a>, request: u64) -> BoxFuture<'a, Result<ScriptReply, RequestError>>;
    /// Sends one command that changes nothing.
    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Told, RequestError>>;
    /// Drops the connection, because it delivered a reply that belongs to another request.
    fn distrust(&self);
    /// An answer did not come in time: the connection may be half-open, so find out at once.
    fn suspect(&self);
    fn clock(&self) -> &ServerClock;
    /// Host and port, or the path of the socket.
    fn address(&self) -> String;
    fn line(&self) -> Line;
    /// Since when the line is down or being resumed, if it was up before.
    fn down_for(&self) -> Option<Duration>;
    /// Whether messages from it arrive: a proxy may swallow them.
    fn hears(&self) -> bool;
    /// Its freezes, with `strict_restart`.
    fn boot(&self) -> Option<&Boot>;
    /// The identity of the server: two clients with the same one are connected to the same server. `None`: the user may not ask for it.
    fn server_id(&self) -> Option<String>;
}

/// The state of a connection.
#[derive(Debug, Clone)]
pub enum Line {
    /// No lock there was asked for yet.
    Idle,
    Down(Cause),
    Up,
    RuntimeGone,
    Closed,
}

/// The answer to a command.
pub struct Told {
    /// Its texts, without the lists that they are in.
    pub texts: Vec<Vec<u8>>,
    /// Cancelled when the connection that it came over is gone.
    pub connection: CancellationToken,
}
