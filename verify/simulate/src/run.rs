//! One run: processes with their actors, a time of trouble, then calm, in which everything has to
//! come to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlock::{EmbeddedServer, LockClient, LockClientBuilder};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::actor::Actor;
use crate::world::{SETTLING, World};

const TROUBLE: Duration = Duration::from_secs(60);
/// In calm nobody waits longer than this, however many there are.
const LONGEST_WAIT: Duration = Duration::from_secs(180);
/// Of work in a calm world.
const CALM: Duration = Duration::from_secs(6);
/// A run with less of it proves nothing.
const LEAST_SECTIONS: u64 = 60;
const LEAST_FAULTS: u64 = 100;
const LEAST_EXPIRIES: u64 = 2;

pub struct Outcome {
    pub violations: Vec<String>,
    pub grants: u64,
    pub handed_over: u64,
    pub expiries: u64,
    pub sections: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub virtual_time: Duration,
    pub fingerprint: u64,
    pub timeline: Vec<String>,
}

pub fn run(seed: u64, verbose: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread");
    runtime.block_on(async {
        let world = World::new(seed, verbose);
        let mut stage = Stage::new(&world);
        stage.play().await;
        stage.outcome()
    })
}

/// Whoever is alive has a place: the sorted set is never without its list.
async fn look_on(world: Arc<World>, server: EmbeddedServer) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let keys = server.keys();
        for name in keys.iter().filter_map(|key| key.strip_suffix(":deadlines")) {
            if !keys.contains(&format!("{name}:queue")) {
                world.state().checker.said("P3", format!("{name} has living waiters and no queue"));
            }
        }
    }
}

/// A process: a client and its actors.
struct Process {
    client: LockClient,
    actors: Vec<JoinHandle<()>>,
}

struct Stage {
    world: Arc<World>,
    server: EmbeddedServer,
    processes: Vec<Process>,
    names: usize,
    actors: usize,
}

impl Stage {
    fn new(world: &Arc<World>) -> Self {
        let server = fairlock::simulation::server(world.clone());
        let names = 1 + world.below(3) as usize;
        Self { world: world.clone(), server, processes: Vec::new(), names, actors: 0 }
    }

    async fn play(&mut self) {
        let processes = 2 + self.world.below(3);
        for _ in 0..processes {
            self.start_process();
        }
        let looking_on = tokio::spawn(look_on(self.world.clone(), self.server.clone()));
        while self.world.state().checker.violations.is_empty() && !self.has_seen_enough() {
            self.trouble().await;
        }
        looking_on.abort();
        if self.world.state().checker.violations.is_empty() {
            self.come_to_rest().await;
        }
    }

    /// A run that has met too little goes on for a while.
    fn has_seen_enough(&self) -> bool {
        let elapsed = self.world.elapsed();
        elapsed > 3 * TROUBLE || elapsed > TROUBLE && self.is_quiet().is_none()
    }

    /// What a run with too little in it has: it proves nothing.
    fn is_quiet(&self) -> Option<String> {
        let state = self.world.state();
        let (sections, expiries, faults) =
            (state.checker.sections, state.checker.expiries, state.faults.values().sum::<u64>());
        let quiet = sections < LEAST_SECTIONS || faults < LEAST_FAULTS || expiries < LEAST_EXPIRIES;
        quiet.then(|| format!("{sections} sections, {faults} faults and {expiries} expiries prove nothing"))
    }

    fn start_process(&mut self) {
        let (builder, shortest_lease) = self.settings();
        // Down: then this process comes another time.
        let Ok(client) = builder.embedded(&self.server) else { return };
        let actors = 1 + self.world.below(4) as usize;
        let mut handles = Vec::new();
        for _ in 0..actors {
            self.actors += 1;
            let actor = Actor {
                world: self.world.clone(),
                client: client.clone(),
                number: self.actors,
                names: self.names,
                shortest_lease,
            };
            handles.push(tokio::spawn(self.world.in_process(client.id(), Box::pin(actor.live()))));
        }
        self.processes.push(Process { client, actors: handles });
    }

    /// Clients with different settings meet at one lock.
    fn settings(&self) -> (LockClientBuilder, Duration) {
        let ms = |from: u64, to: u64| Duration::from_millis(from + self.world.below(to - from));
        let (timeout, poll) = (ms(200, 1000), ms(200, 700));
        let shortest_lease = timeout.max(poll);
        // As short as may be, too: then a push comes about when its grant can be trusted last.
        let grant = poll + if self.world.chance(0.3) { Duration::ZERO } else { ms(0, 800) };
        let builder = LockClient::builder()
            .label("simulated")
            // Where a queue may be full, dead tickets are cleared early.
            .max_waiters(if self.world.chance(0.3) { 2 + self.world.below(8) as u32 } else { 65_536 })
            .operation_timeout(timeout)
            .poll_interval(poll)
            .grant_ttl(grant)
            .waiter_ttl(grant.max(2 * poll) + if self.world.chance(0.3) { ms(0, 4000) } else { ms(0, 500) })
            .lease(shortest_lease + ms(0, 3000));
        (builder, shortest_lease)
    }

