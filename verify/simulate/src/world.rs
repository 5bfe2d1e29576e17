//! Decides by one seed what messages, clocks and processes do.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fairlock::EmbeddedServer;
use fairlock::simulation::{Delivery, Faults, Ran, Redirected, RefusedCommands, Task};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::checker::Checker;
use crate::keys::Keys;
use crate::seed::{self, Topology};

/// How likely each fault is in one run.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultRates {
    lost_before: f64,
    lost_after: f64,
    duplicated: f64,
    slow: f64,
    late: f64,
    push_lost: f64,
    push_late: f64,
    push_duplicated: f64,
    refused: f64,
    /// How long a message takes in the calm phase, in ms.
    calm_delay: u64,
    /// How many seconds pass on the server's clock in one second of the clients.
    pub clock_rate: f64,
}

/// No client asks for a longer one.
pub const LONGEST_LEASE: Duration = Duration::from_millis(4000);
/// The longest delay of a message, longer than any lease.
const LATEST: Duration = Duration::from_secs(6);
/// The most steps of tasks in one instant of virtual time (P10: no busy loop). Virtual time passes only when no task
/// can run, so a busy loop would never end.
const MOST_STEPS: u64 = 300_000;
/// How long the calm phase takes until no earlier message is in flight: a request, its reply, and a lease.
pub const SETTLING: Duration = Duration::from_secs(2 * LATEST.as_secs() + 5);
/// A client repeats an unanswered request within this time, even through a gate that a refusal has closed.
const TRIED_AGAIN: Duration = Duration::from_millis(2200);
/// A message that takes longer may hinder the next one.
const SLOW: Duration = Duration::from_millis(100);
/// How long the keys of a queue live if all its clients are silent.
pub const QUEUES_LIVE: Duration = Duration::from_secs(90);

