//! A cluster of embedded servers: where the locks are, how their slots move, and what clients learn of that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fairlock::EmbeddedServer;
use fairlock::simulation::{Looks, Slot, Snapshot, address, set_slot};
use tokio::time::{sleep, timeout};

use crate::checker::{Failover, Remembered};
use crate::keys::key_of;
use crate::world::World;

/// The longest pause between a client's looks at the slots, in the calm phase and before.
const LOOKS: (Duration, Duration) = (Duration::from_millis(400), Duration::from_millis(2500));
/// The pause before a look that a redirect causes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// How long a move of a slot's keys takes at most, in ms.
const MOVING: u64 = 6000;
/// How long another node may take to learn that a slot has moved.
const HEARD: Duration = Duration::from_millis(300);

pub struct Cluster {
    world: Arc<World>,
    nodes: Vec<EmbeddedServer>,
    /// Keyed by lock key. Each lock has its own slot.
    places: Mutex<BTreeMap<String, Place>>,
}

/// A slot that will move.
pub struct Move {
    pub lock: String,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy)]
struct Place {
    node: usize,
    moves: bool,
}

impl Cluster {
    pub fn new(world: &Arc<World>, nodes: &[EmbeddedServer], names: usize) -> Arc<Self> {
        // One more than the actors use: no waiter finds a hold that a failover brings back there.
        let locks = (0..=names).map(|name| key_of(&format!("lock{name}")));
        Self::anywhere(world, nodes, locks)
    }

    /// Each of these names at a random node.
    pub fn anywhere(
        world: &Arc<World>,
        nodes: &[EmbeddedServer],
        names: impl IntoIterator<Item = String>,
    ) -> Arc<Self> {
        let places = names.into_iter().map(|name| (name, world.below(nodes.len() as u64) as usize));
        Self::with(world, nodes, places)
    }

    /// Each lock is at this node.
    pub fn with(
        world: &Arc<World>,
        nodes: &[EmbeddedServer],
        locks: impl IntoIterator<Item = (String, usize)>,
    ) -> Arc<Self> {
        let (world, nodes) = (world.clone(), nodes.to_vec());
        let cluster = Arc::new(Self { world, nodes, places: Mutex::default() });
        for (lock, node) in locks {
            (0..cluster.nodes.len()).for_each(|knows| cluster.knows(knows, &lock, cluster.owned_by(node)));
            cluster.world.state().checker.has_moved(&lock, node);
            cluster.places().insert(lock, Place { node, moves: false });
        }
        cluster
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().expect("a panic ends the simulation")
    }

    /// The node of a lock. `None`: it moves.
    pub fn home(&self, lock: &str) -> Option<usize> {
        self.places().get(lock).filter(|place| !place.moves).map(|place| place.node)
    }

    pub fn any(&self) -> usize {
        self.world.below(self.nodes.len() as u64) as usize
    }

