//! Scenarios with semaphores and read-write locks: at one server, and in a cluster of two nodes.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation;
use fairlock::{
    DetachError, EmbeddedServer, FairRwLock, FairSemaphore, Held, HoldHandle, LockClient, LockError, Owner, Permit,
    ReadGuard, WriteGuard,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Scenario;
use super::stage::{LONGEST_STEP, Stage, expect, ms, step};
use crate::cluster::Cluster;
use crate::keys::key_of;
use crate::shared::{AroundShared, Claim, Trial};
use crate::world::{Fate, Mishap, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-heavy-wait-is-not-overtaken",
        about: "A has two of three permits, B waits for all three, and C for one, which is free. C must not come in before B (P3), or \
                light ones keep B out for ever (P9).",
        play: |world| Box::pin(a_heavy_wait_is_not_overtaken(world)),
    },
    Scenario {
        name: "readers-come-in-together",
        about: "W writes, R and S want to read, X wants to write, and T to read. Behind W its two neighbours read together, then X \
                writes alone, then T reads (P1, P3).",
        play: |world| Box::pin(readers_come_in_together(world)),
    },
    Scenario {
        name: "a-release-that-is-sent-again-frees-once",
        about: "The answer to a release of two permits is lost, so it is sent again, and finds that others are in. What they have must \
                not be counted as free, or D is in beside them (P1, R1).",
        play: |world| Box::pin(a_release_that_is_sent_again_frees_once(world)),
    },
    Scenario {
        name: "a-release-that-is-refused-half-way",
        about: "A release is refused at any one of its commands, perhaps after it has let B in. It is sent again, and B must not be let \
                in once more, under another token (P1).",
        play: |world| Box::pin(a_release_that_is_refused_half_way(world)),
    },
    Scenario {
        name: "handles-that-are-refused-half-way",
        about: "A detaches three permits, and then B attaches them. A right is missing for one of the commands. Whoever has them gives \
                them back, and C comes in at once: nothing may be counted of which nobody has a record (P5). Found by attacks.",
        play: |world| Box::pin(handles_that_are_refused_half_way(world)),
    },
    Scenario {
        name: "a-share-that-is-left-half-way",
        about: "A gives its call up when it has two permits. Its leave is refused at one of the commands, perhaps when it has taken A out, \
                and is sent again. C comes in at once: what A had is counted no longer (P5). Found by an attack.",
        play: |world| Box::pin(a_share_that_is_left_half_way(world)),
    },
    Scenario {
        name: "a-place-that-nobody-may-take-out",
        about: "X waits first, and no message reaches it; B waits behind it. A, who may not LREM, gives three permits back: B comes in, \
                and its place cannot be taken out. Nobody must have to read what A has left there (P6): B gives its permit back, and C \
                comes in at once.",
        play: |world| Box::pin(a_place_that_nobody_may_take_out(world)),
    },
    Scenario {
        name: "an-attach-without-a-right",
        about: "A detaches a permit. B, who may not HSET, attaches it, which is refused before it changes anything: C attaches it \
                then (R16).",
        play: |world| Box::pin(an_attach_without_a_right(world)),
    },
    Scenario {
        name: "a-shrink-that-comes-behind-the-release",
        about: "A copy of a shrink takes five seconds. A has given all back by then, and holds again. What A has now is not touched (R4).",
        play: |world| Box::pin(a_shrink_that_comes_behind_the_release(world)),
    },
    Scenario {
        name: "a-downgrade-whose-answer-is-lost",
        about: "A writer reads on, and the answer to that is lost. Those who wait to read come in once, and who waits to write waits on \
                (P1). The token stays (P2).",
        play: |world| Box::pin(a_downgrade_whose_answer_is_lost(world)),
    },
    Scenario {
        name: "a-writer-that-gives-up",
        about: "A reads, W waits to write, and B waits to read behind W. W gives up, so B has to come in at once, and not with the \
                next poll (P7).",
        play: |world| Box::pin(a_writer_that_gives_up(world)),
    },
    Scenario {
        name: "a-holder-of-two-permits-that-dies",
        about: "A dies and has two of three permits. B, who has the third, keeps it. C gets two of them as soon as the lease of A is \
                over, and not before (P1, P5).",
        play: |world| Box::pin(a_holder_of_two_permits_that_dies(world)),
    },
    Scenario {
        name: "a-grant-that-nobody-hears-of",
        about: "The message of a permit is lost, with a lease of 600 ms. The next poll of B finds the permit (P6).",
        play: |world| Box::pin(a_grant_that_nobody_hears_of(world)),
    },
    Scenario {
        name: "a-gate-that-was-closed",
        about: "The limit is set to 0 and the answer is lost. Nobody comes in until it is opened again, and who has a permit keeps it.",
        play: |world| Box::pin(a_gate_that_was_closed(world)),
    },
    Scenario {
        name: "a-permit-that-comes-back",
        about: "A server takes over that has not heard of a release. The client must look for what it has given back, or that permit \
                is nobody's until its lease of ten seconds ends (R15, P5).",
        play: |world| Box::pin(a_permit_that_comes_back(world)),
    },
    Scenario {
        name: "permits-while-their-slot-moves",
        about: "A slot moves key by key for five seconds. A keeps its permit, B and C their order, and neither comes in too early.",
        play: |world| Box::pin(permits_while_their_slot_moves(world)),
    },
];

