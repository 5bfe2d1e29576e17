//! Futures that their callers do not poll, and checks without an answer. Neither may cost others anything. A comment
//! says what went wrong before.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fairlock::{
    AllGuard, DetachError, Ended, FairLock, LockAll, LockClient, LockClientBuilder, LockError, LockGuard, Loss, Owner,
    UnlockError, Unlocked,
};
use futures::FutureExt;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Collect, Embedded, Timing, embedded, eventually, in_virtual_time, on_several_in_virtual_time};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

async fn client(embedded: &Embedded) -> LockClient {
    embedded.open(LockClient::builder()).await
}

/// Polls each future once, and not again. Pass few enough for tokio's budget for one task.
async fn rest<F: Future>(futures: Vec<F>) -> Vec<Pin<Box<F>>> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    for future in &mut futures {
        assert!(future.now_or_never().is_none(), "its request is on its way");
        tokio::task::yield_now().await;
    }
    futures
}

async fn lock_many(client: &LockClient, prefix: &str, count: usize) -> Vec<LockGuard> {
    let locks: Vec<_> = (0..count).map(|number| client.lock(format!("{prefix}{number}"))).collect();
    join_all(locks.iter().map(FairLock::lock)).await.into_iter().map(Result::unwrap).collect()
}

async fn unlock_all(guards: Vec<LockGuard>) {
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

/// Each call once learned what all of them held, and left for the others: as many requests as their number squared.
#[tokio::test]
async fn calls_of_one_semaphore_that_rest_cost_a_poll_and_a_leave_each() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(20 * MILLI);
        let client = client(embedded).await;
        let semaphore = client.semaphore("s", 1000);
        // From here on the client knows the server's time.
        semaphore.acquire().await.unwrap().release().await.unwrap();
        let mut resting = Vec::new();
        for _ in 0..60 {
            resting.extend(rest(vec![semaphore.acquire()]).await);
            // So that the client passes some over while it asks for others.
            sleep(MILLI).await;
        }
        sleep(SECOND).await;
        let calls = embedded.network.calls();
        assert!(calls <= 4 * 60, "{calls} scripts: an acquire, a poll and a leave each, and those that connect");
        let status = semaphore.status().await.unwrap();
        assert!(status.holders.is_empty(), "they were passed over: {status:?}");
        for permit in join_all(resting).await {
            permit.unwrap().release().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn unlocks_that_rest_cost_no_other_hold() {
    // The unlocks once kept the places of renewals.
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let client = client(embedded).await;
        let (given_back, kept) = (lock_many(&client, "n", 300).await, lock_many(&client, "k", 50).await);
        let resting = rest(given_back.into_iter().map(LockGuard::unlock).collect()).await;
        sleep(60 * SECOND).await;
        assert!(kept.iter().all(|guard| guard.is_valid()), "they are renewed");
        for unlock in resting {
            // Unlocks that were still in line have timed out; the client finishes them in the background.
            let _ = unlock.await;
        }
        unlock_all(kept).await;
    })
    .await;
}

/// Watchers of the hold once waited until the caller polled its unlock again, and then got a loss that had not
/// happened.
#[tokio::test]
async fn the_end_of_a_hold_is_known_while_its_unlock_rests() {
    let lease = 6 * SECOND;
    for is_fixed in [false, true] {
        for then in ["dropped", "polled", "closed"] {
            in_virtual_time(async |embedded| {
                embedded.network.delay(MILLI);
                let (client, other) = (embedded.open(LockClient::builder().lease(lease)).await, client(embedded).await);
                let lock = if is_fixed { client.lock("x").with_lease(lease) } else { client.lock("x") };
                let guard = lock.lock().await.unwrap();
                let held = guard.held();
                let mut resting = rest(vec![guard.unlock()]).await;
                let next = other.lock("x").lock().await.unwrap();
                let ended = timeout(lease + SECOND, held.ended()).await;
                assert_eq!(ended.expect("its lease is over"), Ended::Freed, "{is_fixed}, {then}");
                sleep(2 * lease).await;
                match then {
                    "dropped" => drop(resting),
                    "polled" => assert_eq!(resting.remove(0).await.unwrap(), Unlocked::Freed, "{is_fixed}"),
                    _ => {
                        client.close().await.unwrap();
                        let outcome = resting.remove(0).await;
                        assert!(!matches!(outcome, Err(UnlockError::Lost(_))), "{is_fixed}: {outcome:?}");
                    }
                }
                sleep(2 * lease).await;
                assert_eq!(held.ended().await, Ended::Freed, "{is_fixed}, {then}: it was no loss");
                assert!(next.is_valid());
                next.unlock().await.unwrap();
            })
            .await;
        }
    }
}

