//! Every public future, polled once and then left alone for an hour: one of them, and a hundred of each kind. Nobody else
//! loses a lock, and nobody waits longer than 250 ms for each of them, or one lease for a set of locks and for several servers.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockGuard};
use futures::FutureExt;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use crate::support::{Embedded, on_several_in_virtual_time};

const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(30);
const EACH: Duration = Duration::from_millis(250);

type Call = Pin<Box<dyn Future<Output = ()>>>;

/// What a call may use. Each has names of its own.
struct Place {
    client: LockClient,
    lock: FairLock,
    /// Another client has it.
    taken: FairLock,
    /// For those that need one.
    guard: Option<LockGuard>,
    quorum: LockClient,
    of_quorum: FairLock,
    quorum_taken: FairLock,
    quorum_guard: Option<LockGuard>,
}

/// How long others may have to wait for one that rests.
#[derive(Clone, Copy, PartialEq)]
enum Cost {
    Moment,
    Lease,
}

/// A call, and what it costs others at most.
type Kind = (&'static str, Cost, fn(Place) -> Call);

const ON_ONE_SERVER: &[Kind] = &[
    ("lock", Cost::Moment, |it| rests(async move { it.lock.lock().await })),
    ("lock, fixed", Cost::Moment, |it| rests(async move { it.lock.with_lease(HOUR).lock().await })),
    ("lock, nested", Cost::Moment, |it| {
        rests(async move {
            let owner = fairlock::Owner::new();
            owner.scope(async { (it.lock.lock().await, it.lock.lock().await) }).await
        })
    }),
    ("lock, in a queue", Cost::Moment, |it| rests(async move { it.taken.lock().await })),
    ("try_lock", Cost::Moment, |it| rests(async move { it.lock.try_lock().await })),
    ("lock_timeout", Cost::Moment, |it| rests(async move { it.lock.lock_timeout(2 * HOUR).await })),
    ("lock_timeout, in a queue", Cost::Moment, |it| rests(async move { it.taken.lock_timeout(2 * HOUR).await })),
    ("with", Cost::Moment, |it| rests(async move { it.lock.with(async |_| ()).await })),
    ("in a scope", Cost::Moment, |it| rests(fairlock::Owner::new().scope(async move { it.lock.lock().await }))),
    ("run", Cost::Moment, |it| rests(async move { it.client.run(it.lock.lock()).await })),
    ("unlock", Cost::Moment, |it| rests(it.guard.unwrap().unlock())),
    ("lost", Cost::Moment, |it| rests(async move { it.guard.unwrap().held().ended().await })),
    ("ended", Cost::Moment, |it| rests(async move { it.guard.unwrap().held().ended().await })),
    ("status", Cost::Moment, |it| rests(async move { it.lock.status().await })),
    ("is_locked", Cost::Moment, |it| rests(async move { it.lock.is_locked().await })),
    ("force_unlock", Cost::Moment, |it| rests(async move { it.lock.force_unlock().await })),
    ("force_unlock_token", Cost::Moment, |it| rests(async move { it.lock.force_unlock_token(1).await })),
    ("ping", Cost::Moment, |it| rests(async move { it.client.ping().await })),
    ("list", Cost::Moment, |it| rests(async move { it.client.list("*").next().await })),
    ("watch_state", Cost::Moment, |it| rests(async move { it.client.watch_state().changed().await })),
    ("lock_all", Cost::Lease, |it| {
        rests(async move { it.client.lock_all([it.lock.name(), it.taken.name()]).lock().await })
    }),
    ("lock_all, try_lock", Cost::Lease, |it| {
        rests(async move { it.client.lock_all([it.lock.name()]).try_lock().await })
    }),
    ("lock_all, lock_timeout", Cost::Lease, |it| {
        rests(async move { it.client.lock_all([it.lock.name(), it.taken.name()]).lock_timeout(2 * HOUR).await })
    }),
];

const ON_SEVERAL: &[Kind] = &[
    ("lock", Cost::Lease, |it| rests(async move { it.of_quorum.lock().await })),
    ("lock, at a gate", Cost::Lease, |it| rests(async move { it.quorum_taken.lock().await })),
    ("try_lock", Cost::Lease, |it| rests(async move { it.of_quorum.try_lock().await })),
    ("lock_timeout", Cost::Lease, |it| rests(async move { it.of_quorum.lock_timeout(2 * HOUR).await })),
    ("with", Cost::Lease, |it| rests(async move { it.of_quorum.with(async |_| ()).await })),
    ("unlock", Cost::Lease, |it| rests(it.quorum_guard.unwrap().unlock())),
    ("lost", Cost::Lease, |it| rests(async move { it.quorum_guard.unwrap().lost().await })),
    ("status", Cost::Lease, |it| rests(async move { it.of_quorum.status().await })),
    ("force_unlock", Cost::Lease, |it| rests(async move { it.of_quorum.force_unlock().await })),
    ("lock_all", Cost::Lease, |it| rests(async move { it.quorum.lock_all([it.of_quorum.name()]).lock().await })),
];

fn rests<T: 'static>(call: impl Future<Output = T> + 'static) -> Call {
    Box::pin(call.map(drop))
}