const SEMAPHORE: &str = "sem0";
const RW_LOCK: &str = "rw0";
/// A writer's weight on the server.
const WHOLE: u32 = 1024;
const LIMIT: u32 = 3;

enum Share {
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Share {
    fn held(&self) -> Held {
        match self {
            Self::Permit(permit) => permit.held(),
            Self::Read(guard) => guard.held(),
            Self::Write(guard) => guard.held(),
        }
    }
}

#[derive(Clone, Copy)]
enum Wish {
    Permits(u32),
    Read,
    Write,
}

impl Wish {
    fn name(self) -> &'static str {
        if matches!(self, Self::Permits(_)) { SEMAPHORE } else { RW_LOCK }
    }

    fn weight(self) -> u32 {
        match self {
            Self::Permits(weight) => weight,
            Self::Read => 1,
            Self::Write => WHOLE,
        }
    }
}

/// A stage with names of these kinds.
struct SharedStage {
    stage: Stage,
    trial: Arc<Trial>,
    callers: usize,
    looking: JoinHandle<()>,
}

impl Deref for SharedStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl SharedStage {
    fn new(world: Arc<World>) -> Self {
        let trial = Trial::new(&world);
        let server = simulation::server(AroundShared::new(&trial, 0));
        Self::with(world, trial, vec![server], None)
    }

    /// Node 0 has all names.
    fn cluster(world: Arc<World>) -> Self {
        let trial = Trial::new(&world);
        let nodes = simulation::cluster((0..2).map(|node| AroundShared::new(&trial, node)));
        let cluster = Cluster::with(&world, &nodes, [(key_of(SEMAPHORE), 0), (key_of(RW_LOCK), 0)]);
        trial.has_cluster(&cluster);
        Self::with(world, trial, nodes, Some(cluster))
    }

    fn with(world: Arc<World>, trial: Arc<Trial>, nodes: Vec<EmbeddedServer>, cluster: Option<Arc<Cluster>>) -> Self {
        let looking = tokio::spawn(trial.clone().look_on());
        Self { stage: Stage::with(world, nodes, cluster), trial, callers: 0, looking }
    }

    /// See `Stage::caller`.
    async fn caller(&mut self, name: &'static str, lease: Duration) -> Caller {
        let (client, _) = self.connect(name, |it| it.lease(lease));
        // So that it knows the server's clock.
        let _ = client.semaphore(SEMAPHORE, LIMIT).status().await;
        self.callers += 1;
        let (trial, number) = (self.trial.clone(), self.callers);
        Caller { trial, name, number, client, owner: Owner::new(), has: None, waiting: None }
    }

    /// Fails over to a replica that misses what `unheard_of` does.
    async fn fails_over_behind(&self, unheard_of: impl AsyncFnOnce()) {
        step(&self.world, "the replica hears of nothing that follows");
        let snapshot = self.server.snapshot().expect("its engine runs");
        unheard_of().await;
        step(&self.world, "the server dies, and the replica takes over");
        let now = self.trial.now();
        self.server.shut_down();
        sleep(ms(5)).await;
        self.trial.checker().lost_data(0, &now);
        self.server.restore(snapshot);
        self.trial.resync();
        self.server.start_up();
        sleep(ms(1)).await;
    }

    /// All callers release their shares; nothing of them may remain.
    async fn ends(self, callers: impl IntoIterator<Item = Caller>) {
        for mut caller in callers {
            caller.ends().await;
        }
        self.stage.ends([]).await;
        self.looking.abort();
        // An aborted task ends when the runtime polls it.
        let _ = self.looking.await;
        self.trial.report();
    }
}

