//! The same promises for shared names, for handles, and for questions.

#[allow(dead_code)]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::{DetachOutcome, Outcome};
use fairlock_proto::error::{
    CallError, Cause, ChangeError, Fault, Loss, Refusal, RefusalKind, RequestError, UnlockError, Unlocked,
};
use fairlock_proto::event::{CallId, Event, Lease, Manner, RequestId, Scope, Want};
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{Keys, Kind, Share, shared_terms};
use fairlock_proto::push::Push;
use fairlock_proto::question::{Finding, Question};
use fairlock_proto::request::{Answer, Request};
use fairlock_proto::requests::acquire::Acquired;
use fairlock_proto::requests::force_unlock::ForceUnlocked;
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::inspect::Inspected;
use fairlock_proto::requests::poll::{Poll, Polled, PolledHolder};
use fairlock_proto::requests::raise::{Raise, Raised};
use fairlock_proto::requests::release::Released;
use fairlock_proto::requests::renew::{Only, Renewed};
use fairlock_proto::requests::set_limit::LimitSet;
use fairlock_proto::settings::Settings;
use fairlock_proto::time::ServerTime;

use rig::{LEASE, Rig, SECOND, renewed, settings};

fn share(rig: &mut Rig, kind: Kind, share: Share) -> Want {
    let (keys, terms) = (Arc::new(Keys::of(kind, "p", "x")), shared_terms(share, 5 * SECOND, "").into());
    Want { keys, terms, weight: share.weight, ..rig.want("x") }
}

/// An owner that holds a write, and a read inside it.
fn write_and_read(rig: &mut Rig) -> [CallId; 2] {
    let want = Want { scope: Scope::Owner, ..share(rig, Kind::RwLock, Share::WRITER) };
    let write = rig.hold_as(want.clone(), 7);
    let read = rig.call(Want { weight: 1, ..want });
    let (id, _) = rig.last();
    rig.answer(id, Answer::Acquired(Acquired::Held { token: 7, holds: 2, lease_left: LEASE }));
    rig.step(Event::Claimed(read));
    [write, read]
}

#[test]
fn the_server_counts_the_guard_with_the_greatest_weight() {
    let mut rig = Rig::new(settings());
    let [write, read] = write_and_read(&mut rig);
    rig.step(Event::Gone(write));
    let (id, Request::Release(release)) = rig.last() else { panic!("the server is not told") };
    assert_eq!((release.holds, release.weight, release.token), (1, 1, 7));
    rig.answer(id, Answer::Released(Released::Held { holds: 1, more: true }));
    assert!(matches!(rig.last().1, Request::Poll(poll) if !poll.names_ours), "others come in");
    // The owner reads on, and a write would wait for that.
    let want = Want { owner: 1, owner_id: "c:1".into(), ..share(&mut rig, Kind::RwLock, Share::WRITER) };
    let upgrade = rig.call(want);
    assert!(matches!(rig.outcome(upgrade), Some(Outcome::Failed(CallError::WouldDeadlock))));
    rig.step(Event::Unlock(read));
    assert!(matches!(rig.last().1, Request::Release(release) if release.holds == 0));
}

#[test]
fn a_guard_that_shrinks_has_less_at_once_and_its_caller_hears_when_the_server_knows() {
    let mut rig = Rig::new(settings());
    let want = share(&mut rig, Kind::Semaphore, Share { weight: 5, limit: 8 });
    let guard = rig.hold_as(want, 7);
    let (first, second) = (rig.new_call(), rig.new_call());
    rig.step(Event::Shrink { call: first, guard, weight: 3 });
    let (id, Request::Release(release)) = rig.last() else { panic!("the server is not told") };
    assert_eq!((release.holds, release.weight), (1, 3));
    rig.step(Event::Shrink { call: second, guard, weight: 2 });
    rig.answer(id, Answer::Released(Released::Held { holds: 1, more: false }));
    // The first call gets its outcome with the second.
    assert!(rig.outcome(first).is_none());
    let (id, Request::Release(release)) = rig.last() else { panic!("the server is not told again") };
    assert_eq!(release.weight, 2);
    rig.answer(id, Answer::Released(Released::Held { holds: 1, more: false }));
    for call in [first, second] {
        assert!(matches!(rig.outcome(call), Some(Outcome::Unlocked(Ok(Unlocked::StillHeld(1))))));
    }
    // A lost hold cannot give anything back.
    rig.step(Event::Close);
    let late = rig.new_call();
    rig.step(Event::Shrink { call: late, guard, weight: 1 });
    assert!(matches!(rig.outcome(late), Some(Outcome::Unlocked(Err(UnlockError::Lost(Loss::Closed))))));
}

