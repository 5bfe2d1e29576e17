//! Holds that outlive a guard: detached to a handle, then extended, released or attached through it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::simulation::{self, Delivery, Faults, Ran};
use fairlock::{
    DetachError, EmbeddedServer, Ended, FairLock, HandleError, HoldError, HoldHandle, LockClient, LockGuard, Loss,
    OptionsError, Owner, ParseHandleError, RequestError, UnlockError, Unlocked, owner,
};
use futures::FutureExt;
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Embedded, Server, Store, Timing, eventually, in_virtual_time, limit, on_each_store, on_several_in_virtual_time,
    virtually,
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const LEASE: Duration = Duration::from_secs(600);

async fn held(client: &LockClient) -> LockGuard {
    client.lock("x").lock().await.unwrap()
}

async fn detached(client: &LockClient) -> HoldHandle {
    held(client).await.detach(LEASE).await.unwrap()
}

async fn is_held(client: &LockClient) -> bool {
    client.lock("x").is_locked().await.unwrap()
}

pub async fn two(store: &Store) -> [LockClient; 2] {
    [store.open(LockClient::builder()).await, store.open(LockClient::builder()).await]
}

pub async fn close(clients: [LockClient; 2]) {
    for client in clients {
        client.close().await.unwrap();
    }
}

pub fn is_lost<T: std::fmt::Debug>(outcome: Result<T, HandleError>) -> bool {
    matches!(outcome, Err(HandleError::Lost))
}

#[tokio::test]
async fn a_hold_goes_from_process_to_process_under_one_token() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let guard = one.lock("x").labelled("step 1").lock().await.unwrap();
        let (token, view) = (guard.token(), guard.held());
        let handle = guard.detach(LEASE).await.unwrap();
        assert_eq!((handle.name(), handle.token(), handle.lease()), ("x", token, LEASE));
        assert!(!view.is_valid() && view.ended_token().is_cancelled());
        assert_eq!(view.ended().await, Ended::Detached);
        let holder = one.lock("x").status().await.unwrap().holder.unwrap();
        assert_eq!((holder.token, &*holder.label), (token, "step 1"));
        assert!(holder.lease_left > LEASE - 20 * SECOND && holder.lease_left <= LEASE);
        assert!(other.lock("x").try_lock().await.unwrap().is_busy());
        // The hold outlives its client.
        one.close().await.unwrap();
        let guard = other.attach(&handle.to_string().parse().unwrap()).await.unwrap();
        assert_eq!((guard.token(), guard.holds(), guard.name()), (token, 1, "x"));
        assert!(guard.is_valid() && guard.valid_for() < 31 * SECOND);
        let holder = other.lock("x").status().await.unwrap().holder.unwrap();
        assert!(holder.owner == guard.owner_id() && holder.lease_left <= 30 * SECOND && holder.label != "step 1");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        assert!(other.lock("x").lock().await.unwrap().token() > token);
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_attached_hold_is_renewed_and_passed_on() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let guard = other.attach(&detached(&one).await).await.unwrap();
        let lock = one.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        sleep(3600 * SECOND).await;
        assert!(guard.is_valid() && !waiting.is_finished());
        let token = guard.token();
        guard.unlock().await.unwrap();
        let next = timeout(SECOND, waiting).await.unwrap().unwrap();
        assert!(next.token() > token);
        drop(next);
        close([one, other]).await;
    })
    .await;
}