/// The client sent no release, so it renewed the hold until one of the futures was polled.
#[tokio::test]
async fn an_unlock_that_rests_before_its_turn_costs_no_lease() {
    let lease = 6 * SECOND;
    for then in ["dropped", "polled", "closed"] {
        in_virtual_time(async |embedded| {
            embedded.network.delay(MILLI);
            let (client, other) = (embedded.open(LockClient::builder().lease(lease)).await, client(embedded).await);
            let (lock, owner) = (client.lock("x"), Owner::new());
            let guard = owner.scope(lock.lock()).await.unwrap();
            let held = guard.held();
            let mut nested = rest(vec![owner.scope(lock.lock())]).await;
            let mut resting = rest(vec![guard.unlock()]).await;
            let next = timeout(lease / 2, other.lock("x").lock()).await.expect("it is released").unwrap();
            assert_eq!(held.ended().await, Ended::Freed, "{then}");
            match then {
                "dropped" => drop((nested, resting)),
                "polled" => {
                    assert_eq!(resting.remove(0).await.unwrap(), Unlocked::Freed);
                    let again = nested.remove(0);
                    next.unlock().await.unwrap();
                    assert!(again.await.unwrap().token() > held.token(), "it is not nested any more");
                    return;
                }
                _ => client.close().await.unwrap(),
            }
            sleep(lease).await;
            assert!(next.is_valid(), "{then}: it is the other one's");
        })
        .await;
    }
}

/// Polls the call once, while the network loses its request.
async fn lose_the_request_of<F: Future>(embedded: &Embedded, call: F) -> Vec<Pin<Box<F>>> {
    embedded.network.silence(true);
    let resting = rest(vec![call]).await;
    embedded.network.silence(false);
    resting
}

/// The same for a call that gives back a part of a hold: others once waited until the caller polled it again.
#[tokio::test]
async fn what_a_call_that_rests_gives_back_is_given_back() {
    in_virtual_time(async |embedded| {
        let (client, other) = (client(embedded).await, client(embedded).await);
        let (mine, theirs, owner) = (client.rw_lock("x"), other.rw_lock("x"), Owner::new());
        let writing = mine.write().await.unwrap();
        let resting = lose_the_request_of(embedded, writing.downgrade()).await;
        let reading = timeout(5 * SECOND, theirs.read()).await.expect("it only reads").unwrap();
        reading.unlock().await.unwrap();
        drop(resting);

        let (writing, reading) = owner.scope(async { (mine.write().await.unwrap(), mine.read().await.unwrap()) }).await;
        let resting = lose_the_request_of(embedded, writing.unlock()).await;
        timeout(5 * SECOND, theirs.read()).await.expect("it only reads").unwrap().unlock().await.unwrap();
        assert!(reading.is_valid());
        drop((resting, reading));

        // Without a fault: the read guard's unlock has the turn.
        let (writing, reading) = owner.scope(async { (mine.write().await.unwrap(), mine.read().await.unwrap()) }).await;
        let inner = rest(vec![reading.unlock()]).await;
        let outer = rest(vec![writing.downgrade()]).await;
        timeout(5 * SECOND, theirs.read()).await.expect("it only reads").unwrap().unlock().await.unwrap();
        drop((inner, outer));

        let permits = client.semaphore("s", 5).acquire_many(5).await.unwrap();
        let resting = lose_the_request_of(embedded, permits.shrink_to(1)).await;
        drop(timeout(5 * SECOND, other.semaphore("s", 5).acquire()).await.expect("there are four").unwrap());
        drop(resting);
    })
    .await;
}

/// No later renewal would release a fixed lease, so the client once kept it to its end.
#[tokio::test]
async fn an_unlock_that_rests_before_its_turn_costs_no_fixed_lease() {
    in_virtual_time(async |embedded| {
        let lease = 600 * SECOND;
        embedded.network.delay(MILLI);
        let (client, other) = (client(embedded).await, client(embedded).await);
        let (lock, owner) = (client.lock("x").with_lease(lease), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        let held = guard.held();
        let resting = (rest(vec![owner.scope(lock.lock())]).await, rest(vec![guard.unlock()]).await);
        let next = timeout(SECOND, other.lock("x").lock()).await.expect("it is free").unwrap();
        assert_eq!(held.ended().await, Ended::Freed);
        drop(resting);
        sleep(lease).await;
        assert!(next.is_valid(), "it is the other one's");
    })
    .await;
}

fn of_several(servers: &[Embedded; 3], lease: Duration) -> LockClient {
    embedded(LockClient::builder().lease(lease).without_strict_restart(), servers)
}

/// The nested call had a share of the hold. Its watchers once waited until the caller polled it again, and forever if
/// the caller dropped it instead.
#[tokio::test]
async fn on_several_servers_a_hold_ends_although_a_nested_call_of_it_rests() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let client = of_several(servers, 6 * SECOND);
        let (lock, owner) = (client.lock("x"), Owner::new());
        for is_dropped in [false, true] {
            let guard = owner.scope(lock.lock()).await.unwrap();
            let held = guard.held();
            let nested = rest(vec![owner.scope(lock.lock())]).await;
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
            let nested = (!is_dropped).then_some(nested);
            assert_eq!(timeout(SECOND, held.ended()).await, Ok(Ended::Freed), "dropped: {is_dropped}");
            drop(nested);
        }
    })
    .await;
}