#[test]
fn a_share_beyond_its_limit_is_refused_with_the_limit() {
    let mut rig = Rig::new(settings());
    let want = share(&mut rig, Kind::Semaphore, Share { weight: 5, limit: 8 });
    let call = rig.call(want);
    let (id, _) = rig.last();
    rig.answer(id, Answer::Acquired(Acquired::TooHeavy { limit: 4 }));
    assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::TooHeavy { limit: 4 }))));
    assert!(rig.sent.is_empty() && rig.session.is_idle());
}

/// P9: the messages get lost, and a poll names the new holders.
#[test]
fn a_poll_of_a_shared_name_finds_who_was_granted_it_and_nobody_loses_its_place() {
    let mut rig = Rig::new(settings());
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let want = share(&mut rig, Kind::Semaphore, Share { weight: 1, limit: 8 });
            let call = rig.call(want);
            let (id, _) = rig.last();
            rig.answer(id, rig::queued(7));
            call
        })
        .collect();
    rig.pass(settings().poll_interval);
    let (id, Request::Poll(poll)) = rig.last() else { panic!("no poll") };
    assert_eq!(poll.tickets, ["c:1:1", "c:2:2", "c:3:3"]);
    let granted =
        |owner: &str, attempt| PolledHolder { owner: owner.into(), attempt, token: 8, lease_left: Some(LEASE) };
    let granted = vec![granted("c:1", 1)];
    rig.answer(
        id,
        Answer::Polled(Box::new(Polled {
            more: false,
            known: true,
            places: 1,
            first: true,
            holder: None,
            held_by: None,
            granted,
            room_in: Some(LEASE),
            frozen_for: None,
            floor: 8,
            missing: vec![2],
        })),
    );
    // The first waiter confirms its grant, and the last one asks again.
    let requests: Vec<_> = rig.sent.drain(..).map(|(.., request)| request).collect();
    assert!(
        requests.iter().any(|it| matches!(it, Request::Renew(renew) if &*renew.owner == "c:1" && renew.token == 8))
    );
    assert!(requests.iter().any(|it| matches!(it, Request::Acquire(acquire) if &*acquire.owner == "c:3")));
    assert!(calls.iter().all(|call| !rig.is_granted(*call)));
}

/// R1: the server's answer states its count.
#[test]
fn a_count_that_is_not_the_one_that_was_set_is_set_again() {
    let mut rig = Rig::new(settings());
    let [write, _] = write_and_read(&mut rig);
    rig.step(Event::Gone(write));
    let (id, Request::Release(first)) = rig.last() else { panic!("the server is not told") };
    rig.answer(id, Answer::Released(Released::Held { holds: 2, more: false }));
    let (_, Request::Release(again)) = rig.last() else { panic!("the server is not told again") };
    assert!((again.holds, again.weight) == (1, 1) && again.seq > first.seq);
}

/// R1: a request that the server may have served already does no harm a second time.
#[test]
fn a_count_that_has_no_answer_is_sent_again_with_its_seq() {
    let mut rig = Rig::new(settings());
    let [write, _] = write_and_read(&mut rig);
    rig.step(Event::Gone(write));
    let (id, Request::Release(first)) = rig.last() else { panic!("the server is not told") };
    rig.refuse(id, RequestError::Unanswered(Fault::Disconnected.into()));
    rig.pass(SECOND / 10);
    let (_, Request::Release(again)) = rig.last() else { panic!("the server is not told again") };
    assert_eq!((again.holds, again.seq), (1, first.seq));
}

fn extend(rig: &mut Rig, guard: CallId, lease: Duration) -> CallId {
    let call = rig.new_call();
    rig.step(Event::Extend { call, guard, lease });
    call
}