/// Nobody renews a handle's hold: its lock becomes free when the lease ends, and not later.
#[tokio::test]
async fn a_handle_that_nobody_uses_ends_with_its_lease() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let handle = held(&one).await.detach(10 * SECOND).await.unwrap();
        assert!(timeout(9 * SECOND, other.lock("x").lock()).await.is_err());
        let next = timeout(2 * SECOND, other.lock("x").lock()).await.unwrap().unwrap();
        // Too late for the handle.
        assert!(is_lost(one.attach(&handle).await));
        assert!(matches!(one.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert!(matches!(one.release(&handle).await, Err(HandleError::Lost)));
        assert!(next.is_valid() && next.token() > handle.token());
        drop(next);
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn attaching_twice_or_after_a_release_or_a_force_unlock_is_lost() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = detached(&one).await;
        let guard = one.attach(&handle).await.unwrap();
        assert!(is_lost(other.attach(&handle).await) && is_lost(one.attach(&handle).await));
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        assert!(is_lost(one.attach(&handle).await));

        let handle = detached(&one).await;
        other.release(&handle).await.unwrap();
        assert!(is_lost(one.attach(&handle).await));
        assert!(matches!(one.release(&handle).await, Err(HandleError::Lost)));

        let handle = detached(&one).await;
        assert!(other.lock("x").force_unlock_token(handle.token()).await.unwrap());
        assert!(is_lost(one.attach(&handle).await));
        assert!(matches!(one.extend(&handle, LEASE).await, Err(HandleError::Lost)));
        assert!(!is_held(&one).await);
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn of_many_that_attach_at_once_one_gets_it() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = detached(&one).await;
        let attaching = (0..20).map(|number| if number % 2 == 0 { one.attach(&handle) } else { other.attach(&handle) });
        let outcomes = futures::future::join_all(attaching).await;
        let guards: Vec<_> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(guards.len(), 1);
        drop(guards);
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn a_handle_is_extended_and_released_by_anybody_and_stays_usable() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = held(&one).await.detach(60 * SECOND).await.unwrap();
        other.extend(&handle, LEASE).await.unwrap();
        other.extend(&handle, 10 * SECOND).await.unwrap();
        let left = one.lock("x").status().await.unwrap().holder.unwrap().lease_left;
        assert!(left > LEASE - 20 * SECOND, "never shorter: {left:?}");
        let lock = other.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        eventually("it waits", async || one.lock("x").status().await.unwrap().waiters == 1).await;
        one.release(&handle).await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_nested_is_refused_by_name_and_the_guard_is_as_before() {
    on_each_store(async |store| {
        let [one, other] = two(store).await;
        let handle = owner::scope(async {
            let (outer, inner) = (held(&one).await, held(&one).await);
            let Err(DetachError::Refused { guard, reason, .. }) = outer.detach(LEASE).await else { panic!() };
            assert!(matches!(reason, HoldError::Nested(2)), "{reason}");
            assert!(guard.is_valid() && guard.holds() == 2);
            assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
            guard.detach(LEASE).await.unwrap()
        })
        .await;
        // After an attach in a scope, the owner's calls nest again.
        let me = Owner::new();
        let outer = me.scope(other.attach(&handle)).await.unwrap();
        let inner = me.scope(held(&other)).await;
        assert_eq!((inner.token(), inner.holds()), (handle.token(), 2));
        assert!(matches!(me.scope(other.attach(&handle)).await, Err(HandleError::OwnerBusy)));
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_waits_for_the_name_is_refused() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let handle = detached(&one).await;
        let (me, lock) = (Owner::new(), other.lock("x"));
        let waiting = tokio::spawn(me.scope(async move { lock.lock().await.unwrap() }));
        eventually("it waits", async || one.lock("x").status().await.unwrap().waiters == 1).await;
        assert!(matches!(me.scope(other.attach(&handle)).await, Err(HandleError::OwnerBusy)));
        one.release(&handle).await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_does_not_fit_costs_nothing() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = held(&client).await;
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(SECOND).await else { panic!() };
        assert!(matches!(reason, HoldError::Lease(OptionsError::TooShort { .. })), "{reason}");
        sleep(300 * SECOND).await;
        assert!(guard.is_valid(), "it is renewed as before");
        let handle = guard.detach(LEASE).await.unwrap();
        assert!(matches!(client.extend(&handle, SECOND).await, Err(HandleError::Lease(_))));
        client.release(&handle).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn another_prefix_is_named_and_another_server_is_lost() {
    in_virtual_time(async |store| {
        let (one, elsewhere) = (store.open(LockClient::builder()).await, Embedded::new());
        let other = elsewhere.open(LockClient::builder()).await;
        let third = store.open(LockClient::builder().prefix("third")).await;
        let handle = detached(&one).await;
        let outcomes = [third.attach(&handle).await.map(drop).err(), third.release(&handle).await.err()];
        for outcome in outcomes {
            let Some(HandleError::OtherPrefix { prefix, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(prefix, "fairlock");
        }
        assert!(is_lost(other.attach(&handle).await));
        assert!(matches!(other.release(&handle).await, Err(HandleError::Lost)));
        one.release(&handle).await.unwrap();
        third.close().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_of_several_servers_refuses_by_type_and_returns_the_guard() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let all = servers.each_ref().map(|server| server.server.clone());
        let client = LockClient::builder().without_strict_restart().embedded(&all).unwrap();
        let guard = held(&client).await;
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::SeveralServers));
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        let one = servers[0].open(LockClient::builder()).await;
        let handle = detached(&one).await;
        assert!(matches!(client.attach(&handle).await, Err(HandleError::SeveralServers)));
        one.release(&handle).await.unwrap();
        close([client, one]).await;
    })
    .await;
}

/// Changes each character of the text, and each part that it contains.
#[tokio::test]
async fn a_handle_that_was_changed_is_refused_or_lost() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let handle = detached(&client).await;
        let text = handle.to_string();
        assert!(text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_'), "{text}");
        assert_eq!(text.parse::<HoldHandle>().unwrap(), handle);
        for index in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[index] = if changed[index] == b'7' { b'8' } else { b'7' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(changed.parse::<HoldHandle>().is_err(), "{changed}");
            assert!(text[..index].parse::<HoldHandle>().is_err());
        }
        assert_eq!(text.replace("fairlock1_", "fairlock2_").parse::<HoldHandle>(), Err(ParseHandleError::OtherVersion));
        for text in ["", "_", "fairlock", "fairlock1", "fairlock1_______", &format!("{text}\n"), &text.to_uppercase()] {
            assert_eq!(text.parse::<HoldHandle>(), Err(ParseHandleError::Malformed), "{text:?}");
        }
        // The checksum is right, but the text names another hold, which does not exist.
        let less = (handle.token() - 1).to_string();
        for (index, change) in [(1, &*hex("y")), (2, &hex("y")), (3, &hex("c-1:0")), (4, &less), (4, "0")] {
            let changed: HoldHandle = with_part(&text, index, change).parse().unwrap();
            assert!(client.attach(&changed).await.is_err(), "{changed:?}");
            assert!(client.extend(&changed, LEASE).await.is_err(), "{changed:?}");
            assert!(client.release(&changed).await.is_err(), "{changed:?}");
        }
        // No handle has such a part.
        let (long, no_time) = (hex(&"n".repeat(1025)), i64::MAX.to_string());
        for (index, change) in [(2, ""), (2, &long), (3, ""), (3, &hex("c-1:1")), (6, "-1"), (6, &no_time)] {
            let changed = with_part(&text, index, change).parse::<HoldHandle>();
            assert_eq!(changed, Err(ParseHandleError::Malformed), "{index} {change:.20}");
        }
        assert!(is_held(&client).await);
        // `HoldHandle::lease` returns the changed lease; the server does not check it.
        let changed: HoldHandle = with_part(&text, 5, "1").parse().unwrap();
        assert_eq!(changed.lease(), Duration::from_millis(1));
        client.release(&changed).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

pub fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The text with another part and a new checksum.
pub fn with_part(text: &str, index: usize, part: &str) -> String {
    let mut parts: Vec<_> = text.split('_').collect();
    parts[index] = part;
    parts.pop();
    let changed = parts.join("_");
    let sum = changed.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{changed}_{sum:08x}")
}

/// `status` shows the owner and the token of a hold. They do not suffice to make a handle.
#[tokio::test]
async fn what_status_says_of_a_guard_is_no_handle() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let text = other.lock("y").lock().await.unwrap().detach(LEASE).await.unwrap().to_string();
        // These requests are later than the requests of the guard's owner.
        for _ in 0..50 {
            other.lock("z").lock().await.unwrap().unlock().await.unwrap();
        }
        let guard = held(&one).await;
        let (name, owner, token) = (hex("x"), hex(guard.owner_id()), guard.token().to_string());
        let forged = with_part(&with_part(&with_part(&text, 2, &name), 3, &owner), 4, &token);
        let taken = match forged.parse() {
            Ok(forged) => other.attach(&forged).await.ok(),
            Err(_) => None,
        };
        assert!(taken.is_none() && guard.is_valid(), "{taken:?}");
        guard.unlock().await.unwrap();
        other.release(&text.parse().unwrap()).await.unwrap();
        close([one, other]).await;
    })
    .await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn a_handle_survives_json() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let handle = detached(&client).await;
        let json = serde_json::to_string(&handle).unwrap();
        assert_eq!(json, format!("\"{handle}\""));
        assert_eq!(serde_json::from_str::<HoldHandle>(&json).unwrap(), handle);
        assert!(serde_json::from_str::<HoldHandle>("\"fairlock1\"").is_err());
        assert!(!format!("{handle:?}").contains(client.id()), "{handle:?}");
        client.release(&handle).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Plans the delivery of the next requests with a script, and of their replies: lost, late, or repeated.
#[derive(Clone, Default)]
pub struct Gives(Arc<Mutex<VecDeque<Planned>>>);

/// The script of a request, and its copies.
type Planned = (&'static str, Vec<Delivery>);

impl Gives {
    fn next(&self, deliveries: Vec<Delivery>) {
        self.next_of("give", deliveries);
    }

    pub fn next_of(&self, script: &'static str, deliveries: Vec<Delivery>) {
        self.0.lock().unwrap().push_back((script, deliveries));
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl Faults for Gives {
    fn request(&self, _client: &str, script: &str) -> Vec<Delivery> {
        let mut planned = self.0.lock().unwrap();
        let next = planned.iter().position(|(of, _)| *of == script).and_then(|index| planned.remove(index));
        next.map_or_else(|| vec![Delivery::AT_ONCE], |(_, deliveries)| deliveries)
    }

    fn push(&self, _client: &str) -> Vec<Duration> {
        vec![Duration::ZERO]
    }

    fn ran(&self, _ran: &Ran<'_>) {}
}

pub const SERVED_UNHEARD: Delivery = Delivery { request: Duration::ZERO, reply: None };

pub async fn with_gives(test: impl AsyncFnOnce(&Gives, [LockClient; 2], &EmbeddedServer)) {
    let gives = Gives::default();
    let server = &simulation::servers([gives.clone()])[0];
    virtually(async {
        let open = || LockClient::builder().embedded(server).unwrap();
        let clients = [open(), open()];
        // A client's first request fails once, because the client does not know the server's time yet.
        for client in &clients {
            assert!(!is_held(client).await);
        }
        test(&gives, clients, server).await;
    })
    .await;
}

pub fn unheard(script: &'static str, count: usize, gives: &Gives) {
    (0..count).for_each(|_| gives.next_of(script, vec![SERVED_UNHEARD]));
}

#[tokio::test]
async fn a_detach_and_an_attach_whose_answers_are_lost_are_repeated() {
    with_gives(async |gives, [one, other], _| {
        let guard = held(&one).await;
        gives.next(vec![SERVED_UNHEARD, Delivery::AT_ONCE]);
        let handle = guard.detach(LEASE).await.unwrap();
        gives.next(vec![SERVED_UNHEARD, Delivery::AT_ONCE]);
        let guard = other.attach(&handle).await.unwrap();
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        assert!(!is_held(&one).await);
        close([one, other]).await;
    })
    .await;
}

/// The server served the detach and its reply got lost: the handle has the hold.
#[tokio::test]
async fn an_unanswered_detach_returns_a_handle_that_holds_the_lock() {
    with_gives(async |gives, [one, other], _| {
        let (guard, token) = (held(&one).await, one.lock("x").status().await.unwrap().holder.unwrap().token);
        let view = guard.held();
        unheard("give", 20, gives);
        let Err(DetachError::Unanswered { handle, .. }) = guard.detach(LEASE).await else { panic!() };
        gives.clear();
        assert_eq!(view.ended().await, Ended::Detached);
        assert_eq!(handle.to_string().parse::<HoldHandle>().unwrap(), handle);
        sleep(100 * SECOND).await;
        let guard = other.attach(&handle).await.unwrap();
        assert_eq!(guard.token(), token);
        guard.unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// The server never served the detach: the hold is gone and leaves nothing.
#[tokio::test]
async fn an_unanswered_detach_that_was_not_served_leaves_nothing() {
    with_gives(async |gives, [one, other], server| {
        let guard = held(&one).await;
        (0..20).for_each(|_| gives.next(Vec::new()));
        let Err(DetachError::Unanswered { handle, .. }) = guard.detach(LEASE).await else { panic!() };
        gives.clear();
        eventually("it is free", async || !is_held(&one).await).await;
        assert!(is_lost(other.attach(&handle).await));
        close([one, other]).await;
        sleep(120 * SECOND).await;
        assert!(server.keys().iter().all(|key| key.ends_with("}:token")), "{:?}", server.keys());
    })
    .await;
}

/// A copy of the detach arrives after a release by its handle. It must not bring the hold back (R16).
#[tokio::test]
async fn what_was_released_by_its_handle_does_not_come_back() {
    with_gives(async |gives, [one, other], _| {
        let guard = held(&one).await;
        // Served after the caller has given up, and before its owner could leave.
        (0..20).for_each(|_| gives.next(vec![Delivery { request: Duration::from_millis(2010), reply: None }]));
        let Err(DetachError::Unanswered { handle, .. }) = guard.detach(LEASE).await else { panic!() };
        gives.clear();
        let _ = other.release(&handle).await;
        sleep(5 * SECOND).await;
        assert!(!is_held(&one).await);
        close([one, other]).await;
    })
    .await;
}

/// The same owner detaches the hold and attaches it again. Then a copy of the detach arrives.
#[tokio::test]
async fn a_late_copy_of_a_detach_takes_nothing_back() {
    with_gives(async |gives, [one, other], _| {
        let me = Owner::new();
        let guard = me.scope(held(&one)).await;
        gives.next(vec![Delivery::AT_ONCE, Delivery { request: SECOND, reply: None }]);
        let handle = guard.detach(LEASE).await.unwrap();
        let guard = me.scope(one.attach(&handle)).await.unwrap();
        sleep(5 * SECOND).await;
        assert!(guard.is_valid());
        let holder = other.lock("x").status().await.unwrap().holder.unwrap();
        assert_eq!(holder.owner, guard.owner_id());
        sleep(60 * SECOND).await;
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        close([one, other]).await;
    })
    .await;
}

/// A detach dropped half-way gives the hold back, and so does a dropped attach if the server served it.
#[tokio::test]
async fn what_is_dropped_half_way_leaves_nothing_behind() {
    with_gives(async |gives, [one, other], _| {
        for served in [true, false] {
            let guard = held(&one).await;
            gives.next(if served { vec![SERVED_UNHEARD] } else { Vec::new() });
            assert!(timeout(SECOND, guard.detach(LEASE)).await.is_err());
            eventually("it is free", async || !is_held(&one).await).await;
            let handle = detached(&one).await;
            gives.next(if served { vec![SERVED_UNHEARD] } else { Vec::new() });
            assert!(timeout(SECOND, other.attach(&handle)).await.is_err());
            sleep(10 * SECOND).await;
            // If the server has not served it, the handle is as before.
            assert_eq!(is_held(&one).await, !served);
            assert_eq!(one.release(&handle).await.is_ok(), !served);
        }
        close([one, other]).await;
    })
    .await;
}

/// The reply has come, but nobody polled the call since. No caller has the handle, so the client gives the hold back.
#[tokio::test]
async fn a_handle_that_nobody_has_read_of_is_given_back() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let mut detaching = Box::pin(held(&client).await.detach(LEASE));
        assert!(detaching.as_mut().now_or_never().is_none());
        sleep(SECOND).await;
        assert!(is_held(&client).await, "it is detached");
        drop(detaching);
        eventually("it is free", async || !is_held(&client).await).await;
        let permit = client.semaphore("x", 1).acquire().await.unwrap();
        let mut detaching = Box::pin(permit.detach(LEASE));
        assert!(detaching.as_mut().now_or_never().is_none());
        sleep(SECOND).await;
        drop(detaching);
        client.semaphore("x", 1).acquire().await.unwrap().release().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// An attached hold may stay unclaimed for a whole lease, because nobody else waits in a queue for it (R16). The
/// client does not renew it before it has the guard.
#[tokio::test]
async fn an_attach_that_rests_keeps_what_it_got_for_a_lease() {
    for (rest, is_kept) in [(20 * SECOND, true), (40 * SECOND, false)] {
        in_virtual_time(async |store| {
            store.network.delay(Duration::from_millis(5));
            let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
            let handle = detached(&one).await;
            let lock = other.lock("x");
            let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
            eventually("it waits", async || one.lock("x").status().await.unwrap().waiters == 1).await;
            let mut attaching = Box::pin(other.attach(&handle));
            assert!(attaching.as_mut().now_or_never().is_none());
            sleep(rest).await;
            assert_eq!(waiting.is_finished(), !is_kept);
            let attached = attaching.await;
            if is_kept {
                let guard = attached.unwrap();
                assert!(guard.is_valid() && guard.token() == handle.token());
                sleep(LEASE).await;
                assert!(guard.is_valid() && !waiting.is_finished());
                guard.unlock().await.unwrap();
            } else {
                assert!(is_lost(attached));
            }
            waiting.await.unwrap().unlock().await.unwrap();
            close([one, other]).await;
        })
        .await;
    }
}

/// Neither polls and leaves of the detaching client nor a renewal under way touch the hold.
#[tokio::test]
async fn the_client_that_has_detached_a_hold_waits_for_it_like_any_other() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = held(&client).await;
        // A renewal is under way when the detach begins.
        sleep(10 * SECOND - Duration::from_millis(1)).await;
        store.network.delay(Duration::from_millis(20));
        let handle = guard.detach(LEASE).await.unwrap();
        store.network.delay(Duration::ZERO);
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        let given_up = client.lock("x");
        assert!(timeout(SECOND, given_up.lock()).await.is_err());
        sleep(LEASE / 2).await;
        assert!(!waiting.is_finished());
        let attached = client.attach(&handle).await.unwrap();
        assert_eq!(attached.token(), handle.token());
        sleep(LEASE).await;
        assert!(!waiting.is_finished() && attached.is_valid());
        drop(attached);
        waiting.await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

fn give_up_soon(lock: FairLock) -> JoinHandle<()> {
    tokio::spawn(async move { drop(timeout(SECOND, lock.lock()).await) })
}

/// A renewal, poll or leave of the detaching client arrives after that client or another one has attached the handle.
#[tokio::test]
async fn what_comes_late_of_the_client_that_had_a_hold_does_not_touch_it() {
    for late in ["renew", "poll", "leave"] {
        for by_another in [false, true] {
            with_gives(async |gives, [one, other], _| {
                let guard = held(&one).await;
                let lock = one.lock("x");
                let given_up = (late == "leave").then(|| give_up_soon(one.lock("x")));
                let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
                gives.next_of(late, vec![Delivery { request: 2 * SECOND, reply: Some(2 * SECOND) }]);
                eventually("it is under way", async || gives.is_empty()).await;
                let handle = guard.detach(LEASE).await.unwrap();
                let attached = if by_another { &other } else { &one }.attach(&handle).await.unwrap();
                sleep(5 * SECOND).await;
                assert!(attached.is_valid() && attached.token() == handle.token(), "{late}");
                let holder = other.lock("x").status().await.unwrap().holder.unwrap();
                assert_eq!((&*holder.owner, holder.holds), (attached.owner_id(), 1), "{late}");
                sleep(LEASE).await;
                assert!(attached.is_valid() && !waiting.is_finished(), "{late}");
                drop((attached, given_up));
                waiting.await.unwrap().unlock().await.unwrap();
                close([one, other]).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_handle_outlives_the_process_that_made_it() {
    in_virtual_time(async |store| {
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let handle = detached(&one).await;
        store.network.cut_off(one.id());
        sleep(LEASE - SECOND).await;
        let guard = other.attach(&handle).await.unwrap();
        assert_eq!(guard.token(), handle.token());
        sleep(LEASE).await;
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
        store.network.mend(one.id());
        close([one, other]).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_lost_is_not_detached() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = held(&client).await;
        client.lock("x").force_unlock().await.unwrap();
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Forced)), "{reason}");
        drop(guard);
        // Without the revocation message.
        store.network.lose_messages(true);
        let guard = held(&client).await;
        client.lock("x").force_unlock().await.unwrap();
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Gone)), "{reason}");
        drop(guard);
        let guard = held(&client).await;
        client.close().await.unwrap();
        let Err(DetachError::Refused { reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Closed) | HoldError::Request(RequestError::Closed)), "{reason}");
    })
    .await;
}

/// The error claimed that the client had sent nothing.
#[tokio::test]
async fn an_attach_under_way_as_its_client_is_closed_says_that_it_may_have_been_served() {
    in_virtual_time(async |store| {
        store.network.delay(Duration::from_millis(5));
        let (one, other) = (store.open(LockClient::builder()).await, store.open(LockClient::builder()).await);
        let handle = detached(&one).await;
        // The answer gives the client the server's time.
        other.lock("y").is_locked().await.unwrap();
        let mut attaching = Box::pin(other.attach(&handle));
        assert!(attaching.as_mut().now_or_never().is_none());
        // The answer to the attach is on its way.
        sleep(Duration::from_millis(7)).await;
        let (attached, closed) = tokio::join!(attaching, other.close());
        closed.unwrap();
        assert!(matches!(attached, Err(HandleError::Unreachable(_))), "{attached:?}");
        assert!(
            attached
                .unwrap_err()
                .to_string()
                .contains("the client is closed; if the attach still succeeds, the client releases the hold")
        );
        let asked = other.attach(&handle).await;
        assert!(matches!(asked, Err(HandleError::Request(RequestError::Closed))), "{asked:?}");
        assert!(matches!(one.release(&handle).await, Err(HandleError::Lost)));
        one.close().await.unwrap();
    })
    .await;
}

/// The server and the text both have whole milliseconds.
#[tokio::test]
async fn a_handle_is_the_same_after_its_text_was_read() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let handle = held(&client).await.detach(Duration::from_micros(61_500_900)).await.unwrap();
        assert_eq!(handle.lease(), Duration::from_millis(61_500));
        assert_eq!(handle.to_string().parse::<HoldHandle>().unwrap(), handle);
        client.release(&handle).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Without a connection the client sends nothing, and the guard goes on.
#[tokio::test]
async fn a_detach_that_was_not_sent_returns_the_guard() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = held(&client).await;
        store.network.refuse(Some("LOADING it is loading"));
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Request(RequestError::Refused(_) | RequestError::NotSent(_))), "{reason}");
        store.network.refuse(None);
        sleep(60 * SECOND).await;
        assert!(guard.is_valid(), "it is renewed as before");
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The last try came too late for sending. The error reported that, and not the refusals.
#[tokio::test]
async fn what_was_refused_until_its_time_was_over_says_so() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let (first, second) = (held(&client).await, client.lock("another").lock().await.unwrap());
        store.network.refuse(Some("TRYAGAIN Multiple keys request during rehashing of slot"));
        let Err(DetachError::Refused { guard, reason, .. }) = first.detach(LEASE).await else { panic!() };
        assert!(
            matches!(&reason, HoldError::Request(RequestError::Refused(refusal)) if refusal.code == "TRYAGAIN"),
            "{reason}"
        );
        let error = second.unlock().await.unwrap_err();
        assert!(matches!(&error, UnlockError::Refused { refusal, .. } if refusal.code == "TRYAGAIN"), "{error}");
        store.network.refuse(None);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The server refuses some tries and does not answer the last one. Some calls took two operation timeouts.
#[tokio::test]
async fn a_call_about_a_hold_ends_within_an_operation_timeout() {
    in_virtual_time(async |store| {
        for call in 0..5 {
            let client = store.open(LockClient::builder().operation_timeout(SECOND)).await;
            let (name, by_handle) = (format!("x{call}"), client.lock(format!("by handle {call}")));
            let guard = client.lock(name).lock().await.unwrap();
            let handle = by_handle.lock().await.unwrap().detach(30 * SECOND).await.unwrap();
            store.network.refuse(Some("TRYAGAIN Multiple keys request during rehashing of slot"));
            let began = Instant::now();
            let silence = async {
                sleep(SECOND * 3 / 5).await;
                store.network.refuse(None);
                store.network.delay(5 * SECOND);
            };
            let asking = async {
                match call {
                    0 => drop(guard.extend(60 * SECOND).await.unwrap_err()),
                    1 => drop(client.extend(&handle, 60 * SECOND).await.unwrap_err()),
                    2 => drop(client.release(&handle).await.unwrap_err()),
                    3 => drop(guard.detach(30 * SECOND).await.unwrap_err()),
                    _ => drop(guard.unlock().await.unwrap_err()),
                }
                began.elapsed()
            };
            let (took, ()) = tokio::join!(asking, silence);
            assert!(took <= SECOND + SECOND / 100, "call {call} took {took:?}");
            store.network.delay(Duration::ZERO);
            client.close().await.unwrap();
        }
        // The leases of the handles end.
        sleep(90 * SECOND).await;
    })
    .await;
}

/// Each call waits for its turn and for its answer; the second one took two operation timeouts. With many calls at
/// once, one got its turn only when its time had ended, and took as long.
#[tokio::test]
async fn an_extend_ends_in_time_behind_another_one() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder().operation_timeout(SECOND)).await;
        let guard = client.lock("x").lock().await.unwrap();
        store.network.delay(5 * SECOND);
        let extending = async |after| {
            sleep(after).await;
            let began = Instant::now();
            guard.extend(60 * SECOND).await.unwrap_err();
            began.elapsed()
        };
        for starts in [[Duration::ZERO, SECOND * 3 / 10].as_slice(), &[Duration::ZERO; 40]] {
            let took = join_all(starts.iter().map(|after| extending(*after))).await;
            assert!(took.iter().all(|took| *took <= SECOND + SECOND / 100), "{took:?}");
        }
        store.network.delay(Duration::ZERO);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The detach returned a refusal, and a guard that looked valid although its lease had ended.
#[tokio::test]
async fn p8_a_lease_that_ends_while_its_detach_is_refused_is_lost() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder().operation_timeout(SECOND)).await;
        let guard = client.lock("x").with_lease(5 * SECOND).lock().await.unwrap();
        sleep(SECOND * 9 / 2).await;
        store.network.refuse(Some("TRYAGAIN Multiple keys request during rehashing of slot"));
        let Err(DetachError::Refused { guard, reason, .. }) = guard.detach(LEASE).await else { panic!() };
        assert!(matches!(reason, HoldError::Lost(Loss::Expired)) && !guard.is_valid(), "{reason}");
        store.network.refuse(None);
        drop(guard);
        client.close().await.unwrap();
    })
    .await;
}

/// Nobody polled the reply for nearly as long as its lease, so the hold ended 12 ms after it began.
#[tokio::test]
async fn p8_an_attach_that_rested_for_nearly_a_lease_asks_again() {
    in_virtual_time(async |store| {
        let short = LockClient::builder().lease(SECOND).operation_timeout(SECOND / 5).poll_interval(SECOND / 4);
        let client = store.open(short).await;
        let handle = detached(&client).await;
        store.network.delay(Duration::from_millis(30));
        let mut attaching = Box::pin(client.attach(&handle));
        assert!((&mut attaching).now_or_never().is_none(), "the request is on its way");
        sleep(Duration::from_millis(950)).await;
        let guard = attaching.await.unwrap();
        let lost = timeout(5 * SECOND, guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Each call through a handle reports a transient refusal as a refusal, and not as silence.
#[tokio::test]
async fn what_the_server_refuses_is_told_as_refused() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let handle = detached(&client).await;
        store.network.refuse(Some("NOREPLICAS Not enough good replicas to write."));
        let refused =
            |error: &HandleError| matches!(error, HandleError::Request(RequestError::Refused(refusal)) if refusal.code == "NOREPLICAS");
        let extended = client.extend(&handle, LEASE).await.unwrap_err();
        let released = client.release(&handle).await.unwrap_err();
        assert!(refused(&extended) && refused(&released), "{extended} {released}");
        for owner in [None, Some(Owner::new())] {
            let attaching = client.attach(&handle);
            let attached = match owner {
                None => attaching.await,
                Some(owner) => owner.scope(attaching).await,
            };
            let Err(error) = attached else { panic!("it was attached") };
            assert!(refused(&error), "{error}");
        }
        store.network.refuse(None);
        store.network.silence(true);
        let Err(HandleError::Unreachable(cause)) = client.attach(&handle).await else { panic!("it was answered") };
        assert!(cause.to_string().contains("no answer"), "{cause}");
        store.network.silence(false);
        eventually("it is back", async || client.attach(&handle).await.is_ok()).await;
        client.close().await.unwrap();
    })
    .await;
}

/// The server comes back without its data while it refuses the detach. The guard must not rely on its lease.
#[tokio::test]
async fn a_restart_during_a_detach_that_is_refused_is_noticed() {
    in_virtual_time(async |store| {
        let client = store.open(LockClient::builder()).await;
        let guard = client.lock("x").with_lease(LEASE).lock().await.unwrap();
        store.network.refuse(Some("LOADING it is loading"));
        let detaching = tokio::spawn(guard.detach(LEASE));
        sleep(SECOND).await;
        store.server.shut_down();
        store.server.flush();
        store.server.start_up();
        let Err(DetachError::Refused { guard, .. }) = detaching.await.unwrap() else { panic!() };
        store.network.refuse(None);
        assert_eq!(timeout(20 * SECOND, guard.lost()).await, Ok(Loss::Gone));
        drop(guard);
        client.close().await.unwrap();
    })
    .await;
}

/// A replica promoted without the detach has the old owner, which the client removes. Otherwise it has the handle.
#[tokio::test]
async fn after_a_failover_the_handle_holds_or_nobody_does() {
    for heard in [false, true] {
        limit(async {
            let primary = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
            let replica = Server::start().await;
            let proxy = crate::support::Proxy::start(&primary).await;
            let client = Timing::relaxed().connect(&proxy.url()).await;
            let guard = held(&client).await;
            let replicate = async || {
                replica.replicate(&primary).await;
                replica.promote().await;
            };
            if !heard {
                replicate().await;
            }
            let handle = guard.detach(LEASE).await.unwrap();
            if heard {
                replicate().await;
            }
            proxy.fail_over_to(&replica);
            if heard {
                let guard = client.attach(&handle).await.unwrap();
                guard.unlock().await.unwrap();
            } else {
                eventually("the owner of before has left", async || {
                    matches!(client.lock("x").is_locked().await, Ok(false))
                })
                .await;
                assert!(is_lost(client.attach(&handle).await));
            }
            client.close().await.unwrap();
            replica.assert_clean().await;
        })
        .await;
    }
}
