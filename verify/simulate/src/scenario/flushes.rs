//! Scenarios in which the server forgets holds, or a client has reason to think so.

use std::sync::Arc;

use super::Scenario;
use super::stage::{NAME, Stage, ms};
use crate::world::{Fate, World};

pub const ALL: &[Scenario] = &[
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
        about: "A grant by message lasts for a moment, and its first renewal gives it the ten minutes that were asked for. A \
                reconnect just before that must not take its place (s1).",
        play: |world| Box::pin(a_fixed_lease_that_came_by_message(world)),
    },
    Scenario {
        name: "a-renewal-from-before-a-refused-check",
        about: "A slot goes to another node, which loses its data, while the answer of the first one to a renewal is under way. The \
                check is refused, and the renewal's answer comes then. It must neither end the doubt nor put off the next look at a \
                lease of ten minutes (P1, P8).",
        play: |world| Box::pin(a_renewal_from_before_a_refused_check(world)),
    },
];

async fn a_renewal_from_before_a_refused_check(world: Arc<World>) {
    let stage = Stage::cluster(world);
    let (mut a, mut b) = (stage.caller("A", |it| it).await, stage.caller("B", |it| it).await);
    a.asks_for_leases_of(ms(600_000));
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    a.next("renew", Fate::ReplyTakes(ms(300)));
    stage.passes(ms(60)).await;
    stage.has_met_all("the first renewal was sent");
    stage.all_slots_go(0, 1);
    stage.loses_the_data_of_node(1);
    a.is_refused("renew", ms(3000));
    // A redirect shows A where the slots are, so it keeps its connection to node 0.
    a.says("asks who has the lock");
    let _ = a.client.lock(NAME).is_locked().await;
    b.hears_from_node(1, &stage);
    b.gets_the_lock().await;
    stage.passes(ms(6000)).await;
    a.has_heard_of_its_loss();
    b.still_has_the_lock();
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
    b.gets_the_lock().await;
    a.begins_to_wait().await;
    // Before its poll, which would find the grant.
    stage.passes(ms(400)).await;
    b.gives_it_back().await;
    a.gets_the_lock().await;
    a.loses_its_connection(&stage.server);
    stage.passes(ms(10_000)).await;
    a.still_has_the_lock();
    stage.ends([a, b]).await;
}
