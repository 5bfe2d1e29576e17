//! The requests: one file for each script of `lua/`, with its arguments, the order of KEYS and ARGV, its reply, and
//! how to read the reply. Most have two scripts, for locks and for shared names (`lua/shared`); the kind of the keys
//! decides.

pub mod acquire;
pub mod boot;
pub mod force_unlock;
pub mod give;
pub mod inspect;
pub mod leave;
pub mod poll;
pub mod raise;
pub mod release;
pub mod renew;
pub mod set_limit;

use std::time::Duration;

use crate::command::{Command, MOST_KEYS, SentKeys, key, millis};
use crate::keys::{self, Keys};
use crate::reply::Decode;

/// A request about one name.
pub trait ScriptRequest: Sync {
    type Reply: Decode;

    fn keys(&self) -> &Keys;

    /// The run of the script, with its keys and arguments.
    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a>;
}

/// The client's part of each request. The server keeps no settings, so that clients with different options work
/// together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientArgs {
    /// The client's id: the first part of its owner ids, the last part of its channel.
    pub id: String,
    /// See [`settings`].
    pub settings: String,
    /// How long the server remembers a token (P2).
    pub token_ttl: Duration,
    /// The key of the record of the server's last start, with `strict_restart` only.
    pub boot_key: Option<String>,
}

impl ClientArgs {
    pub fn is_strict(&self) -> bool {
        self.boot_key.is_some()
    }

    /// The keys of a script that reads the queue, in the order of its header.
    pub fn queue_keys<'a>(&'a self, keys: &'a Keys, tombstone: Option<String>) -> SentKeys<'a, MOST_KEYS> {
        let Keys { kind, lock, queue, deadlines, tokens, limit, .. } = keys;
        [
            key("lock", &**lock),
            key("queue", queue),
            key("deadlines", deadlines),
            key("tokens", tokens),
            tombstone.and_then(|tombstone| key("tombstone", tombstone)),
            key("limit", limit).filter(|_| kind.is_shared()),
            self.boot_key.as_ref().and_then(|boot| key("boot", boot)),
        ]
    }
}

/// The client's part of a request in one text, which the client makes once: each argument costs an acquire time, and
/// most need none of these.
pub fn settings(prefix: &str, waiter_ttl: Duration, max_waiters: u32, token_ttl: Duration) -> String {
    let channel = keys::channel_prefix(prefix);
    format!("{} {max_waiters} {} {channel}", millis(waiter_ttl), millis(token_ttl))
}