/// A client that wants a share.
struct Caller {
    trial: Arc<Trial>,
    name: &'static str,
    number: usize,
    client: LockClient,
    owner: Owner,
    has: Option<(Wish, Share)>,
    waiting: Option<(Wish, JoinHandle<Result<Share, LockError>>)>,
}

impl Caller {
    fn world(&self) -> &World {
        &self.trial.world
    }

    fn says(&self, what: &str) {
        step(self.world(), format!("{} {what}", self.name));
    }

    fn expect(&self, is_so: bool, what: &str) {
        expect(self.world(), is_so, &format!("{} {what}", self.name));
    }

    /// See `stage::Caller::next`.
    fn next(&self, script: &'static str, fate: Fate) {
        self.says(&format!("is unlucky: its next {script} is to meet {fate:?}"));
        self.world().state().meets(Mishap { client: self.client.id().to_owned(), script, fate });
    }

    /// See `stage::Caller::may_not`.
    fn may_not(&self, command: &'static str) {
        self.says(&format!("may not {command} any more"));
        self.world().may_not(self.client.id(), command);
    }

    fn semaphore(&self) -> FairSemaphore {
        self.client.semaphore(SEMAPHORE, LIMIT)
    }

    fn rw_lock(&self) -> FairRwLock {
        self.client.rw_lock(RW_LOCK)
    }

    fn asks(&mut self, wish: Wish) {
        let (semaphore, lock) = (self.semaphore(), self.rw_lock());
        let call = self.owner.scope(async move {
            match wish {
                Wish::Permits(weight) => semaphore.acquire_many(weight).await.map(Share::Permit),
                Wish::Read => lock.read().await.map(Share::Read),
                Wish::Write => lock.write().await.map(Share::Write),
            }
        });
        self.says(&format!("asks for {} of {}", wish.weight(), wish.name()));
        self.waiting = Some((wish, tokio::spawn(call)));
    }

    fn waits(&self) -> bool {
        let keys = self.waiting.as_ref().map(|(wish, _)| self.trial.keys_of(&key_of(wish.name())));
        keys.is_some_and(|keys| keys.places.iter().any(|place| place.client() == self.client.id()))
    }

    async fn begins_to_wait(&mut self, wish: Wish) {
        self.asks(wish);
        // Until its request has reached the server.
        sleep(ms(2)).await;
        self.expect(self.waits(), "has a place in the queue");
    }

    fn still_waits(&self) {
        let is_unanswered = self.waiting.as_ref().is_some_and(|(_, waiting)| !waiting.is_finished());
        self.expect(self.waits() && is_unanswered, "still waits");
    }

    async fn gets(&mut self, wish: Wish) {
        self.asks(wish);
        self.comes_in(LONGEST_STEP).await;
    }

    /// Within this time.
    async fn comes_in(&mut self, time: Duration) {
        let Some((wish, waiting)) = self.waiting.take() else { return };
        let Ok(Ok(Ok(share))) = timeout(time, waiting).await else { return self.expect(false, "comes in in time") };
        self.says("has it");
        let (name, process, held) = (key_of(wish.name()), self.client.id().to_owned(), share.held());
        let claim = Claim { name, actor: self.number, process, held, weight: wish.weight(), guards: 1 };
        self.trial.checker().begins(claim);
        self.has = Some((wish, share));
        self.trial.look();
    }

    fn still_has(&self) {
        let is_valid = self.has.as_ref().is_some_and(|(_, share)| share.held().is_valid());
        self.expect(is_valid, "still has it");
    }

    /// It no longer relies on its share.
    fn takes(&mut self) -> Option<Share> {
        let (wish, share) = self.has.take()?;
        let claims = self.trial.checker().ends(&key_of(wish.name()), share.held().token(), self.number);
        drop(claims);
        Some(share)
    }

    async fn gives_it_back(&mut self) {
        let Some(share) = self.takes() else { return };
        self.says("gives it back");
        let answer = match share {
            Share::Permit(permit) => format!("{:?}", permit.release().await),
            Share::Read(guard) => format!("{:?}", guard.unlock().await),
            Share::Write(guard) => format!("{:?}", guard.unlock().await),
        };
        self.says(&format!("hears: {answer}"));
        // A message to the next one.
        sleep(ms(1)).await;
    }

