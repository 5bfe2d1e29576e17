//! Compares every event with the promises P1 to P10 and the rules R1 to R12 of docs/design.md.
//!
//! It sees two sides. The server: each script that ran, in order, with its reply. From these it derives the
//! holder and the queue itself. The clients: who has a guard, and until when it is valid. Both are compared at
//! each event, so a violation is found at once and not only when it has consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::Held;
use fairlock::simulation::Ran;

/// Longer than a ticket of this simulation can wait behind others.
const ORDER_UNKNOWN_MS: i64 = 30_000;

/// The state of one lock on the server, derived from its replies.
#[derive(Default)]
struct Lock {
    /// The greatest token ever given (P2).
    newest: u64,
    holder: Option<Holder>,
    queue: Vec<Waiter>,
    /// All tickets that were ever in the queue.
    known: BTreeSet<String>,
    /// By owner: the seq up to which it has left. Requests up to there must not be served (R2, R3).
    tombstones: BTreeMap<String, u64>,
    resource: Resource,
    /// Server time, ms. A script was refused half-way, and nobody knows which entries it touched.
    order_unknown_until: i64,
}

struct Holder {
    owner: String,
    token: u64,
    /// Server time, ms.
    until: i64,
}

struct Waiter {
    ticket: String,
    /// Server time, ms.
    until: i64,
    /// Its position is unknown. It was in the queue before, died or let its grant expire, and asked again: its old
    /// entry may still be in the list and give it its old position (docs/design.md, decision 15).
    requeued: bool,
}

/// What the lock protects: a counter that refuses tokens smaller than one it has seen.
#[derive(Default)]
struct Resource {
    newest: u64,
    user: usize,
    value: u64,
    written: u64,
}

/// Lock and token: other locks may have the same tokens.
type Hold = (String, u64);

/// A hold that an actor relies on.
pub struct Claim {
    pub lock: String,
    pub actor: usize,
    pub process: String,
    pub held: Held,
}

#[derive(Default)]
pub struct Checker {
    locks: BTreeMap<String, Lock>,
    claims: Vec<Claim>,
    /// Ended by force_unlock or lost with the server's data. Their holders learn of it later, so P1 and R5 do not
    /// apply to them.
    void: BTreeSet<Hold>,
    /// Holds, by lock key and token, that a script which was refused half-way may have ended.
    perhaps_ended: BTreeSet<(String, u64)>,
    /// Owners, by lock key, to whom a script that was refused half-way may have given the lock.
    perhaps_began: BTreeSet<(String, String)>,
    /// Holds whose unlock answered `Freed`, and when.
    freed: BTreeMap<Hold, std::time::Instant>,
    connected: BTreeSet<String>,
    /// The acquire requests that have run, by client and number.
    requests: BTreeSet<(String, String)>,
    /// The owner of each hold.
    owners: BTreeMap<Hold, String>,
    /// R11: owners that were told of a loss, and owners that sent a leave because of a loss.
    lost: BTreeSet<String>,
    left_after_loss: BTreeSet<String>,
    /// The calm phase has lasted long enough that no effect of a fault is left.
    pub settled: bool,
    pub violations: Vec<String>,
    pub grants: u64,
    pub handed_over: u64,
    pub expiries: u64,
    /// How often an actor got the lock.
    pub sections: u64,
}

fn client_of(ticket_or_owner: &str) -> &str {
    ticket_or_owner.split(':').next().unwrap_or_default()
}

/// An entry of the queue is `<ticket>/<label>`.
fn ticket_of(entry: &str) -> &str {
    entry.split_once('/').map_or(entry, |(ticket, _)| ticket)
}

fn number<T: std::str::FromStr + Default>(words: &[String], index: usize) -> T {
    words.get(index).and_then(|word| word.parse().ok()).unwrap_or_default()
}

impl Claim {
    fn hold(&self) -> Hold {
        (self.lock.clone(), self.held.token())
    }
}

impl Checker {
    fn violated(&mut self, promise: &str, what: String) {
        self.violations.push(format!("{promise}: {what}"));
    }

    pub fn connected(&mut self, client: &str, on: bool) {
        if on {
            self.connected.insert(client.to_owned());
        } else {
            self.connected.remove(client);
        }
    }

    /// The server lost all its data.
    pub fn flushed(&mut self) {
        for (key, lock) in &mut self.locks {
            lock.queue.clear();
            lock.tombstones.clear();
            self.void.extend(lock.holder.take().map(|holder| (key.clone(), holder.token)));
        }
    }

