//! The client process, which does the measured work. It uses only the public API, so that it can measure other
//! versions too.
//!
//! | row | one of it is |
//! |---|---|
//! | `pair` | `lock` of a free lock, and `unlock` |
//! | `queue` | `lock` of a lock that another client holds, until its place in the queue is known |
//! | `hand_over` | `unlock` of a lock that a waiter of another client is first in line for, until that one has its guard |
//! | `turn` | both: a holder's `unlock`, and its next `lock`, which queues behind another waiter |
//! | `poll` | one round of polls of a client that has one waiter |
//! | `poll_1000` | one round of polls of a client that has 1000 waiters of one name |
//!
//! In `queue` one to six waiters wait for a name, in `hand_over` one to thirty, in `turn` one or two. So `queue` and
//! `hand_over` together are about a turn.
//!
//! The instructions of the client include all `LockClient`s of the row. `queue`, `hand_over` and `turn` have two or
//! three. In `queue` and `turn` they also include the task of the waiter.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock::{FairLock, LockClient, LockError, LockGuard};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::{Outcome, allocations};

/// The first argument of this executable when it runs as the client.
pub const ROLE: &str = "--client";

/// A part of the name of the function before which callgrind dumps.
pub const MARK: &str = "mark_for_callgrind";

/// Longer than a phase, so that the client renews nothing, polls for nothing and gives up nothing in it.
const LONG: Duration = Duration::from_secs(1200);
/// Under callgrind a request takes a hundred times as long.
const OPERATION: Duration = Duration::from_secs(60);
const ROW: Duration = Duration::from_secs(100);
/// Waiters that a row adds to each queue and measures.
const MORE: u32 = 5;

/// Ends the server when this process ends. It matters only if the parent, which would end the server, was killed: then
/// reading or printing fails here. In all other cases the parent kills this process, which drops nothing.
struct EndOfServer<'a>(&'a str);

impl Drop for EndOfServer<'_> {
    fn drop(&mut self) {
        let socket = UnixStream::connect(self.0.trim_start_matches("unix://"));
        let _ = socket.and_then(|mut socket| socket.write_all(b"SHUTDOWN NOSAVE\r\n"));
    }
}

/// Sets up metrics and logs before connecting, as a service does.
#[cfg(feature = "observed")]
fn observe() -> Outcome<()> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    let seconds = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &seconds)?
        .install_recorder()?;
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

#[cfg(not(feature = "observed"))]
fn observe() -> Outcome<()> {
    Ok(())
}

pub fn serve(url: &str) -> Outcome<()> {
    let _end = EndOfServer(url);
    observe()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut work = Work::new(url).await?;
        println!("connected");
        while let Some(line) = read_line()? {
            // A run that hangs counts as failed.
            let outcome = tokio::time::timeout(ROW, work.run(&line)).await;
            outcome.map_err(|_| format!("{line}: not done after {ROW:?}"))??;
        }
        Ok(())
    });
    if let Err(error) = &outcome {
        println!("error {error}");
    }
    outcome
}

/// Blocks the whole process, so no task of the library runs between the phases.
fn read_line() -> Outcome<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim().to_owned()))
}

#[inline(never)]
fn mark_for_callgrind(number: u64) -> u64 {
    black_box(number)
}

struct Work {
    url: String,
    /// One for each role in a row, so that each role has its own connection.
    clients: [LockClient; 3],
    queued: Arc<Notify>,
}

impl Work {
    async fn new(url: &str) -> Outcome<Self> {
        let queued = Arc::new(Notify::new());
        let clients = [connect(url, LONG).await?, connect(url, LONG).await?, connect(url, LONG).await?];
        Ok(Self { url: url.to_owned(), clients, queued })
    }

    async fn run(&mut self, line: &str) -> Outcome<()> {
        let (name, count) = line.split_once(' ').ok_or("a count is missing")?;
        let count = count.parse()?;
        match name {
            "pair" => self.pair(count).await?,
            "queue" => self.queue(count).await?,
            "hand_over" => self.hand_over(count).await?,
            "turn" => self.turn(count).await?,
            "poll" => self.poll(1, Duration::from_millis(50), count).await?,
            "poll_1000" => self.poll(1000, Duration::from_secs(1), count).await?,
            _ => return Err(format!("there is no row {name}").into()),
        }
        println!("over");
        Ok(())
    }

    async fn pair(&self, count: u32) -> Outcome<()> {
        let lock = self.clients[0].lock("pair");
        phase(async {
            for _ in 0..count {
                lock.lock().await?.unlock().await?;
            }
            Ok(())
        })
        .await
    }

    async fn queue(&self, count: u32) -> Outcome<()> {
        let mut queues = self.queues("queue", count).await?;
        phase(async {
            for queue in &mut queues {
                self.line_up(queue, MORE).await;
            }
            Ok(())
        })
        .await?;
        end(queues).await
    }

    /// Uses one name: with several, the client would renew the last guard of each queue after 50 ms.
    async fn hand_over(&self, count: u32) -> Outcome<()> {
        let mut queue = Queue::new(self.clients[0].lock("hand_over")).await?;
        self.line_up(&mut queue, count + 1).await;
        phase(async {
            for _ in 0..count {
                queue.hand_over().await?;
            }
            Ok(())
        })
        .await?;
        end(vec![queue]).await
    }

