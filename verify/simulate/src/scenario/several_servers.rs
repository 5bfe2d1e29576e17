//! Scenarios with several servers that do not know each other.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation;
use fairlock::{EmbeddedServer, LockClient, LockError, LockGuard, Owner, Tried};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Scenario;
use super::stage::{ANOTHER, NAME, ms, step};
use crate::keys::key_of;
use crate::quorum::master::Master;
use crate::quorum::trial::Trial;
use crate::world::{Fate, LONGEST_LEASE, Mishap, World};

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
        name: "a-server-given-back-is-none-of-the-majority",
        about: "A nested guard does without a server that is silent, and the outer guard has given that one back, without an \
                answer. When another one is lost only one is left: the nested guard must hear of it at once (Q10, P8).",
        play: |world| Box::pin(a_server_given_back_is_none_of_the_majority(world)),
    },
    Scenario {
        name: "a-nested-call-while-all-is-given-back",
        about: "A nested call of an owner waits for its turn, while the last guard of that owner is given back, and others get \
                the lock. The call must go to the gate. It must not queue at each server of the hold that is over, where it \
                would be served past those at the gate (Q1).",
        play: |world| Box::pin(a_nested_call_while_all_is_given_back(world)),
    },
    Scenario {
        name: "two-that-wait-for-each-other",
        about: "One has the gate and the last server, and waits for one between them. Another one, which cannot reach the gate, \
                has all others and wants the last server. The first one must have given it back before it waited, or they \
                wait for each other without an end (Q2).",
        play: |world| Box::pin(two_that_wait_for_each_other(world)),
    },
    Scenario {
        name: "servers-that-were-not-raised",
        about: "The clock of one server is ahead by more than a lease, and so is its token. The others are to be raised to \
                that, and do not answer. They must not count: the next one, who reaches these others only, would get a \
                smaller token (Q3, P2).",
        play: |world| Box::pin(servers_that_were_not_raised(world)),
    },
    Scenario {
        name: "a-hold-that-loses-its-greatest-token",
        about: "The clock of server 1 is ahead, and its token is that of A's hold. Then server 1 loses the lock. The hold goes on under the \
                same token, which others have seen (Q11).",
        play: |world| Box::pin(a_hold_that_loses_its_greatest_token(world)),
    },
    Scenario {
        name: "servers-that-have-forgotten-and-a-newcomer",
        about: "All servers have lost their data, and a new client comes, which knows none of their clocks. It must not propose \
                a token of its own clock: the servers have none to compare it with, and would give it (Q3, P2).",
        play: |world| Box::pin(servers_that_have_forgotten_and_a_newcomer(world)),
    },
];

/// Three servers or five, and a quorum of them.
struct Stage {
    world: Arc<World>,
    trial: Arc<Trial>,
    servers: Vec<EmbeddedServer>,
}

impl Stage {
    /// Three servers whose clocks agree.
    fn new(world: Arc<World>, strict: bool) -> Self {
        Self::with(world, &[Duration::ZERO; 3], strict)
    }

    /// `ahead`: by how much the clock of each server is ahead.
    fn with(world: Arc<World>, ahead: &[Duration], strict: bool) -> Self {
        let trial = Trial::scripted(&world, ahead, strict);
        let servers = simulation::servers((0..trial.nodes()).map(|node| Master::new(&trial, node)));
        trial.serve(servers.clone());
        Self { world, trial, servers }
    }

    fn client(&self, name: &str) -> LockClient {
        self.patient_client(name, ms(100))
    }

    /// `node_timeout`: after how long a server counts as silent.
    fn patient_client(&self, name: &str, node_timeout: Duration) -> LockClient {
        let each = LockClient::builder()
            .label(name)
            .operation_timeout(ms(500))
            .poll_interval(ms(500))
            .grant_ttl(ms(100))
            .waiter_ttl(ms(2000))
            .lease(ms(2000));
        let builder = each
            .server_timeout(node_timeout)
            .strict_restart(LONGEST_LEASE)
            .clock_difference(self.trial.clock_difference);
        let builder = if self.trial.strict { builder } else { builder.without_strict_restart() };
        let client = builder.embedded(&self.servers).expect("all servers are up");
        self.world.state().call(client.id(), name);
        client
    }