fn quorum_of(servers: &[Embedded]) -> LockClient {
    let servers: Vec<_> = servers.iter().map(|each| each.server.clone()).collect();
    LockClient::builder().without_strict_restart().embedded(&servers).expect("the servers are there")
}

/// `count` calls of one kind rest, and others do what they do.
async fn is_left_alone((what, cost, call): Kind, on_several: bool, count: usize) {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let (client, other) =
            (servers[0].open(LockClient::builder()).await, servers[0].open(LockClient::builder()).await);
        let (quorum, other_quorum) = (quorum_of(servers), quorum_of(servers));
        let mut kept = Vec::new();
        for number in 0..5 {
            kept.push(client.lock(format!("kept {number}")).lock().await.unwrap());
        }
        let (mut calls, mut taken, mut quorum_taken) = (Vec::new(), Vec::new(), Vec::new());
        let needs_a_guard = ["unlock", "lost", "ended"].contains(&what);
        for number in 0..count {
            let name = |what| format!("{what} {number}");
            let (mut guard, mut quorum_guard) = (None, None);
            if on_several {
                quorum_taken.push(other_quorum.lock(name("quorum taken")).lock().await.unwrap());
                if needs_a_guard {
                    quorum_guard = Some(quorum.lock(name("quorum guarded")).lock().await.unwrap());
                }
            } else {
                taken.push(other.lock(name("taken")).lock().await.unwrap());
                if needs_a_guard {
                    guard = Some(client.lock(name("guarded")).lock().await.unwrap());
                }
            }
            let place = Place {
                lock: client.lock(name("free")),
                taken: client.lock(name("taken")),
                guard,
                of_quorum: quorum.lock(name("quorum free")),
                quorum_taken: quorum.lock(name("quorum taken")),
                quorum_guard,
                client: client.clone(),
                quorum: quorum.clone(),
            };
            calls.push(call(place));
        }
        for call in &mut calls {
            let _ = call.now_or_never();
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let most = if cost == Cost::Lease { LEASE } else { EACH } * count as u32 + Duration::from_secs(2);
        // Those who wait behind them, and another name of the same client.
        if on_several {
            let names = (0..count).map(|number| other_quorum.lock(format!("quorum free {number}")));
            let names: Vec<_> = names.collect();
            drop(join_all(names.iter().map(FairLock::lock)).await);
        } else {
            let names: Vec<_> = (0..count).map(|number| other.lock(format!("free {number}"))).collect();
            drop(join_all(names.iter().map(FairLock::lock)).await);
        }
        let again: Vec<_> = (0..count).map(|number| other.lock(format!("taken {number}"))).collect();
        drop(taken);
        for lock in &again {
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
        client.lock("another").lock().await.unwrap().unlock().await.unwrap();
        assert!(began.elapsed() <= most, "{what}, {count}: others waited {:?}", began.elapsed());
        sleep(HOUR).await;
        assert!(kept.iter().all(LockGuard::is_valid), "{what}, {count}: a lock was lost");
        assert!(quorum_taken.iter().all(LockGuard::is_valid), "{what}, {count}: a lock of a quorum was lost");
        drop((calls, quorum_taken, kept));
    })
    .await;
}

/// One kind after the other.
async fn each_is_left_alone(on_one_server: usize, on_several: usize) {
    for kind in ON_ONE_SERVER {
        is_left_alone(*kind, false, on_one_server).await;
    }
    for kind in ON_SEVERAL {
        is_left_alone(*kind, true, on_several).await;
    }
}

#[tokio::test]
async fn each_public_future_may_rest_alone() {
    each_is_left_alone(1, 1).await;
}

#[tokio::test]
async fn each_public_future_may_rest_in_hundreds() {
    // Several servers: each is a call to each of them, and is renewed there.
    each_is_left_alone(100, 30).await;
}