/// The client once renewed the servers that the nested call had entered, until the caller polled it again.
#[tokio::test]
async fn on_several_servers_what_a_nested_call_that_rests_has_entered_costs_a_lease() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let lease = 6 * SECOND;
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let (client, other) = (of_several(servers, lease), of_several(servers, lease));
        let (lock, owner) = (client.lock("x"), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        servers[2].network.delay(SECOND / 5);
        let mut nested = Box::pin(owner.scope(lock.lock()));
        timeout(10 * MILLI, &mut nested).await.expect_err("the third one has not answered yet");
        drop(guard);
        servers[2].network.delay(MILLI);
        let next = timeout(2 * lease, other.lock("x").lock()).await.expect("a lease is over").unwrap();
        drop(nested);
        sleep(lease).await;
        assert!(next.is_valid());
    })
    .await;
}

/// The unlock once reported that the owner still held the lock, from the count of one server.
#[tokio::test]
async fn on_several_servers_what_a_nested_call_that_rests_has_entered_at_one_is_no_hold() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let client = of_several(servers, 6 * SECOND);
        let (lock, owner) = (client.lock("x"), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        servers[1..].iter().for_each(|server| server.network.delay(SECOND / 5));
        let mut nested = Box::pin(owner.scope(lock.lock()));
        timeout(10 * MILLI, &mut nested).await.expect_err("the others have not answered yet");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        servers[1..].iter().for_each(|server| server.network.delay(MILLI));
        // It was not nested, and takes the lock again.
        assert_eq!(nested.await.unwrap().unlock().await.unwrap(), Unlocked::Freed);
    })
    .await;
}

/// It once reported that too few servers were reachable.
#[tokio::test]
async fn on_several_servers_a_nested_try_that_rests_until_the_unlock_takes_it_anew() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let client = of_several(servers, 6 * SECOND);
        let (lock, owner) = (client.lock("x"), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        let mut nested = rest(vec![owner.scope(lock.try_lock())]).await;
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
        let anew = nested.remove(0).await.unwrap().into_result().expect("nobody else wants it");
        assert_eq!(anew.unlock().await.unwrap(), Unlocked::Freed);
    })
    .await;
}

/// The unlock, the watchers and the nested call once reported a loss, although two of three servers had the hold.
#[tokio::test]
async fn on_several_servers_a_lost_minority_is_no_loss_although_a_nested_call_rests() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let client = of_several(servers, 6 * SECOND);
        let (lock, owner) = (client.lock("x"), Owner::new());
        for lost in servers {
            let guard = owner.scope(lock.lock()).await.unwrap();
            let held = guard.held();
            let mut nested = rest(vec![owner.scope(lock.lock())]).await;
            lost.server.flush();
            sleep(4 * SECOND).await;
            assert!(guard.is_valid());
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
            assert_eq!(timeout(SECOND, held.ended()).await, Ok(Ended::Freed));
            let anew = nested.remove(0).await.unwrap();
            assert_eq!(anew.unlock().await.unwrap(), Unlocked::Freed);
        }
    })
    .await;
}

/// An owner that wants both `a` and `b`, while another client holds `b`.
struct WantsBoth {
    taken: LockGuard,
    owner: Owner,
    both: LockAll,
    a: FairLock,
}

impl WantsBoth {
    async fn of(embedded: &Embedded, builder: LockClientBuilder) -> Self {
        let (client, other) = (embedded.open(builder).await, client(embedded).await);
        let taken = other.lock("b").lock().await.unwrap();
        Self { taken, owner: Owner::new(), both: client.lock_all(["a", "b"]), a: client.lock("a") }
    }

    /// Polls the call until it has `a` and waits for `b`.
    async fn half_way(&self) -> Pin<Box<impl Future<Output = Result<AllGuard, LockError>>>> {
        let mut call = Box::pin(self.owner.scope(self.both.lock()));
        timeout(SECOND, &mut call).await.expect_err("another one has b");
        call
    }
}

/// The nested call once waited for the unlock, and the unlock for its own caller.
#[tokio::test]
async fn a_nested_call_and_an_unlock_that_rest_may_be_polled_on_one_after_the_other() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let client = client(embedded).await;
        let (lock, owner) = (client.lock("x"), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        let mut nested = rest(vec![owner.scope(lock.lock())]).await;
        let mut unlock = rest(vec![guard.unlock()]).await;
        sleep(2 * SECOND).await;
        let anew = timeout(SECOND, nested.remove(0)).await.expect("nobody has it").unwrap();
        assert_eq!(unlock.remove(0).await.unwrap(), Unlocked::Freed);
        assert!(anew.is_valid());
        anew.unlock().await.unwrap();
    })
    .await;
}

/// The renewals once asked only for what the detach wanted, and the next one was due at the end of that lease.
#[tokio::test]
async fn a_guard_that_a_detach_gives_back_after_a_rest_is_renewed() {
    let lease = 6 * SECOND;
    for rest_for in [SECOND, 3 * SECOND, 5 * SECOND] {
        in_virtual_time(async |embedded| {
            embedded.network.delay(MILLI);
            let client = embedded.open(LockClient::builder().lease(lease)).await;
            let (lock, owner) = (client.lock("x"), Owner::new());
            let guard = owner.scope(lock.lock()).await.unwrap();
            let nested = rest(vec![owner.scope(lock.lock())]).await;
            let mut detaching = rest(vec![guard.detach(lease)]).await;
            sleep(rest_for).await;
            let Err(DetachError::Refused { guard, .. }) = detaching.remove(0).await else { panic!("it has no turn") };
            sleep(3 * lease).await;
            assert!(guard.is_valid(), "{rest_for:?}");
            drop(nested);
            guard.unlock().await.unwrap();
        })
        .await;
    }
}