    fn other_than(&self, node: usize) -> usize {
        (node + 1 + self.world.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len()
    }

    pub fn owned_by(&self, node: usize) -> Slot {
        Slot { owner: address(&self.nodes[node]), ..Slot::default() }
    }

    pub fn knows(&self, node: usize, lock: &str, slot: Slot) {
        set_slot(&self.nodes[node], lock, slot);
    }

    /// Whether any slot is on the move.
    pub fn is_moving(&self) -> bool {
        self.places().values().any(|place| place.moves)
    }

    /// Stands in for a client's watch: looks now and then, and a while after a redirect. The node it asks may not know
    /// yet.
    pub async fn watch(self: Arc<Self>, looks: Looks) {
        let mut is_there = true;
        while is_there {
            let most = if self.world.state().calm { LOOKS.0 } else { LOOKS.1 };
            tokio::select! {
                biased;
                () = looks.doubt() => sleep(SHORTEST_PAUSE).await,
                () = self.world.sleep_up_to(most) => {}
            }
            is_there = looks.look(&self.nodes[self.any()]);
        }
    }

    /// Moves the slot of a lock, key by key, as an operator would; sometimes to and fro.
    pub fn move_a_slot(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        // It counts as moving from now on.
        let chosen = self.choose();
        let cluster = self.clone();
        async move {
            if let Some(chosen) = chosen {
                cluster.move_slot(&chosen).await;
            }
        }
    }

    /// A lock whose slot does not move, its node, and a node to move it to.
    pub fn choose(&self) -> Option<Move> {
        let mut places = self.places();
        let mut resting: Vec<_> = places.iter_mut().filter(|(_, place)| !place.moves).collect();
        let chosen = self.world.below(resting.len().max(1) as u64) as usize;
        let (lock, place) = resting.get_mut(chosen)?;
        let (from, to) = (place.node, self.other_than(place.node));
        let clock = self.world.clock_of(to);
        if !self.world.state().checker.outgrows(lock, clock) {
            return None;
        }
        place.moves = true;
        Some(Move { lock: lock.clone(), from, to })
    }

    pub async fn move_slot(&self, Move { lock, from, to }: &Move) {
        let (from, to) = (*from, *to);
        self.world.fault("slots_moved");
        self.world.note("moves", to, || format!("the slot of {lock} from node {from} to {to}"));
        self.world.stalls_until(Duration::MAX);
        self.world.state().checker.begins_to_move(lock);
        self.knows(to, lock, Slot { importing: Some(address(&self.nodes[from])), ..self.owned_by(from) });
        self.world.sleep_up_to(Duration::from_millis(20)).await;
        self.knows(from, lock, Slot { migrating: Some(address(&self.nodes[to])), ..self.owned_by(from) });
        let gives_up = self.world.chance(0.25);
        self.move_keys(lock, from, to, if gives_up { 0.3 } else { 0.0 }).await;
        let serves = if gives_up { from } else { to };
        if gives_up {
            self.world.fault("slots_moved_back");
            if self.world.chance(0.5) {
                self.move_back_behind_a_renewal(lock, to, from).await;
            }
            self.move_keys(lock, to, from, 0.0).await;
        }
        // First the node that has the keys: no other node may take them for absent.
        let last = if gives_up { to } else { from };
        self.knows(serves, lock, self.owned_by(serves));
        self.world.state().checker.has_moved(lock, serves);
        self.world.sleep_up_to(Duration::from_millis(20)).await;
        self.knows(last, lock, self.owned_by(serves));
        for node in (0..self.nodes.len()).filter(|node| ![serves, last].contains(node)) {
            self.world.sleep_up_to(HEARD).await;
            self.knows(node, lock, self.owned_by(serves));
        }
        self.places().insert(lock.clone(), Place { node: serves, moves: false });
        self.world.note("has moved", serves, || format!("{lock} is at node {serves}"));
        self.world.stalls_until(self.world.elapsed() + Duration::from_secs(1));
        let at = self.world.server_ms();
        self.world.state().checker.rests(lock, at);
    }

    /// While a renewal is on its way to the node that the key leaves.
    async fn move_back_behind_a_renewal(&self, lock: &str, from: usize, to: usize) {
        let _ = timeout(Duration::from_secs(2), self.world.sent_on.notified()).await;
        if self.keys_at(lock, from).iter().any(|key| key == lock) {
            self.move_key(lock, lock, from, to);
        }
    }

    /// In random order. May stop before the last one.
    async fn move_keys(&self, lock: &str, from: usize, to: usize, stops: f64) {
        let pace = Duration::from_millis(if self.world.chance(0.5) { 5 } else { 1500 });
        let until = self.world.elapsed() + Duration::from_millis(self.world.below(MOVING));
        loop {
            let keys = self.keys_at(lock, from);
            if keys.is_empty() || self.world.chance(stops) {
                // A slot may stay half-way for a while.
                return self.world.sleep_up_to(pace).await;
            }
            self.move_key(lock, &keys[self.world.below(keys.len() as u64) as usize], from, to);
            let is_late = self.world.elapsed() > until;
            self.world.sleep_up_to(if is_late { Duration::from_millis(2) } else { pace }).await;
        }
    }

    /// In the same order in each run of a seed: the numbers of owners count on from run to run.
    fn keys_at(&self, lock: &str, node: usize) -> Vec<String> {
        let mut keys: Vec<_> = self.nodes[node].keys().into_iter().filter(|key| key.starts_with(lock)).collect();
        keys.sort_by_key(|key| {
            let (head, last) = key.rsplit_once(':').unwrap_or_default();
            (head.to_owned(), last.parse::<u64>().ok(), last.to_owned())
        });
        keys
    }

    pub fn move_key(&self, lock: &str, key: &str, from: usize, to: usize) {
        self.nodes[from].migrate(key, &self.nodes[to]);
        self.world.note("moves", to, || format!("{key} to node {to}"));
        self.world.state().checker.key_has_moved(lock);
    }

    /// All slots of a node go to another one at once, with the present state of the first.
    pub fn all_go(&self, from: usize, to: usize) {
        let here: Vec<_> =
            self.places().iter().filter(|(_, place)| place.node == from).map(|(lock, _)| lock.clone()).collect();
        let now = self.world.server_ms();
        for lock in &here {
            self.keys_at(lock, from).iter().for_each(|key| self.move_key(lock, key, from, to));
            (0..self.nodes.len()).for_each(|node| self.knows(node, lock, self.owned_by(to)));
            self.world.state().checker.has_moved(lock, to);
            self.world.state().checker.rests(lock, now);
            self.places().insert(lock.clone(), Place { node: to, moves: false });
        }
        self.world.note("takes over", to, || format!("node {to} has {here:?} of node {from}"));
    }

    /// By hand, as CLUSTER FAILOVER does: no data is lost, and connections to the earlier node stay.
    pub fn hand_over(&self) {
        let from = self.any();
        let to = self.other_than(from);
        if self.is_moving() || !self.may_forget(from, to) {
            return;
        }
        self.world.fault("nodes_replaced");
        self.world.stalls_until(self.world.elapsed() + Duration::from_secs(1));
        self.all_go(from, to);
    }

    /// Whether a node may take over another one's locks without their last tokens: P2 holds as far as the clocks agree.
    pub fn may_forget(&self, from: usize, to: usize) -> bool {
        let clock = self.world.clock_of(to);
        self.world.state().checker.outgrows_all_of(from, clock)
    }

    /// The node that takes over: another one, or the same one again.
    pub fn next_of(&self, node: usize) -> usize {
        if self.world.chance(0.5) { self.other_than(node) } else { node }
    }

    /// A node has died, and another one with older data takes over. The first one comes back later, without slots.
    /// `taken_over` runs before anybody reaches the new one.
    pub async fn replace(
        &self,
        (from, to): (usize, usize),
        (snapshot, then): (Snapshot, Remembered),
        outage: Duration,
        taken_over: impl FnOnce(),
    ) {
        self.world.fault("nodes_replaced");
        self.world.goes_down(outage + Duration::from_secs(1));
        self.nodes[from].shut_down();
        sleep(Duration::from_millis(1)).await;
        self.world.sleep_up_to(outage).await;
        self.put_back(from, snapshot);
        let at = self.world.server_ms();
        let failover = Failover { then, at, strict: false, node: from, elsewhere: true };
        self.world.state().checker.failed_over(failover);
        self.all_go(from, to);
        taken_over();
        self.world.sleep_up_to(outage).await;
        self.nodes[from].start_up();
    }

    /// Does not put back keys of slots that have gone elsewhere since.
    pub fn put_back(&self, node: usize, snapshot: Snapshot) {
        self.nodes[node].restore(snapshot);
        let elsewhere: Vec<_> =
            self.places().iter().filter(|(_, place)| place.node != node).map(|(lock, _)| lock.clone()).collect();
        for lock in elsewhere {
            for key in self.keys_at(&lock, node) {
                let _ = fairlock::simulation::command(&self.nodes[node], &["DEL", &key]);
            }
        }
    }
}
