//! P3 for a server that stalls: whichever call comes first afterwards, the lock goes on in the order of the queue.
//!
//! All servers stall side by side, so the scenario takes little longer than the longest stall. Each server has queues
//! of several lengths, whose waiters belong to one client or to twenty.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockClientBuilder, LockGuard};
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::load::connect_all_with;
use crate::report::Report;
use crate::scenarios::Extent;
use crate::server::{Server, ask};
use crate::testbed::{Testbed, eventually, note};

/// Below the default `waiter_ttl` of 6 s, above it, and above the operation timeouts of several reconnects.
const LENGTHS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(7), Duration::from_secs(20)];
const CLIENTS: [usize; 2] = [1, 20];
const SHORT_QUEUES: [usize; 2] = [5, 100];
const LONG_QUEUE: usize = 5000;
/// Enough time for the first calls to arrive.
const A_MOMENT: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(60);

/// How a server stalls.
#[derive(Debug, Clone, Copy)]
enum Way {
    Stopped,
    Paused,
}

/// The first request that the server reads when it continues.
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    /// The holder's lease has ended in the meantime.
    Poll,
    /// The same, but a newcomer's request arrives before any poll.
    Acquire,
    Release,
    /// The clients had given up their connections. The release comes after all have reconnected.
    Reconnects,
}

const AT_ONCE: [First; 3] = [First::Poll, First::Acquire, First::Release];

/// One queue.
#[derive(Debug, Clone, Copy)]
struct Row {
    waiters: usize,
    clients: usize,
    first: First,
}

pub async fn the_order_is_kept(bed: &Testbed, extent: Extent) -> Report {
    let mut stages = Vec::new();
    for length in LENGTHS {
        for way in [Way::Stopped, Way::Paused] {
            stages.push(Stage::new(bed, (way, length), patient, rows(stages.len())).await);
            // A connection survives a shorter silence.
            if length > LENGTHS[0] {
                stages.push(Stage::new(bed, (way, length), defaults, rows_that_reconnect()).await);
            }
        }
    }
    // All queues form first, so that all other work has ended when the first server stops.
    let queues = join_all(stages.iter().map(Stage::form)).await;
    note("all wait");
    let stalls = stages.iter().zip(queues).map(|(stage, queues)| stage.stall(queues));
    let outcomes: Vec<_> = join_all(stalls).await.into_iter().flatten().collect();
    let mut report = Report::new(extent);
    report.figure("queues", outcomes.len() as u64);
    for failure in outcomes.into_iter().filter_map(Result::err) {
        report.must(false, failure);
    }
    report
}

fn defaults() -> LockClientBuilder {
    // All servers start at the same time, and one may answer late.
    LockClient::builder().retry_on_initial_connect()
}

/// The defaults, but an operation timeout that outlasts each stall: the script would skip a disconnected client.
fn patient() -> LockClientBuilder {
    defaults().operation_timeout(Duration::from_secs(30))
}

/// The long queues cost most: each has only one of the first calls on a server, and another one on the next server.
fn rows(turn: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, clients) in CLIENTS.into_iter().enumerate() {
        for waiters in SHORT_QUEUES {
            rows.extend(AT_ONCE.map(|first| Row { waiters, clients, first }));
        }
        rows.push(Row { waiters: LONG_QUEUE, clients, first: AT_ONCE[(turn + index) % AT_ONCE.len()] });
    }
    rows
}

fn rows_that_reconnect() -> Vec<Row> {
    SHORT_QUEUES.map(|waiters| Row { waiters, clients: CLIENTS[1], first: First::Reconnects }).to_vec()
}

/// One server and its clients.
struct Stage {
    server: Server,
    way: Way,
    length: Duration,
    rows: Vec<Row>,
    waiting: Vec<LockClient>,
    newcomer: LockClient,
    holding: LockClient,
    redis: MultiplexedConnection,
}

impl Stage {
    async fn new(
        bed: &Testbed,
        (way, length): (Way, Duration),
        builder: fn() -> LockClientBuilder,
        rows: Vec<Row>,
    ) -> Self {
        let server = Server::new(bed, &format!("{way:?}-{}-{:?}", length.as_secs(), rows[0].first)).start().await;
        let redis = server.connection().await.expect("the server answers");
        let mut waiting = connect_all_with(builder, &server.url(), CLIENTS[1] + 2).await;
        let [newcomer, holding] = [(); 2].map(|()| waiting.pop().expect("they are connected"));
        Self { server, way, length, rows, waiting, newcomer, holding, redis }
    }

    async fn form(&self) -> Vec<Queue> {
        join_all(self.rows.iter().map(|row| Queue::form(self, *row))).await
    }

    /// Returns the outcome of each queue.
    async fn stall(&self, mut queues: Vec<Queue>) -> Vec<Result<(), String>> {
        let name = self.server.name();
        join_all(queues.iter().map(|queue| queue.settle(self.redis.clone()))).await;
        join_all(queues.iter().map(|queue| queue.end_lease(self.redis.clone()))).await;
        // The server answers paused calls in their order, before it reads anything else.
        let pause = if matches!(self.way, Way::Paused) { self.length } else { 10 * A_MOMENT };
        self.server.tell::<()>(&format!("CLIENT PAUSE {} ALL", pause.as_millis())).await;
        queues.iter_mut().for_each(|queue| queue.call_first(self));
        sleep(A_MOMENT).await;
        if matches!(self.way, Way::Stopped) {
            self.server.freeze();
        }
        sleep(self.length).await;
        if matches!(self.way, Way::Stopped) {
            self.server.resume();
        }
        let outcomes = join_all(queues.into_iter().map(|queue| queue.served(self))).await;
        note(format!("{name}: all were served"));
        for client in self.waiting.iter().chain([&self.newcomer, &self.holding]) {
            let _ = client.close().await;
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| format!("{name}, {error}"))).collect()
    }

    /// Waits until each client has reconnected.
    async fn resumed(&self) {
        for client in self.waiting.iter().chain([&self.holding]) {
            eventually("the server answers each client", async || client.ping().await.is_ok()).await;
        }
    }
}

