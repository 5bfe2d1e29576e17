//! Permits that outlive a `Permit`: the same as for locks (handles.rs), next to other holders of the same semaphore.

use std::time::Duration;

use fairlock::simulation::Delivery;
use fairlock::{
    DetachError, Ended, FairSemaphore, HandleError, HoldError, HoldHandle, Kind, LockClient, Loss, OptionsError, Owner,
    ParseHandleError, Permit, UnlockError,
};
use futures::FutureExt;
use tokio::time::{sleep, timeout};

use crate::handles::{LEASE, SECOND, SERVED_UNHEARD, close, hex, is_lost, two, unheard, with_gives, with_part};
use crate::support::{eventually, in_virtual_time, on_each_store};

fn gate(client: &LockClient) -> FairSemaphore {
    client.semaphore("gate", 3)
}

/// Acquires two of three permits.
async fn two_of(client: &LockClient) -> Permit {
    gate(client).acquire_many(2).await.unwrap()
}

async fn detached(client: &LockClient) -> HoldHandle {
    two_of(client).await.detach(LEASE).await.unwrap()
}

async fn used(client: &LockClient) -> u64 {
    gate(client).status().await.unwrap().used
}

#[tokio::test]
async fn permits_go_from_process_to_process_with_their_weight() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let beside = gate(&other).acquire().await.unwrap();
        let permit = gate(&one).labelled("step 1").acquire_many(2).await.unwrap();
        let (token, view) = (permit.token(), permit.held());
        let handle = permit.detach(LEASE).await.unwrap();
        assert_eq!(
            (handle.kind(), handle.name(), handle.token(), handle.lease()),
            (Kind::Semaphore, "gate", token, LEASE)
        );
        assert!(!view.is_valid() && view.ended_token().is_cancelled());
        assert_eq!(view.ended().await, Ended::Detached);
        let holder = gate(&one).status().await.unwrap().holders.remove(1);
        assert_eq!((holder.token, holder.weight, &*holder.label), (token, 2, "step 1"));
        assert!(holder.lease_left > LEASE - 20 * SECOND && holder.lease_left <= LEASE);
        assert!(gate(&other).try_acquire().await.unwrap().is_busy());
        // The handle outlives its client.
        one.close().await.unwrap();
        let permit = other.attach_permit(&handle.to_string().parse().unwrap()).await.unwrap();
        assert_eq!((permit.token(), permit.weight(), permit.name()), (token, 2, "gate"));
        assert!(permit.is_valid() && permit.valid_for() < 31 * SECOND);
        let status = gate(&other).status().await.unwrap();
        assert_eq!((status.used, status.holding, status.named_permits), (3, 2, vec![3]));
        let holder = &status.holders[1];
        assert!(holder.owner == permit.owner_id() && holder.lease_left <= 30 * SECOND && holder.label != "step 1");
        permit.shrink_to(1).await.unwrap();
        assert_eq!(used(&other).await, 2);
        permit.release().await.unwrap();
        assert_eq!(used(&other).await, 1);
        beside.release().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

/// A shrunken permit is detached with its present weight. A client that names another number of permits attaches it.
#[tokio::test]
async fn what_was_given_back_before_does_not_come_back() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let permit = gate(&one).acquire_many(3).await.unwrap();
        permit.shrink_to(2).await.unwrap();
        let handle = permit.detach(LEASE).await.unwrap();
        let permit = other.attach_permit(&handle).await.unwrap();
        assert_eq!((permit.weight(), used(&one).await), (2, 2));
        let handle = permit.detach(LEASE).await.unwrap();
        assert_eq!(used(&one).await, 2);
        one.release(&handle).await.unwrap();
        assert_eq!(used(&one).await, 0);
        close([one, other]).await;
    })
    .await;
}

/// The detach came before the shrink in the owner's line, and the handle had all three permits.
#[tokio::test]
async fn what_was_given_back_by_a_dropped_call_does_not_come_back() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let permit = gate(&one).acquire_many(3).await.unwrap();
        assert!(permit.shrink_to(1).now_or_never().is_none());
        let handle = permit.detach(LEASE).await.unwrap();
        assert_eq!(used(&other).await, 1);
        let permit = other.attach_permit(&handle).await.unwrap();
        assert_eq!(permit.weight(), 1);
        permit.release().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_attached_is_renewed_and_passed_on() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let permit = other.attach_permit(&detached(&one).await).await.unwrap();
        let waits = gate(&one);
        let waiting = tokio::spawn(async move { waits.acquire_many(2).await.unwrap() });
        sleep(3600 * SECOND).await;
        assert!(permit.is_valid() && !waiting.is_finished());
        permit.release().await.unwrap();
        timeout(SECOND, waiting).await.unwrap().unwrap().release().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// The process with the handle dies before anybody attaches it. Its lease ends, and the next waiter gets the permits.
