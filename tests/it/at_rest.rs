//! Polls every public future once and then leaves it alone for an hour: one future, and a hundred of each kind. No
//! other call may lose a lock, or wait longer than 250 ms for each of these futures, or longer than the lease of a
//! handle.

// These closures return a call that the test does not poll.
#![allow(clippy::async_yields_async)]

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, ready};
use std::net::TcpListener;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use fairlock::{EmbeddedServer, FairLock, LockClient, Owner};
use futures::FutureExt;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Embedded, on_several_in_virtual_time};

const HOUR: Duration = Duration::from_secs(3600);
/// An hour has 30 of these leases: enough renewals to lose one.
const LEASE: Duration = Duration::from_secs(120);
const EACH: Duration = Duration::from_millis(250);

type Call = Pin<Box<dyn Future<Output = ()>>>;
/// Prepares what the call needs, and returns the call.
type Making = Pin<Box<dyn Future<Output = Call>>>;

/// Everything that a call may use. Each call has its own names.
struct Place {
    servers: Vec<EmbeddedServer>,
    /// The URL of a server that never answers.
    silent: String,
    client: LockClient,
    /// Other calls wait for it.
    lock: FairLock,
    /// Another client holds it.
    taken: FairLock,
    /// Wanted by no other call.
    own: FairLock,
    quorum: LockClient,
    of_quorum: FairLock,
    quorum_taken: FairLock,
    quorum_own: FairLock,
    /// Guards that the test drops once it has polled all calls.
    briefly: Rc<RefCell<Vec<Box<dyn Any>>>>,
}

impl Place {
    fn keep_briefly(&self, guard: impl Any) {
        self.briefly.borrow_mut().push(Box::new(guard));
    }
}

