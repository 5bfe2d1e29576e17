//! How a lock is shared among sixteen tasks that take it all the time.

use std::time::Duration;

use fairlock::LockClient;

use crate::baselines::{Retry, Setnx, SetnxLoop};
use crate::contender::{Ours, Shares, compete};
use crate::measure::Series;
use crate::report::{Curve, Row, number};
use crate::{Bench, Outcome, Transport};

pub const NAMES: [&str; 5] =
    ["fairness", "fairness-wake-and-retry", "fairness-setnx", "fairness-rslock", "fairness-redis-lock"];
const LABELS: [&str; 5] = ["fairlock", "wake-and-retry", "setnx", "rslock", "redis-lock"];
const TASKS: usize = 16;
const HOLD: Duration = Duration::from_millis(1);

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let time = bench.mode.pick(Duration::from_secs(3), Duration::from_millis(500));
    let url = bench.server.url(Transport::Tcp);
    let client = LockClient::connect(&url).await?;
    let ours = Ours(client.lock("compete"));
    let (retry, setnx) = (Retry::connect(&url).await?, SetnxLoop(Setnx::connect(&url).await?));
    let mut all: [Vec<Shares>; 5] = Default::default();
    for _ in 0..bench.mode.rounds() {
        all[0].push(compete(&ours, TASKS, HOLD, time).await?);
        all[1].push(compete(&retry, TASKS, HOLD, time).await?);
        all[2].push(compete(&setnx, TASKS, HOLD, time).await?);
        let peers = bench.peers().await?;
        all[3].push(peers.compete("rslock", TASKS, HOLD, time).await?);
        all[4].push(peers.compete("redis-lock", TASKS, HOLD, time).await?);
    }
    for ((name, label), shares) in NAMES.into_iter().zip(LABELS).zip(&all) {
        bench.add(row(name, shares, time)?);
        bench.report.curves.fairness.push(curve(label, shares));
    }
    Ok(())
}

fn row(name: &str, rounds: &[Shares], time: Duration) -> Outcome<Row> {
    let jain = Series(rounds.iter().map(|shares| jain(&shares.counts)).collect());
    let total = |shares: &Shares| shares.counts.iter().sum::<u64>() as f64 / time.as_secs_f64();
    let rate = Series(rounds.iter().map(total).collect()).median().ok_or("no rounds")?;
    let longest = rounds.iter().map(|shares| shares.longest_wait).max().ok_or("no rounds")?;
    let least = rounds.iter().flat_map(|shares| &shares.counts).min().ok_or("no tasks")?;
    let longest = number(longest.as_secs_f64() * 1e3);
    let note = format!("longest wait {longest} ms, {} holds/s, fewest of a task {least}", number(rate));
    Ok(Row::new(name, Transport::Tcp, "Jain", jain).note(note))
}

/// Jain's fairness index: 1 if all counts are equal, 1/n if one task has everything, 0 if all counts are 0.
pub fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (counts.len() as f64 * squares) }
}

/// The counts of the last round, largest first. A sum over the rounds would hide the differences.
fn curve(name: &str, rounds: &[Shares]) -> Curve {
    let mut counts = rounds.last().map(|shares| shares.counts.clone()).unwrap_or_default();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let points = counts.into_iter().enumerate().map(|(index, count)| ((index + 1) as f64, count as f64)).collect();
    Curve { name: name.to_owned(), points }
}
