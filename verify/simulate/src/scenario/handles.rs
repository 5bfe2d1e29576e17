//! Scenarios of holds that go to a handle and come back from it (R16).

use std::sync::Arc;
use std::time::Duration;

use fairlock::{DetachError, HandleError, HoldHandle, Tried};

use super::Scenario;
use super::resting::begin;
use super::stage::{Caller, NAME, Stage, ms};
use crate::world::{Fate, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-detach-that-comes-after-its-handle-was-released",
        about: "A detach has no answer. Its caller releases the handle, which holds nothing yet, and then the detach is served: the lock \
                would be held by nobody for ten minutes (R16, P5).",
        play: |world| Box::pin(a_detach_that_comes_after_its_handle_was_released(world)),
    },
    Scenario {
        name: "a-detach-that-comes-after-an-attach",
        about: "A detach has no answer. Its caller attaches the handle, which holds nothing yet, and then the detach is served: it is no \
                loss, and the lock would be held by nobody for ten minutes (R16, P5).",
        play: |world| Box::pin(a_detach_that_comes_after_an_attach(world)),
    },
    Scenario {
        name: "a-detach-that-comes-after-an-extend",
        about: "The same for an extend by the handle (R16).",
        play: |world| Box::pin(a_detach_that_comes_after_an_extend(world)),
    },
    Scenario {
        name: "a-detach-that-was-never-served",
        about: "A detach has no answer and was not served. Nobody renews what its owner has, and nobody else has it: it is given back, \
                long before its lease of ten minutes is over (P5).",
        play: |world| Box::pin(a_detach_that_was_never_served(world)),
    },
    Scenario {
        name: "a-detach-that-rests-and-is-refused",
        about: "A detach waits for its turn, which a nested call has, and is not polled for most of a lease. It is refused then, and A \
                has its guard as before: renewed in time (P8).",
        play: |world| Box::pin(a_detach_that_rests_and_is_refused(world)),
    },
    Scenario {
        name: "an-acquire-behind-a-detach",
        about: "A copy of the acquire arrives after the hold was detached, and takes a place in the queue. When the handle is released, \
                the lock must not go to that place, which nobody waits for (R3, P5).",
        play: |world| Box::pin(an_acquire_behind_a_detach(world)),
    },
    Scenario {
        name: "a-renewal-behind-a-detach",
        about: "A renewal is under way while its hold is detached, and finds another owner. That is no loss, and the client that has \
                detached it does not leave what the handle holds, though it polls for the name (R15, R16).",
        play: |world| Box::pin(a_renewal_behind_a_detach(world)),
    },
    Scenario {
        name: "a-first-renewal-behind-an-extend",
        about: "The first renewal after a grant by message sets a short lease. It is served behind an extend, and must not cut that (R16, P1).",
        play: |world| Box::pin(a_first_renewal_behind_an_extend(world)),
    },
    Scenario {
        name: "an-attach-that-nobody-waits-for",
        about: "The answer to an attach is late, and its caller gives up. What it has attached is released (R9, P5).",
        play: |world| Box::pin(an_attach_that_nobody_waits_for(world)),
    },
    Scenario {
        name: "an-attach-that-rests-for-nearly-its-lease",
        about: "B attaches the handle with a lease of two seconds, and reads the answer when less is left of it than the first renewal \
                would take. It must ask at once, or it loses the lock as soon as it has it (P8).",
        play: |world| Box::pin(an_attach_that_rests_for_nearly_its_lease(world)),
    },
    Scenario {
        name: "handles-under-faults",
        about: "Three callers detach, extend, attach and release for a while, and requests and answers are late or lost. One of them at \
                most has the lock, and in the end it is free.",
        play: |world| Box::pin(handles_under_faults(world)),
    },
];

const LEASE: Duration = ms(600_000);

