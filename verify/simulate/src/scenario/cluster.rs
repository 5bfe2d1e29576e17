//! Scenarios with a cluster of two nodes.

use std::sync::Arc;

use super::Scenario;
use super::resting::begin;
use super::stage::{NAME, Stage, ms};
use crate::world::{Fate, World};

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-node-that-was-replaced-grants-the-lock",
        about: "A node stands still, and another one takes over. When it goes on it does not know, and serves what was sent \
                to it before: to it the lease of the holder is over, and it grants the lock to the one who polls. The bus \
                brings that message to all nodes, and the client must not take it for one of the node that has the lock now \
                (P1).",
        play: |world| Box::pin(a_node_that_was_replaced_grants_the_lock(world)),
    },
    Scenario {
        name: "a-lock-passed-on-while-its-slot-moves",
        about: "A slot moves, and no key of the lock has gone yet, so that a release is served. It passes the lock on. A key \
                that it deletes counts as gone to the other node, so it must not write it again, or it would end half-way \
                (R13).",
        play: |world| Box::pin(a_lock_passed_on_while_its_slot_moves(world)),
    },
    Scenario {
        name: "a-hold-that-comes-back-at-another-node",
        about: "A node dies that has just answered a release, and another one takes over that has not heard of it. The client \
                is connected there already, for other locks. It must look for what it has given back, or nobody can have \
                the lock until the lease ends (R15, P5).",
        play: |world| Box::pin(a_hold_that_comes_back_at_another_node(world)),
    },
    Scenario {
        name: "a-last-wait-given-up-while-its-slot-moves",
        about: "W gives up, nobody else of its client waits, and its place cannot be taken out: its slot is on the move, for longer than \
                the client lives without being heard. V, of the same client, comes when the slot has moved, which would keep the \
                place of W alive (R8, R9).",
        play: |world| Box::pin(a_last_wait_given_up_while_its_slot_moves(world)),
    },
    Scenario {
        name: "a-wait-given-up-while-its-slot-moves",
        about: "W and V are two waits of one client, and W is given up while a slot moves, for longer than a place or a lease would \
                live without its client. V keeps the place of W alive all that time. So the leave must go on until it is answered, \
                or the lock is granted to W, whom nobody waits for (P6, R9).",
        play: |world| Box::pin(a_wait_given_up_while_its_slot_moves(world)),
    },
    Scenario {
        name: "an-answer-of-a-node-of-before",
        about: "A asks node 0 who has the lock, and does not look at the answer. Node 2, whose clock is ahead, gets the lock and takes \
                the seat of node 0 in the client. Then A looks. The time in that answer is not that of node 2: the next acquire would \
                come late, and be sent twice (R2).",
        play: |world| Box::pin(an_answer_of_a_node_of_before(world)),
    },
];

async fn a_node_that_was_replaced_grants_the_lock(world: Arc<World>) {
    let stage = Stage::cluster(world);
    let mut a = stage.caller("A", |it| it).await;
    let mut w = stage.caller("W", |it| it.grant_ttl(ms(1000)).waiter_ttl(ms(5000))).await;
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    // Longer than the rest of A's lease, which A renews at node 1 then.
    w.next("poll", Fate::RequestTakes(ms(3000)));
    stage.passes(ms(600)).await;
    stage.is_replaced_while_it_stands_still();
    a.hears_that_node_1_took_over(&stage);
    w.hears_that_node_1_took_over(&stage);
    stage.passes(ms(3000)).await;
    w.still_waits();
    a.still_has_the_lock();
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.ends([a, w]).await;
}

async fn a_lock_passed_on_while_its_slot_moves(world: Arc<World>) {
    let stage = Stage::cluster(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    stage.begins_to_move_the_slot_of(NAME);
    a.gives_it_back().await;
    w.gets_the_lock().await;
    stage.has_moved_the_slot();
    stage.passes(ms(1000)).await;
    w.still_has_the_lock();
    stage.ends([a, w]).await;
}

async fn a_hold_that_comes_back_at_another_node(world: Arc<World>) {
    let mut stage = Stage::cluster(world);
    let mut a = stage.caller("A", |it| it.lease(ms(10_000))).await;
    let mut b = stage.caller("B", |it| it).await;
    a.gets_the_lock().await;
    stage.replica_stays_behind();
    a.gives_it_back().await;
    stage.fails_over().await;
    stage.is_calm();
    a.hears_that_node_1_took_over(&stage);
    b.hears_that_node_1_took_over(&stage);
    stage.passes(ms(3000)).await;
    b.gets_the_lock().await;
    stage.ends([a, b]).await;
}

async fn a_wait_given_up_while_its_slot_moves(world: Arc<World>) {
    let stage = Stage::cluster(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let mut v = w.beside("V");
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    v.begins_to_wait().await;
    stage.begins_to_move_the_slot_of(NAME);
    stage.one_key_moves(NAME, ":queue");
    w.gives_up().await;
    stage.passes(ms(6000)).await;
    stage.has_places(2);
    stage.has_moved_the_slot();
    stage.passes(ms(500)).await;
    stage.has_places(1);
    a.gives_it_back().await;
    v.gets_the_lock().await;
    v.gives_it_back().await;
    stage.ends([a, w]).await;
}

async fn a_last_wait_given_up_while_its_slot_moves(world: Arc<World>) {
    let stage = Stage::cluster(world);
    let (mut a, mut w) = (stage.caller("A", |it| it).await, stage.caller("W", |it| it).await);
    let mut v = w.beside("V");
    a.gets_the_lock().await;
    w.begins_to_wait().await;
    stage.begins_to_move_the_slot_of(NAME);
    stage.one_key_moves(NAME, ":queue");
    w.gives_up().await;
    stage.passes(ms(6000)).await;
    stage.has_moved_the_slot();
    stage.passes(ms(500)).await;
    v.begins_to_wait().await;
    stage.passes(ms(100)).await;
    stage.has_places(1);
    a.gives_it_back().await;
    v.gets_the_lock().await;
    v.gives_it_back().await;
    stage.ends([a, w]).await;
}

async fn an_answer_of_a_node_of_before(world: Arc<World>) {
    let stage = Stage::cluster_of(world, 3);
    let mut a = stage.caller("A", |it| it).await;
    a.gets_the_lock().await;
    a.gives_it_back().await;
    a.says("asks who has the lock, and does not look at the answer");
    a.next("inspect", Fate::AtOnce);
    let lock = a.client.lock(NAME);
    let mut status = Box::pin(lock.status());
    begin(status.as_mut()).await;
    stage.passes(ms(100)).await;
    stage.all_slots_go(0, 1);
    a.hears_from_node(1, &stage);
    stage.all_slots_go(1, 2);
    a.hears_from_node(2, &stage);
    stage.is_calm();
    a.gets_the_lock().await;
    a.gives_it_back().await;
    a.says("looks at the answer to its question");
    let status = status.await;
    stage.expect(status.is_ok_and(|status| status.holder.is_none()), "nobody had the lock");
    a.gets_the_lock().await;
    a.gives_it_back().await;
    stage.ends([a]).await;
}
