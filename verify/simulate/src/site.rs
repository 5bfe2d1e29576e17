//! The servers of a run and the processes that use them: the common part of all kinds of runs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Snapshot};
use fairlock::{ConnectError, EmbeddedServer, LockClient, LockClientBuilder};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::asked::Asked;
use crate::checker::Remembered;
use crate::closing::close;
use crate::cluster::Cluster;
use crate::keys::frozen_until;
use crate::outcome::Outcome;
use crate::world::{LONGEST_LEASE, World};

/// In the calm phase no actor waits longer than this (P9).
const LONGEST_WAIT: Duration = Duration::from_secs(180);
/// In the calm phase no actor waits longer than this while the others go on.
const LONGEST_CALM_WAIT: Duration = Duration::from_secs(15);

/// A process: a client and its actors.
pub struct Process {
    pub client: LockClient,
    pub actors: Vec<JoinHandle<()>>,
}

pub struct Site {
    pub world: Arc<World>,
    /// One server, the nodes of a cluster, or several masters.
    pub nodes: Vec<EmbeddedServer>,
    pub cluster: Option<Arc<Cluster>>,
    pub processes: Vec<Process>,
    /// The processes whose client's runtime has ended, or whose client closes.
    ended: Vec<Process>,
    /// Kept until the run ends: a dropped client closes its connections, and a process that dies does not.
    dead: Vec<LockClient>,
    actors: usize,
}

/// A client's options.
pub struct Settings {
    pub builder: LockClientBuilder,
    pub operation_timeout: Duration,
    pub shortest_lease: Duration,
    pub lease: Duration,
}

impl Site {
    pub fn new(world: &Arc<World>, nodes: Vec<EmbeddedServer>, cluster: Option<Arc<Cluster>>) -> Self {
        let (processes, ended, dead) = (Vec::new(), Vec::new(), Vec::new());
        Self { world: world.clone(), nodes, cluster, processes, ended, dead, actors: 0 }
    }

    pub fn is_sound(&self) -> bool {
        self.world.state().checker.violations.is_empty()
    }

    pub fn violated(&self, promise: &str, what: String) {
        self.world.state().checker.report(promise, what);
    }

    /// A random node. Draws nothing if there is only one.
    pub fn any(&self) -> usize {
        if self.nodes.len() == 1 { 0 } else { self.world.below(self.nodes.len() as u64) as usize }
    }

    /// Random ones, so that clients with different settings use the same names. `small`: how often a queue has little
    /// room.
    pub fn settings(&self, small: f64) -> Settings {
        let ms = |from: u64, to: u64| Duration::from_millis(from + self.world.below(to - from));
        let (operation_timeout, poll) = (ms(200, 1000), ms(200, 700));
        let shortest_lease = operation_timeout.max(poll);
        // Sometimes a push arrives close to the last moment at which the client can trust its grant (R7).
        let grant = if self.world.chance(0.3) { ms(1, 2) } else { ms(1, 800) };
        let builder = LockClient::builder()
            .label("simulated")
            // If the queue can be full, acquire clears dead tickets early, in separate code.
            .max_waiters(if self.world.chance(small) { 2 + self.world.below(8) as u32 } else { 65_536 })
            .operation_timeout(operation_timeout)
            .poll_interval(poll)
            .grant_ttl(grant)
            .waiter_ttl((grant + poll).max(3 * poll) + if self.world.chance(0.3) { ms(0, 4000) } else { ms(0, 500) });
        let lease = shortest_lease + ms(0, 3000);
        Settings { builder: builder.lease(lease), operation_timeout, shortest_lease, lease }
    }

    /// If all clients are strict, their freezes differ: the longest one counts.
    pub fn strict(&self, builder: LockClientBuilder) -> LockClientBuilder {
        if !self.world.state().strict {
            return builder;
        }
        builder.strict_restart(LONGEST_LEASE + Duration::from_millis(self.world.below(2000)))
    }

    pub fn connect(&self, builder: LockClientBuilder) -> Option<LockClient> {
        let Some(cluster) = &self.cluster else { return self.begun(builder.embedded(&self.nodes[0])) };
        let (client, looks) = self.begun(simulation::connect(builder, &self.nodes, &self.nodes[self.any()]))?;
        let watch = cluster.clone().watch(looks);
        tokio::spawn(self.world.in_process(client.id(), Box::pin(watch)));
        Some(client)
    }

    /// `None`: the server is down; another process may start later. Any other error means wrong settings, with which no
    /// client would begin.
    pub fn begun<T>(&self, made: Result<T, ConnectError>) -> Option<T> {
        let wrong = made.as_ref().err().filter(|error| !error.may_pass());
        wrong.into_iter().for_each(|error| self.violated("settings", error.to_string()));
        made.ok()
    }