    /// A client that knows the clocks of the servers.
    async fn client_with_clocks(&self, name: &str) -> LockClient {
        let client = self.client(name);
        if let Ok(guard) = client.lock(ANOTHER).lock().await {
            let _ = guard.unlock().await;
        }
        client
    }

    /// In its own task.
    fn asks(&self, client: &LockClient, owner: Owner) -> JoinHandle<Result<LockGuard, LockError>> {
        let lock = client.lock(NAME);
        let asking = owner.scope(async move { lock.lock().await });
        tokio::spawn(asking)
    }

    /// It gets the lock within 10 s.
    async fn gets_the_lock(&self, asking: JoinHandle<Result<LockGuard, LockError>>, what: &str) -> Option<LockGuard> {
        let guard = timeout(ms(10_000), asking).await.ok().and_then(Result::ok).and_then(Result::ok);
        self.expect(guard.is_some(), what);
        guard
    }

    fn expect(&self, is_so: bool, what: &str) {
        step(&self.world, what);
        if !is_so {
            self.trial.report(vec![("scenario", format!("it is not so that {what}"))]);
        }
    }

    /// No message passes between them for `time`.
    fn keeps_apart(&self, client: &LockClient, name: &str, node: usize, time: Duration) {
        step(&self.world, format!("{name} does not reach server {node} for {time:?}"));
        self.trial.keep_apart(node, client.id(), time);
    }

    /// In the middle of a call. Its requests arrive, and it sends nothing after that.
    fn dies(&self, client: &LockClient, name: &str) {
        step(&self.world, format!("{name} dies"));
        self.world.kill(client.id());
        self.servers.iter().for_each(|server| server.disconnect(client.id()));
    }

    /// Someone deletes its hold there.
    fn loses_the_lock(&self, node: usize) {
        step(&self.world, format!("server {node} loses the lock"));
        let key = key_of(NAME);
        let _ = simulation::command(&self.servers[node], &["DEL", &key]);
        let at = self.trial.clocks_ms()[node];
        self.trial.state().checker.node(node).deleted(&key, at);
    }

    fn loses_all_data(&self, node: usize) {
        step(&self.world, format!("server {node} loses its data"));
        self.servers[node].flush();
        let at = self.trial.clocks_ms()[node];
        self.trial.state().checker.node(node).flushed(false, 0, at);
    }

