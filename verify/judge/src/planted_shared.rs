//! Planted faults of shared names, and of holds that outlive a guard.

use crate::story::{NOTHING, Share, Story};

const ONE: Share = Share("permit", 1, 3);
const TWO: Share = Share("permit", 2, 3);
const READ: Share = Share("read", 1, 1024);
const WRITE: Share = Share("write", 1024, 1024);

#[test]
fn nothing_is_found_where_all_is_well() {
    let mut story = Story::new();
    let heavy = story.asks_share(999, "a.1", TWO);
    story.gets(1000, "a.1", heavy, 1);
    story.shares(1010, 1200, "b.1", ONE, 2);
    let waits = story.asks_share(1020, "c.1", TWO);
    story.shrinks(1300, "a.1", heavy, 1);
    story.gets(1301, "c.1", waits, 3);
    story.frees(1400, "c.1", waits);
    story.frees(1400, "a.1", heavy);
    assert_eq!(story.finds(), NOTHING);

    let mut story = Story::new();
    story.shares(1000, 1200, "a.1", READ, 1);
    story.shares(1100, 1300, "b.1", READ, 2);
    let writes = story.asks_share(1150, "c.1", WRITE);
    story.gets(1301, "c.1", writes, 3);
    let reads = story.asks_share(1310, "a.1", READ);
    story.shrinks(1400, "c.1", writes, 1);
    story.gets(1401, "a.1", reads, 4);
    story.frees(1500, "c.1", writes);
    story.frees(1500, "a.1", reads);
    assert_eq!(story.finds(), NOTHING);

    // A handle goes from hand to hand, and is released in the end.
    let (mut story, first) = detached();
    let attached = story.uses(1500, "b.1", "attach", ("a.1", first));
    story.gets(1510, "b.1", attached, 7);
    let late = story.uses(1520, "c.1", "attach", ("a.1", first));
    story.ends(1530, "c.1", late, "lost");
    story.detaches(1600, "b.1", attached);
    let released = story.uses(1700, "c.1", "release", ("b.1", attached));
    story.holds(1705, 1800, "a.1", 8);
    story.ends(1710, "c.1", released, "ok");
    assert_eq!(story.finds(), NOTHING);

    // The handle stays unused, so its lease ends.
    let (mut story, first) = detached();
    story.holds(3200, 3300, "b.1", 8);
    let late = story.uses(3400, "c.1", "attach", ("a.1", first));
    story.ends(3410, "c.1", late, "lost");
    assert_eq!(story.finds(), NOTHING);
}

/// `a` has detached the lock at 1100 ms, under token 7, until 3100 ms.
fn detached() -> (Story, u64) {
    let mut story = Story::new();
    let id = story.asks(999, "a.1");
    story.gets(1000, "a.1", id, 7);
    story.detaches(1100, "a.1", id);
    (story, id)
}

#[test]
fn p1_more_permits_than_there_are() {
    let third = |share| {
        let mut story = Story::new();
        story.shares(1000, 1300, "a.1", ONE, 1);
        story.shares(1100, 1300, "b.1", ONE, 2);
        story.shares(1200, 1300, "c.1", share, 3);
        story.finds()
    };
    assert_eq!(third(ONE), NOTHING);
    assert_eq!(third(TWO), ["P1"]);
}

#[test]
fn p1_what_is_given_back_half_way_counts_until_then() {
    let beside = |ms| {
        let mut story = Story::new();
        let id = story.asks_share(999, "a.1", Share("permit", 3, 3));
        story.gets(1000, "a.1", id, 1);
        story.shrinks(1200, "a.1", id, 1);
        story.frees(1400, "a.1", id);
        story.shares(ms, 1300, "b.1", TWO, 2);
        story.finds()
    };
    assert_eq!(beside(1201), NOTHING);
    assert_eq!(beside(1199), ["P1"]);
}

#[test]
fn p1_a_reader_beside_a_writer() {
    for (one, other) in [(READ, WRITE), (WRITE, READ), (WRITE, WRITE)] {
        let mut story = Story::new();
        story.shares(1000, 1200, "a.1", one, 1);
        story.shares(1100, 1300, "b.1", other, 2);
        assert_eq!(story.finds(), ["P1"]);
    }
}

#[test]
fn p1_of_permits_is_suspended_by_force_for_the_hold_that_is_meant_alone() {
    let forced = |token: u64| {
        let mut story = Story::new();
        let loser = story.asks_share(999, "a.1", TWO);
        story.gets(1000, "a.1", loser, 1);
        story.shares(1010, 1200, "c.1", ONE, 2);
        story.forces(1100, token);
        story.shares(1105, 1200, "b.1", TWO, 3);
        story.loses(1112, "a.1", loser, "forced");
        story.finds()
    };
    assert_eq!(forced(1), NOTHING);
    assert_eq!(forced(2), ["P1", "loss"]);
}

