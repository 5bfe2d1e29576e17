//! Read-write locks: the promises restated for readers and writers, and what users expect from Redisson's
//! RReadWriteLock and Curator's InterProcessReadWriteLock.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{FairRwLock, LockClient, LockError, Loss, Owner, UnlockError, Unlocked, WithError, owner};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{
    Inside, Proxy, Random, Timing, eventually, in_virtual_time, on_a_server, on_each_store, under_lost_replies,
};

const NAME: &str = "document";
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

use Access::{Read, Write};

async fn wait_for_waiters(document: &FairRwLock, waiters: u64) {
    eventually("they wait", async || document.status().await.unwrap().waiters == waiters).await;
}

/// Returns the number of readers, and whether there is a writer.
async fn inside(document: &FairRwLock) -> (u64, bool) {
    let status = document.status().await.unwrap();
    (status.reading, status.writer.is_some())
}

/// Waits, sends its number, and leaves when the test asks for it.
fn visit(document: &FairRwLock, access: Access, number: usize, line: &Line) -> JoinHandle<()> {
    let (document, came, mut leave) = (document.clone(), line.came.clone(), line.leave.subscribe());
    tokio::spawn(async move {
        match access {
            Read => {
                let guard = document.read().await.unwrap();
                came.send(number).unwrap();
                leave.wait_for(|up_to| *up_to >= number).await.unwrap();
                guard.unlock().await.unwrap();
            }
            Write => {
                let guard = document.write().await.unwrap();
                came.send(number).unwrap();
                leave.wait_for(|up_to| *up_to >= number).await.unwrap();
                guard.unlock().await.unwrap();
            }
        }
    })
}

struct Line {
    came: mpsc::UnboundedSender<usize>,
    leave: tokio::sync::watch::Sender<usize>,
}

impl Line {
    fn new() -> (Self, mpsc::UnboundedReceiver<usize>) {
        let (came, coming) = mpsc::unbounded_channel();
        (Self { came, leave: tokio::sync::watch::Sender::new(0) }, coming)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_valid_writer_is_alone_under_faults() {
    // The units that each takes. A writer takes all of them.
    const READER: u32 = 1;
    const WRITER: u32 = 1024;
    let works = |client: LockClient, inside: Arc<Inside>, mut random: Random| async move {
        let document = client.rw_lock(NAME);
        for _ in 0..60 {
            let timeout = Duration::from_millis(random.below(400));
            let work = Duration::from_micros(random.below(3000));
            if random.chance(0.6) {
                if let Ok(guard) = document.read_timeout(timeout).await {
                    inside.section(guard.held(), READER, WRITER, work).await;
                    drop(guard.unlock().await);
                }
            } else if let Ok(guard) = document.write_timeout(timeout).await {
                inside.section(guard.held(), WRITER, WRITER, work).await;
                match random.below(3) {
                    0 => drop(guard),
                    1 => drop(guard.unlock().await),
                    _ => {
                        if let Ok(guard) = guard.downgrade().await {
                            inside.section(guard.held(), READER, WRITER, work).await;
                        }
                    }
                }
            }
        }
    };
    under_lost_replies(works, async |client| {
        client.rw_lock(NAME).status().await.is_ok_and(|status| status.reading == 0 && status.writer.is_none())
    })
    .await;
}

#[tokio::test]
async fn p2_a_writers_token_is_greater_than_all_before_it() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let document = client.rw_lock(NAME);
        let mut last = 0;
        for _ in 0..10 {
            let readers = [document.read().await.unwrap(), document.read().await.unwrap()];
            let most = readers.iter().map(|guard| guard.token()).max().unwrap();
            assert!(most > last, "also those of readers grow from grant to grant");
            drop(readers);
            let writing = document.write().await.unwrap();
            assert!(writing.token() > most);
            last = writing.token();
            let reading = writing.downgrade().await.unwrap();
            assert_eq!(reading.token(), last, "it goes on under its token");
            reading.unlock().await.unwrap();
        }
        client.close().await.unwrap();
    })
    .await;
}

