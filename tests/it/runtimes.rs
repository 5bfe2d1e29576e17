//! Runtimes that end before the client, that lack something, or that share a client; and what a scope is in each.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::Duration;

use fairlock::{ConnectError, Ended, FairLock, LockClient, LockError, Loss, Owner, RequestError, UnlockError, owner};
use futures::future::join_all;
use futures::{FutureExt, TryStreamExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tokio::task::LocalSet;

use crate::support::{LONGEST_WAIT, Server, Timing, eventually, limit, on_each_store};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn each_call_says_that_the_runtime_is_gone(lock: &FairLock) {
    assert!(matches!(lock.lock().await, Err(LockError::RuntimeGone)));
    assert!(matches!(lock.lock_timeout(LONGEST_WAIT).await, Err(LockError::RuntimeGone)));
    assert!(matches!(lock.try_lock().await, Err(LockError::RuntimeGone)));
    assert!(matches!(lock.status().await, Err(RequestError::RuntimeGone)));
    assert!(matches!(lock.is_locked().await, Err(RequestError::RuntimeGone)));
    assert!(matches!(lock.force_unlock().await, Err(RequestError::RuntimeGone)));
}

/// Everything that depends on a client whose runtime has ended, called from another runtime and thread.
#[test]
fn a_client_whose_runtime_is_gone_says_so_at_once() {
    for first in [runtime(), Builder::new_current_thread().enable_all().build().unwrap()] {
        let here = runtime();
        let server = here.block_on(Server::start());
        let timing = Timing::relaxed();
        let client = first.block_on(timing.connect(&server.url()));
        let guard = first.block_on(client.lock("held").lock()).unwrap();
        let nested = first.block_on(guard_of_a_lost_unlock(&client));
        // It is waiting when the runtime ends, in its own thread and runtime.
        let waiting = {
            let lock = client.lock("held");
            std::thread::spawn(move || runtime().block_on(limit(async move { lock.lock().await.map(drop) })))
        };
        // A runtime of one thread works only while it is driven.
        first.block_on(async {
            let observer = timing.connect(&server.url()).await;
            let lock = observer.lock("held");
            eventually("it waits", async || lock.status().await.unwrap().waiters == 1).await;
            observer.close().await.unwrap();
        });
        drop(first);
        assert!(matches!(waiting.join().unwrap(), Err(LockError::RuntimeGone)));
        here.block_on(limit(async {
            // No time-out ends these calls: the operation time-out is 10 s, and the limit for all of them is 5 s.
            let all = async {
                each_call_says_that_the_runtime_is_gone(&client.lock("other")).await;
                assert!(matches!(nested.unlock().await, Err(UnlockError::RuntimeGone { .. })));
                assert!(guard.is_valid(), "nobody else can have it yet");
                assert_eq!(client.close().await.unwrap_err().unfinished, 1);
            };
            tokio::time::timeout(Duration::from_secs(5), all).await.expect("at once");
        }));
    }
}

/// More calls than one step of the machine attends to. Afterwards `close` ends the holds.
#[test]
fn hundreds_of_calls_hear_that_the_runtime_is_gone_and_close_ends_the_holds() {
    const CALLS: usize = 500;
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::relaxed().connect(&server.url()));
    let locks: Vec<_> = (0..CALLS).map(|name| client.lock(name.to_string())).collect();
    let guards = first.block_on(join_all(locks.iter().map(|lock| lock.lock().map(Result::unwrap))));
    let waiting: Vec<_> = (0..CALLS)
        .map(|name| {
            let lock = locks[name].clone();
            here.spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    here.block_on(limit(async {
        let observer = Timing::relaxed().connect(&server.url()).await;
        let last = observer.lock((CALLS - 1).to_string());
        eventually("all wait", async || last.status().await.unwrap().waiters == 1).await;
        observer.close().await.unwrap();
    }));
    drop(first);
    here.block_on(limit(async {
        for waiting in waiting {
            assert!(matches!(waiting.await.unwrap(), Err(LockError::RuntimeGone)));
        }
        assert!(guards.iter().all(|guard| guard.is_valid()));
        let unfinished = client.close().await.unwrap_err().unfinished;
        assert_eq!(unfinished, CALLS);
        for guard in &guards {
            assert!(!guard.is_valid());
            assert_eq!(guard.lost().await, Loss::Closed);
        }
    }));
}

/// All four requests were under way. They returned the error of the connection, which ends with the runtime.
#[test]
fn a_request_under_way_as_the_runtime_ends_says_so() {
    let here = runtime();
    let server = here.block_on(Server::start());
    for first in (0..8).map(|_| runtime()) {
        let client = first.block_on(Timing::relaxed().connect(&server.url()));
        let lock = client.lock("x");
        server.pause();
        let requests = [
            async { client.ping().await.map(drop) }.boxed(),
            async { lock.status().await.map(drop) }.boxed(),
            async { lock.force_unlock().await.map(drop) }.boxed(),
            async { client.list("*").try_collect::<Vec<_>>().await.map(drop) }.boxed(),
        ];
        let mut all = join_all(requests);
        here.block_on(async { assert!((&mut all).now_or_never().is_none(), "each is sent") });
        let ending = std::thread::spawn(|| drop(first));
        for outcome in here.block_on(limit(all)) {
            assert!(matches!(outcome, Err(RequestError::RuntimeGone)), "{outcome:?}");
        }
        ending.join().unwrap();
        server.resume();
    }
}

/// The client looks up host names in the blocking pool. While the pool was full, it did not reconnect, and lost each
/// lock.
#[test]
fn a_full_blocking_pool_does_not_keep_a_client_from_its_server() {
    let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(limit(async {
        let server = Server::start().await;
        let client = Timing::relaxed().connect(&server.url().replace("127.0.0.1", "localhost")).await;
        let guard = client.lock("held").lock().await.unwrap();
        // Blocks the pool for the whole test, as a job under a lock does.
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let job = tokio::task::spawn_blocking(move || {
            let _ = ends.recv();
        });
        for _ in 0..2 {
            let before = server.connections().await;
            let mut redis = server.connection().await;
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.unwrap();
            let is_back = async || client.lock("other").try_lock().await.is_ok_and(|guard| guard.into_result().is_ok());
            eventually("it is back", is_back).await;
            assert!(server.connections().await > before + 1);
        }
        assert!(guard.is_valid() && !job.is_finished());
        drop(end);
        job.await.unwrap();
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    }));
}

/// A cluster without any known node lacks a connection that could report the end.
#[test]
fn a_client_without_any_node_hears_of_the_end_of_its_runtime() {
    let (first, here) = (runtime(), runtime());
    let connecting = Timing::default().builder().retry_on_initial_connect().connect("redis+cluster://127.0.0.1:1");
    let client = first.block_on(connecting).unwrap();
    drop(first);
    here.block_on(limit(each_call_says_that_the_runtime_is_gone(&client.lock("x"))));
}

async fn guard_of_a_lost_unlock(client: &LockClient) -> fairlock::LockGuard {
    client.lock("unlocked later").lock().await.unwrap()
}

/// P10: the deadline of its guard passes while the future is not polled. That ends nothing, and must not be due again
/// and again.
#[cfg(target_os = "linux")]
#[test]
fn a_detach_that_rests_when_its_runtime_ends_keeps_no_thread_busy() {
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::default().connect(&server.url()));
    let guard = first.block_on(client.lock("x").lock()).unwrap();
    let left = guard.valid_for();
    server.pause();
    let mut detaching = Box::pin(guard.detach(LONGEST_WAIT));
    here.block_on(async { assert!(detaching.as_mut().now_or_never().is_none()) });
    drop(first);
    std::thread::sleep(left + Duration::from_secs(1));
    server.resume();
    assert!(hundredths_of_deadline_threads() < 10);
    assert!(here.block_on(limit(detaching)).is_err());
}

/// Background work had timers of the runtime that had ended, and panicked.
#[test]
fn a_shrink_goes_on_when_the_runtime_of_its_caller_ends() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    const THREADS: &str = "client of a shrink";
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == Some(THREADS) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    let home = Builder::new_multi_thread().worker_threads(1).thread_name(THREADS).enable_all().build().unwrap();
    let caller = runtime();
    let server = home.block_on(Server::start());
    let client = home.block_on(Timing::relaxed().connect(&server.url()));
    let semaphore = client.semaphore("x", 3);
    let permit = home.block_on(semaphore.acquire_many(3)).unwrap();
    server.pause();
    let mut shrinking = Box::pin(permit.shrink_to(1));
    caller.block_on(async { assert!(shrinking.as_mut().now_or_never().is_none()) });
    drop(caller);
    server.resume();
    home.block_on(limit(async {
        assert!(shrinking.await.is_ok());
        eventually("the others are free", async || semaphore.status().await.unwrap().used == 1).await;
    }));
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

/// The CPU time of the threads that watch deadlines.
#[cfg(target_os = "linux")]
fn hundredths_of_deadline_threads() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of_deadlines = stats.filter(|stat| stat.contains("(fairlock-deadli"));
    let times = of_deadlines.map(|stat| {
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    });
    times.sum()
}

