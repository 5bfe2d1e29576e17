//! Internals for the command `fairlock`, beyond the public API. Nothing else may use them: they change without notice.

use fairlock_proto::keys;
use futures::future::join_all;

pub use crate::store::rights::Beside;

use crate::client::LockClient;
use crate::error::RequestError;
use crate::handle::HoldHandle;
use crate::store::rights;

/// All rights of a user, as arguments of ACL SETUSER after `reset`.
#[must_use]
pub fn rights(prefix: &str, beside: Beside) -> Vec<String> {
    rights::all(prefix, beside)
}

/// The key that exists if a client of this prefix has `strict_restart`.
#[must_use]
pub fn boot_key(prefix: &str) -> String {
    keys::boot(prefix)
}

/// A server's reply to a command.
#[derive(Debug)]
pub struct Said {
    /// The server's address.
    pub address: String,
    /// The texts of the reply.
    pub texts: Result<Vec<String>, RequestError>,
}

/// Sends one read-only command to each server.
pub async fn ask(client: &LockClient, words: &[&str]) -> Vec<Said> {
    let servers = client.backend().contexts().flat_map(|context| {
        let runner = &context.runner;
        runner.store.seats().into_iter().filter_map(move |seat| Some((context, runner.store.server(seat)?)))
    });
    let asking = servers.map(|(context, server)| async move {
        let runner = &context.runner;
        let told = context.ask(runner.ask(server, words)).await;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { address: server.address(), texts: told.map(|(told, _)| told.texts.into_iter().map(text).collect()) }
    });
    join_all(asking).await
}

/// The owner that a handle names, as `status` shows it.
pub fn owner_of(handle: &HoldHandle) -> &str {
    handle.owner()
}