/// P1: the first renewal once asked for the rest of `max_hold`, while the guard relied on its longer grant. Two clients
/// held the lock.
#[tokio::test]
async fn p1_max_hold_does_not_cut_a_grant_that_is_relied_on() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let (other, longest) = (client(embedded).await, Duration::from_secs(1));
        let bounded = embedded.open(LockClient::builder().max_hold(longest)).await;
        let first = other.lock("x").lock().await.unwrap();
        let waiting = tokio::spawn(async move { bounded.lock("x").lock().await });
        eventually("it waits", async || other.lock("x").status().await.unwrap().waiters == 1).await;
        first.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let next = other.lock("x").lock().await.unwrap();
        assert!(!guard.is_valid(), "{guard:?}");
        next.unlock().await.unwrap();
    })
    .await;
}

/// When the nested call goes on, the watchdog has released the hold, and has no answer yet.
#[tokio::test]
async fn a_nested_call_that_is_polled_on_while_the_watchdog_releases_takes_the_lock_anew() {
    for rest_for in [600 * MILLI, 7 * SECOND] {
        in_virtual_time(async |embedded| {
            let lease = 6 * SECOND;
            let client = embedded.open(LockClient::builder().lease(lease)).await;
            let (lock, owner) = (client.lock("x"), Owner::new());
            let guard = owner.scope(lock.lock()).await.unwrap();
            let held = guard.held();
            let mut nested = rest(vec![owner.scope(lock.lock())]).await;
            let mut unlock = rest(vec![guard.unlock()]).await;
            embedded.network.delay(300 * MILLI);
            sleep(rest_for).await;
            let anew = timeout(5 * SECOND, nested.remove(0)).await.expect("nobody has it").unwrap();
            assert_eq!(unlock.remove(0).await.unwrap(), Unlocked::Freed, "after {rest_for:?}");
            assert_eq!(held.ended().await, Ended::Freed);
            anew.unlock().await.unwrap();
        })
        .await;
    }
}

/// The unlock once returned `Lost`, because of what its second request found after the lease.
#[tokio::test]
async fn an_unlock_that_rests_until_its_lease_is_over_was_in_time() {
    in_virtual_time(async |embedded| {
        let lease = 6 * SECOND;
        let client = embedded.open(LockClient::builder().lease(lease)).await;
        let guard = client.lock("x").lock().await.unwrap();
        let held = guard.held();
        embedded.network.silence(true);
        let mut unlock = rest(vec![guard.unlock()]).await;
        sleep(lease - 100 * MILLI).await;
        embedded.network.delay(300 * MILLI);
        embedded.network.silence(false);
        sleep(lease).await;
        let outcome = unlock.remove(0).await;
        assert!(!matches!(outcome, Err(UnlockError::Lost(_))), "{outcome:?}");
        assert_eq!(held.ended().await, Ended::Freed);
    })
    .await;
}

/// The guard once ended with the part that the set had before.
#[tokio::test]
async fn a_guard_inside_of_a_set_that_rests_is_renewed() {
    let lease = 6 * SECOND;
    in_virtual_time(async |embedded| {
        let it = WantsBoth::of(embedded, LockClient::builder().lease(lease)).await;
        let call = it.half_way().await;
        let guard = it.owner.scope(it.a.lock()).await.unwrap();
        sleep(10 * lease).await;
        assert!(guard.is_valid());
        drop(call);
        sleep(lease).await;
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
    })
    .await;
}

/// `max_hold` once counted from the guard inside, which had ended long before.
#[tokio::test]
async fn max_hold_of_a_set_counts_from_when_it_is_whole_although_there_was_a_guard_inside() {
    in_virtual_time(async |embedded| {
        let it = WantsBoth::of(embedded, LockClient::builder().max_hold(60 * SECOND)).await;
        let WantsBoth { taken, owner, both, a, .. } = it;
        let call = tokio::spawn(owner.scope(async move { both.lock().await }));
        sleep(SECOND).await;
        owner.scope(a.lock()).await.unwrap().unlock().await.unwrap();
        sleep(300 * SECOND).await;
        taken.unlock().await.unwrap();
        let guard = call.await.unwrap().unwrap();
        sleep(50 * SECOND).await;
        assert!(guard.is_valid(), "{guard:?}");
        guard.unlock().await.unwrap();
    })
    .await;
}

