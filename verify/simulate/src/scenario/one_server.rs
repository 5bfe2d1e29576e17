//! Scenarios with one server.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{LockClientBuilder, LockError};
use tokio::time::{Instant, timeout};

use super::Scenario;
use super::stage::{NAME, Stage, ms};
use crate::world::{Fate, PUSH, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-poll-of-a-wait-that-is-over",
        about: "The answer to a poll is late, and the wait that it was for is over. Meanwhile its owner has another call, which waits for \
                a release without an answer: that poll does not say that others have the lock (decision 42).",
        play: |world| Box::pin(a_poll_of_a_wait_that_is_over(world)),
    },
    Scenario {
        name: "a-place-that-comes-back-to-a-closed-client",
        about: "A failover brings back the place of a client that has closed meanwhile. Nobody is there who could give a \
                grant back, so it must be passed over, and not wait out the grant (P5, D12).",
        play: |world| Box::pin(a_place_that_comes_back_to_a_closed_client(world)),
    },
    Scenario {
        name: "a-late-grant-of-an-attempt-that-has-another-hold",
        about: "The message of a grant comes late: the server has lost its data since, and the same attempt has got the \
                lock under another token. The message must not end that hold (R15, S12).",
        play: |world| Box::pin(a_late_grant_of_an_attempt_that_has_another_hold(world)),
    },
    Scenario {
        name: "a-grant-of-the-server-before",
        about: "A waiter has the message of a grant, and no answer yet with which to trust it. The server fails over, and \
                the next one answers. The message is of the one before, and the next one does not know of the grant: it \
                must not be trusted on that answer (R15, R7).",
        play: |world| Box::pin(a_grant_of_the_server_before(world)),
    },
    Scenario {
        name: "a-grant-between-two-tries",
        about: "W waits, and has no answer that says so: all are lost, and its tries come at ever longer intervals. The lock comes to it \
                between two of them. It must take it then: B waits behind it (P6, P7).",
        play: |world| Box::pin(a_grant_between_two_tries(world)),
    },
    Scenario {
        name: "a-fixed-lease-that-a-failover-shortens",
        about: "A waiter with a fixed lease is granted the lock, and its first request sets that lease. A server takes over \
                that knows of the grant only, which is shorter. Nobody renews a fixed lease, so its holder must get it back \
                when it connects, or the next one has the lock while it is relied on (R15, P1).",
        play: |world| Box::pin(a_fixed_lease_that_a_failover_shortens(world)),
    },
    Scenario {
        name: "a-grant-that-is-told-of-at-the-last-moment",
        about: "The message of a grant comes when that has 2 ms left by what the waiter knows. Relied on, it would end before its \
                renewal is answered; the waiter has to ask first (R7).",
        play: |world| Box::pin(a_grant_that_is_told_of_at_the_last_moment(world)),
    },
    Scenario {
        name: "a-renewal-that-is-served-late-and-max-hold",
        about: "A renewal is served late, so the server keeps the lock for longer than A may have it. The answer to the next one says so, \
                and A must not rely on that: its hold ends with `max_hold`.",
        play: |world| Box::pin(a_renewal_that_is_served_late_and_max_hold(world)),
    },
    Scenario {
        name: "a-max-hold-that-is-shorter-than-a-grant",
        about: "B waits, and gets the lock for the time of a grant. Its `max_hold` is over sooner, but it relies on that grant: the server \
                keeps the lock for it until then, and C comes after (P1).",
        play: |world| Box::pin(a_max_hold_that_is_shorter_than_a_grant(world)),
    },
    Scenario {
        name: "a-runtime-that-ends-behind-a-deadline",
        about: "A's runtime is not driven when the deadline of its hold passes, and then it ends. Nothing is left that would notice, and \
                A must be told all the same (P8).",
        play: |world| Box::pin(a_runtime_that_ends_behind_a_deadline(world)),
    },
    Scenario {
        name: "a-wait-given-up-without-an-answer",
        about: "W and V are two waits of one client, and W is given up. Its leaves are lost, for longer than a place would live without \
                its client. V keeps the place of W alive all that time, so the leave must go on until it is answered (P6, R9).",
        play: |world| Box::pin(a_wait_given_up_without_an_answer(world)),
    },
    Scenario {
        name: "waits-that-nobody-may-take-out",
        about: "V and W are two waits of a client that may not ZREM any more, and are given up. The grants that come to them are left \
                at once, and the lock must not go to W again and again, whose place would stay first in line: B and C wait behind \
                them (P6). Found by an attack.",
        play: |world| Box::pin(waits_that_nobody_may_take_out(world)),
    },
    Scenario {
        name: "a-leave-without-a-right",
        about: "V and W are two waits of one client, and W is given up while a right is missing. Its leave is sent again: the polls for \
                V would keep the place of W alive (P5). Found by an attack.",
        play: |world| Box::pin(a_leave_without_a_right(world)),
    },
    Scenario {
        name: "a-leave-that-is-refused-half-way",
        about: "W gives up its wait, and a right is missing for one of the commands of its leave. Then its client dies, so no other leave \
                comes. Its place may stay without its ticket, and is passed over; but nothing would take out a ticket without a place \
                (P10).",
        play: |world| Box::pin(a_leave_that_is_refused_half_way(world)),
    },
    Scenario {
        name: "a-grant-that-ends-within-a-round-trip",
        about: "The line takes 80 ms each way. W hears of its grant of 600 ms when it can be sure of 160 ms more: too few for the \
                answer to a first renewal. It must ask first, or it loses the lock as soon as it has it (R7, P8).",
        play: |world| Box::pin(a_grant_that_ends_within_a_round_trip(world)),
    },
    Scenario {
        name: "a-grant-that-a-poll-finds-near-its-end",
        about: "The line takes 80 ms each way, and W does not hear of its grant of 600 ms. Its poll finds it, with less left than the first \
                renewal would take. It must ask at once (P8).",
        play: |world| Box::pin(a_grant_that_a_poll_finds_near_its_end(world)),
    },
    Scenario {
        name: "a-grant-that-is-longer-than-the-lease",
        about: "A waiter wants a lease of 300 ms, and finds that it was granted the lock for 600 ms. Its first request sets the \
                300 ms, and has no answer. The waiter must rely on 300 ms from the start, or the next one has the lock \
                beside it (decision 16, P1).",
        play: |world| Box::pin(a_grant_that_is_longer_than_the_lease(world)),
    },
    Scenario {
        name: "an-ended-hold-that-comes-back-while-it-is-watched",
        about: "A task watches the hold that A has given back. A failover brings that hold back, and B, of the same client, \
                finds it on the server. It must be left: it has ended, though its watcher keeps it alive (R15).",
        play: |world| Box::pin(an_ended_hold_that_comes_back_while_it_is_watched(world)),
    },
    Scenario {
        name: "newcomers-behind-those-who-died",
        about: "80 waiters have died and were passed over. 80 more come, and die too. They must not end the count of the first 80: \
                who unlocks would look at all 160 again, which is more than one call may, and the lock would be free for a \
                while (P6, D3).",
        play: |world| Box::pin(newcomers_behind_those_who_died(world)),
    },
    Scenario {
        name: "one-who-serves-the-last-that-waits",
        about: "The lease of one who died has ended, and W waits alone. N comes before W asks again, and by that serves W. N must \
                have a place in the queue at once: M comes a moment later, and would stand before it (P3, D9).",
        play: |world| Box::pin(one_who_serves_the_last_that_waits(world)),
    },
    Scenario {
        name: "short-waits-beside-those-who-vanished",
        about: "12 clients that wait have vanished, and their connections seem to be up. N waits for a moment now and then, and each \
                time nobody was heard for half a waiter_ttl. That silence is forgiven to the 12 once: then N has the lock at once (P6).",
        play: |world| Box::pin(short_waits_beside_those_who_vanished(world)),
    },
    Scenario {
        name: "a-hand-over-right-after-a-refusal",
        about: "The server refuses the requests of W for 3.5 s, and W, which is next, is granted the lock a moment later. It was heard \
                5 s ago, so the grant lasts for less than a second. W must not sit out a longer pause between two probes: its place \
                would be gone, and B before it (P3).",
        play: |world| Box::pin(a_hand_over_right_after_a_refusal(world)),
    },
];