#[test]
fn an_extend_counts_from_its_request_and_no_renewal_cuts_it() {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    let call = extend(&mut rig, guard, 10 * LEASE);
    let (id, Request::Renew(renew)) = rig.last() else { panic!("nothing is asked") };
    assert_eq!((renew.lease, renew.only, renew.token), (10 * LEASE, Only::Extend(2), 7));
    rig.answer(id, renewed(10 * LEASE));
    assert!(matches!(rig.outcome(call), Some(Outcome::Extended(Ok(())))));
    // The server stops answering. The leave of the lost hold lasts for as long as the server may keep the hold.
    rig.pass(9 * LEASE);
    assert!(rig.lost.is_empty());
    rig.pass(LEASE);
    assert_eq!(rig.lost, [guard]);
}

/// The seq of the extend would make a copy of the nested call stale, which counts as a loss.
#[test]
fn an_extend_waits_for_the_answer_to_a_nested_call() {
    let mut rig = Rig::new(settings());
    let want = Want { scope: Scope::Owner, ..rig.want("x") };
    let guard = rig.hold_as(want.clone(), 7);
    rig.call(want);
    let (id, Request::Acquire(_)) = rig.last() else { panic!("no nested call") };
    let call = extend(&mut rig, guard, 2 * LEASE);
    assert!(rig.sent.is_empty());
    rig.answer(id, Answer::Acquired(Acquired::Held { token: 7, holds: 2, lease_left: LEASE }));
    let (id, Request::Renew(_)) = rig.last() else { panic!("no extend") };
    rig.refuse(id, RequestError::Refused(Refusal { kind: RefusalKind::Final, cause: Cause::new(Fault::OtherReply) }));
    assert!(matches!(rig.outcome(call), Some(Outcome::Extended(Err(ChangeError::Request(RequestError::Refused(_)))))));
}

/// P8: the next renewal comes only when the holder's own lease needs it. A fixed lease never renews.
#[test]
fn an_extend_does_not_ask_for_less_than_the_lease_that_is_renewed() {
    for (lease, asked) in [(Lease::Renewed(LEASE), LEASE), (Lease::Fixed(LEASE), SECOND)] {
        let mut rig = Rig::new(settings());
        let want = Want { lease, ..rig.want("x") };
        let guard = rig.hold_as(want, 7);
        extend(&mut rig, guard, SECOND);
        assert!(matches!(rig.last().1, Request::Renew(renew) if renew.lease == asked));
    }
}

#[test]
fn an_extend_goes_on_without_a_nested_guard() {
    let mut rig = Rig::new(settings());
    let [write, read] = write_and_read(&mut rig);
    let call = extend(&mut rig, write, 2 * LEASE);
    let (id, _) = rig.last();
    rig.step(Event::Gone(read));
    rig.answer(id, renewed(2 * LEASE));
    assert!(matches!(rig.outcome(call), Some(Outcome::Extended(Ok(())))));
}

#[test]
fn an_extend_that_is_dropped_makes_room_for_the_next_one() {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    let dropped = extend(&mut rig, guard, 2 * LEASE);
    extend(&mut rig, guard, 3 * LEASE);
    assert_eq!(rig.sent.len(), 1);
    rig.step(Event::Gone(dropped));
    assert!(matches!(rig.last().1, Request::Renew(renew) if renew.lease == 3 * LEASE));
}

#[test]
fn an_extend_without_an_answer_says_whether_it_may_have_been_served() {
    for (is_connected, breaks) in [(true, false), (true, true), (false, false)] {
        let mut rig = Rig::new(settings());
        let guard = rig.hold("x", 7);
        if !is_connected {
            rig.disconnect();
        }
        let call = extend(&mut rig, guard, 2 * LEASE);
        if breaks {
            let (id, _) = rig.last();
            rig.refuse(id, RequestError::Unanswered(Fault::Disconnected.into()));
        }
        rig.pass(settings().operation_timeout);
        let Some(Outcome::Extended(Err(ChangeError::Request(error)))) = rig.outcome(call) else { panic!("{breaks}") };
        assert_eq!(matches!(error, RequestError::Unanswered(_)), is_connected);
        assert_eq!(matches!(error, RequestError::NotSent(_)), !is_connected);
    }
}

