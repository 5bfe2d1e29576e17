//! A lock on several masters, next to one server, and next to clients that race for a majority as Redlock's do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairlock::{FairLock, LockClient, LockGuard};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::fairness::jain;
use crate::connection::{self, MessageHandler};
use crate::contender::{Contender, Shares, compete, together};
use crate::measure::{Series, histogram, micros, own_cpu, p50};
use crate::proxy::Proxy;
use crate::racing::{AS_REDLOCK, Racing, TUNED};
use crate::report::{Row, Target, number};
use crate::server::Server;
use crate::{Bench, Outcome, Transport};

pub const PAIRS: [&str; 3] = ["quorum-3", "quorum-5", "quorum-3-10ms"];
pub const COMPETING: [&str; 6] = [
    "quorum-fairness-3",
    "quorum-fairness-5",
    "quorum-racing-fairness-3",
    "quorum-racing-fairness-5",
    "quorum-holds-3",
    "quorum-holds-5",
];
pub const FAULTS: [&str; 4] =
    ["quorum-minority-killed-3", "quorum-minority-killed-5", "quorum-gate-killed", "quorum-gate-frozen"];

const TASKS: usize = 16;
/// Each client has a connection to each server, as a separate process would.
const CLIENTS: usize = 16;
const HOLD: Duration = Duration::from_millis(2);
const DELAY: Duration = Duration::from_millis(5);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

struct Masters(Vec<Server>);

impl Masters {
    async fn start(count: usize) -> Outcome<Self> {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::start().await?);
        }
        Ok(Self(servers))
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(|server| server.url(Transport::Tcp)).collect()
    }

    async fn client(&self) -> Outcome<LockClient> {
        connect(&self.urls()).await
    }
}

/// Without the freeze of new servers: these have forgotten nothing.
async fn connect(urls: &[String]) -> Outcome<LockClient> {
    let each = LockClient::builder().operation_timeout(OPERATION_TIMEOUT);
    Ok(each.without_strict_restart().connect(urls).await?)
}

/// Compares with one server in the same rounds.
pub async fn pairs(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(1000, 50);
    for (name, nodes) in [("quorum-3", 3), ("quorum-5", 5)] {
        let masters = Masters::start(nodes).await?;
        let (one, many) = (LockClient::connect(&masters.urls()[0]).await?, masters.client().await?);
        let [mut ours, mut single, mut our_cpu, mut single_cpu] = [const { Series(Vec::new()) }; 4];
        for _ in 0..bench.mode.rounds() {
            let one = async || Ok(one.lock("one").lock().await?.unlock().await?);
            let before = own_cpu()?;
            single.push(pair_times(count, one).await?);
            single_cpu.push(micros(own_cpu()? - before) / count as f64);
            let many = async || Ok(many.lock("pair").lock().await?.unlock().await?);
            let before = own_cpu()?;
            ours.push(pair_times(count, many).await?);
            our_cpu.push(micros(own_cpu()? - before) / count as f64);
        }
        let row = Row::new(name, Transport::Tcp, "µs", ours).over("one server", &single);
        let [cpu, of_one] = [our_cpu, single_cpu].map(|cpu| number(cpu.median().unwrap_or(f64::NAN)));
        let note = format!("lock and unlock, p50; CPU of the client {cpu} µs, with one server {of_one} µs");
        bench.add(row.target(Target::AtMost(2.5)).note(note));
    }
    over_a_link(bench).await
}

/// Counts round trips over a slow link, where nothing else matters.
async fn over_a_link(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(40, 5);
    let masters = Masters::start(3).await?;
    let (mut proxies, mut urls) = (Vec::new(), Vec::new());
    for server in &masters.0 {
        let proxy = Proxy::start(server.port(), DELAY)?;
        urls.push(server.url(Transport::Proxied(proxy.port)));
        proxies.push(proxy);
    }
    let (many, one) = (connect(&urls).await?, LockClient::connect(&urls[0]).await?);
    let redis = connection::connect(&urls[0], MessageHandler::none()).await?;
    let [mut pairs, mut single, mut locks, mut pings] = [const { Series(Vec::new()) }; 4];
    for _ in 0..bench.mode.rounds() {
        pings.push(pair_times(count, async || connection::ping(&mut redis.clone()).await).await?);
        single.push(pair_times(count, async || Ok(one.lock("one").lock().await?.unlock().await?)).await?);
        pairs.push(pair_times(count, async || Ok(many.lock("link").lock().await?.unlock().await?)).await?);
        // A dropped guard is released in the background.
        let names = AtomicU64::new(0);
        let lock = async || Ok(many.lock(names.fetch_add(1, Ordering::Relaxed).to_string()).lock().await?);
        locks.push(pair_times(count, lock).await?);
    }
    let [pair, lock] = [&pairs, &locks].map(|times| number(times.over(&pings).median().unwrap_or(f64::NAN)));
    let note = format!("lock and unlock, in round trips {pair}; the lock alone {lock}");
    let row = Row::new("quorum-3-10ms", Transport::Proxied(proxies[0].port), "µs", pairs).over("one server", &single);
    bench.add(row.target(Target::AtMost(2.5)).note(note));
    Ok(())
}

