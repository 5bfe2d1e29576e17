//! A client that closes with calls under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlock::simulation::command;
use fairlock::{EmbeddedServer, LockClient};

use crate::asked::{Asked, Trace};
use crate::keys::ticket_of;
use crate::world::World;

/// P5: a closed client leaves nothing at the servers, or at a majority of several. `asked`: at one server or cluster,
/// or at each of several masters.
pub async fn close(
    world: Arc<World>,
    client: LockClient,
    servers: Vec<EmbeddedServer>,
    asked: impl Fn() -> Vec<Asked> + Send,
) {
    let before = world.state().restored();
    let closed = client.close().await;
    world.note("closed", 0, || format!("{}: {closed:?}", client.id()));
    if closed.is_err() || world.state().restored() > before {
        return;
    }
    let asked = asked();
    let mut left: BTreeMap<Trace, usize> = BTreeMap::new();
    for (number, server) in servers.iter().enumerate() {
        let asked = asked.get(number).unwrap_or(&asked[0]);
        let known = traces(server, client.id()).into_iter().filter(|trace| asked.knows(trace));
        known.for_each(|trace| *left.entry(trace).or_default() += 1);
    }
    let majority = asked.len() / 2 + 1;
    left.retain(|_, servers| *servers >= majority);
    if !left.is_empty() {
        world.state().checker.report("P5", format!("{} is closed, and has left {left:?}", client.id()));
    }
}

/// The holds and places of a client, except those of handles, which outlive it.
fn traces(server: &EmbeddedServer, client: &str) -> BTreeSet<Trace> {
    let of_it = format!("{client}:");
    let mut found = BTreeSet::new();
    for key in server.keys() {
        for field in command(server, &["HGETALL", &key]) {
            if field.starts_with(&of_it) {
                found.insert((key.clone(), field, None));
            }
        }
        let Some(name) = key.strip_suffix(":queue") else { continue };
        for place in command(server, &["LRANGE", &key, "0", "-1"]) {
            let ticket = ticket_of(&place);
            // Half of a place alone means nothing: someone deleted the other half.
            let waits = || command(server, &["ZMSCORE", &format!("{name}:deadlines"), ticket]) != [""];
            if let Some((owner, seq)) = ticket.rsplit_once(':').filter(|_| ticket.starts_with(&of_it) && waits()) {
                found.insert((name.to_owned(), owner.to_owned(), seq.parse().ok()));
            }
        }
    }
    found
}