    async fn ends(self, clients: impl IntoIterator<Item = LockClient>) {
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
        stage.expect(matches!(tried, Ok(Tried::Busy(_))), "A hears that others have it");
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
    stage.expect(outer.as_ref().is_ok_and(|outer| outer.servers() == [0, 1, 2]), "A has the lock on all servers");
    stage.keeps_apart(&a, "A", 2, ms(1500));
    let nested = owner.scope(lock.lock()).await;
    stage.expect(
        nested.as_ref().is_ok_and(|nested| nested.servers() == [0, 1]),
        "its nested guard does without server 2",
    );
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

async fn a_nested_call_while_all_is_given_back(world: Arc<World>) {
    let stage = Stage::new(world, false);
    let (a, b) = (stage.client("A"), stage.client("B"));
    let (lock, owner) = (a.lock(NAME), Owner::new());
    let outer = owner.scope(lock.lock()).await;
    let inner = owner.scope(lock.lock()).await;
    step(&stage.world, "A has the lock twice, and B waits at the gate; from here on all servers serve all");
    let other = stage.asks(&b, Owner::new());
    sleep(ms(200)).await;
    stage.trial.set_steady(true);
    step(&stage.world, "A gives its nested guard back, and nests again before that is answered");
    drop(inner);
    sleep(ms(1)).await;
    let nesting = stage.asks(&a, owner);
    tokio::task::yield_now().await;
    step(&stage.world, "meanwhile it gives its outer guard back, and is told so 20 ms later");
    for _ in 0..3 {
        let fate = Fate::ReplyTakes(ms(20));
        stage.world.state().meets(Mishap { client: a.id().to_owned(), script: "release", fate });
    }
    drop(outer);
    let held = stage.gets_the_lock(other, "B has the lock").await;
    sleep(ms(50)).await;
    drop(held);
    let held = stage.gets_the_lock(nesting, "A has it after B").await;
    stage.trial.set_steady(false);
    drop(held);
    stage.ends([a, b]).await;
}

async fn two_that_wait_for_each_other(world: Arc<World>) {
    let stage = Stage::with(world, &[Duration::ZERO; 5], false);
    step(&stage.world, "server 3 is down");
    stage.servers[3].shut_down();
    let a = stage.client_with_clocks("A").await;
    let (b, d) = (stage.client_with_clocks("B").await, stage.client_with_clocks("D").await);
    stage.keeps_apart(&d, "D", 0, ms(100));
    stage.keeps_apart(&d, "D", 4, ms(100));
    let lock = d.lock(NAME);
    let asking = stage.world.in_process(d.id(), Box::pin(async move { drop(lock.lock().await) }));
    let asking = tokio::spawn(asking);
    sleep(ms(1)).await;
    step(&stage.world, "D asks for the lock, and servers 1 and 2 keep it for it until its lease ends");
    stage.dies(&d, "D");
    let _ = asking.await;
    drop(d);
    stage.keeps_apart(&b, "B", 0, ms(20_000));
    step(&stage.world, "B waits at server 1");
    let other = stage.asks(&b, Owner::new());
    sleep(ms(500)).await;
    step(&stage.world, "A has the gate, and waits at server 1 behind B");
    let one = stage.asks(&a, Owner::new());
    let held = stage.gets_the_lock(other, "B has the lock when the lease of D is over").await;
    drop(held);
    let held = stage.gets_the_lock(one, "A has it after B").await;
    drop(held);
    stage.ends([a, b]).await;
}

async fn a_hold_that_loses_its_greatest_token(world: Arc<World>) {
    let stage = Stage::with(world, &[Duration::ZERO, ms(3000), Duration::ZERO], false);
    let a = stage.client("A");
    let Some(guard) = stage.gets_the_lock(stage.asks(&a, Owner::new()), "A has the lock").await else { return };
    let token = guard.token();
    stage.loses_the_lock(1);
    // A third of a lease until the next renewal.
    sleep(ms(1000)).await;
    stage.expect(guard.servers() == [0, 2], "A has servers 0 and 2 left");
    stage.expect(guard.token() == token, "its token is the same");
    drop(guard);
    stage.ends([a]).await;
}

async fn servers_that_were_not_raised(world: Arc<World>) {
    let stage = Stage::with(world, &[Duration::ZERO, ms(3000), Duration::ZERO], false);
    let (a, b) = (stage.client_with_clocks("A").await, stage.client_with_clocks("B").await);
    step(&stage.world, "A asks for the lock, and all servers grant it");
    let asking = stage.asks(&a, Owner::new());
    sleep(ms(1)).await;
    stage.keeps_apart(&a, "A", 0, ms(100));
    stage.keeps_apart(&a, "A", 2, ms(100));
    let first = stage.gets_the_lock(asking, "A has the lock").await;
    let token = first.as_ref().map_or(u64::MAX, |guard| guard.token());
    drop(first);
    stage.keeps_apart(&b, "B", 1, ms(1000));
    let next = stage.gets_the_lock(stage.asks(&b, Owner::new()), "B has the lock").await;
    stage.expect(next.as_ref().is_some_and(|next| next.token() > token), "its token is greater than that of A");
    drop(next);
    stage.ends([a, b]).await;
}

async fn servers_that_have_forgotten_and_a_newcomer(world: Arc<World>) {
    let stage = Stage::new(world, false);
    let a = stage.client_with_clocks("A").await;
    let first = stage.gets_the_lock(stage.asks(&a, Owner::new()), "A has the lock").await;
    let token = first.as_ref().map_or(u64::MAX, |guard| guard.token());
    drop(first);
    sleep(ms(10)).await;
    (0..3).for_each(|node| stage.loses_all_data(node));
    let b = stage.client("B");
    sleep(ms(1)).await;
    let next = stage.gets_the_lock(stage.asks(&b, Owner::new()), "B has the lock").await;
    stage.expect(next.as_ref().is_some_and(|next| next.token() > token), "its token is greater than that of A");
    drop(next);
    stage.ends([a, b]).await;
}
