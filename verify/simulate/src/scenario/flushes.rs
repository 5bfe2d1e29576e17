//! Scenarios in which the server forgets what is held, or a client has reason to think so.

use std::sync::Arc;
use std::time::Duration;

use super::Scenario;
use super::stage::{ANOTHER, Caller, FREEZE, Stage, ms};
use crate::world::{FLUSH, Fate, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-flush-in-one-read-with-an-answer",
        about: "The server gives a lock away and then loses its data. The client reads both in one piece, and hears of the loss \
                before the caller looks at its answer: that is none any more, and the caller must ask anew (P1, s2b).",
        play: |world| Box::pin(a_flush_in_one_read_with_an_answer(world)),
    },
    Scenario {
        name: "a-check-that-is-refused",
        about: "A server comes back without its data, and refuses to look at holds for 3 s: it has too few replicas. Who relies \
                on a lease of ten minutes must hear of its loss once it is looked at, and not at the end (P8, s3).",
        play: |world| Box::pin(a_check_that_is_refused(world)),
    },
    Scenario {
        name: "a-grant-without-its-lease-after-a-failover",
        about: "A failover has lost the lease of a hold, which then ends like a grant that nobody took. The next one gets the lock, \
                while the renewals of the first are refused. It must hear of that when they are not any more (P8, s31).",
        play: |world| Box::pin(a_grant_without_its_lease_after_a_failover(world)),
    },
    Scenario {
        name: "a-fixed-lease-that-came-by-message",
        about: "A grant by message lasts for a moment, and its first renewal gives it the ten minutes that were asked for. A flush \
                of another database, or a reconnect, just before that must not take its place (s1).",
        play: |world| Box::pin(a_fixed_lease_that_came_by_message(world)),
    },
    Scenario {
        name: "a-renewal-from-before-a-flush",
        about: "FLUSHALL comes while the answer to a renewal is under way. The client asks about another lock first, to see whether \
                the flush was about its database, and has the answer to the renewal before that one's. It says nothing of what \
                came after it: who relies on a lease of ten minutes must hear of its loss (P1, P8).",
        play: |world| Box::pin(a_renewal_from_before_a_flush(world)),
    },
    Scenario {
        name: "a-renewal-from-before-a-refused-check",
        about: "FLUSHALL comes while the answer to a renewal is under way. The check is refused, and the renewal's answer comes then. \
                It must not put off the next look at a lease of ten minutes (P1, P8).",
        play: |world| Box::pin(a_renewal_from_before_a_refused_check(world)),
    },
    Scenario {
        name: "a-flush-right-after-a-reconnect",
        about: "A client has connected again, and the poll of what it waits for has no answer yet when FLUSHALL comes. The flush must \
                not wait for that poll: who relies on a lease of ten minutes hears of its loss at once (P8).",
        play: |world| Box::pin(a_flush_right_after_a_reconnect(world)),
    },
    Scenario {
        name: "a-flush-behind-probes-without-answers",
        about: "FLUSHALL, and the check of a lease of ten minutes is refused. Now the client sends one request at a time, and four polls \
                have no answer, each for a second. Its holder hears of its loss behind these, and not at the end of its lease (P8).",
        play: |world| Box::pin(a_flush_behind_probes_without_answers(world)),
    },
    Scenario {
        name: "a-demotion-that-is-not-heard-of-yet",
        about: "With strict_restart. A has the lock and stands still. The primary is demoted to a replica that has not heard of that, and \
                promoted again. B asks before it has read of the flush. It must not have the lock while A relies on it (P1, decision 95).",
        play: |world| Box::pin(a_demotion_that_is_not_heard_of_yet(world)),
    },
];

/// A has the lock for ten minutes by a message. Its first renewal was served, and the answer takes `takes`.
async fn a_renewal_under_way(stage: &Stage, a: &mut Caller, b: &mut Caller, takes: Duration) {
    a.asks_for_leases_of(ms(600_000));
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    a.next("renew", Fate::ReplyTakes(takes));
    stage.passes(ms(60)).await;
    stage.has_met_all("the first renewal was sent");
    stage.loses_all_data();
}

async fn a_renewal_from_before_a_flush(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let first = a.client.lock("a name before that of the lock").with_lease(ms(600_000)).lock().await;
    a_renewal_under_way(&stage, &mut a, &mut b, ms(100)).await;
    a.next("renew", Fate::ReplyTakes(ms(200)));
    stage.passes(ms(600)).await;
    stage.has_met_all("the client has asked about the other lock first");
    a.has_heard_of_its_loss();
    b.gets_the_lock().await;
    drop(first);
    stage.ends([a, b]).await;
}

