//! The parts of a quorum run that the world does not have: the servers' clocks, and which clients cannot reach which of
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fairlock::{EmbeddedServer, LockGuard, Owner};

use super::checker::{Claim, DRIFT, Found, QuorumChecker};
use crate::world::{LONGEST_LEASE, World};

/// How long a disturbance of a node may have effects: late requests, leases.
pub const AFTERMATH: Duration = Duration::from_secs(5);

pub struct Trial {
    pub world: Arc<World>,
    /// The builder's.
    pub clock_difference: Duration,
    /// A run without it never loses data.
    pub strict: bool,
    clocks: Vec<Clock>,
    state: Mutex<State>,
    servers: Mutex<Vec<EmbeddedServer>>,
}

pub struct State {
    pub checker: QuorumChecker,
    /// Node and client: no message passes between them until then.
    apart: BTreeMap<(usize, String), Duration>,
    /// Until when each node stands still, as after SIGSTOP. Requests to it arrive when it goes on.
    stopped: Vec<Duration>,
    /// Whether a node is down, or is on its way down.
    pub away: Vec<bool>,
    /// When the last disturbance of each node ended, or will.
    disturbed: Vec<Duration>,
    /// Without faults, and without effects of earlier ones.
    pub steady: bool,
    steady_since: Duration,
    /// In the calm phase: since when a minority is away.
    away_since: Option<Duration>,
    /// For how long a silent node may delay each client (Q10).
    patience: BTreeMap<String, Duration>,
    /// When a client first sent something to a node that is stopped in the calm phase.
    first_asked: BTreeMap<(usize, String), Duration>,
}

/// A clock that is ahead by up to some seconds, at a changing rate.
struct Clock {
    ahead: Duration,
    /// It gains up to this much, and loses it again.
    swing: Duration,
    begins_at: Duration,
}

impl Clock {
    fn at(&self, elapsed: Duration) -> Duration {
        let half = self.swing.as_secs_f64() / DRIFT;
        let since = (elapsed + self.begins_at).as_secs_f64() % (2.0 * half);
        let gained = DRIFT * if since < half { since } else { 2.0 * half - since };
        elapsed + self.ahead + Duration::from_secs_f64(gained)
    }
}

