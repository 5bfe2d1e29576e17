//! The usual faults around the server, with another checker for shared names.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{Delivery, Faults, Ran, Redirected, RefusedCommands, Task};

use super::trial::{Trial, is_shared};
use crate::world::Around;

pub struct AroundShared {
    pub trial: Arc<Trial>,
    around: Around,
}

impl AroundShared {
    pub fn new(trial: &Arc<Trial>, node: usize) -> Self {
        Self { trial: trial.clone(), around: Around { world: trial.world.clone(), node } }
    }
}

impl Faults for AroundShared {
    fn request(&self, client: &str, script: &str) -> Vec<Delivery> {
        self.around.request(client, bare(script))
    }

    fn behind(&self) -> Vec<String> {
        self.around.behind()
    }

    fn push(&self, client: &str) -> Vec<Duration> {
        self.around.push(client)
    }

    fn refuse(&self, client: &str, script: &str) -> Option<&'static str> {
        self.around.refuse(client, bare(script))
    }

    fn in_flight(&self, client: &str) -> usize {
        self.around.in_flight(client)
    }

    fn refuse_inside(&self, client: &str, script: &str) -> Option<RefusedCommands> {
        self.around.refuse_inside(client, bare(script))
    }

    fn reconnect(&self, client: &str) -> Duration {
        self.around.reconnect(client)
    }

    fn server_time(&self, elapsed: Duration) -> Duration {
        self.around.server_time(elapsed)
    }

    fn spawn(&self, client: &str, task: Task) -> Task {
        self.around.spawn(client, task)
    }

    fn connected(&self, client: &str, on: bool) {
        self.around.connected(client, on);
        self.trial.checker().connected(self.around.node, client, on);
    }

    fn redirected(&self, redirected: &Redirected<'_>) {
        self.around.redirected(redirected);
    }

    fn ran(&self, ran: &Ran<'_>) {
        if ran.script == "boot" || !is_shared(&ran.keys[0]) {
            return self.around.ran(ran);
        }
        let (world, at) = (&self.trial.world, self.trial.world.elapsed());
        let origin = ran.at - self.around.server_time(at).as_micros() as i64;
        let meddled = {
            let mut state = world.state();
            state.origin.get_or_insert(origin);
            let status = ran.reply.as_ref().map_or(0, |reply| reply[0].len() + reply.len());
            state.note(at, ran.script, status, || describe(ran));
            for published in ran.published {
                let what = if published.received { "  publishes" } else { "  in vain" };
                state.note(at, what, 0, || published.message.clone());
            }
            std::mem::take(&mut state.meddled)
        };
        let keys = self.trial.keys_of(&ran.keys[0]);
        let now = self.trial.now();
        self.trial.checker().ran(ran, keys, meddled, now);
        self.trial.report();
    }
}

/// Scripts for shared names have the faults of the scripts for locks.
fn bare(script: &str) -> &str {
    script.strip_prefix("shared/").unwrap_or(script)
}

fn describe(ran: &Ran<'_>) -> String {
    let reply = match &ran.reply {
        Ok(reply) => [&reply[..1], &reply[4.min(reply.len())..]].concat().join(" "),
        Err(refusal) => refusal.clone(),
    };
    // The settings have spaces.
    let request: Vec<_> = ran.args.iter().skip(1).filter(|word| !word.contains(' ')).cloned().collect();
    format!("{} from {} on {} -> {reply}", request.join(" "), ran.client, ran.keys[0])
}
