//! One run: processes with their actors, a phase with faults, then a calm phase without, in which all work must
//! finish.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Snapshot, command};
use fairlock::{EmbeddedServer, LockClient, LockClientBuilder};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::actor::Actor;
use crate::checker::{Failover, Remembered};
use crate::closing::close;
use crate::cluster::Cluster;
use crate::keys::{BOOT, frozen_until, key_of, name_of};
use crate::outcome::Outcome;
use crate::quorum;
use crate::seed::Topology;
use crate::shared;
use crate::world::{Around, LONGEST_LEASE, QUEUES_LIVE, SETTLING, World};

/// How long the phase with faults lasts; up to six times that if too little happened. A frozen server grants nothing for a
/// while.
const FAULTY: Duration = Duration::from_secs(60);
/// In the calm phase no actor waits longer than this (P9).
const LONGEST_WAIT: Duration = Duration::from_secs(180);
/// How long the actors go on in the calm phase, once no late message is left.
const CALM: Duration = Duration::from_secs(6);
/// In the calm phase no actor waits longer than this while the others go on.
const LONGEST_CALM_WAIT: Duration = Duration::from_secs(15);
/// How often the server fails over in the calm phase, and the longest that it is away then: less than any
/// operation time-out.
const CALM_FAILOVERS: u32 = 3;
const SHORT_OUTAGE: Duration = Duration::from_millis(100);
/// A run with less than this proves nothing.
const LEAST_SECTIONS: u64 = 60;
const LEAST_FAULTS: u64 = 100;
const LEAST_EXPIRIES: u64 = 2;

pub fn run(seed: u64, verbose: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread");
    simulation::begin_run();
    runtime.block_on(async {
        let world = World::new(seed, verbose);
        if Topology::of(seed) == Topology::Quorum {
            return quorum::run(&world).await;
        }
        if Topology::of(seed) == Topology::Shared {
            return shared::run(&world).await;
        }
        let mut run = Run::new(&world);
        run.play().await;
        run.outcome()
    })
}

/// P3: a live ticket has an entry in the list, so the sorted set never exists without the list.
async fn watch_queues(world: Arc<World>, nodes: Vec<EmbeddedServer>) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let keys: Vec<_> = nodes.iter().flat_map(EmbeddedServer::keys).collect();
        for name in keys.iter().filter_map(|key| key.strip_suffix(":deadlines")) {
            let is_exact = world.state().checker.is_exact(name);
            if is_exact && !keys.contains(&format!("{name}:queue")) {
                world.state().checker.report("P3", format!("{name} has living waiters and no queue"));
            }
        }
    }
}

/// P5: nothing that was released stays.
pub async fn watch_holders(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let server_ms = world.server_ms();
        world.state().checker.check_unclaimed(server_ms);
    }
}

/// P8: no hold is lost without a cause, and none that is lost is relied on.
pub async fn watch_claims(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let now = world.elapsed();
        world.state().checker.check_causes(now);
    }
}

/// Flushes of other databases. They are announced as flushes of ours are, and change nothing: in the calm phase too.
async fn flush_elsewhere(world: Arc<World>, nodes: Vec<EmbeddedServer>) {
    loop {
        sleep(Duration::from_millis(world.later(4000))).await;
        hand_in_hand(&world).await;
        let node = world.later(nodes.len() as u64) as usize;
        world.fault("flushes_elsewhere");
        nodes[node].tell_of_flush();
    }
}

/// In half of the cases until an actor gets a lock, whose answer or message is under way then, and in some of these
/// until it is about to be renewed first.
async fn hand_in_hand(world: &World) {
    if world.later(2) == 0 {
        let _ = timeout(Duration::from_millis(300), world.taken.notified()).await;
        let most = [0, 60][world.later(2) as usize];
        sleep(Duration::from_millis(world.later(1 + most))).await;
    }
}