async fn a_place_that_comes_back_to_a_closed_client(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.lease(ms(900))).await;
    let mut w = stage.caller("W", |it| it.waiter_ttl(ms(5000))).await;
    let mut b = stage.caller("B", |it| it).await;
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    stage.replica_stays_behind();
    a.gives_it_back().await;
    w.gets_the_lock().await;
    w.gives_it_back().await;
    // Its hold comes back, and nobody releases it again: until its lease ends the place that comes back waits.
    a.closes_its_client().await;
    stage.fails_over().await;
    stage.is_calm();
    w.closes_its_client().await;
    b.gets_the_lock().await;
    stage.ends([b]).await;
}

async fn a_late_grant_of_an_attempt_that_has_another_hold(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    a.gets_the_lock().await;
    w.next("acquire", Fate::ReplyLost);
    w.begins_to_wait().await;
    w.next(PUSH, Fate::PushTakes(ms(3000)));
    a.gives_it_back().await;
    stage.loses_all_data();
    // It got no answer, and sends the same request again.
    w.gets_the_lock().await;
    stage.passes(ms(3000)).await;
    w.still_has_the_lock();
    stage.ends([a, w]).await;
}

async fn a_grant_of_the_server_before(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    a.gets_the_lock().await;
    w.next("acquire", Fate::ReplyLost);
    w.begins_to_wait().await;
    stage.replica_stays_behind();
    a.gives_it_back().await;
    // Otherwise it would release the hold that comes back, and W would get that hold.
    a.closes_its_client().await;
    stage.fails_over().await;
    w.gets_the_lock().await;
    w.still_has_the_lock();
    stage.ends([w]).await;
}