/// Such a guard once ignored `max_hold`, and could miss its renewals.
#[tokio::test]
async fn a_guard_that_comes_in_as_the_set_around_it_is_given_up_is_a_whole_one() {
    in_virtual_time(async |embedded| {
        let it = WantsBoth::of(embedded, LockClient::builder().max_hold(60 * SECOND)).await;
        let call = it.half_way().await;
        embedded.network.delay(50 * MILLI);
        let giving_up = async {
            sleep(20 * MILLI).await;
            drop(call);
        };
        let (guard, ()) = tokio::join!(it.owner.scope(it.a.lock()), giving_up);
        embedded.network.delay(MILLI);
        let guard = guard.unwrap();
        sleep(50 * SECOND).await;
        assert!(guard.is_valid(), "it is renewed");
        timeout(15 * SECOND, guard.lost()).await.expect("max_hold is over");
    })
    .await;
}

/// The client once trusted a grant however slow the line was, and the answer to the first renewal came after the grant
/// had ended.
#[tokio::test]
async fn p8_a_grant_that_ends_within_a_round_trip_is_asked_about() {
    for (poll, grant, way) in [(300, 400, 115), (500, 300, 140), (1000, 50, 200), (2000, 1000, 600)] {
        in_virtual_time(async |embedded| {
            let slow = LockClient::builder().poll_interval(poll * MILLI).grant_ttl(grant * MILLI);
            let (holder, client) = (client(embedded).await, embedded.open(slow).await);
            embedded.network.delay(way * MILLI);
            for after in 0..12 {
                let held = holder.lock("x").lock().await.unwrap();
                let lock = client.lock("x");
                let waiting = tokio::spawn(async move { lock.lock().await });
                sleep(way * MILLI * 4 + after * poll * MILLI / 12).await;
                held.unlock().await.unwrap();
                let guard = waiting.await.unwrap().unwrap();
                let lost = timeout(SECOND, guard.lost()).await;
                assert!(lost.is_err(), "{poll} + {grant} ms, {way} ms there and back each, released {after}: {lost:?}");
                guard.unlock().await.unwrap();
            }
        })
        .await;
    }
}

/// The client once relied on a grant from a poll with a fifth of its time left, and the first renewal took a little
/// longer.
#[tokio::test]
async fn p8_a_grant_that_a_poll_finds_is_asked_about() {
    in_virtual_time(async |embedded| {
        let short = LockClient::builder().poll_interval(200 * MILLI).grant_ttl(100 * MILLI);
        let (holder, client) = (client(embedded).await, embedded.open(short).await);
        embedded.network.lose_messages(true);
        for after in 0..20 {
            let held = holder.lock("x").lock().await.unwrap();
            let lock = client.lock("x");
            let waiting = tokio::spawn(async move { lock.lock().await });
            sleep(200 * MILLI + after * 10 * MILLI).await;
            held.unlock().await.unwrap();
            let guard = waiting.await.unwrap().unwrap();
            embedded.network.delay(60 * MILLI);
            let lost = timeout(SECOND, guard.lost()).await;
            assert!(lost.is_err(), "released {after}: {lost:?}");
            embedded.network.delay(Duration::ZERO);
            guard.unlock().await.unwrap();
        }
    })
    .await;
}

/// P1: a caller that reads its grant after a restart without data must ask first, because another owner may have the
/// lock by then.
#[tokio::test]
async fn p1_a_grant_from_before_a_restart_is_asked_about() {
    in_virtual_time(async |embedded| {
        let (holder, client) = (client(embedded).await, client(embedded).await);
        let held = holder.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let mut resting = Box::pin(lock.lock());
        assert!(timeout(150 * MILLI, &mut resting).await.is_err(), "it is in the queue");
        held.unlock().await.unwrap();
        sleep(20 * MILLI).await;
        embedded.server.shut_down();
        embedded.server.flush();
        embedded.server.start_up();
        let other = holder.lock("x").lock().await.unwrap();
        embedded.network.delay(100 * MILLI);
        let looked = timeout(SECOND, &mut resting).await;
        assert!(looked.is_err() && other.is_valid(), "two hold it: {looked:?}");
        embedded.network.delay(Duration::ZERO);
        other.unlock().await.unwrap();
        resting.await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// The client once judged the rest of the grant when the message came, and lost the hold 23 ms after it began.
#[tokio::test]
async fn p8_a_grant_that_rested_longer_than_it_lasts_is_asked_about() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(30 * MILLI);
        let short = LockClient::builder().poll_interval(200 * MILLI).grant_ttl(100 * MILLI);
        let (holder, client) = (client(embedded).await, embedded.open(short).await);
        let held = holder.semaphore("s", 1).acquire().await.unwrap();
        let semaphore = client.semaphore("s", 1);
        let mut resting = Box::pin(semaphore.acquire());
        assert!(timeout(150 * MILLI, &mut resting).await.is_err(), "it is in the queue");
        held.release().await.unwrap();
        sleep(110 * MILLI).await;
        let permit = resting.await.unwrap();
        let lost = timeout(SECOND, permit.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        permit.release().await.unwrap();
    })
    .await;
}

/// A new connection forgets a grant that came over the old one, and a poll finds it again. Its 250 ms do not start
/// again.
#[tokio::test]
async fn a_turn_that_rests_while_its_client_connects_anew_costs_a_moment() {
    in_virtual_time(async |embedded| {
        let (client, other) = (client(embedded).await, client(embedded).await);
        let held = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let mut resting = Box::pin(lock.lock());
        while other.lock("x").status().await.unwrap().waiters == 0 {
            assert!((&mut resting).now_or_never().is_none());
            sleep(MILLI).await;
        }
        assert!((&mut resting).now_or_never().is_none(), "it has read that it waits");
        let behind = tokio::spawn({
            let lock = other.lock("x");
            async move { lock.lock().await }
        });
        eventually("both wait", async || other.lock("x").status().await.unwrap().waiters == 2).await;
        // The reply to the poll comes a moment after the message.
        embedded.network.delay_of(client.id(), 30 * MILLI);
        held.unlock().await.unwrap();
        let begun = Instant::now();
        sleep(250 * MILLI).await;
        embedded.server.disconnect(client.id());
        behind.await.unwrap().unwrap().unlock().await.unwrap();
        assert!(begun.elapsed() < 400 * MILLI, "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test]
async fn tries_that_rest_keep_no_place_from_others() {
    // Free names once took 10 to 25 s.
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let client = client(embedded).await;
        let locks: Vec<_> = (0..256).map(|number| client.lock(format!("n{number}"))).collect();
        let resting = rest(locks.iter().map(FairLock::try_lock).collect()).await;
        let began = Instant::now();
        client.lock("free").lock().await.unwrap().unlock().await.unwrap();
        assert!(began.elapsed() < SECOND / 4, "{:?}", began.elapsed());
        drop(resting);
    })
    .await;
}

#[tokio::test]
async fn a_turn_in_line_that_is_not_taken_goes_on() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(SECOND / 10);
        let client = client(embedded).await;
        // The client has sent the first 256 requests; the others wait in line.
        let locks: Vec<_> = (0..1024).map(|number| client.lock(format!("n{number}"))).collect();
        let resting = rest(locks.iter().map(FairLock::try_lock).collect()).await;
        let began = Instant::now();
        client.lock("free").lock().await.unwrap().unlock().await.unwrap();
        // The client passes over 256 of them at once, three times.
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        drop(resting);
    })
    .await;
}

