//! The promises of the machine to its driver and to the servers.

mod rig;

use std::time::Duration;

use fairlock_proto::effect::{Note, Outcome};
use fairlock_proto::error::{
    CallError, Cause, Ended, Fault, Loss, Refusal, RefusalKind, RequestError, UnlockError, Unlocked,
};
use fairlock_proto::event::{CallId, Connection, Event, Lease, LinkEvent, Manner, NodeId, Scope, Want};
use fairlock_proto::node::{Lane, Node};
use fairlock_proto::push::Push;
use fairlock_proto::request::{Answer, Request};
use fairlock_proto::requests::acquire::Acquired;
use fairlock_proto::requests::leave::Left;
use fairlock_proto::requests::renew::{Only, Renewed};
use fairlock_proto::settings::Settings;
use fairlock_proto::slots::{SLOTS, Topology, slot_of};
use fairlock_proto::timers::STEP;

use rig::{LEASE, Rig, SECOND, freed, held, queued, renewed, settings};

fn grant(token: u64, ticket: &'static str) -> Push<'static> {
    Push::Grant { token, lease: 5 * SECOND, ticket, lock: "p:{n:x}" }
}

/// R3: the server may serve a copy of an acquire until the time in that copy, whatever its clock shows later.
#[test]
fn a_tombstone_lasts_until_the_latest_time_that_was_sent_for_its_attempt() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (_, Request::Acquire(first)) = rig.last() else { panic!("no acquire") };
    rig.pass(3 * SECOND);
    let (_, Request::Acquire(second)) = rig.last() else { panic!("no second acquire") };
    assert!(second.not_after > first.not_after && second.seq == first.seq);
    // Another server takes over, with a clock that is a minute behind.
    rig.disconnect();
    rig.shift_server_clock(-60_000_000);
    rig.connect(NodeId(0));
    rig.pass(SECOND);
    rig.step(Event::Gone(call));
    let left = rig.sent.iter().find_map(|(.., it)| if let Request::Leave(it) = it { Some(it) } else { None });
    let left = left.expect("it leaves");
    assert_eq!((left.copies_until, left.seq), (second.not_after, first.seq));
}

/// Otherwise a hold would begin that the new server does not know, and nothing would check it.
#[test]
fn an_answer_by_an_earlier_connection_counts_as_unanswered() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, Request::Acquire(first)) = rig.last() else { panic!("no acquire") };
    rig.disconnect();
    rig.connect(NodeId(0));
    rig.answer(id, held(7, LEASE));
    assert!(!rig.is_granted(call));
    rig.pass(SECOND);
    let (id, Request::Acquire(again)) = rig.last() else { panic!("it asks again") };
    assert_eq!(again.seq, first.seq);
    rig.answer(id, held(8, LEASE));
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted { token: 8, .. })));
}

/// The client confirms the hold with this token, and the answer gives the guard.
fn is_confirmed(rig: &mut Rig, call: CallId, token: u64) {
    let (id, Request::Renew(renew)) = rig.last() else { panic!("it is not asked about") };
    assert_eq!((renew.token, renew.only), (token, Only::Attempt(1)));
    rig.answer(id, renewed(LEASE));
    assert!(rig.is_granted(call));
}

#[test]
fn a_message_by_an_earlier_connection_is_dropped() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    let before = Connection { node: NodeId(0), number: 1 };
    rig.disconnect();
    let now = rig.connect(NodeId(0));
    rig.sent.clear();
    rig.step(Event::Pushed(before, grant(8, "c:1:1")));
    assert!(rig.sent.is_empty() && !rig.is_granted(call));
    // The client asks about a message from the present one: no answer of this server proves anything yet.
    rig.step(Event::Pushed(now, grant(8, "c:1:1")));
    assert!(!rig.is_granted(call));
    is_confirmed(&mut rig, call, 8);
}

/// R7: a pushed grant above the floor of an answer of the same connection needs no round trip.
#[test]
fn a_grant_that_an_answer_proves_is_trusted() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, grant(8, "c:1:1")));
    assert!(rig.is_granted(call) && rig.sent.is_empty());
}

/// R7: the client can judge the grant once it has the answer.
#[test]
fn a_grant_that_overtakes_the_answer_of_its_request_counts_with_it() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, grant(8, "c:1:1")));
    assert!(!rig.is_granted(call));
    rig.answer(id, queued(7));
    assert!(rig.is_granted(call) && rig.sent.is_empty());
}

/// The hold might end before its first renewal.
#[test]
fn a_hold_whose_answer_took_as_long_as_it_still_lasts_is_asked_about() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.pass(SECOND);
    rig.answer(id, held(7, SECOND));
    assert!(!rig.is_granted(call));
    is_confirmed(&mut rig, call, 7);
}

/// P6: the answer got lost, and the server gives the same one again.
#[test]
fn a_grant_for_a_request_that_pauses_has_it_sent_at_once() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, _) = rig.last();
    rig.refuse(id, RequestError::Unanswered(Fault::NoAnswerYet.into()));
    assert!(rig.sent.is_empty());
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, grant(8, "c:1:1")));
    assert!(matches!(rig.last().1, Request::Acquire(_)));
}

/// The server keeps the longer lease of the grant until a renewal sets the wanted one.
#[test]
fn the_first_renewal_of_a_short_lease_sets_it() {
    for (left, only) in [(5 * SECOND, Only::Attempt(1)), (SECOND, Only::Longer)] {
        let mut rig = Rig::new(settings());
        let want = rig.want("x");
        let call = rig.call(Want { lease: Lease::Renewed(SECOND), ..want });
        let (id, _) = rig.last();
        rig.answer(id, held(7, left));
        rig.step(Event::Claimed(call));
        rig.pass(SECOND / 2);
        assert!(matches!(rig.last().1, Request::Renew(renew) if renew.only == only && renew.lease == SECOND));
    }
}

/// The answer to the nested call counts as the first renewal, which the client then does not send. Found by the
/// simulator, seed 10.
#[test]
fn a_nested_call_before_the_first_renewal_sets_a_fixed_lease() {
    let mut rig = Rig::new(settings());
    let want = fairlock_proto::event::Want { lease: Lease::Fixed(LEASE), ..rig.want("x") };
    let call = rig.call(want.clone());
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, grant(8, "c:1:1")));
    rig.step(Event::Claimed(call));
    let nested = rig.call(want);
    let (id, Request::Acquire(nesting)) = rig.last() else { panic!("no nested acquire") };
    assert_eq!(nesting.lease, LEASE);
    rig.answer(id, Answer::Acquired(Acquired::Held { token: 8, holds: 2, lease_left: LEASE }));
    rig.step(Event::Claimed(nested));
    // This is longer than the grant.
    rig.pass(LEASE - SECOND);
    assert!(rig.lost.is_empty());
    rig.pass(SECOND);
    assert_eq!(rig.lost, [call, nested]);
}