fn detach(rig: &mut Rig, guard: CallId) -> CallId {
    let call = rig.new_call();
    rig.step(Event::Detach { call, guard, lease: LEASE });
    call
}

/// A detach under way: the guard, the call, and the request.
fn detaching() -> (Rig, CallId, CallId, RequestId, Box<Give>) {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    let call = detach(&mut rig, guard);
    let (id, Request::Give(give)) = rig.last() else { panic!("nothing is given") };
    (rig, guard, call, id, give)
}

#[test]
fn a_hold_that_is_given_to_a_handle_leaves_nothing_to_its_owner() {
    let (mut rig, guard, call, id, give) = detaching();
    assert_eq!((&*give.from, &*give.to, give.token, give.attempt), ("c:1", "c-2:0", 7, 1));
    rig.answer(id, Answer::Gave(Gave::Given { lease_left: LEASE, weight: 0 }));
    let Some(Outcome::Detached(DetachOutcome::Done(handle))) = rig.outcome(call) else { panic!("it has no handle") };
    assert!(handle.is_well_formed() && handle.copies_until == ServerTime::default());
    rig.step(Event::Gone(guard));
    assert!(rig.sent.is_empty() && rig.session.is_idle());
}

/// R3: a copy of the acquire would queue.
#[test]
fn a_detach_leaves_what_a_copy_of_its_acquire_could_still_get() {
    let mut rig = Rig::new(settings());
    let guard = rig.lock("x");
    rig.last();
    rig.pass(3 * SECOND);
    let (id, Request::Acquire(_)) = rig.last() else { panic!("no second acquire") };
    rig.answer(id, rig::held(7, LEASE));
    rig.step(Event::Claimed(guard));
    detach(&mut rig, guard);
    let (id, Request::Give(_)) = rig.last() else { panic!("nothing is given") };
    rig.answer(id, Answer::Gave(Gave::Given { lease_left: LEASE, weight: 0 }));
    assert!(matches!(rig.last().1, Request::Leave(leave) if &*leave.owner == "c:1"));
}

#[test]
fn a_nested_guard_is_not_detached() {
    let mut rig = Rig::new(settings());
    let [write, _] = write_and_read(&mut rig);
    let call = detach(&mut rig, write);
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Detached(DetachOutcome::Refused(ChangeError::Nested(2))))), "{outcome:?}");
    assert!(rig.sent.is_empty());
}

/// R16: the handle has the hold, or the leave ends it. The client sends both requests, and their order does not
/// matter.
#[test]
fn a_detach_that_is_dropped_gives_back_what_the_handle_has() {
    let (mut rig, guard, call, _, give) = detaching();
    rig.step(Event::Gone(call));
    rig.step(Event::Gone(guard));
    let requests: Vec<_> = rig.sent.drain(..).map(|(.., request)| request).collect();
    assert!(requests.iter().any(|it| matches!(it, Request::Leave(leave) if &*leave.owner == "c:1")));
    let is_given_back = |it: &Request| matches!(it, Request::Release(release) if release.owner == give.to && release.is_handle && release.copies_until == give.not_after);
    assert!(requests.iter().any(is_given_back), "{requests:?}");
}

#[test]
fn a_handle_that_was_given_back_leaves_nothing() {
    let (mut rig, guard, call, give, _) = detaching();
    rig.step(Event::Gone(call));
    rig.step(Event::Gone(guard));
    rig.answer(give, Answer::Gave(Gave::Lost));
    for (id, _, request) in std::mem::take(&mut rig.sent) {
        let answer = match request {
            Request::Leave(_) => Answer::Left(fairlock_proto::requests::leave::Left { more: false }),
            Request::Release(_) => rig::freed(7),
            other => panic!("{other:?}"),
        };
        rig.answer(id, answer);
    }
    assert!(rig.session.is_idle(), "{:?}", rig.session.next_timer());
}

