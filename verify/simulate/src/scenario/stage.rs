//! A server, callers, and their actions in a scenario. Each step is a line of the story.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Looks, Slot, Snapshot, address};
use fairlock::{EmbeddedServer, FairLock, Held, LockClient, LockClientBuilder, LockError, LockGuard, Owner, Tried};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::checker::{Checker, Claim, Failover, Remembered};
use crate::cluster::Cluster;
use crate::keys::{BOOT, Keys, key_of};
use crate::run::{watch_claims, watch_holders};
use crate::world::{Around, Fate, Mishap, World};

/// How the lines of steps begin.
pub const STEP: &str = "==";
/// No step takes longer, in virtual time.
pub const LONGEST_STEP: Duration = Duration::from_secs(60);
/// Longer than anything that a client leaves may last: leases, places, copies of requests, keys of a queue.
const AFTERMATH: Duration = Duration::from_secs(120);
pub const NAME: &str = "lock0";
/// Another lock. In a cluster it is at node 1, so that all clients connect there.
pub const ANOTHER: &str = "another";

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Records a step.
pub fn step(world: &World, what: impl Into<String>) {
    let what = what.into();
    world.note(STEP, 0, || what);
}

pub struct Stage {
    pub world: Arc<World>,
    /// The lock's first server.
    pub server: EmbeddedServer,
    nodes: Vec<EmbeddedServer>,
    cluster: Option<Arc<Cluster>>,
    replica: Option<(Snapshot, Remembered)>,
    watching: [JoinHandle<()>; 2],
}

impl Stage {
    pub fn new(world: Arc<World>) -> Self {
        let server = simulation::server(Around { world: world.clone(), node: 0 });
        Self::with(world, vec![server], None)
    }

    /// A cluster of two nodes. The lock is at node 0.
    pub fn cluster(world: Arc<World>) -> Self {
        Self::cluster_of(world, 2)
    }

    /// The same with more nodes; the third has its own clock.
    pub fn cluster_of(world: Arc<World>, nodes: usize) -> Self {
        world.state().checker = Checker::new(true);
        let nodes = simulation::cluster((0..nodes).map(|node| Around { world: world.clone(), node }));
        let cluster = Cluster::with(&world, &nodes, [(key_of(NAME), 0), (key_of(ANOTHER), 1)]);
        Self::with(world, nodes, Some(cluster))
    }

    pub fn with(world: Arc<World>, nodes: Vec<EmbeddedServer>, cluster: Option<Arc<Cluster>>) -> Self {
        world.serve(nodes.clone());
        let watching = [tokio::spawn(watch_holders(world.clone())), tokio::spawn(watch_claims(world.clone()))];
        Self { world, server: nodes[0].clone(), nodes, cluster, replica: None, watching }
    }

    /// A caller with its own client: requests may take 500 ms, polls come every 500 ms, a grant lasts for 600 ms, a
    /// waiter lives for 2 s and a lease lasts for 2 s, unless `with` changes that.
    pub async fn caller(&self, name: &'static str, with: fn(LockClientBuilder) -> LockClientBuilder) -> Caller {
        let (client, looks) = self.connect(name, with);
        // So that it knows the server's clock.
        if let Ok(Tried::Acquired(guard)) = client.lock(ANOTHER).try_lock().await {
            let _ = guard.unlock().await;
        }
        let (lock, owner) = (client.lock(NAME), Owner::new());
        Caller { world: self.world.clone(), name, client, looks, lock, fixed: None, owner, guard: None, waiting: None }
    }

    pub fn connect(
        &self,
        name: &str,
        with: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
    ) -> (LockClient, Option<Looks>) {
        let usual = LockClient::builder()
            .label(name)
            .operation_timeout(ms(500))
            .poll_interval(ms(500))
            .grant_ttl(ms(100))
            .waiter_ttl(ms(2000))
            .lease(ms(2000));
        let connected = match &self.nodes[..] {
            [server] => with(usual).embedded(server).map(|client| (client, None)),
            nodes => simulation::connect(with(usual), nodes, &nodes[0]).map(|(client, looks)| (client, Some(looks))),
        };
        let (client, looks) = connected.expect("the server is up");
        self.world.state().call(client.id(), name);
        (client, looks)
    }

    pub async fn passes(&self, time: Duration) {
        step(&self.world, format!("{time:?} pass"));
        sleep(time).await;
    }

    /// From here on the checker judges as without faults: no hold may expire, and nothing may remain.
    pub fn is_calm(&self) {
        step(&self.world, "from here on nothing goes wrong");
        self.world.state().script.iter_mut().for_each(|script| script.settled = true);
    }