/// A held lock, and its waiters.
struct Queue {
    row: Row,
    name: String,
    holder: Option<LockGuard>,
    /// The numbers of the waiters, in the order of the queue.
    expected: Vec<usize>,
    served: Arc<Mutex<Vec<usize>>>,
    tasks: JoinSet<()>,
}

impl Queue {
    async fn form(stage: &Stage, row: Row) -> Self {
        let name = format!("{}-of-{}-{:?}", row.waiters, row.clients, row.first);
        // The client does not renew this lease, so `end_lease` decides when it ends.
        let holder = stage.holding.lock(&name).with_lease(2 * LONGEST).lock().await.expect("it is free");
        let (expected, served, tasks) = (Vec::new(), Arc::default(), JoinSet::new());
        let mut queue = Self { row, name, holder: Some(holder), expected, served, tasks };
        for number in 0..row.waiters {
            // The first waiters of the clients come within one poll_interval, so each client polls at its own phase.
            if number < row.clients {
                sleep(Duration::from_millis(number as u64 * 37 % 20 * 10)).await;
            }
            queue.join(&stage.waiting[number % row.clients], number);
        }
        queue.read_order(stage.redis.clone()).await;
        queue
    }

    fn join(&mut self, client: &LockClient, number: usize) {
        let lock = client.lock(&self.name).labelled(number.to_string());
        self.tasks.spawn(wait(lock, number, self.served.clone()));
    }

    /// Waits until all have joined. The labels of the places show the order in which they did.
    async fn read_order(&mut self, mut redis: MultiplexedConnection) {
        let key = format!("fairlock:{{n:{}}}:queue", self.name);
        eventually("all wait", async || {
            let places = ask::<usize>(&mut redis, &format!("LLEN {key}")).await;
            if places.is_ok_and(|places| places == self.row.waiters)
                && let Ok(places) = ask::<Vec<String>>(&mut redis, &format!("LRANGE {key} 0 -1")).await
            {
                self.expected = places.iter().filter_map(|place| place.rsplit('/').next()?.parse().ok()).collect();
            }
            self.expected.len() == self.row.waiters
        })
        .await;
    }

    /// Polls are late on a busy machine, so the server may already have forgiven a silence. It forgives the next one
    /// only after another poll.
    async fn settle(&self, mut redis: MultiplexedConnection) {
        let key = format!("fairlock:{{n:{}}}:deadlines", self.name);
        eventually("somebody was heard after the last silence", async || {
            match ask::<Option<String>>(&mut redis, &format!("ZSCORE {key} !forgiven")).await {
                Ok(Some(noted)) => {
                    ask(&mut redis, &format!("ZCOUNT {key} ({noted} (inf")).await.is_ok_and(|heard: u64| heard > 0)
                }
                noted => noted.is_ok(),
            }
        })
        .await;
    }

    /// As if the holder had died: its lease has ended when the server continues.
    async fn end_lease(&self, mut redis: MultiplexedConnection) {
        if matches!(self.row.first, First::Poll | First::Acquire) {
            let shorten = format!("PEXPIRE fairlock:{{n:{}}} 500", self.name);
            assert_eq!(ask::<u64>(&mut redis, &shorten).await, Ok(1), "it is held");
        }
    }

    /// The server has stalled, so it reads this request first.
    fn call_first(&mut self, stage: &Stage) {
        match self.row.first {
            First::Release => self.release(),
            First::Acquire => {
                let number = self.expected.len();
                self.expected.push(number);
                self.join(&stage.newcomer, number);
            }
            First::Poll | First::Reconnects => {}
        }
    }

    fn release(&mut self) {
        let releasing = self.holder.take().map(LockGuard::unlock);
        self.tasks.spawn(async { drop(releasing.expect("it is held").await) });
    }

    /// Waits until all had the lock. Fails if their order was wrong.
    async fn served(mut self, stage: &Stage) -> Result<(), String> {
        if self.row.first == First::Reconnects {
            stage.resumed().await;
            self.release();
        }
        let _ = timeout(LONGEST, async { while self.tasks.join_next().await.is_some() {} }).await;
        let served = std::mem::take(&mut *self.served.lock().unwrap());
        if served == self.expected {
            return Ok(());
        }
        let at = served.iter().zip(&self.expected).take_while(|(served, expected)| served == expected).count();
        let next: Vec<_> = served.iter().skip(at).take(8).collect();
        Err(format!("{}: {} served, not in order after the first {at}: {next:?}", self.name, served.len()))
    }
}

async fn wait(lock: FairLock, number: usize, served: Arc<Mutex<Vec<usize>>>) {
    let guard = lock.lock().await.expect("a waiter gets the lock");
    served.lock().unwrap().push(number);
    let _ = guard.unlock().await;
}