#[tokio::test]
async fn a_handle_that_nobody_uses_ends_with_its_lease() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let beside = gate(&other).acquire().await.unwrap();
        let handle = two_of(&one).await.detach(10 * SECOND).await.unwrap();
        store.network.cut_off(one.id());
        assert!(timeout(9 * SECOND, gate(&other).acquire_many(2)).await.is_err());
        let next = timeout(2 * SECOND, gate(&other).acquire_many(2)).await.unwrap().unwrap();
        // Too late.
        assert!(is_lost(other.attach_permit(&handle).await));
        assert!(matches!(other.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert!(matches!(other.release(&handle).await, Err(HandleError::Lost)));
        assert!(next.is_valid() && beside.is_valid() && used(&other).await == 3);
        drop((next, beside));
        store.network.mend(one.id());
        close([one, other]).await;
    })
    .await;
}

/// The lease has ended, and nobody has taken the permits. The server still counts them, but the handle holds nothing.
#[tokio::test]
async fn a_lease_that_is_over_is_not_attached() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let beside = gate(&other).acquire().await.unwrap();
        let handle = two_of(&one).await.detach(10 * SECOND).await.unwrap();
        sleep(11 * SECOND).await;
        assert!(is_lost(other.attach_permit(&handle).await));
        assert!(matches!(other.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert_eq!(gate(&other).acquire_many(2).await.unwrap().weight(), 2);
        drop(beside);
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn attaching_twice_or_after_a_release_or_a_revocation_is_lost() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let beside = gate(&other).acquire().await.unwrap();
        let handle = detached(&one).await;
        let permit = one.attach_permit(&handle).await.unwrap();
        assert!(is_lost(other.attach_permit(&handle).await) && is_lost(one.attach_permit(&handle).await));
        assert!(permit.is_valid());
        permit.release().await.unwrap();
        assert!(is_lost(one.attach_permit(&handle).await));

        let handle = detached(&one).await;
        other.release(&handle).await.unwrap();
        assert!(is_lost(one.attach_permit(&handle).await));
        assert!(matches!(one.release(&handle).await, Err(HandleError::Lost)));

        let handle = detached(&one).await;
        assert!(gate(&other).force_unlock_token(handle.token()).await.unwrap());
        assert!(is_lost(one.attach_permit(&handle).await));
        assert!(matches!(one.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert_eq!(used(&one).await, 1);
        assert!(beside.is_valid());
        drop(beside);
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn of_many_that_attach_at_once_one_gets_it() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = detached(&one).await;
        let of = |number| if number % 2 == 0 { &one } else { &other };
        let attaching = (0..20).map(|number| of(number).attach_permit(&handle));
        let outcomes = futures::future::join_all(attaching).await;
        let permits: Vec<_> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!((permits.len(), used(&one).await), (1, 2));
        drop(permits);
        close([one, other]).await;
    })
    .await;
}

/// Even if the waiter wants more than one permit, it gets them at once.
#[tokio::test]
async fn a_handle_is_extended_and_released_by_anybody_and_stays_usable() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let beside = gate(&one).acquire().await.unwrap();
        let handle = two_of(&one).await.detach(60 * SECOND).await.unwrap();
        other.extend(&handle, LEASE).await.unwrap();
        other.extend(&handle, 10 * SECOND).await.unwrap();
        let left = gate(&one).status().await.unwrap().holders[1].lease_left;
        assert!(left > LEASE - 20 * SECOND, "never shorter: {left:?}");
        let waits = gate(&other);
        let waiting = tokio::spawn(async move { waits.acquire_many(2).await.unwrap() });
        eventually("it waits", async || gate(&one).status().await.unwrap().waiters == 1).await;
        one.release(&handle).await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        beside.release().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// Even in a scope, each permit has its own owner.
#[tokio::test]
async fn an_owner_attaches_as_many_as_it_likes() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let me = Owner::new();
        let attach = async |weight| {
            let permit = me.scope(gate(&client).acquire_many(weight)).await.unwrap();
            let handle = permit.detach(LEASE).await.unwrap();
            me.scope(client.attach_permit(&handle)).await.unwrap()
        };
        let (one, other) = (attach(1).await, attach(2).await);
        assert!(one.is_valid() && other.is_valid() && used(&client).await == 3);
        drop((one, other));
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_handle_of_another_kind_is_named_and_stays_usable() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let of_permits = detached(&one).await;
        let of_lock = one.lock("lock").lock().await.unwrap().detach(LEASE).await.unwrap();
        let Err(HandleError::OtherKind { is, asked, .. }) = other.attach(&of_permits).await else { panic!() };
        assert_eq!((is, asked), (Kind::Semaphore, Kind::Lock));
        let error = other.attach_permit(&of_lock).await.unwrap_err();
        assert_eq!(error.to_string(), "this is a handle of a lock, not of a semaphore");
        let Err(HandleError::Lost) = other.release(&with_kind(&of_permits, "lock")).await else { panic!() };
        let Err(HandleError::Lost) = other.extend(&with_kind(&of_permits, "lock"), LEASE).await else { panic!() };
        assert!(is_lost(other.attach(&with_kind(&of_permits, "lock")).await));
        let Err(HandleError::Lost) = other.release(&with_kind(&of_lock, "semaphore")).await else { panic!() };
        let Err(HandleError::Lost) = other.extend(&with_kind(&of_lock, "semaphore"), LEASE).await else { panic!() };
        assert!(is_lost(other.attach_permit(&with_kind(&of_lock, "semaphore")).await));
        other.release(&of_permits).await.unwrap();
        other.release(&of_lock).await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// Changes a handle by force, so that it names another kind.
fn with_kind(handle: &HoldHandle, kind: &str) -> HoldHandle {
    with_part(&handle.to_string(), 7, kind).parse().unwrap()
}

/// The name is a lock by now.
#[tokio::test]
async fn a_handle_whose_name_is_of_another_kind_by_now_is_lost() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = detached(&one).await;
        one.release(&handle).await.unwrap();
        let guard = one.lock("gate").lock().await.unwrap();
        assert!(is_lost(other.attach_permit(&handle).await));
        assert!(matches!(other.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert!(matches!(other.release(&handle).await, Err(HandleError::Lost)));
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// Changes each part of the text.
#[tokio::test]
async fn a_handle_that_was_changed_is_refused_or_lost() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let handle = detached(&client).await;
        let text = handle.to_string();
        assert!(text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_'), "{text}");
        for index in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[index] = if changed[index] == b'7' { b'8' } else { b'7' };
            assert!(String::from_utf8(changed).unwrap().parse::<HoldHandle>().is_err());
            assert!(text[..index].parse::<HoldHandle>().is_err());
        }
        let less = (handle.token() - 1).to_string();
        for (index, change) in [(1, &*hex("y")), (2, &hex("y")), (3, &hex("c-1:0")), (4, &less), (4, "0")] {
            let changed: HoldHandle = with_part(&text, index, change).parse().unwrap();
            assert!(client.attach_permit(&changed).await.is_err(), "{changed:?}");
            assert!(client.extend(&changed, LEASE).await.is_err(), "{changed:?}");
            assert!(client.release(&changed).await.is_err(), "{changed:?}");
        }
        for (index, change) in [(3, &*hex("c-1:1")), (7, ""), (7, "rw_lock"), (7, "gate"), (7, "Semaphore"), (6, "-1")]
        {
            let changed = with_part(&text, index, change).parse::<HoldHandle>();
            assert_eq!(changed, Err(ParseHandleError::Malformed), "{index} {change}");
        }
        assert_eq!(used(&client).await, 2);
        client.release(&handle).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// `status` shows the holders of permits and their tokens. Nobody can make a handle from that.
#[tokio::test]
async fn what_status_says_of_a_permit_is_no_handle() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let handle = gate(&other).acquire().await.unwrap().detach(LEASE).await.unwrap();
        let permit = two_of(&one).await;
        let (owner, token) = (hex(permit.owner_id()), permit.token().to_string());
        let forged = with_part(&with_part(&handle.to_string(), 3, &owner), 4, &token);
        assert_eq!(forged.parse::<HoldHandle>(), Err(ParseHandleError::Malformed));
        assert!(permit.is_valid());
        permit.release().await.unwrap();
        one.release(&handle).await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn what_does_not_fit_or_is_lost_returns_the_permit() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let Err(DetachError::Refused { guard, reason, .. }) = two_of(&client).await.detach(SECOND).await else {
            panic!()
        };
        assert!(matches!(reason, HoldError::Lease(OptionsError::TooShort { .. })), "{reason}");
        sleep(300 * SECOND).await;
        assert!(guard.is_valid() && guard.weight() == 2, "it is renewed as before");
        assert!(gate(&client).force_unlock_token(guard.token()).await.unwrap());
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Forced)), "{reason}");
        assert!(matches!(guard.release().await, Err(UnlockError::Lost(Loss::Forced))));
        // Now without the message.
        store.network.lose_messages(true);
        let permit = two_of(&client).await;
        gate(&client).force_unlock_token(permit.token()).await.unwrap();
        let Err(DetachError::Refused { reason, .. }) = permit.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Gone)), "{reason}");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_detach_and_an_attach_whose_answers_are_lost_are_repeated() {
    with_gives(async |gives, [one, other], _| {
        let permit = two_of(&one).await;
        gives.next_of("shared/give", vec![SERVED_UNHEARD, Delivery::AT_ONCE]);
        let handle = permit.detach(LEASE).await.unwrap();
        gives.next_of("shared/give", vec![SERVED_UNHEARD, Delivery::AT_ONCE]);
        let permit = other.attach_permit(&handle).await.unwrap();
        assert_eq!((permit.weight(), used(&one).await), (2, 2));
        permit.release().await.unwrap();
        assert_eq!(used(&one).await, 0);
        close([one, other]).await;
    })
    .await;
}

