//! Tasks that lock, write to the resource, and unlock.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockClientBuilder, LockError, LockGuard, UnlockError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::record::{End, Hold, Record};
use crate::testbed::{note, now};

pub const LEASE: Duration = Duration::from_secs(10);
/// How often a holder checks its guard.
const LOOK: Duration = Duration::from_millis(4);
/// So long that only a stuck name exceeds it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The times of all clients here: like the default lease, this one outlives a failover.
pub fn builder() -> LockClientBuilder {
    LockClient::builder()
        .lease(LEASE)
        .operation_timeout(Duration::from_secs(1))
        .waiter_ttl(Duration::from_secs(6))
        .poll_interval(Duration::from_secs(1))
        .grant_ttl(Duration::from_secs(3))
}

/// For servers whose clocks are 3 s apart. After a hand-over a lock lasts for `grant_ttl` until its holder confirms
/// it, and each replica measures that with its own clock.
pub fn builder_for_clocks() -> LockClientBuilder {
    builder().grant_ttl(Duration::from_secs(5))
}

pub async fn connect(url: &str) -> LockClient {
    builder().connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Connects `clients` clients, each with its own connections.
pub async fn connect_all(url: &str, clients: usize) -> Vec<LockClient> {
    connect_all_with(builder, url, clients).await
}

pub async fn connect_all_with(builder: fn() -> LockClientBuilder, url: &str, clients: usize) -> Vec<LockClient> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        let client = builder().connect(url).await;
        connected.push(client.unwrap_or_else(|error| panic!("{url}: {error}")));
    }
    connected
}

#[derive(Clone)]
pub struct Plan {
    /// Several tasks always want each of these names. A handed-over grant lasts only for `grant_ttl`.
    pub names: Vec<String>,
    /// One task for each name, with all clients in turn. It takes a free lock, which lasts for a whole lease, and the
    /// client that had it before does not ask for it. So a release that a server forgot shows for long.
    pub alone: Vec<String>,
    /// A task holds each of these from beginning to end, and its client renews it.
    pub long: Vec<String>,
    pub section: Duration,
}

impl Plan {
    /// Uses names that begin with `work:` and `long:`.
    pub fn new(names: usize, long: usize) -> Self {
        Self {
            names: (0..names).map(|number| format!("work:{number}")).collect(),
            alone: (0..names).map(|number| format!("work:alone:{number}")).collect(),
            long: (0..long).map(|number| format!("long:{number}")).collect(),
            section: Duration::from_millis(15),
        }
    }
}

pub struct Load {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    record: Arc<Record>,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Lock,
    WithTimeout,
    Nested,
    Try,
}

