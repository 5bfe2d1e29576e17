//! The faults around one server of a quorum.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{Delivery, Faults, Ran, RefusedCommands, Task};

use super::trial::Trial;
use crate::keys::Keys;
use crate::world::{Around, describe};

pub struct Master {
    trial: Arc<Trial>,
    node: usize,
    /// The faults around any server.
    around: Around,
}

impl Master {
    pub fn new(trial: &Arc<Trial>, node: usize) -> Self {
        Self { trial: trial.clone(), node, around: Around { world: trial.world.clone(), node } }
    }

    fn is_apart(&self, client: &str) -> bool {
        !self.trial.is_apart(self.node, client).is_zero()
    }
}

impl Faults for Master {
    fn request(&self, client: &str, script: &str) -> Vec<Delivery> {
        if self.is_apart(client) {
            return Vec::new();
        }
        if script == "acquire" {
            self.trial.asks(self.node, client);
        }
        let stopped = self.trial.is_stopped(self.node);
        let mut copies = self.around.request(client, script);
        copies.iter_mut().for_each(|copy| copy.request += stopped);
        copies
    }

    fn push(&self, client: &str) -> Vec<Duration> {
        if self.is_apart(client) { Vec::new() } else { self.around.push(client) }
    }

    fn refuse(&self, client: &str, script: &str) -> Option<&'static str> {
        self.around.refuse(client, script)
    }

    fn refuse_inside(&self, client: &str, script: &str) -> Option<RefusedCommands> {
        self.around.refuse_inside(client, script)
    }

    fn reconnect(&self, client: &str) -> Duration {
        let away = self.trial.is_apart(self.node, client).max(self.trial.is_stopped(self.node));
        away + self.around.reconnect(client)
    }

    fn server_time(&self, elapsed: Duration) -> Duration {
        self.trial.clock(self.node, elapsed)
    }

    fn spawn(&self, client: &str, task: Task) -> Task {
        self.around.spawn(client, task)
    }

    fn connected(&self, client: &str, on: bool) {
        let what = if on { "connected" } else { "disconnected" };
        self.trial.world.note(what, self.node, || format!("{client} and node {}", self.node));
        self.trial.state().checker.connected(self.node, client, on);
        if on {
            let now = self.trial.world.elapsed();
            self.trial.world.state().loses_a_right(client, self.node, now);
        }
    }

    fn ran(&self, ran: &Ran<'_>) {
        let (world, at) = (&self.trial.world, self.trial.world.elapsed());
        let origin = ran.at - self.trial.clock(self.node, at).as_micros() as i64;
        let meddled = {
            let mut state = world.state();
            // The same for all: they began together.
            state.origin.get_or_insert(origin);
            let status = ran.reply.as_ref().map_or(0, |reply| reply[0].len() + reply.len());
            state.note(at, ran.script, status + 100 * self.node, || format!("node {}: {}", self.node, describe(ran)));
            for published in ran.published {
                let what = if published.received { "  publishes" } else { "  in vain" };
                state.note(at, what, 0, || published.message.clone());
            }
            std::mem::take(&mut state.meddled)
        };
        // The record of boot.lua is not a lock.
        let Some(server) = self.trial.server(self.node).filter(|_| ran.script != "boot") else { return };
        let keys = Keys::of(&[server], &ran.keys[0]);
        let found = {
            let mut state = self.trial.state();
            let steady = state.steady;
            state.checker.ran(self.node, ran, &keys, meddled, at, steady)
        };
        self.trial.report(found);
    }
}
