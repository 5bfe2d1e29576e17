//! Compares the guards of a quorum with each other and with the servers. Each server also has its own checker, which
//! knows only the rules of a single server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlock::LockGuard;
use fairlock::simulation::{Ran, may_have_run};

use crate::checker::{Checker, Remembered};
use crate::keys::{Keys, client_of};

/// The rule, and how it was broken.
pub type Found = (&'static str, String);

/// How much faster or slower a clock may run. R5 allows for a drift of 1 %.
pub const DRIFT: f64 = 0.009;
/// Without faults, how long an owner may keep servers that it has released, or wait below one that it holds: the time
/// of its requests.
const GIVEN_BACK: Duration = Duration::from_millis(1500);
/// A process that goes on has noticed its losses within this time.
const NOTICED: Duration = Duration::from_millis(100);
/// The most by which a server's clock may be faster; and leases are whole ms.
const FASTEST: f64 = 1.0 + DRIFT;
const ROUNDED: i64 = 1;

/// A guard that an actor relies on.
pub struct Claim {
    /// Its key.
    pub lock: String,
    pub actor: usize,
    /// As the servers know it.
    pub owner: String,
    pub guard: Arc<LockGuard>,
    /// When the call began.
    pub called: Duration,
}

struct Claimed {
    claim: Claim,
    /// The nodes that counted when the client formed it.
    counting: Vec<usize>,
    /// Someone ended it by force on some node; its holder learns of it later.
    void: bool,
    /// Since when these nodes no longer count, and since when the guard is invalid (Q10).
    gone: BTreeMap<usize, Duration>,
    over: Option<Duration>,
}

pub struct QuorumChecker {
    nodes: Vec<Checker>,
    /// Server time, ms: until then the node grants nothing, since it has lost its data.
    frozen: Vec<i64>,
    claims: BTreeMap<u64, Claimed>,
    next: u64,
    /// The newest token of each lock, and its owner.
    newest: BTreeMap<String, (u64, String)>,
    /// When someone ended a hold by force on some node, by lock and owner.
    forced: BTreeMap<(String, String), Duration>,
    /// How many calls each owner has under way.
    calls: BTreeMap<String, usize>,
    /// Owners whose call nobody gives up.
    patient: BTreeSet<String>,
    /// The owner that got the gate of each lock in its turn, in steady times, and still lacks a guard.
    at_the_gate: BTreeMap<String, String>,
    /// Since when an owner has a lock that none of its calls and guards needs: lock, node, owner.
    unclaimed: BTreeMap<(String, usize, String), Duration>,
    /// Since when an owner waits at a node and holds a later one: lock, the two nodes, owner.
    downwards: BTreeMap<(String, usize, usize, String), Duration>,
    /// The number of guards formed, without nested ones.
    pub guards: u64,
}

impl QuorumChecker {
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| Checker::new(false)).collect(),
            frozen: vec![0; nodes],
            claims: BTreeMap::new(),
            next: 0,
            newest: BTreeMap::new(),
            forced: BTreeMap::new(),
            calls: BTreeMap::new(),
            patient: BTreeSet::new(),
            at_the_gate: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            downwards: BTreeMap::new(),
            guards: 0,
        }
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    pub fn node(&mut self, node: usize) -> &mut Checker {
        &mut self.nodes[node]
    }

    /// Like [`Checker::had_others`], at one of the servers at least. `since`, `now`: by the clock of each.
    pub fn had_others(&mut self, keys: &[String], owner: &str, since: &[i64], now: &[i64]) -> bool {
        let mut nodes = self.nodes.iter_mut().zip(since.iter().zip(now));
        nodes.any(|(node, (since, now))| node.had_others(keys, owner, *since, *now))
    }

    pub fn connected(&mut self, node: usize, client: &str, on: bool) {
        self.nodes[node].connected(0, client, on);
    }

    /// A server started, or lost its data.
    pub fn must_freeze(&mut self, node: usize, until: i64) {
        self.frozen[node] = until;
        self.nodes[node].must_freeze(until);
    }

    pub fn remember(&self, node: usize) -> Remembered {
        self.nodes[node].remember()
    }

    /// A script has run on a server.
    pub fn ran(
        &mut self,
        node: usize,
        ran: &Ran<'_>,
        keys: &Keys,
        meddled: bool,
        now: Duration,
        steady: bool,
    ) -> Vec<Found> {
        let lock = &ran.keys[0];
        let ended = match &ran.reply {
            Ok(reply) => reply[0] == "freed",
            Err(error) => may_have_run(error),
        };
        if ran.script == "force_unlock" && ended {
            let owner = self.nodes[node].holder(lock).map(|(owner, _)| owner.to_owned());
            owner.into_iter().for_each(|owner| self.ended_by_force(lock, owner, now));
        }
        let checker = &mut self.nodes[node];
        checker.settled = steady;
        checker.ran(ran, keys, meddled, 0, 0);
        let violations = std::mem::take(&mut checker.violations);
        let mut found: Vec<_> = violations.into_iter().map(|what| ("node", format!("{node}: {what}"))).collect();
        if node == 0 {
            found.extend(self.check_split_vote(ran, steady));
        }
        let queued = ran.script == "acquire" && ran.reply.as_ref().is_ok_and(|reply| reply[0] == "queued");
        if steady && queued && node > 0 && !self.holds(0, lock, &ran.args[2]) {
            // All clients see the same nodes.
            found.push(("Q1", format!("{} waits at node {node}, and has not got the gate", ran.args[2])));
        }
        found
    }

    fn ended_by_force(&mut self, lock: &str, owner: String, now: Duration) {
        let theirs = |claimed: &&mut Claimed| claimed.claim.lock == lock && claimed.claim.owner == owner;
        self.claims.values_mut().filter(theirs).for_each(|claimed| claimed.void = true);
        self.forced.insert((lock.to_owned(), owner), now);
    }

    fn holds(&self, node: usize, lock: &str, owner: &str) -> bool {
        self.nodes[node].holder(lock).is_some_and(|(holder, _)| holder == owner)
    }

    /// Without a split vote, an owner that got the gate in its turn gets a guard, and releases nothing before.
    fn check_split_vote(&mut self, ran: &Ran<'_>, steady: bool) -> Option<Found> {
        let lock = &ran.keys[0];
        let holder = self.nodes[0].holder(lock).map(|(owner, _)| owner.to_owned());
        let given_back = self.at_the_gate.get(lock).filter(|owner| holder.as_ref() != Some(owner)).cloned();
        if given_back.is_some() || !steady {
            self.at_the_gate.remove(lock);
        }
        let tries = ran.script == "acquire" && ran.args.get(7).is_some_and(|mode| mode == "0");
        let is_new = ran.script == "acquire" || !ran.published.is_empty();
        if let Some(owner) = holder.filter(|owner| steady && is_new && !tries && self.patient.contains(owner)) {
            let has_guard = self.claims.values().any(|other| other.claim.lock == *lock && other.claim.owner == owner);
            if !has_guard {
                self.at_the_gate.insert(lock.clone(), owner);
            }
        }
        let owner = given_back.filter(|owner| steady && self.patient.contains(owner))?;
        Some(("split vote", format!("{owner} had the gate of {lock} in its turn, and gave it back without a guard")))
    }

    /// `patient`: nobody gives the call up.
    pub fn call_begins(&mut self, owner: &str, patient: bool) {
        *self.calls.entry(owner.to_owned()).or_default() += 1;
        if patient {
            self.patient.insert(owner.to_owned());
        }
    }

    pub fn call_ends(&mut self, owner: &str) {
        self.patient.remove(owner);
        if let Some(calls) = self.calls.get_mut(owner) {
            *calls -= 1;
            if *calls == 0 {
                self.calls.remove(owner);
            }
        }
    }

    /// An actor got a guard at this very moment: guards come here in the order in which clients form them.
    pub fn claim(&mut self, claim: Claim, steady: bool) -> (u64, Vec<Found>) {
        let (mut found, token) = (Vec::new(), claim.guard.token());
        let is_nested =
            self.claims.values().any(|other| other.claim.lock == claim.lock && other.claim.owner == claim.owner);
        let counting = claim.guard.servers();
        // Someone ended it by force while the client formed it.
        let forced = self.forced.get(&(claim.lock.clone(), claim.owner.clone()));
        let void = forced.is_some_and(|at| *at >= claim.called)
            || self.claims.values().any(|other| other.void && other.claim.guard.token() == token);
        if self.at_the_gate.get(&claim.lock) == Some(&claim.owner) {
            self.at_the_gate.remove(&claim.lock);
        }
        if !is_nested {
            self.guards += 1;
            let (newest, last) = self.newest.get(&claim.lock).cloned().unwrap_or_default();
            // The same hold, which its owner has not fully released.
            let goes_on = token == newest && last == claim.owner;
            if token <= newest && !goes_on && !void {
                found.push(("P2", format!("actor {} got {token} on {} after {newest}", claim.actor, claim.lock)));
            }
            // If someone ended a guard by force, an actor may claim it after a newer one.
            if token > newest {
                self.newest.insert(claim.lock.clone(), (token, claim.owner.clone()));
            }
        }
        if claim.guard.is_valid() && counting.len() < self.majority() {
            found.push(("Q4", format!("{token} on {} counts the nodes {counting:?} only", claim.lock)));
        }
        if steady && !is_nested && !counting.contains(&0) {
            found.push(("P3", format!("{token} on {} has not got the gate, but {counting:?}", claim.lock)));
        }
        self.next += 1;
        self.claims.insert(self.next, Claimed { claim, counting, void, gone: BTreeMap::new(), over: None });
        (self.next, found)
    }

    #[must_use]
    pub fn end(&mut self, number: u64) -> Option<Claim> {
        self.claims.remove(&number).map(|claimed| claimed.claim)
    }

    pub fn is_void(&self, number: u64) -> bool {
        self.claims.get(&number).is_some_and(|claimed| claimed.void)
    }

    /// `clocks`: of the servers, in ms.
    pub fn look(
        &mut self,
        clocks: &[i64],
        now: Duration,
        steady: bool,
        is_paused: impl Fn(&str) -> bool,
    ) -> Vec<Found> {
        let mut found = Vec::new();
        self.check_overlaps(&mut found);
        self.check_backing(clocks, &mut found);
        self.check_losses_are_final(now, is_paused, &mut found);
        if steady {
            self.check_unclaimed(clocks, now, &mut found);
        } else {
            self.unclaimed.clear();
        }
        found
    }

    /// P1: no two guards of one name are valid at one instant.
    fn check_overlaps(&self, found: &mut Vec<Found>) {
        let mut valid: BTreeMap<&str, &Claimed> = BTreeMap::new();
        let claims = self.claims.values().filter(|claimed| !claimed.void && claimed.claim.guard.is_valid());
        for claimed in claims {
            let (claim, token) = (&claimed.claim, claimed.claim.guard.token());
            let Some(other) = valid.insert(&claim.lock, claimed) else { continue };
            let other_token = other.claim.guard.token();
            if other.claim.owner != claim.owner {
                let what = format!(
                    "{} is held by actor {} under {other_token} at {:?} and by actor {} under {token} at {:?}",
                    claim.lock, other.claim.actor, other.counting, claim.actor, claimed.counting
                );
                found.push(("P1", what));
            } else if other_token != token {
                found.push(("Q11", format!("one owner has {other_token} and {token} on {}", claim.lock)));
            }
        }
    }

    /// Q4 and Q5: while a guard is valid, a majority of the servers keeps the lock for it. A server that has lost its
    /// data does not grant it until then (Q8).
    fn check_backing(&self, clocks: &[i64], found: &mut Vec<Found>) {
        for Claimed { claim, .. } in self.claims.values().filter(|claimed| !claimed.void) {
            let valid_for = claim.guard.valid_for();
            if valid_for.is_zero() {
                continue;
            }
            let left = |(node, now): (usize, &i64)| {
                let holder = self.nodes[node].holder(&claim.lock);
                let until = holder.filter(|(owner, _)| *owner == claim.owner).map_or(0, |(_, until)| until);
                until.max(self.frozen[node]) - now
            };
            let mut left: Vec<_> = clocks.iter().enumerate().map(left).collect();
            left.sort_unstable_by(|one, other| other.cmp(one));
            let kept = left[self.majority() - 1] + ROUNDED;
            if (kept as f64) < FASTEST * 1000.0 * valid_for.as_secs_f64() {
                let token = claim.guard.token();
                let what =
                    format!("{token} on {} is valid for {valid_for:?}, servers keep it for {left:?} ms", claim.lock);
                found.push(("Q5", what));
            }
        }
    }

    /// Q10: a loss is final, and no node joins a hold that began without it. A paused process reads the answers of the
    /// pause before it notices a loss.
    fn check_losses_are_final(&mut self, now: Duration, is_paused: impl Fn(&str) -> bool, found: &mut Vec<Found>) {
        for claimed in self.claims.values_mut() {
            let Claimed { claim, counting, gone, over, .. } = claimed;
            if is_paused(client_of(&claim.owner)) {
                gone.clear();
                *over = None;
                continue;
            }
            let (token, nodes) = (claim.guard.token(), claim.guard.servers());
            let is_late = |since: &Duration| now > *since + NOTICED;
            let again = |node: &&usize| !counting.contains(node) || gone.get(node).is_some_and(is_late);
            if let Some(node) = nodes.iter().find(again) {
                found.push(("Q10", format!("node {node} counts for {token} again, which had {counting:?}")));
            }
            gone.retain(|node, _| !nodes.contains(node));
            for node in counting.iter().filter(|node| !nodes.contains(node)) {
                gone.entry(*node).or_insert(now);
            }
            let is_valid = claim.guard.is_valid();
            if is_valid && over.as_ref().is_some_and(is_late) {
                found.push(("Q10", format!("{token} was lost, and is valid again")));
            }
            *over = if is_valid { None } else { over.or(Some(now)) };
        }
    }

    /// Q6: an owner without a call and a guard leaves nothing on a server.
    fn check_unclaimed(&mut self, clocks: &[i64], now: Duration, found: &mut Vec<Found>) {
        let owners: BTreeSet<_> = self.claims.values().map(|claimed| claimed.claim.owner.as_str()).collect();
        let mut unclaimed = BTreeMap::new();
        for lock in self.newest.keys() {
            for (node, checker) in self.nodes.iter().enumerate() {
                let Some((owner, until)) = checker.holder(lock) else { continue };
                if until > clocks[node] && !owners.contains(owner) && !self.calls.contains_key(owner) {
                    let key = (lock.clone(), node, owner.to_owned());
                    let since = self.unclaimed.get(&key).copied().unwrap_or(now);
                    if now > since + GIVEN_BACK {
                        found.push(("Q6", format!("node {node} keeps {lock} for {owner}, who has no use for it")));
                    }
                    unclaimed.insert(key, since);
                }
            }
        }
        self.unclaimed = unclaimed;
    }

    /// Q1 and Q2: an owner that waits at a node holds nothing above it that it can release.
    pub fn check_upwards(
        &mut self,
        clocks: &[i64],
        now: Duration,
        is_in_reach: impl Fn(usize, &str) -> bool,
        found: &mut Vec<Found>,
    ) {
        let mut downwards = BTreeMap::new();
        for lock in self.newest.keys() {
            for (above, checker) in self.nodes.iter().enumerate() {
                let Some((owner, until)) = checker.holder(lock) else { continue };
                let waits = |node: &usize| self.nodes[*node].waiting(lock).any(|waiter| waiter == owner);
                // A place that it cannot leave does not count as its wait.
                let leaves = |node: &usize| is_in_reach(*node, client_of(owner));
                let counts = until > clocks[above] && leaves(&above);
                let Some(node) = (0..above).filter(leaves).find(waits).filter(|_| counts) else { continue };
                let key = (lock.clone(), node, above, owner.to_owned());
                let since = self.downwards.get(&key).copied().unwrap_or(now);
                if now > since + GIVEN_BACK {
                    let what = format!("{owner} waits for {lock} at node {node}, and has node {above}");
                    found.push(("Q2", what));
                }
                downwards.insert(key, since);
            }
        }
        self.downwards = downwards;
    }

    /// A process has died: its calls are gone.
    pub fn died(&mut self, client: &str) {
        self.calls.retain(|owner, _| client_of(owner) != client);
        self.patient.retain(|owner| client_of(owner) != client);
    }

    /// Over all servers: grants, hand-overs and expiries.
    pub fn counts(&self) -> (u64, u64, u64) {
        let sum = |count: fn(&Checker) -> u64| self.nodes.iter().map(count).sum();
        (sum(|node| node.grants), sum(|node| node.handed_over), sum(|node| node.expiries))
    }
}