const MANY: usize = 100_000;
/// The most effects of one step: a step attends to 128 timers and does 128 pieces of work, and each owner may send,
/// leave and report.
const IN_A_STEP: usize = 2_000;

fn with_many_holds() -> (Rig, Vec<CallId>) {
    let mut rig = Rig::new(fairlock_proto::settings::Settings { in_flight: 1_000, ..settings() });
    let calls = (0..MANY).map(|name| rig.hold(&name.to_string(), 1)).collect();
    (rig, calls)
}

/// Otherwise each `Drop` would wait for a `close` with 100,000 holds.
#[test]
fn closing_does_a_bounded_part_of_its_work_in_each_step() {
    let (mut rig, calls) = with_many_holds();
    let mut most = rig.step(Event::Close);
    assert!(rig.lost.len() < MANY, "all were lost in one step");
    // Between the steps a guard can go.
    rig.step(Event::Gone(calls[MANY - 1]));
    while rig.session.next_timer().is_some_and(|due| due <= rig.now) {
        most = most.max(rig.step(Event::Time));
    }
    assert!(most <= IN_A_STEP, "{most} effects in a step");
    assert_eq!(rig.lost.len(), MANY - 1);
    assert_eq!(rig.closed, None, "the leaves have no answer yet");
}

#[test]
fn a_reconnect_asks_about_all_holds_in_bounded_steps() {
    let (mut rig, _) = with_many_holds();
    rig.disconnect();
    rig.sent.clear();
    rig.now = rig.now + SECOND;
    rig.connect(NodeId(0));
    assert_eq!(rig.session.next_timer(), Some(rig.now), "all holds were looked at in one step");
    let mut most = rig.sent.len();
    while rig.session.next_timer().is_some_and(|due| due <= rig.now) {
        most = most.max(rig.step(Event::Time));
    }
    assert!(most <= IN_A_STEP, "{most} effects in a step");
    // Each answer lets the next request go.
    let mut answered = 0;
    while let Some((id, _, request)) = rig.sent.pop() {
        assert!(matches!(request, Request::Renew(_)), "{request:?}");
        rig.answer(id, renewed(LEASE));
        answered += 1;
    }
    assert_eq!(answered, MANY);
}

#[test]
fn a_grant_that_is_not_claimed_goes_on_after_250_ms() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    rig.pass(Duration::from_millis(249));
    assert!(rig.is_granted(call) && rig.sent.is_empty());
    rig.pass(Duration::from_millis(1));
    assert!(matches!(rig.outcome(call), Some(Outcome::PassedOver)));
    assert!(matches!(rig.last().1, Request::Release(_)));
}

/// A throttled process does not lose its turn.
#[test]
fn a_process_that_stood_still_has_left_no_grant_unclaimed() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    rig.stand_still(SECOND);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted { .. })));
    rig.step(Event::Claimed(call));
    rig.pass(SECOND);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted { .. })));
}

/// P8: any number of calls leaves room for renewals, and the order of calls is kept.
#[test]
fn each_lane_has_a_limit_of_its_own() {
    let mut rig = Rig::new(settings());
    rig.hold("held", 1);
    for name in 0..10 {
        rig.lock(&name.to_string());
    }
    assert_eq!(rig.sent.len(), 4, "as many as may be under way");
    rig.pass(LEASE / 3);
    assert!(rig.sent.iter().any(|(.., request)| matches!(request, Request::Renew(_))));
}

#[test]
fn calls_go_in_the_order_in_which_they_came() {
    let mut rig = Rig::new(settings());
    let calls: Vec<_> = (0..10).map(|name| rig.lock(&name.to_string())).collect();
    assert_eq!(calls.len(), 10);
    let mut names = Vec::new();
    while !rig.sent.is_empty() {
        let (id, _, Request::Acquire(acquire)) = rig.sent.remove(0) else { panic!("no acquire") };
        names.push(acquire.keys.name.clone());
        rig.answer(id, held(1, LEASE));
    }
    let all: Vec<_> = (0..10).map(|name| name.to_string()).collect();
    assert_eq!(names, all);
}

#[test]
fn a_call_that_waits_to_be_sent_keeps_its_turn_when_its_task_has_other_work() {
    let mut rig = Rig::new(Settings { in_flight: 1, ..settings() });
    let [_, second, _] = ["x", "y", "z"].map(|name| rig.lock(name));
    rig.step(Event::Disturbed(second));
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    assert!(matches!(rig.last().1, Request::Acquire(acquire) if acquire.keys.name == "y"));
}

/// A dropped call takes no room: callers may come and go while the server is away.
#[test]
fn a_call_that_is_given_up_before_it_was_sent_leaves_nothing() {
    let mut rig = Rig::unconnected(settings(), Topology::OneServer);
    for _ in 0..1000 {
        let call = rig.lock("x");
        rig.step(Event::Gone(call));
        rig.calls.remove(call.0);
    }
    assert!(rig.session.is_idle());
    let waits = |node: &Node| Lane::ALL.into_iter().any(|lane| node.has_line(lane));
    assert!(!rig.session.common.nodes.iter().any(waits));
    rig.connect(NodeId(0));
    assert!(rig.sent.is_empty());
}

#[test]
fn an_old_number_of_a_call_means_nothing() {
    let mut rig = Rig::new(settings());
    let old = rig.hold("x", 1);
    rig.step(Event::Unlock(old));
    let (id, _) = rig.last();
    rig.answer(id, freed(1));
    rig.calls.remove(old.0);
    let new = rig.hold("x", 2);
    assert!(new != old);
    rig.step(Event::Gone(old));
    rig.step(Event::Unlock(old));
    assert!(rig.sent.is_empty(), "the guard of another call has ended");
}

