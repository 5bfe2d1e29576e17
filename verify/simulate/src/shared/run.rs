//! One run: processes whose actors use semaphores, read-write locks and a lock, at one server or in a cluster. A phase with faults,
//! then a calm phase without, in which all work must finish.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Snapshot, command};
use fairlock::{EmbeddedServer, LockClient, LockClientBuilder};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::actor::Actor;
use super::around::AroundShared;
use super::trial::{SEMAPHORES, Trial, shared_keys};
use crate::checker::{Failover, Remembered};
use crate::cluster::Cluster;
use crate::keys::{BOOT, key_of};
use crate::outcome::Outcome;
use crate::world::{LONGEST_LEASE, QUEUES_LIVE, SETTLING, World};

const FAULTY: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(180);
const CALM: Duration = Duration::from_secs(8);
const LONGEST_CALM_WAIT: Duration = Duration::from_secs(15);
/// A run with less than this proves nothing.
const LEAST_SECTIONS: u64 = 60;
const LEAST_FAULTS: u64 = 100;
/// What the faults of before the calm phase may have left: the limit of a freeze, a fixed lease.
const LEFT_OVER: Duration = Duration::from_secs(8);

pub async fn run(world: &Arc<World>) -> Outcome {
    let mut run = Run::new(world);
    run.play().await;
    run.outcome()
}

struct Process {
    client: LockClient,
    actors: Vec<JoinHandle<()>>,
}