#[test]
fn p2_a_token_that_goes_back_or_is_given_twice() {
    let second = |token| {
        let mut story = Story::new();
        story.shares(1000, 1500, "a.1", ONE, 5);
        story.shares(1100, 1500, "b.1", ONE, token);
        story.finds()
    };
    assert_eq!(second(6), NOTHING);
    assert_eq!(second(5), ["P2"]);
    assert_eq!(second(4), ["P2"]);
    // Both asked before the other one had it, and held it at the same time: the order is unknown, but their tokens
    // must differ.
    let at_once = |token| {
        let mut story = Story::new();
        let ids = [story.asks_share(999, "a.1", ONE), story.asks_share(999, "b.1", ONE)];
        story.gets(1000, "a.1", ids[0], 5);
        story.gets(1001, "b.1", ids[1], token);
        story.frees(1100, "a.1", ids[0]);
        story.frees(1100, "b.1", ids[1]);
        story.finds()
    };
    assert_eq!(at_once(4), NOTHING);
    assert_eq!(at_once(5), ["P2"]);
}

#[test]
fn p2_a_reader_behind_a_writer_with_a_smaller_token() {
    let mut story = Story::new();
    let ids = [story.asks_share(999, "a.1", WRITE), story.asks_share(999, "b.1", READ)];
    story.gets(1000, "a.1", ids[0], 5);
    story.frees(1100, "a.1", ids[0]);
    story.gets(1101, "b.1", ids[1], 4);
    story.frees(1200, "b.1", ids[1]);
    assert_eq!(story.finds(), ["P2"]);
}

#[test]
fn p3_a_heavy_waiter_is_overtaken() {
    let light = |asked: u64| {
        let mut story = Story::new();
        story.shares(1000, 3000, "c.1", TWO, 1);
        let heavy = story.asks_share(1200, "a.1", TWO);
        let light = story.asks_share(asked, "b.1", ONE);
        story.gets(asked + 5, "b.1", light, 2);
        story.frees(2500, "b.1", light);
        story.gets(3001, "a.1", heavy, 3);
        story.frees(3100, "a.1", heavy);
        story.finds()
    };
    assert_eq!(light(2200), ["P3"]);
    // Too close together to know which was first at the server.
    assert_eq!(light(1300), NOTHING);
}

#[test]
fn p3_a_reader_passes_a_writer_that_waits() {
    let mut story = Story::new();
    story.shares(1000, 2500, "c.1", READ, 1);
    let writes = story.asks_share(1200, "a.1", WRITE);
    story.shares(2200, 2400, "b.1", READ, 2);
    story.gets(2501, "a.1", writes, 3);
    story.frees(2600, "a.1", writes);
    assert_eq!(story.finds(), ["P3"]);
}

