//! A client that closes while its calls are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlock::simulation::{Ran, command};
use fairlock::{EmbeddedServer, LockClient};

use crate::keys::{client_of, ticket_of};
use crate::world::World;

/// What each owner has asked for last, at each name.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    owners: BTreeMap<(String, String), Last>,
    /// When each client was heard for each name, in server ms, and how long it lives without that.
    heard: BTreeMap<(String, String), (i64, i64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// What is older than this is over. A place may be there again: a failover or a late copy has brought it back.
    over_below: u64,
    /// It has nothing any more.
    has_ended: bool,
}

impl Asked {
    pub fn note(&mut self, ran: &Ran<'_>) {
        let Ok(reply) = &ran.reply else { return };
        // Most requests for a shared name say of which kind it is, in front of these words.
        let (script, kind) = ran.script.strip_prefix("shared/").map_or((ran.script, 0), |script| (script, 1));
        let word = |index: usize| ran.args.get(index).map_or("", String::as_str);
        self.hear(ran, script, word(6 + kind));
        let (owner, seq) = match script {
            "acquire" | "leave" => (2 + kind, 3 + kind),
            "release" => (1 + kind, 2 + kind),
            "give" if reply[0] == "given" => (2, 3),
            _ => return,
        };
        let last = self.owners.entry((ran.keys[0].clone(), word(owner).to_owned())).or_default();
        let seq: u64 = word(seq).parse().unwrap_or_default();
        // A late copy of what is over counts for nothing.
        if seq < last.over_below {
            return;
        }
        let (is_over, has_ended) = match reply[0].as_str() {
            "freed" | "gone" | "given" => (script == "leave", true),
            "held" | "queued" => (false, false),
            // It asks again at once.
            "busy" | "full" if reply.last().is_some_and(|more| more == "1") => (false, last.has_ended),
            "busy" | "full" | "heavy" => (true, true),
            _ => (false, last.has_ended),
        };
        *last = Last { over_below: seq + u64::from(is_over), has_ended };
    }

    /// A client that was silent for too long counts as dead, and its leaves have ended. If nobody has passed over its places
    /// since, they live again once it is heard.
    fn hear(&mut self, ran: &Ran<'_>, script: &str, settings: &str) {
        if !matches!(script, "acquire" | "poll") {
            return;
        }
        let at = ran.at / 1000;
        let (name, client) = (&ran.keys[0], ran.client);
        let lives = |settings: &str| settings.split(' ').next().and_then(|ms| ms.parse::<i64>().ok());
        let (heard, ttl) = self.heard.entry((name.clone(), client.to_owned())).or_insert((at, i64::MAX));
        let was_silent = at - *heard > *ttl;
        *heard = at;
        if script == "acquire" {
            *ttl = lives(settings).unwrap_or(*ttl);
        }
        if was_silent {
            let its = self.owners.iter_mut().filter(|((of, owner), _)| of == name && client_of(owner) == client);
            its.for_each(|(_, last)| last.over_below += 1);
        }
    }

    /// Of these names and of others.
    pub fn and(mut self, others: Self) -> Self {
        self.owners.extend(others.owners);
        self
    }

    /// What the client knew of: a failover or a late copy may have brought back what it had given up.
    fn knows(&self, (name, owner, seq): &Trace) -> bool {
        let last = self.owners.get(&(name.clone(), owner.clone())).copied().unwrap_or_default();
        seq.map_or(!last.has_ended, |seq| seq >= last.over_below)
    }
}

/// The name and the owner of a hold, or of the place with this seq.
type Trace = (String, String, Option<u64>);

/// P5: once it is closed nothing of it is at the servers, or at a majority of several. `asked`: at one server or cluster, or at
/// each of several masters.
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

/// The holds and places of a client, but for those of handles, which outlive it.
fn traces(server: &EmbeddedServer, client: &str) -> BTreeSet<Trace> {
    let of_it = format!("{client}:");
    let mut found = BTreeSet::new();
    for key in server.keys() {
        for field in command(server, &["HGETALL", &key]) {
            // The mark of shared names.
            let owner = field.trim_start_matches('#');
            if owner.starts_with(&of_it) {
                found.insert((key.clone(), owner.to_owned(), None));
            }
        }
        let Some(name) = key.strip_suffix(":queue") else { continue };
        for place in command(server, &["LRANGE", &key, "0", "-1"]) {
            let ticket = ticket_in(&place);
            // Either half of a place alone is nothing: the other one was deleted by hand.
            let waits = || command(server, &["ZMSCORE", &format!("{name}:deadlines"), ticket]) != [""];
            if let Some((owner, seq)) = ticket.rsplit_once(':').filter(|_| ticket.starts_with(&of_it) && waits()) {
                found.insert((name.to_owned(), owner.to_owned(), seq.parse().ok()));
            }
        }
    }
    found
}

/// A place of a shared name begins with its kind.
fn ticket_in(place: &str) -> &str {
    let marked = place.strip_prefix('!').and_then(|marked| marked.split_once('/'));
    ticket_of(marked.map_or(place, |(_, place)| place))
}