    /// A process died, and with it its claims. The caller drops them after it has let go of the checker: dropping the
    /// last claim closes a client, and that event needs the checker again.
    #[must_use]
    pub fn died(&mut self, process: &str) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.process == process).collect()
    }

    pub fn ran(&mut self, ran: &Ran<'_>) {
        let reply = match &ran.reply {
            Ok(reply) => reply,
            Err(refusal) => return self.refused(ran, refusal),
        };
        let key = &ran.keys[0];
        let status = reply[0].as_str();
        self.locks.entry(key.clone()).or_default();
        match ran.script {
            "acquire" => {
                self.grants_published(key, ran);
                self.acquired(key, ran, reply);
            }
            "poll" => self.polled(key, ran, reply),
            "leave" => {
                self.note_tombstone(key, ran);
                self.ended(key, ticket_of(&ran.args[4]), status == "freed");
                self.grants_published(key, ran);
                self.check_passed_on(key, ran, status);
            }
            "release" => {
                // Only a release with `copies_until` takes the ticket of a late copy out of the queue (R3).
                let purged = if ran.args[1] == "0" { "" } else { ticket_of(&ran.args[9]) };
                if ran.args[4] == "0" {
                    self.note_tombstone(key, ran);
                }
                self.ended(key, purged, status == "freed");
                self.grants_published(key, ran);
                self.check_passed_on(key, ran, status);
            }
            "force_unlock" => {
                if status == "freed" {
                    self.void.insert((key.clone(), number(reply, 3)));
                    self.ended(key, "", true);
                }
                self.grants_published(key, ran);
                self.check_passed_on(key, ran, status);
            }
            "renew" => self.renewed(key, ran, reply),
            _ => {}
        }
    }

    /// A script that was refused half-way has done an unknown part of its work: it may have taken tickets out, or
    /// ended the hold of its owner. What follows is not held against it until the server says more.
    fn refused(&mut self, ran: &Ran<'_>, refusal: &str) {
        let Some(key) = ran.keys.first().filter(|_| refusal.contains("part of the request has run")) else { return };
        self.grants_published(key, ran);
        let owner = match ran.script {
            "acquire" | "release" | "leave" => ran.args.get(2),
            _ => None,
        };
        // Entries may be missing, double, or out of place: P3 and R6 are checked again when all tickets of now are gone.
        self.lock(key).order_unknown_until = ran.at / 1000 + ORDER_UNKNOWN_MS;
        if ran.script == "acquire" {
            self.perhaps_began.extend(owner.map(|owner| (key.clone(), owner.clone())));
        }
        let lock = self.lock(key);
        let ended = |holder: &&Holder| owner == Some(&holder.owner) || ran.script == "force_unlock";
        if let Some(token) = lock.holder.as_ref().filter(ended).map(|holder| holder.token) {
            self.perhaps_ended.insert((key.clone(), token));
            if ran.script == "force_unlock" {
                // Ended, and its holder not told: P1 does not apply to it.
                self.void.insert((key.clone(), token));
            }
        }
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    /// R3: a leave or a final release writes a tombstone if a copy of the acquire may still be in flight. From now on
    /// no copy of that attempt may be served.
    fn note_tombstone(&mut self, key: &str, ran: &Ran<'_>) {
        let (owner, seq) = (&ran.args[2], number::<u64>(ran.args, 3));
        if ran.args[1] != "0" {
            let tombstone = self.lock(key).tombstones.entry(owner.clone()).or_default();
            *tombstone = seq.max(*tombstone);
        }
        // R11: the leave after a loss has a seq of its own. Other leaves have that of the attempt.
        let attempt = ran.args.get(4).and_then(|entry| ticket_of(entry).rsplit(':').next());
        if ran.script == "leave" && attempt != Some(&ran.args[3]) {
            self.left_after_loss.insert(owner.clone());
        }
    }

    fn ended(&mut self, key: &str, ticket: &str, freed: bool) {
        let lock = self.lock(key);
        lock.queue.retain(|waiter| waiter.ticket != ticket);
        if freed {
            lock.holder = None;
        }
    }

    fn grants_published(&mut self, key: &str, ran: &Ran<'_>) {
        for published in ran.published {
            let words: Vec<&str> = published.message.split(' ').collect();
            if let ["grant", token, lasts, ticket, ..] = words[..] {
                // The script passes over a client that did not receive the grant, except the caller itself.
                if !published.received && client_of(ticket) != ran.client {
                    continue;
                }
                let (token, lasts): (u64, i64) = (token.parse().unwrap_or(0), lasts.parse().unwrap_or(0));
                let position = self.lock(key).queue.iter().position(|waiter| waiter.ticket == ticket);
                let requeued = position.is_none_or(|position| self.lock(key).queue[position].requeued);
                if !requeued {
                    self.check_no_overtaking(key, ran, position.unwrap_or(0), ticket);
                }
                self.lock(key).queue.retain(|waiter| waiter.ticket != ticket);
                let owner = ticket.rsplit_once(':').map_or(ticket, |(owner, _)| owner).to_owned();
                self.handed_over += 1;
                self.begins(key, ran, Holder { owner, token, until: ran.at / 1000 + lasts });
            }
        }
    }

    /// The first of the `ahead` foremost waiters that the server must not pass over: it is alive, and its client is
    /// connected or the caller.
    fn first_in_line(&self, key: &str, ran: &Ran<'_>, ahead: usize) -> Option<String> {
        let (now, caller) = (ran.at / 1000, ran.client);
        let must_be_served = |waiter: &&Waiter| {
            let client = client_of(&waiter.ticket);
            waiter.until > now && (self.connected.contains(client) || client == caller)
        };
        let Lock { queue, order_unknown_until, .. } = self.locks.get(key)?;
        if now < *order_unknown_until {
            return None;
        }
        queue[..ahead.min(queue.len())].iter().find(must_be_served).map(|waiter| waiter.ticket.clone())
    }

    /// P3: the winner has no live and reachable waiter ahead of it.
    fn check_no_overtaking(&mut self, key: &str, ran: &Ran<'_>, ahead: usize, winner: &str) {
        if let Some(overtaken) = self.first_in_line(key, ran, ahead) {
            self.violated("P3", format!("{winner} overtook {overtaken} on {key}"));
        }
    }

    /// R6: the script that frees the lock grants it to the first in line.
    fn check_passed_on(&mut self, key: &str, ran: &Ran<'_>, status: &str) {
        if status != "freed" || self.lock(key).holder.is_some() {
            return;
        }
        if let Some(first) = self.first_in_line(key, ran, usize::MAX) {
            self.violated("R6", format!("{key} was freed and not passed on to {first}"));
        }
    }

    /// The lock gets a new holder. Checks P2 (tokens grow), P5 (nothing expires without faults) and P1 (the hold
    /// before is over).
    fn begins(&mut self, key: &str, ran: &Ran<'_>, holder: Holder) {
        let now = ran.at / 1000;
        self.grants += 1;
        let lock = self.lock(key);
        let newest = lock.newest;
        lock.newest = newest.max(holder.token);
        let before = lock.holder.take();
        let token = holder.token;
        self.owners.insert((key.to_owned(), token), holder.owner.clone());
        let lock = self.lock(key);
        // An owner that asks for a first hold ends an earlier one of its own (docs/design.md, decision 3).
        let given_up = |before: &Holder| ran.script == "acquire" && ran.args[2] == before.owner;
        lock.holder = Some(holder);
        if token <= newest {
            self.violated("P2", format!("token {token} after {newest} on {key}"));
        }
        if let Some(before) = before {
            let expired = before.until <= now;
            self.expiries += u64::from(expired);
            if expired && self.settled {
                // Without faults all holds are released: no process dies, and no actor works longer than a fixed lease.
                self.violated("P5", format!("a hold of {} on {key} was left to expire", before.owner));
            }
            let perhaps_ended = self.perhaps_ended.contains(&(key.to_owned(), before.token));
            if before.until > now && !given_up(&before) && !perhaps_ended {
                self.violated("P1", format!("{key} was taken from {} before its lease ended", before.owner));
            }
        }
        self.check_no_other_is_valid(key, token);
    }

    fn acquired(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let (owner, seq) = (&ran.args[2], &ran.args[3]);
        let now = ran.at / 1000;
        let tombstone = self.lock(key).tombstones.get(owner).copied();
        // Only the first copy counts. The client knows of no second copy once the first was answered, so it writes
        // no tombstone for it (R3): TCP makes no copies, only the simulator does.
        let first = self.requests.insert((ran.client.to_owned(), ran.args[0].clone()));
        let served = first && matches!(reply[0].as_str(), "held" | "queued");
        if served && tombstone >= Some(number(ran.args, 3)) {
            let what = format!("{owner} had left up to {tombstone:?}, and its request {seq} was served on {key}");
            self.violated("P5", what);
        }
        match reply[0].as_str() {
            "held" => {
                let token: u64 = number(reply, 3);
                let until = now + number::<i64>(reply, 5);
                let is_holder = self.lock(key).holder.as_ref().is_some_and(|holder| holder.token == token);
                if is_holder {
                    self.extended(key, token, until);
                } else {
                    let all = self.lock(key).queue.len();
                    // It may have it since an earlier copy that was refused half-way, before others queued.
                    if !self.perhaps_began.remove(&(key.to_owned(), owner.clone())) {
                        self.check_no_overtaking(key, ran, all, owner);
                    }
                    self.begins(key, ran, Holder { owner: owner.clone(), token, until });
                }
            }
            "queued" => {
                let ticket = format!("{owner}:{seq}");
                let until = now + number::<i64>(ran.args, 8);
                self.queued(key, ticket, now, until);
            }
            _ => {}
        }
    }

    fn queued(&mut self, key: &str, ticket: String, now: i64, until: i64) {
        let Lock { queue, known, .. } = self.lock(key);
        match queue.iter_mut().find(|waiter| waiter.ticket == ticket) {
            Some(waiter) if waiter.until > now => waiter.until = until,
            // New, or dead since a while: to P3 it is behind all others.
            _ => {
                queue.retain(|waiter| waiter.ticket != ticket);
                let requeued = !known.insert(ticket.clone());
                queue.push(Waiter { ticket, until, requeued });
            }
        }
    }

    fn extended(&mut self, key: &str, token: u64, until: i64) {
        if let Some(holder) = self.lock(key).holder.as_mut().filter(|holder| holder.token == token) {
            holder.until = until;
        }
    }

    /// A poll first renews the caller's tickets and then passes the lock on (docs/design.md, decision 5).
    fn polled(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let now = ran.at / 1000;
        let until = now + number::<i64>(ran.args, 1);
        let tickets: Vec<_> = ran.args[6..].iter().step_by(2).collect();
        // Index, status, token and time left, for the tickets that are not simply queued.
        let statuses: BTreeMap<usize, &[String]> =
            reply[7..].chunks(4).map(|words| (number(words, 0), words)).collect();
        for (index, ticket) in tickets.into_iter().enumerate() {
            let queue = &mut self.lock(key).queue;
            if statuses.get(&(index + 1)).is_some_and(|words| words[1] == "unknown") {
                queue.retain(|waiter| waiter.ticket != *ticket);
            } else if let Some(waiter) = queue.iter_mut().find(|waiter| waiter.ticket == *ticket) {
                waiter.until = until;
            }
        }
        self.grants_published(key, ran);
        for words in statuses.values().filter(|words| words[1] == "granted") {
            self.extended(key, number(words, 2), now + number::<i64>(words, 3));
        }
    }

    fn renewed(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let token: u64 = number(ran.args, 2);
        if reply[0] == "renewed" {
            self.extended(key, token, ran.at / 1000 + number::<i64>(reply, 3));
        }
        // P10: the last unlock stops the renewals.
        if self.freed.get(&(key.to_owned(), token)).is_some_and(|freed| ran.sent > *freed) {
            self.violated("P10", format!("{} renews {token}, which it has freed", ran.client));
        }
    }

    /// P1: no other client has a valid hold of this lock.
    fn check_no_other_is_valid(&mut self, key: &str, token: u64) {
        let valid = |claim: &&Claim| {
            let other = claim.lock == key && claim.held.token() != token;
            other && claim.held.is_valid() && !self.void.contains(&claim.hold())
        };
        if let Some(claim) = self.claims.iter().find(valid) {
            let what = format!(
                "{key} is given away under {token}, but actor {} is valid under {} for {:?}",
                claim.actor,
                claim.held.token(),
                claim.held.valid_for()
            );
            self.violated("P1", what);
        }
    }

    /// An actor got the lock.
    pub fn claim(&mut self, claim: Claim, server_ms: i64, clock_rate: f64) {
        self.sections += 1;
        let (lock, token) = (claim.lock.clone(), claim.held.token());
        if claim.held.is_valid() && !self.void.contains(&claim.hold()) {
            self.check_no_other_is_valid(&lock, token);
        }
        if let Some(other) = self.claims.iter().find(|other| other.held.token() == token && other.lock == lock) {
            self.violated("P2", format!("actors {} and {} share token {token}", claim.actor, other.actor));
        }
        self.claims.push(claim);
        self.check_deadlines(server_ms, clock_rate);
    }

    /// The last guard of a claim is about to be unlocked or dropped.
    #[must_use]
    pub fn release(&mut self, lock: &str, token: u64) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.held.token() == token && claim.lock == lock).collect()
    }

    /// R5: no hold is valid for longer than the server keeps the lock for it.
    pub fn check_deadlines(&mut self, server_ms: i64, clock_rate: f64) {
        let mut too_long = Vec::new();
        for claim in &self.claims {
            let (token, valid_for) = (claim.held.token(), claim.held.valid_for());
            if valid_for.is_zero() || self.void.contains(&claim.hold()) {
                continue;
            }
            let holder = self.locks.get(&claim.lock).and_then(|lock| lock.holder.as_ref());
            let left = holder.filter(|holder| holder.token == token).map_or(0, |holder| holder.until - server_ms);
            // If the server's clock runs faster, the lease ends sooner by the client's clock.
            let left = Duration::from_secs_f64(left.max(0) as f64 / 1000.0 / clock_rate);
            if left < valid_for {
                too_long.push(format!(
                    "actor {} relies on {token} on {} for {valid_for:?}, the server keeps it for {left:?}",
                    claim.actor, claim.lock
                ));
            }
        }
        for what in too_long {
            self.violated("R5", what);
        }
    }

    /// Reads the fenced resource. `None` if a later token was seen there.
    pub fn read(&mut self, lock: &str, token: u64, actor: usize) -> Option<u64> {
        let resource = &mut self.lock(lock).resource;
        if token < resource.newest {
            return None;
        }
        let shared = (token == resource.newest && resource.user != actor).then_some(resource.user);
        (resource.newest, resource.user) = (token, actor);
        let value = resource.value;
        if let Some(other) = shared {
            self.violated("fence", format!("actors {other} and {actor} use {lock} under one token {token}"));
        }
        Some(value)
    }

    pub fn write(&mut self, lock: &str, token: u64, value: u64) -> bool {
        let resource = &mut self.lock(lock).resource;
        if token < resource.newest {
            return false;
        }
        (resource.newest, resource.value) = (token, value);
        resource.written += 1;
        true
    }

    /// P4: an unlock answered `Freed`, so the server must not keep the lock for this hold.
    pub fn unlock_answered_freed(&mut self, lock: &str, token: u64, now: std::time::Instant, server_ms: i64) {
        self.freed.insert((lock.to_owned(), token), now);
        let holder = self.locks.get(lock).and_then(|lock| lock.holder.as_ref());
        if holder.is_some_and(|holder| holder.token == token && holder.until > server_ms) {
            self.violated("P4", format!("unlock answered that {token} on {lock} was freed, but it is held"));
        }
    }

    /// P8: an unlock answered that the hold is gone from the server, so it must be.
    pub fn unlock_answered_gone(&mut self, lock: &str, token: u64, server_ms: i64) {
        let holder = self.locks.get(lock).and_then(|lock| lock.holder.as_ref());
        if holder.is_some_and(|holder| holder.token == token && holder.until > server_ms) {
            self.violated("P8", format!("unlock answered that {token} on {lock} was lost, but it is held"));
        }
    }

    /// An unlock answered that the hold was lost.
    pub fn unlock_answered_lost(&mut self, lock: &str, token: u64) {
        self.lost.extend(self.owners.get(&(lock.to_owned(), token)).cloned());
    }

    /// R11, checked at the end: losses are followed by leaves. A single leave may be missing, if the server was down
    /// for as long as it was retried, so this only fails if there is none at all.
    pub fn check_leaves_after_losses(&mut self) {
        if self.lost.len() >= 5 && self.lost.is_disjoint(&self.left_after_loss) {
            self.violated("R11", format!("{} holds were lost, and none of their owners left", self.lost.len()));
        }
    }

    /// A violation that was found outside of the checker.
    pub fn report(&mut self, promise: &str, what: String) {
        self.violated(promise, what);
    }

    /// At the end: no update of a resource was lost.
    pub fn check_updates(&mut self) {
        let lost = self.locks.iter().filter(|(_, lock)| lock.resource.value != lock.resource.written);
        let lost: Vec<_> = lost
            .map(|(key, lock)| {
                format!("{} of {} updates of {key} are there", lock.resource.value, lock.resource.written)
            })
            .collect();
        for what in lost {
            self.violated("fence", what);
        }
    }
}