#[test]
fn p5_a_limit_that_stays() {
    let mut story = Story::new();
    story.shares(1000, 1100, "a.1", ONE, 1);
    story.line(31_000, "driver", "left", r#""keys":["fairlock:{s:x}:limit"]"#);
    assert_eq!(story.finds(), ["P5"]);
}

/// `b` waits until 4500 ms, while `c` has one of three permits.
#[test]
fn p6_permits_are_not_handed_over_although_there_is_room() {
    let waits_for = |wanted, others: Option<Share>, until: u64| {
        let mut story = Story::new();
        story.shares(1000, 1100, "a.1", TWO, 1);
        story.shares(1001, until, "c.1", ONE, 2);
        let waits = story.asks_share(1050, "b.1", wanted);
        let heavier = others.map(|others| story.asks_share(1060, "a.1", others));
        story.gets(4500, "b.1", waits, 3);
        story.frees(4600, "b.1", waits);
        if let Some(id) = heavier {
            story.gets(4601, "a.1", id, 4);
            story.frees(4700, "a.1", id);
        }
        story.finds()
    };
    let all = Share("permit", 3, 3);
    assert_eq!(waits_for(TWO, None, 4400), ["P6 P7"]);
    // No room for it, or for another waiter that may come first.
    assert_eq!(waits_for(all, None, 4400), NOTHING);
    assert_eq!(waits_for(TWO, Some(all), 4400), NOTHING);
    assert_eq!(waits_for(all, None, 1200), ["P6 P7"]);
}

#[test]
fn p8_a_reader_does_not_hear_that_it_was_revoked() {
    let mut story = Story::new();
    let loser = story.asks_share(999, "a.1", READ);
    story.gets(1000, "a.1", loser, 1);
    story.forces(1100, 1);
    story.loses(3900, "a.1", loser, "gone");
    assert_eq!(story.finds(), ["P8"]);
}

#[test]
fn a_share_that_is_lost_without_a_reason() {
    let mut story = Story::new();
    let loser = story.asks_share(999, "a.1", TWO);
    story.gets(1000, "a.1", loser, 1);
    story.loses(1500, "a.1", loser, "gone");
    assert_eq!(story.finds(), ["loss"]);
}

#[test]
fn calls_for_shares_and_by_handles_without_an_end() {
    let mut story = Story::new();
    story.shares(900, 29_999, "b.1", Share("permit", 3, 3), 1);
    story.asks_share(1000, "a.1", ONE);
    assert!(story.finds().contains(&"ends"));
    let (mut story, first) = detached();
    story.uses(1200, "b.1", "attach", ("a.1", first));
    assert!(story.finds().contains(&"ends"));
}

#[test]
fn p1_another_one_holds_between_detach_and_attach() {
    // With the guard, with the handle, while attached, and in the lease of an unused handle.
    for (from, token) in [(1050, 8), (1300, 8), (1505, 8), (1600, 8)] {
        let (mut story, first) = detached();
        let attached = story.uses(1500, "b.1", "attach", ("a.1", first));
        story.gets(1510, "b.1", attached, 7);
        story.holds(from, from + 4, "c.1", token);
        story.frees(1700, "b.1", attached);
        assert_eq!(story.finds(), ["P1"], "{from}");
    }
    let (mut story, _) = detached();
    story.holds(3000, 3050, "b.1", 8);
    assert_eq!(story.finds(), ["P1"]);
}

/// Without an answer, the handle may or may not have the hold, until it is attached.
#[test]
fn p1_of_a_handle_is_promised_by_an_answer() {
    let mut story = Story::new();
    let id = story.asks(999, "a.1");
    story.gets(1000, "a.1", id, 7);
    story.line(1100, "a.1", "detach", &format!(r#""id":{id},"lease":2000"#));
    story.line(1900, "a.1", "detached", &format!(r#""id":{id},"why":"unanswered""#));
    story.holds(1950, 1960, "b.1", 8);
    assert_eq!(story.finds(), NOTHING);
}

#[test]
fn p1_two_attach_one_handle() {
    let twice = |topology, fault: &str| {
        let mut story = Story::on(topology);
        let id = story.asks(999, "a.1");
        story.gets(1000, "a.1", id, 7);
        story.detaches(1100, "a.1", id);
        for (ms, who) in [(1500, "b.1"), (1700, "c.1")] {
            let attached = story.uses(ms, who, "attach", ("a.1", id));
            story.gets(ms + 10, who, attached, 7);
            story.frees(1800, who, attached);
        }
        story.fault(1550, 1600, fault, "");
        story.finds()
    };
    assert_eq!(twice("single", "failover"), ["P1"]);
    assert_eq!(twice("sentinel strict", "scripts"), ["P1"]);
    // A failover may forget the first use.
    assert_eq!(twice("sentinel strict", "failover"), NOTHING);
}

#[test]
fn p1_permits_weigh_under_a_handle_and_attached_what_they_weighed() {
    for from in [1300, 1600] {
        let beside = |share| {
            let mut story = Story::new();
            let id = story.asks_share(999, "a.1", Share("permit", 3, 3));
            story.gets(1000, "a.1", id, 7);
            story.shrinks(1050, "a.1", id, 2);
            story.detaches(1100, "a.1", id);
            let attached = story.uses(1500, "b.1", "attach", ("a.1", id));
            story.gets(1510, "b.1", attached, 7);
            story.shares(from, from + 4, "c.1", share, 8);
            story.frees(1700, "b.1", attached);
            story.finds()
        };
        assert_eq!(beside(ONE), NOTHING);
        assert_eq!(beside(TWO), ["P1"], "{from}");
    }
}

#[test]
fn p2_an_attach_changes_the_token() {
    let (mut story, first) = detached();
    let attached = story.uses(1500, "b.1", "attach", ("a.1", first));
    story.gets(1510, "b.1", attached, 8);
    story.frees(1600, "b.1", attached);
    assert_eq!(story.finds(), ["P2"]);
}

#[test]
fn a_handle_that_is_gone_before_its_deadline() {
    let gone_at = |ms: u64, force: Option<u64>| {
        let (mut story, first) = detached();
        if let Some(token) = force {
            story.forces(1200, token);
        }
        let late = story.uses(ms, "b.1", "attach", ("a.1", first));
        story.ends(ms + 10, "b.1", late, "lost");
        story.finds()
    };
    assert_eq!(gone_at(1500, None), ["loss"]);
    assert_eq!(gone_at(3095, None), NOTHING);
    assert_eq!(gone_at(1500, Some(7)), NOTHING);
    assert_eq!(gone_at(1500, Some(6)), ["loss"]);
}

/// The handle stayed unused, its new holder died, or it was released: then the next waiter gets the lock.
#[test]
fn p7_a_handle_that_holds_nothing_any_more_is_in_the_way() {
    let next_at = |ms: u64, release: bool| {
        let (mut story, first) = detached();
        if release {
            let released = story.uses(1200, "b.1", "release", ("a.1", first));
            story.ends(1210, "b.1", released, "ok");
        }
        let waits = story.asks(1150, "c.1");
        story.gets(ms, "c.1", waits, 8);
        story.frees(ms + 10, "c.1", waits);
        story.finds()
    };
    assert_eq!(next_at(3500, false), NOTHING);
    assert_eq!(next_at(9000, false), ["P6 P7"]);
    assert_eq!(next_at(3500, true), ["P6 P7"]);
    assert_eq!(next_at(1300, true), NOTHING);
}
