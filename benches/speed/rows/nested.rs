//! Nested locks of one owner: how many scripts each call runs, and how long it takes.

use std::time::Instant;

use fairlock::{FairLock, LockClient, owner};

use crate::measure::{Series, histogram, p50};
use crate::report::{Row, Target, number};
use crate::{Bench, Outcome, Transport};

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(2000, 100);
    let client = LockClient::connect(bench.server.url(Transport::Tcp)).await?;
    let lock = client.lock("nested");
    let [mut locks, mut unlocks, mut times] = [const { Series(Vec::new()) }; 3];
    for _ in 0..bench.mode.rounds() {
        let counted = owner::scope(count_scripts(bench, &lock, count)).await?;
        locks.push(counted.0);
        unlocks.push(counted.1);
        times.push(owner::scope(time(&lock, count)).await?);
    }
    let worse = Series(locks.0.iter().zip(&unlocks.0).map(|(lock, unlock)| lock.max(*unlock)).collect());
    let text = |series: &Series| number(series.median().unwrap_or(f64::NAN));
    let note = format!("lock {}, unlock {}, both together {} µs", text(&locks), text(&unlocks), text(&times));
    bench.add(Row::new("nested", Transport::Tcp, "trips each", worse).target(Target::AtMost(1.0)).note(note));
    Ok(())
}

/// Scripts for a nested lock, and for its unlock.
async fn count_scripts(bench: &mut Bench, lock: &FairLock, count: u64) -> Outcome<(f64, f64)> {
    let outer = lock.lock().await?;
    let begun = bench.admin.scripts_run().await?;
    let mut guards = Vec::new();
    for _ in 0..count {
        guards.push(lock.lock().await?);
    }
    let locked = bench.admin.scripts_run().await?;
    for guard in guards {
        guard.unlock().await?;
    }
    let unlocked = bench.admin.scripts_run().await?;
    outer.unlock().await?;
    Ok(((locked - begun) / count as f64, (unlocked - locked) / count as f64))
}

async fn time(lock: &FairLock, count: u64) -> Outcome<f64> {
    let outer = lock.lock().await?;
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        lock.lock().await?.unlock().await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    outer.unlock().await?;
    Ok(p50(&times))
}
