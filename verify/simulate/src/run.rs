//! One run: processes with their actors, a phase with faults, then a calm phase without, in which all work must finish.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Snapshot, command};
use fairlock::{EmbeddedServer, LockClientBuilder};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::actor::Actor;
use crate::checker::{Failover, Remembered};
use crate::cluster::Cluster;
use crate::keys::{BOOT, key_of, name_of};
use crate::outcome::Outcome;
use crate::quorum;
use crate::seed::Topology;
use crate::shared;
use crate::site::{Fault, Process, Settings, Site};
use crate::world::{Around, LONGEST_LEASE, QUEUES_LIVE, SETTLING, World};

/// How long the phase with faults lasts; up to six times that if too little happens. A frozen server grants nothing for
/// a while.
const FAULTY: Duration = Duration::from_secs(60);
/// How long the actors go on in the calm phase, after the last late message.
const CALM: Duration = Duration::from_secs(6);
/// How often the server fails over in the calm phase, and how long it is away then at most: less than any operation
/// time-out.
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

/// P5: no released hold stays.
pub async fn watch_holders(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let server_ms = world.server_ms();
        world.state().checker.check_unclaimed(server_ms);
    }
}

/// P8: no guard loses its hold without a cause, and no actor relies on a lost one.
pub async fn watch_claims(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let now = world.elapsed();
        world.state().checker.check_causes(now);
    }
}

/// In half of the cases, waits until an actor gets a lock, whose answer or message is under way then; in some of these,
/// until just before its first renewal.
async fn hand_in_hand(world: &World) {
    if world.later(2) == 0 {
        let _ = timeout(Duration::from_millis(300), world.taken.notified()).await;
        let most = [0, 60][world.later(2) as usize];
        sleep(Duration::from_millis(world.later(1 + most))).await;
    }
}