/// P8, decision 82: the client also asks about fixed holds, until there is an answer.
#[test]
fn a_new_connection_asks_about_fixed_holds_until_there_is_an_answer() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let call = rig.call(fairlock_proto::event::Want { lease: Lease::Fixed(LEASE), ..want });
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    rig.step(Event::Claimed(call));
    rig.disconnect();
    rig.connect(NodeId(0));
    let (_, Request::Renew(first)) = rig.last() else { panic!("it is not asked about") };
    assert!(first.lease <= LEASE && first.only == Only::Longer);
    // No answer comes within the operation time-out.
    rig.pass(4 * SECOND);
    let (id, Request::Renew(_)) = rig.last() else { panic!("it is not asked about again") };
    rig.answer(id, renewed(LEASE - 4 * SECOND));
    rig.pass(10 * SECOND);
    assert!(rig.sent.is_empty() && rig.lost.is_empty());
    // That does not extend the hold.
    rig.pass(LEASE);
    assert_eq!(rig.lost, [call]);
}

/// The client does not trust an answer or a grant from before the move.
#[test]
fn a_slot_that_moves_has_its_holds_and_waits_checked_at_the_new_node() {
    let (one, two) = (NodeId(0), NodeId(1));
    let mut rig = Rig::unconnected(settings(), Topology::Cluster);
    let first = rig.connect(one);
    let second = rig.connect(two);
    rig.step(Event::Link(LinkEvent::Serves(one, 0..=SLOTS - 1)));
    let held_call = rig.hold("x", 7);
    let waiting = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    let asking = rig.lock("x");
    let (unanswered, _) = rig.last();
    let slot = slot_of("p:{n:x}");
    rig.step(Event::Link(LinkEvent::Serves(two, slot..=slot)));
    let to: Vec<_> = rig.sent.iter().map(|(_, to, request)| (*to, std::mem::discriminant(request))).collect();
    assert!(to.iter().all(|(to, _)| *to == second), "{to:?}");
    assert!(rig.sent.iter().any(|(.., request)| matches!(request, Request::Renew(_))));
    assert!(rig.sent.iter().any(|(.., request)| matches!(request, Request::Poll(poll) if poll.waits)));
    // The node that has lost the slot still answers, and grants.
    rig.answer(unanswered, held(9, LEASE));
    rig.step(Event::Pushed(first, grant(9, "c:2:2")));
    assert!(!rig.is_granted(asking) && !rig.is_granted(waiting));
    assert!(rig.lost.is_empty() && rig.is_granted(held_call));
}

#[test]
fn a_server_that_refuses_everything_is_asked_by_one_request_at_a_time() {
    let mut rig = Rig::new(settings());
    let calls: Vec<_> = (0..3).map(|name| rig.lock(&name.to_string())).collect();
    assert_eq!(calls.len(), rig.sent.len());
    let refused = || Refusal { kind: RefusalKind::ServerForNow, cause: Cause::new(Fault::NotConnected) };
    for (id, ..) in std::mem::take(&mut rig.sent) {
        rig.refuse(id, RequestError::Refused(refused()));
    }
    assert!(matches!(rig.notes.as_slice(), [Note::Refuses(..)]), "{:?}", rig.notes);
    rig.pass(SECOND);
    assert_eq!(rig.sent.len(), 1, "one probe");
    let (id, _) = rig.last();
    // The reason is this request's own, and the server looks at such reasons first.
    let no_right = Refusal { kind: RefusalKind::Final, cause: Cause::new(Fault::NotConnected) };
    rig.refuse(id, RequestError::Refused(no_right));
    assert!(matches!(rig.notes.as_slice(), [Note::Refuses(..)]), "{:?}", rig.notes);
    let (id, _) = rig.last();
    assert!(rig.sent.is_empty(), "one probe");
    rig.answer(id, held(1, LEASE));
    assert!(matches!(rig.notes.as_slice(), [_, Note::AcceptsAgain(_)]));
    rig.pass(2 * SECOND);
    assert!(!rig.sent.is_empty(), "the last one goes on");
}

/// Drops a waiting call, so that the client leaves.
fn given_up(rig: &mut Rig) {
    let want = rig.want("x");
    let call = rig.call(fairlock_proto::event::Want { lease: Lease::Renewed(SECOND), ..want });
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.step(Event::Gone(call));
}

fn refuse_leaves(rig: &mut Rig, tenths: usize) -> usize {
    let mut tries = 0;
    for _ in 0..tenths {
        rig.pass(SECOND / 10);
        while let Some((id, _, Request::Leave(_))) = rig.sent.pop() {
            tries += 1;
            let no_right = Refusal { kind: RefusalKind::Final, cause: Cause::new(Fault::NotConnected) };
            rig.refuse(id, RequestError::Refused(no_right));
        }
    }
    tries
}

fn accept_leaves(rig: &mut Rig) -> usize {
    let mut accepted = 0;
    while let Some((id, ..)) = rig.sent.pop() {
        rig.answer(id, Answer::Left(Left { more: false }));
        accepted += 1;
    }
    accepted
}

#[test]
fn refused_leaves_are_tried_a_few_at_a_time_and_all_go_when_one_is_accepted() {
    let mut rig = Rig::new(settings());
    (0..200).for_each(|_| given_up(&mut rig));
    let tries = refuse_leaves(&mut rig, 100);
    assert!(tries > 200 + 64 * 5 && tries <= 200 + 64 * 10, "{tries} in ten seconds");
    assert_eq!(rig.notes.iter().filter(|note| matches!(note, Note::CannotLeave(..))).count(), 1);
    // Between two tries the server receives a new place from this client, which keeps all its places alive.
    given_up(&mut rig);
    assert_eq!(accept_leaves(&mut rig), 1);
    refuse_leaves(&mut rig, 90);
    rig.pass(SECOND);
    assert_eq!(accept_leaves(&mut rig), 200);
    assert!(rig.session.is_idle() && rig.session.unfinished() == 0);
}

/// P6: a client that comes back keeps the place alive in the meantime.
#[test]
fn a_leave_is_not_given_up_while_its_slot_is_on_the_move() {
    let mut rig = Rig::new(settings());
    given_up(&mut rig);
    for _ in 0..60 {
        let (id, Request::Leave(_)) = rig.last() else { panic!("it does not leave") };
        let moving = Refusal { kind: RefusalKind::SlotForNow, cause: Fault::NotConnected.into() };
        rig.refuse(id, RequestError::Refused(moving));
        rig.pass(SECOND);
    }
}

