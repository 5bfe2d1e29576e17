//! Histories with planted faults: the judge must find each broken promise, and nothing else. And the table must excuse
//! only what, where, and for as long as it says.

use crate::story::{NOTHING, Story};

#[test]
fn nothing_is_found_where_all_is_well() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 1);
    let waits = story.asks(1050, "b.1");
    story.gets(1101, "b.1", waits, 2);
    story.line(1110, "b.1", "in", &format!(r#""id":{waits},"k":2"#));
    story.line(1120, "b.1", "out", &format!(r#""id":{waits},"k":1"#));
    story.frees(1200, "b.1", waits);
    let gives_up = story.asks_for(1300, "a.1", 100);
    story.ends(1401, "a.1", gives_up, "timeout");
    assert_eq!(story.finds(), NOTHING);
}

#[test]
fn p1_two_holders() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 1);
    story.holds(1099, 1200, "b.1", 2);
    assert_eq!(story.finds(), ["P1"]);
}

#[test]
fn p1_a_hold_inside_of_a_longer_one() {
    let mut story = Story::new();
    story.holds(1000, 2000, "a.1", 1);
    story.holds(1100, 1200, "b.1", 2);
    story.holds(1900, 2100, "b.1", 3);
    assert_eq!(story.finds(), ["P1"]);
}

#[test]
fn p1_not_by_a_call_that_is_dropped_while_it_gives_back() {
    let mut story = Story::new();
    let id = story.asks(999, "a.1");
    story.gets(1000, "a.1", id, 1);
    story.line(1010, "a.1", "free", &format!(r#""id":{id}"#));
    story.holds(1020, 1040, "b.1", 2);
    story.ends(1050, "a.1", id, "cancelled");
    assert!(story.finds().is_empty());
}

#[test]
fn p1_before_the_deadline_of_one_that_is_dead() {
    let mut story = Story::new();
    let dead = story.asks(999, "a.1");
    story.gets(1000, "a.1", dead, 1);
    story.fault(1100, 1101, "kill-client", "a");
    story.holds(3999, 4100, "b.1", 2);
    assert_eq!(story.found(&["a.1"]), ["P1"]);
}

#[test]
fn p1_the_register_refuses_a_holder() {
    let mut story = Story::new();
    let id = story.holds(1000, 1100, "a.1", 1);
    story.line(1050, "register", "write", &format!(r#""by":"a.1","id":{id},"n":"x","tok":1,"ok":false"#));
    assert_eq!(story.finds(), ["P1"]);
}

#[test]
fn p1_is_suspended_by_force_for_the_hold_that_is_meant_alone() {
    let forced = |token: u64| {
        let mut story = Story::new();
        let loser = story.asks(999, "a.1");
        story.gets(1000, "a.1", loser, 1);
        story.forces(1100, token);
        story.holds(1105, 1200, "b.1", 2);
        story.loses(1112, "a.1", loser, "forced");
        story.finds()
    };
    assert_eq!(forced(1), NOTHING);
    assert_eq!(forced(7), ["P1", "loss"]);
}

/// A slow process learns of its grant after another one has had the lock already.
#[test]
fn p1_is_suspended_by_force_for_a_grant_that_is_written_down_later() {
    let forced = |token: u64| {
        let mut story = Story::new();
        let loser = story.asks(1000, "a.1");
        story.forces(1100, token);
        story.holds(1111, 1220, "b.1", 2);
        story.gets(1210, "a.1", loser, 1);
        story.loses(1212, "a.1", loser, "forced");
        story.finds()
    };
    assert_eq!(forced(1), NOTHING);
    assert_eq!(forced(7), ["P1", "loss"]);
}

/// Several servers have different tokens for a hold, so the call names the owner.
#[test]
fn p1_is_suspended_by_force_for_the_owner_that_is_meant_alone() {
    let forced = |owner: &str| {
        let mut story = Story::new();
        let loser = story.asks(999, "a.1");
        story.line(1000, "a.1", "hold", &format!(r#""id":{loser},"tok":1,"own":"a:1","until":9000000000"#));
        story.line(1100, "c.1", "force", &format!(r#""id":99,"n":"x","owns":["{owner}"]"#));
        story.line(1110, "c.1", "forced", r#""id":99,"hit":true"#);
        story.holds(1105, 1200, "b.1", 2);
        story.loses(1112, "a.1", loser, "forced");
        story.finds()
    };
    assert_eq!(forced("a:1"), NOTHING);
    assert_eq!(forced("a:2"), ["P1", "loss"]);
}

/// `lock_all` holds a name before the call returns, so a fault in between concerns this hold.
#[test]
fn p1_of_one_name_of_several_counts_from_the_call() {
    let told_late = |how: &str| {
        let mut story = Story::new();
        story.line(1000, "a.1", "ask", &format!(r#""id":50,"n":"x","how":"{how}""#));
        story.fault(1100, 1200, "clock", "");
        story.holds(2400, 2600, "b.1", 2);
        story.gets(2500, "a.1", 50, 1);
        story.loses(2510, "a.1", 50, "gone");
        story.finds()
    };
    assert_eq!(told_late("all"), NOTHING);
    assert_eq!(told_late("lock"), ["P1"]);
}

/// A server forgets a hold. From then on that hold is excused, but not the holds of strict clients.
#[test]
fn p1_is_suspended_where_a_server_forgot_and_for_what_it_forgot_alone() {
    let forgotten = |topology, kind, second: u64| {
        let mut story = Story::on(topology);
        let loser = story.asks(999, "a.1");
        story.gets(1000, "a.1", loser, 1);
        story.fault(1500, 1900, kind, "");
        story.holds(second, 2200, "b.1", 2);
        story.loses(2300, "a.1", loser, "gone");
        story.finds()
    };
    assert_eq!(forgotten("single", "wipe-server", 2100), NOTHING);
    assert_eq!(forgotten("single strict", "wipe-server", 2100), ["P1"]);
    assert_eq!(forgotten("single", "wipe-server", 1400), ["P1"]);
    assert_eq!(forgotten("quorum", "flush-majority", 2100), ["P1"]);
    // A later holder excludes all others again.
    let mut story = Story::new();
    story.fault(1500, 1900, "wipe-server", "");
    story.holds(2100, 2300, "a.1", 1);
    story.holds(2200, 2300, "b.1", 2);
    assert_eq!(story.finds(), ["P1"]);
}

/// A process is stopped, or slow, while the answer to its call is under way, and the server then forgets the grant.
#[test]
fn p1_is_suspended_for_a_grant_that_is_seen_when_the_server_has_forgotten_it() {
    let found = |topology, asks: u64, gets: u64, stop: Option<(u64, u64)>| {
        let mut story = Story::on(topology);
        let late = story.asks(asks, "a.1");
        if let Some((from, to)) = stop {
            story.fault(from, to, "stop-client", "a");
        }
        story.fault(1500, 1501, "flush", "");
        story.holds(1700, 3000, "b.1", 2);
        story.gets(gets, "a.1", late, 1);
        story.loses(gets + 3, "a.1", late, "gone");
        story.finds()
    };
    assert_eq!(found("single", 1300, 2603, Some((1400, 2600))), NOTHING);
    assert_eq!(found("single", 1300, 2003, None), NOTHING);
    assert_eq!(found("single strict", 1300, 2603, Some((1400, 2600))), ["P1"]);
    assert_eq!(found("single strict", 1300, 2003, None), ["P1"]);
    // The call came after the fault, or its answer came too late, or the process ran when the server forgot the hold.
    assert_eq!(found("single", 1650, 2003, None), ["P1"]);
    assert_eq!(found("single", 1300, 2603, None), ["P1"]);
    assert_eq!(found("single", 1300, 2603, Some((2400, 2600))), ["P1"]);
}

#[test]
fn p1_is_not_suspended_by_a_partition_or_by_a_fault_that_the_table_does_not_know() {
    for kind in ["silent", "node", "meteorite"] {
        let mut story = Story::new();
        story.fault(900, 5000, kind, "a");
        story.holds(1000, 1100, "a.1", 1);
        story.holds(1099, 1200, "b.1", 2);
        assert_eq!(story.finds(), ["P1"], "{kind}");
    }
}

#[test]
fn p2_a_token_that_goes_back() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 5);
    story.holds(2000, 2100, "b.1", 4);
    assert_eq!(story.finds(), ["P2"]);
}

/// A force ends the hold of `a` before its call returns, and `b` has had the lock in between.
#[test]
fn p2_a_guard_that_was_never_valid_is_behind_no_other() {
    let mut story = Story::new();
    let first = story.asks(900, "a.1");
    let second = story.asks(900, "b.1");
    story.gets(1000, "b.1", second, 5);
    story.frees(1010, "b.1", second);
    let until = 1_020_000_000 - 70;
    story.line(1020, "a.1", "hold", &format!(r#""id":{first},"tok":4,"until":{until}"#));
    story.frees(1030, "a.1", first);
    assert!(story.finds().is_empty());
}

#[test]
fn p2_a_token_that_is_given_twice_also_where_data_was_lost() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 5);
    story.fault(1200, 1300, "wipe-server", "");
    story.holds(2000, 2100, "b.1", 5);
    assert_eq!(story.finds(), ["P2"]);
}

/// `a` waits while `b`, which asked later, gets the lock.
fn overtaken(between: u64, fault: Option<(&str, &str)>) -> Vec<&'static str> {
    overtaken_on("single", between, fault)
}

fn overtaken_on(topology: &'static str, between: u64, fault: Option<(&str, &str)>) -> Vec<&'static str> {
    let mut story = Story::on(topology);
    story.holds(1000, 2500, "c.1", 1);
    let first = story.asks(1200, "a.1");
    let second = story.asks(1200 + between, "b.1");
    story.gets(2502, "b.1", second, 2);
    story.frees(2600, "b.1", second);
    story.gets(2602, "a.1", first, 3);
    story.frees(2700, "a.1", first);
    fault.into_iter().for_each(|(kind, host)| story.fault(1300, 1400, kind, host));
    story.finds()
}

#[test]
fn p3_a_waiter_is_overtaken() {
    assert_eq!(overtaken(1000, None), ["P3"]);
    // Too close together to know which was first at the server.
    assert_eq!(overtaken(100, None), NOTHING);
}

#[test]
fn p3_is_suspended_for_the_client_that_had_no_connection_alone() {
    assert_eq!(overtaken(1000, Some(("silent", "a"))), NOTHING);
    assert_eq!(overtaken(1000, Some(("silent", "b"))), ["P3"]);
    assert_eq!(overtaken(1000, Some(("scripts", ""))), ["P3"]);
    // With several masters, a client with another first server overtakes.
    assert_eq!(overtaken_on("quorum", 1000, Some(("silent", "b"))), NOTHING);
    assert_eq!(overtaken_on("quorum", 1000, None), ["P3"]);
}

#[test]
fn p3_a_waiter_that_never_gets_it_is_overtaken_too() {
    let mut story = Story::new();
    story.holds(1000, 2500, "c.1", 1);
    let first = story.asks_for(1200, "a.1", 2000);
    story.calls += 1;
    let id = story.calls;
    story.line(2501, "b.1", "ask", &format!(r#""id":{id},"n":"x","how":"try""#));
    story.gets(2502, "b.1", id, 2);
    story.frees(2600, "b.1", id);
    story.ends(3200, "a.1", first, "timeout");
    assert_eq!(story.finds(), ["P3"]);
}

#[test]
fn p4_a_count_that_is_wrong() {
    let mut story = Story::new();
    let id = story.asks(999, "a.1");
    story.gets(1000, "a.1", id, 1);
    story.line(1010, "a.1", "in", &format!(r#""id":{id},"k":3"#));
    story.frees(1100, "a.1", id);
    assert_eq!(story.finds(), ["P4"]);
}

#[test]
fn p5_what_is_left_behind() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 1);
    story.line(31_000, "driver", "left", r#""keys":["fairlock:{n:x}:queue"]"#);
    assert_eq!(story.finds(), ["P5"]);
}

/// A lock stays free for this time while a client waits for it.
fn blocked(ms: u64, fault: Option<&str>) -> Vec<&'static str> {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 1);
    let waits = story.asks(1050, "b.1");
    story.gets(1101 + ms, "b.1", waits, 2);
    story.frees(1102 + ms, "b.1", waits);
    fault.into_iter().for_each(|kind| story.fault(1060, 1500, kind, ""));
    story.finds()
}

#[test]
fn p6_a_free_lock_is_not_handed_over() {
    assert_eq!(blocked(1000, None), NOTHING);
    assert_eq!(blocked(3000, None), ["P6 P7"]);
    assert_eq!(blocked(5500, Some("memory")), ["P6 P7"]);
    assert_eq!(blocked(3000, Some("memory")), NOTHING);
}

/// No client gets the lock, and there is always a waiter.
#[test]
fn p6_a_lock_that_nobody_gets_any_more() {
    let mut story = Story::new();
    story.holds(1000, 1100, "a.1", 1);
    for number in 0..10 {
        let from = 1200 + number * 1000;
        let waits = story.asks_for(from, "b.1", 990);
        story.ends(from + 990, "b.1", waits, "timeout");
    }
    assert_eq!(story.finds(), ["P6 P7"]);
}

/// The holder is killed, and the next client waits.
#[test]
fn p7_a_dead_holder_is_not_replaced() {
    let replaced_after = |ms: u64| {
        let mut story = Story::new();
        let dead = story.asks(999, "a.1");
        story.gets(1000, "a.1", dead, 1);
        story.fault(1100, 1101, "kill-client", "a");
        let waits = story.asks(1050, "b.1");
        story.gets(1101 + ms, "b.1", waits, 2);
        story.frees(1102 + ms, "b.1", waits);
        story.found(&["a.1"])
    };
    assert_eq!(replaced_after(3100), NOTHING);
    assert_eq!(replaced_after(12_000), ["P6 P7"]);
}

#[test]
fn p8_a_holder_does_not_hear_that_its_lease_is_over() {
    let told_at = |ms: u64, fault: &str| {
        let mut story = Story::new();
        story.fault(1100, 7000, fault, "a");
        let loser = story.asks(999, "a.1");
        story.gets(1000, "a.1", loser, 1);
        story.loses(ms, "a.1", loser, "expired");
        story.finds()
    };
    assert_eq!(told_at(4050, "silent"), NOTHING);
    assert_eq!(told_at(7050, "silent"), ["P8"]);
    assert_eq!(told_at(7050, "stop-client"), NOTHING);
}

#[test]
fn p8_a_holder_does_not_hear_that_it_was_forced() {
    let mut story = Story::new();
    let loser = story.asks(999, "a.1");
    story.gets(1000, "a.1", loser, 1);
    story.forces(1100, 1);
    story.loses(3900, "a.1", loser, "gone");
    assert_eq!(story.finds(), ["P8"]);
}

#[test]
fn a_loss_without_a_reason() {
    let mut story = Story::new();
    let loser = story.asks(999, "a.1");
    story.gets(1000, "a.1", loser, 1);
    story.loses(1500, "a.1", loser, "gone");
    assert_eq!(story.finds(), ["loss"]);
}

#[test]
fn calls_that_last_too_long_or_have_no_end() {
    let mut story = Story::new();
    let late = story.asks_for(1000, "a.1", 100);
    story.ends(3000, "a.1", late, "timeout");
    story.holds(900, 3500, "b.1", 1);
    assert_eq!(story.finds(), ["ends"]);
    let mut story = Story::new();
    story.holds(900, 29_999, "b.1", 1);
    story.asks(1000, "a.1");
    assert!(story.finds().contains(&"ends"));
    let mut story = Story::new();
    story.line(2000, "driver", "died", r#""text":"a ended by itself""#);
    assert_eq!(story.finds(), ["ends"]);
}

/// A stall of the machine breaks no promise.
#[test]
fn bounds_of_time_are_widened_by_stalls() {
    let stalled = |ns: u64| {
        let mut story = Story::new();
        story.line(1050, "pulse", "stall", &format!(r#""d":{ns}"#));
        let late = story.asks_for(1000, "a.1", 100);
        story.ends(3000, "a.1", late, "timeout");
        story.finds()
    };
    assert_eq!(stalled(900_000_000), NOTHING);
    assert_eq!(stalled(100_000_000), ["ends"]);
}
