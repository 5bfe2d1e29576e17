//! Compares every event with the promises P1 to P10 and the rules R1 to R14 of docs/design.md.
//!
//! It sees two sides. On the server: each script that ran, in order, with its reply. From the replies the checker
//! derives the holder and the queue itself, and compares them with the keys after the script. On the clients: the
//! guards, and until when they are valid. It compares both at each event, so it finds a violation at once, not by its
//! consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::simulation::{Ran, may_have_run};
use fairlock::{Held, UnlockError};

use crate::asked::Asked;
use crate::keys::{Keys, client_of, grant_ttl_of, is_of_a_handle, ticket_of};
use crate::sightings::{Sightings, untrue};

/// The lease of a hold whose PEXPIRE the server refused: the next acquire or poll sets one.
const WITHOUT_LEASE: i64 = i64::MAX / 2000;
const MOST_VIOLATIONS: usize = 4;
/// Without faults a released hold ends within this time, in ms, even if a failover brought it back.
const GHOSTS_LIVE: i64 = 1000;
/// The same for a place that a failover brought back, from its grant on: a message and a leave.
const GHOSTS_ARE_GRANTED: i64 = 100;
/// Added if another node took over: the client has to learn of that first. In ms.
const LOOKED_AFTER: i64 = 1000;
/// Each move of a key cuts its remaining time to whole ms.
const ROUNDED: i64 = 8;
/// How long a call that waited because its slot moved may wait on, in ms: until its next try.
const TRIED_AGAIN: i64 = 3000;
/// An older answer may be off by the drift of the clocks.
const LEARNT_WITHIN: i64 = 10_000;
/// How long an overloaded client may be busy with a failover, in ms.
const STALLED: i64 = 5000;
/// Without faults the server answers a request within this time.
const ANSWERED: Duration = Duration::from_millis(100);

/// A holder learns of a loss on the server within this time, once nothing hinders its requests any more (P8).
const TOLD_WITHIN: Duration = Duration::from_millis(300);
/// The client asks again about a renewed hold within this time: a third of the longest lease.
const RENEWED_WITHIN: Duration = Duration::from_millis(1334);
/// How much too early a hold may end. A lease counts from its request, whose answer may take [`ANSWERED`] each way.
const EARLY: Duration = Duration::from_millis(200);
/// What an unpolled future costs others, in ms: 250, a message to it, and a request that releases the lock.
const MOMENT: i64 = 250 + 100;
/// The same if it may cost a lease.
const LEASE: i64 = 4000 + 500;

/// One lock on the server, as its replies describe it.
#[derive(Clone, Default)]
struct Lock {
    /// The greatest token ever granted (P2).
    newest: u64,
    /// The greatest that this server knows: a failover may have lost greater ones.
    known: u64,
    holder: Option<Holder>,
    /// All places, oldest first.
    queue: Vec<Waiter>,
    /// The clients that have places.
    clients: BTreeMap<String, Client>,
    /// Common time, ms: when the keys of the queue expire.
    queue_until: i64,
    /// The seq up to which each owner has left. The server must not serve requests up to there (R2, R3).
    tombstones: BTreeMap<String, Tombstone>,
    resource: Resource,
    /// The greatest floor in any reply: every later grant has a greater token (R7).
    floor: u64,
    /// The server refused a script half-way, or someone deleted a key: places and tickets may differ from the replies,
    /// until they agree again.
    inexact: bool,
    /// Someone deleted its list, and no client has asked since.
    list_deleted: bool,
    /// By ticket: its client's polls since the last one that asked for it.
    not_asked_for: BTreeMap<String, usize>,
    /// Places that were dead when the script began, whose client then sent this request.
    excused: BTreeSet<String>,
    /// Tickets that a failover brought back.
    ghosts: BTreeSet<String>,
    /// Holds that a failover brought back, or that such tickets got, by token; and until when their leases may end
    /// unused (server time, ms), since their clients have yet to learn of them.
    restored: BTreeMap<u64, i64>,
    /// The furthest deadline of a client in the sorted set, in ms, and until when the scripts forgive a silence.
    last_heard: i64,
    forgiven_until: i64,
    /// Except for clients with an earlier deadline: they already got this for the silence before.
    spent: i64,
    /// When the present script runs (server time, microseconds), and until when it must take no other client for dead
    /// (ms), except those with a deadline before `pardoned_from`.
    at: i64,
    pardoned_until: i64,
    pardoned_from: i64,
    /// The node of the cluster that serves it; 0 without a cluster.
    node: usize,
    /// Its slot moves, or did until a moment ago (common time, ms): calls wait.
    stalled_until: i64,
    /// After a move of the keys, its lease and the lifetimes of its queue are slightly shorter than the replies stated.
    lease_is_rounded: bool,
    queue_is_rounded: bool,
    /// A loss of data took the stored token, and no grant has followed.
    token_is_lost: bool,
}

#[derive(Clone, Copy, Default)]
struct Tombstone {
    seq: u64,
    /// Common time, ms. From then on no node serves a copy, by the clock of the node that wrote this. If the slot comes
    /// back to a node whose clock is behind, that node may still serve one.
    until: i64,
}

#[derive(Clone)]
struct Holder {
    owner: String,
    token: u64,
    /// Common time, ms.
    until: i64,
    /// As the keys state.
    holds: u32,
}

#[derive(Clone)]
struct Waiter {
    ticket: String,
    /// ms, of the call that waits.
    grant_ttl: i64,
}

#[derive(Clone, Copy, Default)]
struct Client {
    /// Server time, ms: it dies then, unless it sends a request before.
    until: i64,
    /// A message found no subscriber, and the client has sent no request since.
    unreachable: bool,
}

impl Client {
    fn lives(self, at: i64) -> bool {
        // In microseconds. At least 1 ms must be left for a lease.
        1000 * self.until - at >= 1000
    }
}

/// What the lock protects: a counter that refuses tokens below one it has seen.
#[derive(Clone, Default)]
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
    pub began: Duration,
    pub lease: Duration,
    /// Its client renews it; otherwise it ends after its lease.
    pub is_renewed: bool,
    /// If renewed: `max_hold` ends it between these two.
    pub ends: Option<(Duration, Duration)>,
}

/// What an unpolled future may cost the waiters after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// It waits for the lock: a moment, once.
    Moment,
    /// It has a part of the names it wants, or is about to release one.
    Lease,
    /// It holds the lock.
    All,
}

struct Resting {
    cost: Cost,
    /// Common time, ms.
    since: i64,
    /// How often its turn came.
    turns: u32,
}

/// Common time is the time of a server without a clock of its own: see `World::server_ms`.
#[derive(Default)]
pub struct Checker {
    locks: BTreeMap<String, Lock>,
    claims: Vec<Claim>,
    /// Holds that `force_unlock` or a loss of data ended. Their holders learn of it later, so P1 and R5 do not apply to
    /// them.
    void: BTreeSet<Hold>,
    /// Holds that their clients could not renew in time, because the server was away.
    cut_short: BTreeSet<Hold>,
    /// Lost holds: since when the server lacks their record, or has a shorter lease. Only those whose holders can learn
    /// of it.
    ended_at: BTreeMap<Hold, Duration>,
    /// Holds lost by a flush while this client was connected, and when. The holder learns of it by its next renewal, or
    /// when its client connects again.
    flushed_at: BTreeMap<Hold, (String, Duration)>,
    /// Until when something hinders the requests of a client, renewals above all.
    hindered: BTreeMap<String, Duration>,
    /// Clients whose processes are paused.
    pub paused: BTreeSet<String>,
    /// Claims that the checker has found lost.
    judged: BTreeSet<Hold>,
    /// Futures that nobody polls, by owner.
    resting: BTreeMap<String, Resting>,
    /// The time of the last check.
    pub now: Duration,
    /// Lost holds whose record a failover lost as well.
    forgotten: BTreeSet<Hold>,
    /// Lost holds that the server has again, with a shorter lease than before. They count from their next renewal.
    shortened: BTreeSet<Hold>,
    /// Holds that had ended, until a failover brought them back.
    returned: BTreeSet<Hold>,
    pub last_asked: Asked,
    /// Owners of handles that hold nothing, as a call has reported, with their locks. Cleared when the server loses
    /// data.
    lost_handles: BTreeSet<(String, String)>,
    /// A failover lost the last change of their counts.
    miscounted: BTreeSet<Hold>,
    /// Holds without a guard, and since when (common time, ms).
    unclaimed: BTreeMap<Hold, i64>,
    /// Holds that began with the answer to an acquire. A future that does not read that answer costs a lease.
    answered: BTreeSet<Hold>,
    /// Holds of futures that were unpolled, as of when they went on.
    rested_with: BTreeSet<Hold>,
    /// Clients and actors that ask for several names now, and may hold some of them already.
    gathering: BTreeSet<(String, usize)>,
    /// How long a hold that its owner gave back may stay, without faults, in ms.
    ghosts_live: i64,
    /// Its locks may move to a node with another clock.
    moves: bool,
    /// Holds lost with the server's data, of clients with `strict_restart`: P1 applies to these.
    lost_with_data: BTreeSet<Hold>,
    /// Server time, ms: the server must grant no lock before this (R14), and the last end of the freeze that it stated.
    must_freeze_until: i64,
    frozen_until: i64,
    /// How often an actor relied on a forgotten hold while the server was frozen.
    pub forgotten_holds: u64,
    /// Holds, by lock key and token, that a script may have ended before the server refused the rest of it.
    perhaps_ended: BTreeSet<(String, u64)>,
    /// Holds whose unlock answered `Freed`, and when.
    freed: BTreeMap<Hold, std::time::Instant>,
    /// Node and client.
    connected: BTreeSet<(usize, String)>,
    /// The node that runs the present script, and by how many ms its clock is ahead of the common time. A TTL moves
    /// with its key, so the checker keeps it in common time. The deadlines of clients are numbers in the sorted set,
    /// which each node compares with its own clock.
    node: usize,
    ahead: i64,
    /// Requests that another node redirected here, by client and number, and when the client first sent them: they
    /// carry the time of that node.
    redirected: BTreeMap<(String, String), std::time::Instant>,
    /// When a client last got an answer with the time of a node (common time, ms).
    learnt: BTreeMap<(String, usize), i64>,
    /// Clients limited to so few requests in flight that a crowd of callers does not get its turn in time.
    pub overloaded: BTreeSet<String>,
    /// When the last failover ended (server time, ms).
    failed_over: Option<i64>,
    /// The acquire requests that ran, by client and number.
    requests: BTreeSet<(String, String)>,
    /// The owner of each hold.
    owners: BTreeMap<Hold, String>,
    /// R11: owners that learned of a loss, and owners that sent a leave because of one.
    lost: BTreeSet<String>,
    left_after_loss: BTreeSet<String>,
    /// The calm phase has lasted long enough that no fault has an effect any more.
    pub settled: bool,
    pub violations: Vec<String>,
    pub grants: u64,
    pub handed_over: u64,
    pub expiries: u64,
    /// The owners that each name's keys had after the last script, and until when (common time, ms).
    there: BTreeMap<String, Vec<(String, i64)>>,
    /// In common time.
    seen: Sightings,
    /// How often an actor got the lock.
    pub sections: u64,
    /// Stale holds: a failover brought them back after their owners had given them back.
    pub ghosts: u64,
}