#[test]
fn on_a_frozen_server_a_call_is_unreachable_for_so_long() {
    let mut rig = Rig::unconnected(settings(), Topology::OneServer);
    rig.connect_frozen_for(NodeId(0), 20 * SECOND);
    let want = rig.want("x");
    let limit = rig.now + SECOND;
    let call = rig.call(fairlock_proto::event::Want { manner: Manner::Waits { limit: Some(limit) }, ..want });
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.pass(SECOND);
    let Some(Outcome::Failed(CallError::Unreachable(cause))) = rig.outcome(call) else {
        panic!("{:?}", rig.outcome(call))
    };
    assert!(cause.0.to_string().contains("19s"), "{cause:?}");
}

#[test]
fn a_call_that_is_out_of_time_says_whether_others_have_the_lock() {
    let mut rig = Rig::new(settings());
    let limited = |rig: &mut Rig| {
        let (limit, want) = (rig.now + 10 * SECOND, rig.want("x"));
        rig.call(fairlock_proto::event::Want { manner: Manner::Waits { limit: Some(limit) }, ..want })
    };
    let waiting = limited(&mut rig);
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.pass(SECOND);
    let unanswered = limited(&mut rig);
    rig.pass(8 * SECOND);
    // The polls go unanswered as well.
    rig.pass(2 * SECOND);
    let is_unreachable = |call| matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Unreachable(_))));
    assert!(is_unreachable(waiting) && is_unreachable(unanswered));
}

#[test]
fn max_hold_ends_the_renewals() {
    let mut rig = Rig::new(fairlock_proto::settings::Settings { max_hold: Some(2 * LEASE), ..settings() });
    let call = rig.hold("x", 7);
    for _ in 0..20 {
        assert!(rig.lost.is_empty(), "renewed until then");
        rig.pass(LEASE / 10);
        while let Some((id, _, Request::Renew(renew))) = rig.sent.pop() {
            rig.answer(id, renewed(renew.lease.max(SECOND)));
        }
    }
    assert_eq!(rig.lost, [call]);
    assert!(rig.notes.iter().any(|note| matches!(note, Note::HeldForTooLong(_))), "{:?}", rig.notes);
}

#[test]
fn a_hold_that_is_lost_long_before_max_hold_was_not_held_for_too_long() {
    let mut rig = Rig::new(Settings { max_hold: Some(2 * LEASE), ..settings() });
    let call = rig.hold("x", 7);
    rig.pass(LEASE);
    assert_eq!(rig.lost, [call]);
    assert!(!rig.notes.iter().any(|note| matches!(note, Note::HeldForTooLong(_))), "{:?}", rig.notes);
}

#[test]
fn a_nested_call_does_not_extend_a_fixed_lease() {
    let mut rig = Rig::new(settings());
    let want = Want { scope: Scope::Owner, lease: Lease::Fixed(LEASE), ..rig.want("x") };
    rig.hold_as(want.clone(), 7);
    rig.pass(10 * SECOND);
    rig.call(want);
    assert!(matches!(rig.last().1, Request::Acquire(nesting) if nesting.lease <= LEASE - 10 * SECOND));
}

/// The log lines about a task that waits for its own lock. `disturbed`: the call whose task has other work, of the
/// holder's call and the one that waits.
fn notes_of_a_self_wait(disturbed: Option<usize>) -> Vec<Note> {
    let mut rig = Rig::new(settings());
    let holder = rig.hold("x", 7);
    rig.now = rig.now + Duration::from_millis(1);
    let calls = [holder, rig.lock("x")];
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    if let Some(which) = disturbed {
        rig.step(Event::Disturbed(calls[which]));
    }
    for _ in 0..40 {
        rig.pass(SECOND);
        for (id, _, request) in std::mem::take(&mut rig.sent) {
            match request {
                Request::Renew(_) => rig.answer(id, renewed(LEASE)),
                Request::Poll(_) => rig.answer(id, polled_holder("c:1", 1, 7)),
                other => panic!("{other:?}"),
            }
        }
    }
    rig.notes
}

#[test]
fn a_task_that_waits_for_its_own_lock_is_warned_of_after_a_lease_unless_it_has_other_work() {
    for (disturbed, warnings) in [(None, 1), (Some(0), 1), (Some(1), 0)] {
        let notes = notes_of_a_self_wait(disturbed);
        let given = notes.iter().filter(|note| matches!(note, Note::WaitsForItself(_)));
        assert_eq!(given.count(), warnings, "{disturbed:?}: {notes:?}");
        let polls = notes.iter().filter(|note| matches!(note, Note::StillWaiting { waiting: 1, holder: Some(_), .. }));
        assert!(polls.count() > 1 && matches!(notes[0], Note::IsQueued(_)), "{notes:?}");
    }
}

/// Another client has the lock, and these tickets are missing.
fn polled_by_others(token: u64, missing: &[usize]) -> fairlock_proto::request::Answer {
    let mut polled = polled_holder("d:1", 1, token);
    if let fairlock_proto::request::Answer::Polled(polled) = &mut polled {
        polled.missing = missing.to_vec();
    }
    polled
}

fn polled_holder(owner: &str, attempt: u64, token: u64) -> fairlock_proto::request::Answer {
    use fairlock_proto::requests::poll::{Polled, PolledHolder};
    fairlock_proto::request::Answer::Polled(Box::new(Polled {
        more: false,
        known: true,
        places: 1,
        first: true,
        holder: Some(PolledHolder { owner: owner.into(), attempt, token, lease_left: Some(LEASE) }),
        held_by: None,
        granted: Vec::new(),
        room_in: None,
        frozen_for: None,
        floor: token,
        missing: Vec::new(),
    }))
}

/// R15: a server that took over may have the hold that ended a moment ago.
#[test]
fn names_that_were_released_just_before_a_connection_ended_are_asked_about() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::Unlock(call));
    let (id, _) = rig.last();
    rig.answer(id, freed(7));
    rig.disconnect();
    rig.connect(NodeId(0));
    let (id, Request::Poll(poll)) = rig.last() else { panic!("it is not asked about") };
    assert!(!poll.waits && !poll.names_ours && poll.keys.name == "x");
    rig.pass(SECOND);
    rig.answer(id, polled_holder("c:1", 1, 7));
    let (_, Request::Leave(leave)) = rig.last() else { panic!("it is not released again") };
    assert_eq!((&*leave.owner, leave.seq), ("c:1", 1));
}

/// P8: the hold ended at its deadline, whoever looks first.
#[test]
fn an_unlock_behind_the_deadline_is_a_loss() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let call = rig.call(fairlock_proto::event::Want { lease: Lease::Fixed(LEASE), ..want });
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    rig.step(Event::Claimed(call));
    rig.now = rig.now + LEASE;
    rig.step(Event::Unlock(call));
    let lost = Outcome::Unlocked(Err(UnlockError::Lost(fairlock_proto::error::Loss::Expired)));
    assert_eq!(format!("{:?}", rig.outcome(call)), format!("{:?}", Some(lost)));
    assert!(matches!(rig.last().1, Request::Leave(_)));
}

