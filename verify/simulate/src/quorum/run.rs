//! One run: processes with their actors, a phase with faults, then a calm phase that begins with minorities away.

use std::sync::Arc;
use std::time::Duration;

use fairlock::EmbeddedServer;
use fairlock::simulation::{self, command};
use tokio::time::sleep;

use super::actor::Actor;
use super::master::Master;
use super::trial::{AFTERMATH, Trial};
use crate::checker::Failover;
use crate::keys::BOOT;
use crate::outcome::Outcome;
use crate::site::{Process, Settings, Site};
use crate::world::{LONGEST_LEASE, QUEUES_LIVE, SETTLING, World};

/// How long the phase with faults lasts; up to four times that if too little happens.
const FAULTY: Duration = Duration::from_secs(60);
/// How long each part of the calm phase lasts.
const CALM: Duration = Duration::from_secs(6);
/// A run with less than this proves nothing.
const LEAST_GUARDS: u64 = 60;
const LEAST_FAULTS: u64 = 100;

pub async fn run(world: &Arc<World>) -> Outcome {
    let mut run = Run::new(world);
    run.play().await;
    run.outcome()
}

struct Run {
    world: Arc<World>,
    trial: Arc<Trial>,
    site: Site,
    names: usize,
}

/// A server's data when it starts again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    All,
    /// The data from before it went down, without the last part.
    Old,
    Nothing,
}

impl Run {
    fn new(world: &Arc<World>) -> Self {
        let trial = Trial::new(world);
        let servers = simulation::servers((0..trial.nodes()).map(|node| Master::new(&trial, node)));
        trial.serve(servers.clone());
        let names = 1 + world.below(2) as usize;
        let site = Site::new(world, servers, None);
        let run = Self { world: world.clone(), trial, site, names };
        // The servers have just started.
        (0..run.site.nodes.len()).for_each(|node| must_freeze(&run.trial, node));
        run
    }

