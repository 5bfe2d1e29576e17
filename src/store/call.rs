//! A command on its way.

use std::task::{Context, Poll};

use fairlock_proto::command::Command;
use fairlock_proto::reply::ScriptReply;

use super::error::RequestError;

/// Brings one request after the other to a server, with as little as that takes.
pub trait Post: Send {
    /// Whether it took the request: else it takes [`Store::run_at`](super::Store::run_at). So it does after a refusal that
    /// [`is_for_the_long_way`](super::error::Refusal::is_for_the_long_way).
    fn take(&mut self, call: Call<'_>, request: u64) -> bool;
    /// What came of the request that it took last.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ScriptReply, RequestError>>;
}

/// The server that ran a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The one that the request was sent to.
    Asked,
    /// Another node of the cluster, which has a clock of its own.
    Another,
}

/// One run of a script.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Makes what is sent, each time that it is sent: a command has room for the longest one, and the futures of requests
    /// are many.
    pub command: &'a (dyn Fn() -> Command<'a> + Sync),
    /// The key that decides which server is asked.
    pub lock_key: &'a str,
    /// Sent to a node of a cluster that is about to get the slot of the keys, after the node that has it
    /// answered ASK.
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