/// P6: a question about a grant of an earlier attempt proves nothing about the grants of the next attempt.
#[test]
fn a_call_whose_grant_was_lost_takes_the_next_one() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.disconnect();
    let connection = rig.connect(NodeId(0));
    rig.step(Event::Pushed(connection, grant(8, "c:1:1")));
    let (id, Request::Renew(_)) = rig.last() else { panic!("it is not asked about") };
    rig.answer(id, Answer::Renewed(Renewed::Lost));
    // The call goes to the end of the queue.
    rig.pass(Duration::from_millis(10));
    let (id, _) = rig.last();
    rig.answer(id, polled_by_others(9, &[0]));
    let again = rig.sent.iter().rev().find_map(|(id, _, it)| matches!(it, Request::Acquire(_)).then_some(*id));
    rig.answer(again.expect("it asks again"), queued(9));
    for _ in 0..5 {
        rig.pass(LEASE / 2);
        while let Some((id, _, request)) = rig.sent.pop() {
            if let Request::Poll(_) = request {
                rig.answer(id, polled_by_others(9, &[]));
            }
        }
    }
    rig.step(Event::Pushed(connection, grant(10, "c:1:2")));
    assert!(rig.is_granted(call), "{:?}", rig.sent);
}

/// A leave for it would end the other client's hold.
#[test]
fn a_message_about_the_ticket_of_another_client_has_this_one_leave_nothing() {
    let mut rig = Rig::new(settings());
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, grant(8, "d:1:1")));
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
}

/// A cluster of two nodes, of which the first has all slots, and the connection of the other one.
fn two_nodes(in_flight: usize) -> (Rig, Connection) {
    let mut rig = Rig::unconnected(Settings { in_flight, ..settings() }, Topology::Cluster);
    rig.connect(NodeId(0));
    let second = rig.connect(NodeId(1));
    rig.step(Event::Link(LinkEvent::Serves(NodeId(0), 0..=SLOTS - 1)));
    (rig, second)
}

#[test]
fn a_call_waits_for_a_node_to_get_its_slot_and_to_be_connected() {
    let mut rig = Rig::unconnected(settings(), Topology::Cluster);
    let waiting = rig.lock("x");
    let want = rig.want("x");
    let limit = rig.now + settings().operation_timeout;
    let late = rig.call(Want { manner: Manner::Tries { limit, proposed: None }, ..want });
    rig.pass(settings().operation_timeout);
    assert!(matches!(rig.outcome(late), Some(Outcome::Failed(CallError::Unreachable(_)))));
    assert!(rig.wanted.is_empty(), "no node has the slot");
    rig.step(Event::Link(LinkEvent::Serves(NodeId(3), 0..=SLOTS - 1)));
    assert_eq!((rig.wanted.as_slice(), rig.sent.len()), ([NodeId(3)].as_slice(), 0));
    rig.connect(NodeId(3));
    let (id, _) = rig.last();
    rig.answer(id, held(1, LEASE));
    assert!(rig.is_granted(waiting));
}

/// R15: the caller may not have read its grant.
#[test]
fn a_hold_is_doubted_on_a_new_connection_until_the_server_has_answered() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    assert!(!rig.session.is_doubted(call));
    rig.disconnect();
    rig.connect(NodeId(0));
    assert!(rig.session.is_doubted(call));
    let (id, request) = rig.last();
    assert!(matches!(request, Request::Renew(_)), "{request:?}");
    rig.answer(id, renewed(LEASE));
    assert!(!rig.session.is_doubted(call));
}

/// Between two moves the slot may stay in one place only for a moment.
#[test]
fn a_request_that_a_moving_slot_refuses_is_sent_again_within_200_ms() {
    let (mut rig, _) = two_nodes(4);
    let [held_call, _] = [rig.hold("x", 7), rig.lock("y")];
    rig.step(Event::Unlock(held_call));
    let until = rig.now + 5 * SECOND;
    while rig.now < until {
        for (id, ..) in std::mem::take(&mut rig.sent) {
            let moving = Refusal { kind: RefusalKind::SlotForNow, cause: Cause::new(Fault::NotConnected) };
            rig.refuse(id, RequestError::Refused(moving));
        }
        rig.pass(Duration::from_millis(200));
        let sent: Vec<_> = rig.sent.iter().map(|(.., request)| request).collect();
        assert!(sent.iter().any(|request| matches!(request, Request::Release(_))), "{sent:?}");
        assert!(sent.iter().any(|request| matches!(request, Request::Acquire(_))), "{sent:?}");
    }
}

/// P1: that node may still answer, and grant. More requests wait than one step looks at.
#[test]
fn what_waits_to_be_sent_does_not_go_to_a_node_that_has_lost_its_slot() {
    let (mut rig, second) = two_nodes(4);
    for name in 0..2 * STEP {
        rig.lock(&name.to_string());
    }
    rig.sent.clear();
    let mut most = rig.step(Event::Link(LinkEvent::Serves(NodeId(1), 0..=SLOTS - 1)));
    while rig.session.next_timer().is_some_and(|due| due <= rig.now) {
        most = most.max(rig.step(Event::Time));
    }
    assert!(rig.sent.iter().all(|(_, to, _)| *to == second), "some went to the node before");
    assert_eq!(rig.sent.len(), 4, "the others wait at the new node");
    assert!(most <= IN_A_STEP);
}

/// R15: the client looks at them in several steps, and a release in between lets the oldest ones go.
#[test]
fn each_name_that_was_released_a_moment_ago_is_asked_about() {
    let mut rig = Rig::new(Settings { in_flight: 4 * STEP, ..settings() });
    (0..STEP / 2).for_each(|name| rig.hold_and_release(&name.to_string()));
    rig.now = rig.now + 5 * SECOND;
    (STEP / 2..2 * STEP).for_each(|name| rig.hold_and_release(&name.to_string()));
    rig.now = rig.now + 2 * SECOND;
    rig.disconnect();
    rig.now = rig.now + 2 * SECOND;
    rig.connect(NodeId(0));
    rig.hold_and_release("new");
    rig.settle();
    let is_asked_about = |name: &String| {
        rig.sent.iter().any(|(.., request)| matches!(request, Request::Poll(poll) if poll.keys.name == *name))
    };
    let forgotten = (STEP / 2..2 * STEP).map(|name| name.to_string()).filter(|name| !is_asked_about(name));
    assert_eq!(forgotten.count(), 0);
}