/// Adjacent readers enter together, and a reader that comes after a waiting writer waits.
#[tokio::test]
async fn p3_first_come_first_served_and_neighbouring_readers_together() {
    on_each_store(async |store| {
        let clients = [store.connect(Timing::relaxed()).await, store.connect(Timing::relaxed()).await];
        let documents = clients.each_ref().map(|client| client.rw_lock(NAME));
        let (line, mut coming) = Line::new();
        let mut visits = vec![visit(&documents[0], Write, 0, &line)];
        assert_eq!(coming.recv().await, Some(0));
        // The first visitor leaves at once, so another one is inside.
        visits.push(visit(&documents[0], Read, 1, &line));
        assert_eq!(coming.recv().await, Some(1));
        let waiting = [Write, Read, Read, Read, Write, Read];
        for (number, access) in waiting.into_iter().enumerate() {
            visits.push(visit(&documents[number % 2], access, number + 2, &line));
            wait_for_waiters(&documents[0], number as u64 + 1).await;
        }
        assert!(documents[1].try_read().await.unwrap().is_busy(), "it would overtake the writer that waits");
        line.leave.send_replace(1);
        assert_eq!(coming.recv().await, Some(2));
        assert_eq!(inside(&documents[0]).await, (0, true));
        line.leave.send_replace(2);
        let mut readers = [coming.recv().await, coming.recv().await, coming.recv().await];
        readers.sort_unstable();
        assert_eq!(readers, [Some(3), Some(4), Some(5)]);
        assert_eq!(inside(&documents[0]).await, (3, false));
        line.leave.send_replace(5);
        assert_eq!(coming.recv().await, Some(6));
        line.leave.send_replace(7);
        assert_eq!(coming.recv().await, Some(7));
        for visit in visits {
            visit.await.unwrap();
        }
        for client in clients {
            client.close().await.unwrap();
        }
    })
    .await;
}

/// Curator and Redisson let readers starve writers, or the other way round.
#[tokio::test]
async fn p3_neither_readers_nor_writers_starve() {
    in_virtual_time(async |server| {
        server.network.delay(Duration::from_millis(1));
        let client = server.open(LockClient::builder()).await;
        let document = client.rw_lock(NAME);
        let until = Instant::now() + 20 * SECOND;
        let readers = (0..8).map(|_| {
            let document = document.clone();
            tokio::spawn(async move {
                let mut visits = 0;
                while Instant::now() < until {
                    let guard = document.read().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    guard.unlock().await.unwrap();
                    visits += 1;
                }
                visits
            })
        });
        let readers: Vec<_> = readers.collect();
        let (mut writes, mut longest) = (0, Duration::ZERO);
        while Instant::now() < until {
            let began = Instant::now();
            let guard = document.write().await.unwrap();
            longest = longest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
            guard.unlock().await.unwrap();
            writes += 1;
        }
        assert!(longest < Duration::from_millis(200), "a writer waited {longest:?}");
        assert!(writes > 100, "{writes}");
        for reader in readers {
            assert!(reader.await.unwrap() > 100);
        }
    })
    .await;
}

#[tokio::test]
async fn p4_counts_are_exact_after_lost_replies() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let (client, other) =
            (Timing::default().connect(&proxy.url()).await, Timing::default().connect(&server.url()).await);
        let (document, seen) = (client.rw_lock(NAME), other.rw_lock(NAME));
        let me = Owner::new();
        me.scope(async {
            proxy.lose_next_reply();
            let write = document.write().await.unwrap();
            proxy.lose_next_reply();
            let read = document.read().await.unwrap();
            assert_eq!(seen.status().await.unwrap().writer.unwrap().holds, 2);
            proxy.lose_next_reply();
            // The outer write ends before the read in it, so a reader remains.
            assert_eq!(write.unlock().await.unwrap(), Unlocked::StillHeld(1));
            assert_eq!(inside(&seen).await, (1, false));
            assert!(read.is_valid());
            let second = seen.read().await.unwrap();
            proxy.lose_next_reply();
            assert_eq!(read.unlock().await.unwrap(), Unlocked::Freed);
            assert_eq!(inside(&seen).await, (1, false));
            second.unlock().await.unwrap();
        })
        .await;
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

