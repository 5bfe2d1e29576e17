//! Scenarios with three servers that know nothing of each other.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, id_of};
use fairlock::{EmbeddedServer, LockClient, Owner, QuorumClient};
use tokio::time::{sleep, timeout};

use super::Scenario;
use super::stage::{NAME, ms, step};
use crate::keys::key_of;
use crate::quorum::master::Master;
use crate::quorum::trial::Trial;
use crate::world::{LONGEST_LEASE, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "frozen-servers-and-a-client-without-their-clocks",
        about: "With strict_restart three servers have just been started, and grant nothing for a while. A client that sends \
                nothing to a frozen server must learn its clock all the same, or it waits without an end (Q8).",
        play: |world| Box::pin(frozen_servers_and_a_client_without_their_clocks(world)),
    },
    Scenario {
        name: "a-hold-that-is-being-given-back",
        about: "An owner has given its last guard back, and one server has yet to answer. Others have the lock. When the owner \
                asks for it again, it must not enter what it has given back (Q11).",
        play: |world| Box::pin(a_hold_that_is_being_given_back(world)),
    },
    Scenario {
        name: "a-server-lost-while-another-is-silent",
        about: "A nested call waits for a server that is silent. Meanwhile another one, which has answered, loses the lock: it \
                must not count, or the nested guard would have one server only (Q4).",
        play: |world| Box::pin(a_server_lost_while_another_is_silent(world)),
    },
    Scenario {
        name: "a-server-given-back-is-none-of-the-majority",
        about: "A nested guard does without a server that is silent, and the outer guard has given that one back, without an \
                answer. When another one is lost only one is left: the nested guard must hear of it at once (Q10, P8).",
        play: |world| Box::pin(a_server_given_back_is_none_of_the_majority(world)),
    },
];

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
        self.patient_client(name, ms(100))
    }

    /// `node_timeout`: after how long a server counts as silent.
    fn patient_client(&self, name: &str, node_timeout: Duration) -> QuorumClient {
        let each = LockClient::builder()
            .label(name)
            .operation_timeout(ms(500))
            .poll_interval(ms(500))
            .grant_ttl(ms(600))
            .waiter_ttl(ms(2000))
            .lease(ms(2000));
        let builder = QuorumClient::builder()
            .nodes(each)
            .node_timeout(node_timeout)
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

    /// No message passes between them for so long.
    fn keeps_apart(&self, client: &QuorumClient, name: &str, node: usize, time: Duration) {
        step(&self.world, format!("{name} does not reach server {node} for {time:?}"));
        self.trial.keep_apart(node, &id_of(client), time);
    }

    /// Its hold is deleted there by hand.
    fn loses_the_lock(&self, node: usize) {
        step(&self.world, format!("server {node} loses the lock"));
        let key = key_of(NAME);
        let _ = simulation::command(&self.servers[node], &["DEL", &key]);
        self.trial.state().checker.node(node).deleted(&key);
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
    let guard = timeout(limit, a.lock(NAME).lock()).await;
    stage.expect(matches!(guard, Ok(Ok(_))), &format!("A has the lock within {limit:?}, when the freeze is over"));
    drop(guard);
    stage.ends([a]).await;
}

async fn a_hold_that_is_being_given_back(world: Arc<World>) {
    let stage = Stage::new(world, false);
    let (a, b) = (stage.client("A"), stage.client("B"));
    let (lock, owner) = (a.lock(NAME), Owner::new());
    let guard = owner.scope(lock.lock()).await;
    stage.keeps_apart(&a, "A", 2, ms(1500));
    step(&stage.world, "A gives its guard back, and B has the lock");
    drop(guard);
    let held = b.lock(NAME).lock().await;
    for _ in 0..3 {
        let tried = owner.scope(lock.try_lock()).await;
        stage.expect(matches!(tried, Ok(None)), "A hears that others have it");
    }
    drop(held);
    let guard = owner.scope(lock.lock_timeout(ms(5000))).await;
    stage.expect(guard.is_ok(), "A has it after B");
    drop(guard);
    stage.ends([a, b]).await;
}

async fn a_server_given_back_is_none_of_the_majority(world: Arc<World>) {
    let stage = Stage::new(world, false);
    let a = stage.client("A");
    let lock = a.lock(NAME);
    let owner = Owner::new();
    let outer = owner.scope(lock.lock()).await;
    stage.expect(outer.as_ref().is_ok_and(|outer| outer.nodes() == [0, 1, 2]), "A has the lock on all servers");
    stage.keeps_apart(&a, "A", 2, ms(1500));
    let nested = owner.scope(lock.lock()).await;
    stage
        .expect(nested.as_ref().is_ok_and(|nested| nested.nodes() == [0, 1]), "its nested guard does without server 2");
    step(&stage.world, "A gives the outer guard back, and server 2 does not answer");
    drop(outer);
    sleep(ms(50)).await;
    stage.loses_the_lock(1);
    let Ok(nested) = nested else { return };
    // A third of a lease until the next renewal.
    let told = timeout(ms(1000), nested.lost()).await;
    stage.expect(told.is_ok(), "the nested guard is lost when its next renewal is answered");
    drop(nested);
    stage.ends([a]).await;
}

async fn a_server_lost_while_another_is_silent(world: Arc<World>) {
    let stage = Stage::new(world, false);
    let a = stage.patient_client("A", ms(500));
    let (lock, owner) = (a.lock(NAME), Owner::new());
    let outer = owner.scope(lock.lock()).await;
    stage.expect(outer.as_ref().is_ok_and(|outer| outer.nodes() == [0, 1, 2]), "A has the lock on all servers");
    // So that the next renewal, which hears of the loss, comes during the call.
    sleep(ms(400)).await;
    stage.keeps_apart(&a, "A", 2, ms(1000));
    let losing = async {
        sleep(ms(50)).await;
        stage.loses_the_lock(1);
    };
    let (nested, ()) = tokio::join!(owner.scope(lock.lock()), losing);
    stage.expect(nested.is_ok_and(|nested| nested.nodes() == [0, 2]), "its nested guard has the other two servers");
    drop(outer);
    stage.ends([a]).await;
}
