//! One run: processes whose actors use semaphores, read-write locks and a lock, at one server or in a cluster. A phase
//! with faults, then a calm phase without, in which all work must finish.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Snapshot, command};
use tokio::time::sleep;

use super::actor::Actor;
use super::around::AroundShared;
use super::trial::{SEMAPHORES, Trial, shared_keys};
use crate::checker::{Failover, Remembered};
use crate::cluster::Cluster;
use crate::keys::{BOOT, key_of};
use crate::outcome::Outcome;
use crate::site::{Fault, Process, Settings, Site};
use crate::world::{QUEUES_LIVE, SETTLING, World};

const FAULTY: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(8);
/// A run with less than this proves nothing.
const LEAST_SECTIONS: u64 = 60;
const LEAST_FAULTS: u64 = 100;
/// Faults may leave this behind in the calm phase: the limit of a freeze, a fixed lease.
const LEFT_OVER: Duration = Duration::from_secs(8);

pub async fn run(world: &Arc<World>) -> Outcome {
    let mut run = Run::new(world);
    run.play().await;
    run.outcome()
}

struct Run {
    world: Arc<World>,
    trial: Arc<Trial>,
    site: Site,
    /// The limit that most processes name.
    permits: u32,
}

impl Run {
    fn new(world: &Arc<World>) -> Self {
        let trial = Trial::new(world);
        let around = |node| AroundShared::new(&trial, node);
        let nodes = match world.nodes() {
            1 => vec![simulation::server(around(0))],
            nodes => simulation::cluster((0..nodes).map(around)),
        };
        world.serve(nodes.clone());
        let names = shared_keys().chain([key_of("lock0")]);
        let cluster = (nodes.len() > 1).then(|| Cluster::anywhere(world, &nodes, names));
        cluster.iter().for_each(|cluster| trial.has_cluster(cluster));
        let permits = 1 + world.below(4) as u32;
        let site = Site::new(world, nodes, cluster);
        let run = Self { world: world.clone(), trial, site, permits };
        // The server has just started.
        run.must_freeze();
        run
    }

    async fn play(&mut self) {
        for _ in 0..2 + self.world.below(3) {
            self.start_process();
        }
        let watching = tokio::spawn(self.trial.clone().look_on());
        while self.site.is_sound() && !self.has_seen_enough() {
            self.cause_fault().await;
        }
        if self.site.is_sound() {
            self.come_to_rest().await;
        }
        watching.abort();
        let _ = watching.await;
        if self.site.is_sound() {
            self.nothing_is_left();
        }
    }

    fn has_seen_enough(&self) -> bool {
        let elapsed = self.world.elapsed();
        elapsed > 6 * FAULTY || elapsed > FAULTY && self.too_little_happened().is_none()
    }

    fn too_little_happened(&self) -> Option<String> {
        let sections = self.trial.checker().sections;
        let faults = self.world.state().faults.values().sum::<u64>();
        let too_little = sections < LEAST_SECTIONS || faults < LEAST_FAULTS;
        too_little.then(|| format!("{sections} sections and {faults} faults prove nothing"))
    }

    fn start_process(&mut self) {
        let Settings { builder, shortest_lease, lease, .. } = self.site.settings(0.3);
        let Some(client) = self.site.connect(self.site.strict(builder)) else { return };
        // A configuration rolls out.
        let permits = if self.world.chance(0.3) { 1 + self.world.below(5) as u32 } else { self.permits };
        let is_crowd = self.world.chance(0.1);
        let actors = if is_crowd { 18 + self.world.below(24) } else { 1 + self.world.below(5) };
        if is_crowd {
            self.world.fault("crowds");
        }
        let mut handles = Vec::new();
        for _ in 0..actors {
            let (trial, number) = (self.trial.clone(), self.site.next_actor());
            let actor = Actor { trial, client: client.clone(), number, permits, shortest_lease };
            handles.push(self.site.spawn(&client, actor.live()));
        }
        // Next to them, an actor that locks.
        let (world, number) = (self.world.clone(), self.site.next_actor());
        let (names, max_hold) = (1, None);
        let actor =
            crate::actor::Actor { world, client: client.clone(), number, names, shortest_lease, lease, max_hold };
        handles.push(self.site.spawn(&client, actor.live()));
        self.site.processes.push(Process { client, actors: handles });
    }

    /// Waits a little, then causes one fault.
    async fn cause_fault(&mut self) {
        let trial = self.trial.clone();
        let asked = move || {
            let of_shared = trial.checker().last_asked.clone();
            vec![of_shared.and(trial.world.state().checker.last_asked.clone())]
        };
        match self.site.next_fault(asked).await {
            Fault::NotNow => return,
            Fault::Caused => {}
            Fault::Killed(id) => drop(self.trial.checker().died(&id)),
            Fault::Restart { loses_data } => self.restart_server(loses_data).await,
            Fault::DeleteAKey => self.delete_a_key(),
            Fault::FailOver => self.fail_over().await,
            Fault::Flush => self.flush(),
        }
        if self.site.starts_another() {
            self.start_process();
        }
    }

