//! A lock of any kind that many tasks use, and two ways to measure it: hand it on in a relay, or compete for it.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairlock::{FairLock, LockGuard};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::measure::histogram;

pub trait Contender: Clone + Send + Sync + 'static {
    type Guard: Send;

    fn lock(&self) -> impl Future<Output = Outcome<Self::Guard>> + Send;
    fn unlock(&self, guard: Self::Guard) -> impl Future<Output = Outcome<()>> + Send;
    /// One round trip on the same connection. When it returns, the server has served all earlier requests.
    fn pace(&self) -> impl Future<Output = Outcome<()>> + Send;
    fn waiters(&self) -> impl Future<Output = Outcome<u64>> + Send;
}

#[derive(Clone)]
pub struct Ours(pub FairLock);

impl Contender for Ours {
    type Guard = LockGuard;

    async fn lock(&self) -> Outcome<LockGuard> {
        Ok(self.0.lock().await?)
    }

    async fn unlock(&self, guard: LockGuard) -> Outcome<()> {
        guard.unlock().await?;
        Ok(())
    }

    async fn pace(&self) -> Outcome<()> {
        self.0.is_locked().await?;
        Ok(())
    }

    async fn waiters(&self) -> Outcome<u64> {
        Ok(self.0.status().await?.waiters)
    }
}

/// Spawns the futures and waits for all of them. The first error ends all.
pub async fn together<T: Send + 'static>(
    tasks: impl Iterator<Item = impl Future<Output = Outcome<T>> + Send + 'static>,
) -> Outcome<Vec<T>> {
    let mut running: JoinSet<Outcome<T>> = tasks.collect();
    let mut done = Vec::new();
    while let Some(outcome) = running.join_next().await {
        done.push(outcome??);
    }
    Ok(done)
}

/// Waits until the queue has `waiters` places.
pub async fn wait_for_queue(contender: &impl Contender, waiters: u64) -> Outcome<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let now = contender.waiters().await?;
        if now >= waiters {
            return Ok(());
        }
        if Instant::now() > limit {
            return Err(format!("{now} instead of {waiters} wait").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How the lock is handed from one waiter to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The holder first waits for some round trips, until the holder before it is queued again and nothing else is in
    /// flight. So each hand-off happens alone. For latencies.
    Alone,
    /// As fast as possible. For hand-offs a second.
    Flat,
}

/// The result of a relay.
pub struct Relay {
    /// From the call of unlock until another task has the guard, in nanoseconds.
    pub latency: Histogram<u64>,
    pub elapsed: Duration,
}

struct Progress {
    pace: Pace,
    /// The hand-offs that remain. A task that finds none returns.
    left: AtomicU64,
    released: Mutex<Option<Instant>>,
    latency: Mutex<Histogram<u64>>,
    finished: Mutex<Option<Instant>>,
}

/// Makes `count` hand-offs. At each of them one task has the lock and `waiters` others are queued.
pub async fn relay<C: Contender>(contender: &C, waiters: u64, count: u64, pace: Pace) -> Outcome<Relay> {
    let progress = Arc::new(Progress {
        pace,
        left: AtomicU64::new(count),
        released: Mutex::default(),
        latency: Mutex::new(histogram()?),
        finished: Mutex::default(),
    });
    // Held until all tasks are in the queue.
    let first = contender.lock().await?;
    let mut tasks = JoinSet::new();
    for number in 1..=waiters {
        tasks.spawn(run(contender.clone(), progress.clone()));
        // In batches, because too many requests at once would time out.
        if number % 500 == 0 {
            wait_for_queue(contender, number).await?;
        }
    }
    wait_for_queue(contender, waiters).await?;
    tasks.spawn(run(contender.clone(), progress.clone()));
    contender.pace().await?;
    let begun = Instant::now();
    contender.unlock(first).await?;
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    let ended = progress.finished.lock().unwrap_or_else(PoisonError::into_inner).ok_or("no hand-off was made")?;
    let latency = progress.latency.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Relay { latency, elapsed: ended - begun })
}

async fn run<C: Contender>(contender: C, progress: Arc<Progress>) -> Outcome<()> {
    loop {
        let guard = contender.lock().await?;
        let got = Instant::now();
        if !progress.count(got)? {
            return contender.unlock(guard).await;
        }
        if progress.pace == Pace::Alone {
            // Two round trips, until the holder before this one is queued again: it gets the reply to its release, and
            // then sends its request.
            contender.pace().await?;
            contender.pace().await?;
        }
        *progress.released.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        contender.unlock(guard).await?;
    }
}

impl Progress {
    /// Counts a hand-off. Only the holder calls this. Returns true if more remain.
    fn count(&self, got: Instant) -> Outcome<bool> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Ok(false);
        }
        if let Some(released) = self.released.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let nanos = u64::try_from(got.duration_since(released).as_nanos())?;
            self.latency.lock().unwrap_or_else(PoisonError::into_inner).record(nanos)?;
            self.left.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                *self.finished.lock().unwrap_or_else(PoisonError::into_inner) = Some(got);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How a lock was shared among tasks that took it all the time.
pub struct Shares {
    pub counts: Vec<u64>,
    pub longest_wait: Duration,
}

/// `tasks` tasks take the lock as often as they can until the time is up, each time for `hold`.
pub async fn compete<C: Contender>(contender: &C, tasks: usize, hold: Duration, time: Duration) -> Outcome<Shares> {
    let over = Arc::new(AtomicBool::new(false));
    let competing = (0..tasks).map(|_| compete_alone(contender.clone(), hold, over.clone()));
    let running = tokio::spawn(together(competing.collect::<Vec<_>>().into_iter()));
    tokio::time::sleep(time).await;
    over.store(true, Ordering::Relaxed);
    let mut shares = Shares { counts: Vec::new(), longest_wait: Duration::ZERO };
    for (count, longest) in running.await?? {
        shares.counts.push(count);
        shares.longest_wait = shares.longest_wait.max(longest);
    }
    Ok(shares)
}

async fn compete_alone<C: Contender>(contender: C, hold: Duration, over: Arc<AtomicBool>) -> Outcome<(u64, Duration)> {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let guard = contender.lock().await?;
        // A wait that ends after the time is up does not count as a hold, but it counts as a wait.
        longest = longest.max(asked.elapsed());
        count += u64::from(!over.load(Ordering::Relaxed));
        tokio::time::sleep(hold).await;
        contender.unlock(guard).await?;
    }
    Ok((count, longest))
}