pub struct Remembered {
    locks: BTreeMap<String, Lock>,
    perhaps_ended: BTreeSet<Hold>,
}

/// A server with older data took over.
pub struct Failover {
    pub then: Remembered,
    /// Common time, ms.
    pub at: i64,
    pub strict: bool,
    /// The node that failed.
    pub node: usize,
    /// Another node has its slots now. Otherwise its successor has the same address, and clients know by their
    /// connections.
    pub elsewhere: bool,
}

fn number<T: std::str::FromStr + Default>(words: &[String], index: usize) -> T {
    words.get(index).and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Positions in the settings that a client sends along.
const WAITER_TTL: usize = 0;
const MAX_WAITERS: usize = 1;

fn setting(ran: &Ran<'_>, which: usize) -> Option<i64> {
    let settings = match ran.script {
        "acquire" => 6,
        "poll" | "release" => 3,
        "leave" => 5,
        "force_unlock" => 4,
        _ => return None,
    };
    ran.args.get(settings)?.split(' ').nth(which)?.parse().ok()
}

impl Lock {
    /// As the present script must see it.
    fn client(&self, ticket: &str) -> Client {
        let mut client = self.clients.get(client_of(ticket)).copied().unwrap_or_default();
        if client.until > 0 && client.until >= self.pardoned_from && !client.lives(self.at) {
            client.until = client.until.max(self.pardoned_until);
        }
        client
    }

    /// For half a `waiter_ttl` no client has sent a request, for the first time since the last request, and no script
    /// forgives a silence now.
    fn is_silent(&self, waiter_ttl: i64) -> bool {
        let (heard, noted) = (self.last_heard, self.forgiven_until);
        heard > noted && 1000 * noted <= self.at && 1000 * heard - self.at <= 500 * waiter_ttl
    }
}

impl Claim {
    fn hold(&self) -> Hold {
        (self.lock.clone(), self.held.token())
    }
}

impl Checker {
    pub fn new(is_cluster: bool) -> Self {
        let looked_after = if is_cluster { LOOKED_AFTER } else { 0 };
        Self { ghosts_live: GHOSTS_LIVE + looked_after, moves: is_cluster, ..Self::default() }
    }

    fn violated(&mut self, promise: &str, what: String) {
        // The rest follows from the first ones.
        if self.violations.len() < MOST_VIOLATIONS {
            self.violations.push(format!("{promise}: {what}"));
        }
    }

    pub fn connected(&mut self, node: usize, client: &str, on: bool) {
        let connection = (node, client.to_owned());
        if on {
            self.connected.insert(connection);
            let theirs = self.flushed_at.iter().filter(|(_, (of, _))| of == client).map(|(hold, _)| hold.clone());
            self.ended_at.extend(theirs.map(|hold| (hold, self.now)));
            self.flushed_at.retain(|_, (of, _)| of != client);
        } else {
            self.connected.remove(&connection);
        }
    }

    /// The client is gone (server time, ms). If it got a grant a moment ago for a place that a failover had brought
    /// back, it cannot release that: the message was on its way.
    pub fn gone(&mut self, node: usize, client: &str, at: i64) {
        for lock in self.locks.values_mut().filter(|lock| lock.node == node) {
            let Some(holder) = lock.holder.as_ref().filter(|holder| client_of(&holder.owner) == client) else {
                continue;
            };
            if let Some(until) = lock.restored.get_mut(&holder.token).filter(|until| at <= **until) {
                *until = holder.until;
            }
        }
    }

    fn is_connected(&self, node: usize, client: &str) -> bool {
        self.connected.contains(&(node, client.to_owned()))
    }

    fn node_of(&self, key: &str) -> usize {
        self.locks.get(key).map_or(0, |lock| lock.node)
    }

    /// Common time, ms.
    fn now(&self, ran: &Ran<'_>) -> i64 {
        ran.at / 1000 - self.ahead
    }

    /// Records who had this name, or a place there, until the change that comes now.
    fn see(&mut self, key: &str, now: i64) {
        let there = self.there.get(key).into_iter().flatten();
        self.seen.note(key, now, there.map(|(owner, until)| (owner, *until)));
    }

    /// This key is lost or replaced.
    fn is_replaced(&mut self, key: &str, now: i64) {
        self.see(key, now);
        self.there.remove(key);
    }

    fn all_are_replaced(&mut self, node: usize, now: i64) {
        self.lost_handles.clear();
        let keys: Vec<_> = self.there.keys().filter(|key| self.node_of(key) == node).cloned().collect();
        keys.iter().for_each(|key| self.is_replaced(key, now));
    }

    /// Records who has this name, or a place there, after a script.
    fn note_who_is_there(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys) {
        let until = if keys.lease < 0 { i64::MAX } else { self.now(ran) + keys.lease };
        // A script that the server refused half-way may leave a grant without an owner.
        let nobody = (keys.token > 0 && keys.owners.is_empty()).then(String::new);
        let holders = keys.owners.iter().cloned().chain(nobody).map(|owner| (owner, until));
        let waiting = keys.places.iter().filter_map(|place| place.ticket.rsplit_once(':'));
        let there = holders.chain(waiting.map(|(owner, _)| (owner.to_owned(), i64::MAX))).collect();
        self.there.insert(key.to_owned(), there);
    }

    /// Whether other owners have had one of these names since then (common time, ms), or a place there, or the server
    /// granted nothing.
    pub fn had_others(&mut self, keys: &[String], owner: &str, since: i64, now: i64) -> bool {
        keys.iter().for_each(|key| self.see(key, now));
        let is_frozen = since <= self.frozen_until.max(self.must_freeze_until);
        is_frozen || self.seen.had_others(keys, owner, since)
    }

    /// A call of this owner that began then reported that others had one of these names.
    pub fn check_timeout(&mut self, keys: &[String], owner: &str, begun: i64, now: i64) {
        if !self.had_others(keys, owner, begun, now) {
            self.violated("errors", untrue(owner, keys));
        }
    }

    /// R16: a call has reported that this handle holds nothing.
    pub fn handle_is_lost(&mut self, key: &str, owner: String) {
        self.lost_handles.insert((key.to_owned(), owner));
    }

    /// The server lost all its data.
    pub fn flushed(&mut self, strict: bool, node: usize, at: i64) {
        let now = self.now;
        self.all_are_replaced(node, at);
        let lost = if strict { &mut self.lost_with_data } else { &mut self.void };
        self.frozen_until = 0;
        for (key, lock) in self.locks.iter_mut().filter(|(_, lock)| lock.node == node) {
            lock.queue.clear();
            lock.clients.clear();
            lock.tombstones.clear();
            lock.token_is_lost = true;
            // In a quorum, this server may have got a token ahead of its own clock.
            lock.known = 0;
            lock.inexact = false;
            lock.list_deleted = false;
            (lock.last_heard, lock.forgiven_until, lock.spent) = (0, 0, 0);
            let Some(holder) = lock.holder.take() else { continue };
            let (hold, client) = ((key.clone(), holder.token), client_of(&holder.owner).to_owned());
            lost.insert(hold.clone());
            if self.connected.contains(&(node, client.clone())) {
                self.flushed_at.insert(hold, (client, now));
            } else {
                self.ended_at.insert(hold, now);
            }
        }
    }

    /// At the time of a snapshot.
    pub fn remember(&self) -> Remembered {
        Remembered { locks: self.locks.clone(), perhaps_ended: self.perhaps_ended.clone() }
    }

    /// The server has the state of the snapshot again. Later acquires, renewals and counts are lost, and later releases
    /// are undone. The checker checks everything else as before.
    pub fn failed_over(&mut self, Failover { mut then, at, strict, node, elsewhere }: Failover) {
        self.all_are_replaced(node, at);
        self.frozen_until = 0;
        let void = if strict { &mut self.lost_with_data } else { &mut self.void };
        self.perhaps_ended = then.perhaps_ended;
        self.failed_over = Some(at);
        // Places that their owners left may be back, even those of futures that have had their turn.
        self.resting.values_mut().for_each(|rest| rest.turns = 0);
        let ghosts_live = if elsewhere { GHOSTS_LIVE + LOOKED_AFTER } else { GHOSTS_LIVE };
        for (key, lock) in self.locks.iter_mut().filter(|(_, lock)| lock.node == node) {
            // Names that came to this node since the snapshot are lost altogether.
            let then = then.locks.remove(key).filter(|then| then.node == node).unwrap_or_default();
            let Lock { known, holder, queue, clients, queue_until, inexact, list_deleted, tombstones, .. } = then;
            (lock.last_heard, lock.forgiven_until, lock.spent) = (then.last_heard, then.forgiven_until, then.spent);
            lock.token_is_lost = true;
            lock.queue_is_rounded |= then.queue_is_rounded;
            lock.lease_is_rounded |= then.lease_is_rounded;
            let tickets: BTreeSet<_> = lock.queue.iter().map(|waiter| waiter.ticket.clone()).collect();
            let places = queue.iter().map(|waiter| waiter.ticket.clone());
            lock.ghosts.extend(places.filter(|ticket| !tickets.contains(ticket)));
            let lost = std::mem::replace(&mut lock.holder, holder.filter(|holder| holder.until > at));
            (lock.known, lock.queue, lock.clients, lock.queue_until) = (known, queue, clients, queue_until);
            (lock.inexact, lock.list_deleted, lock.tombstones) = (inexact, list_deleted, tombstones);
            lock.not_asked_for.clear();
            lock.restored.extend(lock.holder.as_ref().map(|holder| (holder.token, at + ghosts_live)));
            let is_same = |lost: &Holder| lock.holder.as_ref().is_some_and(|holder| holder.token == lost.token);
            let kept = lost.as_ref().filter(|lost| is_same(lost));
            if let Some(lost) = lost.as_ref().filter(|lost| !is_same(lost)) {
                void.insert((key.clone(), lost.token));
                self.ended_at.insert((key.clone(), lost.token), self.now);
                // If another node took over, the notification may arrive a moment before the client knows of that.
                if !elsewhere {
                    self.forgotten.insert((key.clone(), lost.token));
                }
            }
            let Some(holder) = &lock.holder else { continue };
            let hold = (key.clone(), holder.token);
            self.forgotten.remove(&hold);
            // A void hold may count again, with a lease other than the one it had then.
            if kept.is_some_and(|kept| kept.until > holder.until) || void.contains(&hold) {
                void.insert(hold.clone());
                self.ended_at.insert(hold.clone(), self.now);
                self.shortened.insert(hold.clone());
            }
            if kept.is_some_and(|kept| kept.holds != holder.holds) {
                self.miscounted.insert(hold.clone());
            }
            self.ghosts += u64::from(kept.is_none());
            // A hold attached since the snapshot belongs to its handle again. Nobody has that handle any more, so the
            // hold ends with its lease.
            let is_of_another = kept.is_some_and(|kept| kept.owner != holder.owner);
            if is_of_another {
                lock.restored.insert(holder.token, holder.until.max(at + ghosts_live));
            }
            if kept.is_none() || is_of_another {
                self.returned.insert(hold);
            }
        }
    }

    /// The server goes down, for `longest` at most. A client that asks right afterwards gets an answer soon.
    pub fn goes_down(&mut self, longest: Duration) {
        let ends_soon = |claim: &&Claim| claim.held.valid_for() < longest + ANSWERED;
        self.cut_short.extend(self.claims.iter().filter(ends_soon).map(Claim::hold));
    }

    /// After a failover all callers of an overloaded client ask again, a few at a time: its renewals and leaves may be
    /// late.
    pub fn is_stalled(&self, client: &str, at: i64) -> bool {
        self.overloaded.contains(client) && self.failed_over.is_some_and(|ended| at - ended < STALLED)
    }

    /// Ended by force, lost with the server's data, or not renewed in time because the server was away.
    pub fn may_be_lost(&self, lock: &str, token: u64) -> bool {
        let hold = (lock.to_owned(), token);
        self.void.contains(&hold) || self.lost_with_data.contains(&hold) || self.cut_short.contains(&hold)
    }

    pub fn is_miscounted(&self, lock: &str, token: u64) -> bool {
        self.miscounted.contains(&(lock.to_owned(), token))
    }

    /// An actor begins to ask for several names: it may hold some of them without a claim.
    pub fn gathers(&mut self, process: &str, actor: usize) {
        self.gathering.insert((process.to_owned(), actor));
    }

    pub fn has_gathered(&mut self, process: &str, actor: usize) {
        self.gathering.remove(&(process.to_owned(), actor));
    }

    /// P5: no connected client leaves a hold on the server that none of its actors has. Runs again and again.
    pub fn check_unclaimed(&mut self, at: i64) {
        let holders = self.locks.iter().filter_map(|(key, lock)| Some((key, lock.holder.as_ref()?)));
        let open = holders.filter(|(_, holder)| {
            let client = client_of(&holder.owner);
            let gathers = self.gathering.iter().any(|(process, _)| process == client);
            let is_excused = gathers && !self.resting.contains_key(&holder.owner);
            holder.until > at && !self.is_stalled(client, at) && !is_excused
        });
        let open = open.filter(|(key, holder)| {
            let lock = &self.locks[*key];
            self.is_connected(lock.node, client_of(&holder.owner)) && at > lock.stalled_until
        });
        let all: BTreeSet<Hold> = open.map(|(key, holder)| (key.clone(), holder.token)).collect();
        let claimed: BTreeSet<Hold> = self.claims.iter().map(Claim::hold).collect();
        self.unclaimed.retain(|hold, _| all.contains(hold) && !claimed.contains(hold));
        for hold in all.difference(&claimed) {
            self.unclaimed.entry(hold.clone()).or_insert(at);
        }
        let longest = self.unclaimed.iter().find(|(hold, since)| at > self.must_be_gone(hold, **since));
        if let Some(((key, token), _)) = longest.filter(|_| self.settled) {
            let rests = self.owners.get(&(key.clone(), *token)).is_some_and(|owner| self.resting.contains_key(owner));
            let (promise, why) = if rests { ("P6", ": the future that waited is not polled") } else { ("P5", "") };
            self.violated(promise, format!("{key} is blocked by a ghost: nobody has the hold under {token}{why}"));
        }
    }

    /// When a hold must be gone that no actor has had since `since`.
    fn must_be_gone(&self, hold: &Hold, since: i64) -> i64 {
        let is_restored = self.locks.get(&hold.0).is_some_and(|lock| lock.restored.contains_key(&hold.1));
        match self.owners.get(hold).and_then(|owner| self.resting.get(owner)) {
            Some(rest) if rest.cost != Cost::Moment || self.answered.contains(hold) => since.max(rest.since) + LEASE,
            Some(rest) if !is_restored => since.max(rest.since) + MOMENT,
            None if self.rested_with.contains(hold) => since + LEASE,
            // Before the end of a freeze nobody else could have it (R14). Its waiter asks about it until then, and
            // leaves.
            _ => since.max(self.frozen_until) + self.ghosts_live,
        }
    }

    /// Nobody polls a future of this owner for a while.
    pub fn rests_on(&mut self, owner: &str, cost: Cost, since: i64) {
        self.resting.insert(owner.to_owned(), Resting { cost, since, turns: 0 });
    }

    /// Whether a release may lack an answer because another call of this client is not polled: that call has the turn
    /// for a moment, which may exceed the client's patience for an answer.
    pub fn is_behind_one_that_rests(&self, client: &str, error: &UnlockError) -> bool {
        matches!(error, UnlockError::Unknown { .. }) && self.resting.keys().any(|owner| client_of(owner) == client)
    }

    pub fn has_rested(&mut self, owner: &str) {
        self.resting.remove(owner);
        let holders = self.locks.iter().filter_map(|(key, lock)| Some((key, lock.holder.as_ref()?)));
        let theirs = holders.filter(|(_, holder)| holder.owner == owner);
        self.rested_with.extend(theirs.map(|(key, holder)| (key.clone(), holder.token)));
    }

    /// It is an owner's turn. An unpolled future costs a moment once (P6, decision 84).
    fn has_its_turn(&mut self, key: &str, owner: &str, now: i64) {
        // It may be an earlier attempt's turn, which the owner gave up while the slot moved: its leave may have to
        // wait.
        if now < self.lock(key).stalled_until {
            return;
        }
        let Some(rest) = self.resting.get_mut(owner).filter(|rest| rest.cost == Cost::Moment) else { return };
        rest.turns += 1;
        if rest.turns > 1 && self.settled {
            self.violated("P6", format!("{owner} is not polled, and was granted {key} once more"));
        }
    }

    /// Something hinders the requests of this client until then.
    pub fn hinder(&mut self, client: &str, until: Duration) {
        let hindered = self.hindered.entry(client.to_owned()).or_default();
        *hindered = until.max(*hindered);
    }

    /// P8: a guard ends early only for a cause, and soon if there is one. Runs again and again. Not in a cluster, where
    /// slots move; in a scenario each step states what must hold.
    pub fn check_causes(&mut self, now: Duration) {
        self.now = now;
        let mut wrong = Vec::new();
        for claim in self.claims.iter().filter(|_| !self.moves) {
            let (hold, last) = (claim.hold(), self.hindered.get(&claim.process).copied().unwrap_or_default());
            let stands_still = self.paused.contains(&claim.process) || !self.is_connected(0, &claim.process);
            if stands_still || self.judged.contains(&hold) {
                continue;
            }
            let (actor, token, held_for) = (claim.actor, hold.1, now - claim.began);
            if claim.held.is_valid() {
                let is_held =
                    self.locks.get(&hold.0).and_then(|lock| lock.holder.as_ref()).is_some_and(|it| it.token == token);
                let renewed_at = |(_, at): &(String, Duration)| claim.is_renewed.then_some(*at + RENEWED_WITHIN);
                let since =
                    self.ended_at.get(&hold).copied().or_else(|| self.flushed_at.get(&hold).and_then(renewed_at));
                let since = since.filter(|_| !is_held).map(|since| last.max(since).max(claim.began));
                // The client repeats an unanswered request after a pause that depends on the lease.
                let told_within = TOLD_WITHIN + (claim.lease / 30).min(Duration::from_millis(500));
                if since.is_some_and(|since| now > since.saturating_add(told_within)) {
                    wrong.push(format!("actor {actor} still relies on {token}, which the server has lost: {since:?}"));
                    self.judged.insert(hold);
                }
                continue;
            }
            self.judged.insert(hold.clone());
            let is_over = match claim.ends {
                Some((least, _)) => now + EARLY > least,
                None => !claim.is_renewed && held_for + EARLY + claim.lease / 50 > claim.lease,
            };
            let window = if claim.is_renewed { now.saturating_sub(claim.lease) } else { claim.began };
            let has_cause = is_over || self.perhaps_ended.contains(&hold) || self.may_be_lost(&hold.0, token);
            if !has_cause && last.saturating_add(EARLY) < window {
                wrong.push(format!("actor {actor} lost {token} on {} after {held_for:?} without a cause", hold.0));
            }
        }
        for what in wrong {
            self.violated("P8", what);
        }
    }

    /// The slot of a lock begins to move.
    pub fn begins_to_move(&mut self, key: &str) {
        self.lock(key).stalled_until = i64::MAX;
    }

    /// One of its keys has gone to another node.
    pub fn key_has_moved(&mut self, key: &str) {
        let lock = self.lock(key);
        (lock.lease_is_rounded, lock.queue_is_rounded) = (true, true);
    }

    /// This node serves it from now on.
    pub fn has_moved(&mut self, key: &str, node: usize) {
        let lock = self.lock(key);
        lock.node = node;
        // While the lock was free, the floor was the clock of the node before, which may be ahead. Then the client may
        // not trust a message of this node until it has answered, at the cost of a round trip.
        lock.floor = lock.floor.min(lock.newest);
    }

    /// P2 holds as far as the nodes' clocks agree: whether a node with this clock (ms) grants greater tokens than all
    /// locks of a node have, even without their records.
    pub fn outgrows_all_of(&self, node: usize, clock: i64) -> bool {
        self.locks.values().filter(|lock| lock.node == node).all(|lock| lock.newest < 1000 * clock as u64)
    }

    /// The same for a lock that moves there with its keys: its last token may be lost.
    pub fn outgrows(&self, key: &str, clock: i64) -> bool {
        self.locks.get(key).is_none_or(|lock| !lock.token_is_lost || lock.newest < 1000 * clock as u64)
    }

    /// Its move has ended, and everybody may know.
    pub fn rests(&mut self, key: &str, at: i64) {
        self.lock(key).stalled_until = at + TRIED_AGAIN;
    }

    /// A node redirected a request.
    pub fn redirected(&mut self, client: &str, request: &str, sent: std::time::Instant) {
        self.redirected.entry((client.to_owned(), request.to_owned())).or_insert(sent);
    }

    /// The server restarted or lost its data: it grants nothing until then.
    pub fn must_freeze(&mut self, until: i64) {
        self.must_freeze_until = until;
        let forgotten = |claim: &&Claim| self.lost_with_data.contains(&claim.hold()) && claim.held.is_valid();
        self.forgotten_holds += self.claims.iter().filter(forgotten).count() as u64;
    }

    /// R14: the freeze is long enough, and its end never comes nearer. Without a record the server grants nothing, as
    /// `begins` checks.
    fn check_freeze(&mut self, keys: &Keys) {
        if self.must_freeze_until == 0 || keys.frozen_until == 0 {
            return;
        }
        if keys.frozen_until < self.must_freeze_until.max(self.frozen_until) {
            let (until, must) = (keys.frozen_until, self.must_freeze_until);
            let what = format!("the freeze ends at {until}; it must not before {must}, nor {}", self.frozen_until);
            self.violated("R14", what);
        }
        self.frozen_until = keys.frozen_until;
    }

    /// The holder of a lock, and until when (server time, ms).
    pub fn holder(&self, key: &str) -> Option<(&str, i64)> {
        let holder = self.locks.get(key)?.holder.as_ref()?;
        Some((&holder.owner, holder.until))
    }

    /// The owners that have a place, oldest first.
    pub fn waiting(&self, key: &str) -> impl Iterator<Item = &str> {
        let queue = self.locks.get(key).into_iter().flat_map(|lock| &lock.queue);
        queue.map(|waiter| waiter.ticket.rsplit_once(':').map_or("", |(owner, _)| owner))
    }

    /// An administrator deleted one key.
    pub fn deleted(&mut self, key: &str, at: i64) {
        let (name, part) = key.rsplit_once('}').unwrap_or_default();
        let name = format!("{name}}}");
        self.is_replaced(&name, at);
        let lock = self.lock(&name);
        match part {
            "" => {
                let token = lock.holder.take().map(|holder| holder.token);
                self.void.extend(token.map(|token| (name, token)));
            }
            _ if lock.queue.is_empty() && !lock.inexact => {}
            _ => {
                lock.queue.clear();
                lock.clients.clear();
                lock.inexact = true;
                lock.list_deleted |= part == ":queue";
            }
        }
    }

    /// Whether places and tickets of this lock agree with the replies.
    pub fn is_exact(&self, key: &str) -> bool {
        self.locks.get(key).is_none_or(|lock| !lock.inexact && !lock.queue_is_rounded)
    }

    /// A process died, and its claims with it. The caller drops them after it has let go of the checker: dropping the
    /// last claim closes a client, and that event needs the checker again.
    #[must_use]
    pub fn died(&mut self, process: &str) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.process == process).collect()
    }

    /// `meddled`: a command of this script may have been refused.
    pub fn ran(&mut self, ran: &Ran<'_>, keys: &Keys, meddled: bool, node: usize, ahead: i64) {
        let name = &ran.keys[0];
        (self.node, self.ahead) = (node, ahead);
        self.see(name, self.now(ran));
        // The clients' deadlines are at the node that has the slot, and a renewal may run on another one.
        let has_queue = ran.script != "renew" || node == self.node_of(name);
        if has_queue {
            self.expire_queue(name, ran);
        }
        self.check_freeze(keys);
        if has_queue {
            self.check_silence(name, ran, keys);
        }
        match &ran.reply {
            Err(error) if !may_have_run(error) => return,
            Err(_) => self.refused(name, ran),
            Ok(reply) => self.answered(name, ran, reply, meddled),
        }
        self.check_grants_are_kept(name, ran, keys);
        self.compare_holder(name, ran, keys, meddled || ran.reply.is_err());
        if has_queue {
            self.compare_queue(name, ran, keys, meddled || ran.reply.is_err());
            self.note_who_is_there(name, ran, keys);
        }
        self.check_passed_on(name, ran, keys);
    }

    /// P3, P6: the script forgives a silence, and nothing else.
    fn check_silence(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys) {
        let waiter_ttl = setting(ran, WAITER_TTL);
        let lock = self.lock(key);
        lock.at = ran.at;
        let is_silent = waiter_ttl.is_some_and(|waiter_ttl| lock.is_silent(waiter_ttl));
        let is_new = keys.forgiven_until > lock.forgiven_until;
        (lock.pardoned_until, lock.pardoned_from) = if is_silent {
            (ran.at / 1000 + waiter_ttl.unwrap_or_default() - 1, lock.forgiven_until)
        } else {
            (lock.forgiven_until, lock.spent)
        };
        let heard = (lock.last_heard, lock.forgiven_until, lock.at / 1000, keys.forgiven_until);
        // As the keys state, since a script that saw a silence may not have noted it: it was late. And a silence that
        // has ended by the clock of one node may go on by the clock of the next.
        (lock.last_heard, lock.forgiven_until, lock.spent) = (keys.last_heard, keys.forgiven_until, keys.spent);
        if is_new && !is_silent && !lock.inexact {
            self.violated("P6", format!("a silence on {key} was forgiven, and somebody had been heard: {heard:?}"));
        }
    }

    /// P10: the keys of the queue outlive all waiters.
    fn expire_queue(&mut self, key: &str, ran: &Ran<'_>) {
        let now = self.now(ran);
        let lock = self.lock(key);
        let slack = if lock.queue_is_rounded { ROUNDED } else { 0 };
        if lock.inexact || lock.queue.is_empty() || now < lock.queue_until - slack {
            return;
        }
        // The keys show whether it has expired.
        if slack > 0 {
            lock.inexact = true;
            return;
        }
        lock.queue.clear();
        let clients = std::mem::take(&mut lock.clients);
        if let Some((client, _)) = clients.iter().find(|(_, client)| client.lives(ran.at)) {
            self.violated("P10", format!("the queue of {key} expired, and {client} lives"));
        }
    }

    /// R2: a node does not refuse a client as late once the client has learnt its clock. Checked without faults.
    fn check_clock(&mut self, ran: &Ran<'_>, reply: &[String]) {
        let (now, learner) = (self.now(ran), (ran.client.to_owned(), self.node));
        let is_redirected = self.redirected.contains_key(&(ran.client.to_owned(), ran.args[0].clone()));
        let has_learnt = self.learnt.get(&learner).is_some_and(|at| now < at + LEARNT_WITHIN);
        if reply[0] == "late" && self.settled && has_learnt && !is_redirected {
            self.violated("R2", format!("{} knows the clock of node {}, and came late", ran.client, self.node));
        }
        // 0: an answer without a time. An answer to a request from before the calm phase does not count.
        if self.settled && reply[2] != "0" {
            self.learnt.insert(learner, now);
        }
    }

    fn answered(&mut self, key: &str, ran: &Ran<'_>, reply: &[String], meddled: bool) {
        let status = reply[0].as_str();
        self.check_clock(ran, reply);
        if meddled {
            self.lock(key).inexact = true;
        }
        self.last_asked.note(ran);
        match ran.script {
            "acquire" => self.acquired(key, ran, reply),
            "poll" => self.polled(key, ran, reply),
            "leave" => {
                self.note_tombstone(key, ran);
                self.ended(key, ticket_of(&ran.args[4]), status == "freed");
                self.grants_published(key, ran);
            }
            "release" => {
                // Only a release that knows of a late copy takes its ticket out of the queue (R3): its argument
                // contains a space. The argument of a release that leaves some holds does not.
                let special = ran.args.get(4).map_or("", String::as_str);
                let purged = special.split_once(' ').map_or("", |(_, place)| ticket_of(place));
                let holds = special.split_once(':').filter(|_| purged.is_empty());
                if holds.is_none() {
                    self.note_tombstone(key, ran);
                }
                if let (Some((_, token)), "held") = (holds, status) {
                    self.miscounted.remove(&(key.to_owned(), token.parse().unwrap_or_default()));
                }
                self.ended(key, purged, status == "freed");
                self.grants_published(key, ran);
            }
            "force_unlock" => {
                if status == "freed" {
                    let hold = (key.to_owned(), number(reply, 4));
                    // A connected client gets a message, which may be lost.
                    let owner = self.owners.get(&hold).map_or("", |owner| client_of(owner));
                    if !self.is_connected(self.node, owner) {
                        self.ended_at.insert(hold.clone(), self.now);
                    }
                    self.void.insert(hold);
                    self.ended(key, "", true);
                }
                self.grants_published(key, ran);
            }
            "renew" => self.renewed(key, ran, reply),
            "give" if status == "given" => {
                let (to, left) = (ran.args.get(5).cloned().unwrap_or_default(), number::<i64>(reply, 4));
                if self.lost_handles.contains(&(key.to_owned(), to.clone())) {
                    self.report("R16", format!("{key}: {to} was said to have nothing, and got it"));
                }
                let until = self.now(ran) + left;
                if let Some(holder) = &mut self.lock(key).holder {
                    (holder.owner, holder.until) = (to, until);
                }
            }
            "inspect" => self.inspected(key, ran, reply),
            _ => {}
        }
    }

    /// A script that the server refused half-way has done an unknown part of its work: it may have taken tickets out,
    /// or ended its owner's hold. The checker accepts either, until the keys show more.
    fn refused(&mut self, key: &str, ran: &Ran<'_>) {
        let owner = match ran.script {
            "acquire" | "leave" => ran.args.get(2),
            "release" => ran.args.get(1),
            _ => None,
        };
        let lock = self.lock(key);
        lock.inexact = true;
        let ended = |holder: &&Holder| owner == Some(&holder.owner) || ran.script == "force_unlock";
        if let Some(token) = lock.holder.as_ref().filter(ended).map(|holder| holder.token) {
            self.perhaps_ended.insert((key.to_owned(), token));
            if ran.script == "force_unlock" {
                // Ended without a message to its holder: P1 does not apply to it.
                self.void.insert((key.to_owned(), token));
            }
            // The script handed it over before the refusal.
            if ran.published.iter().any(|published| published.message.starts_with("grant ")) {
                self.lock(key).holder = None;
            }
        }
        self.grants_published(key, ran);
    }

    /// Checks that the hash agrees with the replies.
    fn compare_holder(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys, meddled: bool) {
        let now = self.now(ran);
        if keys.owners.len() > 1 {
            self.violated("P1", format!("{key} has the owners {:?}", keys.owners));
        }
        let lock = self.lock(key);
        let slack = if std::mem::take(&mut lock.lease_is_rounded) { ROUNDED } else { 0 };
        let told = lock.holder.as_ref().map(|holder| (holder.token, holder.until));
        // A hash without an owner: the server refused a script after it had taken the owner out.
        if keys.owners.is_empty() {
            let Some((token, until)) = told else { return };
            if !meddled && until > now + slack && !self.perhaps_ended.contains(&(key.to_owned(), token)) {
                self.violated("P1", format!("{key} is free, but held under {token} for {} ms", until - now));
            }
            self.lock(key).holder = None;
            return;
        }
        let owner = keys.owners.last().cloned().unwrap_or_default();
        let holds = keys.holds;
        // If the server refused to set a lease, the next poll sets it.
        let until = if keys.lease < 0 { WITHOUT_LEASE } else { now + keys.lease };
        if told.is_none_or(|(token, _)| token != keys.token) {
            if !meddled {
                self.violated("P1", format!("{owner} has {key} under {}, and no reply said so", keys.token));
            }
            let lock = self.lock(key);
            let (newest, known) = (lock.newest, lock.known);
            lock.queue.retain(|waiter| waiter.ticket.rsplit_once(':').is_none_or(|(its, _)| its != owner));
            self.begins(key, ran, Holder { owner, token: keys.token, until, holds });
            if ran.reply.is_err() {
                // No client learned of it. It counts as granted when a later script succeeds and leaves it there.
                let lock = self.lock(key);
                (lock.newest, lock.known) = (newest, known);
            }
            return;
        }
        if ran.reply.is_ok() {
            lock.newest = lock.newest.max(keys.token);
            lock.known = lock.known.max(keys.token);
        }
        if let Some(holder) = lock.holder.as_mut() {
            holder.holds = holds;
            // A give that the server refused half-way may have moved the hold.
            if ran.reply.is_err() {
                holder.owner = owner;
            }
        }
        let inexact = lock.inexact;
        let differs = told.is_some_and(|(_, told)| told != WITHOUT_LEASE && (told - until).abs() > 1 + slack);
        let must_follow = meddled || inexact || differs || slack > 0;
        if let Some(holder) = lock.holder.as_mut().filter(|holder| must_follow || holder.until == WITHOUT_LEASE) {
            holder.until = until;
        }
        if differs && !meddled && !inexact {
            let told = told.map_or(0, |(_, until)| until - now);
            self.violated("R5", format!("{key} has a lease of {} ms, and replies said {told}", keys.lease));
        }
    }

    /// No place is lost while its client is alive, places keep the order of arrival, and places, tickets and deadlines
    /// are exact.
    fn compare_queue(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys, meddled: bool) {
        let (now, ahead) = (self.now(ran), self.ahead);
        let agree = keys.agree(if self.lock(key).queue_is_rounded { ROUNDED } else { 0 });
        let asked = ran.script == "poll" || ran.reply.as_ref().is_ok_and(|reply| reply[0] == "queued");
        let Self { locks, connected, node, settled, .. } = self;
        let (settled, lock) = (*settled, locks.entry(key.to_owned()).or_default());
        // -1: none, because the server refused the command that sets it.
        lock.queue_until = if keys.queue_lifetime < 0 { i64::MAX / 2 } else { now + keys.queue_lifetime };
        let excused = std::mem::take(&mut lock.excused);
        if lock.inexact {
            let stale = lock.list_deleted && asked && !meddled && keys.tickets > keys.places.len();
            lock.list_deleted &= !asked || meddled;
            let has_lifetime = keys.places.is_empty() || keys.queue_lifetime >= 0;
            let outlives = keys.clients.values().all(|until| until.abs() <= lock.queue_until + ahead);
            let kept = has_lifetime && (outlives || lock.queue_is_rounded);
            lock.inexact = !agree || !kept;
            // Nothing of the list is left, even if no client has asked.
            lock.list_deleted &= lock.inexact;
            // The next client that asks for a place takes out tickets without places. Until then they can only expire.
            let forgotten = lock.list_deleted;
            // Nothing else is known, so the keys are right.
            lock.queue.clear();
            lock.clients.clear();
            for place in keys.places.iter().filter(|place| place.has_ticket) {
                let there = lock.queue.iter().any(|waiter| waiter.ticket == place.ticket);
                if !there {
                    lock.queue.push(Waiter { ticket: place.ticket.clone(), grant_ttl: place.grant_ttl });
                }
            }
            for (client, until) in &keys.clients {
                lock.clients.insert(client.clone(), Client { until: until.abs(), unreachable: *until < 0 });
            }
            if stale {
                self.violated("P3", format!("{key} has {} tickets for {} places", keys.tickets, keys.places.len()));
            } else if settled && !agree && !forgotten {
                let (places, tickets) = (keys.places.len(), keys.tickets);
                let lifetimes = (keys.queue_lifetime, keys.deadlines_lifetime);
                let what = format!("{places} places and {tickets} tickets of {key}, with lifetimes {lifetimes:?}");
                self.violated("P10", format!("{what}: they do not become the same again"));
            }
            return;
        }
        let mut wrong = Vec::new();
        if !agree {
            let without: Vec<_> = keys.places.iter().filter(|place| !place.has_ticket).collect();
            let (places, tickets) = (keys.places.len(), keys.tickets);
            wrong.push(format!("{places} places and {tickets} tickets of {key}; without a ticket: {without:?}"));
        }
        let mut places = keys.places.iter().map(|place| place.ticket.as_str()).peekable();
        let mut queue = std::mem::take(&mut lock.queue);
        queue.retain(|waiter| {
            let there = places.next_if_eq(&waiter.ticket.as_str()).is_some();
            if !there && lock.client(&waiter.ticket).lives(ran.at) && !excused.contains(&waiter.ticket) {
                wrong.push(format!("{} lost its place on {key}, and its client lives", waiter.ticket));
            }
            there
        });
        lock.queue = queue;
        if let Some(place) = places.next() {
            wrong.push(format!("{place} has a place on {key} that it was not given"));
        }
        let queue = &lock.queue;
        lock.clients.retain(|name, _| queue.iter().any(|waiter| client_of(&waiter.ticket) == name));
        // The script may have taken a dead one out, or passed it over. By the clock of another node it could be alive
        // again.
        for (name, client) in lock.clients.iter_mut().filter(|(_, client)| !client.lives(ran.at)) {
            let until = keys.clients.get(name).copied().unwrap_or_default();
            *client = Client { until: until.abs(), unreachable: until < 0 };
        }
        for (name, client) in lock.clients.iter_mut().filter(|(_, client)| client.lives(ran.at)) {
            let until = keys.clients.get(name).copied().unwrap_or_default();
            // A new place does not extend a deadline that is less than an eighth of a waiter_ttl old.
            let most = setting(ran, WAITER_TTL).filter(|_| ran.script == "acquire" && name == ran.client);
            if most.is_some_and(|most| (0..=most).contains(&(8 * (client.until - until)))) {
                client.until = until;
            }
            if until.abs() != client.until {
                wrong.push(format!("{name} lives on {key} until {}, not {until}", client.until));
            }
            if until < 0 && !client.unreachable && connected.contains(&(*node, name.clone())) {
                wrong.push(format!("{name} was passed over on {key}, and is connected"));
            }
            client.unreachable = until < 0;
            if lock.queue_until + ahead < client.until && !lock.queue_is_rounded {
                wrong.push(format!("the queue of {key} expires in {} ms, before {name}", keys.queue_lifetime));
            }
        }
        // By a clock that is behind, clients outlive the keys until their next request.
        let outlives = lock.clients.values().all(|client| client.until <= lock.queue_until + ahead);
        lock.queue_is_rounded &= !outlives || keys.queue_lifetime != keys.deadlines_lifetime;
        for what in wrong {
            self.violated("P3", what);
        }
    }

    /// `inspect` reports the exact waiters.
    fn inspected(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let lock = self.lock(key);
        if lock.inexact {
            return;
        }
        let lives = |waiter: &&Waiter| lock.client(&waiter.ticket).lives(ran.at);
        let living: Vec<_> = lock.queue.iter().filter(lives).map(|waiter| waiter.ticket.clone()).collect();
        let named: Vec<_> = reply[13..].chunks(3).map(|words| words[0].clone()).collect();
        let count: usize = number(reply, 11);
        if count != living.len() || !living.starts_with(&named) {
            self.violated("P3", format!("status of {key}: {count} wait, {named:?}; they are {living:?}"));
        }
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    fn heard(&mut self, key: &str, client: &str, until: i64) {
        self.lock(key).clients.insert(client.to_owned(), Client { until, unreachable: false });
    }

    /// R7: every later grant has a token above this floor.
    fn told_floor(&mut self, key: &str, floor: u64, exact: bool, is_held: bool) {
        let lock = self.lock(key);
        // If the right to publish is missing, this call has granted it, as the keys show afterwards. P2 is checked for
        // that token.
        if !exact && is_held && floor > lock.newest {
            return;
        }
        let known = lock.known;
        lock.floor = lock.floor.max(floor);
        if floor < known && exact {
            self.violated("R7", format!("{key} has given {known}, and a client was told the floor {floor}"));
        }
    }

    /// R3: a leave or a final release writes a tombstone if a copy of the acquire may still be in flight. From now on
    /// the server must not serve any copy of that attempt.
    fn note_tombstone(&mut self, key: &str, ran: &Ran<'_>) {
        let is_leave = ran.script == "leave";
        let (owner, seq) = if is_leave { (&ran.args[2], &ran.args[3]) } else { (&ran.args[1], &ran.args[2]) };
        let seq: u64 = seq.parse().unwrap_or_default();
        // In a release it is the first of two words.
        let copies_until = if is_leave { ran.args.get(1) } else { ran.args.get(4) };
        let copies_until = copies_until.and_then(|until| until.split(' ').next()?.parse::<i64>().ok());
        if let Some(copies_until) = copies_until.filter(|until| *until > 0) {
            // A single server's clock never goes back before it.
            let until = if self.moves { self.now(ran) + copies_until - ran.at / 1000 } else { i64::MAX };
            let tombstone = self.lock(key).tombstones.entry(owner.clone()).or_default();
            *tombstone = Tombstone { seq: seq.max(tombstone.seq), until: until.max(tombstone.until) };
        }
        // R11: the leave after a loss has a seq of its own. Other leaves have the seq of the attempt.
        let attempt = ran.args.get(4).and_then(|entry| ticket_of(entry).rsplit(':').next());
        if is_leave && !ran.args[4].is_empty() && attempt != Some(&ran.args[3]) {
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
        let now = self.now(ran);
        for published in ran.published {
            let words: Vec<&str> = published.message.split(' ').collect();
            if let ["grant", token, lasts, ticket, ..] = words[..] {
                let client = client_of(ticket);
                // A server that was the primary until a moment ago delivers it to its own subscribers. Without the
                // right to ask for subscribers, all clients count as reachable.
                if !published.received && client != ran.client && !self.lock(key).inexact {
                    self.violated("P1", format!("{ticket} was told of a grant on {key}, and is not a subscriber"));
                }
                let (token, lasts): (u64, i64) = (token.parse().unwrap_or(0), lasts.parse().unwrap_or(0));
                let lock = self.lock(key);
                let position = lock.queue.iter().position(|waiter| waiter.ticket == ticket);
                if !lock.inexact {
                    let left = (1000 * lock.client(ticket).until - ran.at) / 1000;
                    let wanted = position.map_or(0, |position| lock.queue[position].grant_ttl).min(left);
                    self.check_no_overtaking(key, ran, position.unwrap_or(0), ticket);
                    if position.is_none() {
                        self.violated("P3", format!("{ticket} has no place on {key}, and was granted it"));
                    } else if (wanted - lasts).abs() > 1 {
                        self.violated("P6", format!("a grant to {ticket} lasts {lasts} ms in place of {wanted}"));
                    }
                }
                let lock = self.lock(key);
                lock.queue.retain(|waiter| waiter.ticket != ticket);
                // Its grant may be short, as its client may have sent no request since.
                if lock.ghosts.remove(ticket) {
                    lock.restored.insert(token, now + GHOSTS_ARE_GRANTED);
                }
                let owner = ticket.rsplit_once(':').map_or(ticket, |(owner, _)| owner).to_owned();
                self.handed_over += 1;
                self.begins(key, ran, Holder { owner, token, until: now + lasts, holds: 1 });
            }
        }
    }

    /// A client trusts the message of its grant (R7), so a script must not send it before the hold exists (P1), even if
    /// the server refuses the rest of that script.
    fn check_grants_are_kept(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys) {
        for published in ran.published.iter().filter(|published| published.received) {
            let words: Vec<&str> = published.message.split(' ').collect();
            if let ["grant", token, _, ticket, ..] = words[..] {
                let owner = ticket.rsplit_once(':').map_or(ticket, |(owner, _)| owner);
                if token.parse() != Ok(keys.token) || !keys.owners.iter().any(|its| its == owner) {
                    self.violated("P1", format!("{owner} was told that it has {key} under {token}, and it has not"));
                }
            }
        }
    }

    /// The first of the `ahead` foremost waiters that the server must not pass over: its client is alive, has sent a
    /// request since the last message that missed it, and is connected or is the caller.
    fn first_in_line(&self, key: &str, ran: &Ran<'_>, ahead: usize) -> Option<String> {
        let lock = self.locks.get(key).filter(|lock| !lock.inexact)?;
        // A release by a handle does not name a waiting client.
        let caller = if ran.script == "release" { client_of(&ran.args[1]) } else { ran.client };
        let must_be_served = |waiter: &&Waiter| {
            let (name, client) = (client_of(&waiter.ticket), lock.client(&waiter.ticket));
            client.lives(ran.at) && !client.unreachable && (self.is_connected(self.node, name) || name == caller)
        };
        lock.queue[..ahead.min(lock.queue.len())].iter().find(must_be_served).map(|waiter| waiter.ticket.clone())
    }

    /// P3: no live and reachable waiter is ahead of the winner.
    fn check_no_overtaking(&mut self, key: &str, ran: &Ran<'_>, ahead: usize, winner: &str) {
        if let Some(overtaken) = self.first_in_line(key, ran, ahead) {
            self.violated("P3", format!("{winner} overtook {overtaken} on {key}"));
        }
    }

    /// R6: the script that frees the lock, or finds it free, grants it to the first in line.
    fn check_passed_on(&mut self, key: &str, ran: &Ran<'_>, keys: &Keys) {
        if keys.token != 0 || ran.reply.is_err() || matches!(ran.script, "inspect" | "renew") {
            return;
        }
        if ran.reply.as_ref().is_ok_and(|reply| matches!(reply[0].as_str(), "late" | "left" | "lost" | "stale")) {
            return;
        }
        if ran.at < 1000 * self.frozen_until {
            return;
        }
        if let Some(first) = self.first_in_line(key, ran, usize::MAX) {
            self.violated("R6", format!("{key} is free and was not passed on to {first}"));
        }
    }

    /// The lock gets a new holder. Checks P2 (tokens grow), P5 (nothing expires without faults) and P1 (the earlier
    /// hold has ended).
    fn begins(&mut self, key: &str, ran: &Ran<'_>, holder: Holder) {
        let now = self.now(ran);
        self.grants += 1;
        let lock = self.lock(key);
        lock.token_is_lost = false;
        let slack = if lock.lease_is_rounded { ROUNDED } else { 0 };
        let was_stalled = lock.holder.as_ref().is_some_and(|before| before.until < lock.stalled_until);
        let (newest, floor) = (lock.newest, lock.floor);
        lock.newest = newest.max(holder.token);
        lock.known = lock.known.max(holder.token);
        let before = lock.holder.take();
        let token = holder.token;
        self.owners.insert((key.to_owned(), token), holder.owner.clone());
        // Not if a failover brought its place back.
        if !self.lock(key).restored.contains_key(&token) {
            self.has_its_turn(key, &holder.owner, now);
        }
        let lock = self.lock(key);
        // An owner that asks for a first hold ends an earlier one of its own (docs/decisions.md, decision 3).
        let given_up = |before: &Holder| ran.script == "acquire" && ran.args[2] == before.owner;
        lock.holder = Some(holder);
        if token <= newest {
            self.violated("P2", format!("token {token} after {newest} on {key}"));
        }
        let frozen_until = self.frozen_until.max(self.must_freeze_until);
        if ran.at < 1000 * frozen_until {
            self.violated("R14", format!("{key} was granted in a freeze, {} ms too early", frozen_until - now));
        }
        // A proposed token (Q3) comes only by the answer, and R7 is about messages.
        let is_proposed = ran.script == "acquire" && ran.args.get(7) == Some(&format!("0:{token}"));
        if token <= floor && !is_proposed {
            self.violated("R7", format!("token {token} on {key} after a client was told the floor {floor}"));
        }
        if let Some(before) = before {
            let expired = before.until <= now + slack;
            self.expiries += u64::from(expired);
            // Unless a failover left too little of its lease.
            let in_time = self.lock(key).restored.get(&before.token).is_none_or(|until| before.until > *until);
            let is_stalled = self.is_stalled(client_of(&before.owner), now);
            // A grant may be shorter than a moment. A detach may be unpolled when the answer comes that a handle has
            // the hold.
            let hold = (key.to_owned(), before.token);
            let rests = |owner: &String| self.resting.contains_key(owner);
            let rests =
                rests(&before.owner) || self.owners.get(&hold).is_some_and(rests) || self.rested_with.contains(&hold);
            // Nobody looks for a used handle, so its hold ends with its lease (docs/guide.md).
            let is_back = is_of_a_handle(&before.owner) && self.lock(key).restored.contains_key(&before.token);
            if expired && in_time && !is_back && !is_stalled && !was_stalled && !rests && self.settled {
                // Without faults every hold is released: no process dies, and no actor works longer than a fixed lease.
                self.violated("P5", format!("a hold of {} on {key} was left to expire", before.owner));
            }
            let perhaps_ended = self.perhaps_ended.contains(&(key.to_owned(), before.token));
            if !expired && !given_up(&before) && !perhaps_ended {
                self.violated("P1", format!("{key} was taken from {} before its lease ended", before.owner));
            }
        }
        self.check_no_other_is_valid(key, token);
    }

    fn acquired(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let (owner, seq) = (&ran.args[2], &ran.args[3]);
        let now = self.now(ran);
        let tombstone = self.lock(key).tombstones.get(owner).filter(|tombstone| now <= tombstone.until);
        let tombstone = tombstone.map(|tombstone| tombstone.seq);
        // Only the first copy counts. After an answer to the first copy the client knows of no second one, so it writes
        // no tombstone for it (R3): TCP makes no copies, only the simulator does.
        let first = self.requests.insert((ran.client.to_owned(), ran.args[0].clone()));
        let late_by = ran.at - number::<i64>(ran.args, 1);
        if late_by > 0 && reply[0] != "late" {
            self.violated(
                "R2",
                format!("request {seq} of {owner} on {key} was late by {late_by} us, and it was {}", reply[0]),
            );
        }
        let served = first && matches!(reply[0].as_str(), "held" | "queued");
        if served && tombstone >= Some(number(ran.args, 3)) {
            let what = format!("{owner} had left up to {tombstone:?}, and its request {seq} was served on {key}");
            self.violated("P5", what);
        }
        let ticket = format!("{owner}:{seq}");
        // With several servers, a proposed token follows the 0.
        let is_first_held = ran.args.get(7).is_none_or(|mode| mode == "0" || mode.starts_with("0:"));
        let lock = self.lock(key);
        let (exact, placed) = (!lock.inexact, lock.queue.iter().any(|waiter| waiter.ticket == ticket));
        let known = lock.client(&ticket).lives(ran.at) && !lock.queue.is_empty();
        let waiter_ttl = setting(ran, WAITER_TTL).unwrap_or_default();
        let lives_until = ran.at / 1000 + waiter_ttl;
        // If the owner already has a hold, the script answers without a look at the queue. A script that the server
        // refused half-way may have left the place of that hold there.
        let holder = self.lock(key).holder.as_ref();
        let told_again = reply[0] == "held" && holder.is_some_and(|holder| holder.token == number(reply, 4));
        // A place that it already has counts before the script passes the lock on.
        let waits = matches!(reply[0].as_str(), "queued" | "full")
            || placed && reply[0] == "held" && !told_again && is_first_held;
        if waits {
            self.heard(key, ran.client, lives_until);
        }
        // An owner that asks for a first hold ends an earlier one of its own.
        let holder = self.lock(key).holder.as_ref();
        let ending = holder.filter(|holder| is_first_held && holder.owner == *owner).map(|holder| holder.token);
        self.grants_published(key, ran);
        let lock = self.lock(key);
        // In a freeze the lock then stays free.
        if matches!(reply[0].as_str(), "queued" | "busy" | "full") {
            lock.holder.take_if(|holder| Some(holder.token) == ending);
        }
        // The deadlines go with the last living place.
        let goes_on = lock.queue.iter().any(|waiter| lock.client(&waiter.ticket).lives(ran.at));
        match reply[0].as_str() {
            "held" => {
                let token: u64 = number(reply, 4);
                let until = now + number::<i64>(reply, 6);
                let is_holder = self.lock(key).holder.as_ref().is_some_and(|holder| holder.token == token);
                if is_holder {
                    if !is_first_held {
                        self.miscounted.remove(&(key.to_owned(), token));
                    }
                    self.extended(key, token, until);
                } else {
                    // Its own place may be the first one.
                    let queue = &self.lock(key).queue;
                    let ahead = queue.iter().position(|waiter| waiter.ticket == ticket).unwrap_or(queue.len());
                    self.check_no_overtaking(key, ran, ahead, owner);
                    self.lock(key).queue.retain(|waiter| waiter.ticket != ticket);
                    self.begins(key, ran, Holder { owner: owner.clone(), token, until, holds: 1 });
                    self.answered.insert((key.to_owned(), token));
                }
            }
            "queued" => {
                if !placed {
                    let lock = self.lock(key);
                    // Its other places were dead until now, and may have gone.
                    if !known {
                        let theirs = lock.queue.iter().filter(|waiter| client_of(&waiter.ticket) == ran.client);
                        lock.excused = theirs.map(|waiter| waiter.ticket.clone()).collect();
                    }
                    lock.queue.push(Waiter { ticket, grant_ttl: grant_ttl_of(&format!("/{}", ran.args[5])) });
                }
                self.heard(key, ran.client, lives_until);
                self.told_floor(key, number(reply, 4), exact, number::<i64>(reply, 5) >= 0);
                if exact && known && goes_on && reply[7] != "1" {
                    self.violated("R8", format!("{} is known on {key}, and was told that it is not", ran.client));
                }
            }
            "full" => {
                self.check_full(key, ran, reply);
                // A client that counted as dead is alive for this call only.
                if !known {
                    self.heard(key, ran.client, 0);
                }
            }
            _ => {}
        }
    }

    /// A call fails with `full` only if live waiters fill the queue. One call reads a bounded number of places.
    fn check_full(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let most = setting(ran, MAX_WAITERS).unwrap_or_default() as usize;
        let lock = self.lock(key);
        let living = lock.queue.iter().filter(|waiter| lock.client(&waiter.ticket).lives(ran.at)).count();
        if !lock.inexact && lock.queue.len() <= 64 && living < most && number::<u64>(reply, 5) == 0 {
            self.violated("P3", format!("{key} is full with {living} of {most}: {}", reply.join(" ")));
        }
    }

    fn extended(&mut self, key: &str, token: u64, until: i64) {
        if let Some(holder) = self.lock(key).holder.as_mut().filter(|holder| holder.token == token) {
            holder.until = until;
        }
    }

    /// A poll first keeps its client alive and then passes the lock on (docs/decisions.md, decision 5).
    fn polled(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let now = self.now(ran);
        let waiter_ttl = setting(ran, WAITER_TTL).unwrap_or_default();
        let lock = self.lock(key);
        let exact = !lock.inexact;
        let has_place = |ticket: &&String| lock.queue.iter().any(|waiter| waiter.ticket == **ticket);
        let missing: Vec<_> = ran.args[4..].iter().filter(|ticket| !has_place(ticket)).cloned().collect();
        let told = reply[14..].iter().take(number(reply, 13));
        let told: Vec<_> = told.map(|index| ran.args[3 + index.parse::<usize>().unwrap_or(1)].clone()).collect();
        let known = lock.client(ran.client).lives(ran.at) && !lock.queue.is_empty();
        let first = lock.queue.first().is_some_and(|first| client_of(&first.ticket) == ran.client);
        let waits = ran.args[2] == "1" && !lock.queue.is_empty();
        let forgotten = if exact && waits && self.settled { self.not_asked_for(key, ran) } else { None };
        if let Some(ticket) = forgotten {
            self.violated("R8", format!("no poll asks for {ticket} on {key}"));
        }
        if waits {
            self.heard(key, ran.client, ran.at / 1000 + waiter_ttl);
        }
        self.grants_published(key, ran);
        let (owner, token, lease) = (&reply[8], number::<u64>(reply, 10), number::<i64>(reply, 12));
        self.told_floor(key, number(reply, 11), exact, token > 0);
        // The script sets a missing lease now.
        if lease >= 0 {
            self.extended(key, token, now + lease);
        }
        if !exact {
            return;
        }
        if missing != told {
            self.violated("P3", format!("without a place on {key} are {missing:?}, and the poll says {told:?}"));
        }
        if waits && known && reply[5] != "1" {
            self.violated("R8", format!("{} is known on {key}, and was told that it is not", ran.client));
        }
        if waits && first != (reply[7] == "1") {
            self.violated("R8", format!("whether {} is first in line on {key}: {first}", ran.client));
        }
        let holder = self.lock(key).holder.as_ref().filter(|holder| holder.until > now);
        let holds = holder.map(|holder| (holder.owner.clone(), holder.token));
        let named = (token > 0).then(|| (owner.clone(), token));
        if holds.is_some() && holds != named {
            self.violated("P9", format!("{holds:?} has {key}, and a poll named {named:?}"));
        }
    }

    /// Polls verify each place in rotation, a dozen in a poll.
    fn not_asked_for(&mut self, key: &str, ran: &Ran<'_>) -> Option<String> {
        let now = self.now(ran);
        // A future that has not read its answer yet does not know that it waits.
        let resting: BTreeSet<_> = self.resting.keys().cloned().collect();
        let lock = self.lock(key);
        // A leave may have to wait.
        let is_stalled = now < lock.stalled_until;
        let waiting = lock.queue.iter().map(|waiter| waiter.ticket.clone());
        let rests = |ticket: &str| ticket.rsplit_once(':').is_some_and(|(owner, _)| resting.contains(owner));
        let waiting = waiting.filter(|ticket| !lock.ghosts.contains(ticket) && !rests(ticket));
        let waiting: Vec<_> = waiting.filter(|ticket| client_of(ticket) == ran.client).collect();
        let most = waiting.len().div_ceil(12) + 3;
        let not_asked_for = &mut lock.not_asked_for;
        not_asked_for.retain(|ticket, _| client_of(ticket) != ran.client || waiting.contains(ticket));
        for ticket in waiting {
            let polls = not_asked_for.entry(ticket).or_default();
            *polls += 1;
        }
        not_asked_for.retain(|ticket, _| !is_stalled && !ran.args[4..].contains(ticket));
        let theirs = |ticket: &str| client_of(ticket) == ran.client;
        let forgotten = not_asked_for.iter().find(|(ticket, polls)| theirs(ticket) && **polls > most);
        forgotten.map(|(ticket, _)| ticket.clone())
    }

    fn renewed(&mut self, key: &str, ran: &Ran<'_>, reply: &[String]) {
        let token: u64 = number(ran.args, 2);
        if reply[0] == "renewed" {
            let hold = (key.to_owned(), token);
            if self.shortened.remove(&hold) {
                self.void.remove(&hold);
                self.ended_at.remove(&hold);
                self.lost_with_data.remove(&hold);
            }
            let now = self.now(ran);
            self.extended(key, token, now + number::<i64>(reply, 4));
        }
        // P10: the last unlock stops the renewals. A client sends a redirected renewal again, which is as old as its
        // first copy.
        let first = self.redirected.get(&(ran.client.to_owned(), ran.args[0].clone())).copied().unwrap_or(ran.sent);
        if self.freed.get(&(key.to_owned(), token)).is_some_and(|freed| first > *freed) {
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

    /// An actor begins to rely on a grant. It must not come from a server that a failover replaced, unknown to the new
    /// one: on a new connection the client trusts nothing that the old server stated (R15).
    pub fn check_is_known(&mut self, claim: &Claim) {
        let is_over =
            self.forgotten.contains(&claim.hold()) && self.is_connected(self.node_of(&claim.lock), &claim.process);
        if is_over && claim.held.is_valid() {
            let what = format!("actor {} begins with {}, which a failover has lost", claim.actor, claim.held.token());
            self.violated("R15", what);
        }
    }

    /// An actor got the lock.
    pub fn claim(&mut self, claim: Claim, server_ms: i64, clock_rate: f64) {
        self.sections += 1;
        // Without a connection, it relies on a grant from just before, which may end soon.
        if !self.is_connected(self.node_of(&claim.lock), &claim.process) {
            self.cut_short.insert(claim.hold());
        }
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

    /// The actor is about to unlock or drop the last guard of a claim.
    #[must_use]
    pub fn release(&mut self, lock: &str, token: u64) -> Vec<Claim> {
        self.claims.extract_if(.., |claim| claim.held.token() == token && claim.lock == lock).collect()
    }

    /// R5: no hold is valid for longer than the server keeps the lock for it, and no renewed hold outlasts `max_hold`.
    pub fn check_deadlines(&mut self, server_ms: i64, clock_rate: f64) {
        let mut too_long = Vec::new();
        for claim in &self.claims {
            let (token, valid_for) = (claim.held.token(), claim.held.valid_for());
            if valid_for.is_zero() || self.void.contains(&claim.hold()) || self.lost_with_data.contains(&claim.hold()) {
                continue;
            }
            if let Some((_, last)) = claim.ends.filter(|(_, last)| self.now + valid_for > *last) {
                let (actor, until) = (claim.actor, self.now + valid_for);
                too_long.push(format!(
                    "actor {actor} may rely on {token} until {until:?}, and max_hold ends it at {last:?}"
                ));
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

    /// Reads the fenced resource. `None` if it has seen a later token.
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
        if self.is_held_still(lock, token, server_ms) {
            self.violated("P4", format!("unlock answered that {token} on {lock} was freed, but it is held"));
        }
    }

    /// Except a hold that a failover brought back.
    fn is_held_still(&self, lock: &str, token: u64, server_ms: i64) -> bool {
        let holder = self.locks.get(lock).and_then(|lock| lock.holder.as_ref());
        let is_held = holder.is_some_and(|holder| holder.token == token && holder.until > server_ms);
        is_held && !self.returned.contains(&(lock.to_owned(), token))
    }

    /// P8: an unlock reported that the server no longer has the hold, so it must not.
    pub fn unlock_answered_gone(&mut self, lock: &str, token: u64, server_ms: i64) {
        if self.is_held_still(lock, token, server_ms) {
            self.violated("P8", format!("unlock answered that {token} on {lock} was lost, but it is held"));
        }
    }

    pub fn unlock_answered_lost(&mut self, lock: &str, token: u64) {
        self.lost.extend(self.owners.get(&(lock.to_owned(), token)).cloned());
    }

    /// R11, checked at the end: leaves follow losses. A single leave may be missing, if the server was down for as long
    /// as the client retried, so this fails only if there is none at all.
    pub fn check_leaves_after_losses(&mut self) {
        if self.lost.len() >= 5 && self.lost.is_disjoint(&self.left_after_loss) {
            self.violated("R11", format!("{} holds were lost, and none of their owners left", self.lost.len()));
        }
    }

    /// Records a violation found outside the checker.
    pub fn report(&mut self, promise: &str, what: String) {
        self.violated(promise, what);
    }

    /// At the end: the resource lost no update.
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