/// Nested calls in one scope, as with Java's ReentrantReadWriteLock, which Redisson and Curator follow.
#[tokio::test]
async fn nested_reads_and_writes_in_one_scope() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::relaxed()).await, store.connect(Timing::relaxed()).await);
        let (document, theirs) = (client.rw_lock(NAME), other.rw_lock(NAME));
        owner::scope(async {
            let outer = document.read().await.unwrap();
            // Past a waiting writer.
            let writer = theirs.clone();
            let waits = tokio::spawn(async move { writer.write().await.unwrap().unlock().await });
            wait_for_waiters(&document, 1).await;
            let inner = document.read().await.unwrap();
            assert_eq!((inner.holds(), inner.token()), (2, outer.token()));
            assert!(theirs.try_read().await.unwrap().is_busy());
            let began = Instant::now();
            assert!(matches!(document.write().await, Err(LockError::WouldDeadlock)));
            assert!(matches!(document.try_write().await, Err(LockError::WouldDeadlock)));
            let error = document.write_timeout(5 * SECOND).await.unwrap_err();
            assert!(!error.is_busy() && !error.is_retryable());
            assert!(began.elapsed() < SECOND, "it is refused at once");
            assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
            assert_eq!(outer.unlock().await.unwrap(), Unlocked::Freed);
            waits.await.unwrap().unwrap();

            let write = document.write().await.unwrap();
            let (again, read) = (document.write().await.unwrap(), document.read().await.unwrap());
            assert_eq!(read.holds(), 3);
            assert_eq!(write.unlock().await.unwrap(), Unlocked::StillHeld(2));
            assert!(theirs.try_read().await.unwrap().is_busy(), "a write guard is left");
            assert_eq!(again.unlock().await.unwrap(), Unlocked::StillHeld(1));
            assert!(theirs.try_read().await.unwrap().into_result().is_ok(), "a read guard is left");
            assert!(matches!(document.write().await, Err(LockError::WouldDeadlock)));
            assert_eq!(read.unlock().await.unwrap(), Unlocked::Freed);
            document.write().await.unwrap().unlock().await.unwrap();
        })
        .await;
        // Outside a scope, each call is another owner.
        let reading = document.read().await.unwrap();
        assert!(document.try_write().await.unwrap().is_busy());
        reading.unlock().await.unwrap();
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_downgrade_lets_readers_in_and_no_writer_between() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::relaxed()).await, store.connect(Timing::relaxed()).await);
        let (document, theirs) = (client.rw_lock(NAME), other.rw_lock(NAME));
        let writing = document.write().await.unwrap();
        let token = writing.token();
        let (line, mut coming) = Line::new();
        let reader = visit(&theirs, Read, 1, &line);
        wait_for_waiters(&document, 1).await;
        let writer = visit(&theirs, Write, 2, &line);
        wait_for_waiters(&document, 2).await;
        let reading = writing.downgrade().await.unwrap();
        assert_eq!((coming.recv().await, reading.token()), (Some(1), token));
        assert_eq!(inside(&document).await, (2, false));
        line.leave.send_replace(1);
        reader.await.unwrap();
        assert!(coming.try_recv().is_err());
        reading.unlock().await.unwrap();
        assert_eq!(coming.recv().await, Some(2));
        line.leave.send_replace(2);
        writer.await.unwrap();
        // While this owner has another write guard, it stays a writer.
        owner::scope(async {
            let outer = document.write().await.unwrap();
            let inner = document.write().await.unwrap().downgrade().await.unwrap();
            assert!(theirs.try_read().await.unwrap().is_busy());
            drop(inner);
            outer.unlock().await.unwrap();
        })
        .await;
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_downgrade_of_a_lost_guard_is_an_error_and_holds_nothing() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let document = client.rw_lock(NAME);
        let writing = document.write().await.unwrap();
        assert!(other.rw_lock(NAME).force_unlock_token(writing.token()).await.unwrap());
        assert_eq!(writing.lost().await, Loss::Forced);
        assert_eq!(writing.downgrade().await.unwrap_err(), Loss::Forced);
        assert_eq!(inside(&document).await, (0, false));
        let next = other.rw_lock(NAME).write().await.unwrap();
        // The same if only the server knows of the loss.
        let taken = document.read_timeout(Duration::from_millis(50)).await;
        assert!(matches!(taken, Err(LockError::Timeout { .. } | LockError::Unreachable(_))));
        store.flush().await;
        assert_eq!(next.downgrade().await.unwrap_err(), Loss::Gone);
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