    async fn play(&mut self) {
        for _ in 0..2 + self.world.below(3) {
            self.start_process();
        }
        let trial = self.trial.clone();
        let watching = tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(20)).await;
                trial.look();
            }
        });
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
        elapsed > 4 * FAULTY || elapsed > FAULTY && self.too_little_happened().is_none()
    }

    fn too_little_happened(&self) -> Option<String> {
        let guards = self.trial.state().checker.guards;
        let faults = self.world.state().faults.values().sum::<u64>();
        let too_little = guards < LEAST_GUARDS || faults < LEAST_FAULTS;
        too_little.then(|| format!("{guards} guards and {faults} faults prove nothing"))
    }

    fn start_process(&mut self) {
        let Settings { builder, operation_timeout, shortest_lease, .. } = self.site.settings(0.2);
        // Longer than a round trip of the calm phase.
        let node_timeout = Duration::from_millis(40 + self.world.below(operation_timeout.as_millis() as u64 / 2 - 39));
        let builder = builder
            .server_timeout(node_timeout)
            .strict_restart(LONGEST_LEASE)
            .clock_difference(self.trial.clock_difference);
        let builder = if self.trial.strict { builder } else { builder.without_strict_restart() };
        let Some(client) = self.site.begun(builder.embedded(&self.site.nodes)) else { return };
        // A client probes in each third of an operation time-out, and so notices a node that is silent to its waiters.
        let patience = operation_timeout / 3 + 2 * node_timeout + Duration::from_millis(120);
        self.trial.is_patient_for(client.id(), patience);
        let most = if self.world.chance(0.1) { 16 } else { 4 };
        let actors = (0..1 + self.world.below(most)).map(|_| {
            let (trial, id, number) = (self.trial.clone(), client.id().to_owned(), self.site.next_actor());
            let (client, names) = (client.clone(), self.names);
            let actor = Actor {
                trial,
                client: client.clone(),
                id,
                number,
                names,
                shortest_lease,
                node_timeout,
                operation_timeout,
            };
            self.site.spawn(&client, actor.live())
        });
        let actors = actors.collect();
        self.site.processes.push(Process { client, actors });
    }

    /// Waits a little, then causes one fault.
    async fn cause_fault(&mut self) {
        self.world.sleep_up_to(Duration::from_millis(1200)).await;
        let victim = self.world.below(self.site.processes.len().max(1) as u64) as usize;
        if self.world.closes_one() {
            let (trial, nodes) = (self.trial.clone(), self.site.nodes.len());
            let at = move |node| trial.state().checker.node(node).last_asked.clone();
            self.site.close(victim, move || (0..nodes).map(&at).collect());
        }
        match self.world.below(24) {
            0..3 => self.site.pause(self.site.processes.get(victim)),
            3..5 => self.kill(victim),
            5 => self.end_runtime(victim),
            6..8 => self.site.disconnect(victim),
            8 => self.silence(victim),
            9..12 => self.restart(Data::All),
            12..14 => self.restart(Data::Nothing),
            14 => self.restart(Data::Old),
            15 => self.flush(),
            16..18 => self.stop(),
            18..22 => self.part(victim),
            22 => self.delete_a_key(),
            _ => self.take_a_majority_away(),
        }
        if self.site.starts_another() {
            self.start_process();
        }
    }

    /// The servers receive nothing from it for longer than a waiter lives, then it is back.
    fn silence(&self, victim: usize) {
        let Some(victim) = self.site.processes.get(victim) else { return };
        self.world.fault("silences");
        let length = Duration::from_millis(2000 + self.world.below(5000));
        (0..self.site.nodes.len()).for_each(|node| self.trial.keep_apart(node, victim.client.id(), length));
    }

    fn kill(&mut self, victim: usize) {
        let Some(id) = self.site.kill(victim) else { return };
        self.trial.state().checker.died(&id);
        self.cut_off(&id);
    }

    fn end_runtime(&mut self, victim: usize) {
        let ended = self.site.end_runtime(victim);
        ended.iter().for_each(|id| self.cut_off(id));
    }

    /// Each server learns of it at its own time.
    fn cut_off(&self, id: &str) {
        self.site.nodes.iter().for_each(|node| self.site.cut_off(id, std::slice::from_ref(node)));
    }

    /// Whether another node may go away: a majority stays that serves, or, rarely, chance allows less.
    fn may_go(&self, node: usize) -> bool {
        let spare = self.trial.serving() > self.trial.majority();
        !self.trial.state().away[node] && (spare || self.world.chance(0.15))
    }

    fn restart(&self, data: Data) {
        let node = self.site.any();
        if !self.may_go(node) {
            return;
        }
        let data = if self.trial.strict { data } else { Data::All };
        // Often long enough for all leases to end.
        let most = if self.world.chance(0.5) { 300 } else { 8000 };
        let outage = Duration::from_millis(self.world.below(most));
        tokio::spawn(restart(self.trial.clone(), self.site.nodes[node].clone(), node, data, outage));
        self.trial.state().away[node] = true;
    }

    /// While it is up.
    fn flush(&self) {
        let node = self.site.any();
        if !self.trial.strict || !self.may_go(node) {
            return;
        }
        self.world.fault("flushes");
        empty(&self.trial, &self.site.nodes[node], node);
        must_freeze(&self.trial, node);
    }

    /// As SIGSTOP does.
    fn stop(&self) {
        let node = self.site.any();
        if self.may_go(node) {
            self.world.fault("masters_frozen");
            let length = Duration::from_millis(100 + self.world.below(5900));
            self.world.note("stops", node, || format!("node {node} for {length:?}"));
            self.trial.stop(node, length);
        }
    }

    /// One client and one node; sometimes a minority of them.
    fn part(&self, victim: usize) {
        let Some(victim) = self.site.processes.get(victim) else { return };
        self.world.fault("partitions");
        let first = self.site.any();
        let nodes = 1 + self.world.below(self.trial.majority() as u64 - 1) as usize;
        for node in (0..nodes).map(|next| (first + next) % self.site.nodes.len()) {
            if node == 0 {
                self.world.fault("gates_apart");
            }
            let length = Duration::from_millis(200 + self.world.below(8000));
            self.world.note("parts", node, || format!("{} and node {node} for {length:?}", victim.client.id()));
            self.trial.keep_apart(node, victim.client.id(), length);
            // Otherwise the client does not notice until a request stays unanswered.
            if self.world.chance(0.5) {
                self.site.nodes[node].disconnect(victim.client.id());
            }
        }
    }

    /// By hand, at one node. A key of the queue: deleting the hash would be an unnoticed loss of data.
    fn delete_a_key(&self) {
        let part = [":queue", ":deadlines"][self.world.below(2) as usize];
        let key = format!("fairlock:{{n:lock{}}}{part}", self.world.below(self.names as u64));
        let node = self.site.any();
        self.world.fault("keys_deleted");
        self.world.note("deletes", node, || format!("{key} at node {node}"));
        let _ = command(&self.site.nodes[node], &["DEL", &key]);
        let at = self.trial.clocks_ms()[node];
        self.trial.state().checker.node(node).deleted(&key, at);
    }

    /// For a while nobody can get a lock.
    fn take_a_majority_away(&self) {
        self.world.fault("majorities_away");
        let (first, length) = (self.site.any(), Duration::from_millis(500 + self.world.below(3000)));
        for node in (0..self.trial.majority()).map(|next| (first + next) % self.site.nodes.len()) {
            if !self.trial.state().away[node] {
                self.trial.stop(node, length);
            }
        }
    }

    /// The calm phase: without faults every wait must end (P9) and nothing may remain (P10).
    async fn come_to_rest(&mut self) {
        self.site.be_calm();
        while self.trial.state().away.contains(&true) {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(SETTLING + self.trial.freeze()).await;
        self.be_steady().await;
        self.minority_goes_down().await;
        self.be_steady().await;
        self.minority_stops().await;
        self.be_steady().await;
        self.all_part().await;
        self.be_steady().await;
        if !self.site.is_sound() {
            return;
        }
        self.site.end_all().await;
        sleep(SETTLING + QUEUES_LIVE).await;
    }

    async fn be_steady(&self) {
        self.trial.set_steady(true);
        self.serve_all(CALM).await;
        self.trial.set_steady(false);
    }

    /// All waits end, and clients form guards.
    async fn serve_all(&self, length: Duration) {
        if !self.site.is_sound() {
            return;
        }
        let before = self.trial.state().checker.guards;
        sleep(length).await;
        self.site.nobody_waits_long();
        let has_callers = self.site.processes.iter().any(|process| !process.actors.is_empty());
        if has_callers && self.trial.state().checker.guards < before + 3 {
            self.site.violated("P9", format!("hardly anybody was served in {length:?}, and a majority lives"));
        }
    }

    /// A random minority of neighbours.
    fn minority(&self) -> Vec<usize> {
        let (first, most) = (self.site.any(), self.trial.majority() - 1);
        (0..most).map(|next| (first + next) % self.site.nodes.len()).collect()
    }

    /// No hold is lost, and clients still get locks.
    async fn minority_goes_down(&self) {
        self.world.fault("minorities_away_in_calm");
        let minority = self.minority();
        self.trial.go_away(true);
        for node in &minority {
            self.trial.disturb(*node);
            self.trial.state().away[*node] = true;
            self.site.nodes[*node].shut_down();
        }
        self.serve_all(CALM).await;
        for node in &minority {
            let empties = self.trial.strict && self.world.chance(0.5);
            if empties {
                empty(&self.trial, &self.site.nodes[*node], *node);
            }
            must_freeze(&self.trial, *node);
            self.site.nodes[*node].start_up();
            self.trial.state().away[*node] = false;
        }
        self.trial.go_away(false);
        // While these grant nothing, the others do.
        self.serve_all(LONGEST_LEASE).await;
        sleep(AFTERMATH + self.trial.freeze()).await;
    }

    async fn minority_stops(&self) {
        let minority = self.minority();
        self.trial.go_away(true);
        minority.iter().for_each(|node| self.trial.stop(*node, CALM));
        self.serve_all(CALM).await;
        self.trial.go_away(false);
        sleep(AFTERMATH).await;
    }

    /// Each client has a minority that it cannot reach, so they see different gates. Each wait ends (Q1, Q2).
    async fn all_part(&self) {
        for process in &self.site.processes {
            for node in self.minority() {
                self.trial.keep_apart(node, process.client.id(), 2 * CALM);
            }
        }
        self.serve_all(2 * CALM).await;
        sleep(AFTERMATH).await;
    }

    fn nothing_is_left(&self) {
        self.site.nothing_is_left(|key| key.ends_with("}:token") || key == BOOT && self.trial.strict);
        if let Some(what) = self.too_little_happened() {
            self.site.violated("quiet", what);
        }
        self.world.state().checker.check_updates();
    }

    fn outcome(self) -> Outcome {
        let outcome = self.site.outcome();
        self.trial.serve(Vec::new());
        let checker = &self.trial.state().checker;
        let (grants, handed_over, expiries) = checker.counts();
        let sections = self.world.state().checker.sections;
        Outcome { grants, guards: checker.guards, handed_over, expiries, sections, ..outcome }
    }
}