struct Run {
    world: Arc<World>,
    trial: Arc<Trial>,
    /// One, or those of a cluster.
    nodes: Vec<EmbeddedServer>,
    cluster: Option<Arc<Cluster>>,
    processes: Vec<Process>,
    without_runtime: Vec<Process>,
    /// As in `crate::run::Run`.
    dead: Vec<LockClient>,
    actors: usize,
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
        let (processes, without_runtime, dead) = (Vec::new(), Vec::new(), Vec::new());
        let world = world.clone();
        let run = Self { world, trial, nodes, cluster, processes, without_runtime, dead, actors: 0, permits };
        // It has just been started.
        run.must_freeze();
        run
    }

    fn is_sound(&self) -> bool {
        self.world.state().checker.violations.is_empty()
    }

    async fn play(&mut self) {
        for _ in 0..2 + self.world.below(3) {
            self.start_process();
        }
        let watching = tokio::spawn(self.trial.clone().look_on());
        while self.is_sound() && !self.has_seen_enough() {
            self.cause_fault().await;
        }
        if self.is_sound() {
            self.come_to_rest().await;
        }
        watching.abort();
        let _ = watching.await;
        if self.is_sound() {
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
        let ms = |from: u64, to: u64| Duration::from_millis(from + self.world.below(to - from));
        let (operation_timeout, poll) = (ms(200, 1000), ms(200, 700));
        let shortest_lease = operation_timeout.max(poll);
        let grant = poll + if self.world.chance(0.3) { Duration::ZERO } else { ms(0, 800) };
        let lease = shortest_lease + ms(0, 3000);
        let builder = LockClient::builder()
            .label("simulated")
            .max_waiters(if self.world.chance(0.3) { 2 + self.world.below(8) as u32 } else { 65_536 })
            .operation_timeout(operation_timeout)
            .poll_interval(poll)
            .grant_ttl(grant)
            .waiter_ttl(grant.max(3 * poll) + if self.world.chance(0.3) { ms(0, 4000) } else { ms(0, 500) })
            .lease(lease);
        let is_strict = self.world.state().strict;
        let builder = if is_strict { builder.strict_restart(LONGEST_LEASE + ms(0, 2000)) } else { builder };
        // The server is down: another process may start later.
        let Some(client) = self.connect(builder) else { return };
        // A configuration is rolled out.
        let permits = if self.world.chance(0.3) { 1 + self.world.below(5) as u32 } else { self.permits };
        let is_crowd = self.world.chance(0.1);
        let actors = if is_crowd { 18 + self.world.below(24) } else { 1 + self.world.below(5) };
        if is_crowd {
            self.world.fault("crowds");
        }
        let mut handles = Vec::new();
        for _ in 0..actors {
            self.actors += 1;
            let (trial, client, number) = (self.trial.clone(), client.clone(), self.actors);
            let actor = Actor { trial, client: client.clone(), number, permits, shortest_lease };
            handles.push(tokio::spawn(self.world.in_process(client.id(), Box::pin(actor.live()))));
        }
        // Beside them, one that locks.
        self.actors += 1;
        let (world, number) = (self.world.clone(), self.actors);
        let actor = crate::actor::Actor {
            world,
            client: client.clone(),
            number,
            names: 1,
            shortest_lease,
            lease,
            max_hold: None,
        };
        handles.push(tokio::spawn(self.world.in_process(client.id(), Box::pin(actor.live()))));
        self.processes.push(Process { client, actors: handles });
    }

    fn connect(&self, builder: LockClientBuilder) -> Option<LockClient> {
        let Some(cluster) = &self.cluster else { return builder.embedded(&self.nodes[0]).ok() };
        let (client, looks) = simulation::connect(builder, &self.nodes, &self.nodes[self.any()]).ok()?;
        let watch = cluster.clone().watch(looks);
        tokio::spawn(self.world.in_process(client.id(), Box::pin(watch)));
        Some(client)
    }

    /// A random node.
    fn any(&self) -> usize {
        self.cluster.as_ref().map_or(0, |cluster| cluster.any())
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
        match fault {
            0..3 => self.pause(self.processes.get(victim)),
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
            _ => self.flush(),
        }
        if self.processes.len() < 2 || self.world.chance(0.1) {
            self.world.fault("restarts");
            self.start_process();
        }
    }

    fn is_frozen(&self) -> bool {
        crate::keys::frozen_until(&self.nodes[0]) > self.world.server_ms()
    }

    fn pause<'a>(&self, victims: impl IntoIterator<Item = &'a Process>) {
        let world = self.world.clone();
        let victims: Vec<_> = victims.into_iter().map(|victim| victim.client.id().to_owned()).collect();
        let length = Duration::from_millis(world.below(if world.chance(0.5) { 7000 } else { 300 }));
        tokio::spawn(async move {
            victims.iter().for_each(|victim| world.pause(victim));
            sleep(length).await;
            victims.iter().for_each(|victim| world.go_on(victim));
        });
    }

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

    fn stop_server(&self) {
        let most = if self.world.chance(0.5) { 1000 } else { 9000 };
        self.world.stop_server(Duration::from_millis(self.world.below(most)));
    }

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
        let names: Vec<_> = shared_keys().collect();
        let name = &names[self.world.below(names.len() as u64) as usize];
        let part = ["", ":queue", ":deadlines", ":limit"][self.world.below(4) as usize];
        self.world.fault("keys_deleted");
        self.world.note("deletes", 0, || format!("{name}{part}"));
        if part.is_empty() {
            let now = self.world.elapsed();
            self.trial.checker().deleted(name, now);
        }
        for node in &self.nodes {
            let _ = command(node, &["DEL", &format!("{name}{part}")]);
        }
        self.trial.resync();
    }

    fn kill(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let process = self.processes.swap_remove(victim);
        let id = process.client.id().to_owned();
        self.world.kill(&id);
        let claims = self.trial.checker().died(&id);
        drop(claims);
        self.cut_off(id);
        self.dead.push(process.client);
    }

    fn end_runtime(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let process = self.processes.swap_remove(victim);
        let id = process.client.id().to_owned();
        self.world.end_runtime(&id);
        self.cut_off(id);
        self.without_runtime.push(process);
    }

    fn cut_off(&self, id: String) {
        if self.world.chance(0.6) {
            return self.nodes.iter().for_each(|node| node.disconnect(&id));
        }
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
            self.nodes[self.any()].disconnect(process.client.id());
        }
    }

    async fn restart_server(&self, loses_data: bool) {
        let node = self.any();
        self.world.fault(if loses_data { "server_restarts_without_data" } else { "server_restarts" });
        self.nodes[node].shut_down();
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        if loses_data && self.may_forget() {
            self.lose_data(node);
        }
        self.must_freeze();
        self.nodes[node].start_up();
    }

    /// Half of a slot cannot be lost: an operator has to mend it.
    fn may_forget(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| !cluster.is_moving())
    }

    fn flush(&self) {
        if !self.may_forget() {
            return;
        }
        self.world.fault("flushes");
        self.lose_data(self.any());
        self.must_freeze();
    }

    fn lose_data(&self, node: usize) {
        let now = self.trial.now();
        self.trial.checker().lost_data(node, &now);
        self.nodes[node].flush();
        {
            let at = self.world.server_ms();
            let mut state = self.world.state();
            state.flushes += 1;
            state.checker.flushed(now.strict, node, at);
        }
        self.trial.resync();
    }

    fn must_freeze(&self) {
        let until = self.world.server_ms() + LONGEST_LEASE.as_millis() as i64;
        let strict = {
            let mut state = self.world.state();
            if state.strict {
                state.count("strict_restarts");
                state.checker.must_freeze(until);
            }
            state.strict
        };
        if strict {
            self.trial.checker().must_freeze(until);
        }
    }

    /// Another server takes over that is behind.
    async fn fail_over(&mut self) {
        let node = self.any();
        let Some((snapshot, remembered)) = self.snapshot(node) else { return };
        for _ in 0..self.world.below(4) {
            Box::pin(self.cause_fault()).await;
        }
        self.world.sleep_up_to(Duration::from_millis(300)).await;
        if self.may_forget() {
            self.take_over(node, snapshot, remembered).await;
        }
    }

    fn snapshot(&self, node: usize) -> Option<(Snapshot, Remembered)> {
        let snapshot = self.nodes[node].snapshot().filter(|_| self.may_forget())?;
        self.world.note("snapshot", node, String::new);
        Some((snapshot, self.world.state().checker.remember()))
    }

    async fn take_over(&self, node: usize, snapshot: Snapshot, then: Remembered) {
        self.world.fault("failovers");
        let longest = Duration::from_millis(if self.world.chance(0.5) { 100 } else { 1500 });
        let next = self.cluster.as_ref().map_or(node, |cluster| cluster.next_of(node));
        if let Some(cluster) = self.cluster.as_ref().filter(|_| next != node) {
            let before = self.trial.now();
            let taken_over = || {
                self.trial.checker().lost_data(node, &before);
                self.trial.resync();
                self.trial.checker().lost_data(node, &before);
            };
            return cluster.replace((node, next), (snapshot, then), longest, taken_over).await;
        }
        self.world.goes_down(longest);
        self.nodes[node].shut_down();
        sleep(Duration::from_millis(1)).await;
        self.world.sleep_up_to(longest).await;
        let (now, at) = (self.trial.now(), self.world.server_ms());
        self.trial.checker().lost_data(node, &now);
        match &self.cluster {
            Some(cluster) => cluster.put_back(node, snapshot),
            None => self.nodes[node].restore(snapshot),
        }
        self.trial.resync();
        // What has come back may be void too.
        self.trial.checker().lost_data(node, &now);
        self.world.state().checker.failed_over(Failover { then, at, strict: now.strict, node, elsewhere: false });
        self.must_freeze();
        self.nodes[node].start_up();
    }

    /// The calm phase: without faults every wait must end (P9) and nothing may be left behind (P10).
    async fn come_to_rest(&mut self) {
        self.world.be_calm();
        for process in &self.processes {
            self.world.go_on(process.client.id());
        }
        self.go_on_with_all_permits().await;
        sleep(SETTLING + LEFT_OVER).await;
        // A smaller number may have been on its way when the calm began.
        self.go_on_with_all_permits().await;
        sleep(CALM).await;
        self.nobody_waits_long();
        self.world.state().ending = true;
        self.world.wakes.notify_waiters();
        self.end_those_without_runtime().await;
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
    }

    /// A gate does not stay paused.
    async fn go_on_with_all_permits(&self) {
        let Some(process) = self.processes.first() else { return };
        for name in SEMAPHORES {
            while process.client.semaphore(name, self.permits).set_permits(None).await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn nobody_waits_long(&self) {
        let rested = self.world.state().rested;
        let latest = self.world.elapsed().saturating_sub(LONGEST_CALM_WAIT + rested);
        let waiting = self.world.state().waiting.clone();
        if let Some((actor, since)) = waiting.into_iter().find(|(_, since)| *since < latest) {
            self.violated("P9", format!("actor {actor} waits since {since:?}, and there are no faults"));
        }
    }

    async fn end_those_without_runtime(&mut self) {
        for Process { client, actors } in std::mem::take(&mut self.without_runtime) {
            for actor in actors {
                match timeout(LONGEST_WAIT, actor).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => self.violated("P10", format!("an actor without a runtime ended with {error}")),
                    Err(_) => self.violated("P9", format!("an actor of {}, whose runtime ended, hangs", client.id())),
                }
            }
            if timeout(Duration::from_millis(1), client.close()).await.is_err() {
                self.violated("P10", format!("close of {}, whose runtime ended, waits", client.id()));
            }
        }
    }

    fn nothing_is_left(&self) {
        let limits: Vec<_> = SEMAPHORES.into_iter().map(|name| format!("{}:limit", key_of(name))).collect();
        let stays = |key: &String| key.ends_with("}:token") || key == BOOT || limits.contains(key);
        let keys: Vec<_> = self.nodes.iter().flat_map(EmbeddedServer::keys).filter(|key| !stays(key)).collect();
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
    }

    fn violated(&self, promise: &str, what: String) {
        self.world.state().checker.report(promise, what);
    }

    fn outcome(self) -> Outcome {
        let fingerprint = self.world.fingerprint();
        let (violations, timeline) = (self.world.violations(), self.world.timeline());
        let virtual_time = self.world.elapsed();
        self.world.serve(Vec::new());
        let checker = self.trial.checker();
        let mut state = self.world.state();
        if checker.served_together > 0 {
            state.faults.insert("served_together", checker.served_together);
        }
        Outcome {
            violations,
            grants: checker.grants,
            guards: 0,
            handed_over: checker.handed_over,
            expiries: checker.expiries,
            sections: checker.sections,
            ghosts: 0,
            faults: std::mem::take(&mut state.faults),
            virtual_time,
            fingerprint,
            timeline,
        }
    }
}