    /// A while, then something bad.
    async fn trouble(&mut self) {
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        let victim = self.world.below(self.processes.len().max(1) as u64) as usize;
        match self.world.below(13) {
            0..3 => self.pause(self.processes.get(victim)),
            // The host of all their machines.
            12 => self.pause(&self.processes),
            3..6 => self.kill(victim),
            6..9 => self.disconnect(victim),
            9 => self.restart_server(false).await,
            10 => self.restart_server(true).await,
            _ => self.flush(),
        }
        if self.processes.len() < 2 || self.world.chance(0.1) {
            self.world.fault("restarts");
            self.start_process();
        }
    }

    fn pause<'a>(&self, victims: impl IntoIterator<Item = &'a Process>) {
        let world = self.world.clone();
        let victims: Vec<_> = victims.into_iter().map(|victim| victim.client.id().to_owned()).collect();
        // Half of them long enough to lose everything.
        let most = if world.chance(0.5) { 7000 } else { 300 };
        let length = Duration::from_millis(world.below(most));
        tokio::spawn(async move {
            victims.iter().for_each(|victim| world.pause(victim));
            sleep(length).await;
            victims.iter().for_each(|victim| world.go_on(victim));
        });
    }

    fn kill(&mut self, victim: usize) {
        if victim >= self.processes.len() {
            return;
        }
        let process = self.processes.swap_remove(victim);
        let id = process.client.id().to_owned();
        self.world.kill(&id);
        if self.world.chance(0.6) {
            return self.server.disconnect(&id);
        }
        // The machine is gone, and the server does not know it yet.
        self.world.fault("half_open_deaths");
        let (world, server) = (self.world.clone(), self.server.clone());
        tokio::spawn(async move {
            world.sleep_up_to(Duration::from_secs(8)).await;
            server.disconnect(&id);
        });
    }

    fn disconnect(&self, victim: usize) {
        if let Some(process) = self.processes.get(victim) {
            self.world.fault("disconnects");
            self.server.disconnect(process.client.id());
        }
    }

    async fn restart_server(&self, forgets: bool) {
        self.world.fault(if forgets { "server_restarts_without_data" } else { "server_restarts" });
        self.server.shut_down();
        self.world.sleep_up_to(Duration::from_millis(1500)).await;
        if forgets {
            self.forget();
        }
        self.server.start_up();
    }

    fn flush(&self) {
        self.world.fault("flushes");
        self.forget();
    }

    fn forget(&self) {
        self.server.flush();
        self.world.state().checker.flushed();
    }

    /// Nothing goes wrong any more, so everybody gets on, and nothing is left.
    async fn come_to_rest(&mut self) {
        self.world.be_calm();
        for process in &self.processes {
            self.world.go_on(process.client.id());
        }
        // What goes on has to work as if nothing had happened.
        sleep(SETTLING + CALM).await;
        self.world.state().ending = true;
        let processes = std::mem::take(&mut self.processes);
        for Process { client, actors } in processes {
            for actor in actors {
                match timeout(LONGEST_WAIT, actor).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return self.violated("P10", format!("an actor ended with {error}")),
                    Err(_) => return self.violated("P9", format!("an actor of {} waits for ever", client.id())),
                }
            }
            if let Err(error) = client.close().await {
                self.violated("P10", format!("close of {}: {error}", client.id()));
            }
        }
        sleep(SETTLING).await;
        self.nothing_is_left();
    }

    fn nothing_is_left(&self) {
        let keys: Vec<_> = self.server.keys().into_iter().filter(|key| !key.ends_with("}:token")).collect();
        if !keys.is_empty() {
            self.violated("P10", format!("keys are left: {keys:?}"));
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            self.violated("P10", format!("{tasks} tasks are left"));
        }
        if let Some(what) = self.is_quiet() {
            self.violated("quiet", what);
        }
        let checker = &mut self.world.state().checker;
        checker.updates_are_exact();
        checker.losses_were_followed_by_leaves();
    }

    fn violated(&self, promise: &str, what: String) {
        self.world.state().checker.said(promise, what);
    }

    fn outcome(self) -> Outcome {
        let fingerprint = self.world.fingerprint();
        let timeline = self.world.timeline();
        let virtual_time = self.world.elapsed();
        let mut state = self.world.state();
        Outcome {
            violations: std::mem::take(&mut state.checker.violations),
            grants: state.checker.grants,
            handed_over: state.checker.handed_over,
            expiries: state.checker.expiries,
            sections: state.checker.sections,
            faults: std::mem::take(&mut state.faults),
            virtual_time,
            fingerprint,
            timeline,
        }
    }
}