    /// Releases the permit if the server refuses the detach.
    async fn detaches(&mut self, lease: Duration) -> Option<HoldHandle> {
        let Some(Share::Permit(permit)) = self.takes() else { return None };
        self.says("detaches it");
        let detached = permit.detach(lease).await;
        self.says(&format!("hears: {detached:?}"));
        match detached {
            Ok(handle) | Err(DetachError::Unanswered { handle, .. }) => Some(handle),
            Err(_) => None,
        }
    }

    /// Changes the weight that it relies on.
    fn relies_on(&self, name: &str, token: u64, weight: u32) {
        let change = |claim: &mut Claim| claim.weight = weight;
        self.trial.checker().changes(&key_of(name), token, self.number, change);
    }

    async fn shrinks_to(&mut self, weight: u32, time: Duration) {
        self.says(&format!("shrinks to {weight}"));
        let Some((_, Share::Permit(permit))) = self.has.take() else { return };
        self.relies_on(SEMAPHORE, permit.token(), weight);
        let answer = timeout(time, permit.shrink_to(weight)).await;
        self.says(&format!("hears: {answer:?}"));
        self.has = Some((Wish::Permits(weight), Share::Permit(permit)));
    }

    async fn downgrades(&mut self) {
        self.says("reads on");
        let Some((_, Share::Write(guard))) = self.has.take() else { return };
        let token = guard.token();
        self.relies_on(RW_LOCK, token, 1);
        match guard.downgrade().await {
            Ok(guard) => {
                self.expect(guard.token() == token, "has the token of before");
                self.has = Some((Wish::Read, Share::Read(guard)));
            }
            Err(loss) => self.expect(false, &format!("reads on, and not {loss:?}")),
        }
    }

    async fn sets_permits(&self, permits: Option<u32>) {
        self.says(&format!("sets {permits:?} permits for all"));
        let answer = self.semaphore().set_permits(permits).await;
        self.says(&format!("hears: {answer:?}"));
    }

    async fn gives_up(&mut self) {
        let Some((_, waiting)) = self.waiting.take() else { return };
        self.says("gives up");
        waiting.abort();
        let _ = waiting.await;
    }

    async fn dies(mut self, server: &EmbeddedServer) {
        self.says("dies");
        let claims = self.trial.checker().died(self.client.id());
        drop(claims);
        self.world().kill(self.client.id());
        server.disconnect(self.client.id());
        self.gives_up().await;
        // A dropped client would release its share.
        std::mem::forget((self.client, self.has));
    }

    async fn ends(&mut self) {
        self.gives_up().await;
        self.gives_it_back().await;
        let closed = self.client.close().await;
        self.expect(closed.is_ok(), "closes its client in time");
    }
}

const LEASE: Duration = ms(2000);
/// A message on its way.
const AT_ONCE: Duration = ms(20);

async fn a_heavy_wait_is_not_overtaken(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    stage.is_calm();
    a.gets(Wish::Permits(2)).await;
    b.begins_to_wait(Wish::Permits(3)).await;
    c.begins_to_wait(Wish::Permits(1)).await;
    stage.passes(ms(5000)).await;
    c.still_waits();
    a.gives_it_back().await;
    b.comes_in(AT_ONCE).await;
    c.still_waits();
    b.gives_it_back().await;
    c.comes_in(AT_ONCE).await;
    stage.ends([a, b, c]).await;
}

async fn readers_come_in_together(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut w, mut x) = (stage.caller("W", LEASE).await, stage.caller("X", LEASE).await);
    let (mut r, mut s) = (stage.caller("R", LEASE).await, stage.caller("S", LEASE).await);
    let mut t = stage.caller("T", LEASE).await;
    stage.is_calm();
    w.gets(Wish::Write).await;
    r.begins_to_wait(Wish::Read).await;
    s.begins_to_wait(Wish::Read).await;
    x.begins_to_wait(Wish::Write).await;
    t.begins_to_wait(Wish::Read).await;
    w.gives_it_back().await;
    r.comes_in(AT_ONCE).await;
    s.comes_in(AT_ONCE).await;
    r.gives_it_back().await;
    stage.passes(ms(3000)).await;
    x.still_waits();
    t.still_waits();
    s.gives_it_back().await;
    x.comes_in(AT_ONCE).await;
    t.still_waits();
    x.gives_it_back().await;
    t.comes_in(AT_ONCE).await;
    stage.ends([w, x, r, s, t]).await;
}

