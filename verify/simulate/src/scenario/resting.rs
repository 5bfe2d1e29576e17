//! Scenarios with unpolled futures: nothing that others need may depend on them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fairlock::{Ended, LockGuard, Owner, Unlocked};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::Scenario;
use super::stage::{Caller, NAME, Stage, ms, step};
use crate::world::{Fate, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "unlocks-that-rest",
        about: "256 unlocks were sent, and nobody looks at their answers for a minute. The other locks of this client must be \
                renewed all the same: overload costs no lock that is held (P8, s4). And watchers of what was unlocked hear of the end.",
        play: |world| Box::pin(unlocks_that_rest(world)),
    },
    Scenario {
        name: "tries-that-rest",
        about: "256 tries were sent, and nobody looks at their answers. Others of this client must not wait for their slots (s44).",
        play: |world| Box::pin(tries_that_rest(world)),
    },
    Scenario {
        name: "a-probe-that-rests",
        about: "The server refuses for 45 ms. The request that is to find out when it is over is one at whose answer nobody looks. \
                The locks of this client must be renewed all the same (P8, s9).",
        play: |world| Box::pin(a_probe_that_rests(world)),
    },
    Scenario {
        name: "an-answer-that-is-looked-at-late",
        about: "The server has given a lock away, and the caller has not looked at the answer when the server comes back without its \
                data, or when a replica takes over that had not heard of it. The answer is none any more: no guard may come of it (P1, s2, R15).",
        play: |world| Box::pin(an_answer_that_is_looked_at_late(world)),
    },
    Scenario {
        name: "answers-that-rest",
        about: "Six calls have got a free lock each, one of them for ten minutes by its lease, and nobody looks at their answers. \
                Each may cost B, who wants these names, a quarter of a second (P6, decision 84).",
        play: |world| Box::pin(answers_that_rest(world)),
    },
    Scenario {
        name: "waits-that-rest",
        about: "20 waits come before that of B, and nobody polls them when it is their turn. Each of them may cost B a quarter of a \
                second, and C, who comes later, nothing any more (P6, E3).",
        play: |world| Box::pin(waits_that_rest(world)),
    },
    Scenario {
        name: "a-turn-that-rests-while-its-client-connects-anew",
        about: "It is A's turn, nobody polls its call, and its connection breaks. A poll over the new one finds the grant. The moment that A \
                may cost B counts from the first message (P6).",
        play: |world| Box::pin(a_turn_that_rests_while_its_client_connects_anew(world)),
    },
    Scenario {
        name: "nested-calls-that-rest",
        about: "A has a lock and asks for it once more, or gives an inner hold back, in a future that nobody polls. Then it gives back \
                what it had first. That costs B, who waits, a quarter of a second (P6, decision 84).",
        play: |world| Box::pin(nested_calls_that_rest(world)),
    },
    Scenario {
        name: "an-unlock-that-rests-before-its-turn",
        about: "A makes a nested call, and gives back what it had first. Nobody polls either of them, so neither sends a release. The \
                client does it when it would renew the hold, so that B, who waits, has the lock before the lease is over (P6).",
        play: |world| Box::pin(an_unlock_that_rests_before_its_turn(world)),
    },
    Scenario {
        name: "an-unlock-that-rests-with-a-lost-request",
        about: "The request with which A gives its lock back comes late, and A does not look. Its client sends another one, so that B, \
                who waits, has the lock long before the lease of a minute is over (P6).",
        play: |world| Box::pin(an_unlock_that_rests_with_a_lost_request(world)),
    },
    Scenario {
        name: "an-unlock-before-that-of-its-inner-hold",
        about: "A gives an inner hold back, which takes long, and then what it had first. That goes first after a quarter of a \
                second. So the late one finds nothing of A: nobody has taken it, and A must not be told of a loss (P8).",
        play: |world| Box::pin(an_unlock_before_that_of_its_inner_hold(world)),
    },
];

