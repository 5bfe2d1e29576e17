//! A command on its way.

use fairlock_proto::command::Command;

use super::admission::Priority;

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
    /// The request's priority.
    pub priority: Priority,
}

impl<'a> Call<'a> {
    pub fn new(command: &'a (dyn Fn() -> Command<'a> + Sync), lock_key: &'a str, priority: Priority) -> Self {
        Self { command, lock_key, asking: false, priority }
    }

    pub fn asking(self) -> Self {
        Self { asking: true, ..self }
    }
}
