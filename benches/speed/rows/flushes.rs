//! Another database of the server is flushed again and again. A client is notified of each flush, without the number of the
//! database, so it has to ask whether its locks are still there.

use std::time::Duration;

use tokio::time::{Instant, interval, sleep};

use crate::child::{Child, Settings};
use crate::measure::Series;
use crate::report::{Row, Target};
use crate::server::Admin;
use crate::{Bench, Outcome, Transport};

pub const NAMES: [&str; 3] = ["flushes-memory", "flushes-lost", "flushes-pair"];
/// 100 a second.
const EACH: Duration = Duration::from_millis(10);

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    bench.admin.clear().await?;
    let count = bench.mode.pick(100_000, 2000);
    let time = Duration::from_secs(bench.mode.pick(60, 1));
    let mut child = Child::client(&bench.server.url(Transport::Tcp), &Settings::default()).await?;
    child.ask(&format!("hold {count}")).await?;
    let held = child.number("rss").await?;
    let (calm, _) = watch(&mut child, time / 6).await?;

    let mut elsewhere = bench.server.admin().await?;
    elsewhere.run::<()>(&["SELECT", "1"]).await?;
    let mut flushes = 0;
    let (pairs, most) = tokio::select! {
        watched = watch(&mut child, time) => watched?,
        failed = flush(&mut elsewhere, &mut flushes) => return failed,
    };
    let lost = child.number("lost").await?;
    child.end().await?;

    let grown = Series(vec![(most - held) / f64::from(1 << 20)]);
    let (calm, busy) = (calm.median().unwrap_or_default(), pairs.median().unwrap_or_default());
    let note = format!("{count} locks, {flushes} flushes of another database in {} s", time.as_secs());
    let pair_note = format!("{note}; p50 of the same client's pairs, {busy:.0} µs and {calm:.0} µs without flushes");
    let [memory, lost_name, pair] = NAMES;
    let row = |name, unit, value, most, note: &str| {
        Row::new(name, Transport::Tcp, unit, value).target(Target::AtMost(most)).note(note)
    };
    bench.add(row(memory, "MiB", grown, 50.0, &note));
    bench.add(row(lost_name, "locks", Series(vec![lost]), 0.0, &note));
    bench.add(row(pair, "times", Series(vec![busy / calm]), 10.0, &pair_note));
    Ok(())
}

/// The microseconds of single pairs of the child, and the most memory that it had.
async fn watch(child: &mut Child, time: Duration) -> Outcome<(Series, f64)> {
    let (until, mut pairs, mut most) = (Instant::now() + time, Series::default(), 0_f64);
    while Instant::now() < until {
        pairs.push(child.number("pair").await?);
        most = most.max(child.number("rss").await?);
        sleep(Duration::from_millis(20)).await;
    }
    Ok((pairs, most))
}

/// Ends only by an error.
async fn flush(admin: &mut Admin, flushes: &mut u64) -> Outcome<()> {
    let mut due = interval(EACH);
    loop {
        due.tick().await;
        admin.run::<()>(&["FLUSHDB"]).await?;
        *flushes += 1;
    }
}