/// Down for a while, then up again with this data.
async fn restart(trial: Arc<Trial>, server: EmbeddedServer, node: usize, data: Data, outage: Duration) {
    let world = trial.world.clone();
    let old = if data == Data::Old { server.snapshot() } else { None };
    let remembered = trial.state().checker.remember(node);
    if old.is_some() {
        world.note("snapshot", node, || format!("of node {node}"));
        world.sleep_up_to(Duration::from_millis(500)).await;
    }
    world.fault("masters_down");
    world.note("goes down", node, || format!("node {node} for {outage:?}"));
    trial.disturb(node);
    server.shut_down();
    // Never at once: by its clock the server then grants greater tokens than before.
    sleep(Duration::from_millis(1) + outage).await;
    match (data, old) {
        (Data::Nothing, _) => {
            world.fault("masters_emptied");
            empty(&trial, &server, node);
        }
        (_, Some(old)) => {
            world.fault("masters_put_back");
            server.restore(old);
            let at = trial.clocks_ms()[node];
            let failover = Failover { then: remembered, at, strict: true, node: 0, elsewhere: false };
            trial.state().checker.node(node).failed_over(failover);
        }
        _ => {}
    }
    must_freeze(&trial, node);
    trial.disturb(node);
    trial.state().away[node] = false;
    server.start_up();
    world.note("is up", node, || format!("node {node}"));
}

/// It loses all its data.
fn empty(trial: &Trial, server: &EmbeddedServer, node: usize) {
    server.flush();
    trial.disturb(node);
    let at = trial.clocks_ms()[node];
    trial.state().checker.node(node).flushed(true, 0, at);
}

/// Q8: a server that started grants nothing until the freeze has ended.
fn must_freeze(trial: &Trial, node: usize) {
    if trial.strict {
        let until = trial.clocks_ms()[node] + trial.freeze().as_millis() as i64;
        trial.state().checker.must_freeze(node, until);
        trial.disturb(node);
    }
}
