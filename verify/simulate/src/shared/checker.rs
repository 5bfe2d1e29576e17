//! Compares every event with the promises, in their form for shared names. It sees the keys before and after each
//! script, and the guards of the actors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::Held;
use fairlock::simulation::Ran;

use super::keys::{Keys, Place, Record};
use crate::asked::Asked;
use crate::keys::{client_of, is_of_a_handle};
use crate::sightings::{Sightings, untrue};

const HOLDERS_AT_MOST: usize = 1024;
/// Without faults a hold without a guard ends within this time: a message on its way, a poll, and a leave.
const GHOSTS_LIVE: Duration = Duration::from_millis(1500);
/// P7: without faults a waiter for which there is room comes in within this time: 100 ms, and a poll on its way.
const SERVED_WITHIN: Duration = Duration::from_millis(150);
/// P8, for locks too.
const TOLD_WITHIN: Duration = Duration::from_millis(1200);

/// The name of a script without `shared/`.
pub fn bare(script: &'static str) -> &'static str {
    script.strip_prefix("shared/").unwrap_or(script)
}

/// Whether this copy finds that an earlier one ended the hold, and counts the others again.
fn is_counted_anew(ran: &Ran<'_>, before: &Keys) -> bool {
    let args = ran.args;
    match bare(ran.script) {
        // It reduced a hold that goes on.
        "release" => !before.records.contains_key(&args[1]) && ran.reply.as_ref().is_ok_and(|reply| reply[0] == "gone"),
        // Its tombstone shows it, which lives at least that long.
        "leave" => {
            !before.records.contains_key(&args[2]) && args[1].parse().is_ok_and(|until: i64| until * 1000 > ran.at)
        }
        _ => {
            args[3].parse().is_ok_and(|token| before.under(token).is_none())
                && ran.reply.as_ref().is_ok_and(|reply| reply[0] == "free")
        }
    }
}

/// Name and token.
type Hold = (String, u64);

/// A request that ends a hold, by the parts that its copies share.
type Repeated = [String; 3];

/// `None`: a request of another kind.
fn repeated(ran: &Ran<'_>) -> Option<Repeated> {
    let (one, other) = match bare(ran.script) {
        "release" => (1, 2),
        "leave" => (2, 3),
        "force_unlock" => (3, 3),
        _ => return None,
    };
    Some([bare(ran.script), ran.args.get(one)?, ran.args.get(other)?].map(str::to_owned))
}

/// A share that an actor relies on.
pub struct Claim {
    pub name: String,
    pub actor: usize,
    pub process: String,
    pub held: Held,
    pub weight: u32,
    /// Guards, if known.
    pub guards: u32,
}

#[derive(Default)]
struct Name {
    keys: Keys,
    newest: u64,
    /// The greatest floor in any reply: every later grant has a greater token (R7).
    floor: u64,
    /// The limit under which each token came in.
    admitted: BTreeMap<u64, u32>,
    /// Scripts that the server refused half-way, so `!used` may be too high.
    counted_high_by: BTreeSet<Repeated>,
    /// Since when the first waiter has room and does not come in.
    fits_since: Option<Duration>,
}

#[derive(Default)]
pub struct SharedChecker {
    names: BTreeMap<String, Name>,
    claims: Vec<Claim>,
    /// Revoked, or lost with the server's data: their holders learn of it later.
    void: BTreeMap<Hold, Duration>,
    /// A server that misses a renewal took over: until when that lease lasts, in server ms.
    renewed_before: BTreeMap<Hold, i64>,
    /// The server refused a script half-way that changed their end: they may end earlier, with their key.
    half_renewed: BTreeSet<Hold>,
    unclaimed: BTreeMap<Hold, Duration>,
    /// Name and owner of handles that an actor has or may find.
    in_use: BTreeSet<(String, String)>,
    /// Of these, a call has reported that they hold nothing. Cleared when the server loses data.
    lost_handles: BTreeSet<(String, String)>,
    /// The seq up to which an owner has left, so that no request serves it any more (R3).
    left: BTreeMap<(String, String), u64>,
    /// A server that misses a give took over: there another owner has the hold.
    given_before: BTreeSet<Hold>,
    /// Node and client.
    connected: BTreeSet<(usize, String)>,
    behind: BTreeSet<(usize, String)>,
    homes: BTreeMap<String, usize>,
    must_freeze_until: i64,
    /// The last end of a freeze that the server stated.
    frozen_until: i64,
    /// In server time.
    seen: Sightings,
    pub last_asked: Asked,
    pub grants: u64,
    pub handed_over: u64,
    pub served_together: u64,
    pub expiries: u64,
    pub sections: u64,
    found: Vec<String>,
}

/// The state of the world at an event.
#[derive(Clone)]
pub struct Now {
    pub at: Duration,
    /// Server time, ms.
    pub server_ms: i64,
    /// Neither a present nor an earlier fault has an effect.
    pub settled: bool,
    pub strict: bool,
    /// Clients still connected to an earlier server, with the node.
    pub behind: BTreeSet<(usize, String)>,
    /// The node of each name. A name whose slot moves is absent.
    pub homes: BTreeMap<String, usize>,
}

impl SharedChecker {
    fn violated(&mut self, promise: &str, what: String) {
        self.found.push(format!("{promise}: {what}"));
    }

    pub fn take_found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    pub fn connected(&mut self, node: usize, client: &str, on: bool) {
        let connection = (node, client.to_owned());
        if on {
            self.connected.insert(connection);
        } else {
            self.connected.remove(&connection);
        }
    }

    /// To the node of this name.
    fn is_connected(&self, name: &str, client: &str) -> bool {
        self.is_among(&self.connected, name, client)
    }

    fn is_among(&self, connections: &BTreeSet<(usize, String)>, name: &str, client: &str) -> bool {
        self.homes.get(name).is_some_and(|node| connections.contains(&(*node, client.to_owned())))
    }

    fn knows(&mut self, now: &Now) {
        self.behind.clone_from(&now.behind);
        self.homes.clone_from(&now.homes);
    }

    /// All holds may be lost, unless all clients are strict and the server knows that it may have forgotten some.
    pub fn lost_data(&mut self, node: usize, now: &Now) {
        self.lost_handles.clear();
        let claimed = self.claims.iter().map(|claim| (claim.name.clone(), claim.held.token()));
        let held = self
            .names
            .iter()
            .flat_map(|(name, it)| it.keys.records.values().map(move |record| (name.clone(), record.token)));
        if !now.strict {
            let all = claimed.chain(held).filter(|(name, _)| now.homes.get(name) == Some(&node));
            let all: Vec<_> = all.collect();
            self.void.extend(all.into_iter().map(|hold| (hold, now.at)));
        }
    }

    pub fn must_freeze(&mut self, until: i64) {
        self.must_freeze_until = until;
    }

    /// Records who had a part of this name, or a place there, until the change that comes now.
    fn see(&mut self, name: &str, server_ms: i64) {
        let Some(it) = self.names.get(name) else { return };
        let holders = it.keys.records.iter().map(|(owner, record)| (owner, record.ends));
        let waiting = it.keys.places.iter().map(|place| (&place.owner, i64::MAX));
        self.seen.note(name, server_ms, holders.chain(waiting));
    }

    /// A call of this owner that began then (server ms) reported that others had the name.
    pub fn check_busy(&mut self, name: &str, owner: &str, begun: i64, server_ms: i64) {
        self.see(name, server_ms);
        let keys = [name.to_owned()];
        let is_frozen = begun <= self.must_freeze_until.max(self.frozen_until);
        if !is_frozen && !self.seen.had_others(&keys, owner, begun) {
            self.violated("errors", untrue(owner, &keys));
        }
    }

    /// Something other than a script changed the keys.
    pub fn resync(&mut self, name: &str, keys: Keys, server_ms: i64) {
        self.see(name, server_ms);
        self.left.retain(|(of, _), _| of != name);
        let it = self.names.entry(name.to_owned()).or_default();
        for (owner, record) in &it.keys.records {
            if keys.under(record.token).is_some_and(|(now, _)| now != owner) {
                self.given_before.insert((name.to_owned(), record.token));
            }
            // Even if this server has forgotten it, it may come back with another one.
            if keys.under(record.token).is_none_or(|(_, now)| now.ends < record.ends) {
                let until = self.renewed_before.entry((name.to_owned(), record.token)).or_default();
                *until = record.ends.max(*until);
            }
        }
        // The earlier server may have lost this hold in a flush, and its holder has not learned of that.
        for claim in self.claims.iter().filter(|claim| claim.name == name) {
            let token = claim.held.token();
            if keys.under(token).is_some_and(|(owner, _)| client_of(owner) != claim.process) {
                self.given_before.insert((name.to_owned(), token));
            }
        }
        // A server that takes over may miss the copy that counted again.
        if keys.used.is_some_and(|(used, _)| used > keys.records.values().map(|record| record.weight).sum()) {
            it.counted_high_by.insert(Repeated::default());
        }
        it.keys = keys;
        it.fits_since = None;
    }

    /// Someone deleted the hash of this name.
    pub fn deleted(&mut self, name: &str, now: Duration) {
        let Some(it) = self.names.get(name) else { return };
        let held: Vec<_> = it.keys.records.values().map(|record| (name.to_owned(), record.token)).collect();
        self.void.extend(held.into_iter().map(|hold| (hold, now)));
    }

    pub fn begins(&mut self, claim: Claim) {
        self.sections += 1;
        self.claims.push(claim);
    }

    /// The caller drops them after it has let go of the checker.
    #[must_use]
    pub fn ends(&mut self, name: &str, token: u64, actor: usize) -> Vec<Claim> {
        let is_it = |claim: &mut Claim| claim.name == name && claim.held.token() == token && claim.actor == actor;
        self.claims.extract_if(.., is_it).collect()
    }

    #[must_use]
    pub fn died(&mut self, process: &str) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.process == process).collect()
    }

    pub fn changes(&mut self, name: &str, token: u64, actor: usize, change: impl Fn(&mut Claim)) {
        let is_it = |claim: &&mut Claim| claim.name == name && claim.held.token() == token && claim.actor == actor;
        self.claims.iter_mut().filter(is_it).for_each(change);
    }

    pub fn is_in_use(&mut self, name: &str, owner: &str) {
        self.in_use.insert((name.to_owned(), owner.to_owned()));
    }

    /// R16: a call has reported that this handle holds nothing.
    pub fn handle_is_lost(&mut self, name: &str, owner: &str) {
        self.lost_handles.insert((name.to_owned(), owner.to_owned()));
    }

    /// Someone attached or released it, so its owner holds nothing.
    pub fn is_spent(&mut self, name: &str, owner: &str) {
        self.in_use.remove(&(name.to_owned(), owner.to_owned()));
    }

    pub fn is_void(&self, name: &str, token: u64) -> bool {
        self.void.contains_key(&(name.to_owned(), token))
    }

    /// `more` of a reply, if the script served the queue.
    fn served(ran: &Ran<'_>) -> Option<bool> {
        let reply = ran.reply.as_ref().ok()?;
        let script = bare(ran.script);
        let index = match (script, reply.first()?.as_str()) {
            ("acquire", "queued") => 6,
            ("acquire", "busy") => 4,
            ("poll", "shared") => 4,
            ("release", "held") => 5,
            ("release" | "leave" | "force_unlock", "freed") => 5,
            ("release" | "leave", "gone") | ("force_unlock", "free") | ("set_limit", "set") => 4,
            _ => return None,
        };
        // A repeated release of some holds answers 0 without a look.
        (script != "release" || reply[0] != "held").then_some(())?;
        Some(reply.get(index).is_some_and(|more| more == "1"))
    }

    fn is_reached(&self, name: &str, client: &str) -> bool {
        self.is_connected(name, client) && !self.is_among(&self.behind, name, client)
    }

    fn lives(&self, name: &str, place: &Place, server_ms: i64) -> bool {
        place.has_ticket && place.until > server_ms + 1 && self.is_reached(name, place.client())
    }

    /// A script has run.
    pub fn ran(&mut self, ran: &Ran<'_>, keys: Keys, meddled: bool, now: Now) {
        let name = ran.keys[0].clone();
        self.knows(&now);
        self.last_asked.note(ran);
        self.see(&name, now.server_ms);
        self.frozen_until = self.frozen_until.max(keys.frozen_until);
        let before = std::mem::take(&mut self.names.entry(name.clone()).or_default().keys);
        let server_ms = ran.at / 1000;
        let is_clean = !meddled && ran.reply.is_ok();
        self.check_count(&name, ran, &before, &keys, is_clean);
        let mut granted: Vec<_> = keys.records.iter().filter(|(_, it)| before.under(it.token).is_none()).collect();
        granted.sort_by_key(|(_, record)| record.token);
        if !is_clean {
            // The key may still have its earlier lifetime.
            self.half_renewed.extend(granted.iter().map(|(_, record)| (name.clone(), record.token)));
        }
        for (owner, record) in &granted {
            self.check_grant(&name, owner, record.token, &keys, &now, server_ms);
            if is_clean {
                self.check_order(&name, (owner, record.attempt), &before, &keys, server_ms);
            }
        }
        let from_queue = |(owner, record): &&(&String, &Record)| {
            before.places.iter().any(|place| place.is_of(owner, record.attempt))
        };
        let handed_over = granted.iter().filter(from_queue).count() as u64;
        self.grants += granted.len() as u64;
        self.handed_over += handed_over;
        self.served_together += u64::from(handed_over > 1);
        let is_gone = |record: &&Record| record.ends <= server_ms && keys.under(record.token).is_none();
        self.expiries += before.records.values().filter(is_gone).count() as u64;
        for record in before.records.values() {
            let hold = (name.clone(), record.token);
            if keys.under(record.token).is_some_and(|(_, it)| it.ends != record.ends) {
                if is_clean {
                    self.half_renewed.remove(&hold)
                } else {
                    self.half_renewed.insert(hold)
                };
            }
        }
        if bare(ran.script) == "force_unlock" {
            for record in before.records.values().filter(|record| keys.under(record.token).is_none()) {
                self.void.insert((name.clone(), record.token), now.at);
            }
        }
        if is_clean {
            self.check_places(&name, ran, &before, &keys, server_ms);
            self.check_lost(&name, ran, &before, &keys, server_ms);
            self.check_handles(&name, ran, &before, &keys, server_ms);
            if Self::served(ran) == Some(false) {
                self.check_served(&name, ran, &before, &keys, server_ms);
            }
        } else {
            // How far it got is unknown.
            let lost: Vec<_> = before.records.values().filter(|it| keys.under(it.token).is_none()).collect();
            let lost: Vec<_> = lost.into_iter().map(|record| ((name.clone(), record.token), now.at)).collect();
            self.void.extend(lost);
        }
        self.note_floor(&name, ran);
        if let Some(it) = self.names.get_mut(&name) {
            it.keys = keys;
        }
        self.check_claims(&now);
    }

    fn note_floor(&mut self, name: &str, ran: &Ran<'_>) {
        let Ok(reply) = &ran.reply else { return };
        let index = match (bare(ran.script), reply[0].as_str()) {
            ("acquire", "queued") => 4,
            ("poll", "shared") => 8,
            _ => return,
        };
        let floor = reply.get(index).and_then(|floor| floor.parse().ok()).unwrap_or(0);
        if let Some(it) = self.names.get_mut(name) {
            it.floor = it.floor.max(floor);
        }
    }

    /// P4: `!used` is the sum of all records. After a script that the server refused half-way it may be too high, until
    /// at the latest that script's next copy counts again.
    fn check_count(&mut self, name: &str, ran: &Ran<'_>, before: &Keys, keys: &Keys, is_clean: bool) {
        let sum: u32 = keys.records.values().map(|record| record.weight).sum();
        let (used, holders) = keys.used.unwrap_or_default();
        let is_exact = (used, holders as usize) == (sum, keys.records.len());
        let it = self.names.entry(name.to_owned()).or_default();
        if is_exact {
            it.counted_high_by.clear();
        } else if !is_clean {
            it.counted_high_by.insert(repeated(ran).unwrap_or_default());
        }
        let is_copy = is_clean && repeated(ran).is_some_and(|it_is| it.counted_high_by.contains(&it_is));
        let must_be_exact = it.counted_high_by.is_empty() || is_copy && is_counted_anew(ran, before);
        let is_wrong = if must_be_exact { !is_exact } else { used < sum };
        if is_wrong {
            self.violated(
                "P4",
                format!("{name} counts {used} of {holders} holders, and has {sum} of {}", keys.records.len()),
            );
        }
        if keys.records.len() > HOLDERS_AT_MOST {
            self.violated("P10", format!("{name} has {} holders", keys.records.len()));
        }
    }

    /// P1, P2, R7, R14 for a holder that came in.
    fn check_grant(&mut self, name: &str, owner: &str, token: u64, keys: &Keys, now: &Now, server_ms: i64) {
        let Some(record) = keys.records.get(owner) else { return };
        let limit = keys.limit.unwrap_or(record.limit);
        let earlier = keys.records.values().filter(|other| other.ends > server_ms && other.token <= token);
        let sum: u32 = earlier.map(|other| other.weight).sum();
        if sum > limit {
            self.violated("P1", format!("{name}: with {owner} under {token} {sum} of {limit} are taken"));
        }
        let it = self.names.entry(name.to_owned()).or_default();
        let (newest, floor) = (it.newest, it.floor);
        it.newest = newest.max(token);
        it.admitted.insert(token, limit);
        if token <= newest {
            self.violated("P2", format!("{name}: {owner} got {token} after {newest}"));
        }
        if token <= floor {
            self.violated("R7", format!("{name}: {owner} got {token}, and the floor was {floor}"));
        }
        if now.strict && server_ms < self.must_freeze_until {
            self.violated("R14", format!("{name}: {owner} came in during a freeze"));
        }
    }

    /// P3: no caller comes in past a waiter that had room.
    fn check_order(&mut self, name: &str, (owner, seq): (&str, u64), before: &Keys, keys: &Keys, server_ms: i64) {
        let own = before.places.iter().position(|place| place.is_of(owner, seq)).unwrap_or(before.places.len());
        let stays = |place: &&Place| keys.places.iter().any(|other| other.is_of(&place.owner, place.seq));
        // Its ticket was deleted, and it has queued again: then its first place counts or the second, depending on the
        // note of passed-over places.
        let is_behind_too =
            |place: &Place| before.places[own..].iter().any(|other| other.is_of(&place.owner, place.seq));
        let passed = before.places[..own].iter().filter(stays).find(|place| {
            // A place next to a hold of its own owner waits for that hold's leave.
            let waits_for_itself = place.owner == owner || keys.records.contains_key(&place.owner);
            self.lives(name, place, server_ms) && !waits_for_itself && !is_behind_too(place)
        });
        if let Some(passed) = passed {
            let what = format!("{name}: {owner} came in past {}:{}", passed.owner, passed.seq);
            self.violated("P3", what);
        }
    }

    /// P3: a living place goes by a grant, or by a request of its own client.
    fn check_places(&mut self, name: &str, ran: &Ran<'_>, before: &Keys, keys: &Keys, server_ms: i64) {
        let goes = |place: &&Place| {
            let stays = keys.places.iter().any(|other| other.is_of(&place.owner, place.seq));
            let later = keys.records.get(&place.owner).is_some_and(|record| record.attempt >= place.seq);
            self.lives(name, place, server_ms) && !stays && !later && place.client() != ran.client
        };
        if let Some(place) = before.places.iter().find(goes) {
            let what = format!("{name}: {} took out the place of {}:{}", ran.script, place.owner, place.seq);
            self.violated("P3", what);
        }
    }

    /// A hold ends with its lease, by a request of its owner, or by force.
    fn check_lost(&mut self, name: &str, ran: &Ran<'_>, before: &Keys, keys: &Keys, server_ms: i64) {
        let goes = |(owner, record): &(&String, &Record)| {
            // Decision 3: a later attempt of its owner takes its place.
            let is_followed = keys.records.get(*owner).is_some_and(|later| later.attempt > record.attempt);
            let is_own = is_followed || ran.args.iter().any(|arg| arg == *owner);
            record.ends > server_ms
                && !self.has_ended_with_its_key(name, record, before, server_ms)
                && keys.under(record.token).is_none()
                && !is_own
                && bare(ran.script) != "force_unlock"
        };
        if let Some((owner, record)) = before.records.iter().find(goes) {
            let what =
                format!("{name}: {} of {} ended the hold of {owner} under {}", ran.script, ran.client, record.token);
            self.violated("P1", what);
        }
        // An owner that comes in again has lost its earlier hold before.
        let is_gone = |(owner, record): &(&String, &Record)| {
            keys.under(record.token).is_none() && !keys.records.contains_key(*owner)
        };
        let gone = before.records.iter().filter(is_gone).count();
        if bare(ran.script) == "force_unlock"
            && gone > 1 + before.records.values().filter(|it| it.ends <= server_ms).count()
        {
            self.violated("P1", format!("{name}: a revocation ended {gone} holds"));
        }
    }

    /// See `half_renewed`.
    fn has_ended_with_its_key(&self, name: &str, record: &Record, before: &Keys, server_ms: i64) -> bool {
        before.lives_until <= server_ms && self.half_renewed.contains(&(name.to_owned(), record.token))
    }

    /// R16: only a request that names a handle touches its hold. A give moves one record and nothing else.
    fn check_handles(&mut self, name: &str, ran: &Ran<'_>, before: &Keys, keys: &Keys, server_ms: i64) {
        let Ok(reply) = &ran.reply else { return };
        let status = reply[0].as_str();
        let script = bare(ran.script);
        let touched = before.records.iter().find(|(owner, record)| {
            is_of_a_handle(owner)
                && record.ends > server_ms
                && !self.has_ended_with_its_key(name, record, before, server_ms)
                && keys.records.get(*owner) != Some(record)
                && !ran.args.contains(owner)
                && script != "force_unlock"
        });
        if let Some((owner, record)) = touched {
            let what =
                format!("{name}: {} of {} touched what {owner} has under {}", ran.script, ran.client, record.token);
            self.violated("R16", what);
        }
        let number = |index: usize| ran.args.get(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match script {
            "leave" => drop(self.left.insert((name.to_owned(), ran.args[2].clone()), number(3))),
            "release" if ran.args.get(4).is_some_and(|special| special.starts_with("0:")) => {
                self.left.insert((name.to_owned(), ran.args[1].clone()), number(2));
            }
            "give" => {
                let (from, token, to, attempt) = (&ran.args[2], number(4), &ran.args[5], number(6));
                let mut expected = before.records.clone();
                let is_repeated = before.records.get(to).is_some_and(|it| it.token == token && it.attempt == attempt);
                let lives = before.records.get(to).is_some_and(|it| it.ends > server_ms);
                if status != "given" && is_repeated && lives {
                    self.violated("R1", format!("{name}: {to} has {token} by {attempt}, and was told {status}"));
                }
                if status == "given" && !is_repeated {
                    let given = expected.remove(from).filter(|it| it.token == token && it.ends > server_ms);
                    let Some(given) = given else {
                        return self
                            .violated("R16", format!("{name}: {from} has given {token}, which it did not have"));
                    };
                    if self.lost_handles.contains(&(name.to_owned(), to.clone())) {
                        self.violated("R16", format!("{name}: {to} was said to have nothing, and got {token}"));
                    }
                    let ends = server_ms + number(7) as i64;
                    expected.insert(to.clone(), Record { holds: 1, attempt, ends, ..given });
                    if self.left.get(&(name.to_owned(), to.clone())).is_some_and(|left| *left >= attempt) {
                        self.violated("R3", format!("{name}: {to} has left, and got {token} by {attempt}"));
                    }
                }
                // Records whose lease has ended may go with the whole hash.
                let mut has = keys.records.clone();
                for records in [&mut has, &mut expected] {
                    records.retain(|_, record| record.ends > server_ms);
                }
                if has != expected {
                    let (has, was) = (&keys.records, &before.records);
                    self.violated("R16", format!("{name}: {status}, and {from} to {to} made {has:?} of {was:?}"));
                }
            }
            _ => {}
        }
    }

    fn first_that_fits<'a>(&self, name: &str, keys: &'a Keys, server_ms: i64, caller: &str) -> Option<&'a Place> {
        // A client that is alive as far as the script sees comes first, even without room. The caller reads its answer.
        let may_live = |place: &&Place| {
            let is_reached = place.client() == caller || self.is_reached(name, place.client());
            place.has_ticket && place.lives_until > server_ms && is_reached
        };
        let first = keys.places.iter().find(may_live).filter(|place| self.lives(name, place, server_ms))?;
        let (used, holders) = keys.living(server_ms);
        let fits = used + first.weight <= keys.limit.unwrap_or(first.limit) && holders < HOLDERS_AT_MOST;
        let waits_for_itself = keys.records.contains_key(&first.owner);
        (fits && !waits_for_itself && keys.frozen_until <= server_ms).then_some(first)
    }

    /// R6: the call that makes room lets in each waiter that fits, or reports that there are more.
    fn check_served(&mut self, name: &str, ran: &Ran<'_>, before: &Keys, keys: &Keys, server_ms: i64) {
        // If the count is too high, there seems to be no room; a caller that finds none counts again.
        if self.names.get(name).is_some_and(|it| !it.counted_high_by.is_empty()) {
            return;
        }
        // A release by a handle does not name a waiting client.
        let caller = if bare(ran.script) == "release" { crate::keys::client_of(&ran.args[1]) } else { ran.client };
        if let Some(first) = self.first_that_fits(name, keys, server_ms, caller) {
            // This call has restored its deleted ticket, after its look at the queue. The next call serves it.
            let is_back = |place: &Place| place.is_of(&first.owner, first.seq) && !place.has_ticket;
            if bare(ran.script) == "acquire" && before.places.iter().any(is_back) {
                return;
            }
            // Its ticket was deleted, and it queued again since. The note of passed-over places may cover its first
            // place.
            if keys.places.iter().filter(|place| place.is_of(&first.owner, first.seq)).count() > 1 {
                return;
            }
            // A release that fills the limit named by the next waiter's client looks no further. The next poll lets in
            // a waiter whose client names more (README, P6).
            let names_less = |place: &Place| place.limit < first.limit;
            if bare(ran.script) == "release" && keys.limit.is_none() && before.places.iter().any(names_less) {
                return;
            }
            let what = format!("{name}: {} left out {}:{}, which fits", ran.script, first.owner, first.seq);
            self.violated("P3", what);
        }
    }

    /// P1, R5, P8 for the actors' claims. Runs again and again.
    fn check_claims(&mut self, now: &Now) {
        let mut wrong = Vec::new();
        let valid: Vec<_> = self.claims.iter().filter(|claim| claim.held.is_valid()).collect();
        for claim in &valid {
            let (name, token) = (&claim.name, claim.held.token());
            let hold = (name.clone(), token);
            let others = self.names.get(name).and_then(|it| it.keys.under(token));
            let others = others.map(|(owner, _)| owner).filter(|owner| client_of(owner) != claim.process);
            if let Some(since) = self.void.get(&hold) {
                // Another server may have known its handle, and someone attached it there.
                let is_there =
                    self.names.get(name).is_some_and(|it| it.keys.under(token).is_some()) && others.is_none();
                if now.settled && !is_there && now.at > *since + TOLD_WITHIN && self.is_connected(name, &claim.process)
                {
                    wrong.push((
                        "P8",
                        format!("actor {} still relies on {token} of {name}, which was ended", claim.actor),
                    ));
                }
                continue;
            }
            if let Some(owner) = others.filter(|_| !self.given_before.contains(&hold)) {
                wrong.push(("R16", format!("actor {} relies on {token} of {name}, which {owner} has", claim.actor)));
            }
            if valid.iter().any(|other| (&other.name, other.held.token()) == (name, token) && other.actor < claim.actor)
            {
                wrong.push(("R16", format!("actor {} and another one rely on {token} of {name}", claim.actor)));
            }
            let Some(it) = self.names.get(name) else { continue };
            let limit = it.admitted.get(&token).copied().unwrap_or(0);
            let earlier = valid.iter().filter(|other| {
                other.name == *name
                    && other.held.token() <= token
                    && !self.void.contains_key(&(name.clone(), other.held.token()))
            });
            let sum: u32 = earlier.map(|other| other.weight).sum();
            if sum > limit {
                wrong.push(("P1", format!("{name}: {sum} are relied on with {token}, which came in under {limit}")));
            }
            if now.strict && it.keys.under(token).is_none() {
                continue;
            }
            // A server that may have forgotten renewals grants nothing until those leases have ended.
            let until = self.renewed_before.get(&hold).copied().unwrap_or_default();
            let is_backed = it
                .keys
                .under(token)
                .is_some_and(|(_, record)| record.ends.max(until) > now.server_ms && record.weight >= claim.weight);
            if !is_backed {
                wrong.push((
                    "P1",
                    format!(
                        "actor {} relies on {token} of {name}, the server has {:?}",
                        claim.actor,
                        it.keys.under(token)
                    ),
                ));
            }
        }
        for (promise, what) in wrong {
            self.violated(promise, what);
        }
    }

    /// P4: without requests in flight the server counts as many holds as there are guards, with their weight.
    pub fn check_hold(&mut self, name: &str, token: u64, guards: u32, weight: u32) {
        let Some((_, record)) = self.names.get(name).and_then(|it| it.keys.under(token)) else { return };
        if (record.holds, record.weight) != (guards, weight) {
            let (holds, has) = (record.holds, record.weight);
            self.violated(
                "P4",
                format!("{name}: {holds} holds of {has} under {token}, and {guards} guards of {weight}"),
            );
        }
    }

    /// Runs again and again.
    pub fn look(&mut self, now: Now) {
        self.knows(&now);
        self.check_claims(&now);
        if !now.settled {
            self.unclaimed.clear();
            self.names.values_mut().for_each(|it| it.fits_since = None);
            return;
        }
        let claimed: BTreeSet<Hold> =
            self.claims.iter().map(|claim| (claim.name.clone(), claim.held.token())).collect();
        let held: BTreeSet<Hold> = self
            .names
            .iter()
            .flat_map(|(name, it)| {
                let living = it.keys.records.iter().filter(|(owner, record)| {
                    let is_in_use = || self.in_use.contains(&(name.clone(), (*owner).clone()));
                    // The handle is unusable.
                    let is_watched =
                        if is_of_a_handle(owner) { !is_in_use() } else { self.is_connected(name, client_of(owner)) };
                    record.ends > now.server_ms && is_watched
                });
                living.map(move |(_, record)| (name.clone(), record.token))
            })
            .collect();
        self.unclaimed.retain(|hold, _| held.contains(hold) && !claimed.contains(hold));
        for hold in held.difference(&claimed) {
            self.unclaimed.entry(hold.clone()).or_insert(now.at);
        }
        let left = self.unclaimed.iter().find(|(_, since)| now.at > **since + GHOSTS_LIVE);
        if let Some(((name, token), since)) = left.map(|(hold, since)| (hold.clone(), *since)) {
            self.violated("P5", format!("{name}: nobody has the hold under {token}, since {since:?}"));
        }
        let mut late = Vec::new();
        for (name, it) in &self.names {
            let first =
                self.first_that_fits(name, &it.keys, now.server_ms, "").map(|place| (place.owner.clone(), place.seq));
            late.push((name.clone(), first));
        }
        for (name, first) in late {
            let Some(it) = self.names.get_mut(&name) else { continue };
            let Some((owner, seq)) = first else {
                it.fits_since = None;
                continue;
            };
            let since = *it.fits_since.get_or_insert(now.at);
            if now.at > since + SERVED_WITHIN {
                it.fits_since = None;
                self.violated("P7", format!("{name}: {owner}:{seq} fits since {since:?}, and is not served"));
            }
        }
    }
}