struct Run {
    world: Arc<World>,
    site: Site,
    names: usize,
    /// Many callers of one client wait for one lock: more than one poll verifies.
    is_crowded: bool,
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
        let cluster = (nodes.len() > 1).then(|| Cluster::new(world, &nodes, names));
        let run = Self { world: world.clone(), site: Site::new(world, nodes, cluster), names, is_crowded };
        // The server has just started.
        run.site.must_freeze();
        run
    }

    async fn play(&mut self) {
        let processes = 2 + self.world.below(3);
        for _ in 0..processes {
            self.start_process();
        }
        let watching = tokio::spawn(watch_queues(self.world.clone(), self.site.nodes.clone()));
        let watching_claims = tokio::spawn(watch_claims(self.world.clone()));
        while self.site.is_sound() && !self.has_seen_enough() {
            self.cause_fault().await;
        }
        watching.abort();
        if self.site.is_sound() {
            self.come_to_rest(watching_claims).await;
        }
    }

    /// A run with too few events goes on for a while.
    fn has_seen_enough(&self) -> bool {
        let elapsed = self.world.elapsed();
        elapsed > 6 * FAULTY || elapsed > FAULTY && self.too_little_happened().is_none()
    }

    /// The complaint about a run in which too little happened to prove anything.
    fn too_little_happened(&self) -> Option<String> {
        let state = self.world.state();
        let (sections, expiries, faults) =
            (state.checker.sections, state.checker.expiries, state.faults.values().sum::<u64>());
        // A freeze outlasts all leases, so in a strict run the checker sees few holds expire.
        let least_expiries = if state.strict { 0 } else { LEAST_EXPIRIES };
        let too_little = sections < LEAST_SECTIONS || faults < LEAST_FAULTS || expiries < least_expiries;
        too_little.then(|| format!("{sections} sections, {faults} faults and {expiries} expiries prove nothing"))
    }

    fn start_process(&mut self) {
        let site = &self.site;
        let Settings { builder, shortest_lease, lease, .. } = site.settings(if self.is_crowded { 0.1 } else { 0.3 });
        let builder = site.strict(builder);
        let max_hold = self.world.max_hold(lease);
        let builder = max_hold.into_iter().fold(builder, LockClientBuilder::max_hold);
        let Some(client) = site.connect(builder) else { return };
        let mut actors = 1 + self.world.below(4) as usize;
        let has_crowd = site.processes.iter().any(|process| process.actors.len() >= 18);
        if self.is_crowded && !has_crowd {
            self.world.fault("crowds");
            actors = 18 + self.world.below(32) as usize;
        }
        let mut handles = Vec::new();
        for _ in 0..actors {
            let (world, number) = (self.world.clone(), self.site.next_actor());
            let actor =
                Actor { world, client: client.clone(), number, names: self.names, shortest_lease, lease, max_hold };
            handles.push(self.site.spawn(&client, actor.live()));
        }
        self.site.processes.push(Process { client, actors: handles });
    }

    async fn cause_fault(&mut self) {
        let world = self.world.clone();
        match self.site.next_fault(move || vec![world.state().checker.last_asked.clone()]).await {
            Fault::NotNow => return,
            Fault::Caused | Fault::Killed(_) => {}
            Fault::Restart { loses_data } => self.restart_server(loses_data).await,
            Fault::DeleteAKey => self.delete_a_key(),
            Fault::FailOver => self.fail_over().await,
            Fault::Flush => self.flush().await,
        }
        if self.site.starts_another() {
            self.start_process();
        }
    }

    /// By hand.
    fn delete_a_key(&self) {
        let part = ["", ":queue", ":deadlines"][self.world.below(3) as usize];
        let key = key_of(&format!("lock{}", self.world.below(self.names as u64))) + part;
        self.world.fault("keys_deleted");
        self.world.note("deletes", 0, || key.clone());
        for node in &self.site.nodes {
            let _ = command(node, &["DEL", &key]);
        }
        let at = self.world.server_ms();
        self.world.state().checker.deleted(&key, at);
    }

    async fn restart_server(&self, loses_data: bool) {
        let node = self.site.any();
        let loses_data = loses_data && self.may_forget(node, node);
        self.world.fault(if loses_data { "server_restarts_without_data" } else { "server_restarts" });
        self.site.nodes[node].shut_down();
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        if loses_data {
            self.lose_data(node);
        }
        self.site.must_freeze();
        self.site.nodes[node].start_up();
        if self.world.state().strict && !loses_data && self.world.chance(0.3) {
            // Once more, during the freeze of the clients with the longest leases.
            self.world.sleep_up_to(Duration::from_millis(1000)).await;
            Box::pin(self.restart_server(false)).await;
        }
    }

    /// Another server with older data takes over. In the meantime anything may happen.
    async fn fail_over(&mut self) {
        let node = self.site.any();
        let Some((snapshot, remembered)) = self.site.snapshot(node) else { return };
        for _ in 0..self.world.below(4) {
            Box::pin(self.cause_fault()).await;
        }
        let sleeper =
            self.site.processes.get(self.world.below(4) as usize).map(|process| process.client.id().to_owned());
        let sleeper = sleeper.filter(|_| self.world.chance(0.5));
        sleeper.iter().for_each(|id| self.world.pause(id));
        // A replica is usually only a little late, so leases have not ended yet. A client that slept in the meantime
        // then reads grants of the earlier server, which the new one does not have (R15).
        let most = if sleeper.is_some() { 1000 } else { 300 };
        self.world.sleep_up_to(Duration::from_millis(most)).await;
        let outage = if self.world.chance(0.5) { SHORT_OUTAGE } else { Duration::from_millis(1500) };
        self.take_over(node, snapshot, remembered, outage).await;
        self.world.sleep_up_to(Duration::from_millis(100)).await;
        sleeper.iter().for_each(|id| self.world.go_on(id));
    }

    /// Whether a node may lose data, and another one take over. No loss of half a slot: the correct state would be
    /// unknown, and an operator would have to repair it.
    fn may_forget(&self, node: usize, next: usize) -> bool {
        self.site.cluster.as_ref().is_none_or(|cluster| !cluster.is_moving() && cluster.may_forget(node, next))
    }

    async fn take_over(&self, node: usize, snapshot: Snapshot, then: Remembered, longest_outage: Duration) {
        let next = self.site.cluster.as_ref().map_or(node, |cluster| cluster.next_of(node));
        if !self.may_forget(node, next) {
            return;
        }
        self.world.fault("failovers");
        if let Some(cluster) = self.site.cluster.as_ref().filter(|_| next != node) {
            return cluster.replace((node, next), (snapshot, then), longest_outage, || {}).await;
        }
        self.world.goes_down(longest_outage);
        self.site.nodes[node].shut_down();
        // Never at once: by its clock the new server grants greater tokens than the old one did.
        sleep(Duration::from_millis(1)).await;
        self.world.sleep_up_to(longest_outage).await;
        match &self.site.cluster {
            Some(cluster) => cluster.put_back(node, snapshot),
            None => self.site.nodes[node].restore(snapshot),
        }
        let (at, strict) = (self.world.server_ms(), self.world.state().strict);
        if strict && self.world.chance(0.5) {
            // It is the primary again after another one, whose grants it does not have.
            self.world.fault("failovers_unnoticed");
            self.site.nodes[node].was_replaced();
        }
        let failover = Failover { then, at, strict, node, elsewhere: false };
        self.world.state().checker.failed_over(failover);
        self.site.must_freeze();
        self.site.nodes[node].start_up();
    }

    async fn flush(&self) {
        let node = self.site.any();
        hand_in_hand(&self.world).await;
        if !self.may_forget(node, node) {
            return;
        }
        self.world.fault("flushes");
        self.lose_data(node);
        self.site.must_freeze();
    }

    fn lose_data(&self, node: usize) {
        self.site.nodes[node].flush();
        let at = self.world.server_ms();
        let mut state = self.world.state();
        let strict = state.strict;
        state.flushes += 1;
        state.checker.flushed(strict, node, at);
    }

    /// The calm phase: without faults every wait must end (P9) and nothing may remain (P10).
    async fn come_to_rest(&mut self, watching_claims: JoinHandle<()>) {
        self.site.be_calm();
        // After the last late messages, everything must work again.
        sleep(SETTLING).await;
        let watching = tokio::spawn(watch_holders(self.world.clone()));
        // In a strict run each of them freezes the server.
        let failovers = if self.world.state().strict { 1 } else { CALM_FAILOVERS };
        for _ in 0..failovers {
            if let Some(cluster) = &self.site.cluster {
                self.move_what_is_held(cluster).await;
                self.bring_back_a_ghost(cluster).await;
            }
            self.fail_over_in_calm().await;
        }
        sleep(CALM).await;
        self.site.nobody_waits_long();
        watching.abort();
        watching_claims.abort();
        self.site.end_all().await;
        if !self.site.is_sound() {
            return;
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
        let (world, client) = (self.world.clone(), self.site.processes.first()?.client.clone());
        let (shortest_lease, lease) = (Duration::ZERO, LONGEST_LEASE);
        Some(Actor { world, client, number: 0, names: self.names, shortest_lease, lease, max_hold: None })
    }

    /// A hold comes back at a name without waiters.
    async fn bring_back_a_ghost(&self, cluster: &Cluster) {
        let name = format!("lock{}", self.names);
        let Some(node) = cluster.home(&key_of(&name)) else { return };
        let Some(keeper) = self.keeper() else { return };
        let mut before = None;
        keeper
            .keep(&keeper.client.lock(name).with_lease(LONGEST_LEASE), async { before = self.site.snapshot(node) })
            .await;
        let Some((snapshot, remembered)) = before else { return };
        self.take_over(node, snapshot, remembered, SHORT_OUTAGE).await;
    }

    /// Without any other fault. Everything that it brings back must go soon, and it must lose nothing else.
    async fn fail_over_in_calm(&self) {
        self.world.sleep_up_to(Duration::from_secs(3)).await;
        let node = self.site.any();
        let Some((snapshot, remembered)) = self.site.snapshot(node) else { return };
        self.world.sleep_up_to(Duration::from_millis(if self.world.chance(0.5) { 300 } else { 3000 })).await;
        self.take_over(node, snapshot, remembered, SHORT_OUTAGE).await;
    }

    fn nothing_is_left(&self) {
        let is_strict = self.world.state().strict;
        self.site.nothing_is_left(|key| key.ends_with("}:token") || key == BOOT && is_strict);
        if let Some(what) = self.too_little_happened() {
            self.site.violated("quiet", what);
        }
        let checker = &mut self.world.state().checker;
        checker.check_updates();
        checker.check_leaves_after_losses();
    }

    fn outcome(self) -> Outcome {
        let mut outcome = self.site.outcome();
        let checker = &self.world.state().checker;
        if checker.forgotten_holds > 0 {
            outcome.faults.insert("forgotten_holds", checker.forgotten_holds);
        }
        Outcome {
            grants: checker.grants,
            handed_over: checker.handed_over,
            expiries: checker.expiries,
            sections: checker.sections,
            ghosts: checker.ghosts,
            ..outcome
        }
    }
}