async fn a_grant_between_two_tries(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let mut b = stage.caller("B", |it| it).await;
    a.gets_the_lock().await;
    for _ in 0..8 {
        w.next("acquire", Fate::ReplyLost);
    }
    w.begins_to_wait().await;
    b.begins_to_wait().await;
    while !stage.world.state().has_met_all() {
        stage.passes(ms(50)).await;
    }
    // Its last try has ended, and it pauses for at least a second.
    stage.passes(ms(550)).await;
    a.gives_it_back().await;
    let asked = Instant::now();
    w.gets_the_lock().await;
    stage.expect(asked.elapsed() < ms(100), "it had not to wait for its next try");
    w.gives_it_back().await;
    b.gets_the_lock().await;
    stage.ends([a, w, b]).await;
}

async fn an_ended_hold_that_comes_back_while_it_is_watched(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it).await;
    let mut b = a.beside("B");
    a.gets_the_lock().await;
    let watched = a.watches_its_hold();
    stage.replica_stays_behind();
    a.gives_it_back().await;
    stage.fails_over().await;
    b.begins_to_wait().await;
    let asked = Instant::now();
    b.gets_the_lock().await;
    stage.expect(asked.elapsed() < ms(1000), "it had not to wait for the end of the lease");
    stage.expect(watched.is_some_and(|held| !held.is_valid()), "the hold stays ended");
    b.gives_it_back().await;
    stage.ends([a]).await;
}

async fn a_fixed_lease_that_a_failover_shortens(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let mut b = stage.caller("B", |it| it).await;
    w.asks_for_leases_of(ms(4000));
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.replica_stays_behind();
    // The first renewal, which sets the lease.
    stage.passes(ms(100)).await;
    stage.fails_over().await;
    b.begins_to_wait().await;
    // A grant lasts for 600 ms.
    stage.passes(ms(2000)).await;
    w.still_has_the_lock();
    w.gives_it_back().await;
    b.gets_the_lock().await;
    stage.ends([a, w, b]).await;
}

async fn a_grant_that_is_told_of_at_the_last_moment(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.lease(ms(30_000))).await;
    // No poll of its own finds it before.
    let patient =
        |it: LockClientBuilder| it.poll_interval(ms(4990)).grant_ttl(ms(10)).waiter_ttl(ms(15_000)).lease(ms(5000));
    let mut w = stage.caller("W", patient).await;
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    w.next(PUSH, Fate::PushTakes(ms(4944)));
    a.gives_it_back().await;
    stage.passes(ms(4800)).await;
    w.gets_the_lock().await;
    stage.passes(ms(100)).await;
    w.still_has_the_lock();
    stage.ends([a, w]).await;
}

const LONGEST_HOLD: Duration = ms(4000);

async fn a_renewal_that_is_served_late_and_max_hold(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.max_hold(LONGEST_HOLD)).await;
    let begun = Instant::now();
    a.gets_the_lock().await;
    stage.passes(ms(1500)).await;
    a.next("renew", Fate::RequestTakes(ms(450)));
    let Some(guard) = a.takes_its_guard() else { return };
    guard.lost().await;
    let held = begun.elapsed();
    stage.expect(
        held <= LONGEST_HOLD + ms(20),
        &format!("A has had it for {LONGEST_HOLD:?} at most, and not for {held:?}"),
    );
    drop(guard);
    stage.ends([a]).await;
}

async fn a_max_hold_that_is_shorter_than_a_grant(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it).await;
    let (mut b, mut c) = (stage.caller("B", |it| it.max_hold(ms(300))).await, stage.caller("C", |it| it).await);
    a.gets_the_lock().await;
    b.begins_to_wait().await;
    a.gives_it_back().await;
    b.gets_the_lock().await;
    c.gets_the_lock().await;
    b.has_heard_of_its_loss();
    stage.ends([a, b, c]).await;
}