/// The downgraded guard is valid, whatever happens to the request.
#[tokio::test]
async fn p4_a_downgrade_whose_answers_are_lost_is_made_in_the_end() {
    in_virtual_time(async |server| {
        let (client, other) = (server.open(LockClient::builder()).await, server.open(LockClient::builder()).await);
        let document = client.rw_lock(NAME);
        let writing = document.write().await.unwrap();
        server.network.cut_off(client.id());
        let reading = writing.downgrade().await.unwrap();
        assert!(reading.is_valid());
        let theirs = other.rw_lock(NAME);
        assert!(theirs.try_read().await.unwrap().is_busy(), "the server does not know yet");
        server.network.mend(client.id());
        let beside = theirs.read().await.unwrap();
        assert!(reading.is_valid());
        beside.unlock().await.unwrap();
        assert_eq!(reading.unlock().await.unwrap(), Unlocked::Freed);
    })
    .await;
}

#[tokio::test]
async fn p5_calls_dropped_after_any_of_their_first_polls_leave_nothing() {
    on_each_store(async |store| {
        let client = store.connect(Timing { waiter_ttl: 60 * SECOND, ..Timing::default() }).await;
        let document = client.rw_lock(NAME);
        let reading = document.read().await.unwrap();
        for polls in 0..40 {
            let (mut read, mut write) = (Box::pin(document.read()), Box::pin(document.write()));
            for _ in 0..polls {
                let done = (&mut write).now_or_never().is_some();
                if done || (&mut read).now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        eventually("nothing is left of them", async || {
            let status = document.status().await.unwrap();
            (status.reading, status.waiters) == (1, 0)
        })
        .await;
        reading.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p5_a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let document = client.rw_lock(NAME);
        let reading = document.read().await.unwrap();
        let writer = tokio::spawn({
            let document = document.clone();
            async move { document.write_timeout(5 * SECOND).await.map(drop) }
        });
        wait_for_waiters(&document, 1).await;
        let began = Instant::now();
        let second = document.read().await.unwrap();
        assert!(began.elapsed() <= 5 * SECOND + SECOND / 10, "{:?}", began.elapsed());
        assert!(matches!(writer.await.unwrap(), Err(LockError::Timeout { .. })));
        reading.unlock().await.unwrap();
        second.unlock().await.unwrap();
    })
    .await;
}

/// Redisson #5379, #1604: a reader whose lease has ended must neither end the leases of others nor keep a writer out.
#[tokio::test]
async fn p7_a_dead_reader_among_living_ones() {
    in_virtual_time(async |server| {
        let (dies, lives, writes) = (
            server.open(LockClient::builder()).await,
            server.open(LockClient::builder()).await,
            server.open(LockClient::builder().poll_interval(14 * SECOND).waiter_ttl(90 * SECOND)).await,
        );
        let living = lives.rw_lock(NAME).read().await.unwrap();
        let dead = dies.rw_lock(NAME).read().await.unwrap();
        server.network.cut_off(dies.id());
        let document = writes.rw_lock(NAME);
        let waiting = tokio::spawn(async move { document.write().await });
        wait_for_waiters(&lives.rw_lock(NAME), 1).await;
        tokio::time::sleep(100 * SECOND).await;
        assert!(living.is_valid() && !dead.is_valid());
        let began = Instant::now();
        living.unlock().await.unwrap();
        let writing = waiting.await.unwrap().unwrap();
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        // And the other way round: a dead writer.
        server.network.mend(dies.id());
        drop(dead);
        writing.unlock().await.unwrap();
        let began = Instant::now();
        let dead = dies.rw_lock(NAME).with_lease(20 * SECOND).write().await.unwrap();
        server.network.cut_off(dies.id());
        let living = lives.rw_lock(NAME).read().await.unwrap();
        let took = began.elapsed();
        assert!(took >= 20 * SECOND && took < 20 * SECOND + SECOND / 10, "{took:?}");
        server.network.mend(dies.id());
        drop(dead);
        living.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p8_each_reader_is_notified_of_its_own_loss() {
    on_each_store(async |store| {
        let (client, other) = (store.connect(Timing::default()).await, store.connect(Timing::default()).await);
        let document = client.rw_lock(NAME);
        let (one, two) = (document.read().await.unwrap(), document.read().await.unwrap());
        let theirs = other.rw_lock(NAME);
        let waits = tokio::spawn(async move { theirs.write().await });
        wait_for_waiters(&document, 1).await;
        assert!(document.force_unlock_token(one.token()).await.unwrap());
        assert_eq!(one.lost().await, Loss::Forced);
        assert!(two.is_valid());
        assert!(matches!(one.unlock().await, Err(UnlockError::Lost(Loss::Forced))));
        assert!(document.force_unlock_token(two.token()).await.unwrap(), "the last one lets the writer in");
        let writing = waits.await.unwrap().unwrap();
        assert_eq!(two.ended().await.loss(), Some(Loss::Forced));
        writing.unlock().await.unwrap();
        drop(two);
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn p9_all_get_through_when_every_push_is_lost() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::default()).await;
        server.network.lose_messages(true);
        let document = client.rw_lock(NAME);
        let writing = document.write().await.unwrap();
        let (line, mut coming) = Line::new();
        line.leave.send_replace(100);
        let visits: Vec<_> = (0..30)
            .map(|number| visit(&document, if number % 10 == 9 { Write } else { Read }, number, &line))
            .collect();
        wait_for_waiters(&document, 30).await;
        let began = Instant::now();
        writing.unlock().await.unwrap();
        for visit in visits {
            visit.await.unwrap();
        }
        for _ in 0..30 {
            assert!(coming.recv().await.is_some());
        }
        assert!(began.elapsed() < 8 * Timing::default().poll_interval, "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test]
async fn more_than_1024_readers_wait() {
    in_virtual_time(async |server| {
        let client = server.connect(Timing::relaxed()).await;
        let document = client.rw_lock(NAME);
        let mut guards = Vec::new();
        for _ in 0..1024 {
            guards.push(document.read().await.unwrap());
        }
        assert!(document.try_read().await.unwrap().is_busy());
        assert_eq!(inside(&document).await, (1024, false));
        drop(guards);
        let writing = document.write().await.unwrap();
        assert_eq!(inside(&document).await, (0, true));
        writing.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn sections_run_in_the_owners_scope() {
    on_each_store(async |store| {
        let client = store.connect(Timing::relaxed()).await;
        let document = client.rw_lock(NAME);
        let inner = document.clone();
        let told = document
            .with_write(async |held| {
                let read = inner.read().await.unwrap();
                assert!(held.is_valid());
                read.holds()
            })
            .await
            .unwrap();
        assert_eq!(told, 2);
        let refused = document.with_read(async |_| inner.with_write(async |_| ()).await).await.unwrap();
        assert!(matches!(refused, Err(WithError::Lock(LockError::WouldDeadlock))));
        let lost = document
            .with_write(async |held| {
                inner.force_unlock_token(held.token()).await.unwrap();
                held.ended().await;
                7
            })
            .await;
        assert!(matches!(lost, Err(WithError::Unlock { output: 7, .. })));
        client.close().await.unwrap();
    })
    .await;
}

/// A task that reads twice outside a scope, with a writer waiting in between, waits for itself. The client warns of it.
#[tokio::test]
async fn a_task_that_reads_twice_outside_of_a_scope_past_a_writer_is_warned_of() {
    let logged = crate::support::Collect::default();
    let _log = logged.clone().here();
    in_virtual_time(async |server| {
        let client = server.open(LockClient::builder()).await;
        let task = tokio::spawn(async move {
            let document = client.rw_lock(NAME);
            let reading = document.read().await.unwrap();
            let writer = document.clone();
            let waits = tokio::spawn(async move { writer.write().await.unwrap().unlock().await });
            tokio::time::sleep(SECOND).await;
            assert!(matches!(document.read_timeout(100 * SECOND).await, Err(LockError::Timeout { .. })));
            reading.unlock().await.unwrap();
            waits.await.unwrap().unwrap();
        });
        task.await.unwrap();
    })
    .await;
    assert!(logged.saw("WARN", "this task waits for a lock that it holds itself"));
}
