//! What a run of shared names has beside the world.

use std::sync::{Arc, Mutex, MutexGuard};

use fairlock::EmbeddedServer;
use fairlock::simulation::Faults;

use super::checker::{Now, SharedChecker};
use super::keys::Keys;
use super::posted::Posted;
use crate::keys::key_of;
use crate::world::{Around, World};

pub struct Trial {
    pub world: Arc<World>,
    checker: Mutex<SharedChecker>,
    server: Mutex<Option<EmbeddedServer>>,
    /// Handles that are to be found.
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
            server: Mutex::default(),
            posted: Mutex::default(),
        })
    }

    pub fn serve(&self, server: Option<EmbeddedServer>) {
        *self.server.lock().expect("a panic ends the simulation") = server;
    }

    pub fn server(&self) -> Option<EmbeddedServer> {
        self.server.lock().expect("a panic ends the simulation").clone()
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

    /// Not while the state of the world is locked.
    pub fn checker(&self) -> MutexGuard<'_, SharedChecker> {
        self.checker.lock().expect("a panic ends the simulation")
    }

    pub fn now(&self) -> Now {
        let (at, server_ms) = (self.world.elapsed(), self.world.server_ms());
        let behind = Around { world: self.world.clone(), node: 0 }.behind();
        let state = self.world.state();
        Now { at, server_ms, settled: !state.is_settling(at), strict: state.strict, behind }
    }

    /// Hands on what the checker has found.
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

    /// The keys were changed by hand, or by the loss of data.
    pub fn resync(&self) {
        let Some(server) = self.server() else { return };
        for name in shared_keys() {
            let keys = Keys::of(&server, &name);
            self.checker().resync(&name, keys);
        }
    }

    pub fn look(&self) {
        let now = self.now();
        self.checker().look(now);
        self.report();
    }
}