    pub fn next_actor(&mut self) -> usize {
        self.actors += 1;
        self.actors
    }

    pub fn spawn(&self, client: &LockClient, actor: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        tokio::spawn(self.world.in_process(client.id(), Box::pin(actor)))
    }

    pub fn starts_another(&self) -> bool {
        let starts = self.processes.len() < 2 || self.world.chance(0.1);
        if starts {
            self.world.fault("restarts");
        }
        starts
    }

    /// Another restart would freeze it even longer, and a run without grants proves nothing.
    pub fn is_frozen(&self) -> bool {
        frozen_until(&self.nodes[0]) > self.world.server_ms()
    }
}

/// The next fault, on one server or a cluster. Each kind of run has its own part in some of them.
pub enum Fault {
    /// None this time.
    NotNow,
    /// The site alone has caused it.
    Caused,
    Killed(String),
    Restart {
        loses_data: bool,
    },
    DeleteAKey,
    FailOver,
    Flush,
}

/// Faults of processes and servers. A missing victim suffers nothing.
impl Site {
    /// Waits a little, then causes one fault. `asked`: see [`close`].
    pub async fn next_fault(&mut self, asked: impl Fn() -> Vec<Asked> + Send + 'static) -> Fault {
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
            return Fault::NotNow;
        }
        if self.world.closes_one() {
            self.close(victim, asked);
        }
        if let Some(length) = self.world.delays_a_driver() {
            self.delay_driver(victim, length);
        }
        match fault {
            0..3 => self.pause(self.processes.get(victim)),
            // All processes at once.
            12 => self.pause(&self.processes),
            13 => self.end_runtime(victim).iter().for_each(|id| self.cut_off(id, &self.nodes)),
            3..6 => {
                let Some(id) = self.kill(victim) else { return Fault::Caused };
                self.cut_off(&id, &self.nodes);
                return Fault::Killed(id);
            }
            6..9 => self.disconnect(victim),
            9 | 10 => return Fault::Restart { loses_data: fault == 10 },
            14 => self.silence(victim),
            15..17 => return Fault::DeleteAKey,
            17 => return Fault::FailOver,
            18 => self.stop_server(),
            19 => self.leave_behind(victim),
            _ => return Fault::Flush,
        }
        Fault::Caused
    }

    pub fn pause<'a>(&self, victims: impl IntoIterator<Item = &'a Process>) {
        let world = self.world.clone();
        let victims: Vec<_> = victims.into_iter().map(|victim| victim.client.id().to_owned()).collect();
        // Half of the pauses may be long enough to lose every hold.
        let length = Duration::from_millis(world.below(if world.chance(0.5) { 7000 } else { 300 }));
        tokio::spawn(async move {
            victims.iter().for_each(|victim| world.pause(victim));
            sleep(length).await;
            victims.iter().for_each(|victim| world.go_on(victim));
        });
    }

    /// Answers, messages and timers come late; callers do not.
    fn delay_driver(&self, victim: usize, length: Duration) {
        let Some(victim) = self.processes.get(victim) else { return };
        let (world, id) = (self.world.clone(), victim.client.id().to_owned());
        world.delay(&id);
        tokio::spawn(async move {
            sleep(length).await;
            world.drive(&id);
        });
    }

    /// The servers receive nothing from it for longer than a waiter lives, then it is back. In half of the cases no
    /// message reaches it.
    pub fn silence(&self, victim: usize) {
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

    /// Requests to it arrive when it goes on.
    pub fn stop_server(&self) {
        // Half the time less than a waiter lives, half the time more.
        let most = if self.world.chance(0.5) { 1000 } else { 9000 };
        self.world.stop_server(Duration::from_millis(self.world.below(most)));
    }

    /// After a failover it is still subscribed to the earlier server, now a replica, which repeats published messages.
    pub fn leave_behind(&self, victim: usize) {
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

    pub fn disconnect(&self, victim: usize) {
        let Some(victim) = self.processes.get(victim) else { return };
        self.world.fault_of("disconnects", victim.client.id());
        self.nodes[self.any()].disconnect(victim.client.id());
    }

    fn take(&mut self, victim: usize) -> Option<Process> {
        (victim < self.processes.len()).then(|| self.processes.swap_remove(victim))
    }

    /// Returns its id, for [`cut_off`](Self::cut_off).
    pub fn kill(&mut self, victim: usize) -> Option<String> {
        let process = self.take(victim)?;
        let id = process.client.id().to_owned();
        self.world.kill(&id);
        self.dead.push(process.client);
        Some(id)
    }

    /// Its actors go on, each until it learns of the end. Returns its id, for [`cut_off`](Self::cut_off).
    pub fn end_runtime(&mut self, victim: usize) -> Option<String> {
        let process = self.take(victim)?;
        let id = process.client.id().to_owned();
        self.world.end_runtime(&id);
        self.ended.push(process);
        Some(id)
    }

    /// Its actors go on, each until a call reports that the client is closed. `asked`: see [`close`].
    pub fn close(&mut self, victim: usize, asked: impl Fn() -> Vec<Asked> + Send + 'static) {
        let Some(mut process) = self.take(victim) else { return };
        self.world.closes(process.client.id());
        let closing = close(self.world.clone(), process.client.clone(), self.nodes.clone(), asked);
        process.actors.push(self.spawn(&process.client, closing));
        self.ended.push(process);
    }

    /// These servers learn now or later that the client is gone.
    pub fn cut_off(&self, id: &str, nodes: &[EmbeddedServer]) {
        if self.world.chance(0.6) {
            return nodes.iter().for_each(|node| node.disconnect(id));
        }
        // The machine is gone, but to the server its connection is still open (P6).
        self.world.fault("half_open_deaths");
        let (world, nodes, id) = (self.world.clone(), nodes.to_vec(), id.to_owned());
        tokio::spawn(async move {
            world.sleep_up_to(Duration::from_secs(8)).await;
            nodes.iter().for_each(|node| node.disconnect(&id));
        });
    }

    pub fn is_moving(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.is_moving())
    }

    /// Never of half a slot.
    pub fn snapshot(&self, node: usize) -> Option<(Snapshot, Remembered)> {
        let snapshot = self.nodes[node].snapshot().filter(|_| !self.is_moving())?;
        self.world.note("snapshot", node, String::new);
        Some((snapshot, self.world.state().checker.remember()))
    }

    /// R14: it started, or lost its data. If all clients are strict, it grants nothing until then (server ms).
    pub fn must_freeze(&self) -> Option<i64> {
        let until = self.world.server_ms() + LONGEST_LEASE.as_millis() as i64;
        let mut state = self.world.state();
        state.strict.then(|| {
            state.count("strict_restarts");
            state.checker.must_freeze(until);
            until
        })
    }
}

