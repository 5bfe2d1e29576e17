//! The parts of a run with shared names that the world does not have.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use fairlock::simulation::Faults;
use tokio::time::sleep;

use super::checker::{Now, SharedChecker};
use super::keys::Keys;
use super::posted::Posted;
use crate::cluster::Cluster;
use crate::keys::key_of;
use crate::world::{Around, World};

pub struct Trial {
    pub world: Arc<World>,
    checker: Mutex<SharedChecker>,
    /// In a cluster. Its nodes refer to this.
    cluster: OnceLock<Weak<Cluster>>,
    /// Handles for actors to find.
    posted: Mutex<Vec<Posted>>,
}

/// Names of shared holds. All others are locks.
pub const SEMAPHORES: [&str; 2] = ["sem0", "sem1"];
pub const RW_LOCKS: [&str; 1] = ["rw0"];

pub fn is_shared(key: &str) -> bool {
    shared_keys().any(|name| key == name)
}

pub fn shared_keys() -> impl Iterator<Item = String> {
    SEMAPHORES.into_iter().chain(RW_LOCKS).map(key_of)
}

impl Trial {
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            checker: Mutex::default(),
            cluster: OnceLock::new(),
            posted: Mutex::default(),
        })
    }

    pub fn has_cluster(&self, cluster: &Arc<Cluster>) {
        let _ = self.cluster.set(Arc::downgrade(cluster));
    }

    fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.get()?.upgrade()
    }

    pub fn keys_of(&self, name: &str) -> Keys {
        Keys::of(&self.world.served(), name)
    }

    /// The node that serves a name. `None`: its slot moves.
    fn home(&self, name: &str) -> Option<usize> {
        self.cluster().map_or(Some(0), |cluster| cluster.home(name))
    }

    /// Whether a slot moves, or moved a moment ago. Calls for its names wait.
    pub fn is_moving(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.is_moving()) || self.world.has_moved_lately()
    }

    /// Neither a present nor an earlier fault has an effect.
    pub fn is_settled(&self) -> bool {
        !self.world.is_settling() && !self.is_moving()
    }

    pub fn post(&self, handle: Posted) {
        self.posted.lock().expect("a panic ends the simulation").push(handle);
    }

    /// One of them, at random.
    pub fn take_posted(&self) -> Option<Posted> {
        let mut posted = self.posted.lock().expect("a panic ends the simulation");
        if posted.is_empty() {
            return None;
        }
        let index = self.world.of_permit(posted.len() as u64) as usize;
        Some(posted.swap_remove(index))
    }

    /// Never call this while the state of the world is locked.
    pub fn checker(&self) -> MutexGuard<'_, SharedChecker> {
        self.checker.lock().expect("a panic ends the simulation")
    }

    pub fn now(&self) -> Now {
        let (at, server_ms) = (self.world.elapsed(), self.world.server_ms());
        let behind =
            |node| Around { world: self.world.clone(), node }.behind().into_iter().map(move |client| (node, client));
        let behind = (0..self.world.nodes()).flat_map(behind).collect();
        let homes = shared_keys().filter_map(|name| Some((name.clone(), self.home(&name)?))).collect();
        Now { at, server_ms, settled: self.is_settled(), strict: self.world.state().strict, behind, homes }
    }

    /// Passes the checker's findings on.
    pub fn report(&self) {
        let found = self.checker().take_found();
        let at = self.world.elapsed();
        let mut state = self.world.state();
        for violation in found {
            state.note(at, "VIOLATION", 0, || violation.clone());
            let (promise, what) = violation.split_once(": ").unwrap_or(("", &violation));
            state.checker.report(promise, what.to_owned());
        }
    }

    /// After a change of the keys by hand, or a loss of data.
    pub fn resync(&self) {
        for name in shared_keys() {
            let keys = self.keys_of(&name);
            self.checker().resync(&name, keys, self.world.server_ms());
        }
    }

    /// Looks again and again. Never ends.
    pub async fn look_on(self: Arc<Self>) {
        loop {
            sleep(Duration::from_millis(20)).await;
            self.look();
        }
    }

    pub fn look(&self) {
        let now = self.now();
        self.checker().look(now);
        self.report();
    }
}