    pub fn replica_stays_behind(&mut self) {
        step(&self.world, "the replica hears of nothing that follows");
        let remembered = self.world.state().checker.remember();
        self.replica = self.nodes[0].snapshot().map(|snapshot| (snapshot, remembered));
    }

    /// The replica takes over. In a cluster it is node 1, which already has its own slots.
    pub async fn fails_over(&mut self) {
        let (snapshot, then) = self.replica.take().expect("there is a replica");
        step(&self.world, "the server dies, and the replica takes over");
        let server = &self.nodes[0];
        server.shut_down();
        // The replica's clock must give greater tokens than the other server has granted.
        sleep(ms(5)).await;
        server.restore(snapshot);
        let (at, elsewhere) = (self.world.server_ms(), self.cluster.is_some());
        self.world.state().checker.failed_over(Failover { then, at, strict: false, node: 0, elsewhere });
        match &self.cluster {
            Some(cluster) => cluster.all_go(0, 1),
            None => server.start_up(),
        }
        // Clients connect again, and ask about their holds and places.
        sleep(ms(1)).await;
    }

    fn the_cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("it is a cluster")
    }

    /// Node 1 takes over everything from node 0, which stands still in the meantime and does not know of it when it
    /// goes on.
    pub fn is_replaced_while_it_stands_still(&self) {
        step(&self.world, "node 0 stands still, and node 1 takes over from it");
        let before = self.nodes[0].snapshot().expect("its engine runs");
        self.the_cluster().all_go(0, 1);
        self.nodes[0].restore(before);
        self.the_cluster().knows(0, &key_of(NAME), self.the_cluster().owned_by(0));
        self.world.serve(vec![self.nodes[1].clone()]);
        self.world.state().script.iter_mut().for_each(|script| script.replaced = Some(0));
    }

    /// No key has gone yet.
    pub fn begins_to_move_the_slot_of(&self, name: &str) {
        step(&self.world, format!("an operator begins to move the slot of {name} from node 0 to node 1"));
        let (cluster, lock) = (self.the_cluster(), key_of(name));
        let [from, to] = [0, 1].map(|node| Some(address(&self.nodes[node])));
        self.world.state().checker.begins_to_move(&lock);
        cluster.knows(1, &lock, Slot { importing: from, ..cluster.owned_by(0) });
        cluster.knows(0, &lock, Slot { migrating: to, ..cluster.owned_by(0) });
    }

    /// While others stay, the nodes refuse all requests but renewals (TRYAGAIN).
    pub fn one_key_moves(&self, name: &str, part: &str) {
        step(&self.world, format!("the key {part} goes to node 1, and the others stay for now"));
        self.the_cluster().move_key(&key_of(name), &(key_of(name) + part), 0, 1);
    }

    pub fn all_slots_go(&self, from: usize, to: usize) {
        step(&self.world, format!("an operator moves all slots of node {from} to node {to}"));
        self.the_cluster().all_go(from, to);
    }

    pub fn has_places(&self, count: usize) {
        let places = self.world.state().checker.waiting(&key_of(NAME)).count();
        self.expect(places == count, &format!("{count} have a place in the queue, and not {places}"));
    }

    pub fn has_no_ticket_without_a_place(&self) {
        let keys = Keys::of(&self.nodes, &key_of(NAME));
        let places = keys.places.len();
        self.expect(keys.tickets <= places, &format!("each of {} tickets has one of {places} places", keys.tickets));
    }

    pub fn has_moved_the_slot(&self) {
        step(&self.world, "all keys go to node 1, and both nodes know");
        self.the_cluster().all_go(0, 1);
    }

    pub fn loses_all_data(&self) {
        self.loses_the_data_of_node(0);
    }

    pub fn loses_the_data_of_node(&self, node: usize) {
        step(&self.world, "FLUSHALL: the server has no data any more, and its connections stay");
        self.nodes[node].flush();
        let at = self.world.server_ms();
        self.world.state().checker.flushed(false, node, at);
    }

    pub async fn restarts_without_data(&self) {
        step(&self.world, "the server is started anew, without its data");
        self.server.shut_down();
        self.server.flush();
        let at = self.world.server_ms();
        self.world.state().checker.flushed(false, 0, at);
        self.server.start_up();
        sleep(ms(1)).await;
    }

    pub fn expect(&self, is_so: bool, what: &str) {
        expect(&self.world, is_so, what);
    }

    pub fn has_met_all(&self, what: &str) {
        let has_met_all = self.world.state().has_met_all();
        self.expect(has_met_all, what);
    }

    /// All callers give up their holds and places; nothing of them may remain.
    pub async fn ends(self, callers: impl IntoIterator<Item = Caller>) {
        for mut caller in callers {
            caller.ends().await;
        }
        sleep(AFTERMATH).await;
        let keys = self.nodes.iter().flat_map(EmbeddedServer::keys);
        let keys: Vec<_> = keys.filter(|key| !key.ends_with("}:token") && key != BOOT).collect();
        self.expect(keys.is_empty(), &format!("no keys are left, and not {keys:?}"));
        for watching in self.watching {
            watching.abort();
            // An aborted task ends when the runtime polls it.
            let _ = watching.await;
        }
    }
}