#[test]
fn a_detach_that_was_not_sent_leaves_the_guard_as_it_was() {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    rig.disconnect();
    let call = detach(&mut rig, guard);
    assert!(rig.sent.is_empty());
    rig.pass(settings().operation_timeout);
    let outcome = rig.outcome(call);
    let is_not_sent = matches!(
        outcome,
        Some(Outcome::Detached(DetachOutcome::Refused(ChangeError::Request(RequestError::NotSent(_)))))
    );
    assert!(is_not_sent, "{outcome:?}");
    rig.connect(fairlock_proto::event::NodeId(0));
    let (id, Request::Renew(renew)) = rig.last() else { panic!("it is not checked") };
    assert_eq!(renew.token, 7);
    rig.answer(id, renewed(LEASE));
    assert!(rig.lost.is_empty());
}

#[test]
fn a_detach_that_came_too_late_is_asked_again_after_a_pause() {
    let (mut rig, _, call, id, _) = detaching();
    rig.answer(id, Answer::Gave(Gave::Late));
    rig.pass(SECOND / 10);
    assert!(rig.outcome(call).is_none(), "{:?}", rig.outcome(call));
    assert!(matches!(rig.last().1, Request::Give(_)));
}

/// P8: the answer to the renewal under way came during the detach.
#[test]
fn a_hold_is_renewed_again_after_a_detach_that_was_refused() {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    rig.pass(LEASE / 3);
    let (renewal, Request::Renew(_)) = rig.last() else { panic!("it is not renewed") };
    detach(&mut rig, guard);
    rig.answer(renewal, renewed(LEASE));
    let (id, Request::Give(_)) = rig.last() else { panic!("nothing is given") };
    rig.refuse(id, RequestError::Refused(Refusal { kind: RefusalKind::Final, cause: Cause::new(Fault::OtherReply) }));
    assert!(matches!(rig.last().1, Request::Renew(_)));
}

#[test]
fn a_detach_that_was_not_sent_ends_with_its_hold() {
    let mut rig = Rig::new(settings());
    let guard = rig.hold("x", 7);
    rig.disconnect();
    rig.pass(LEASE - SECOND);
    let call = detach(&mut rig, guard);
    assert!(rig.outcome(call).is_none() && rig.lost.is_empty());
    rig.pass(SECOND);
    let outcome = rig.outcome(call);
    let is_lost = matches!(outcome, Some(Outcome::Detached(DetachOutcome::Refused(ChangeError::Lost(Loss::Expired)))));
    assert!(is_lost, "{outcome:?}");
    assert_eq!(rig.lost, [guard]);
}

#[test]
fn a_detach_without_an_answer_names_the_handle_and_the_owner_leaves() {
    let (mut rig, _, call, _, first) = detaching();
    rig.pass(settings().operation_timeout);
    let Some(Outcome::Detached(DetachOutcome::Unanswered(handle, _))) = rig.outcome(call) else { panic!("no handle") };
    assert!(handle.copies_until.0 >= first.not_after && handle.is_undecided(first.not_after));
    assert!(rig.sent.iter().any(|(.., it)| matches!(it, Request::Leave(leave) if leave.seq > first.seq)));
}

/// The message about an earlier hold of the same owner may come late.
#[test]
fn a_detach_whose_hold_is_ended_by_force_is_refused() {
    let (mut rig, _, call, ..) = detaching();
    let connection = fairlock_proto::event::Connection { node: fairlock_proto::event::NodeId(0), number: 1 };
    let revoked = |token| Push::Revoked { token, owner: "c:1", lock: "p:{n:x}" };
    rig.step(Event::Pushed(connection, revoked(6)));
    assert!(rig.outcome(call).is_none());
    rig.step(Event::Pushed(connection, revoked(7)));
    let outcome = rig.outcome(call);
    let is_lost = matches!(outcome, Some(Outcome::Detached(DetachOutcome::Refused(ChangeError::Lost(Loss::Forced)))));
    assert!(is_lost, "{outcome:?}");
}

fn handle(copies_until: i64) -> Handle {
    Handle {
        kind: Kind::Lock,
        name: "x".into(),
        owner: "d-3:0".into(),
        token: 7,
        lease: LEASE,
        copies_until: ServerTime(copies_until),
    }
}