/// The end, in a calm phase.
impl Site {
    pub fn be_calm(&self) {
        self.world.be_calm();
        for process in &self.processes {
            self.world.go_on(process.client.id());
            self.world.drive_again(process.client.id());
        }
    }

    /// P9: waiters that lost their place find out, and the queue moves.
    pub fn nobody_waits_long(&self) {
        let rested = self.world.state().rested;
        let latest = self.world.elapsed().saturating_sub(LONGEST_CALM_WAIT + rested);
        let waiting = self.world.state().waiting.clone();
        if let Some((actor, since)) = waiting.into_iter().find(|(_, since)| *since < latest) {
            self.violated("P9", format!("actor {actor} waits since {since:?}, and there are no faults"));
        }
    }

    /// All actors end and all clients close. If a client's runtime has ended, or the client is closed, its callers all
    /// know: none waits for an answer that cannot come. It can release nothing any more, so its close must not wait.
    pub async fn end_all(&mut self) {
        self.world.state().ending = true;
        self.world.wakes.notify_waiters();
        for Process { client, actors } in std::mem::take(&mut self.ended) {
            self.end_actors(&client, actors).await;
            if timeout(Duration::from_millis(1), client.close()).await.is_err() {
                self.violated("P10", format!("close of {}, which has ended, waits", client.id()));
            }
        }
        for Process { client, actors } in std::mem::take(&mut self.processes) {
            self.end_actors(&client, actors).await;
            if let Err(error) = client.close().await {
                self.violated("P10", format!("close of {}: {error}", client.id()));
            }
        }
    }

    async fn end_actors(&self, client: &LockClient, actors: Vec<JoinHandle<()>>) {
        for actor in actors {
            match timeout(LONGEST_WAIT, actor).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return self.violated("P10", format!("an actor ended with {error}")),
                Err(_) => return self.violated("P9", format!("an actor of {} waits without end", client.id())),
            }
        }
    }

    pub fn nothing_is_left(&self, stays: impl Fn(&String) -> bool) {
        for (node, server) in self.nodes.iter().enumerate() {
            let keys: Vec<_> = server.keys().into_iter().filter(|key| !stays(key)).collect();
            if !keys.is_empty() {
                self.violated("P10", format!("keys are left at node {node}: {keys:?}"));
            }
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            self.violated("P10", format!("{tasks} tasks are left"));
        }
    }

    /// Without its checker's counts.
    pub fn outcome(&self) -> Outcome {
        let fingerprint = self.world.fingerprint();
        let (violations, timeline) = (self.world.violations(), self.world.timeline());
        let virtual_time = self.world.elapsed();
        // The servers know the world, and it knows them.
        self.world.serve(Vec::new());
        let faults = std::mem::take(&mut self.world.state().faults);
        Outcome { violations, faults, virtual_time, fingerprint, timeline, ..Outcome::default() }
    }
}