/// The runtime ended the watchdog as well, so the lease ends: the holder learns of it at its deadline.
#[test]
fn a_hold_of_a_client_whose_runtime_is_gone_is_lost_at_its_deadline() {
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::default().connect(&server.url()));
    let watched = first.block_on(client.lock("watched").lock()).unwrap();
    let fixed = first.block_on(client.lock("fixed").with_lease(Timing::default().lease).lock()).unwrap();
    let (token, view) = (watched.ended_token(), fixed.held());
    drop(first);
    assert!(watched.is_valid() && fixed.is_valid());
    here.block_on(limit(async {
        token.cancelled().await;
        assert!(!watched.is_valid());
        assert_eq!(watched.lost().await, Loss::Expired);
        assert_eq!(view.ended().await, Ended::Lost(Loss::Expired));
    }));
}

/// A runtime of one thread that is not driven has not ended: it may be driven again.
#[test]
fn a_runtime_that_rests_is_not_gone() {
    let (first, here) = (Builder::new_current_thread().enable_all().build().unwrap(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::relaxed().connect(&server.url()));
    let outcome = here.block_on(client.lock("x").lock_timeout(Duration::from_millis(50)));
    assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
    first.block_on(async { client.lock("x").lock().await.unwrap().unlock().await.unwrap() });
}

#[test]
fn a_runtime_without_time_or_io_is_refused() {
    let helper = runtime();
    let server = helper.block_on(Server::start());
    for (time, io) in [(false, false), (true, false), (false, true)] {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            time.then(|| builder.enable_time());
            io.then(|| builder.enable_io());
            let lacking = builder.build().unwrap();
            let here = lacking.block_on(LockClient::connect(server.url()));
            assert!(matches!(here, Err(ConnectError::NoRuntime)), "time {time}, io {io}: {here:?}");
            let there = LockClient::builder().runtime(lacking.handle().clone());
            let there = helper.block_on(there.connect(server.url()));
            assert!(matches!(there, Err(ConnectError::NoRuntime)), "time {time}, io {io}: {there:?}");
        }
    }
    let gone = runtime();
    let builder = LockClient::builder().runtime(gone.handle().clone());
    drop(gone);
    let outcome = helper.block_on(builder.connect(server.url()));
    assert!(matches!(outcome, Err(ConnectError::NoRuntime)), "{outcome:?}");
}