fn attach(rig: &mut Rig, handle: Handle) -> CallId {
    let manner = Manner::Attaches { limit: rig.now + settings().operation_timeout, handle: Arc::new(handle) };
    let want = Want { manner, lease: Lease::Fixed(LEASE), ..rig.want("x") };
    rig.call(want)
}

#[test]
fn what_a_handle_holds_is_taken_up_with_its_weight_and_kept_for_a_lease() {
    let mut rig = Rig::new(settings());
    let call = attach(&mut rig, handle(0));
    let (id, Request::Give(give)) = rig.last() else { panic!("nothing is asked for") };
    assert_eq!((&*give.from, &*give.to, give.token), ("d-3:0", "c:1", 7));
    rig.answer(id, Answer::Gave(Gave::Given { lease_left: LEASE, weight: 4 }));
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted { token: 7, weight: 4, .. })));
    // The caller is slow, and cannot reach the hold in another way.
    rig.pass(LEASE / 2);
    assert!(!rig.told.iter().any(|(_, outcome)| matches!(outcome, Outcome::PassedOver)));
}

#[test]
fn an_attach_asks_again_while_the_detach_may_still_be_served() {
    let mut rig = Rig::new(settings());
    let undecided = rig.server_micros() / 1000 + 1_000;
    let call = attach(&mut rig, handle(undecided));
    let (id, _) = rig.last();
    rig.answer(id, Answer::Gave(Gave::Lost));
    assert!(rig.outcome(call).is_none());
    rig.pass(SECOND + SECOND / 10);
    let (id, Request::Give(_)) = rig.last() else { panic!("it does not ask again") };
    rig.answer(id, Answer::Gave(Gave::Lost));
    assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Lost))));
}

/// Until then the handle may still get the hold, so the answer `lost` proves nothing.
#[test]
fn an_extend_by_handle_asks_again_while_the_detach_may_still_be_served() {
    let mut rig = Rig::new(settings());
    let undecided = rig.server_micros() / 1000 + 1_000;
    let call = ask(&mut rig, Question::Extend { handle: handle(undecided), lease: LEASE });
    let (id, Request::Renew(_)) = rig.last() else { panic!("nothing is asked") };
    rig.answer(id, Answer::Renewed(Renewed::Lost));
    assert!(rig.outcome(call).is_none());
    rig.pass(SECOND + SECOND / 10);
    let (id, Request::Renew(_)) = rig.last() else { panic!("it does not ask again") };
    rig.answer(id, Answer::Renewed(Renewed::Lost));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Nothing)))));
}

#[test]
fn an_owner_that_has_the_lock_attaches_nothing() {
    let mut rig = Rig::new(settings());
    let want = Want { scope: Scope::Owner, ..rig.want("x") };
    rig.hold_as(want.clone(), 7);
    let manner = Manner::Attaches { limit: rig.now + SECOND, handle: Arc::new(handle(0)) };
    let call = rig.call(Want { manner, ..want });
    assert!(matches!(rig.outcome(call), Some(Outcome::Busy(None))) && rig.sent.is_empty());
}

fn ask(rig: &mut Rig, question: Question) -> CallId {
    let call = rig.new_call();
    rig.step(Event::Ask(call, Arc::new(Keys::new("p", "x")), question));
    call
}

/// Decision 6: a second run could end the next owner's hold.
#[test]
fn a_forced_unlock_is_sent_once_unless_it_came_too_late() {
    let mut rig = Rig::new(settings());
    let call = ask(&mut rig, Question::ForceUnlock { expected: None });
    let (id, Request::ForceUnlock(_)) = rig.last() else { panic!("nothing is sent") };
    rig.answer(id, Answer::Forced(ForceUnlocked::Late));
    rig.pass(SECOND / 10);
    let (id, Request::ForceUnlock(_)) = rig.last() else { panic!("it did nothing, and may be sent again") };
    rig.answer(id, Answer::Forced(ForceUnlocked::Freed { more: true }));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Done)))));
    assert!(matches!(rig.last().1, Request::Poll(_)), "others come in");
    let call = ask(&mut rig, Question::ForceUnlock { expected: Some(7) });
    let (id, _) = rig.last();
    rig.refuse(id, RequestError::Unanswered(Fault::Disconnected.into()));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Err(RequestError::Unanswered(_))))));
    rig.pass(SECOND);
    assert!(rig.sent.is_empty());
}