#[tokio::test]
async fn a_probe_that_rests_keeps_the_gate_closed_for_a_moment_only() {
    // All others once waited 5 s, and lost leases of 3 s.
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let client = embedded.open(Timing::default().builder()).await;
        let kept = lock_many(&client, "k", 20).await;
        let lock = client.lock("free");
        let mut locking = Box::pin(lock.lock());
        embedded.network.refuse(Some("BUSY Redis is busy running a script."));
        let refused = embedded.network.refused();
        // The server refuses its request once, and then it is the probe.
        while embedded.network.refused() < refused + 2 {
            assert!((&mut locking).now_or_never().is_none());
            sleep(MILLI).await;
        }
        embedded.network.refuse(None);
        sleep(10 * SECOND).await;
        assert!(kept.iter().all(|guard| guard.is_valid()));
        drop(locking);
        unlock_all(kept).await;
    })
    .await;
}

/// One of them once blamed its own caller, or another, for not polling.
#[tokio::test]
async fn calls_of_one_owner_that_run_out_of_time_together_blame_the_server() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let client = embedded.open(LockClient::builder().operation_timeout(2 * SECOND)).await;
        let (lock, owner) = (client.lock("x"), Owner::new());
        let guard = owner.scope(lock.lock()).await.unwrap();
        let nested = owner.scope(lock.lock()).await.unwrap();
        let last = owner.scope(lock.lock()).await.unwrap();
        embedded.network.silence(true);
        let outcomes = tokio::join!(
            async { guard.extend(60 * SECOND).await.map_err(|error| error.to_string()) },
            async { owner.scope(lock.try_lock()).await.map(drop).map_err(|error| error.to_string()) },
            async { nested.unlock().await.map(drop).map_err(|error| error.to_string()) },
            async { guard.extend(60 * SECOND).await.map_err(|error| error.to_string()) },
            async { last.unlock().await.map(drop).map_err(|error| error.to_string()) },
        );
        for outcome in [outcomes.0, outcomes.1, outcomes.2, outcomes.3, outcomes.4] {
            let text = outcome.expect_err("the server is silent");
            // The error of the request that had the turn, if the client knew it already.
            assert!(text.contains("no answer within 2s") || text.contains("no answer yet"), "{text}");
        }
        embedded.network.silence(false);
        guard.unlock().await.unwrap();
    })
    .await;
}

/// The call's time ends while the client confirms its grant for the first time.
#[tokio::test]
async fn a_wait_that_is_granted_too_late_says_that_others_had_the_lock() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(50 * MILLI);
        let builder = || LockClient::builder().poll_interval(SECOND);
        let (client, other) = (embedded.open(builder()).await, embedded.open(builder()).await);
        let held = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        assert!(lock.is_locked().await.unwrap());
        // A poll finds the grant.
        embedded.network.lose_messages(true);
        let waiting = lock.lock_timeout(SECOND + 250 * MILLI);
        let releasing = async {
            sleep(SECOND / 2).await;
            held.unlock().await.unwrap();
        };
        let (outcome, ()) = tokio::join!(waiting, releasing);
        assert!(matches!(outcome, Err(LockError::Timeout { .. })), "{outcome:?}");
    })
    .await;
}