    /// At the beginning of each turn, one of three clients holds and two wait.
    async fn turn(&self, count: u32) -> Outcome<()> {
        let mut queue = Queue::new(self.clients[0].lock("turn")).await?;
        self.line_up(&mut queue, 2).await;
        phase(async {
            for number in 0..count as usize {
                queue.hand_over().await?;
                // The client that has just released: 0, 1, 2, 0 and so on.
                self.wait(&mut queue, &self.clients[number % 3]).await;
            }
            Ok(())
        })
        .await?;
        end(vec![queue]).await
    }

    /// Waits for `rounds` of polls. A phase begins and ends in the middle between two rounds.
    async fn poll(&self, waiters: u32, interval: Duration, rounds: u32) -> Outcome<()> {
        let mut queue = Queue::new(self.clients[0].lock(format!("poll:{waiters}"))).await?;
        let client = connect(&self.url, interval).await?;
        self.wait(&mut queue, &client).await;
        let first = Instant::now();
        for _ in 1..waiters {
            self.wait(&mut queue, &client).await;
        }
        let rest = first.elapsed().as_millis() % interval.as_millis();
        tokio::time::sleep(interval * 3 / 2 - Duration::from_millis(u64::try_from(rest)?)).await;
        phase(async {
            tokio::time::sleep(interval * rounds).await;
            Ok(())
        })
        .await?;
        if waiters == 1 {
            end(vec![queue]).await?;
        } else {
            // Ending the waiters one by one takes too long, and this is the last row.
            std::mem::forget(queue);
        }
        client.close().await?;
        Ok(())
    }

    /// Queues of held locks, with one waiter each, so that no measured call finds an empty queue. They are short,
    /// because most real queues are.
    async fn queues(&self, name: &str, count: u32) -> Outcome<Vec<Queue>> {
        let mut queues = Vec::new();
        for number in 0..count / MORE {
            let mut queue = Queue::new(self.clients[0].lock(format!("{name}:{number}"))).await?;
            self.line_up(&mut queue, 1).await;
            queues.push(queue);
        }
        Ok(queues)
    }

    /// Adds `count` waiters, each from another client than the one before it.
    async fn line_up(&self, queue: &mut Queue, count: u32) {
        for _ in 0..count {
            self.wait(queue, &self.clients[1 + queue.waiting.len() % 2]).await;
        }
    }

    /// Adds a waiter. Returns once the server has replied that it is in the queue.
    async fn wait(&self, queue: &mut Queue, client: &LockClient) {
        let lock = client.lock(&queue.name);
        queue.waiting.push_back(tokio::spawn(lock_and_tell(lock, self.queued.clone())));
        self.queued.notified().await;
        // The reply to the acquire comes before this one.
        let _ = client.ping().await;
    }
}

/// A held lock, and its waiters.
struct Queue {
    name: String,
    /// `None` only during a hand-over.
    guard: Option<LockGuard>,
    waiting: VecDeque<JoinHandle<Result<LockGuard, LockError>>>,
}

impl Queue {
    async fn new(lock: FairLock) -> Outcome<Self> {
        let guard = Some(lock.lock().await?);
        Ok(Self { name: lock.name().to_owned(), guard, waiting: VecDeque::new() })
    }

    async fn hand_over(&mut self) -> Outcome<()> {
        let first = self.waiting.pop_front().ok_or("nobody waits")?;
        self.guard.take().ok_or("nobody holds")?.unlock().await?;
        self.guard = Some(first.await??);
        Ok(())
    }
}

/// Hands each lock over until its queue is empty, then releases it.
async fn end(queues: Vec<Queue>) -> Outcome<()> {
    for mut queue in queues {
        while !queue.waiting.is_empty() {
            queue.hand_over().await?;
        }
        queue.guard.take().ok_or("nobody holds")?.unlock().await?;
    }
    Ok(())
}

/// The second poll of the call means that the reply has come. If the reply is a place in the queue, the call waits
/// again.
async fn lock_and_tell(lock: FairLock, queued: Arc<Notify>) -> Result<LockGuard, LockError> {
    let mut call = pin!(lock.lock());
    let mut polls = 0;
    poll_fn(|context| {
        let outcome = call.as_mut().poll(context);
        polls += 1;
        if polls == 1 {
            queued.notify_one();
        }
        outcome
    })
    .await
}

/// When the parent sends a line, does the work between two dumps.
async fn phase<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    println!("ready");
    read_line()?;
    mark_for_callgrind(1);
    let before = allocations::count();
    let done = work.await?;
    let count = allocations::count() - before;
    mark_for_callgrind(2);
    println!("{count}");
    read_line()?;
    Ok(done)
}

async fn connect(url: &str, poll_interval: Duration) -> Outcome<LockClient> {
    let builder = LockClient::builder().lease(LONG).operation_timeout(OPERATION).max_waiters(10_000);
    let builder = builder.waiter_ttl(3 * LONG).grant_ttl(LONG + Duration::from_secs(1)).poll_interval(poll_interval);
    Ok(builder.connect(url).await?)
}