#[cfg(feature = "embedded")]
#[test]
fn the_embedded_server_needs_time_only() {
    let server = fairlock::EmbeddedServer::new();
    let without = Builder::new_current_thread().build().unwrap();
    let refused = without.block_on(async { LockClient::builder().embedded(&server) });
    assert!(matches!(refused, Err(ConnectError::NoRuntime)), "{refused:?}");
    let with = Builder::new_current_thread().enable_time().build().unwrap();
    with.block_on(async {
        let client = LockClient::builder().embedded(&server).unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    });
}

/// The example in the documentation of `LockClientBuilder::runtime`.
async fn shared(url: &str) -> &'static LockClient {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(runtime);
    static CLIENT: OnceCell<LockClient> = OnceCell::const_new();
    let connect = async || {
        let builder = Timing::relaxed().builder().runtime(RUNTIME.handle().clone());
        builder.connect(url).await.unwrap()
    };
    CLIENT.get_or_init(connect).await
}

/// Each `#[tokio::test]` has its own runtime, which ends with the test.
#[test]
fn a_shared_client_serves_runtimes_one_after_the_other_and_at_the_same_time() {
    // Not static, unlike the client: otherwise it would live on after the tests.
    let server = runtime().block_on(Server::start());
    let url = server.url();
    let section = async |name: &str| {
        let client = shared(&url).await;
        let guard = client.lock(name).lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        guard.unlock().await.unwrap();
        // The client releases this one after the runtime that dropped the guard has ended.
        drop(client.lock(format!("{name} dropped")).lock().await.unwrap());
    };
    for round in 0..4 {
        let current = Builder::new_current_thread().enable_all().build().unwrap();
        if round % 2 == 0 { current.block_on(limit(section("x"))) } else { runtime().block_on(limit(section("x"))) }
    }
    let many = || (0..10).for_each(|_| runtime().block_on(limit(section("x"))));
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(many))));
}