async fn a_renewal_from_before_a_refused_check(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a_renewal_under_way(&stage, &mut a, &mut b, ms(300)).await;
    a.is_refused("renew", ms(3000));
    b.gets_the_lock().await;
    stage.passes(ms(6000)).await;
    a.has_heard_of_its_loss();
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn a_flush_right_after_a_reconnect(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(600_000));
    a.gets_the_lock().await;
    let theirs = b.client.lock(ANOTHER).lock().await;
    let another = a.client.lock(ANOTHER);
    let wait = tokio::spawn(async move { drop(another.lock().await) });
    stage.passes(ms(20)).await;
    a.next("poll", Fate::ReplyLost);
    a.loses_its_connection(&stage.server);
    stage.passes(ms(20)).await;
    stage.has_met_all("the poll of the new connection has no answer");
    stage.loses_all_data();
    stage.passes(ms(100)).await;
    a.has_heard_of_its_loss();
    wait.abort();
    drop(theirs);
    b.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn a_flush_behind_probes_without_answers(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, b) = (stage.caller("A", |it| it.operation_timeout(ms(1000))).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(600_000));
    a.gets_the_lock().await;
    let (mut theirs, mut waits) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let name = format!("other{number}");
        theirs.push(b.client.lock(&name).lock().await);
        let lock = a.client.lock(name);
        waits.push(tokio::spawn(async move { drop(lock.lock().await) }));
    }
    // The first polls come after half a second.
    stage.passes(ms(400)).await;
    a.is_refused("renew", ms(100));
    (0..4).for_each(|_| a.next("poll", Fate::ReplyLost));
    stage.loses_all_data();
    stage.passes(ms(3500)).await;
    stage.has_met_all("four polls had no answer");
    a.still_has_the_lock();
    stage.passes(ms(1500)).await;
    a.has_heard_of_its_loss();
    waits.iter().for_each(|wait| wait.abort());
    drop(theirs);
    stage.ends([a, b]).await;
}

async fn a_demotion_that_is_not_heard_of_yet(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let mut a = stage.caller("A", |it| it.strict_restart(FREEZE)).await;
    let mut b = stage.caller("B", |it| it.strict_restart(FREEZE)).await;
    a.asks_for_leases_of(ms(2000));
    // The server is new, and frozen at first.
    stage.passes(ms(4000)).await;
    stage.replica_stays_behind();
    a.gets_the_lock().await;
    a.stands_still();
    b.next(FLUSH, Fate::PushTakes(ms(100)));
    stage.is_demoted_and_promoted();
    b.gets_the_lock().await;
    a.has_heard_of_its_loss();
    a.goes_on();
    stage.ends([a, b]).await;
}

async fn a_flush_in_one_read_with_an_answer(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    for fixed in [false, true] {
        if fixed {
            a.asks_for_leases_of(ms(600_000));
        }
        stage.is_flushed_behind_the_next_lock();
        a.gets_the_lock().await;
        b.begins_to_wait().await;
        stage.passes(ms(100)).await;
        a.still_has_the_lock();
        a.gives_it_back().await;
        b.gets_the_lock().await;
        b.gives_it_back().await;
    }
    stage.ends([a, b]).await;
}

async fn a_check_that_is_refused(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(600_000));
    a.gets_the_lock().await;
    a.is_refused("renew", ms(3000));
    stage.restarts_without_data().await;
    b.gets_the_lock().await;
    stage.passes(ms(6000)).await;
    a.has_heard_of_its_loss();
    b.still_has_the_lock();
    stage.ends([a, b]).await;
}

async fn a_grant_without_its_lease_after_a_failover(world: Arc<World>) {
    let mut stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    let mut c = stage.caller("C", |it| it).await;
    a.asks_for_leases_of(ms(600_000));
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    stage.passes(ms(500)).await;
    c.begins_to_wait().await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    stage.replica_stays_behind();
    stage.passes(ms(400)).await;
    a.is_refused("renew", ms(1500));
    stage.fails_over().await;
    c.gets_the_lock().await;
    stage.passes(ms(4000)).await;
    a.has_heard_of_its_loss();
    c.still_has_the_lock();
    stage.ends([a, b, c]).await;
}

async fn a_fixed_lease_that_came_by_message(world: Arc<World>) {
    let stage = Stage::new(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(600_000));
    for reconnects in [false, true] {
        b.gets_the_lock().await;
        a.begins_to_wait().await;
        // Before its poll, which would find the grant.
        stage.passes(ms(400)).await;
        b.gives_it_back().await;
        a.gets_the_lock().await;
        if reconnects {
            a.loses_its_connection(&stage.server);
        } else {
            stage.is_flushed_elsewhere();
        }
        stage.passes(ms(10_000)).await;
        a.still_has_the_lock();
        a.gives_it_back().await;
    }
    stage.ends([a, b]).await;
}