/// A kind of call: its name, and a function that makes it.
type Kind = (&'static str, fn(Place) -> Making);

const ON_ONE_SERVER: &[Kind] = &[
    ("lock", |it| rests(async move { it.lock.lock().await })),
    ("lock, fixed", |it| rests(async move { it.lock.with_lease(HOUR).lock().await })),
    ("lock, nested", |it| {
        rests(async move {
            let owner = Owner::new();
            owner.scope(async { (it.lock.lock().await, it.lock.lock().await) }).await
        })
    }),
    ("lock, in a queue", |it| rests(async move { it.taken.lock().await })),
    ("try_lock", |it| rests(async move { it.lock.try_lock().await })),
    ("lock_timeout", |it| rests(async move { it.lock.lock_timeout(2 * HOUR).await })),
    ("lock_timeout, in a queue", |it| rests(async move { it.taken.lock_timeout(2 * HOUR).await })),
    ("with", |it| rests(async move { it.lock.with(async |_| ()).await })),
    ("in a scope", |it| rests(Owner::new().scope(async move { it.lock.lock().await }))),
    ("run", |it| rests(async move { it.client.run(it.lock.lock()).await })),
    ("lock, inside of its own", |it| {
        after(async move {
            let owner = Owner::new();
            it.keep_briefly(owner.scope(it.lock.lock()).await.unwrap());
            call(owner.scope(async move { it.lock.lock().await }))
        })
    }),
    ("unlock", |it| after(async move { call(it.lock.lock().await.unwrap().unlock()) })),
    ("unlock, inside of its own", |it| {
        after(async move {
            let owner = Owner::new();
            it.keep_briefly(owner.scope(it.lock.lock()).await.unwrap());
            call(owner.scope(it.lock.lock()).await.unwrap().unlock())
        })
    }),
    ("extend", |it| {
        after(async move {
            let guard = it.own.with_lease(HOUR).lock().await.unwrap();
            call(async move { guard.extend(2 * HOUR).await })
        })
    }),
    ("detach", |it| after(async move { call(it.lock.lock().await.unwrap().detach(LEASE)) })),
    ("attach", |it| {
        after(async move {
            let handle = it.lock.lock().await.unwrap().detach(HOUR).await.unwrap();
            call(async move { it.client.attach(&handle).await })
        })
    }),
    ("extend, by a handle", |it| {
        after(async move {
            let handle = it.lock.lock().await.unwrap().detach(LEASE).await.unwrap();
            call(async move { it.client.extend(&handle, LEASE).await })
        })
    }),
    ("release, by a handle", |it| {
        after(async move {
            let handle = it.lock.lock().await.unwrap().detach(HOUR).await.unwrap();
            call(async move { it.client.release(&handle).await })
        })
    }),
    ("lost", |it| {
        after(async move {
            let guard = it.own.lock().await.unwrap();
            call(async move { guard.lost().await })
        })
    }),
    ("ended", |it| {
        after(async move {
            let guard = it.own.lock().await.unwrap();
            call(async move { guard.held().ended().await })
        })
    }),
    ("status", |it| rests(async move { it.lock.status().await })),
    ("is_locked", |it| rests(async move { it.lock.is_locked().await })),
    ("force_unlock", |it| rests(async move { it.lock.force_unlock().await })),
    ("force_unlock_token", |it| rests(async move { it.lock.force_unlock_token(1).await })),
    ("ping", |it| rests(async move { it.client.ping().await })),
    ("list", |it| rests(async move { it.client.list("*").next().await })),
    ("watch_state", |it| rests(async move { it.client.watch_state().changed().await })),
    ("lock_all", |it| rests(async move { it.client.lock_all([it.lock.name(), it.own.name()]).lock().await })),
    ("lock_all, try_lock", |it| rests(async move { it.client.lock_all([it.lock.name()]).try_lock().await })),
    ("lock_all, lock_timeout", |it| {
        rests(async move { it.client.lock_all([it.lock.name(), it.own.name()]).lock_timeout(2 * HOUR).await })
    }),
    ("lock_all, unlock", |it| {
        after(async move { call(it.client.lock_all([it.lock.name(), it.own.name()]).lock().await.unwrap().unlock()) })
    }),
    ("lock_all, lost", |it| {
        after(async move {
            let all = it.client.lock_all([it.own.name()]).lock().await.unwrap();
            call(async move { _ = all.lost().await })
        })
    }),
    ("close", |it| {
        after(async move {
            let client = LockClient::builder().embedded(&it.servers[0]).unwrap();
            let held = client.lock(it.lock.name()).lock().await.unwrap();
            call(async move { (client.close().await, held) })
        })
    }),
    ("connect", |it| rests(async move { LockClient::connect(&it.silent).await })),
];

const ON_SEVERAL: &[Kind] = &[
    ("lock", |it| rests(async move { it.of_quorum.lock().await })),
    ("lock, at a gate", |it| rests(async move { it.quorum_taken.lock().await })),
    ("lock, with a part", |it| {
        after(async move {
            for server in &it.servers[1..] {
                let client = LockClient::builder().lease(LEASE).embedded(server).unwrap();
                it.keep_briefly(client.lock(it.of_quorum.name()).lock().await.unwrap());
            }
            with_a_part(async move { it.of_quorum.lock().await }).await
        })
    }),
    ("try_lock", |it| rests(async move { it.of_quorum.try_lock().await })),
    ("lock_timeout", |it| rests(async move { it.of_quorum.lock_timeout(2 * HOUR).await })),
    ("with", |it| rests(async move { it.of_quorum.with(async |_| ()).await })),
    ("lock, nested", |it| {
        rests(Owner::new().scope(async move { (it.of_quorum.lock().await, it.of_quorum.lock().await) }))
    }),
    ("lock, inside of its own", |it| {
        after(async move {
            let owner = Owner::new();
            it.keep_briefly(owner.scope(it.of_quorum.lock()).await.unwrap());
            call(owner.scope(async move { it.of_quorum.lock().await }))
        })
    }),
    ("unlock", |it| after(async move { call(it.of_quorum.lock().await.unwrap().unlock()) })),
    ("unlock, inside of its own", |it| {
        after(async move {
            let owner = Owner::new();
            it.keep_briefly(owner.scope(it.of_quorum.lock()).await.unwrap());
            call(owner.scope(it.of_quorum.lock()).await.unwrap().unlock())
        })
    }),
    ("lost", |it| {
        after(async move {
            let guard = it.quorum_own.lock().await.unwrap();
            call(async move { guard.lost().await })
        })
    }),
    ("status", |it| rests(async move { it.of_quorum.status().await })),
    ("force_unlock", |it| rests(async move { it.of_quorum.force_unlock().await })),
    ("lock_all", |it| rests(async move { it.quorum.lock_all([it.of_quorum.name()]).lock().await })),
    ("lock_all, unlock", |it| {
        after(async move {
            call(it.quorum.lock_all([it.of_quorum.name(), it.quorum_own.name()]).lock().await.unwrap().unlock())
        })
    }),
    ("lock_all, lost", |it| {
        after(async move {
            let all = it.quorum.lock_all([it.quorum_own.name()]).lock().await.unwrap();
            call(async move { _ = all.lost().await })
        })
    }),
    ("close", |it| {
        after(async move {
            let quorum = quorum_of(&it.servers);
            let held = quorum.lock(it.of_quorum.name()).lock().await.unwrap();
            call(async move { (quorum.close().await, held) })
        })
    }),
    ("connect", |it| rests(async move { LockClient::connect([&it.silent; 3]).await })),
];

fn call<T: 'static>(call: impl Future<Output = T> + 'static) -> Call {
    Box::pin(call.map(drop))
}

fn rests<T: 'static>(future: impl Future<Output = T> + 'static) -> Making {
    Box::pin(ready(call(future)))
}