async fn a_release_that_is_sent_again_frees_once(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let (mut c, mut d) = (stage.caller("C", LEASE).await, stage.caller("D", LEASE).await);
    a.gets(Wish::Permits(2)).await;
    b.gets(Wish::Permits(1)).await;
    c.begins_to_wait(Wish::Permits(2)).await;
    d.begins_to_wait(Wish::Permits(1)).await;
    a.next("release", Fate::ReplyLost);
    a.gives_it_back().await;
    c.comes_in(AT_ONCE).await;
    stage.passes(ms(3000)).await;
    d.still_waits();
    b.still_has();
    c.still_has();
    stage.ends([a, b, c, d]).await;
}

async fn a_release_that_is_refused_half_way(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    // With C after B it is not the usual case of a release.
    for (command, with_c) in (0..24).flat_map(|command| [(command, false), (command, true)]) {
        a.gets(Wish::Permits(3)).await;
        b.begins_to_wait(Wish::Permits(1)).await;
        if with_c {
            c.begins_to_wait(Wish::Permits(1)).await;
        }
        a.next("release", Fate::RefusedInside(command));
        a.gives_it_back().await;
        b.comes_in(ms(1000)).await;
        if with_c {
            c.comes_in(ms(1000)).await;
        }
        stage.passes(ms(3000)).await;
        b.still_has();
        b.gives_it_back().await;
        if with_c {
            c.gives_it_back().await;
        }
    }
    stage.ends([a, b, c]).await;
}

async fn handles_that_are_refused_half_way(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    for (command, at_attach) in (0..12).flat_map(|command| [(command, false), (command, true)]) {
        a.gets(Wish::Permits(3)).await;
        c.begins_to_wait(Wish::Permits(3)).await;
        (if at_attach { &b } else { &a }).next("give", Fate::RefusedInside(command));
        if let Some(handle) = a.detaches(ms(30_000)).await {
            let attached = b.client.attach_permit(&handle).await;
            b.says(&format!("hears: {attached:?}"));
            drop(attached);
            let _ = b.client.release(&handle).await;
        }
        c.comes_in(ms(1500)).await;
        stage.passes(ms(3000)).await;
        c.still_has();
        c.gives_it_back().await;
    }
    stage.ends([a, b, c]).await;
}

async fn a_share_that_is_left_half_way(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", ms(30_000)).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    b.gets(Wish::Permits(1)).await;
    for command in 0..16 {
        a.next("acquire", Fate::ReplyTakes(ms(100)));
        a.next("leave", Fate::RefusedInside(command));
        a.asks(Wish::Permits(2));
        stage.passes(ms(10)).await;
        a.gives_up().await;
        c.asks(Wish::Permits(2));
        c.comes_in(ms(1000)).await;
        c.gives_it_back().await;
    }
    stage.ends([a, b, c]).await;
}

async fn a_place_that_nobody_may_take_out(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let (mut c, mut x) = (stage.caller("C", LEASE).await, stage.caller("X", LEASE).await);
    a.gets(Wish::Permits(3)).await;
    x.begins_to_wait(Wish::Permits(1)).await;
    x.says("stands still, and its connection breaks");
    x.world().pause(x.client.id());
    stage.server.disconnect(x.client.id());
    b.begins_to_wait(Wish::Permits(1)).await;
    a.may_not("LREM");
    a.gives_it_back().await;
    b.comes_in(AT_ONCE).await;
    b.gives_it_back().await;
    c.asks(Wish::Permits(3));
    c.comes_in(AT_ONCE).await;
    c.gives_it_back().await;
    x.world().go_on(x.client.id());
    x.comes_in(ms(2000)).await;
    stage.ends([a, b, c, x]).await;
}

async fn an_attach_without_a_right(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let c = stage.caller("C", LEASE).await;
    a.gets(Wish::Permits(3)).await;
    let Some(handle) = a.detaches(ms(30_000)).await else { return a.expect(false, "detaches it") };
    b.may_not("HSET");
    b.expect(b.client.attach_permit(&handle).await.is_err(), "does not attach it");
    stage.passes(ms(1000)).await;
    c.expect(c.client.attach_permit(&handle).await.is_ok(), "attaches it");
    stage.ends([a, b, c]).await;
}