async fn a_runtime_that_ends_behind_a_deadline(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it).await;
    a.gets_the_lock().await;
    a.is_not_driven_any_more();
    stage.passes(ms(2500)).await;
    a.loses_its_runtime(&stage.server);
    let Some(guard) = a.takes_its_guard() else { return };
    let told = timeout(ms(10), guard.lost()).await;
    stage.expect(told.is_ok(), "A is told of the end of its lease");
    drop(guard);
    stage.ends([a]).await;
}

async fn a_wait_given_up_without_an_answer(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let mut v = w.beside("V");
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    v.begins_to_wait().await;
    for _ in 0..8 {
        w.next("leave", Fate::RequestTakes(ms(60_000)));
    }
    w.gives_up().await;
    stage.passes(ms(4000)).await;
    stage.has_places(2);
    stage.passes(ms(10_000)).await;
    stage.has_places(1);
    a.gives_it_back().await;
    v.gets_the_lock().await;
    v.gives_it_back().await;
    stage.ends([a, w]).await;
}

async fn waits_that_nobody_may_take_out(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let (mut c, mut v) = (stage.caller("C", |it| it).await, stage.caller("V", |it| it).await);
    let mut w = v.beside("W");
    a.gets_the_lock().await;
    v.begins_to_wait().await;
    w.begins_to_wait().await;
    b.begins_to_wait().await;
    c.begins_to_wait().await;
    v.may_not("ZREM");
    v.gives_up().await;
    w.gives_up().await;
    let begun = Instant::now();
    a.gives_it_back().await;
    b.gets_the_lock().await;
    // Two grants, and the polls right after them.
    stage.expect(begun.elapsed() < ms(1600), "B gets the lock in time");
    b.gives_it_back().await;
    c.gets_the_lock().await;
    drop(w);
    v.dies(&stage.server).await;
    stage.ends([a, b, c]).await;
}

async fn a_leave_without_a_right(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut v) = (stage.caller("A", |it| it).await, stage.caller("V", |it| it).await);
    let mut w = v.beside("W");
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    v.begins_to_wait().await;
    w.has_no_right_to("leave", ms(200));
    w.gives_up().await;
    stage.passes(ms(3000)).await;
    stage.has_places(1);
    a.gives_it_back().await;
    v.gets_the_lock().await;
    stage.ends([a, v]).await;
}

async fn a_leave_that_is_refused_half_way(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    for (command, is_behind) in (0..16).flat_map(|command| [(command, false), (command, true)]) {
        let mut w = stage.caller("W", |it| it).await;
        a.gets_the_lock().await;
        if is_behind {
            b.begins_to_wait().await;
        }
        w.begins_to_wait().await;
        if !is_behind {
            b.begins_to_wait().await;
        }
        w.next("leave", Fate::RefusedInside(command));
        w.gives_up().await;
        stage.passes(ms(2)).await;
        w.dies(&stage.server).await;
        stage.has_no_ticket_without_a_place();
        a.gives_it_back().await;
        b.gets_the_lock().await;
        b.gives_it_back().await;
    }
    stage.ends([a, b]).await;
}

async fn a_grant_that_ends_within_a_round_trip(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    a.gets_the_lock().await;
    stage.world.messages_take(ms(80));
    w.begins_to_wait().await;
    stage.passes(ms(110)).await;
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.passes(ms(600)).await;
    w.still_has_the_lock();
    stage.ends([a, w]).await;
}

async fn a_grant_that_a_poll_finds_near_its_end(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    a.gets_the_lock().await;
    stage.world.messages_take(ms(80));
    w.next(PUSH, Fate::PushTakes(ms(5000)));
    w.begins_to_wait().await;
    stage.passes(ms(40)).await;
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.passes(ms(600)).await;
    w.still_has_the_lock();
    stage.ends([a, w]).await;
}

async fn a_grant_that_is_longer_than_the_lease(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let mut w = stage.caller("W", |it| it.operation_timeout(ms(200)).poll_interval(ms(200))).await;
    w.asks_for_leases_of(ms(300));
    a.gets_the_lock().await;
    // Without this answer it cannot trust the message of its grant. It asks again after 200 ms, and learns that it has
    // the lock.
    w.next("acquire", Fate::ReplyLost);
    w.begins_to_wait().await;
    stage.passes(ms(150)).await;
    w.next("renew", Fate::ReplyLost);
    w.next("renew", Fate::RequestTakes(ms(1000)));
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.passes(ms(100)).await;
    // It learns when that lease ends, and asks again then.
    b.begins_to_wait().await;
    b.gets_the_lock().await;
    w.has_heard_of_its_loss();
    stage.ends([a, w, b]).await;
}

