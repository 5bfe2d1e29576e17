//! A client that closes while its calls are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlock::simulation::command;
use fairlock::{EmbeddedServer, LockClient};

use crate::checker::LastAsked;
use crate::keys::ticket_of;
use crate::world::World;

/// The lock and the owner of a hold, or of the place with this seq.
type Trace = (String, String, Option<u64>);
pub type Asked = BTreeMap<(String, String), LastAsked>;

/// P5: once it is closed nothing of it is at the servers, or at a majority of several. `asked`: by lock and owner, at one server
/// or cluster, or at each of several masters.
pub async fn close(world: Arc<World>, client: LockClient, servers: Vec<EmbeddedServer>, asked: Vec<Asked>) {
    let before = world.state().restored();
    let closed = client.close().await;
    world.note("closed", 0, || format!("{}: {closed:?}", client.id()));
    if closed.is_err() || world.state().restored() > before {
        return;
    }
    let mut left: BTreeMap<Trace, usize> = BTreeMap::new();
    for (number, server) in servers.iter().enumerate() {
        let asked = asked.get(number).unwrap_or(&asked[0]);
        let known = traces(server, client.id()).into_iter().filter(|trace| is_known(asked, trace));
        known.for_each(|trace| *left.entry(trace).or_default() += 1);
    }
    let majority = asked.len() / 2 + 1;
    left.retain(|_, servers| *servers >= majority);
    if !left.is_empty() {
        world.state().checker.report("P5", format!("{} is closed, and has left {left:?}", client.id()));
    }
}

/// What the client knew of: a failover or a late copy may have brought back what it had given up.
fn is_known(asked: &Asked, (lock, owner, seq): &Trace) -> bool {
    let last = asked.get(&(lock.clone(), owner.clone())).copied().unwrap_or_default();
    seq.map_or(!last.has_ended, |seq| seq >= last.over_below)
}

/// The holds and places of a client, but for those of handles, which outlive it.
fn traces(server: &EmbeddedServer, client: &str) -> BTreeSet<Trace> {
    let of_it = format!("{client}:");
    let mut found = BTreeSet::new();
    for key in server.keys() {
        for word in command(server, &["HGETALL", &key]).into_iter().filter(|word| word.starts_with(&of_it)) {
            found.insert((key.clone(), word, None));
        }
        let Some(lock) = key.strip_suffix(":queue") else { continue };
        for place in command(server, &["LRANGE", &key, "0", "-1"]).iter().filter(|place| place.starts_with(&of_it)) {
            let ticket = ticket_of(place);
            // Either half of a place alone is nothing: the other one was deleted by hand.
            let waits = command(server, &["ZMSCORE", &format!("{lock}:deadlines"), ticket]) != [""];
            if let Some((owner, seq)) = ticket.rsplit_once(':').filter(|_| waits) {
                found.insert((lock.to_owned(), owner.to_owned(), seq.parse().ok()));
            }
        }
    }
    found
}
