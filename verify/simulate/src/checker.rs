//! Reads everything that happens and compares it with the promises.
//!
//! It sees two sides. What the server did: each script that ran, in order, with its answer; from
//! that it keeps its own idea of holder and queue. What the clients believe: who holds a guard, and
//! until when. Both are checked against each other at each event, so a violation is found when it
//! happens and not when it does harm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::Held;
use fairlock::simulation::Ran;

/// What the server has for one lock, as far as its answers tell.
#[derive(Default)]
struct Lock {
    /// The greatest token ever given (P2).
    newest: u64,
    holder: Option<Holder>,
    queue: Vec<Waiting>,
    /// All tickets that ever were in it.
    known: BTreeSet<String>,
    /// By owner: the seq up to which it has left for good (R2, R3).
    left: BTreeMap<String, u64>,
    resource: Resource,
}

struct Holder {
    owner: String,
    token: u64,
    /// Server time, ms.
    until: i64,
}

struct Waiting {
    ticket: String,
    /// Server time, ms.
    until: i64,
    /// It was in the queue before, died or had its grant expire, and asked again: the list may still
    /// have its old place (docs/design.md, decision 15).
    floating: bool,
}

/// Something that refuses tokens smaller than one it has seen, and counts.
#[derive(Default)]
struct Resource {
    newest: u64,
    user: usize,
    value: u64,
    written: u64,
}

/// Lock and token: other locks may have the same tokens.
type Hold = (String, u64);

/// A guard that somebody has.
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
    /// Ended by force or with the server's data: their holders hear of it later.
    void: BTreeSet<Hold>,
    /// Said to be freed, and when.
    freed: BTreeMap<Hold, std::time::Instant>,
    connected: BTreeSet<String>,
    /// The requests for a lock that have run, by client and number.
    requests: BTreeSet<(String, String)>,
    /// Who had each hold.
    owners: BTreeMap<Hold, String>,
    /// Owners that lost a hold while their process lived, and owners that left because of a loss.
    lost: BTreeSet<String>,
    left_after_loss: BTreeSet<String>,
    /// Nothing has gone wrong for so long that nothing of it can be left.
    pub settled: bool,
    pub violations: Vec<String>,
    pub grants: u64,
    pub handed_over: u64,
    pub expiries: u64,
    /// Sections that were entered.
    pub sections: u64,
}

fn client_of(ticket_or_owner: &str) -> &str {
    ticket_or_owner.split(':').next().unwrap_or_default()
}

/// A place in the queue is the ticket and a label.
fn ticket_of(place: &str) -> &str {
    place.split_once('/').map_or(place, |(ticket, _)| ticket)
}