/// P8: a check that has begun does not start again with each move.
#[test]
fn holds_are_checked_while_slots_move_one_after_the_other() {
    let (mut rig, _) = two_nodes(4 * STEP);
    for name in 0..2 * STEP {
        rig.hold(&name.to_string(), 7);
    }
    rig.step(Event::Link(LinkEvent::Serves(NodeId(1), 0..=SLOTS - 1)));
    for slot in 0..10 {
        rig.step(Event::Link(LinkEvent::Serves(NodeId(1), slot..=slot)));
    }
    let asked = rig.sent.iter().filter(|(.., request)| matches!(request, Request::Renew(_))).count();
    assert_eq!(asked, 2 * STEP);
}

#[test]
fn a_closed_client_whose_runtime_goes_sends_nothing_more() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::Unlock(call));
    rig.step(Event::Close);
    rig.pass(7 * SECOND);
    assert_eq!(rig.closed.take(), Some(1), "its release has no answer");
    rig.sent.clear();
    rig.step(Event::RuntimeGone);
    rig.pass(LEASE);
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
    assert_eq!(rig.closed, None, "it is closed once");
}

#[test]
fn a_client_that_is_closing_is_closed_at_once_when_its_runtime_goes() {
    let mut rig = Rig::new(settings());
    rig.hold("x", 7);
    rig.step(Event::Close);
    let (id, Request::Leave(_)) = rig.last() else { panic!("it does not leave") };
    rig.refuse(id, RequestError::Unanswered(Fault::NoAnswerYet.into()));
    assert_eq!(rig.closed, None, "its leave has no answer");
    rig.step(Event::RuntimeGone);
    assert_eq!(rig.closed, Some(1));
}

#[test]
fn a_nested_call_that_was_not_sent_ends_with_the_runtime() {
    let mut rig = Rig::new(settings());
    let want = Want { scope: Scope::Owner, ..rig.want("x") };
    rig.hold_as(want.clone(), 7);
    rig.disconnect();
    let nested = rig.call(want);
    rig.step(Event::RuntimeGone);
    assert!(matches!(rig.outcome(nested), Some(Outcome::Failed(CallError::RuntimeGone))));
}

#[test]
fn an_unlock_behind_the_end_of_the_runtime_says_so_at_once() {
    let mut rig = Rig::new(settings());
    let [call, dropped] = ["x", "y"].map(|name| rig.hold(name, 7));
    rig.step(Event::RuntimeGone);
    rig.step(Event::Gone(dropped));
    rig.step(Event::Unlock(call));
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Unlocked(Err(UnlockError::RuntimeGone { .. })))), "{outcome:?}");
    assert!(rig.session.is_idle());
}

/// the first copy of the release frees the lock, a late copy of the acquire takes it again, and the second copy of
/// the release frees that.
#[test]
fn an_unlock_that_frees_a_late_copy_of_its_acquire_is_no_loss() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::Unlock(call));
    let (first, Request::Release(_)) = rig.last() else { panic!("it is not released") };
    rig.refuse(first, RequestError::Unanswered(Fault::Disconnected.into()));
    rig.pass(SECOND);
    let (second, Request::Release(_)) = rig.last() else { panic!("the release is not repeated") };
    rig.answer(second, freed(8));
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Unlocked(Ok(Unlocked::Freed)))), "{outcome:?}");
}

#[test]
fn a_hold_whose_deadline_has_passed_is_lost_to_that_and_not_to_close() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.now = rig.now + LEASE;
    rig.step(Event::Close);
    rig.step(Event::Unlock(call));
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Unlocked(Err(UnlockError::Lost(Loss::Expired))))), "{outcome:?}");
}

/// No poll was under way when the connection ended, so no request has failed.
#[test]
fn a_wait_whose_server_is_down_does_not_say_that_others_have_the_lock() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let manner = Manner::Waits { limit: Some(rig.now + SECOND) };
    let call = rig.call(fairlock_proto::event::Want { manner, ..want });
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.disconnect();
    rig.pass(2 * SECOND);
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Failed(CallError::Unreachable(_)))), "{outcome:?}");
}

/// The process pauses, and the machine reads the answer before any timer. This once gave a guard of a hold that had
/// ended.
#[test]
fn a_nested_call_that_is_answered_behind_the_deadline_says_that_its_hold_is_lost() {
    let mut rig = Rig::new(settings());
    let want = fairlock_proto::event::Want { scope: Scope::Owner, ..rig.want("x") };
    let outer = rig.call(want.clone());
    let (id, _) = rig.last();
    rig.answer(id, held(7, LEASE));
    rig.step(Event::Claimed(outer));
    let nested = rig.call(want);
    let (id, _) = rig.last();
    rig.now = rig.now + LEASE;
    rig.answer(id, Answer::Acquired(Acquired::Held { token: 7, holds: 2, lease_left: LEASE }));
    assert!(matches!(rig.outcome(nested), Some(Outcome::Failed(CallError::Lost))));
    assert_eq!(rig.lost, [outer]);
}

/// A step sends a bounded number of requests.
#[test]
fn what_a_step_leaves_to_be_sent_is_due_at_once() {
    let mut rig = Rig::unconnected(Settings { in_flight: 8 * STEP, ..settings() }, Topology::OneServer);
    for name in 0..4 * STEP {
        rig.lock(&name.to_string());
    }
    rig.connect(NodeId(0));
    while rig.session.next_timer().is_some_and(|due| due <= rig.now) {
        let before = rig.sent.len();
        rig.step(Event::Time);
        assert!(rig.sent.len() - before <= STEP);
    }
    assert_eq!(rig.sent.len(), 4 * STEP);
}

/// R15: a server that takes over may lag by 5 s. A client checks its connection only after an operation time-out, and
/// has the result within a second.
#[test]
fn a_release_may_be_unknown_for_five_seconds_a_time_out_and_one_more_second() {
    let is_asked_about_after = |time| {
        let mut rig = Rig::new(settings());
        rig.hold_and_release("x");
        rig.now = rig.now + time;
        rig.disconnect();
        rig.connect(NodeId(0));
        rig.sent.iter().any(|(.., request)| matches!(request, Request::Poll(_)))
    };
    assert!(is_asked_about_after(8 * SECOND));
    assert!(!is_asked_about_after(8 * SECOND + SECOND / 100));
}