impl Caller {
    /// Its answer may be lost: then the handle has the hold, or nobody.
    async fn detaches(&mut self, stage: &Stage) -> Option<(HoldHandle, bool)> {
        let guard = self.takes_its_guard()?;
        self.says("detaches what it holds");
        match guard.detach(LEASE).await {
            Ok(handle) => Some((handle, true)),
            Err(DetachError::Unanswered { handle, .. }) => {
                self.says("has no answer");
                Some((handle, false))
            }
            Err(error) => {
                stage.expect(false, &format!("it detaches, and not {error}"));
                None
            }
        }
    }

    async fn attaches(&mut self, handle: &HoldHandle) -> Result<(), HandleError> {
        self.says("attaches the handle");
        let (client, handle) = (self.client.clone(), handle.clone());
        let guard = self.in_scope(async move { client.attach(&handle).await }).await?;
        self.has(guard);
        Ok(())
    }
}

fn is_lost<T>(outcome: &Result<T, HandleError>) -> bool {
    matches!(outcome, Err(HandleError::Lost))
}

/// A detach without an answer, which the server serves 150 ms later.
async fn detaches_late(stage: &Stage, a: &mut Caller) -> Option<HoldHandle> {
    // This slow request puts the client's estimate of the server's clock 300 ms ahead, so the server may serve its next
    // requests 300 ms later (R2).
    a.next("acquire", Fate::RequestTakes(ms(300)));
    a.gets_the_lock().await;
    // Its leave is late as well: otherwise it would end the hold that the detach moves.
    a.next("give", Fate::RequestTakes(ms(650)));
    a.next("leave", Fate::RequestTakes(ms(3000)));
    let (handle, answered) = a.detaches(stage).await?;
    stage.expect(!answered, "the detach has no answer");
    Some(handle)
}