fn after(making: impl Future<Output = Call> + 'static) -> Making {
    Box::pin(making)
}

/// Polls the call until it holds a part of its locks. Others hold the other part.
fn with_a_part<T: 'static>(future: impl Future<Output = T> + 'static) -> Making {
    let mut call = call(future);
    after(async move {
        timeout(Duration::from_millis(100), &mut call).await.expect_err("others have a part");
        call
    })
}

fn quorum_of(servers: &[EmbeddedServer]) -> LockClient {
    LockClient::builder().lease(LEASE).without_strict_restart().embedded(servers).expect("the servers are there")
}

/// Polls `count` calls of one kind once, and checks that other calls go on.
async fn is_left_alone((what, make): Kind, on_several: bool, count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}", listener.local_addr().unwrap());
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let servers: Vec<_> = servers.iter().map(|each| each.server.clone()).collect();
        let open = || LockClient::builder().lease(LEASE).embedded(&servers[0]).expect("the server is there");
        let (client, other) = (open(), open());
        let (quorum, other_quorum) = (quorum_of(&servers), quorum_of(&servers));
        let mut kept = Vec::new();
        let mut quorum_kept = Vec::new();
        for number in 0..2 {
            kept.push(client.lock(format!("kept {number}")).lock().await.unwrap());
        }
        if on_several {
            quorum_kept.push(quorum.lock("quorum kept").lock().await.unwrap());
        }
        let (mut calls, mut taken, mut quorum_taken) = (Vec::new(), Vec::new(), Vec::new());
        let briefly = Rc::<RefCell<Vec<Box<dyn Any>>>>::default();
        for number in 0..count {
            let name = |what| format!("{what} {number}");
            if on_several {
                quorum_taken.push(other_quorum.lock(name("quorum taken")).lock().await.unwrap());
            } else {
                taken.push(other.lock(name("taken")).lock().await.unwrap());
            }
            let place = Place {
                servers: servers.clone(),
                silent: silent.clone(),
                lock: client.lock(name("free")),
                taken: client.lock(name("taken")),
                own: client.lock(name("own")),
                of_quorum: quorum.lock(name("quorum free")),
                quorum_taken: quorum.lock(name("quorum taken")),
                quorum_own: quorum.lock(name("quorum own")),
                client: client.clone(),
                quorum: quorum.clone(),
                briefly: briefly.clone(),
            };
            calls.push(make(place).await);
        }
        for call in &mut calls {
            assert!(call.now_or_never().is_none(), "{what}: it rests");
            tokio::task::yield_now().await;
        }
        briefly.take();
        let began = Instant::now();
        // A handle holds its lock for its lease.
        let each = if what.contains("tach") || what.contains("handle") { LEASE } else { EACH };
        let most = each * count as u32 + Duration::from_secs(2);
        // Waiters after these calls, and another name of the same client.
        if on_several {
            let names: Vec<_> = (0..count).map(|number| other_quorum.lock(format!("quorum free {number}"))).collect();
            let guards = join_all(names.iter().map(FairLock::lock)).await;
            assert!(guards.iter().all(Result::is_ok), "{what}, {count}: {guards:?}");
        } else {
            let names: Vec<_> = (0..count).map(|number| other.lock(format!("free {number}"))).collect();
            let guards = join_all(names.iter().map(FairLock::lock)).await;
            assert!(guards.iter().all(Result::is_ok), "{what}, {count}: {guards:?}");
        }
        drop((taken, quorum_taken));
        for number in 0..count {
            if on_several {
                other_quorum.lock(format!("quorum taken {number}")).lock().await.unwrap().unlock().await.unwrap();
            } else {
                other.lock(format!("taken {number}")).lock().await.unwrap().unlock().await.unwrap();
            }
        }
        client.lock("another").lock().await.unwrap().unlock().await.unwrap();
        assert!(began.elapsed() <= most, "{what}, {count}: others waited {:?}", began.elapsed());
        sleep(HOUR).await;
        assert!(kept.iter().all(|guard| guard.is_valid()), "{what}, {count}: a lock was lost");
        assert!(quorum_kept.iter().all(|guard| guard.is_valid()), "{what}, {count}: a lock of a quorum was lost");
        // A future with a lock keeps it, even without polls.
        for number in 0..if what.ends_with("lost") || what == "ended" { count } else { 0 } {
            let name = |what| format!("{what} {number}");
            let one = other.lock(name("own")).try_lock().await.unwrap();
            let several = other_quorum.lock(name("quorum own")).try_lock().await.unwrap();
            assert!(if on_several { several.is_busy() } else { one.is_busy() }, "{what}, {count}: it lost its own");
        }
        drop((calls, quorum_kept, kept));
    })
    .await;
}

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
    // With several servers, each call is a call to each of them, and the client renews its hold there.
    each_is_left_alone(100, 30).await;
}
