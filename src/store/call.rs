//! A command on its way.

use std::task::{Context, Poll};

use fairlock_proto::command::Command;
use fairlock_proto::reply::ScriptReply;

use super::error::RequestError;

/// Brings one request after the other to a server, with as little overhead as possible.
pub trait Post: Send {
    /// Whether it took the request. If not, use [`Store::run_at`](super::Store::run_at), also after a refusal that
    /// [`is_for_the_long_way`](super::error::Refusal::is_for_the_long_way).
    fn take(&mut self, call: Call<'_>, request: u64) -> bool;
    /// The outcome of the request that it took last.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ScriptReply, RequestError>>;
}

/// The server that ran a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    Asked,
    /// Another node of the cluster, which has its own clock.
    Another,
}

#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Makes the command at each send: a command has room for the longest one, and there are many request futures.
    pub command: &'a (dyn Fn() -> Command<'a> + Sync),
    /// The key that decides which server to ask.
    pub lock_key: &'a str,
    /// The call goes to the cluster node that will get the slot of these keys, after the slot's present node answered
    /// ASK.
    pub asking: bool,
}

impl<'a> Call<'a> {
    pub fn new(command: &'a (dyn Fn() -> Command<'a> + Sync), lock_key: &'a str) -> Self {
        Self { command, lock_key, asking: false }
    }

    pub fn asking(self) -> Self {
        Self { asking: true, ..self }
    }
}