/// A process: a client and its actors.
struct Process {
    client: LockClient,
    actors: Vec<JoinHandle<()>>,
}

struct Run {
    world: Arc<World>,
    /// One, or those of a cluster.
    nodes: Vec<EmbeddedServer>,
    cluster: Option<Arc<Cluster>>,
    processes: Vec<Process>,
    /// The processes whose client's runtime has ended, or whose client closes.
    ended: Vec<Process>,
    /// Kept until the run ends: a client that is dropped closes its connections, and a process that dies does not.
    dead: Vec<LockClient>,
    names: usize,
    /// Many of one client wait for one lock, more than one poll verifies.
    is_crowded: bool,
    actors: usize,
}

impl Run {
    fn new(world: &Arc<World>) -> Self {
        let around = |node| Around { world: world.clone(), node };
        let nodes = match world.nodes() {
            1 => vec![simulation::server(around(0))],
            nodes => simulation::cluster((0..nodes).map(around)),
        };
        world.serve(nodes.clone());
        let is_crowded = world.chance(0.2);
        let names = if is_crowded { 1 } else { 1 + world.below(3) as usize };
        let (processes, ended, dead) = (Vec::new(), Vec::new(), Vec::new());
        let cluster = (nodes.len() > 1).then(|| Cluster::new(world, &nodes, names));
        let run = Self { world: world.clone(), nodes, cluster, processes, ended, dead, names, is_crowded, actors: 0 };
        // It has just been started.
        run.must_freeze();
        run
    }

    async fn play(&mut self) {
        let processes = 2 + self.world.below(3);
        for _ in 0..processes {
            self.start_process();
        }
        let watching = tokio::spawn(watch_queues(self.world.clone(), self.nodes.clone()));
        let flushing = tokio::spawn(flush_elsewhere(self.world.clone(), self.nodes.clone()));
        let watching_claims = tokio::spawn(watch_claims(self.world.clone()));
        while self.world.state().checker.violations.is_empty() && !self.has_seen_enough() {
            self.cause_fault().await;
        }
        watching.abort();
        if self.world.state().checker.violations.is_empty() {
            self.come_to_rest([flushing, watching_claims]).await;
        }
    }

    /// A run with too few events goes on for a while.
    fn has_seen_enough(&self) -> bool {
        let elapsed = self.world.elapsed();
        elapsed > 6 * FAULTY || elapsed > FAULTY && self.too_little_happened().is_none()
    }

    /// What is wrong with a run in which too little happened to prove anything.
    fn too_little_happened(&self) -> Option<String> {
        let state = self.world.state();
        let (sections, expiries, faults) =
            (state.checker.sections, state.checker.expiries, state.faults.values().sum::<u64>());
        // A freeze outlasts all leases, so in a strict run few holds are seen to expire.
        let least_expiries = if state.strict { 0 } else { LEAST_EXPIRIES };
        let too_little = sections < LEAST_SECTIONS || faults < LEAST_FAULTS || expiries < least_expiries;
        too_little.then(|| format!("{sections} sections, {faults} faults and {expiries} expiries prove nothing"))
    }

    fn start_process(&mut self) {
        let (builder, shortest_lease, lease) = self.settings();
        let max_hold = self.world.max_hold(lease);
        let builder = max_hold.into_iter().fold(builder, LockClientBuilder::max_hold);
        // The server is down: another process may start later.
        let Some(client) = self.connect(builder) else { return };
        let mut actors = 1 + self.world.below(4) as usize;
        let has_crowd = self.processes.iter().any(|process| process.actors.len() >= 18);
        if self.is_crowded && !has_crowd {
            self.world.fault("crowds");
            actors = 18 + self.world.below(32) as usize;
        }
        let mut handles = Vec::new();
        for _ in 0..actors {
            self.actors += 1;
            let actor = Actor {
                world: self.world.clone(),
                client: client.clone(),
                number: self.actors,
                names: self.names,
                shortest_lease,
                lease,
                max_hold,
            };
            handles.push(tokio::spawn(self.world.in_process(client.id(), Box::pin(actor.live()))));
        }
        self.processes.push(Process { client, actors: handles });
    }

