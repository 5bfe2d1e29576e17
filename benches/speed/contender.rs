//! One lock that many tasks want, whatever it is built on, and the two things they do with it: hand it
//! on while others wait, and compete for it.

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
    /// One round trip on the same connection: what was asked before it has been served after it.
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

/// Tasks of their own, until all are done; the first error ends them all.
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

/// Until so many wait in line.
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

/// How the lock goes round among those who wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Whoever has it waits a round trip first, so that the one before is in line again and nothing
    /// else is under way: each hand-off alone. For latencies.
    Alone,
    /// As fast as it goes. For hand-offs a second.
    Flat,
}

/// What came of a relay.
pub struct Relay {
    /// From the release call to the guard in another task's hand, in nanoseconds.
    pub latency: Histogram<u64>,
    pub elapsed: Duration,
}

struct Course {
    pace: Pace,
    /// Hand-offs to go; those who find none left leave.
    left: AtomicU64,
    released: Mutex<Option<Instant>>,
    latency: Mutex<Histogram<u64>>,
    finished: Mutex<Option<Instant>>,
}

/// `waiters` wait in line at every one of `count` hand-offs; one more has the lock.
pub async fn relay<C: Contender>(contender: &C, waiters: u64, count: u64, pace: Pace) -> Outcome<Relay> {
    let course = Arc::new(Course {
        pace,
        left: AtomicU64::new(count),
        released: Mutex::default(),
        latency: Mutex::new(histogram()?),
        finished: Mutex::default(),
    });
    // Nobody runs before all are in line.
    let first = contender.lock().await?;
    let mut runners = JoinSet::new();
    for number in 1..=waiters {
        runners.spawn(run(contender.clone(), course.clone()));
        // A storm of first requests would time some of them out.
        if number % 500 == 0 {
            wait_for_queue(contender, number).await?;
        }
    }
    wait_for_queue(contender, waiters).await?;
    runners.spawn(run(contender.clone(), course.clone()));
    contender.pace().await?;
    let begun = Instant::now();
    contender.unlock(first).await?;
    while let Some(outcome) = runners.join_next().await {
        outcome??;
    }
    let ended = course.finished.lock().unwrap_or_else(PoisonError::into_inner).ok_or("no hand-off was made")?;
    let latency = course.latency.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Relay { latency, elapsed: ended - begun })
}

async fn run<C: Contender>(contender: C, course: Arc<Course>) -> Outcome<()> {
    loop {
        let guard = contender.lock().await?;
        let got = Instant::now();
        if !course.count(got)? {
            return contender.unlock(guard).await;
        }
        if course.pace == Pace::Alone {
            // The one before has to be in line again: its release's answer comes first, then its request.
            contender.pace().await?;
            contender.pace().await?;
        }
        *course.released.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        contender.unlock(guard).await?;
    }
}

impl Course {
    /// Only its holder is here. Says whether there is more to do.
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

/// How a lock was shared among those who wanted it all the time.
pub struct Shares {
    pub counts: Vec<u64>,
    pub longest_wait: Duration,
}

/// `tasks` take the lock as often as they can, each time for `hold`, until the time is up.
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
        // What is over only after the end still tells how long somebody had to wait.
        longest = longest.max(asked.elapsed());
        count += u64::from(!over.load(Ordering::Relaxed));
        tokio::time::sleep(hold).await;
        contender.unlock(guard).await?;
    }
    Ok((count, longest))
}