async fn a_shrink_that_comes_behind_the_release(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    a.gets(Wish::Permits(3)).await;
    a.next("release", Fate::RequestTakes(ms(5000)));
    a.shrinks_to(1, ms(100)).await;
    a.gives_it_back().await;
    a.gets(Wish::Permits(3)).await;
    b.begins_to_wait(Wish::Permits(1)).await;
    stage.passes(ms(7000)).await;
    a.still_has();
    b.still_waits();
    a.gives_it_back().await;
    b.comes_in(AT_ONCE).await;
    stage.ends([a, b]).await;
}

async fn a_downgrade_whose_answer_is_lost(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut r) = (stage.caller("A", LEASE).await, stage.caller("R", LEASE).await);
    let mut w = stage.caller("W", LEASE).await;
    a.gets(Wish::Write).await;
    r.begins_to_wait(Wish::Read).await;
    w.begins_to_wait(Wish::Write).await;
    a.next("release", Fate::ReplyLost);
    a.downgrades().await;
    r.comes_in(AT_ONCE).await;
    stage.passes(ms(3000)).await;
    w.still_waits();
    a.gives_it_back().await;
    w.still_waits();
    r.gives_it_back().await;
    w.comes_in(AT_ONCE).await;
    stage.ends([a, r, w]).await;
}

async fn a_writer_that_gives_up(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut w = stage.caller("W", LEASE).await;
    stage.is_calm();
    a.gets(Wish::Read).await;
    w.begins_to_wait(Wish::Write).await;
    b.begins_to_wait(Wish::Read).await;
    w.gives_up().await;
    b.comes_in(AT_ONCE).await;
    a.still_has();
    stage.ends([a, b, w]).await;
}

async fn a_holder_of_two_permits_that_dies(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    a.gets(Wish::Permits(2)).await;
    b.gets(Wish::Permits(1)).await;
    c.begins_to_wait(Wish::Permits(2)).await;
    a.dies(&stage.server).await;
    stage.passes(ms(1000)).await;
    c.still_waits();
    // The rest of a lease, and P7.
    c.comes_in(LEASE - ms(1000) + ms(100)).await;
    b.still_has();
    stage.ends([b, c]).await;
}

async fn a_grant_that_nobody_hears_of(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    a.gets(Wish::Permits(3)).await;
    b.begins_to_wait(Wish::Permits(3)).await;
    c.begins_to_wait(Wish::Permits(3)).await;
    b.next("push", Fate::PushTakes(ms(10_000)));
    a.gives_it_back().await;
    b.comes_in(ms(600)).await;
    stage.passes(ms(12_000)).await;
    b.still_has();
    c.still_waits();
    stage.ends([a, b, c]).await;
}

async fn a_gate_that_was_closed(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    a.gets(Wish::Permits(1)).await;
    a.next("set_limit", Fate::ReplyLost);
    a.sets_permits(Some(0)).await;
    b.begins_to_wait(Wish::Permits(1)).await;
    stage.passes(ms(5000)).await;
    b.still_waits();
    a.still_has();
    a.sets_permits(None).await;
    b.comes_in(AT_ONCE).await;
    stage.ends([a, b]).await;
}

async fn a_permit_that_comes_back(world: Arc<World>) {
    let mut stage = SharedStage::new(world);
    let (mut a, mut b) = (stage.caller("A", ms(10_000)).await, stage.caller("B", LEASE).await);
    a.gets(Wish::Permits(3)).await;
    stage.fails_over_behind(async || a.gives_it_back().await).await;
    stage.is_calm();
    stage.passes(ms(2000)).await;
    b.gets(Wish::Permits(3)).await;
    b.still_has();
    stage.ends([a, b]).await;
}

async fn permits_while_their_slot_moves(world: Arc<World>) {
    let mut stage = SharedStage::cluster(world);
    let (mut a, mut b) = (stage.caller("A", LEASE).await, stage.caller("B", LEASE).await);
    let mut c = stage.caller("C", LEASE).await;
    a.gets(Wish::Permits(2)).await;
    b.begins_to_wait(Wish::Permits(3)).await;
    c.begins_to_wait(Wish::Permits(1)).await;
    stage.begins_to_move_the_slot_of(SEMAPHORE);
    stage.one_key_moves(SEMAPHORE, ":queue");
    stage.passes(ms(5000)).await;
    a.still_has();
    stage.has_moved_the_slot();
    stage.passes(ms(2000)).await;
    b.still_waits();
    c.still_waits();
    a.gives_it_back().await;
    b.comes_in(AT_ONCE).await;
    c.still_waits();
    b.gives_it_back().await;
    c.comes_in(AT_ONCE).await;
    stage.ends([a, b, c]).await;
}