pub fn expect(world: &World, is_so: bool, what: &str) {
    step(world, what);
    if !is_so {
        world.state().checker.report("scenario", format!("it is not so that {what}"));
    }
}

/// A client that wants the lock.
pub struct Caller {
    world: Arc<World>,
    name: &'static str,
    pub client: LockClient,
    /// In a cluster: how it learns who serves which slot.
    looks: Option<Looks>,
    lock: FairLock,
    fixed: Option<Duration>,
    owner: Owner,
    guard: Option<LockGuard>,
    waiting: Option<JoinHandle<Result<LockGuard, LockError>>>,
}

impl Caller {
    /// Another task of the same process, with its own owner.
    pub fn beside(&self, name: &'static str) -> Self {
        let (client, lock, owner) = (self.client.clone(), self.lock.clone(), Owner::new());
        Self {
            world: self.world.clone(),
            name,
            client,
            looks: None,
            lock,
            fixed: None,
            owner,
            guard: None,
            waiting: None,
        }
    }

    /// Outlives the guard, as in a task that watches for the end.
    pub fn watches_its_hold(&self) -> Option<Held> {
        self.guard.as_ref().map(|guard| guard.held())
    }

    pub fn says(&self, what: &str) {
        step(&self.world, format!("{} {what}", self.name));
    }

    /// Sets the fate of its next request of this kind, or of the next message pushed to it.
    pub fn next(&self, script: &'static str, fate: Fate) {
        self.says(&format!("is unlucky: its next {script} is to meet {fate:?}"));
        self.world.state().meets(Mishap { client: self.client.id().to_owned(), script, fate });
    }

    /// It loses the right to a command, for good.
    pub fn may_not(&self, command: &'static str) {
        self.says(&format!("may not {command} any more"));
        self.world.may_not(self.client.id(), command);
    }

    /// In a cluster.
    pub fn hears_that_node_1_took_over(&self, stage: &Stage) {
        self.hears_from_node(1, stage);
    }

    pub fn hears_from_node(&self, node: usize, stage: &Stage) {
        self.says(&format!("hears from node {node} who has the slot now"));
        let is_there = self.looks.as_ref().is_some_and(|looks| looks.look(&stage.nodes[node]));
        expect(&self.world, is_there, "it looks who serves which slot");
    }

    /// From now on. Its client does not renew them.
    pub fn asks_for_leases_of(&mut self, lease: Duration) {
        self.says(&format!("asks for leases of {lease:?}, which are not renewed"));
        (self.lock, self.fixed) = (self.lock.with_lease(lease), Some(lease));
    }

    /// The server refuses its requests of this kind for `time`, and serves all others.
    pub fn is_refused(&self, script: &'static str, time: Duration) {
        self.says(&format!("is refused each {script} for {time:?}"));
        self.world.refuses(self.client.id(), script, "NOREPLICAS too few replicas", time);
    }

    /// As if it lacked the right to run the script for `time`.
    pub fn has_no_right_to(&self, script: &'static str, time: Duration) {
        self.says(&format!("has no right to {script} for {time:?}"));
        self.world.refuses(self.client.id(), script, "NOPERM this user has no permissions", time);
    }

    /// Its connection breaks, and it connects again.
    pub fn loses_its_connection(&self, server: &EmbeddedServer) {
        self.says("loses its connection");
        server.disconnect(self.client.id());
    }

    fn asks(&mut self) {
        let lock = self.lock.clone();
        self.waiting = Some(tokio::spawn(self.owner.scope(async move { lock.lock().await })));
    }

    /// It asks for the lock while another owner has it.
    pub async fn begins_to_wait(&mut self) {
        self.says("asks for the lock");
        self.asks();
        // Until its request has reached the server.
        sleep(2 * self.world.usual_delay()).await;
        let has_place = {
            let state = self.world.state();
            state.checker.waiting(&key_of(NAME)).any(|owner| owner.starts_with(self.client.id()))
        };
        expect(&self.world, has_place, &format!("{} has a place in the queue", self.name));
    }