    fn connect(&self, builder: LockClientBuilder) -> Option<LockClient> {
        let Some(cluster) = &self.cluster else { return builder.embedded(&self.nodes[0]).ok() };
        let (client, looks) = simulation::connect(builder, &self.nodes, self.node()).ok()?;
        let watch = cluster.clone().watch(looks);
        tokio::spawn(self.world.in_process(client.id(), Box::pin(watch)));
        Some(client)
    }

    /// Any of them.
    fn node(&self) -> &EmbeddedServer {
        &self.nodes[self.any()]
    }

    fn any(&self) -> usize {
        self.cluster.as_ref().map_or(0, |cluster| cluster.any())
    }

    /// Random ones, so that clients with different settings use the same lock.
    fn settings(&self) -> (LockClientBuilder, Duration, Duration) {
        let ms = |from: u64, to: u64| Duration::from_millis(from + self.world.below(to - from));
        let (timeout, poll) = (ms(200, 1000), ms(200, 700));
        let shortest_lease = timeout.max(poll);
        // Sometimes as short as allowed. Then a push arrives close to the last moment at which its grant can be
        // trusted (R7).
        let grant = poll + if self.world.chance(0.3) { Duration::ZERO } else { ms(0, 800) };
        let builder = LockClient::builder()
            .label("simulated")
            // With a queue that can be full, acquire clears dead tickets early, which is code of its own.
            .max_waiters(if self.world.chance(if self.is_crowded { 0.1 } else { 0.3 }) {
                2 + self.world.below(8) as u32
            } else {
                65_536
            })
            .operation_timeout(timeout)
            .poll_interval(poll)
            .grant_ttl(grant)
            .waiter_ttl(grant.max(3 * poll) + if self.world.chance(0.3) { ms(0, 4000) } else { ms(0, 500) });
        let lease = shortest_lease + ms(0, 3000);
        let builder = builder.lease(lease);
        let is_strict = self.world.state().strict;
        // Not alike: the longest freeze counts.
        let builder = if is_strict { builder.strict_restart(LONGEST_LEASE + ms(0, 2000)) } else { builder };
        (builder, shortest_lease, lease)
    }

    /// Waits a little, then causes one fault.
    async fn cause_fault(&mut self) {
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        let victim = self.world.below(self.processes.len().max(1) as u64) as usize;
        if let Some(cluster) = self.cluster.clone().filter(|_| self.world.chance(0.4)) {
            match self.world.below(8) {
                0 => cluster.hand_over(),
                _ => drop(tokio::spawn(cluster.move_a_slot())),
            }
        }
        let fault = self.world.below(20);
        if matches!(fault, 9..12 | 17) && self.is_frozen() && self.world.chance(0.8) {
            return;
        }
        if self.world.closes_one() {
            self.close(victim);
        }
        match fault {
            0..3 => self.pause(self.processes.get(victim)),
            // All processes at once.
            12 => self.pause(&self.processes),
            13 => self.end_runtime(victim),
            3..6 => self.kill(victim),
            6..9 => self.disconnect(victim),
            9 => self.restart_server(false).await,
            10 => self.restart_server(true).await,
            14 => self.silence(victim),
            15..17 => self.delete_a_key(),
            17 => self.fail_over().await,
            18 => self.stop_server(),
            19 => self.leave_behind(victim),
            _ => self.flush().await,
        }
        if self.processes.len() < 2 || self.world.chance(0.1) {
            self.world.fault("restarts");
            self.start_process();
        }
    }

    /// Another restart would freeze it for even longer, and a run without grants proves nothing.
    fn is_frozen(&self) -> bool {
        frozen_until(&self.nodes[0]) > self.world.server_ms()
    }