fn nanos(begun: Instant) -> Outcome<u64> {
    Ok(u64::try_from(begun.elapsed().as_nanos())?)
}

async fn pair_times<T>(count: u64, pair: impl AsyncFn() -> Outcome<T>) -> Outcome<f64> {
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        pair().await?;
        times.record(nanos(begun)?)?;
    }
    Ok(p50(&times))
}

/// One of several clients. Each clone takes the next client.
struct Ours {
    locks: Arc<Vec<FairLock>>,
    next: Arc<AtomicU64>,
    lock: FairLock,
}

impl Ours {
    async fn new(masters: &Masters) -> Outcome<Self> {
        let mut locks = Vec::new();
        for _ in 0..CLIENTS {
            locks.push(masters.client().await?.lock("compete"));
        }
        Ok(Self { lock: locks[0].clone(), locks: Arc::new(locks), next: Arc::default() })
    }
}

impl Clone for Ours {
    fn clone(&self) -> Self {
        let next = usize::try_from(self.next.fetch_add(1, Ordering::Relaxed)).unwrap_or_default();
        let lock = self.locks[next % self.locks.len()].clone();
        Self { locks: self.locks.clone(), next: self.next.clone(), lock }
    }
}

impl Contender for Ours {
    type Guard = LockGuard;

    async fn lock(&self) -> Outcome<LockGuard> {
        Ok(self.lock.lock().await?)
    }

    async fn unlock(&self, guard: LockGuard) -> Outcome<()> {
        guard.unlock().await?;
        Ok(())
    }

    async fn pace(&self) -> Outcome<()> {
        Err("not measured".into())
    }

    async fn waiters(&self) -> Outcome<u64> {
        Ok(self.lock.status().await?.waiters)
    }
}

/// A local mutex shows how many turns the sections alone allow.
#[derive(Clone, Default)]
struct Local(Arc<tokio::sync::Mutex<()>>);

impl Contender for Local {
    type Guard = tokio::sync::OwnedMutexGuard<()>;

    async fn lock(&self) -> Outcome<Self::Guard> {
        Ok(self.0.clone().lock_owned().await)
    }

    async fn unlock(&self, guard: Self::Guard) -> Outcome<()> {
        drop(guard);
        Ok(())
    }

    async fn pace(&self) -> Outcome<()> {
        Err("not measured".into())
    }

    async fn waiters(&self) -> Outcome<u64> {
        Err("they are not counted".into())
    }
}

pub async fn competing(bench: &mut Bench) -> Outcome<()> {
    let time = bench.mode.pick(Duration::from_secs(3), Duration::from_millis(500));
    let names = [
        (3, ["quorum-fairness-3", "quorum-racing-fairness-3", "quorum-holds-3"]),
        (5, ["quorum-fairness-5", "quorum-racing-fairness-5", "quorum-holds-5"]),
    ];
    for (nodes, [fairness, racing_fairness, holds]) in names {
        let masters = Masters::start(nodes).await?;
        let ours = Ours::new(&masters).await?;
        let racing = Racing::connect(&masters.urls(), CLIENTS, AS_REDLOCK).await?;
        let tuned = Racing::connect(&masters.urls(), CLIENTS, TUNED).await?;
        let [mut our_shares, mut their_shares, mut tuned_shares, mut alone] = [const { Vec::new() }; 4];
        let splits = Splits::default();
        for _ in 0..bench.mode.rounds() {
            {
                let _counting = tracing::subscriber::set_default(splits.clone());
                our_shares.push(compete(&ours, TASKS, HOLD, time).await?);
            }
            their_shares.push(compete(&racing, TASKS, HOLD, time).await?);
            tuned_shares.push(compete(&tuned, TASKS, HOLD, time).await?);
            alone.push(compete(&Local::default(), TASKS, HOLD, time).await?);
        }
        let rate = |shares: &[Shares]| Series(shares.iter().map(|shares| total(shares) / time.as_secs_f64()).collect());
        let row = |name, shares: &[Shares], splits: u64| {
            let longest = shares.iter().map(|shares| shares.longest_wait).max().unwrap_or_default();
            let note = format!("{splits} split votes, longest wait {} ms", number(longest.as_secs_f64() * 1e3));
            let values = shares.iter().map(|shares| jain(&shares.counts)).collect();
            Row::new(name, Transport::Tcp, "Jain", Series(values)).note(note)
        };
        bench.add(row(fairness, &our_shares, splits.count()).target(Target::AtLeast(0.99)));
        bench.add(row(racing_fairness, &their_shares, racing.splits()));
        let row = Row::new(holds, Transport::Tcp, "holds/s", rate(&our_shares)).over("racing", &rate(&their_shares));
        let [tuned, alone] = [&tuned_shares, &alone].map(|shares| number(rate(shares).median().unwrap_or(f64::NAN)));
        let note = format!(
            "{TASKS} tasks of {CLIENTS} clients, 2 ms each; racing with pauses of 4 ms {tuned}, in one process without a server {alone}"
        );
        bench.add(row.target(Target::AtLeast(1.2)).note(note));
    }
    Ok(())
}