/// With or without the detach at the server, either the handle has the permits or nobody does.
#[tokio::test]
async fn an_unanswered_detach_returns_the_handle() {
    with_gives(async |gives, [one, other], _| {
        let permit = two_of(&one).await;
        unheard("shared/give", 20, gives);
        let Err(DetachError::Unanswered { handle, .. }) = permit.detach(LEASE).await else { panic!() };
        gives.clear();
        sleep(100 * SECOND).await;
        let permit = other.attach_permit(&handle).await.unwrap();
        assert_eq!(permit.weight(), 2);

        (0..20).for_each(|_| gives.next_of("shared/give", Vec::new()));
        let Err(DetachError::Unanswered { handle, .. }) = permit.detach(LEASE).await else { panic!() };
        gives.clear();
        eventually("they are free", async || used(&one).await == 0).await;
        assert!(is_lost(other.attach_permit(&handle).await));
        close([one, other]).await;
    })
    .await;
}

/// A copy of the detach arrives after somebody released the handle (R16).
#[tokio::test]
async fn what_was_released_by_its_handle_does_not_come_back() {
    with_gives(async |gives, [one, other], _| {
        let permit = two_of(&one).await;
        // The server runs it after the caller gave up, and before the owner's leave could arrive.
        let late = || vec![Delivery { request: Duration::from_millis(2010), reply: None }];
        (0..20).for_each(|_| gives.next_of("shared/give", late()));
        let Err(DetachError::Unanswered { handle, .. }) = permit.detach(LEASE).await else { panic!() };
        gives.clear();
        let _ = other.release(&handle).await;
        sleep(5 * SECOND).await;
        assert_eq!(used(&one).await, 0);
        close([one, other]).await;
    })
    .await;
}