/// The queue may begin with more dead places than one run of a script looks at.
#[test]
fn a_question_that_finds_a_lock_free_has_others_come_in() {
    for (question, answer) in [
        (Question::ForceUnlock { expected: None }, Answer::Forced(ForceUnlocked::Free { more: true })),
        (Question::Release { handle: handle(0) }, Answer::Released(Released::Gone { more: true })),
    ] {
        let mut rig = Rig::new(settings());
        let call = ask(&mut rig, question);
        let (id, _) = rig.last();
        rig.answer(id, answer);
        assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Nothing)))));
        assert!(matches!(rig.last().1, Request::Poll(_)));
    }
}

#[test]
fn a_new_limit_that_makes_room_has_others_come_in() {
    let mut rig = Rig::new(settings());
    for more in [false, true] {
        let call = ask(&mut rig, Question::SetLimit { limit: Some(9) });
        let (id, Request::SetLimit(_)) = rig.last() else { panic!("nothing is sent") };
        rig.answer(id, Answer::LimitSet(LimitSet::Set { more }));
        assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Done)))));
        assert_eq!(rig.sent.iter().filter(|(.., it)| matches!(it, Request::Poll(_))).count(), usize::from(more));
    }
}

/// P5: no one else can give it back.
#[test]
fn a_handle_that_nobody_has_read_of_is_given_back() {
    let mut rig = Rig::new(settings());
    rig.step(Event::Unread(Box::new(handle(0))));
    assert!(matches!(rig.last().1, Request::Release(release) if release.is_handle && &*release.owner == "d-3:0"));
}

#[test]
fn a_release_by_handle_is_repeated_and_counts_a_copy_that_may_have_been_served() {
    let mut rig = Rig::new(settings());
    for not_there in [Released::Gone { more: false }, Released::Lost] {
        let call = ask(&mut rig, Question::Release { handle: handle(0) });
        let (id, _) = rig.last();
        rig.refuse(id, RequestError::Unanswered(Fault::Disconnected.into()));
        rig.pass(SECOND / 10);
        let (id, Request::Release(release)) = rig.last() else { panic!("it is not repeated") };
        assert!(release.is_handle && release.seq == 1);
        rig.answer(id, Answer::Released(not_there));
        assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Done)))), "{not_there:?}");
    }
    let call = ask(&mut rig, Question::Release { handle: handle(0) });
    let (id, _) = rig.last();
    rig.answer(id, Answer::Released(Released::Lost));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Nothing)))));
}

/// The questions of a quorum to each of its servers.
#[test]
fn a_raise_names_its_hold_and_a_probe_waits_for_nothing() {
    let mut rig = Rig::new(settings());
    for (raised, is_done) in [(Raised::Raised, true), (Raised::Lost, false)] {
        let call = ask(&mut rig, Question::Raise { owner: "c:1".into(), token: 7, floor: 9 });
        let (id, Request::Raise(Raise { owner, token: 7, floor: 9, .. })) = rig.last() else { panic!("it is sent") };
        assert_eq!(&*owner, "c:1");
        rig.answer(id, Answer::Raised(raised));
        let Some(Outcome::Answered(Ok(finding))) = rig.outcome(call) else { panic!("it is answered") };
        assert_eq!(matches!(finding, Finding::Done), is_done);
    }
    let call = ask(&mut rig, Question::Probe);
    let (id, Request::Poll(Poll { waits: false, tickets, .. })) = rig.last() else { panic!("it is sent") };
    assert!(tickets.is_empty());
    rig.refuse(id, RequestError::Unanswered(Fault::NoAnswerYet.into()));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Err(_)))), "it is asked once");
}

