//! Scenarios with three servers that know nothing of each other.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, id_of};
use fairlock::{EmbeddedServer, LockClient, QuorumClient};
use tokio::time::{sleep, timeout};

use super::Scenario;
use super::stage::{ms, step};
use crate::quorum::master::Master;
use crate::quorum::trial::Trial;
use crate::world::{LONGEST_LEASE, World};

pub const ALL: &[Scenario] = &[Scenario {
    name: "frozen-servers-and-a-client-without-their-clocks",
    about: "With strict_restart three servers have just been started, and grant nothing for a while. A client that sends \
            nothing to a frozen server must learn its clock all the same, or it waits without an end (Q8).",
    play: |world| Box::pin(frozen_servers_and_a_client_without_their_clocks(world)),
}];

/// Three servers, and a quorum of them.
struct Stage {
    world: Arc<World>,
    trial: Arc<Trial>,
    servers: Vec<EmbeddedServer>,
}

impl Stage {
    fn new(world: Arc<World>, strict: bool) -> Self {
        let trial = Trial::scripted(&world, strict);
        let servers = simulation::servers((0..trial.nodes()).map(|node| Master::new(&trial, node)));
        trial.serve(servers.clone());
        Self { world, trial, servers }
    }

    fn client(&self, name: &str) -> QuorumClient {
        let each = LockClient::builder()
            .label(name)
            .operation_timeout(ms(500))
            .poll_interval(ms(500))
            .grant_ttl(ms(600))
            .waiter_ttl(ms(2000))
            .lease(ms(2000));
        let builder = QuorumClient::builder()
            .nodes(each)
            .node_timeout(ms(100))
            .longest_lease(LONGEST_LEASE)
            .clock_difference(self.trial.clock_difference)
            .strict_restart(self.trial.strict);
        let client = builder.embedded(&self.servers).expect("all servers are up");
        self.world.state().call(&id_of(&client), name);
        client
    }

    fn expect(&self, is_so: bool, what: &str) {
        step(&self.world, what);
        if !is_so {
            self.trial.report(vec![("scenario", format!("it is not so that {what}"))]);
        }
    }

    async fn ends(self, clients: impl IntoIterator<Item = QuorumClient>) {
        for client in clients {
            let _ = client.close().await;
        }
        self.trial.look();
        sleep(Duration::from_secs(30)).await;
        self.trial.serve(Vec::new());
    }
}

async fn frozen_servers_and_a_client_without_their_clocks(world: Arc<World>) {
    let stage = Stage::new(world, true);
    step(&stage.world, "three servers have just been started");
    let a = stage.client("A");
    step(&stage.world, "A asks for the lock");
    let limit = stage.trial.freeze() + ms(5000);
    let guard = timeout(limit, a.lock("lock0").lock()).await;
    stage.expect(matches!(guard, Ok(Ok(_))), &format!("A has the lock within {limit:?}, when the freeze is over"));
    drop(guard);
    stage.ends([a]).await;
}