impl FaultRates {
    fn of(rng: &mut fastrand::Rng) -> Self {
        let mut up_to = |most: f64| rng.f64() * rng.f64() * most;
        // Never both in one run: the server could refuse one copy of a request and run the other, and the reply would
        // state that nothing ran. A real connection never makes copies.
        let duplicated = up_to(0.3);
        let refused = up_to(0.06);
        let (duplicated, refused) = if up_to(1.0) < 0.15 { (duplicated, 0.0) } else { (0.0, refused) };
        Self {
            lost_before: up_to(0.1),
            lost_after: up_to(0.2),
            duplicated,
            slow: up_to(0.2),
            late: up_to(0.06),
            push_lost: up_to(0.6),
            push_late: up_to(0.5),
            push_duplicated: up_to(0.3),
            refused,
            calm_delay: up_to(12.0) as u64,
            // R5 allows for a drift of 1 %.
            clock_rate: 0.995 + 0.01 * rng.f64(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    /// As after SIGSTOP, or on a machine that swaps: time passes, but its tasks do not run.
    Paused,
    Dead,
}

struct Process {
    life: Life,
    /// Its client's runtime has ended: the background tasks are gone, the callers go on.
    runtime_ended: bool,
    /// Nobody drives its client's runtime for a while: the callers go on.
    is_delayed: bool,
    /// Its client closes or has closed.
    is_closed: bool,
    /// The wakers of its tasks, by number.
    wakers: BTreeMap<u64, Waker>,
}

/// What a scenario decides in place of chance.
#[derive(Default)]
pub struct Script {
    pub mishaps: Vec<Mishap>,
    /// From now on the checker judges it as a run without faults.
    pub settled: bool,
    /// A node that another one has replaced without its knowledge. Its scripts do not count.
    pub replaced: Option<usize>,
}

/// What happens to this client's next request of this kind, or to the next message pushed to it.
pub struct Mishap {
    pub client: String,
    pub script: &'static str,
    pub fate: Fate,
}

/// The server refuses this client's requests of this kind until then, and serves the others.
struct Refusing {
    client: String,
    script: &'static str,
    why: &'static str,
    until: Duration,
}

/// The right to a command, which a client lacks for a while.
struct Lacking {
    client: String,
    /// `None`: on all of them.
    node: Option<usize>,
    command: &'static str,
    when: Range<Duration>,
}

/// Without this right the server refuses every script as a whole.
const EVALSHA: &str = "EVALSHA";

const NO_EVALSHA: &str = "NOPERM this user has no permissions to run the 'evalsha' command";

/// The rights that a client may lose for a while.
const RIGHTS: [&str; 16] = [
    EVALSHA, EVALSHA, EVALSHA, "HSET", "HDEL", "HMGET", "PEXPIRE", "PUBLISH", "PUBSUB", "RPUSH", "LREM", "LPOP",
    "ZADD", "ZREM", "SET", "UNLINK",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    ReplyLost,
    RequestTakes(Duration),
    ReplyTakes(Duration),
    /// The server refuses the script's command with this number, after others may have written.
    RefusedInside(u32),
    /// The answer comes at once, so that its future has it, whatever happens to the connection.
    AtOnce,
    /// Nothing goes wrong. A scenario waits until the client sends it.
    Sent,
    PushTakes(Duration),
}

/// Stands for pushed messages when the world looks up a fate.
pub const PUSH: &str = "push";

const REFUSALS: [&str; 4] =
    ["NOREPLICAS too few replicas", "LOADING loading the data", "MISCONF cannot persist", "OOM no memory"];

struct Setting {
    rng: fastrand::Rng,
    handles: Option<fastrand::Rng>,
    permits: Option<fastrand::Rng>,
    limits: Option<fastrand::Rng>,
    rights: Option<fastrand::Rng>,
    may_rest: bool,
    rates: FaultRates,
    strict: bool,
    ahead: Vec<u64>,
    is_cluster: bool,
    script: Option<Script>,
}

pub struct State {
    pub rng: fastrand::Rng,
    /// Draws the faults that came later, so that the others stay as before.
    pub later: fastrand::Rng,
    /// Draws the use of handles, in runs that have them.
    handles: Option<fastrand::Rng>,
    extends: bool,
    pub has_sets: bool,
    /// Draws the ends of clients with calls under way, in runs that have them.
    closes: Option<fastrand::Rng>,
    /// Draws when a client's driver is delayed, in runs that have this.
    delays: Option<fastrand::Rng>,
    /// Like `handles`, for permits.
    permits: Option<fastrand::Rng>,
    /// Like `handles`, for `max_hold`.
    limits: Option<fastrand::Rng>,
    /// Futures of callers may go unpolled.
    may_rest: bool,
    /// How long others may have waited because of that, in the calm phase.
    pub rested: Duration,
    refusing: Vec<Refusing>,
    /// Clients that had a refusal and no other answer since: they send one request at a time (decision 40).
    refused: BTreeSet<String>,
    /// The client's request that the server will refuse half-way, by its script, and the command.
    refused_inside: Option<(String, String, u32)>,
    lacking: Vec<Lacking>,
    /// Draws the rights that clients lose, in runs that have this.
    rights: Option<fastrand::Rng>,
    /// The server's clock advances at each of them, even if many things happen in one instant here, so its tokens
    /// differ.
    pub flushes: u64,
    pub rates: FaultRates,
    /// All clients have `strict_restart`.
    pub strict: bool,
    /// By how many ms the clock of each node is ahead of the common time. A single server has an entry too.
    ahead: Vec<u64>,
    /// The script of a scenario.
    pub script: Option<Script>,
    pub calm: bool,
    calm_since: Duration,
    /// In the calm phase: when the server was last down, or a slot last moved.
    last_down: Option<Duration>,
    /// The actors finish and start nothing new.
    pub ending: bool,
    pub checker: Checker,
    pub faults: BTreeMap<&'static str, u64>,
    processes: BTreeMap<String, Process>,
    /// The current instant of virtual time, and the steps taken in it.
    instant: (Duration, u64),
    tasks: u64,
    trace: DefaultHasher,
    timeline: Option<Vec<String>>,
    /// The server's clock when the run began, in microseconds.
    pub origin: Option<i64>,
    names: BTreeMap<String, String>,
    /// The server may refuse a command of the script that runs.
    pub meddled: bool,
    /// The server stands still until then, and its connections stay.
    stopped_until: Duration,
    /// Until when a client, at a node, is connected to a demoted server: it gets messages, and its requests are lost.
    behind: BTreeMap<(usize, String), Duration>,
    /// Since when each actor waits.
    pub waiting: BTreeMap<usize, Duration>,
}

pub struct World {
    me: Weak<Self>,
    state: Mutex<State>,
    /// One, or the nodes of a cluster. Empty after the run.
    nodes: Mutex<Vec<EmbeddedServer>>,
    began: Instant,
    /// Notified when a node redirects a renewal by ASK.
    pub sent_on: Notify,
    /// Notified when an actor gets a lock, before it knows.
    pub taken: Notify,
    /// Notified to end every pause in polling.
    pub wakes: Notify,
}

pub struct Around {
    pub world: Arc<World>,
    pub node: usize,
}

impl Deref for Around {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rates = FaultRates::of(&mut rng);
        let is_shared = seed::is_shared_in_cluster(seed);
        let is_cluster = is_shared || Topology::of(seed) == Topology::Cluster;
        let mut ahead = vec![0];
        if is_cluster {
            // As with refusals: one copy could run while a node redirects the other.
            rates.duplicated = 0.0;
            // Deadlines come from the clock of the node before, so with a large difference live clients seem dead. And
            // leases of shared names end by the clock of the node (docs/deploying.md).
            let most = if rng.bool() { 300 } else { 8000 };
            let most = if is_shared { 0 } else { most };
            ahead = (0..2 + rng.usize(..2)).map(|_| rng.u64(..=most)).collect();
        }
        let strict = seed::is_strict(seed);
        let may_rest = seed::may_rest(seed);
        let handles = seed::has_handles(seed).then(|| fastrand::Rng::with_seed(seed ^ 0x4a4d));
        let permits = seed::has_handles_of_permits(seed).then(|| fastrand::Rng::with_seed(seed ^ 0x9e46));
        let limits = seed::has_max_hold(seed).then(|| fastrand::Rng::with_seed(seed ^ 0x6d68));
        let rights = seed::loses_rights(seed).then(|| fastrand::Rng::with_seed(seed ^ 0x7167));
        let setting =
            Setting { rng, handles, permits, limits, rights, may_rest, rates, strict, ahead, is_cluster, script: None };
        let world = Self::with(setting, verbose);
        world.state().extends = seed::has_extends(seed);
        world.state().has_sets = true;
        world.state().delays = Some(fastrand::Rng::with_seed(seed ^ 0xde1a));
        world.state().closes = seed::closes(seed).then(|| fastrand::Rng::with_seed(seed ^ 0xc105));
        world
    }

    /// One server, the nodes of a cluster, or the servers of a quorum. Only what the scenario states goes wrong.
    pub fn scripted() -> Arc<Self> {
        let rates = FaultRates { calm_delay: 1, clock_rate: 1.0, ..FaultRates::default() };
        let (rng, script) = (fastrand::Rng::with_seed(0), Some(Script::default()));
        let ahead = vec![0, 0, 5000];
        let (handles, permits, limits, rights) = (None, None, None, None);
        let (may_rest, strict, is_cluster) = (false, false, false);
        let setting =
            Setting { rng, handles, permits, limits, rights, may_rest, rates, strict, ahead, is_cluster, script };
        Self::with(setting, true)
    }

    fn with(setting: Setting, verbose: bool) -> Arc<Self> {
        let Setting { rng, handles, permits, limits, rights, may_rest, rates, strict, ahead, is_cluster, script } =
            setting;
        let later = fastrand::Rng::with_seed(rng.get_seed() ^ 0x5eed);
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            state: Mutex::new(State {
                rng,
                later,
                handles,
                extends: false,
                has_sets: false,
                closes: None,
                delays: None,
                permits,
                limits,
                may_rest,
                rested: Duration::ZERO,
                refusing: Vec::new(),
                refused: BTreeSet::new(),
                refused_inside: None,
                lacking: Vec::new(),
                rights,
                flushes: 0,
                rates,
                strict,
                ahead,
                calm: script.is_some(),
                script,
                calm_since: Duration::ZERO,
                last_down: None,
                ending: false,
                checker: Checker::new(is_cluster),
                faults: BTreeMap::new(),
                processes: BTreeMap::new(),
                instant: (Duration::ZERO, 0),
                tasks: 0,
                trace: DefaultHasher::new(),
                timeline: verbose.then(Vec::new),
                origin: None,
                names: BTreeMap::new(),
                meddled: false,
                stopped_until: Duration::ZERO,
                behind: BTreeMap::new(),
                waiting: BTreeMap::new(),
            }),
            nodes: Mutex::default(),
            began: Instant::now(),
            sent_on: Notify::new(),
            taken: Notify::new(),
            wakes: Notify::new(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the simulation")
    }

    /// The nodes refer to the world too, so this ends with the run.
    pub fn serve(&self, nodes: Vec<EmbeddedServer>) {
        *self.nodes.lock().expect("a panic ends the simulation") = nodes;
    }

    pub fn served(&self) -> Vec<EmbeddedServer> {
        self.nodes.lock().expect("a panic ends the simulation").clone()
    }

    fn keys_of(&self, lock: &str) -> Keys {
        Keys::of(&self.served(), lock)
    }

    /// 1 without a cluster.
    pub fn nodes(&self) -> usize {
        self.state().ahead.len()
    }

    /// By how many ms the clock of a node is ahead.
    pub fn ahead(&self, node: usize) -> i64 {
        self.state().ahead[node] as i64
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.began)
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.state().rng.u64(..bound)
    }

    pub fn chance(&self, probability: f64) -> bool {
        self.state().rng.f64() < probability
    }

    /// Like `below`, for the faults that came later.
    pub fn later(&self, bound: u64) -> u64 {
        self.state().later.u64(..bound)
    }

    /// Whether a handle passes a hold on now.
    pub fn passes_on(&self) -> bool {
        self.state().handles.as_mut().is_some_and(|random| random.u8(..4) == 0)
    }

    /// Whether a guard extends its lease now.
    pub fn extends(&self) -> bool {
        let mut state = self.state();
        state.extends && state.handles.as_mut().is_some_and(|random| random.u8(..4) == 0)
    }

    /// Like `below`, for handles.
    pub fn of_handle(&self, bound: u64) -> u64 {
        self.state().handles.as_mut().map_or(0, |random| random.u64(..bound))
    }

    /// The `max_hold` of a client with this lease, in runs that have one.
    pub fn max_hold(&self, lease: Duration) -> Option<Duration> {
        self.state().limits.as_mut().map(|random| lease + Duration::from_millis(random.u64(..6000)))
    }

    /// Like `below`, for handles of permits.
    pub fn of_permit(&self, bound: u64) -> u64 {
        self.state().permits.as_mut().map_or(0, |random| random.u64(..bound))
    }

    /// Whether to use a handle of permits now, one in `times` times, in runs that have them.
    pub fn by_handle_of_permits(&self, times: u64) -> bool {
        self.state().permits.as_mut().is_some_and(|random| random.u64(..times) == 0)
    }

    /// How long a caller's future goes unpolled from now on; mostly it does not.
    pub fn rests_for(&self) -> Option<Duration> {
        let mut state = self.state();
        if !state.may_rest || state.ending || state.later.u64(..100) > 0 {
            return None;
        }
        state.count("callers_rest");
        let most = if state.later.bool() { 600 } else { 60_000 };
        Some(Duration::from_millis(state.later.u64(..most)))
    }

    pub async fn sleep_up_to(&self, most: Duration) {
        let micros = self.below(1 + most.as_micros() as u64);
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }

    /// The common time, in ms: the clock of the server, or a node's clock less its lead. Known from the first script
    /// on.
    pub fn server_ms(&self) -> i64 {
        let origin = self.state().origin.unwrap_or(0);
        (origin + self.common_time(self.elapsed()).as_micros() as i64) / 1000
    }

    /// The clock of a node, in ms.
    pub fn clock_of(&self, node: usize) -> i64 {
        self.server_ms() + self.ahead(node)
    }

    fn common_time(&self, elapsed: Duration) -> Duration {
        let state = self.state();
        elapsed.mul_f64(state.rates.clock_rate) + Duration::from_micros(10 * state.flushes)
    }

    /// Records an event: a line of the output, and a part of the run's fingerprint.
    pub fn note(&self, what: &'static str, who: usize, more: impl FnOnce() -> String) {
        let at = self.elapsed();
        self.state().note(at, what, who, more);
    }

    pub fn fault(&self, kind: &'static str) {
        self.fault_of(kind, "");
    }

    /// `whom`: the client that it happens to.
    pub fn fault_of(&self, kind: &'static str, whom: &str) {
        let at = self.elapsed();
        let mut state = self.state();
        state.count(kind);
        state.note(at, kind, 0, || whom.to_owned());
    }

    pub fn fingerprint(&self) -> u64 {
        self.state().trace.finish()
    }

    pub fn timeline(&self) -> Vec<String> {
        self.state().timeline.take().unwrap_or_default()
    }

    /// In the words of the timeline.
    pub fn violations(&self) -> Vec<String> {
        let mut state = self.state();
        let found = std::mem::take(&mut state.checker.violations);
        found.iter().map(|violation| state.readable(violation)).collect()
    }

    /// Wraps a caller's task of a process, which pauses and dies with the process.
    pub fn in_process(&self, process: &str, task: Task) -> Task {
        self.wrap(process, task, false)
    }

    fn wrap(&self, process: &str, task: Task, background: bool) -> Task {
        let mut state = self.state();
        state.tasks += 1;
        let number = state.tasks;
        let (world, process) = (self.me.clone(), process.to_owned());
        Box::pin(ProcessTask { world, process, number, background, task: Some(task) })
    }

    pub fn be_calm(&self) {
        let now = self.elapsed();
        let mut state = self.state();
        (state.calm, state.calm_since) = (true, now);
        state.stopped_until = Duration::ZERO;
        state.behind.clear();
        state.refusing.clear();
        state.lacking.clear();
        drop(state);
        self.wakes.notify_waiters();
        let mut state = self.state();
        state.note(now, "calm", 0, String::new);
    }

    /// Whether there are faults, or messages from that phase may still be in flight.
    pub fn is_settling(&self) -> bool {
        let now = self.elapsed();
        self.state().is_settling(now)
    }

    /// How long a message takes unless a fault or scenario changes it.
    pub fn usual_delay(&self) -> Duration {
        self.state().usual_delay()
    }

    /// Sets the usual delay of a message.
    pub fn messages_take(&self, delay: Duration) {
        self.state().rates.calm_delay = delay.as_millis() as u64;
    }

    /// The server is down, for `longest` at most. Noted only in the calm phase.
    pub fn goes_down(&self, longest: Duration) {
        let until = self.elapsed() + longest;
        let mut state = self.state();
        if state.calm {
            state.last_down = Some(until);
        }
        state.checker.goes_down(longest);
    }

    /// A slot moves until then. Calls for its locks wait, and clients renew their holds.
    pub fn stalls_until(&self, until: Duration) {
        let mut state = self.state();
        if state.calm {
            state.last_down = Some(until);
        }
    }

    pub fn has_moved_lately(&self) -> bool {
        self.was_down_since(self.elapsed().saturating_sub(Duration::from_secs(1)))
    }

    /// Whether, in the calm phase, the server was down since then or a slot moved.
    pub fn was_down_since(&self, begun: Duration) -> bool {
        self.state().last_down.is_some_and(|last| last >= begun)
    }

    fn set_life(&self, process: &str, life: Life) {
        if self.state().process(process).life != Life::Dead {
            self.change(process, |process| process.life = life);
        }
    }

    /// Wakes its tasks, so that they see the change.
    fn change(&self, process: &str, change: impl FnOnce(&mut Process)) {
        let wakers = {
            let mut state = self.state();
            let process = state.process(process);
            change(process);
            std::mem::take(&mut process.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    pub fn pause(&self, process: &str) {
        self.fault_of("pauses", process);
        self.set_life(process, Life::Paused);
        self.state().checker.paused.insert(process.to_owned());
    }

    pub fn go_on(&self, process: &str) {
        self.note("goes on", 0, || process.to_owned());
        self.set_life(process, Life::Runs);
        // Its hindrance from before the pause may go on.
        self.hindered(process, self.elapsed() + SLOW);
        let mut state = self.state();
        if !state.process(process).is_delayed {
            state.checker.paused.remove(process);
        }
    }

    /// How long a client's driver is delayed now, in runs that have this; mostly it is not.
    pub fn delays_a_driver(&self) -> Option<Duration> {
        let mut state = self.state();
        let random = state.delays.as_mut()?;
        let most = if random.bool() { 300 } else { 4000 };
        (random.u8(..5) == 0).then(|| Duration::from_millis(random.u64(..most)))
    }

    /// Its background tasks do not run, and its callers do.
    pub fn delay(&self, process: &str) {
        self.fault_of("drivers_delayed", process);
        self.state().process(process).is_delayed = true;
        self.state().checker.paused.insert(process.to_owned());
    }

    pub fn drive(&self, process: &str) {
        self.note("is driven", 0, || process.to_owned());
        self.change(process, |process| process.is_delayed = false);
        self.hindered(process, self.elapsed() + SLOW);
        let mut state = self.state();
        if state.process(process).life != Life::Paused {
            state.checker.paused.remove(process);
        }
    }

    /// Does nothing if it is driven, so that a run without delays stays the same.
    pub fn drive_again(&self, process: &str) {
        if self.state().process(process).is_delayed {
            self.drive(process);
        }
    }

    pub fn kill(&self, process: &str) {
        self.fault_of("deaths", process);
        self.set_life(process, Life::Dead);
        let died = self.state().checker.died(process);
        drop(died);
    }
}

impl World {
    /// The runtime that made the client ends; its callers are in another one.
    pub fn end_runtime(&self, process: &str) {
        self.fault_of("runtimes_ended", process);
        self.hindered(process, Duration::MAX);
        self.change(process, |process| process.runtime_ended = true);
    }

    pub fn stop_server(&self, length: Duration) {
        self.fault("server_stalls");
        let until = self.elapsed() + length;
        self.state().stopped_until = until;
    }

    pub fn leave_behind(&self, node: usize, client: &str, length: Duration) {
        self.fault_of("clients_behind", client);
        let until = self.elapsed() + length;
        let mut state = self.state();
        state.behind.insert((node, client.to_owned()), until);
        state.checker.connected(node, client, false);
    }

    /// The server may not answer its renewals until then.
    fn hindered(&self, client: &str, until: Duration) {
        self.state().checker.hinder(client, until);
    }

    pub fn refuses(&self, client: &str, script: &'static str, why: &'static str, length: Duration) {
        self.fault_of("verbs_refused", client);
        let until = self.elapsed() + length;
        self.state().refusing.push(Refusing { client: client.to_owned(), script, why, until });
    }

    /// From now on.
    pub fn may_not(&self, client: &str, command: &'static str) {
        self.state().lacking.push(Lacking {
            client: client.to_owned(),
            node: None,
            command,
            when: Duration::ZERO..Duration::MAX,
        });
    }

    pub fn is_overloaded(&self, client: &str) -> bool {
        self.state().checker.overloaded.contains(client)
    }

    pub fn is_paused(&self, process: &str) -> bool {
        self.state().process(process).life == Life::Paused
    }

    pub fn has_runtime(&self, process: &str) -> bool {
        !self.state().process(process).runtime_ended
    }

    /// Whether a client closes now, with calls under way, in runs that have this.
    pub fn closes_one(&self) -> bool {
        self.state().closes.as_mut().is_some_and(|random| random.u8(..6) == 0)
    }

    pub fn closes(&self, process: &str) {
        self.fault_of("closes", process);
        self.hindered(process, Duration::MAX);
        self.state().process(process).is_closed = true;
    }

    pub fn is_closed(&self, process: &str) -> bool {
        self.state().process(process).is_closed
    }
}

impl State {
    /// How often a server got an earlier state back.
    pub fn restored(&self) -> u64 {
        let kinds = ["failovers", "failovers_unnoticed", "nodes_replaced", "slots_moved_back", "masters_put_back"];
        kinds.iter().filter_map(|kind| self.faults.get(kind)).sum()
    }

    pub fn is_settling(&self, now: Duration) -> bool {
        if let Some(script) = &self.script {
            return !script.settled;
        }
        !self.calm || now < self.calm_since + SETTLING
    }

    pub fn count(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    fn step(&mut self, now: Duration) {
        if self.instant.0 != now {
            self.instant = (now, 0);
        }
        self.instant.1 += 1;
        if self.instant.1 == MOST_STEPS {
            self.checker.report("P10", "a busy loop".to_owned());
            // Ends the loop, no matter which process runs it.
            self.processes.values_mut().for_each(|process| process.life = Life::Dead);
        }
    }

    fn process(&mut self, name: &str) -> &mut Process {
        let new = || Process {
            life: Life::Runs,
            runtime_ended: false,
            is_delayed: false,
            is_closed: false,
            wakers: BTreeMap::new(),
        };
        self.processes.entry(name.to_owned()).or_insert_with(new)
    }

    pub fn note(&mut self, at: Duration, what: &'static str, who: usize, more: impl FnOnce() -> String) {
        (at.as_micros() as u64, what, who).hash(&mut self.trace);
        if self.timeline.is_some() {
            let more = more();
            let line = format!("{:>9.3} s  {what:<12} {}", at.as_secs_f64(), self.readable(&more));
            if let Some(timeline) = &mut self.timeline {
                timeline.push(line);
            }
        }
    }

    /// Shortens ids and tokens: clients become P1, P2 and so on, and tokens count from the start of the run.
    fn readable(&mut self, text: &str) -> String {
        let mut words = Vec::new();
        for word in text.split(' ') {
            let bare = word.trim_end_matches([',', ':']);
            let parts = bare.split(':').map(|part| self.name(part));
            words.push(parts.collect::<Vec<_>>().join(":") + &word[bare.len()..]);
        }
        words.join(" ")
    }

    fn name(&mut self, part: &str) -> String {
        let origin = self.origin.unwrap_or(0);
        match part.parse::<i64>() {
            _ if part.len() == 32 => {
                let next = format!("P{}", self.names.len() + 1);
                self.names.entry(part.to_owned()).or_insert(next).clone()
            }
            Ok(token) if part.len() == 16 => format!("T{}", token - origin),
            _ => part.to_owned(),
        }
    }

    fn happens(&mut self, probability: f64, kind: &'static str) -> bool {
        let happens = !self.calm && self.rng.f64() < probability;
        if happens {
            self.count(kind);
        }
        happens
    }

    /// How long a message takes if nothing goes wrong.
    fn usual_delay(&self) -> Duration {
        Duration::from_millis(self.rates.calm_delay)
    }

    /// The delay of one message: mostly short, sometimes longer than operation_timeout or a lease.
    fn delay(&mut self, slow: f64, late: f64, kind: &'static str) -> Duration {
        if self.calm {
            return self.usual_delay();
        }
        let most = if self.happens(late, kind) {
            LATEST.as_millis() as u64
        } else if self.happens(slow, kind) {
            300
        } else {
            3
        };
        Duration::from_millis(self.rng.u64(..=most))
    }

    /// The scenario's fate for this message, if it has one.
    fn fate(&mut self, client: &str, script: &str) -> Option<Fate> {
        let mishaps = &mut self.script.as_mut()?.mishaps;
        let index = mishaps.iter().position(|mishap| mishap.client == client && mishap.script == script)?;
        Some(mishaps.remove(index).fate)
    }

    pub fn meets(&mut self, mishap: Mishap) {
        self.script.get_or_insert_default().mishaps.push(mishap);
    }

    /// Whether every mishap has happened.
    pub fn has_met_all(&self) -> bool {
        self.script.as_ref().is_none_or(|script| script.mishaps.is_empty())
    }

    /// Names the client in the timeline.
    pub fn call(&mut self, client: &str, name: &str) {
        self.names.insert(client.to_owned(), name.to_owned());
    }

    /// Notes that a request is lost, or takes long.
    fn hinders(&mut self, client: &str, script: &str, now: Duration, copies: &[Delivery]) {
        let took = |copy: &Delivery| copy.reply.map(|reply| reply + copy.request);
        let took = copies.iter().filter_map(took).min();
        let is_answered = took.is_some_and(|took| took < SLOW);
        let is_alone = if is_answered { self.refused.remove(client) } else { self.refused.contains(client) };
        // With few requests in flight, or one, each may keep a renewal waiting. And a fixed lease counts from before
        // its acquire.
        let begins_late = script == "acquire" && took.is_some();
        if script != "renew" && !begins_late && !is_alone && !self.checker.overloaded.contains(client) {
            return;
        }
        match took {
            Some(took) if took < SLOW => {}
            took => self.checker.hinder(client, now + took.unwrap_or(TRIED_AGAIN).min(TRIED_AGAIN)),
        }
    }

    fn is_refused(&mut self, client: &str, now: Duration) {
        self.refused.insert(client.to_owned());
        self.checker.hinder(client, now + TRIED_AGAIN);
    }

    /// The server refuses some connected clients one kind of request, most often renewals. Not in runs with copies: see
    /// `FaultRates`.
    fn refuses_a_verb(&mut self) -> Option<(&'static str, &'static str, Duration)> {
        if self.calm || self.rates.duplicated > 0.0 || self.later.bool() {
            return None;
        }
        let script = ["renew", "renew", "renew", "renew", "poll", "release", "leave", "acquire"][self.later.usize(..8)];
        let why = REFUSALS[self.later.usize(..REFUSALS.len())];
        Some((script, why, Duration::from_millis(self.later.u64(1000..5000))))
    }

    /// Some connected clients lose a right for a while, some in the middle of their work.
    pub fn loses_a_right(&mut self, client: &str, node: usize, now: Duration) {
        if self.calm || self.rates.duplicated > 0.0 {
            return;
        }
        let Some(random) = &mut self.rights else { return };
        if random.bool() {
            return;
        }
        let command = RIGHTS[random.usize(..RIGHTS.len())];
        let from = now + Duration::from_millis(random.u64(..6000));
        let length = if random.bool() { 300 } else { 4000 };
        let until = from + Duration::from_millis(random.u64(..length));
        self.lacking.push(Lacking { client: client.to_owned(), node: Some(node), command, when: from..until });
        self.count("rights_lost");
    }

    /// A command that the client may not run now: `EVALSHA`, or one of the others.
    fn lacks(&self, client: &str, node: usize, now: Duration, evalsha: bool) -> Option<&'static str> {
        let is_meant = |it: &&Lacking| {
            it.client == client
                && it.node.is_none_or(|at| at == node)
                && it.when.contains(&now)
                && (it.command == EVALSHA) == evalsha
        };
        self.lacking.iter().find(is_meant).map(|it| it.command)
    }

    fn delivery(&mut self) -> Delivery {
        let FaultRates { slow, late, lost_after, .. } = self.rates;
        let request = self.delay(slow, late, "requests_delayed");
        let reply = self.delay(slow, late, "replies_delayed");
        let lost = self.happens(lost_after, "replies_lost");
        Delivery { request, reply: (!lost).then_some(reply) }
    }
}

impl Around {
    fn copies(&self, client: &str, script: &str, now: Duration) -> Vec<Delivery> {
        let mut state = self.state();
        if state.behind.get(&(self.node, client.to_owned())).is_some_and(|until| now < *until) {
            return Vec::new();
        }
        let stopped = state.stopped_until.saturating_sub(now);
        let fate = state.fate(client, script);
        if let Some(fate) = fate.filter(|fate| *fate != Fate::Sent) {
            let usual = state.usual_delay();
            let (request, reply) = match fate {
                Fate::RequestTakes(delay) => (delay, Some(usual)),
                Fate::ReplyTakes(delay) => (usual, Some(delay)),
                Fate::AtOnce => (Duration::ZERO, Some(Duration::ZERO)),
                Fate::RefusedInside(number) => {
                    state.refused_inside = Some((client.to_owned(), script.to_owned(), number));
                    (usual, Some(usual))
                }
                // A push does not belong to a request.
                Fate::ReplyLost | Fate::PushTakes(_) | Fate::Sent => (usual, None),
            };
            return vec![Delivery { request, reply }];
        }
        let FaultRates { lost_before, duplicated, .. } = state.rates;
        if state.happens(lost_before, "requests_lost") {
            return Vec::new();
        }
        let copies = 1 + usize::from(state.happens(duplicated, "requests_duplicated"));
        let copies = (0..copies).map(|_| state.delivery());
        copies.map(|copy| Delivery { request: copy.request.max(stopped), ..copy }).collect()
    }
}

impl Faults for Around {
    fn request(&self, client: &str, script: &str) -> Vec<Delivery> {
        let now = self.elapsed();
        let copies = self.copies(client, script, now);
        self.state().hinders(client, script, now, &copies);
        copies
    }

    fn behind(&self) -> Vec<String> {
        let now = self.elapsed();
        let state = self.state();
        let here = state.behind.iter().filter(|((node, _), until)| *node == self.node && now < **until);
        here.map(|((_, client), _)| client.clone()).collect()
    }

    fn push(&self, client: &str) -> Vec<Duration> {
        let mut state = self.state();
        if let Some(Fate::PushTakes(delay)) = state.fate(client, PUSH) {
            return vec![delay];
        }
        let FaultRates { push_lost, push_late, push_duplicated, .. } = state.rates;
        if state.happens(push_lost, "pushes_lost") {
            return Vec::new();
        }
        let copies = 1 + usize::from(state.happens(push_duplicated, "pushes_duplicated"));
        (0..copies).map(|_| state.delay(push_late, push_late / 2.0, "pushes_delayed")).collect()
    }

    fn refuse(&self, client: &str, script: &str) -> Option<&'static str> {
        // The server in this process sends it nothing that could be lost.
        if script == "boot" {
            return None;
        }
        let now = self.elapsed();
        let mut state = self.state();
        let is_of = |it: &&Refusing| it.client == client && it.script == script && now < it.until;
        let why = state.refusing.iter().find(is_of).map(|it| it.why);
        if let Some(why) = why.or_else(|| state.lacks(client, self.node, now, true).map(|_| NO_EVALSHA)) {
            state.note(now, "refused", 0, || format!("{script} from {client}: {why}"));
            state.is_refused(client, now);
            return Some(why);
        }
        let refused = state.rates.refused;
        if !state.happens(refused, "requests_refused") {
            return None;
        }
        state.is_refused(client, now);
        let which = state.rng.usize(..REFUSALS.len());
        Some(REFUSALS[which])
    }

    fn in_flight(&self, client: &str) -> usize {
        let mut state = self.state();
        if !state.happens(0.2, "overloaded_clients") {
            return 256;
        }
        state.checker.overloaded.insert(client.to_owned());
        1 + state.rng.usize(..3)
    }

    fn refuse_inside(&self, client: &str, script: &str) -> Option<RefusedCommands> {
        if script == "boot" {
            return None;
        }
        let now = self.elapsed();
        let mut state = self.state();
        if let Some(command) = state.lacks(client, self.node, now, false) {
            if state.rights.is_some() {
                state.meddled = true;
                state.is_refused(client, now);
            }
            return Some(RefusedCommands::Named(command));
        }
        let meant = state.refused_inside.take_if(|(of, by, _)| of == client && by == script);
        if let Some((_, _, number)) = meant {
            state.is_refused(client, now);
            return Some(RefusedCommands::After(number));
        }
        let refused = state.rates.refused / 3.0;
        let happens = state.happens(refused, "refused_inside_scripts");
        state.meddled = happens;
        if happens {
            state.is_refused(client, now);
        }
        happens.then(|| RefusedCommands::After(state.rng.u32(..12)))
    }

    fn reconnect(&self, _client: &str) -> Duration {
        let mut state = self.state();
        let most = if state.calm { 1 } else { 400 };
        Duration::from_millis(state.rng.u64(..most))
    }

    fn server_time(&self, elapsed: Duration) -> Duration {
        self.common_time(elapsed) + Duration::from_millis(self.ahead(self.node) as u64)
    }

    fn spawn(&self, client: &str, task: Task) -> Task {
        self.wrap(client, task, true)
    }

    fn connected(&self, client: &str, on: bool) {
        self.note(if on { "connected" } else { "disconnected" }, 0, || client.to_owned());
        let (at, now) = (self.clock_of(self.node), self.elapsed());
        let mut state = self.state();
        state.checker.hinder(client, now + SLOW);
        state.checker.connected(self.node, client, on);
        if on {
            state.behind.remove(&(self.node, client.to_owned()));
            let refuses = state.refuses_a_verb();
            state.loses_a_right(client, self.node, now);
            drop(state);
            if let Some((script, why, length)) = refuses {
                self.refuses(client, script, why, length);
            }
        } else {
            state.checker.gone(self.node, client, at);
        }
    }

    fn ran(&self, ran: &Ran<'_>) {
        let at = self.elapsed();
        let (origin, ahead) = (ran.at - self.server_time(at).as_micros() as i64, self.ahead(self.node));
        // Before this locks the state: the server asks for its time. The record of boot.lua is not a lock.
        let keys = if ran.script == "boot" { Keys::default() } else { self.keys_of(&ran.keys[0]) };
        let mut state = self.state();
        state.origin.get_or_insert(origin);
        let status = ran.reply.as_ref().map_or(0, |reply| reply[0].len() + reply.len());
        state.checker.now = at;
        let is_taken = ran.script == "acquire" && ran.reply.as_ref().is_ok_and(|reply| reply[0] == "held");
        if is_taken || ran.published.iter().any(|published| published.message.starts_with("grant ")) {
            self.taken.notify_waiters();
        }
        state.note(at, ran.script, status, || describe(ran));
        for published in ran.published {
            let what = if published.received { "  publishes" } else { "  in vain" };
            state.note(at, what, 0, || published.message.clone());
        }
        let is_replaced = state.script.as_ref().is_some_and(|script| script.replaced == Some(self.node));
        if ran.script == "boot" || is_replaced {
            return;
        }
        state.checker.settled = !state.is_settling(at);
        let meddled = std::mem::take(&mut state.meddled);
        let before = state.checker.violations.len();
        state.checker.ran(ran, &keys, meddled, self.node, ahead);
        let found = state.checker.violations[before..].to_vec();
        for violation in found {
            state.note(at, "VIOLATION", 0, || violation);
        }
    }

    fn redirected(&self, redirected: &Redirected<'_>) {
        let Redirected { client, script, keys, args, sent, error, .. } = redirected;
        self.note("elsewhere", self.node, || format!("{script} from {client} on {}: {error}", keys[0]));
        let mut state = self.state();
        state.count(match code_of(error) {
            "MOVED" => "redirects_moved",
            "ASK" => "redirects_ask",
            _ => "redirects_try_again",
        });
        state.checker.redirected(client, &args[0], *sent);
        if *script == "renew" && code_of(error) == "ASK" {
            self.sent_on.notify_waiters();
        }
    }
}

/// The code of an error.
fn code_of(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// The request and its reply in one line, without the client's settings.
pub fn describe(ran: &Ran<'_>) -> String {
    let request = match ran.script {
        "acquire" => ran.args[1..].to_vec(),
        "poll" => [&ran.args[2..3], &ran.args[4..]].concat(),
        "leave" => ran.args[1..5].to_vec(),
        "release" => [&ran.args[1..3], &ran.args[4..]].concat(),
        "renew" | "raise" => ran.args[1..].to_vec(),
        _ => Vec::new(),
    };
    let reply = match &ran.reply {
        Ok(reply) => [&reply[..1], &reply[4.min(reply.len())..]].concat().join(" "),
        Err(refusal) => refusal.clone(),
    };
    format!("{} from {} on {} -> {reply}", request.join(" "), ran.client, ran.keys[0])
}

/// A task of a process. It pauses and dies with the process.
struct ProcessTask {
    world: Weak<World>,
    process: String,
    number: u64,
    /// It ends with its client's runtime.
    background: bool,
    task: Option<Task>,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(world) = this.world.upgrade() else { return Poll::Ready(()) };
        let life = {
            let now = world.elapsed();
            let mut state = world.state();
            state.step(now);
            let process = state.process(&this.process);
            process.wakers.insert(this.number, context.waker().clone());
            match process.life {
                Life::Dead => Life::Dead,
                _ if this.background && process.runtime_ended => Life::Dead,
                Life::Runs if this.background && process.is_delayed => Life::Paused,
                life => life,
            }
        };
        let outcome = match life {
            Life::Runs => this.task.as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(context)),
            Life::Paused => Poll::Pending,
            Life::Dead => Poll::Ready(()),
        };
        if outcome.is_ready() {
            this.task = None;
            world.state().process(&this.process).wakers.remove(&this.number);
        }
        outcome
    }
}