/// The same if the server does not answer the release of a dropped guard: the client sends another one next to it, and
/// gets an answer to that.
#[tokio::test]
async fn a_call_behind_a_release_of_its_own_that_has_no_answer_does_not_say_that_others_have_the_lock() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let lock = embedded.open(LockClient::builder().operation_timeout(SECOND)).await.lock("x");
        let owner = Owner::new();
        let guard = owner.scope(lock.lock()).await.unwrap();
        drop(guard);
        embedded.network.silence(true);
        let calming = async {
            sleep(200 * MILLI).await;
            embedded.network.silence(false);
        };
        let (outcome, ()) = tokio::join!(owner.scope(lock.lock_timeout(SECOND / 2)), calming);
        let error = outcome.unwrap_err();
        assert!(!error.is_busy() && error.to_string().contains("no answer yet"), "{error}");
    })
    .await;
}

/// The same if the request arrived too late, because the client does not know the server's clock yet.
#[tokio::test]
async fn a_call_whose_request_was_late_does_not_say_that_others_have_the_lock() {
    in_virtual_time(async |embedded| {
        embedded.network.delay(MILLI);
        let mut late = 0;
        for limit in 3..60 {
            let lock = embedded.open(LockClient::builder()).await.lock("x");
            match lock.lock_timeout(limit * MILLI).await {
                Ok(guard) => drop(guard.unlock().await),
                Err(error) => {
                    assert!(!error.is_busy() && error.to_string().contains("no answer yet"), "{limit} ms: {error}");
                    late += 1;
                }
            }
        }
        assert!(late > 0);
    })
    .await;
}

/// But if the owner's first call waits for other owners, the lock is busy.
#[tokio::test]
async fn calls_behind_one_of_their_owner_that_waits_find_the_lock_taken() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        servers.iter().for_each(|server| server.network.delay(MILLI));
        let (client, other) = (of_several(servers, 30 * SECOND), of_several(servers, 30 * SECOND));
        let (lock, owner) = (client.lock("x"), Owner::new());
        let held = other.lock("x").lock().await.unwrap();
        let mut waiting = Box::pin(owner.scope(lock.lock()));
        timeout(SECOND, &mut waiting).await.expect_err("another client has it");
        let began = Instant::now();
        assert!(owner.scope(lock.try_lock()).await.unwrap().is_busy());
        assert!(began.elapsed() < SECOND / 10);
        assert!(owner.scope(lock.lock_timeout(SECOND)).await.unwrap_err().is_busy());
        held.unlock().await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn waits_that_rest_cost_others_a_quarter_of_a_second_each() {
    // Each once cost a whole grant, 3 s.
    in_virtual_time(async |embedded| {
        let said = Collect::default();
        let _here = said.clone().here();
        let (client, other) = (client(embedded).await, client(embedded).await);
        let held = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        // The client knows the server's time from its first answer on.
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
        let mut resting = rest((0..20).map(|_| lock.lock()).collect()).await;
        assert_eq!(other.lock("x").status().await.unwrap().waiters, 20);
        let began = Instant::now();
        let next = other.lock("x");
        let (_, guard) = tokio::join!(held.unlock(), next.lock());
        assert!(began.elapsed() < 20 * SECOND / 4 + SECOND, "{:?}", began.elapsed());
        guard.unwrap().unlock().await.unwrap();
        let lines = said.lines();
        assert!(said.saw("DEBUG", "a waiting future was not polled when its turn came"), "{lines:?}");
        // If its caller polls it again, the call rejoins the queue.
        let late = timeout(SECOND, resting.pop().unwrap()).await.expect("the lock is free or goes on").unwrap();
        late.unlock().await.unwrap();
        drop(resting);
    })
    .await;
}