fn total(shares: &Shares) -> f64 {
    shares.counts.iter().sum::<u64>() as f64
}

/// Counts the library's log lines about rounds that got some servers and released them.
#[derive(Clone, Default)]
struct Splits(Arc<AtomicU64>);

impl Splits {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Visit for Splits {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let is_split = field.name() == "message" && format!("{value:?}").contains("split vote");
        self.0.fetch_add(is_split.into(), Ordering::Relaxed);
    }
}

impl Subscriber for Splits {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("fairlock::quorum")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
}

/// The longest time without a holder after a fault, while clients hold and wait for locks.
pub async fn faults(bench: &mut Bench) -> Outcome<()> {
    let limit = OPERATION_TIMEOUT.as_secs_f64() * 1e3 + 500.0;
    let rows: [(&str, usize, &[usize], Fault, f64); 4] = [
        ("quorum-minority-killed-3", 3, &[2], Fault::Kill, 1000.0),
        ("quorum-minority-killed-5", 5, &[1, 4], Fault::Kill, 1000.0),
        ("quorum-gate-killed", 3, &[0], Fault::Kill, limit),
        ("quorum-gate-frozen", 3, &[0], Fault::Freeze, limit),
    ];
    for (name, nodes, which, fault, target) in rows {
        let (mut stalls, mut lost) = (Series::default(), 0);
        for _ in 0..bench.mode.rounds() {
            let round = stall_after(nodes, which, fault).await?;
            stalls.push(round.longest.as_secs_f64() * 1e3);
            lost += round.lost;
        }
        let row = Row::new(name, Transport::Tcp, "ms", stalls).target(Target::AtMost(target)).strict();
        bench.add(row.note(format!("longest time without a new hold; {lost} holds lost; the worst round counts")));
    }
    Ok(())
}

/// The events since the fault.
#[derive(Default)]
struct Stall {
    last: Option<Instant>,
    longest: Duration,
    lost: u64,
}

async fn stall_after(nodes: usize, which: &[usize], fault: Fault) -> Outcome<Stall> {
    let masters = Masters::start(nodes).await?;
    let ours = Ours::new(&masters).await?;
    // The client holds this one all the time.
    let held = ours.locks[0].clone();
    let held = masters.client().await?.lock(format!("{} held", held.name())).lock().await?;
    let (over, stall) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Stall::default())));
    let tasks = (0..TASKS).map(|_| take_turns(ours.clone(), over.clone(), stall.clone()));
    let running = tokio::spawn(together(tasks.collect::<Vec<_>>().into_iter()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    locked(&stall).last = Some(Instant::now());
    for server in which {
        match fault {
            Fault::Kill => masters.0[*server].kill(),
            Fault::Freeze => masters.0[*server].freeze()?,
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    over.store(true, Ordering::Relaxed);
    running.await??;
    let mut stall = std::mem::take(&mut *locked(&stall));
    stall.lost += u64::from(!held.is_valid());
    Ok(stall)
}

fn locked(stall: &Mutex<Stall>) -> std::sync::MutexGuard<'_, Stall> {
    stall.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn take_turns(ours: Ours, over: Arc<AtomicBool>, stall: Arc<Mutex<Stall>>) -> Outcome<()> {
    while !over.load(Ordering::Relaxed) {
        let guard = ours.lock().await?;
        {
            let mut stall = locked(&stall);
            if let Some(last) = stall.last {
                stall.longest = stall.longest.max(last.elapsed());
                stall.last = Some(Instant::now());
            }
        }
        tokio::time::sleep(HOLD).await;
        locked(&stall).lost += u64::from(!guard.is_valid());
        // A release that a dead server does not confirm goes on in the background.
        let _ = guard.unlock().await;
    }
    Ok(())
}