/// If a caller drops a detach half-way, the client gives the permits back. If it drops an attach, the client releases
/// what it may have attached.
#[tokio::test]
async fn what_is_dropped_half_way_leaves_nothing_behind() {
    with_gives(async |gives, [one, other], _| {
        for served in [true, false] {
            let deliveries = || if served { vec![SERVED_UNHEARD] } else { Vec::new() };
            let permit = two_of(&one).await;
            gives.next_of("shared/give", deliveries());
            assert!(timeout(SECOND, permit.detach(LEASE)).await.is_err());
            eventually("they are free", async || used(&one).await == 0).await;
            let handle = detached(&one).await;
            gives.next_of("shared/give", deliveries());
            assert!(timeout(SECOND, other.attach_permit(&handle)).await.is_err());
            sleep(10 * SECOND).await;
            // If the server did not run it, the handle is as before.
            assert_eq!(used(&one).await, if served { 0 } else { 2 });
            assert_eq!(one.release(&handle).await.is_ok(), !served);
        }
        close([one, other]).await;
    })
    .await;
}

/// A renewal or a leave of the former client arrives when the handle is attached.
#[tokio::test]
async fn what_comes_late_of_the_client_that_had_permits_does_not_touch_them() {
    for late in ["shared/renew", "shared/leave"] {
        with_gives(async |gives, [one, other], _| {
            let permit = two_of(&one).await;
            if late == "shared/leave" {
                let waits = gate(&one);
                tokio::spawn(async move { drop(timeout(SECOND, waits.acquire_many(3)).await) });
            }
            gives.next_of(late, vec![Delivery { request: 2 * SECOND, reply: Some(2 * SECOND) }]);
            eventually("it is under way", async || gives.is_empty()).await;
            let handle = permit.detach(LEASE).await.unwrap();
            let permit = other.attach_permit(&handle).await.unwrap();
            sleep(5 * SECOND).await;
            assert!(permit.is_valid() && permit.token() == handle.token(), "{late}");
            sleep(LEASE).await;
            assert!(permit.is_valid() && used(&one).await == 2, "{late}");
            permit.release().await.unwrap();
            close([one, other]).await;
        })
        .await;
    }
}

/// P10: no client could leave for a handle.
#[tokio::test]
async fn a_handle_whose_lease_is_over_has_nothing() {
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder()).await;
        let handle = two_of(&client).await.detach(2 * SECOND).await.unwrap();
        let beside = gate(&client).acquire().await.unwrap();
        sleep(2 * SECOND).await;
        assert!(matches!(client.release(&handle).await, Err(HandleError::Lost)), "its lease is over");
        assert_eq!(used(&client).await, 1);
        beside.release().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}