/// If a scope drives the LocalSet, it polls a task that `spawn_local` made outside the scope.
#[tokio::test]
async fn a_scope_that_drives_a_local_set_lends_its_owner_to_nobody() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let inside = std::rc::Rc::new(std::cell::Cell::new(0));
        let local = LocalSet::new();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (lock, inside) = (client.lock("local"), inside.clone());
                local.spawn_local(async move {
                    assert_eq!(owner::current(), None);
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.replace(inside.get() + 1), 0, "alone");
                    tokio::task::yield_now().await;
                    inside.set(inside.get() - 1);
                    guard.unlock().await.unwrap();
                })
            })
            .collect();
        let me = Owner::new();
        me.scope(local.run_until(async {
            assert_eq!(owner::current(), Some(me));
            for task in tasks {
                task.await.unwrap();
                assert_eq!(owner::current(), Some(me));
            }
        }))
        .await;
        client.close().await.unwrap();
    })
    .await;
}

/// The owner goes with its future: to another task, into branches, and through a nested block_on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_keeps_its_owner_where_its_future_goes() {
    use futures::StreamExt;
    use futures::stream::FuturesUnordered;
    let me = Owner::new();
    let seen = || async { owner::current() };
    let mut moving = Box::pin(me.scope(async move {
        tokio::task::yield_now().await;
        let branches: FuturesUnordered<_> = (0..3).map(|_| seen()).collect();
        let branches: Vec<_> = branches.collect().await;
        assert_eq!(branches, [Some(me); 3]);
        let blocking = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(seen()));
        let nested = owner::scope(seen()).await;
        let spawned = tokio::spawn(seen()).await.unwrap();
        (owner::current(), nested, blocking, spawned)
    }));
    // It begins in the task of the test, and ends in another.
    assert!(moving.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending());
    assert_eq!(owner::current(), None);
    let seen = tokio::spawn(moving).await.unwrap();
    assert_eq!(seen, (Some(me), Some(me), Some(me), None));
}

/// Polls the future in this thread, which is in no runtime.
fn outside<F: Future>(work: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// P10: a thread without a runtime has no timers, and every call works in it all the same.
#[test]
fn p10_each_call_works_outside_of_any_runtime() {
    let here = runtime();
    let servers = here.block_on(async { [Server::start().await, Server::start().await, Server::start().await] });
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    for urls in [&urls[..1], &urls] {
        let builder = Timing::default().builder().without_strict_restart();
        let client = here.block_on(builder.connect(urls.to_vec())).unwrap();
        let lock = client.lock("x");
        outside(async {
            let guard = lock.lock_timeout(LONGEST_WAIT).await.unwrap();
            assert!(lock.try_lock().await.unwrap().is_busy());
            assert!(matches!(lock.lock_timeout(Duration::from_millis(20)).await, Err(LockError::Timeout { .. })));
            guard.extend(Duration::from_secs(60)).await.unwrap();
            assert!(lock.status().await.unwrap().holder.is_some());
            guard.unlock().await.unwrap();
            lock.with(async |_| {}).await.unwrap();
            let set = client.lock_all(["a", "b"]).lock().await.unwrap();
            set.unlock().await.unwrap();
            assert!(!lock.force_unlock().await.unwrap());
            assert_eq!(client.list("*").try_collect::<Vec<_>>().await.unwrap().len(), 0);
            drop(lock.lock().await.unwrap());
            client.close().await.unwrap();
        });
    }
}

/// P10: nothing ends the wait for a close but the answers and the client's runtime.
#[test]
fn p10_a_client_whose_runtime_is_gone_closes_outside_of_any_runtime() {
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::default().connect(&server.url()));
    let guard = first.block_on(client.lock("x").lock()).unwrap();
    drop(first);
    assert_eq!(outside(client.close()).unwrap_err().unfinished, 1);
    drop(guard);
}