/// The next renewal was once due a third of a lease after the last one, which had asked for less. After a fix, it was
/// due after the pause that follows an unanswered renewal, half a second.
#[tokio::test]
async fn a_set_whose_call_rested_is_renewed_however_little_is_left() {
    in_virtual_time(async |embedded| {
        let (client, other) = (client(embedded).await, client(embedded).await);
        let lease = 30 * SECOND;
        for left in [700, 800, 900, 1200, 2000, 5000, 9000].map(Duration::from_millis) {
            let held = other.lock("b").lock().await.unwrap();
            let set = client.lock_all(["a", "b"]);
            let mut waiting = Box::pin(set.lock());
            assert!(timeout(SECOND, &mut waiting).await.is_err());
            sleep(lease - left).await;
            held.unlock().await.unwrap();
            let guard = waiting.await.unwrap();
            sleep(2 * lease).await;
            assert!(guard.is_valid(), "{left:?} were left");
            guard.unlock().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn max_hold_of_a_set_counts_from_when_it_is_whole() {
    // Once, a set that waited longer than max_hold was never granted.
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder().max_hold(60 * SECOND)).await;
        let other = embedded.open(LockClient::builder()).await;
        let held = other.lock("b").lock().await.unwrap();
        let set = client.lock_all(["a", "b"]);
        let (guard, ()) = tokio::join!(set.lock(), async {
            sleep(300 * SECOND).await;
            held.unlock().await.unwrap();
        });
        let guard = guard.unwrap();
        sleep(50 * SECOND).await;
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn no_renewal_goes_beyond_max_hold() {
    // A renewal that was due before max_hold and retried after it once set a whole lease.
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder().max_hold(60 * SECOND)).await;
        let guard = client.lock("x").lock().await.unwrap();
        let began = Instant::now();
        sleep(48 * SECOND).await;
        embedded.network.refuse(Some("BUSY Redis is busy running a script."));
        sleep(20 * SECOND).await;
        embedded.network.refuse(None);
        guard.lost().await;
        assert!(began.elapsed() <= 70 * SECOND, "{:?}", began.elapsed());
    })
    .await;
}

/// A renewal that the server runs late sets its lease from that moment on. The answer to the next one then reported
/// more than `max_hold` had left.
#[tokio::test]
async fn a_renewal_that_is_served_late_does_not_outlast_max_hold() {
    in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder().max_hold(60 * SECOND)).await;
        let guard = client.lock("x").lock().await.unwrap();
        let began = Instant::now();
        sleep(25 * SECOND).await;
        embedded.network.delay(15 * SECOND);
        sleep(7 * SECOND).await;
        embedded.network.delay(Duration::ZERO);
        guard.lost().await;
        assert!(began.elapsed() < 61 * SECOND, "{:?}", began.elapsed());
        // The client gives back the rest of the lease at the server.
        assert!(client.lock("x").lock_timeout(SECOND).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_nested_lock_shares_the_lease_of_its_hold() {
    // The hold once kept the lease of a nested lock after the nested guard had ended.
    in_virtual_time(async |embedded| {
        let client = client(embedded).await;
        let owner = Owner::new();
        let outer = owner.scope(client.lock("x").lock()).await.unwrap();
        let inner = owner.scope(client.lock("x").with_lease(3600 * SECOND).lock()).await.unwrap();
        assert!(inner.valid_for() <= 30 * SECOND, "{:?}", inner.valid_for());
        inner.unlock().await.unwrap();
        sleep(7200 * SECOND).await;
        assert!(outer.is_valid() && outer.valid_for() <= 30 * SECOND);
        outer.unlock().await.unwrap();
        // A nested lock does not extend a fixed lease.
        let outer = owner.scope(client.lock("x").with_lease(20 * SECOND).lock()).await.unwrap();
        sleep(10 * SECOND).await;
        let inner = owner.scope(client.lock("x").lock()).await.unwrap();
        assert!(inner.valid_for() <= 10 * SECOND, "{:?}", inner.valid_for());
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_check_without_an_answer_is_repeated_until_there_is_one() {
    // The client made the check only once, and a fixed lease then looked valid for its whole time.
    in_virtual_time(async |embedded| {
        let (client, other) = (client(embedded).await, client(embedded).await);
        let guard = client.lock("x").with_lease(600 * SECOND).lock().await.unwrap();
        embedded.server.shut_down();
        embedded.server.flush();
        embedded.server.start_up();
        embedded.network.refuse(Some("NOREPLICAS Not enough good replicas to write."));
        sleep(3 * SECOND).await;
        embedded.network.refuse(None);
        let began = Instant::now();
        assert_eq!(guard.lost().await, Loss::Gone);
        assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
        other.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn all_holds_are_checked_after_a_restart_however_many_there_are() {
    // The client once stopped the check after one operation time-out.
    in_virtual_time(async |embedded| {
        let client = client(embedded).await;
        let locks: Vec<_> =
            (0..4000).map(|number| client.lock(format!("n{number}")).with_lease(600 * SECOND)).collect();
        let guards = join_all(locks.iter().map(FairLock::lock)).await;
        embedded.network.delay(25 * MILLI);
        embedded.server.shut_down();
        embedded.server.flush();
        embedded.server.start_up();
        sleep(30 * SECOND).await;
        assert!(guards.iter().all(|guard| !guard.as_ref().unwrap().is_valid()));
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_lasts_although_its_connection_breaks_at_once() {
    // The hold was once lost after the time of the grant.
    in_virtual_time(async |embedded| {
        let (client, other) = (client(embedded).await, client(embedded).await);
        let held = other.lock("x").lock().await.unwrap();
        let lock = client.lock("x").with_lease(600 * SECOND);
        let (guard, ()) = tokio::join!(lock.lock(), async {
            sleep(SECOND / 2).await;
            held.unlock().await.unwrap();
        });
        let guard = guard.unwrap();
        sleep(10 * MILLI).await;
        embedded.server.disconnect(client.id());
        sleep(500 * SECOND).await;
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_that_ends_unnoticed_is_told() {
    // There was no warning, and unlock returned Gone.
    in_virtual_time(async |embedded| {
        let client = client(embedded).await;
        let guard = client.lock("x").with_lease(10 * SECOND).lock().await.unwrap();
        sleep(3000 * SECOND).await;
        let ended = guard.unlock().await;
        assert!(matches!(ended, Err(UnlockError::Lost(Loss::Expired))), "{ended:?}");
    })
    .await;
}