    fn pause<'a>(&self, victims: impl IntoIterator<Item = &'a Process>) {
        let world = self.world.clone();
        let victims: Vec<_> = victims.into_iter().map(|victim| victim.client.id().to_owned()).collect();
        // Half of the pauses may be long enough to lose every hold.
        let most = if world.chance(0.5) { 7000 } else { 300 };
        let length = Duration::from_millis(world.below(most));
        tokio::spawn(async move {
            victims.iter().for_each(|victim| world.pause(victim));
            sleep(length).await;
            victims.iter().for_each(|victim| world.go_on(victim));
        });
    }

    /// Not heard for longer than a waiter lives, then back. In half of the cases no message reaches it.
    fn silence(&self, victim: usize) {
        let Some(victim) = self.processes.get(victim) else { return };
        self.world.fault("silences");
        let (world, id) = (self.world.clone(), victim.client.id().to_owned());
        if world.chance(0.5) {
            self.nodes.iter().for_each(|node| node.disconnect(&id));
        }
        tokio::spawn(async move {
            world.pause(&id);
            sleep(Duration::from_millis(2000 + world.below(5000))).await;
            world.go_on(&id);
        });
    }

    /// All that is sent to it arrives when it goes on.
    fn stop_server(&self) {
        // As often for less as for more than a waiter lives.
        let most = if self.world.chance(0.5) { 1000 } else { 9000 };
        self.world.stop_server(Duration::from_millis(self.world.below(most)));
    }

    /// After a failover it is still subscribed to the server before, which is a replica now and repeats what is published.
    fn leave_behind(&self, victim: usize) {
        let Some(victim) = self.processes.get(victim) else { return };
        let (node, id) = (self.any(), victim.client.id().to_owned());
        let length = Duration::from_millis(self.world.below(3000));
        self.world.leave_behind(node, &id, length);
        let server = self.nodes[node].clone();
        tokio::spawn(async move {
            sleep(length).await;
            server.disconnect(&id);
        });
    }

    /// By hand.
    fn delete_a_key(&self) {
        let part = ["", ":queue", ":deadlines"][self.world.below(3) as usize];
        let key = key_of(&format!("lock{}", self.world.below(self.names as u64))) + part;
        self.world.fault("keys_deleted");
        self.world.note("deletes", 0, || key.clone());
        for node in &self.nodes {
            let _ = command(node, &["DEL", &key]);
        }
        let at = self.world.server_ms();
        self.world.state().checker.deleted(&key, at);
    }

    fn kill(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let process = self.processes.swap_remove(victim);
        let id = process.client.id().to_owned();
        self.world.kill(&id);
        self.cut_off(id);
        self.dead.push(process.client);
    }

    /// Its actors go on, each until it is notified of the end.
    fn end_runtime(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let process = self.processes.swap_remove(victim);
        let id = process.client.id().to_owned();
        self.world.end_runtime(&id);
        self.cut_off(id);
        self.ended.push(process);
    }

    /// Its actors go on, each until it is told of the end.
    fn close(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let mut process = self.processes.swap_remove(victim);
        self.world.closes(process.client.id());
        let asked = self.world.state().checker.last_asked.clone();
        let closing = close(self.world.clone(), process.client.clone(), self.nodes.clone(), vec![asked]);
        process.actors.push(tokio::spawn(self.world.in_process(process.client.id(), Box::pin(closing))));
        self.ended.push(process);
    }

    /// The server hears now or later that the client is gone.
    fn cut_off(&self, id: String) {
        if self.world.chance(0.6) {
            return self.nodes.iter().for_each(|node| node.disconnect(&id));
        }
        // The machine is gone, but to the server its connection is still open (P6).
        self.world.fault("half_open_deaths");
        let (world, nodes) = (self.world.clone(), self.nodes.clone());
        tokio::spawn(async move {
            world.sleep_up_to(Duration::from_secs(8)).await;
            nodes.iter().for_each(|node| node.disconnect(&id));
        });
    }

    fn disconnect(&self, victim: usize) {
        if let Some(process) = self.processes.get(victim) {
            self.world.fault_of("disconnects", process.client.id());
            self.node().disconnect(process.client.id());
        }
    }

    async fn restart_server(&self, loses_data: bool) {
        let node = self.any();
        let loses_data = loses_data && self.may_forget(node, node);
        self.world.fault(if loses_data { "server_restarts_without_data" } else { "server_restarts" });
        self.nodes[node].shut_down();
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        if loses_data {
            self.lose_data(node);
        }
        self.must_freeze();
        self.nodes[node].start_up();
        if self.world.state().strict && !loses_data && self.world.chance(0.3) {
            // Once more, while the freeze of those with the longest leases goes on.
            self.world.sleep_up_to(Duration::from_millis(1000)).await;
            Box::pin(self.restart_server(false)).await;
        }
    }

    /// Not of half a slot.
    fn snapshot(&self, node: usize) -> Option<(Snapshot, Remembered)> {
        if self.cluster.as_ref().is_some_and(|cluster| cluster.is_moving()) {
            return None;
        }
        let snapshot = self.nodes[node].snapshot()?;
        self.world.note("snapshot", node, String::new);
        Some((snapshot, self.world.state().checker.remember()))
    }

    /// Another server takes over that is behind: it has the state of a while ago. Meanwhile anything may happen.
    async fn fail_over(&mut self) {
        let node = self.any();
        let Some((snapshot, remembered)) = self.snapshot(node) else { return };
        for _ in 0..self.world.below(4) {
            Box::pin(self.cause_fault()).await;
        }
        let sleeper = self.processes.get(self.world.below(4) as usize).map(|process| process.client.id().to_owned());
        let sleeper = sleeper.filter(|_| self.world.chance(0.5));
        sleeper.iter().for_each(|id| self.world.pause(id));
        // As a rule a replica is behind by little, and then leases are not over yet. A client that sleeps meanwhile
        // finally reads the grants of the server before, which the new one does not have any more (R15).
        let most = if sleeper.is_some() { 1000 } else { 300 };
        self.world.sleep_up_to(Duration::from_millis(most)).await;
        let outage = if self.world.chance(0.5) { SHORT_OUTAGE } else { Duration::from_millis(1500) };
        self.take_over(node, snapshot, remembered, outage).await;
        self.world.sleep_up_to(Duration::from_millis(100)).await;
        sleeper.iter().for_each(|id| self.world.go_on(id));
    }

    /// Whether a node may lose data, and another one take over. Half of a slot cannot be lost: the correct state would
    /// be unknown, and an operator has to mend it.
    fn may_forget(&self, node: usize, next: usize) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| !cluster.is_moving() && cluster.may_forget(node, next))
    }

    async fn take_over(&self, node: usize, snapshot: Snapshot, then: Remembered, longest_outage: Duration) {
        let next = self.cluster.as_ref().map_or(node, |cluster| cluster.next_of(node));
        if !self.may_forget(node, next) {
            return;
        }
        self.world.fault("failovers");
        if let Some(cluster) = self.cluster.as_ref().filter(|_| next != node) {
            return cluster.replace((node, next), (snapshot, then), longest_outage, || {}).await;
        }
        if self.world.state().strict && self.world.chance(0.3) {
            return self.demote(snapshot, then);
        }
        self.world.goes_down(longest_outage);
        self.nodes[node].shut_down();
        // Never at once: by its clock the new server gives greater tokens than the old one has given.
        sleep(Duration::from_millis(1)).await;
        self.world.sleep_up_to(longest_outage).await;
        match &self.cluster {
            Some(cluster) => cluster.put_back(node, snapshot),
            None => self.nodes[node].restore(snapshot),
        }
        let (at, strict) = (self.world.server_ms(), self.world.state().strict);
        if strict && self.world.chance(0.5) {
            // It is the primary again after another one, whose grants it does not have.
            self.world.fault("failovers_unnoticed");
            self.nodes[node].was_replaced();
        }
        let failover = Failover { then, at, strict, node, elsewhere: false };
        self.world.state().checker.failed_over(failover);
        self.must_freeze();
        self.nodes[node].start_up();
    }

    fn demote(&self, snapshot: Snapshot, then: Remembered) {
        self.world.fault("demotions");
        self.nodes[0].was_demoted(snapshot);
        let at = self.world.server_ms();
        self.world.state().checker.demoted(then, at);
        self.must_freeze();
    }

    async fn flush(&self) {
        let node = self.any();
        hand_in_hand(&self.world).await;
        if !self.may_forget(node, node) {
            return;
        }
        self.world.fault("flushes");
        self.lose_data(node);
        self.must_freeze();
    }

    fn must_freeze(&self) {
        let now = self.world.server_ms();
        let mut state = self.world.state();
        if state.strict {
            state.count("strict_restarts");
            state.checker.must_freeze(now + LONGEST_LEASE.as_millis() as i64);
        }
    }

    fn lose_data(&self, node: usize) {
        self.nodes[node].flush();
        let at = self.world.server_ms();
        let mut state = self.world.state();
        let strict = state.strict;
        state.flushes += 1;
        state.checker.flushed(strict, node, at);
    }

    /// The calm phase: without faults every wait must end (P9) and nothing may be left behind (P10).
    async fn come_to_rest(&mut self, others: [JoinHandle<()>; 2]) {
        self.world.be_calm();
        for process in &self.processes {
            self.world.go_on(process.client.id());
        }
        // Once the last late messages have arrived, everything must work again.
        sleep(SETTLING).await;
        let watching = tokio::spawn(watch_holders(self.world.clone()));
        // In a strict run each of them freezes the server.
        let failovers = if self.world.state().strict { 1 } else { CALM_FAILOVERS };
        for _ in 0..failovers {
            if let Some(cluster) = &self.cluster {
                self.move_what_is_held(cluster).await;
                self.bring_back_a_ghost(cluster).await;
            }
            self.fail_over_in_calm().await;
        }
        sleep(CALM).await;
        self.nobody_waits_long();
        self.world.state().ending = true;
        self.world.wakes.notify_waiters();
        watching.abort();
        others.iter().for_each(JoinHandle::abort);
        self.end_those_that_have_ended().await;
        let processes = std::mem::take(&mut self.processes);
        for Process { client, actors } in processes {
            for actor in actors {
                match timeout(LONGEST_WAIT, actor).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return self.violated("P10", format!("an actor ended with {error}")),
                    Err(_) => return self.violated("P9", format!("an actor of {} waits without end", client.id())),
                }
            }
            if let Err(error) = client.close().await {
                self.violated("P10", format!("close of {}: {error}", client.id()));
            }
        }
        sleep(SETTLING + QUEUES_LIVE).await;
        self.nothing_is_left();
    }

    /// A hold outlives the move of its slot, however long that takes.
    async fn move_what_is_held(&self, cluster: &Cluster) {
        let (Some(moves), Some(keeper)) = (cluster.choose(), self.keeper()) else { return };
        keeper.keep(&keeper.client.lock(name_of(&moves.lock)), cluster.move_slot(&moves)).await;
    }

    fn keeper(&self) -> Option<Actor> {
        let (world, client) = (self.world.clone(), self.processes.first()?.client.clone());
        let (shortest_lease, lease) = (Duration::ZERO, LONGEST_LEASE);
        Some(Actor { world, client, number: 0, names: self.names, shortest_lease, lease, max_hold: None })
    }

    /// A hold comes back where no waiter could find it.
    async fn bring_back_a_ghost(&self, cluster: &Cluster) {
        let name = format!("lock{}", self.names);
        let Some(node) = cluster.home(&key_of(&name)) else { return };
        let Some(keeper) = self.keeper() else { return };
        let mut before = None;
        keeper.keep(&keeper.client.lock(name).with_lease(LONGEST_LEASE), async { before = self.snapshot(node) }).await;
        let Some((snapshot, remembered)) = before else { return };
        self.take_over(node, snapshot, remembered, SHORT_OUTAGE).await;
    }

    /// Without any other fault. What it brings back must be gone soon, and nothing else must be lost.
    async fn fail_over_in_calm(&self) {
        self.world.sleep_up_to(Duration::from_secs(3)).await;
        let node = self.any();
        let Some((snapshot, remembered)) = self.snapshot(node) else { return };
        self.world.sleep_up_to(Duration::from_millis(if self.world.chance(0.5) { 300 } else { 3000 })).await;
        self.take_over(node, snapshot, remembered, SHORT_OUTAGE).await;
    }

    /// P9: who lost its place finds out, and the queue moves.
    fn nobody_waits_long(&self) {
        let rested = self.world.state().rested;
        let latest = self.world.elapsed().saturating_sub(LONGEST_CALM_WAIT + rested);
        let waiting = self.world.state().waiting.clone();
        if let Some((actor, since)) = waiting.into_iter().find(|(_, since)| *since < latest) {
            self.violated("P9", format!("actor {actor} waits since {since:?}, and there are no faults"));
        }
    }

    /// Clients whose runtime has ended, or that are closed. Their callers have all been notified: none waits for an answer that
    /// cannot come. Nothing can be released any more, so closing need not wait.
    async fn end_those_that_have_ended(&mut self) {
        for Process { client, actors } in std::mem::take(&mut self.ended) {
            for actor in actors {
                match timeout(LONGEST_WAIT, actor).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        self.violated("P10", format!("an actor of a client that has ended ended with {error}"))
                    }
                    Err(_) => self.violated("P9", format!("an actor of {}, which has ended, hangs", client.id())),
                }
            }
            if timeout(Duration::from_millis(1), client.close()).await.is_err() {
                self.violated("P10", format!("close of {}, which has ended, waits", client.id()));
            }
        }
    }

    fn nothing_is_left(&self) {
        let stays = |key: &String| key.ends_with("}:token") || key == BOOT && self.world.state().strict;
        let keys = self.nodes.iter().flat_map(EmbeddedServer::keys);
        let keys: Vec<_> = keys.filter(|key| !stays(key)).collect();
        if !keys.is_empty() {
            self.violated("P10", format!("keys are left: {keys:?}"));
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            self.violated("P10", format!("{tasks} tasks are left"));
        }
        if let Some(what) = self.too_little_happened() {
            self.violated("quiet", what);
        }
        let checker = &mut self.world.state().checker;
        checker.check_updates();
        checker.check_leaves_after_losses();
    }

    fn violated(&self, promise: &str, what: String) {
        self.world.state().checker.report(promise, what);
    }

    fn outcome(self) -> Outcome {
        let fingerprint = self.world.fingerprint();
        let (violations, timeline) = (self.world.violations(), self.world.timeline());
        let virtual_time = self.world.elapsed();
        self.world.serve(Vec::new());
        let mut state = self.world.state();
        if state.checker.forgotten_holds > 0 {
            let forgotten = state.checker.forgotten_holds;
            state.faults.insert("forgotten_holds", forgotten);
        }
        Outcome {
            violations,
            grants: state.checker.grants,
            guards: 0,
            handed_over: state.checker.handed_over,
            expiries: state.checker.expiries,
            sections: state.checker.sections,
            ghosts: state.checker.ghosts,
            faults: std::mem::take(&mut state.faults),
            virtual_time,
            fingerprint,
            timeline,
        }
    }
}