#[test]
fn a_call_that_came_too_late_is_asked_again_after_a_pause() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, Request::Acquire(first)) = rig.last() else { panic!("no acquire") };
    rig.answer(id, Answer::Acquired(Acquired::Late));
    rig.settle();
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
    rig.pass(SECOND / 10);
    let (_, Request::Acquire(again)) = rig.last() else { panic!("it does not ask again") };
    assert_eq!(again.seq, first.seq);
}

#[test]
fn a_request_without_an_answer_is_sent_again_after_a_pause() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, Request::Acquire(first)) = rig.last() else { panic!("no acquire") };
    rig.refuse(id, RequestError::Unanswered(Fault::NoAnswerYet.into()));
    rig.settle();
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
    rig.pass(SECOND / 10);
    let (_, Request::Acquire(again)) = rig.last() else { panic!("it does not ask again") };
    assert_eq!(again.seq, first.seq);
}

#[test]
fn the_clock_of_a_server_is_known_while_it_is_connected() {
    let mut rig = Rig::new(settings());
    rig.pass(SECOND);
    assert_eq!(rig.session.server_micros(rig.now, NodeId(0)), rig.server_micros());
    assert_eq!(rig.session.server_micros(rig.now, NodeId(1)), 0);
}

/// P8: renewals do not wait for a thousand new calls.
#[test]
fn a_new_connection_is_asked_about_holds_before_anything_else() {
    let mut rig = Rig::new(settings());
    rig.hold("x", 7);
    rig.disconnect();
    rig.lock("y");
    rig.connect(NodeId(0));
    rig.settle();
    let (id, Request::Renew(_)) = rig.last() else { panic!("the hold is not checked") };
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
    rig.answer(id, renewed(LEASE));
    assert!(matches!(rig.last().1, Request::Acquire(_)));
}

#[test]
fn a_close_behind_the_end_of_the_runtime_ends_what_is_held() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::RuntimeGone);
    assert!(rig.lost.is_empty(), "it is good until its deadline");
    rig.step(Event::Close);
    assert_eq!(rig.lost, [call]);
}

/// The message about an earlier hold of the same owner may come late.
#[test]
fn a_forced_end_of_another_hold_ends_nothing() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    let connection = Connection { node: NodeId(0), number: 1 };
    for token in [6, 8] {
        rig.step(Event::Pushed(connection, Push::Revoked { token, owner: "c:1", lock: "p:{n:x}" }));
        assert!(rig.lost.is_empty(), "{token}");
    }
    rig.step(Event::Pushed(connection, Push::Revoked { token: 7, owner: "c:1", lock: "p:{n:x}" }));
    assert_eq!(rig.lost, [call]);
}

/// R1: a copy of its request may still add one to the server's count, so a later request sets the count.
#[test]
fn a_nested_call_that_is_dropped_or_out_of_time_sets_the_count() {
    for is_dropped in [false, true] {
        let mut rig = Rig::new(settings());
        let want = fairlock_proto::event::Want { scope: Scope::Owner, ..rig.want("x") };
        rig.hold_as(want.clone(), 7);
        let manner = Manner::Waits { limit: Some(rig.now + SECOND) };
        let nested = rig.call(fairlock_proto::event::Want { manner, ..want });
        assert!(matches!(rig.last().1, Request::Acquire(_)));
        if is_dropped {
            rig.step(Event::Gone(nested));
        } else {
            rig.pass(SECOND);
            assert!(matches!(rig.outcome(nested), Some(Outcome::Failed(_))), "{:?}", rig.outcome(nested));
        }
        let Request::Release(release) = rig.last().1 else { panic!("the count is not set") };
        assert_eq!((release.holds, release.token), (1, 7));
    }
}

/// R3: a copy of an acquire that comes after the release finds a tombstone. While a hold remains, it finds the hold.
#[test]
fn a_release_says_until_when_a_copy_of_its_acquire_may_be_served() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (_, Request::Acquire(first)) = rig.last() else { panic!("no acquire") };
    rig.pass(3 * SECOND);
    let (id, Request::Acquire(_)) = rig.last() else { panic!("no second acquire") };
    rig.answer(id, held(7, LEASE));
    rig.step(Event::Claimed(call));
    rig.step(Event::Unlock(call));
    let Request::Release(release) = rig.last().1 else { panic!("it is not released") };
    assert_eq!((release.holds, release.copies_until), (0, first.not_after));
}

/// R11: the owner had another hold, which it did not know of.
#[test]
fn an_unlock_that_frees_another_token_is_a_loss() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::Unlock(call));
    let (id, _) = rig.last();
    rig.answer(id, freed(8));
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Unlocked(Err(UnlockError::Lost(Loss::Gone))))), "{outcome:?}");
    assert!(matches!(rig.last().1, Request::Leave(_)));
}

#[test]
fn an_unlock_that_is_refused_until_a_person_helps_says_so_at_once_and_goes_on() {
    let mut rig = Rig::new(settings());
    let call = rig.hold("x", 7);
    rig.step(Event::Unlock(call));
    let (id, _) = rig.last();
    let refusal = |kind| RequestError::Refused(Refusal { kind, cause: Fault::NoAnswerYet.into() });
    rig.refuse(id, refusal(RefusalKind::SlotForNow));
    assert!(!matches!(rig.outcome(call), Some(Outcome::Unlocked(_))), "that passes");
    rig.pass(SECOND / 10);
    let (id, _) = rig.last();
    rig.refuse(id, refusal(RefusalKind::Final));
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Unlocked(Err(UnlockError::Refused { .. })))), "{outcome:?}");
    rig.pass(SECOND);
    assert!(matches!(rig.last().1, Request::Release(_)));
}

/// P2: the server's memory of the token outlives the hold. The client renews it after each quarter of its time.
#[test]
fn renewals_keep_the_memory_of_the_token_four_times_in_its_life() {
    let mut rig = Rig::new(settings());
    rig.hold("x", 7);
    let mut kept = Vec::new();
    for _ in 0..60 {
        rig.pass(SECOND);
        for (id, _, request) in std::mem::take(&mut rig.sent) {
            let Request::Renew(renew) = request else { panic!("{request:?}") };
            kept.push(renew.remember);
            rig.answer(id, renewed(LEASE));
        }
    }
    // A renewal comes every 10 s, and a quarter of the time is 15 s.
    assert_eq!(kept[..4], [false, true, false, true]);
}