impl Trial {
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        let nodes = if world.chance(0.6) { 3 } else { 5 };
        let most = if world.chance(0.3) { 3000 } else { 600 };
        let clock_difference = Duration::from_millis(100 + world.below(most));
        let swing = clock_difference.min(Duration::from_millis(300)) / 2;
        let spread = (clock_difference - swing).as_millis() as u64;
        let clock = |_| Clock {
            // As far apart as allowed, in half of the cases.
            ahead: Duration::from_millis(if world.chance(0.5) { spread * world.below(2) } else { world.below(spread) }),
            swing,
            begins_at: Duration::from_millis(world.below(60_000)),
        };
        let clocks = (0..nodes).map(clock).collect();
        Self::with(world, clocks, clock_difference, world.chance(0.85))
    }

    /// `ahead`: by how much the clock of each server is ahead.
    pub fn scripted(world: &Arc<World>, ahead: &[Duration], strict: bool) -> Arc<Self> {
        let clock =
            |ahead: &Duration| Clock { ahead: *ahead, swing: Duration::from_millis(1), begins_at: Duration::ZERO };
        let most = ahead.iter().copied().max().unwrap_or_default();
        Self::with(world, ahead.iter().map(clock).collect(), most + Duration::from_millis(100), strict)
    }

    fn with(world: &Arc<World>, clocks: Vec<Clock>, clock_difference: Duration, strict: bool) -> Arc<Self> {
        let nodes = clocks.len();
        let state = State {
            checker: QuorumChecker::new(nodes),
            apart: BTreeMap::new(),
            stopped: vec![Duration::ZERO; nodes],
            away: vec![false; nodes],
            disturbed: vec![Duration::ZERO; nodes],
            steady: false,
            steady_since: Duration::ZERO,
            away_since: None,
            patience: BTreeMap::new(),
            first_asked: BTreeMap::new(),
        };
        Arc::new(Self {
            world: world.clone(),
            clock_difference,
            strict,
            clocks,
            state: Mutex::new(state),
            servers: Mutex::default(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the simulation")
    }

    /// The servers refer to this too, so it ends with the run.
    pub fn serve(&self, servers: Vec<EmbeddedServer>) {
        *self.servers.lock().expect("a panic ends the simulation") = servers;
    }

    pub fn server(&self, node: usize) -> Option<EmbeddedServer> {
        self.servers.lock().expect("a panic ends the simulation").get(node).cloned()
    }

    pub fn nodes(&self) -> usize {
        self.clocks.len()
    }

    pub fn majority(&self) -> usize {
        self.nodes() / 2 + 1
    }

    /// How long a server that has lost its data must not grant anything (Q8).
    pub fn freeze(&self) -> Duration {
        LONGEST_LEASE + 2 * self.clock_difference
    }

    /// A server's clock since the run began.
    pub fn clock(&self, node: usize, elapsed: Duration) -> Duration {
        self.clocks[node].at(elapsed)
    }

    pub fn clocks_ms(&self) -> Vec<i64> {
        let (origin, elapsed) = (self.world.state().origin.unwrap_or(0), self.world.elapsed());
        (0..self.nodes()).map(|node| (origin + self.clock(node, elapsed).as_micros() as i64) / 1000).collect()
    }

    /// No message passes between them for `length`.
    pub fn keep_apart(&self, node: usize, client: &str, length: Duration) {
        let until = self.world.elapsed() + length;
        let mut state = self.state();
        let last = state.apart.entry((node, client.to_owned())).or_default();
        *last = until.max(*last);
        state.disturbed[node] = until.max(state.disturbed[node]);
    }

    /// The server does nothing for `length`, and its connections stay.
    pub fn stop(&self, node: usize, length: Duration) {
        let until = self.world.elapsed() + length;
        let mut state = self.state();
        state.stopped[node] = until.max(state.stopped[node]);
        state.disturbed[node] = until.max(state.disturbed[node]);
    }

    /// It goes down, restarts, or loses its data.
    pub fn disturb(&self, node: usize) {
        let now = self.world.elapsed();
        let mut state = self.state();
        state.disturbed[node] = now.max(state.disturbed[node]);
    }

    /// How much longer this client cannot reach this node.
    pub fn is_apart(&self, node: usize, client: &str) -> Duration {
        let now = self.world.elapsed();
        let until = self.state().apart.get(&(node, client.to_owned())).copied().unwrap_or_default();
        until.saturating_sub(now)
    }

    /// How much longer this node does nothing.
    pub fn is_stopped(&self, node: usize) -> Duration {
        let now = self.world.elapsed();
        self.state().stopped[node].saturating_sub(now)
    }

    /// How many nodes serve, as far as the faults allow.
    pub fn serving(&self) -> usize {
        let clocks = self.clocks_ms();
        let now = self.world.elapsed();
        let servers: Vec<_> = (0..self.nodes()).filter_map(|node| self.server(node)).collect();
        let state = self.state();
        let serves = |node: &usize| {
            let thaws = crate::keys::frozen_until(&servers[*node]);
            !state.away[*node] && state.stopped[*node] <= now && (!self.strict || thaws <= clocks[*node])
        };
        (0..self.nodes()).filter(serves).count()
    }

    pub fn set_steady(&self, steady: bool) {
        let now = self.world.elapsed();
        let mut state = self.state();
        (state.steady, state.steady_since) = (steady, now);
    }

    /// Whether there has been no fault since then, nor an effect of one.
    pub fn was_steady_since(&self, begun: Duration) -> bool {
        let state = self.state();
        state.steady && state.steady_since <= begun
    }

    /// In the calm phase, with no other fault at the same time.
    pub fn go_away(&self, away: bool) {
        let now = self.world.elapsed();
        let mut state = self.state();
        state.away_since = away.then_some(now);
        state.first_asked.clear();
    }

    pub fn is_patient_for(&self, client: &str, patience: Duration) {
        self.state().patience.insert(client.to_owned(), patience);
    }

    /// Q10: a client asks for a lock at a node. In the calm phase a stopped node costs it a short time-out once.
    pub fn asks(&self, node: usize, client: &str) {
        let now = self.world.elapsed();
        let mut state = self.state();
        if state.away_since.is_none() || state.stopped[node] <= now {
            return;
        }
        let first = *state.first_asked.entry((node, client.to_owned())).or_insert(now);
        let patience = state.patience.get(client).copied().unwrap_or(Duration::MAX);
        drop(state);
        if now - first > patience {
            let what = format!("{client} asks node {node}, which has been silent for {:?}", now - first);
            self.report(vec![("Q10", what)]);
        }
    }

    /// A call of this client ends before its time-out.
    pub fn gives_up(&self, client: &str) {
        self.state().first_asked.retain(|(_, asked), _| asked != client);
    }

    pub fn are_away_since(&self) -> Option<Duration> {
        self.state().away_since
    }

    /// Whether no fault has touched a majority of these nodes since then.
    pub fn majority_was_left_alone(&self, nodes: &[usize], since: Duration) -> bool {
        let state = self.state();
        let alone = nodes.iter().filter(|node| state.disturbed[**node] < since && !state.away[**node]);
        alone.count() >= self.majority()
    }

    pub fn report(&self, found: Vec<Found>) {
        for (rule, what) in found {
            self.world.note("VIOLATION", 0, || format!("{rule}: {what}"));
            self.world.state().checker.report(rule, what);
        }
    }

    /// Compares all guards with each other and with the servers.
    pub fn look(&self) {
        let (clocks, now) = (self.clocks_ms(), self.world.elapsed());
        let calm = self.world.state().calm && !self.world.is_settling();
        let found = {
            let mut state = self.state();
            let steady = state.steady;
            let mut found = state.checker.look(&clocks, now, steady, |process| self.world.is_paused(process));
            if calm {
                let State { checker, apart, stopped, away, .. } = &mut *state;
                let is_in_reach = |node: usize, client: &str| {
                    let apart = apart.get(&(node, client.to_owned())).copied().unwrap_or_default();
                    apart.max(stopped[node]) + AFTERMATH < now && !away[node]
                };
                checker.check_upwards(&clocks, now, is_in_reach, &mut found);
            }
            found
        };
        self.report(found);
    }

    /// An actor has got a guard at this very moment.
    pub fn claim(self: &Arc<Self>, claim: Claim) -> Claimed {
        let guard = claim.guard.clone();
        let what = format!("{} under {} at {:?}", claim.lock, guard.token(), guard.servers());
        self.world.note("holds", claim.actor, || format!("actor {} {what}", claim.actor));
        let (number, found) = {
            let mut state = self.state();
            let steady = state.steady;
            state.checker.claim(claim, steady)
        };
        self.report(found);
        self.look();
        Claimed { trial: self.clone(), number, guard: Some(guard) }
    }
}

/// The owner as the servers know it.
pub fn owner_id(client: &str, owner: Owner) -> String {
    let number = format!("{owner:?}");
    format!("{client}:{}", number.trim_start_matches("Owner(").trim_end_matches(')'))
}

/// A guard that the checker knows. It is dropped with the actor when its process dies.
pub struct Claimed {
    trial: Arc<Trial>,
    number: u64,
    guard: Option<Arc<LockGuard>>,
}

impl Claimed {
    pub fn guard(&self) -> &LockGuard {
        self.guard.as_ref().expect("it is there until the end")
    }

    /// Ended by force: its holder may not know it yet.
    pub fn is_void(&self) -> bool {
        self.trial.state().checker.is_void(self.number)
    }

    /// The claim ends before the guard does, since another owner may get the lock then.
    pub fn end(mut self) -> Option<LockGuard> {
        self.forget();
        self.guard.take().and_then(Arc::into_inner)
    }

    fn forget(&self) {
        // Dropped outside the lock: a guard that ends needs the world.
        let claim = self.trial.state().checker.end(self.number);
        drop(claim);
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.forget();
        }
    }
}