async fn a_detach_that_comes_after_its_handle_was_released(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let Some(handle) = detaches_late(&stage, &mut a).await else { return };
    let _ = b.client.release(&handle).await;
    stage.passes(ms(2000)).await;
    b.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn a_detach_that_comes_after_an_attach(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let Some(handle) = detaches_late(&stage, &mut a).await else { return };
    let attached = b.attaches(&handle).await;
    stage.expect(attached.is_ok(), "B attaches it");
    stage.passes(ms(10_000)).await;
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn a_detach_that_comes_after_an_extend(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let Some(handle) = detaches_late(&stage, &mut a).await else { return };
    let extended = b.client.extend(&handle, LEASE).await;
    stage.expect(extended.is_ok(), "B extends it");
    let released = b.client.release(&handle).await;
    stage.expect(released.is_ok(), "B releases it");
    stage.ends([a, b]).await;
}

async fn a_detach_that_was_never_served(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(LEASE);
    a.gets_the_lock().await;
    a.next("give", Fate::RequestTakes(ms(60_000)));
    let Some((handle, answered)) = a.detaches(&stage).await else { return };
    stage.expect(!answered, "the detach has no answer");
    b.gets_the_lock().await;
    let attached = a.attaches(&handle).await;
    stage.expect(is_lost(&attached), "the handle holds nothing");
    stage.passes(ms(70_000)).await;
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn a_detach_that_rests_and_is_refused(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it).await;
    a.gets_the_lock().await;
    let Some(guard) = a.takes_its_guard() else { return };
    let lock = a.client.lock(NAME);
    let mut nested = Box::pin(guard.owner().scope(lock.lock()));
    let mut detaching = Box::pin(guard.detach(LEASE));
    begin(nested.as_mut()).await;
    begin(detaching.as_mut()).await;
    stage.passes(ms(1700)).await;
    let Err(DetachError::Refused { guard, .. }) = detaching.await else { return stage.expect(false, "it is refused") };
    stage.passes(ms(5000)).await;
    stage.expect(guard.is_valid(), "A has the lock");
    drop(nested);
    let _ = guard.unlock().await;
    stage.ends([a]).await;
}

async fn an_acquire_behind_a_detach(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    // Its first copy arrives after 650 ms, when the second one has got the lock.
    a.next("acquire", Fate::RequestTakes(ms(590)));
    a.gets_the_lock().await;
    let Some((handle, _)) = a.detaches(&stage).await else { return };
    stage.passes(ms(1000)).await;
    let released = b.client.release(&handle).await;
    stage.expect(released.is_ok(), "B releases the handle");
    stage.passes(ms(10)).await;
    let is_free = b.client.lock(NAME).try_lock().await;
    stage.expect(matches!(is_free, Ok(Tried::Acquired(_))), "the lock is free");
    drop(is_free);
    stage.ends([a, b]).await;
}

async fn a_renewal_behind_a_detach(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.gets_the_lock().await;
    a.next("renew", Fate::RequestTakes(ms(200)));
    // The client renews it every third of 2 s.
    stage.passes(ms(700)).await;
    let Some((handle, answered)) = a.detaches(&stage).await else { return };
    stage.expect(answered, "the detach is answered");
    a.begins_to_wait().await;
    stage.passes(ms(10_000)).await;
    a.still_waits();
    let attached = b.attaches(&handle).await;
    stage.expect(attached.is_ok(), "B attaches it");
    stage.passes(ms(10_000)).await;
    b.still_has_the_lock();
    b.gives_it_back().await;
    a.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn a_first_renewal_behind_an_extend(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(3000));
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    a.next("renew", Fate::RequestTakes(ms(300)));
    stage.passes(ms(60)).await;
    stage.has_met_all("the first renewal is under way");
    let extended = a.extends(ms(20_000)).await;
    stage.expect(extended, "A extends its lease");
    b.begins_to_wait().await;
    stage.passes(ms(10_000)).await;
    a.still_has_the_lock();
    b.still_waits();
    a.gives_it_back().await;
    b.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn an_attach_that_nobody_waits_for(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.gets_the_lock().await;
    let Some((handle, _)) = a.detaches(&stage).await else { return };
    b.next("give", Fate::ReplyTakes(ms(300)));
    let given_up = tokio::time::timeout(ms(100), b.attaches(&handle)).await;
    stage.expect(given_up.is_err(), "B gives up");
    stage.passes(ms(1000)).await;
    a.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn an_attach_that_rests_for_nearly_its_lease(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.gets_the_lock().await;
    let Some((handle, _)) = a.detaches(&stage).await else { return };
    stage.world.messages_take(ms(30));
    let client = b.client.clone();
    let mut attaching = Box::pin(b.in_scope(async move { client.attach(&handle).await }));
    begin(attaching.as_mut()).await;
    stage.passes(ms(1930)).await;
    let attached = attaching.await;
    stage.expect(attached.is_ok(), "B attaches it");
    attached.into_iter().for_each(|guard| b.has(guard));
    stage.passes(ms(1000)).await;
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn handles_under_faults(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut callers = Vec::new();
    for name in ["A", "B", "C"] {
        callers.push(stage.caller(name, |it| it).await);
    }
    // Deterministic.
    let mut random = fastrand::Rng::with_seed(27);
    for round in 0..200 {
        let (one, other) = (round % 3, random.usize(0..3));
        callers[one].gets_the_lock().await;
        for caller in &callers {
            let script = ["give", "give", "renew", "release", "leave"][random.usize(0..5)];
            match random.u8(0..6) {
                0 => caller.next(script, Fate::ReplyLost),
                1 => caller.next(script, Fate::RequestTakes(ms(random.u64(0..900)))),
                2 => caller.next(script, Fate::ReplyTakes(ms(random.u64(0..900)))),
                _ => {}
            }
        }
        let Some((handle, _)) = callers[one].detaches(&stage).await else { break };
        if random.bool() {
            let _ = callers[other].client.extend(&handle, LEASE).await;
        }
        let limit = ms(random.u64(1..1500));
        match random.u8(0..4) {
            0 => drop(tokio::time::timeout(limit, callers[other].attaches(&handle)).await),
            1 => drop(callers[other].client.release(&handle).await),
            _ => drop(callers[other].attaches(&handle).await),
        }
        stage.passes(ms(random.u64(0..3000))).await;
        callers[other].gives_it_back().await;
        // Whatever happened to the hold, nothing keeps it any more.
        while callers[0].client.release(&handle).await.is_err_and(|error| !matches!(error, HandleError::Lost)) {}
    }
    stage.ends(callers).await;
}