    /// It gets the lock, after a wait or at once.
    pub async fn gets_the_lock(&mut self) {
        if self.waiting.is_none() {
            self.says("asks for the lock");
            self.asks();
        }
        let waiting = self.waiting.take().expect("it waits");
        match timeout(LONGEST_STEP, waiting).await {
            Ok(Ok(Ok(guard))) => {
                self.has(guard);
            }
            other => expect(&self.world, false, &format!("{} gets the lock, and not {other:?}", self.name)),
        }
    }

    /// From now on it relies on this guard.
    pub fn has(&mut self, guard: LockGuard) {
        self.says("has the lock");
        let (server_ms, lock) = (self.world.server_ms(), key_of(NAME));
        let (process, held, began) = (self.client.id().to_owned(), guard.held(), self.world.elapsed());
        let (lease, is_renewed) = (self.fixed.unwrap_or(held.valid_for()), self.fixed.is_none());
        let claim = Claim { lock, actor: 0, process, held, began, lease, is_renewed, ends: None };
        let checker = &mut self.world.state().checker;
        checker.check_is_known(&claim);
        checker.claim(claim, server_ms, 1.0);
        self.guard = Some(guard);
    }

    /// It no longer relies on its guard.
    pub fn takes_its_guard(&mut self) -> Option<LockGuard> {
        let guard = self.guard.take()?;
        drop(self.world.state().checker.release(&key_of(NAME), guard.token()));
        Some(guard)
    }

    /// Under its owner.
    pub async fn in_scope<T>(&self, call: impl Future<Output = T>) -> T {
        self.owner.scope(call).await
    }

    pub async fn extends(&mut self, lease: Duration) -> bool {
        self.says(&format!("extends its lease to {lease:?}"));
        let Some(guard) = &self.guard else { return false };
        let outcome = guard.extend(lease).await;
        let (server_ms, held, lock) = (self.world.server_ms(), guard.held(), key_of(NAME));
        let checker = &mut self.world.state().checker;
        // Its claim is about the new lease.
        drop(checker.release(&lock, held.token()));
        let (process, began) = (self.client.id().to_owned(), self.world.elapsed());
        checker.claim(
            Claim { lock, actor: 0, process, held, began, lease, is_renewed: false, ends: None },
            server_ms,
            1.0,
        );
        outcome.is_ok()
    }

    pub fn still_waits(&self) {
        let waits = self.waiting.as_ref().is_some_and(|waiting| !waiting.is_finished());
        expect(&self.world, waits, &format!("{} still waits", self.name));
    }

    pub fn still_has_the_lock(&self) {
        let is_valid = self.guard.as_ref().is_some_and(|guard| guard.is_valid());
        expect(&self.world, is_valid, &format!("{} still has the lock", self.name));
    }

    pub fn has_heard_of_its_loss(&self) {
        let is_valid = self.guard.as_ref().is_some_and(|guard| guard.is_valid());
        expect(&self.world, !is_valid, &format!("{} has heard that it lost the lock", self.name));
    }

    /// Or drops a lost guard.
    pub async fn gives_it_back(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let token = guard.token();
        self.says("unlocks");
        let claims = self.world.state().checker.release(&key_of(NAME), token);
        drop(claims);
        let outcome = guard.unlock().await;
        self.says(&format!("hears: {outcome:?}"));
        // A message to the next one.
        sleep(ms(1)).await;
    }

    pub async fn gives_up(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.says("gives up");
            waiting.abort();
            let _ = waiting.await;
        }
    }

    /// Its background tasks do not run, and its callers do.
    pub fn is_not_driven_any_more(&self) {
        self.says("is not driven any more");
        self.world.pause(self.client.id());
    }

    /// Its callers go on.
    pub fn loses_its_runtime(&self, server: &EmbeddedServer) {
        self.says("loses its runtime");
        self.world.end_runtime(self.client.id());
        server.disconnect(self.client.id());
    }

    /// Its process dies. Its holds and places at the server stay.
    pub async fn dies(self, server: &EmbeddedServer) {
        server.disconnect(self.client.id());
        self.vanishes().await;
    }

    /// The same, but the server does not notice the end of its connection.
    pub async fn vanishes(mut self) {
        self.says("dies");
        self.world.kill(self.client.id());
        if let Some(waiting) = self.waiting.take() {
            waiting.abort();
            let _ = waiting.await;
        }
        // A dropped client would close its connection, which the server would notice.
        mem::forget(self.client);
    }

    pub async fn closes_its_client(&mut self) {
        self.says("closes its client");
        let closed = self.client.close().await;
        expect(&self.world, closed.is_ok(), &format!("{} closes its client in time", self.name));
    }

    async fn ends(&mut self) {
        self.gives_up().await;
        self.gives_it_back().await;
        self.closes_its_client().await;
    }
}