impl Load {
    /// Starts the load, and waits until all names have had a holder.
    pub async fn start(clients: &[LockClient], plan: &Plan, record: &Arc<Record>) -> Self {
        let mut load = Self { tasks: JoinSet::new(), stop: watch::Sender::new(false), record: record.clone() };
        let mut turn = 0;
        let mut next_client = || {
            turn += 1;
            &clients[turn % clients.len()]
        };
        for name in &plan.long {
            load.spawn(hold_long(next_client().lock(name), record.clone(), load.stop.subscribe()));
        }
        for (index, name) in plan.names.iter().enumerate() {
            let other = if index % 2 == 0 { Way::Nested } else { Way::WithTimeout };
            let ways = [Way::Lock, other, Way::Try];
            for way in &ways[..if index % 3 == 0 { 3 } else { 2 }] {
                let lock = next_client().lock(name);
                load.spawn(repeat(lock, *way, plan.section, record.clone(), load.stop.subscribe()));
            }
        }
        for name in &plan.alone {
            let locks = clients.iter().map(|client| client.lock(name)).collect();
            load.spawn(take_turns(locks, plan.section, record.clone(), load.stop.subscribe()));
        }
        record.open();
        load
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Ends the load: releases the holds and drops the waits.
    pub async fn stop(mut self) {
        self.record.close();
        note("the load ends");
        self.stop.send_replace(true);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("no task of the load panics");
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn repeat(lock: FairLock, way: Way, section: Duration, record: Arc<Record>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        tokio::select! {
            // Finishes a section, but drops a wait, which must leave nothing.
            () = stopped(&mut stop) => return,
            acquired = acquire(&lock, way) => hold_or_pause(acquired, &lock, way, section, &record).await,
        }
    }
}

async fn take_turns(locks: Vec<FairLock>, section: Duration, record: Arc<Record>, mut stop: watch::Receiver<bool>) {
    for lock in locks.iter().cycle() {
        tokio::select! {
            () = stopped(&mut stop) => return,
            acquired = acquire(lock, Way::Lock) => hold_or_pause(acquired, lock, Way::Lock, section, &record).await,
        }
    }
}

async fn hold_or_pause(
    acquired: Result<Option<LockGuard>, LockError>,
    lock: &FairLock,
    way: Way,
    section: Duration,
    record: &Record,
) {
    match acquired {
        Ok(Some(guard)) => hold(guard, lock, way, section, record).await,
        Ok(None) => {
            record.count("tries without success");
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        Err(error) => {
            record.count(&format!("error: {}", describe(&error)));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn describe(error: &LockError) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

async fn acquire(lock: &FairLock, way: Way) -> Result<Option<LockGuard>, LockError> {
    match way {
        Way::Lock | Way::Nested => lock.lock().await.map(Some),
        Way::WithTimeout => lock.lock_timeout(PATIENCE).await.map(Some),
        Way::Try => Ok(lock.try_lock().await?.into_result().ok()),
    }
}

async fn hold(guard: LockGuard, lock: &FairLock, way: Way, section: Duration, record: &Record) {
    if !matches!(way, Way::Nested) {
        return work(guard, section, record).await;
    }
    let owner = guard.owner();
    // The inner hold comes and goes while the outer one is recorded.
    let inner = owner.scope(async {
        match lock.lock().await {
            Ok(inner) => {
                record.count("nested holds");
                tokio::time::sleep(section / 3).await;
                drop(inner);
            }
            Err(error) => record.count(&format!("nested error: {}", describe(&error))),
        }
    });
    tokio::join!(work(guard, section, record), inner);
}

/// Holds for the section, checks the guard all the time, and releases.
async fn work(guard: LockGuard, section: Duration, record: &Record) {
    let Some(mut seen) = Seen::first(&guard) else {
        record.count("guards that were never valid");
        return;
    };
    let until = now() + u64::try_from(section.as_nanos()).unwrap();
    while seen.look(&guard, record).await && now() < until {
        pause(&guard, LOOK).await;
    }
    seen.finish(guard, record).await;
}

/// Holds until the load ends. After a loss, records it and takes the lock again.
async fn hold_long(lock: FairLock, record: Arc<Record>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let guard = tokio::select! {
            () = stopped(&mut stop) => return,
            guard = lock.lock() => guard,
        };
        let Ok(guard) = guard else {
            record.count("error: long");
            continue;
        };
        let Some(mut seen) = Seen::first(&guard) else { continue };
        record.count(&format!("begun {}", guard.name()));
        while seen.look(&guard, &record).await && !*stop.borrow() {
            pause(&guard, 5 * LOOK).await;
        }
        seen.finish(guard, &record).await;
    }
}

/// Returns early if the holder is notified of a loss.
async fn pause(guard: &LockGuard, time: Duration) {
    tokio::select! {
        _ = guard.lost() => {}
        () = tokio::time::sleep(time) => {}
    }
}

/// Instants at which a guard was valid.
struct Seen {
    start: u64,
    last_valid: u64,
}

impl Seen {
    fn first(guard: &LockGuard) -> Option<Self> {
        let before = now();
        // Valid at some instant between the two: so it began before the second and ended after the first.
        guard.is_valid().then(|| Self { start: now(), last_valid: before })
    }

    /// Checks the guard, and writes to the resource. Returns false once the hold has ended.
    async fn look(&mut self, guard: &LockGuard, record: &Record) -> bool {
        let before = now();
        if !guard.is_valid() {
            return false;
        }
        self.last_valid = before;
        if !record.resource.write(guard.name(), guard.token()).await {
            // Just too late, the holder is fenced off. If it is valid even now, two share the lock.
            record.count(if guard.is_valid() { "refused while valid" } else { "fenced off" });
        }
        true
    }

    async fn finish(self, guard: LockGuard, record: &Record) {
        let (name, token) = (guard.name().to_owned(), guard.token());
        let end = match guard.unlock().await {
            Ok(_) => End::Freed,
            Err(UnlockError::Lost(loss)) => End::Lost(loss.to_string()),
            Err(_) => End::Unknown,
        };
        if let End::Lost(loss) = &end {
            note(format!("{name} was lost: {loss}"));
        }
        let Self { start, last_valid } = self;
        record.add(Hold { name, token, start, last_valid: last_valid.max(start), ended: now(), end });
    }
}
