//! The last requests of clients at a name, and so what they may have there.

use std::collections::BTreeMap;

use fairlock::simulation::Ran;

use crate::keys::client_of;

/// The last request of each owner at each name.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    owners: BTreeMap<(String, String), Last>,
    /// When each client last sent a request for each name, in server ms, and how long it lives without one.
    heard: BTreeMap<(String, String), (i64, i64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// Requests with a smaller seq have ended. Their place may come back, by a failover or a late copy.
    over_below: u64,
    /// It holds nothing any more.
    has_ended: bool,
}

impl Asked {
    pub fn note(&mut self, ran: &Ran<'_>) {
        let Ok(reply) = &ran.reply else { return };
        let script = ran.script.strip_prefix("shared/").unwrap_or(ran.script);
        let word = |index: usize| ran.args.get(index).map_or("", String::as_str);
        self.hear(ran, script, word(6));
        let (owner, seq) = match script {
            "acquire" | "leave" => (2, 3),
            "release" => (1, 2),
            "give" if reply[0] == "given" => (2, 3),
            _ => return,
        };
        let last = self.owners.entry((ran.keys[0].clone(), word(owner).to_owned())).or_default();
        let seq: u64 = word(seq).parse().unwrap_or_default();
        // A late copy of an ended request does not count.
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

    /// A client that is silent for too long counts as dead, and stops sending leaves. Its places may still be there,
    /// and live again with its next request.
    fn hear(&mut self, ran: &Ran<'_>, script: &str, settings: &str) {
        if !matches!(script, "acquire" | "poll") {
            return;
        }
        let at = ran.at / 1000;
        let (name, client) = (&ran.keys[0], ran.client);
        let (heard, ttl) = self.heard.entry((name.clone(), client.to_owned())).or_insert((at, i64::MAX));
        let was_silent = at - *heard > *ttl;
        *heard = at;
        if script == "acquire" {
            *ttl = settings.split(' ').next().and_then(|ms| ms.parse().ok()).unwrap_or(*ttl);
        }
        if was_silent {
            let its = self.owners.iter_mut().filter(|((of, owner), _)| of == name && client_of(owner) == client);
            its.for_each(|(_, last)| last.over_below += 1);
        }
    }

    /// Adds the requests at other names.
    pub fn and(mut self, others: Self) -> Self {
        self.owners.extend(others.owners);
        self
    }

    /// Whether the client knew of it: a failover or a late copy may have brought back something that it had given up.
    pub fn knows(&self, (name, owner, seq): &Trace) -> bool {
        let last = self.owners.get(&(name.clone(), owner.clone())).copied().unwrap_or_default();
        seq.map_or(!last.has_ended, |seq| seq >= last.over_below)
    }
}

/// The name and the owner of a hold, or of the place with this seq.
pub type Trace = (String, String, Option<u64>);
