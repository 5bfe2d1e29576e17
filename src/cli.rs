//! What the command `fairlock` needs beside the public API, and nothing else may use: it changes without notice.

use fairlock_proto::keys;
use futures::future::join_all;

pub use crate::store::rights::Beside;

use crate::client::LockClient;
use crate::error::RequestError;
use crate::handle::HoldHandle;
use crate::store::rights;

/// Every right of a user, as ACL SETUSER takes it after `reset`.
#[must_use]
pub fn rights(prefix: &str, beside: Beside) -> Vec<String> {
    rights::all(prefix, beside)
}

/// The key that is there if a client of this prefix has `strict_restart`.
#[must_use]
pub fn boot_key(prefix: &str) -> String {
    keys::boot(prefix)
}

/// What a server has said to a command.
#[derive(Debug)]
pub struct Said {
    /// The server's address.
    pub address: String,
    /// The texts of the reply.
    pub texts: Result<Vec<String>, RequestError>,
}

/// Sends one command that changes nothing to each server.
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