fn number<T: std::str::FromStr + Default>(words: &[String], place: usize) -> T {
    words.get(place).and_then(|word| word.parse().ok()).unwrap_or_default()
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

    /// The server forgot everything.
    pub fn flushed(&mut self) {
        for (key, lock) in &mut self.locks {
            lock.queue.clear();
            // The tombstones are gone too.
            lock.left.clear();
            self.void.extend(lock.holder.take().map(|holder| (key.clone(), holder.token)));
        }
    }

    /// The process is no more: nobody acts on its guards. They are handed out, since dropping the
    /// last one closes a client, which is an event of its own.
    #[must_use]
    pub fn died(&mut self, process: &str) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.process == process).collect()
    }

    pub fn ran(&mut self, ran: &Ran<'_>) {
        let Ok(reply) = &ran.reply else { return };
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
                self.left(key, ran);
                self.ended(key, ticket_of(&ran.args[4]), status == "freed");
                self.grants_published(key, ran);
                self.is_passed_on(key, ran, status);
            }
            "release" => {
                let purged = if ran.args[1] == "0" { "" } else { ticket_of(&ran.args[9]) };
                if ran.args[4] == "0" {
                    self.left(key, ran);
                }
                self.ended(key, purged, status == "freed");
                self.grants_published(key, ran);
                self.is_passed_on(key, ran, status);
            }
            "force_unlock" => {
                if status == "freed" {
                    self.void.insert((key.clone(), number(reply, 3)));
                    self.ended(key, "", true);
                }
                self.grants_published(key, ran);
                self.is_passed_on(key, ran, status);
            }
            "renew" => self.renewed(key, ran, reply),
            _ => {}
        }
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    /// A leave or a final release, with which a copy of the acquire may still be under way: from now on
    /// nothing of that attempt is served.
    fn left(&mut self, key: &str, ran: &Ran<'_>) {
        let (owner, seq) = (&ran.args[2], number::<u64>(ran.args, 3));
        if ran.args[1] != "0" {
            let left = self.lock(key).left.entry(owner.clone()).or_default();
            *left = seq.max(*left);
        }
        // R11: with a seq of its own, after the attempt's.
        let attempt = ran.args.get(4).and_then(|place| ticket_of(place).rsplit(':').next());
        if ran.script == "leave" && attempt != Some(&ran.args[3]) {
            self.left_after_loss.insert(owner.clone());
        }
    }

    fn ended(&mut self, key: &str, ticket: &str, freed: bool) {
        let lock = self.lock(key);
        lock.queue.retain(|waiting| waiting.ticket != ticket);
        if freed {
            lock.holder = None;
        }
    }

    fn grants_published(&mut self, key: &str, ran: &Ran<'_>) {
        for published in ran.published {
            let words: Vec<&str> = published.message.split(' ').collect();
            if let ["grant", token, lasts, ticket, ..] = words[..] {
                // Passed over, unless it is of the client that asks just now.
                if !published.heard && client_of(ticket) != ran.client {
                    continue;
                }
                let (token, lasts): (u64, i64) = (token.parse().unwrap_or(0), lasts.parse().unwrap_or(0));
                let place = self.lock(key).queue.iter().position(|waiting| waiting.ticket == ticket);
                let floating = place.is_none_or(|place| self.lock(key).queue[place].floating);
                if !floating {
                    self.nobody_is_overtaken(key, ran, place.unwrap_or(0), ticket);
                }
                self.lock(key).queue.retain(|waiting| waiting.ticket != ticket);
                let owner = ticket.rsplit_once(':').map_or(ticket, |(owner, _)| owner).to_owned();
                self.handed_over += 1;
                self.begins(key, ran, Holder { owner, token, until: ran.at / 1000 + lasts });
            }
        }
    }

    /// The first of so many waiters without an excuse: it is alive, and its connection is there or it
    /// asks just now.
    fn first_in_line(&self, key: &str, ran: &Ran<'_>, ahead: usize) -> Option<String> {
        let (now, asks) = (ran.at / 1000, ran.client);
        let reachable = |waiting: &&Waiting| {
            let client = client_of(&waiting.ticket);
            waiting.until > now && (self.connected.contains(client) || client == asks)
        };
        let queue = &self.locks.get(key)?.queue;
        queue[..ahead.min(queue.len())].iter().find(reachable).map(|waiting| waiting.ticket.clone())
    }

    fn nobody_is_overtaken(&mut self, key: &str, ran: &Ran<'_>, ahead: usize, winner: &str) {
        if let Some(overtaken) = self.first_in_line(key, ran, ahead) {
            self.violated("P3", format!("{winner} overtook {overtaken} on {key}"));
        }
    }

    /// R6: whoever frees the lock makes the first in line its owner, in the same script.
    fn is_passed_on(&mut self, key: &str, ran: &Ran<'_>, status: &str) {
        if status != "freed" || self.lock(key).holder.is_some() {
            return;
        }
        if let Some(waiting) = self.first_in_line(key, ran, usize::MAX) {
            self.violated("R6", format!("{key} was freed and not passed on to {waiting}"));
        }
    }

    /// Free -> held.
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
        // By asking anew an owner ends what it had (docs/design.md, decision 3).
        let given_up = |before: &Holder| ran.script == "acquire" && ran.args[2] == before.owner;
        lock.holder = Some(holder);
        if token <= newest {
            self.violated("P2", format!("token {token} after {newest} on {key}"));
        }
        if let Some(before) = before {
            let expired = before.until <= now;
            self.expiries += u64::from(expired);
            if expired && self.settled {
                // Nobody dies in a calm world, and nobody overruns a fixed lease there.
                self.violated("P5", format!("a hold of {} on {key} was left to expire", before.owner));
            }
            if before.until > now && !given_up(&before) {
                self.violated("P1", format!("{key} was taken from {} before its lease ended", before.owner));
            }
        }
        self.nobody_else_is_valid(key, token);
    }

    fn acquired(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let (owner, seq) = (&ran.args[2], &ran.args[3]);
        let now = ran.at / 1000;
        let left = self.lock(key).left.get(owner).copied();
        // A second copy of one that has run may come after its answer: TCP makes none, so the happy path
        // of the protocol writes no tombstone for it (R3).
        let first = self.requests.insert((ran.client.to_owned(), ran.args[0].clone()));
        let served = first && matches!(reply[0].as_str(), "held" | "queued");
        if served && left >= Some(number(ran.args, 3)) {
            self.violated("P5", format!("{owner} had left up to {left:?}, and its request {seq} was served on {key}"));
        }
        match reply[0].as_str() {
            "held" => {
                let token: u64 = number(reply, 3);
                let until = now + number::<i64>(reply, 5);
                let known = self.lock(key).holder.as_ref().is_some_and(|holder| holder.token == token);
                if known {
                    self.extended(key, token, until);
                } else {
                    let all = self.lock(key).queue.len();
                    self.nobody_is_overtaken(key, ran, all, owner);
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
        match queue.iter_mut().find(|waiting| waiting.ticket == ticket) {
            Some(waiting) if waiting.until > now => waiting.until = until,
            _ => {
                queue.retain(|waiting| waiting.ticket != ticket);
                let floating = !known.insert(ticket.clone());
                queue.push(Waiting { ticket, until, floating });
            }
        }
    }

    fn extended(&mut self, key: &str, token: u64, until: i64) {
        if let Some(holder) = self.lock(key).holder.as_mut().filter(|holder| holder.token == token) {
            holder.until = until;
        }
    }

    /// A poll renews first and passes on then; a ticket that it does not know had no place before.
    fn polled(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let now = ran.at / 1000;
        let until = now + number::<i64>(ran.args, 1);
        let tickets: Vec<_> = ran.args[6..].iter().step_by(2).collect();
        // Number, status, token, time left: of those that are not just queued.
        let places: BTreeMap<usize, &[String]> = reply[7..].chunks(4).map(|place| (number(place, 0), place)).collect();
        for (index, ticket) in tickets.into_iter().enumerate() {
            let queue = &mut self.lock(key).queue;
            if places.get(&(index + 1)).is_some_and(|place| place[1] == "unknown") {
                queue.retain(|waiting| waiting.ticket != *ticket);
            } else if let Some(waiting) = queue.iter_mut().find(|waiting| waiting.ticket == *ticket) {
                waiting.until = until;
            }
        }
        self.grants_published(key, ran);
        for place in places.values().filter(|place| place[1] == "granted") {
            self.extended(key, number(place, 2), now + number::<i64>(place, 3));
        }
    }

    fn renewed(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let token: u64 = number(ran.args, 2);
        if reply[0] == "renewed" {
            self.extended(key, token, ran.at / 1000 + number::<i64>(reply, 3));
        }
        // The final unlock cancels the watchdog.
        if self.freed.get(&(key.to_owned(), token)).is_some_and(|freed| ran.sent > *freed) {
            self.violated("P10", format!("{} renews {token}, which it has freed", ran.client));
        }
    }

    /// P1 among beliefs.
    fn nobody_else_is_valid(&mut self, key: &str, token: u64) {
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

    /// Somebody got a guard.
    pub fn claim(&mut self, claim: Claim, server_ms: i64, rate: f64) {
        self.sections += 1;
        let (lock, token) = (claim.lock.clone(), claim.held.token());
        if claim.held.is_valid() && !self.void.contains(&claim.hold()) {
            self.nobody_else_is_valid(&lock, token);
        }
        if let Some(other) = self.claims.iter().find(|other| other.held.token() == token && other.lock == lock) {
            self.violated("P2", format!("actors {} and {} share token {token}", claim.actor, other.actor));
        }
        self.claims.push(claim);
        self.beliefs_are_backed(server_ms, rate);
    }

    /// The last guard of a claim is about to go.
    #[must_use]
    pub fn release(&mut self, lock: &str, token: u64) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.held.token() == token && claim.lock == lock).collect()
    }

    /// Who believes to hold is the server's holder, for at least as long.
    pub fn beliefs_are_backed(&mut self, server_ms: i64, rate: f64) {
        let mut unbacked = Vec::new();
        for claim in &self.claims {
            let (token, valid_for) = (claim.held.token(), claim.held.valid_for());
            if valid_for.is_zero() || self.void.contains(&claim.hold()) {
                continue;
            }
            let holder = self.locks.get(&claim.lock).and_then(|lock| lock.holder.as_ref());
            let left = holder.filter(|holder| holder.token == token).map_or(0, |holder| holder.until - server_ms);
            // A server whose clock runs fast ends the lease sooner.
            let left = Duration::from_secs_f64(left.max(0) as f64 / 1000.0 / rate);
            if left < valid_for {
                unbacked.push(format!(
                    "actor {} believes in {token} on {} for {valid_for:?}, the server gives it {left:?}",
                    claim.actor, claim.lock
                ));
            }
        }
        for what in unbacked {
            self.violated("R5", what);
        }
    }

    /// A look at the fenced resource: what is there, or that a later token was here.
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

    /// An unlock said that the lock is free, or somebody else's.
    pub fn said_freed(&mut self, lock: &str, token: u64, now: std::time::Instant, server_ms: i64) {
        self.freed.insert((lock.to_owned(), token), now);
        let holder = self.locks.get(lock).and_then(|lock| lock.holder.as_ref());
        if holder.is_some_and(|holder| holder.token == token && holder.until > server_ms) {
            self.violated("P4", format!("{token} on {lock} was said to be freed, and is held"));
        }
    }

    /// A guard was said to be gone from the server.
    pub fn said_gone(&mut self, lock: &str, token: u64, server_ms: i64) {
        let holder = self.locks.get(lock).and_then(|lock| lock.holder.as_ref());
        if holder.is_some_and(|holder| holder.token == token && holder.until > server_ms) {
            self.violated("P8", format!("{token} on {lock} was said to be lost, and is held"));
        }
    }

    /// A holder heard that it had lost.
    pub fn said_lost(&mut self, lock: &str, token: u64) {
        self.lost.extend(self.owners.get(&(lock.to_owned(), token)).cloned());
    }

    /// At the end. A single leave may come to nothing: its server was away for as long as it mattered.
    pub fn losses_were_followed_by_leaves(&mut self) {
        if self.lost.len() >= 5 && self.lost.is_disjoint(&self.left_after_loss) {
            self.violated("R11", format!("{} holds were lost, and none of their owners left", self.lost.len()));
        }
    }

    pub fn said(&mut self, promise: &str, what: String) {
        self.violated(promise, what);
    }

    /// At the end: every update of each resource is there.
    pub fn updates_are_exact(&mut self) {
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