/// Scenarios with calls for several names.
pub const OF_SETS: &[Scenario] = &[
    Scenario {
        name: "a-copy-of-the-first-question-about-a-part",
        about: "A waits for two locks, has the first by a message, and its call rests for a while. The request that sets the lease of \
                that lock is sent again and again. The call goes on, and the answer to a later copy is relied on when an earlier one \
                is served. It must not ask for less, or C has the lock beside A (R5, P1).",
        play: |world| Box::pin(a_copy_of_the_first_question_about_a_part(world)),
    },
    Scenario {
        name: "a-part-that-a-failover-shortens",
        about: "A waits for two locks, and has the first. A server takes over that knows of its grant only, while the call rests. A must \
                ask for all that it relies on, and not for the rest of the time for which its call wants the lock (R5, P1).",
        play: |world| Box::pin(a_part_that_a_failover_shortens(world)),
    },
];

/// Sends the call, and does not read its answer.
pub async fn begin<T>(mut call: Pin<&mut impl Future<Output = T>>) {
    // Otherwise the runtime may stop this task after some steps, before it sends the call.
    yield_now().await;
    poll_fn(|context| {
        let _ = call.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// Takes `count` names.
async fn held(a: &Caller, name: &str, count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for number in 0..count {
        guards.extend(a.client.lock(format!("{name}{number}")).lock().await);
    }
    guards
}

fn all_are_valid(stage: &Stage, kept: &[LockGuard]) {
    let lost = kept.iter().filter(|guard| !guard.is_valid()).count();
    stage.expect(lost == 0, &format!("none of {} locks of A is lost, and not {lost}", kept.len()));
}

async fn unlocks_that_rest(world: Arc<World>) {
    let stage = Stage::new(world);
    let a = stage.caller("A", |it| it).await;
    let given = held(&a, "given", 256).await;
    let kept = held(&a, "kept", 50).await;
    let watchers: Vec<_> = given.iter().map(|guard| guard.held()).collect();
    step(&stage.world, "A gives 256 locks back, and does not look at the answers");
    let mut unlocks: Vec<_> = given.into_iter().map(|guard| Box::pin(guard.unlock())).collect();
    for unlock in &mut unlocks {
        begin(unlock.as_mut()).await;
    }
    stage.passes(ms(60_000)).await;
    all_are_valid(&stage, &kept);
    for watcher in watchers {
        let ended = timeout(Duration::ZERO, watcher.ended()).await;
        stage.expect(ended == Ok(Ended::Freed), &format!("its watchers know that it was freed, and not {ended:?}"));
    }
    drop((unlocks, kept));
    stage.ends([a]).await;
}

async fn tries_that_rest(world: Arc<World>) {
    let stage = Stage::new(world);
    let a = stage.caller("A", |it| it).await;
    step(&stage.world, "A tries 256 names, and does not look at the answers");
    let locks: Vec<_> = (0..256).map(|number| a.client.lock(format!("tried{number}"))).collect();
    let mut tries: Vec<_> = locks.iter().map(|lock| Box::pin(lock.try_lock())).collect();
    for tried in &mut tries {
        begin(tried.as_mut()).await;
    }
    stage.passes(ms(20)).await;
    let begun = Instant::now();
    let free = held(&a, "free", 4).await;
    let waited = begun.elapsed();
    stage.expect(
        free.len() == 4 && waited < ms(100),
        &format!("A has four free names within 100 ms, and not {waited:?}"),
    );
    drop((tries, free));
    stage.ends([a]).await;
}

async fn a_probe_that_rests(world: Arc<World>) {
    let stage = Stage::new(world);
    let a = stage.caller("A", |it| it).await;
    let kept = held(&a, "kept", 20).await;
    a.is_refused("acquire", ms(45));
    let free = a.client.lock("free");
    let mut lock = Box::pin(free.lock());
    begin(lock.as_mut()).await;
    stage.passes(ms(5)).await;
    a.next("acquire", Fate::Sent);
    let mut polls = 0;
    while !stage.world.state().has_met_all() && polls < 1000 {
        begin(lock.as_mut()).await;
        sleep(ms(1)).await;
        polls += 1;
    }
    stage.expect(polls < 1000, "the probe was sent, and nobody looks at its answer");
    stage.passes(ms(10_000)).await;
    all_are_valid(&stage, &kept);
    drop((lock, kept));
    stage.ends([a]).await;
}

async fn an_answer_that_is_looked_at_late(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let (a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let lock = a.client.lock(NAME).with_lease(ms(600_000));
    for fails_over in [false, true] {
        stage.replica_stays_behind();
        a.says("asks for the lock, and does not look at the answer");
        a.next("acquire", Fate::AtOnce);
        let mut call = Box::pin(lock.lock());
        begin(call.as_mut()).await;
        stage.passes(ms(100)).await;
        if fails_over {
            stage.fails_over().await;
        } else {
            stage.restarts_without_data().await;
        }
        stage.passes(ms(10)).await;
        b.gets_the_lock().await;
        // It did not get it, and waits until B has released it.
        let late = timeout(ms(100), &mut call).await;
        stage.expect(late.is_err(), "A has no guard of what is gone");
        if late.is_ok() {
            break;
        }
        b.gives_it_back().await;
        let guard = call.await;
        stage.expect(guard.is_ok_and(|guard| guard.is_valid()), "A has the lock after B");
        stage.passes(ms(10)).await;
    }
    stage.ends([a, b]).await;
}

async fn answers_that_rest(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let names: Vec<_> = (0..6).map(|number| format!("name{number}")).collect();
    let locks: Vec<_> = names.iter().map(|name| a.client.lock(name)).collect();
    let fixed = locks[1].with_lease(ms(600_000));
    step(&stage.world, "A asks for six names in each of the ways, and does not look at the answers");
    let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
    for lock in [&locks[0], &fixed] {
        calls.push(Box::pin(async move { drop(lock.lock().await) }));
    }
    for lock in &locks[2..4] {
        calls.push(Box::pin(async move { drop(lock.try_lock().await) }));
    }
    for lock in &locks[4..] {
        calls.push(Box::pin(async move { drop(lock.lock_timeout(ms(60_000)).await) }));
    }
    for call in &mut calls {
        begin(Pin::new(call)).await;
    }
    stage.passes(ms(1)).await;
    let begun = Instant::now();
    for name in &names {
        let guard = b.client.lock(name).lock().await;
        let waited = begun.elapsed();
        stage.expect(
            guard.is_ok() && waited <= EACH,
            &format!("B has {name} after {EACH:?} at most, and not {waited:?}"),
        );
        drop(guard);
    }
    step(&stage.world, "A looks at its answers");
    for call in calls {
        let ended = timeout(ms(1000), call).await;
        stage.expect(ended.is_ok(), "its call goes on");
    }
    stage.ends([a, b]).await;
}

async fn a_turn_that_rests_while_its_client_connects_anew(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let mut holder = stage.caller("H", |it| it).await;
    holder.gets_the_lock().await;
    step(&stage.world, "A asks for the lock, and nobody polls that any more");
    let lock = a.client.lock(NAME);
    let mut call = Box::pin(lock.lock());
    go_on(call.as_mut()).await;
    b.begins_to_wait().await;
    let begun = Instant::now();
    holder.gives_it_back().await;
    stage.passes(EACH - ms(40)).await;
    // The answer comes when the moment has ended.
    a.next("poll", Fate::ReplyTakes(ms(30)));
    a.loses_its_connection(&stage.server);
    b.gets_the_lock().await;
    let (waited, most) = (begun.elapsed(), EACH + ms(50));
    stage.expect(waited <= most, &format!("B has waited for {most:?} at most, and not for {waited:?}"));
    drop(call);
    stage.ends([a, b, holder]).await;
}

async fn nested_calls_that_rest(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let (lock, owner) = (a.client.lock(NAME), Owner::new());
    for unlocks in [false, true] {
        let outer = owner.scope(lock.lock()).await;
        let inner = if unlocks { owner.scope(lock.lock()).await.ok() } else { None };
        step(&stage.world, "A makes a nested call, and does not look at the answer");
        let mut call = Box::pin(owner.scope(async {
            match inner {
                Some(inner) => drop(inner.unlock().await),
                None => drop(lock.lock().await),
            }
        }));
        begin(call.as_mut()).await;
        b.begins_to_wait().await;
        step(&stage.world, "A gives back what it had first");
        let begun = Instant::now();
        let unlock = owner.scope(async { drop(outer.expect("the lock was free").unlock().await) });
        tokio::join!(unlock, b.gets_the_lock());
        let waited = begun.elapsed();
        stage.expect(waited <= EACH, &format!("B has waited for {EACH:?} at most, and not for {waited:?}"));
        b.gives_it_back().await;
        drop(call);
    }
    stage.ends([a, b]).await;
}

async fn an_unlock_that_rests_before_its_turn(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let (lock, owner) = (a.client.lock(NAME), Owner::new());
    let outer = owner.scope(lock.lock()).await.expect("it is free");
    step(&stage.world, "A makes a nested call, gives back what it had first, and does not look at the answers");
    let mut nested = Box::pin(owner.scope(lock.lock()));
    begin(nested.as_mut()).await;
    let mut unlock = Box::pin(outer.unlock());
    begin(unlock.as_mut()).await;
    let begun = Instant::now();
    b.gets_the_lock().await;
    let waited = begun.elapsed();
    stage.expect(waited <= ms(2000) / 2, &format!("B has waited for less than a lease of A, and not for {waited:?}"));
    let outcome = unlock.await;
    stage.expect(matches!(outcome, Ok(Unlocked::Freed)), &format!("A hears that it was freed, and not {outcome:?}"));
    drop(nested);
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn an_unlock_that_rests_with_a_lost_request(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let guard = a.client.lock(NAME).with_lease(ms(60_000)).lock().await.expect("it is free");
    a.next("release", Fate::RequestTakes(ms(30_000)));
    step(&stage.world, "A gives the lock back, and does not look at the answer");
    let mut unlock = Box::pin(guard.unlock());
    begin(unlock.as_mut()).await;
    let begun = Instant::now();
    b.gets_the_lock().await;
    let waited = begun.elapsed();
    stage.expect(waited <= ms(6000), &format!("B has waited for less than a lease of A, and not for {waited:?}"));
    drop(unlock);
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn an_unlock_before_that_of_its_inner_hold(world: Arc<World>) {
    let stage = Stage::new(world);
    let a = stage.caller("A", |it| it).await;
    let lock = a.client.lock(NAME);
    let owner = Owner::new();
    let held = async { (lock.lock().await.expect("it is free"), lock.lock().await.expect("it is its own")) };
    let (outer, inner) = owner.scope(held).await;
    a.next("release", Fate::RequestTakes(ms(400)));
    a.says("gives the inner hold back");
    drop(inner);
    sleep(ms(2)).await;
    a.next("release", Fate::ReplyTakes(ms(200)));
    a.says("gives back what it had first");
    let outcome = outer.unlock().await;
    stage.expect(matches!(outcome, Ok(Unlocked::Freed)), &format!("it is free, and not {outcome:?}"));
    stage.ends([a]).await;
}

/// Comes after [`NAME`] in the order of a set.
const SECOND: &str = "lock1";

/// Polls the call for some milliseconds, and then no more.
async fn go_on<T>(mut call: Pin<&mut impl Future<Output = T>>) {
    for _ in 0..6 {
        begin(call.as_mut()).await;
        sleep(ms(1)).await;
    }
}

async fn a_copy_of_the_first_question_about_a_part(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.operation_timeout(ms(100)).grant_ttl(ms(2500)).waiter_ttl(ms(6000))).await;
    let (mut b, mut c) = (stage.caller("B", |it| it).await, stage.caller("C", |it| it).await);
    b.gets_the_lock().await;
    let second = b.client.lock(SECOND).lock().await;
    step(&stage.world, "A asks for both locks");
    let both = a.client.lock_all([NAME, SECOND]);
    let mut call = Box::pin(both.lock());
    go_on(call.as_mut()).await;
    // The client sends it every 167 ms, and its call wants the lock for less time each time.
    (0..4).for_each(|_| a.next("renew", Fate::ReplyLost));
    a.next("renew", Fate::RequestTakes(ms(300)));
    b.gives_it_back().await;
    go_on(call.as_mut()).await;
    stage.passes(ms(780)).await;
    stage.has_met_all("the copy that takes 300 ms is under way");
    step(&stage.world, "the call goes on");
    go_on(call.as_mut()).await;
    stage.passes(ms(120)).await;
    drop(second);
    let guards = call.await.map(|all| all.into_guards()).unwrap_or_default();
    let mut guards = guards.into_iter();
    a.has(guards.next().expect("A has both"));
    stage.passes(ms(150)).await;
    a.is_refused("renew", ms(2000));
    c.gets_the_lock().await;
    a.has_heard_of_its_loss();
    // The server serves its requests again.
    stage.passes(ms(2000)).await;
    drop(guards);
    stage.ends([a, b, c]).await;
}

async fn a_part_that_a_failover_shortens(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.operation_timeout(ms(100))).await;
    let (mut b, mut c) = (stage.caller("B", |it| it).await, stage.caller("C", |it| it).await);
    b.gets_the_lock().await;
    let second = b.client.lock(SECOND).lock().await;
    step(&stage.world, "A asks for both locks");
    let both = a.client.lock_all([NAME, SECOND]);
    let mut call = Box::pin(both.lock());
    go_on(call.as_mut()).await;
    (0..2).for_each(|_| a.next("renew", Fate::ReplyLost));
    b.gives_it_back().await;
    go_on(call.as_mut()).await;
    stage.replica_stays_behind();
    // The third request gets an answer.
    stage.passes(ms(420)).await;
    stage.has_met_all("two requests for the lease had no answers");
    stage.fails_over().await;
    stage.passes(ms(20)).await;
    a.is_refused("renew", ms(2000));
    drop(second);
    let guards = call.await.map(|all| all.into_guards()).unwrap_or_default();
    let mut guards = guards.into_iter();
    a.has(guards.next().expect("A has both"));
    c.gets_the_lock().await;
    a.has_heard_of_its_loss();
    // The server serves its requests again.
    stage.passes(ms(2000)).await;
    drop(guards);
    stage.ends([a, b, c]).await;
}

/// With a moment for the messages.
const EACH: Duration = ms(250 + 20);

async fn waits_that_rest(world: Arc<World>) {
    let stage = Stage::new(world);
    let (a, mut holder) = (stage.caller("A", |it| it).await, stage.caller("H", |it| it).await);
    let (mut b, mut c) = (stage.caller("B", |it| it).await, stage.caller("C", |it| it).await);
    holder.gets_the_lock().await;
    step(&stage.world, "A asks 20 times for the lock");
    let lock = a.client.lock(NAME);
    let mut waits: Vec<_> = (0..20).map(|_| Box::pin(lock.lock())).collect();
    for _ in 0..10 {
        for wait in &mut waits {
            begin(wait.as_mut()).await;
        }
        sleep(ms(1)).await;
    }
    step(&stage.world, "from here on nobody polls them");
    b.begins_to_wait().await;
    holder.gives_it_back().await;
    for (caller, most) in [(&mut b, 20 * EACH), (&mut c, EACH)] {
        let begun = Instant::now();
        caller.gets_the_lock().await;
        let waited = begun.elapsed();
        stage.expect(waited <= most, &format!("it has waited for {most:?} at most, and not for {waited:?}"));
        caller.gives_it_back().await;
    }
    drop(waits);
    stage.ends([a, holder, b, c]).await;
}