/// They wait, and then their connections break. Their places stay for 20 s.
async fn so_many_wait_and_die(stage: &Stage, how_many: usize) {
    let mut all = Vec::new();
    for _ in 0..how_many {
        let mut one = stage.caller("D", |it| it.waiter_ttl(ms(20_000))).await;
        one.begins_to_wait().await;
        all.push(one);
    }
    for one in all {
        one.dies(&stage.server).await;
    }
}

async fn newcomers_behind_those_who_died(world: Arc<World>) {
    let stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it).await;
    let (mut w, mut b) = (stage.caller("W", |it| it).await, stage.caller("B", |it| it).await);
    a.gets_the_lock().await;
    so_many_wait_and_die(&stage, 80).await;
    w.begins_to_wait().await;
    a.gives_it_back().await;
    w.gets_the_lock().await;
    so_many_wait_and_die(&stage, 80).await;
    b.begins_to_wait().await;
    w.gives_it_back().await;
    b.gets_the_lock().await;
    stage.ends([a, w, b]).await;
}

async fn one_who_serves_the_last_that_waits(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let (mut n, mut m) = (stage.caller("N", |it| it).await, stage.caller("M", |it| it).await);
    a.asks_for_leases_of(ms(600));
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    // It is sent before the lease ends, and arrives after the end.
    w.next("poll", Fate::RequestTakes(ms(200)));
    a.dies(&stage.server).await;
    stage.passes(ms(650)).await;
    n.next("acquire", Fate::ReplyTakes(ms(20)));
    n.begins_to_wait().await;
    m.begins_to_wait().await;
    w.gets_the_lock().await;
    stage.passes(ms(100)).await;
    w.gives_it_back().await;
    n.gets_the_lock().await;
    m.still_waits();
    n.gives_it_back().await;
    m.gets_the_lock().await;
    stage.ends([w, n, m]).await;
}

async fn short_waits_beside_those_who_vanished(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut n) = (stage.caller("A", |it| it).await, stage.caller("N", |it| it).await);
    a.gets_the_lock().await;
    for _ in 0..12 {
        let mut vanishing = stage.caller("V", |it| it).await;
        vanishing.begins_to_wait().await;
        vanishing.vanishes().await;
    }
    stage.passes(ms(3000)).await;
    a.gives_it_back().await;
    stage.passes(ms(700)).await;
    for _ in 0..2 {
        n.begins_to_wait().await;
        stage.passes(ms(100)).await;
        n.gives_up().await;
        stage.passes(ms(1100)).await;
    }
    let asked = Instant::now();
    n.gets_the_lock().await;
    stage.expect(asked.elapsed() < ms(100), "it had not to wait for those who vanished");
    stage.ends([a, n]).await;
}

async fn a_hand_over_right_after_a_refusal(world: Arc<World>) {
    let stage = Stage::new(world);
    let nearly_default = |it: LockClientBuilder| {
        let it = it.operation_timeout(ms(2000)).poll_interval(ms(2000));
        it.grant_ttl(ms(1000)).waiter_ttl(ms(6000)).lease(ms(30_000))
    };
    let mut a = stage.caller("A", nearly_default).await;
    let (mut w, mut b) = (stage.caller("W", nearly_default).await, stage.caller("B", nearly_default).await);
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    b.begins_to_wait().await;
    stage.passes(ms(1600)).await;
    for script in ["poll", "renew", "acquire", "leave"] {
        w.is_refused(script, ms(3500));
    }
    stage.passes(ms(3500)).await;
    a.gives_it_back().await;
    w.gets_the_lock().await;
    b.still_waits();
    w.gives_it_back().await;
    b.gets_the_lock().await;
    stage.ends([a, w, b]).await;
}

async fn a_poll_of_a_wait_that_is_over(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    // If somebody still watches a hold, the client keeps the entry of its owner: the later calls find it.
    a.gets_the_lock().await;
    let _held = a.watches_its_hold();
    a.gives_it_back().await;
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    a.next("poll", Fate::ReplyTakes(ms(100)));
    stage.passes(ms(510)).await;
    stage.has_met_all("a poll is under way");
    a.gives_up().await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    a.next("release", Fate::RequestTakes(ms(450)));
    drop(a.takes_its_guard());
    let asked = a.in_scope(async { a.client.lock(NAME).lock_timeout(ms(200)).await }).await;
    stage.expect(matches!(asked, Err(LockError::Unreachable(_))), "A does not hear that others have the lock");
    stage.ends([a, b]).await;
}