#[test]
fn what_is_asked_has_an_answer_in_time_and_none_of_a_closed_client() {
    let mut rig = Rig::new(Settings { in_flight: 1, ..settings() });
    rig.disconnect();
    let call = ask(&mut rig, Question::Inspect { most: 1 });
    rig.pass(settings().operation_timeout);
    let Some(Outcome::Answered(Err(RequestError::NotSent(cause)))) = rig.outcome(call) else { panic!("no answer") };
    assert_eq!(cause.0.to_string(), Fault::Disconnected.to_string());
    let waiting = ask(&mut rig, Question::Inspect { most: 1 });
    let dropped = ask(&mut rig, Question::Inspect { most: 1 });
    rig.step(Event::Gone(dropped));
    rig.step(Event::Close);
    let refused = ask(&mut rig, Question::Inspect { most: 1 });
    for call in [waiting, refused] {
        assert!(matches!(rig.outcome(call), Some(Outcome::Failed(CallError::Closed))));
    }
    assert!(rig.outcome(dropped).is_none());
}

#[test]
fn what_a_refusing_server_does_not_answer_in_time_says_why_it_refuses() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, _) = rig.last();
    let refusal = Refusal { kind: RefusalKind::ServerForNow, cause: Cause::new(Fault::OtherReply) };
    rig.refuse(id, RequestError::Refused(refusal));
    let call = ask(&mut rig, Question::SetLimit { limit: None });
    rig.pass(settings().operation_timeout);
    let Some(Outcome::Answered(Err(error))) = rig.outcome(call) else { panic!("no answer") };
    assert_eq!(error.clone().into_cause().0.to_string(), Fault::OtherReply.to_string());
}

/// `status` only reads, so an operator sees what a refusing server keeps.
#[test]
fn a_question_that_changes_nothing_is_asked_at_a_closed_gate_and_does_not_open_it() {
    let mut rig = Rig::new(settings());
    rig.lock("x");
    let (id, _) = rig.last();
    let refusal = Refusal { kind: RefusalKind::ServerForNow, cause: Cause::new(Fault::OtherReply) };
    rig.refuse(id, RequestError::Refused(refusal));
    rig.lock("y");
    assert!(rig.sent.is_empty(), "the gate is closed");
    let notes = rig.notes.len();
    let call = ask(&mut rig, Question::Inspect { most: 1 });
    let (id, Request::Inspect(_)) = rig.last() else { panic!("it waits") };
    let inspected = Inspected {
        holders: Vec::new(),
        holding: 0,
        used: 0,
        set_limit: None,
        waiters: 0,
        frozen_for: None,
        queue: Vec::new(),
    };
    rig.answer(id, Answer::Inspected(Box::new(inspected)));
    assert!(matches!(rig.outcome(call), Some(Outcome::Answered(Ok(Finding::Inspected { .. })))));
    assert!(rig.sent.is_empty() && rig.notes.len() == notes, "the gate is closed as before");
}

/// `is_warned(has, weight)`: of three permits the task has `has`, and waits for `weight`.
#[test]
fn a_task_that_waits_for_permits_beside_its_own_is_warned_of_only_if_they_cannot_come() {
    let is_warned = |has, weight| {
        let mut rig = Rig::new(settings());
        let want = share(&mut rig, Kind::Semaphore, Share { weight: has, limit: 3 });
        rig.hold_as(want, 7);
        rig.now = rig.now + Duration::from_millis(1);
        let want = share(&mut rig, Kind::Semaphore, Share { weight, limit: 3 });
        rig.call(want);
        let (id, _) = rig.last();
        rig.answer(id, rig::queued(7));
        for _ in 0..40 {
            rig.pass(SECOND);
            for (id, _, request) in std::mem::take(&mut rig.sent) {
                let Request::Poll(_) = request else {
                    rig.answer(id, renewed(LEASE));
                    continue;
                };
                let (more, known, places, first, holder, held_by) = (false, true, 1, true, None, None);
                let (granted, room_in, frozen_for, floor, missing) = (Vec::new(), Some(LEASE), None, 7, Vec::new());
                let polled = Polled {
                    more,
                    known,
                    places,
                    first,
                    holder,
                    held_by,
                    granted,
                    room_in,
                    frozen_for,
                    floor,
                    missing,
                };
                rig.answer(id, Answer::Polled(Box::new(polled)));
            }
        }
        rig.notes.iter().any(|note| matches!(note, fairlock_proto::effect::Note::WaitsForItself(_)))
    };
    assert!(!is_warned(2, 1) && is_warned(2, 2) && is_warned(1, 3));
}