    /// By hand.
    fn delete_a_key(&self) {
        let names: Vec<_> = shared_keys().collect();
        let name = &names[self.world.below(names.len() as u64) as usize];
        let part = ["", ":queue", ":deadlines", ":limit"][self.world.below(4) as usize];
        self.world.fault("keys_deleted");
        self.world.note("deletes", 0, || format!("{name}{part}"));
        if part.is_empty() {
            let now = self.world.elapsed();
            self.trial.checker().deleted(name, now);
        }
        for node in &self.site.nodes {
            let _ = command(node, &["DEL", &format!("{name}{part}")]);
        }
        self.trial.resync();
    }

    async fn restart_server(&self, loses_data: bool) {
        let node = self.site.any();
        self.world.fault(if loses_data { "server_restarts_without_data" } else { "server_restarts" });
        self.site.nodes[node].shut_down();
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        if loses_data && self.may_forget() {
            self.lose_data(node);
        }
        self.must_freeze();
        self.site.nodes[node].start_up();
    }

    /// No loss of half a slot: an operator would have to repair it.
    fn may_forget(&self) -> bool {
        !self.site.is_moving()
    }

    fn flush(&self) {
        if !self.may_forget() {
            return;
        }
        self.world.fault("flushes");
        self.lose_data(self.site.any());
        self.must_freeze();
    }

    fn lose_data(&self, node: usize) {
        let now = self.trial.now();
        self.trial.checker().lost_data(node, &now);
        self.site.nodes[node].flush();
        {
            let at = self.world.server_ms();
            let mut state = self.world.state();
            state.flushes += 1;
            state.checker.flushed(now.strict, node, at);
        }
        self.trial.resync();
    }

    fn must_freeze(&self) {
        if let Some(until) = self.site.must_freeze() {
            self.trial.checker().must_freeze(until);
        }
    }

    /// Another server, with older data, takes over.
    async fn fail_over(&mut self) {
        let node = self.site.any();
        let Some((snapshot, remembered)) = self.site.snapshot(node) else { return };
        for _ in 0..self.world.below(4) {
            Box::pin(self.cause_fault()).await;
        }
        self.world.sleep_up_to(Duration::from_millis(300)).await;
        if self.may_forget() {
            self.take_over(node, snapshot, remembered).await;
        }
    }

    async fn take_over(&self, node: usize, snapshot: Snapshot, then: Remembered) {
        self.world.fault("failovers");
        let longest = Duration::from_millis(if self.world.chance(0.5) { 100 } else { 1500 });
        let next = self.site.cluster.as_ref().map_or(node, |cluster| cluster.next_of(node));
        if let Some(cluster) = self.site.cluster.as_ref().filter(|_| next != node) {
            let before = self.trial.now();
            let taken_over = || {
                self.trial.checker().lost_data(node, &before);
                self.trial.resync();
                self.trial.checker().lost_data(node, &before);
            };
            return cluster.replace((node, next), (snapshot, then), longest, taken_over).await;
        }
        self.world.goes_down(longest);
        self.site.nodes[node].shut_down();
        sleep(Duration::from_millis(1)).await;
        self.world.sleep_up_to(longest).await;
        let (now, at) = (self.trial.now(), self.world.server_ms());
        self.trial.checker().lost_data(node, &now);
        match &self.site.cluster {
            Some(cluster) => cluster.put_back(node, snapshot),
            None => self.site.nodes[node].restore(snapshot),
        }
        self.trial.resync();
        // Holds that came back may be void too.
        self.trial.checker().lost_data(node, &now);
        self.world.state().checker.failed_over(Failover { then, at, strict: now.strict, node, elsewhere: false });
        self.must_freeze();
        self.site.nodes[node].start_up();
    }

    /// The calm phase: without faults every wait must end (P9) and nothing may remain (P10).
    async fn come_to_rest(&mut self) {
        self.site.be_calm();
        self.go_on_with_all_permits().await;
        sleep(SETTLING + LEFT_OVER).await;
        // A smaller number may have been on its way when the calm began.
        self.go_on_with_all_permits().await;
        sleep(CALM).await;
        self.site.nobody_waits_long();
        self.site.end_all().await;
        sleep(SETTLING + QUEUES_LIVE).await;
    }

    /// A gate does not stay paused.
    async fn go_on_with_all_permits(&self) {
        let Some(process) = self.site.processes.first() else { return };
        for name in SEMAPHORES {
            while process.client.semaphore(name, self.permits).set_permits(None).await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn nothing_is_left(&self) {
        let limits: Vec<_> = SEMAPHORES.into_iter().map(|name| format!("{}:limit", key_of(name))).collect();
        self.site.nothing_is_left(|key| key.ends_with("}:token") || key == BOOT || limits.contains(key));
        if let Some(what) = self.too_little_happened() {
            self.site.violated("quiet", what);
        }
    }

    fn outcome(self) -> Outcome {
        let mut outcome = self.site.outcome();
        let checker = self.trial.checker();
        if checker.served_together > 0 {
            outcome.faults.insert("served_together", checker.served_together);
        }
        Outcome {
            grants: checker.grants,
            handed_over: checker.handed_over,
            expiries: checker.expiries,
            sections: checker.sections,
            ..outcome
        }
    }
}