/// A quorum counts a server as taken by others while its call asks for a new place there.
#[test]
fn a_call_that_lost_its_place_is_behind_others_until_an_answer() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let lock = want.keys.lock.clone();
    rig.call(want);
    assert!(!rig.session.stage_at(1, &lock).is_behind_others(), "it is not known yet");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    assert!(rig.session.stage_at(1, &lock).is_behind_others());
    rig.pass(2 * SECOND);
    let (id, Request::Poll(_)) = rig.last() else { panic!("no poll") };
    rig.answer(id, polled_by_others(8, &[0]));
    assert!(matches!(rig.last().1, Request::Acquire(_)));
    assert!(rig.session.stage_at(1, &lock).is_behind_others());
}

/// So many waiters that a poll verifies only some places.
fn with_many_waiters() -> Rig {
    let mut rig = Rig::new(settings());
    for _ in 0..20 {
        rig.lock("x");
        let (id, _) = rig.last();
        rig.answer(id, queued(7));
    }
    rig
}

/// How many places the next poll verifies.
fn polled_places(rig: &mut Rig) -> usize {
    rig.pass(settings().poll_interval);
    let (_, Request::Poll(poll)) = rig.last() else { panic!("no poll") };
    poll.tickets.len()
}

/// P9: the forced unlock may have ended the grant of a waiter whose message got lost.
#[test]
fn a_forced_end_has_the_places_of_all_waiters_verified() {
    assert_eq!(polled_places(&mut with_many_waiters()), 16);
    let mut rig = with_many_waiters();
    let revoked = Push::Revoked { token: 7, owner: "d:1", lock: "p:{n:x}" };
    rig.step(Event::Pushed(Connection { node: NodeId(0), number: 1 }, revoked));
    assert_eq!(polled_places(&mut rig), 20);
}

/// R8: the client's other places have gone too. If a copy went unanswered, its answer may have said so.
#[test]
fn a_new_waiter_of_a_client_that_may_have_been_given_up_has_all_places_verified() {
    for (is_repeated, known, verified) in [(false, true, 16), (false, false, 21), (true, true, 21)] {
        let mut rig = with_many_waiters();
        rig.lock("x");
        let (mut id, _) = rig.last();
        if is_repeated {
            rig.refuse(id, RequestError::Unanswered(Fault::NoAnswerYet.into()));
            rig.pass(SECOND / 10);
            (id, _) = rig.last();
        }
        rig.answer(
            id,
            Answer::Acquired(Acquired::Queued { floor: 7, lease_left: Some(LEASE), more: false, known, holder: None }),
        );
        assert_eq!(polled_places(&mut rig), verified, "{is_repeated} {known}");
    }
}

#[test]
fn a_request_that_has_no_answer_in_time_takes_no_later_one_with_it() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    rig.pass(SECOND);
    let later = rig.lock("y");
    let (id, _) = rig.last();
    rig.pass(SECOND);
    assert_eq!(rig.suspected, [Connection { node: NodeId(0), number: 1 }]);
    rig.answer(id, held(7, LEASE));
    assert!(rig.is_granted(later));
}

/// P5: the user may have lost a right since the call queued.
#[test]
fn a_poll_that_is_refused_for_good_ends_the_wait() {
    let mut rig = Rig::new(settings());
    let call = rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.pass(settings().poll_interval);
    let (id, Request::Poll(_)) = rig.last() else { panic!("no poll") };
    rig.refuse(id, RequestError::Refused(Refusal { kind: RefusalKind::Final, cause: Fault::NotConnected.into() }));
    assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Refused(_)))), "{:?}", rig.outcome(call));
    assert!(matches!(rig.last().1, Request::Leave(_)));
}

#[test]
fn a_call_behind_another_one_of_its_owner_ends_with_the_client() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let calls = [rig.call(want.clone()), rig.call(want)];
    rig.step(Event::Close);
    for call in calls {
        assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Closed))), "{:?}", rig.outcome(call));
    }
}

#[test]
fn a_wait_that_is_over_says_that_others_have_the_lock() {
    let mut rig = Rig::new(settings());
    let want = rig.want("x");
    let calls = [2, 1].map(|seconds| {
        let manner = Manner::Waits { limit: Some(rig.now + seconds * SECOND) };
        // The second call waits for its turn after the first one, whose owner it shares.
        rig.call(Want { manner, ..want.clone() })
    });
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.pass(2 * SECOND);
    for call in calls {
        assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Timeout(_)))), "{:?}", rig.outcome(call));
    }
}

/// P9: the place may still be there.
#[test]
fn a_waiter_whose_grant_is_over_is_polled_for_at_once() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    rig.pass(settings().poll_interval);
    let (id, Request::Poll(_)) = rig.last() else { panic!("no poll") };
    rig.answer(id, polled_holder("c:1", 1, 8));
    let (id, Request::Renew(_)) = rig.last() else { panic!("it is not asked about") };
    rig.answer(id, Answer::Renewed(Renewed::Lost));
    rig.settle();
    assert!(matches!(rig.last().1, Request::Poll(_)));
}

#[test]
fn it_is_said_of_each_hold_how_it_ended() {
    let mut rig = Rig::new(settings());
    rig.hold_and_release("x");
    rig.hold("y", 7);
    let silent = rig.hold("z", 7);
    rig.step(Event::Unlock(silent));
    rig.step(Event::Close);
    rig.step(Event::RuntimeGone);
    assert_eq!(rig.ended, [Ended::Freed, Ended::Lost(Loss::Closed), Ended::Unconfirmed]);
}

/// It does not wait for others, even if it comes after a call that does.
#[test]
fn a_try_is_busy_if_others_have_the_lock() {
    let mut rig = Rig::new(settings());
    let manner = Manner::Tries { limit: rig.now + SECOND, proposed: None };
    let want = Want { manner: manner.clone(), ..rig.want("x") };
    let unanswered = rig.call(want);
    let (id, _) = rig.last();
    rig.answer(id, Answer::Acquired(Acquired::Busy { more: true, holder: None }));
    let want = rig.want("y");
    rig.call(want.clone());
    let behind = rig.call(Want { manner, ..want });
    let (id, _) = rig.last();
    rig.answer(id, queued(7));
    assert!(matches!(rig.outcome(behind), Some(Outcome::Busy(_))), "{:?}", rig.outcome(behind));
    rig.pass(SECOND);
    assert!(matches!(rig.outcome(unanswered), Some(Outcome::Busy(_))), "{:?}", rig.outcome(unanswered));
}
