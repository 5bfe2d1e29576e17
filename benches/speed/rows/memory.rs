//! Memory of a client in its own process: resident pages, which include allocator and tasks.

use std::time::Duration;

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::Series;
use crate::report::{Row, Target, number};
use crate::{Bench, Outcome, Transport};

/// The locks taken before the first measurement, so that code and buffers are loaded.
const WARM: u64 = 200;

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(10_000, 2000);
    let [mut held, mut waiting] = [Series::default(), Series::default()];
    for _ in 0..bench.mode.rounds() {
        bench.admin.clear().await?;
        if bench.mode.wants("memory-held") {
            held.push(of_a_hold(bench, count).await?);
        }
        if bench.mode.wants("memory-waiting") {
            waiting.push(of_a_waiter(bench, count).await?);
        }
    }
    let note = format!("{count} in one process");
    let row = |name, series, most| Row::new(name, Transport::Tcp, "bytes each", series).target(Target::AtMost(most));
    bench.add(row("memory-held", held, 2048.0).note(format!("{note}; the name, 11 bytes, is in it")));
    bench.add(row("memory-waiting", waiting, 1536.0).note(format!("{note}, with its task")));
    if bench.mode.wants("memory-churn") {
        churn(bench).await?;
    }
    Ok(())
}

async fn of_a_hold(bench: &Bench, count: u64) -> Outcome<f64> {
    let mut child = Child::client(&bench.server.url(Transport::Tcp), &Settings::default()).await?;
    child.ask(&format!("hold {WARM}")).await?;
    let before = child.number("rss").await?;
    child.ask(&format!("hold {count}")).await?;
    let after = child.number("rss").await?;
    child.end().await?;
    Ok((after - before) / count as f64)
}

async fn of_a_waiter(bench: &Bench, count: u64) -> Outcome<f64> {
    let (url, settings) = (bench.server.url(Transport::Tcp), Settings::default());
    let ours = Ours(settings.connect(&url).await?.lock("memory"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, &settings).await?;
    child.ask(&format!("wait memory {WARM}")).await?;
    wait_for_queue(&ours, WARM).await?;
    let before = child.number("rss").await?;
    child.ask(&format!("wait memory {count}")).await?;
    wait_for_queue(&ours, WARM + count).await?;
    // Waits for one poll, since its memory is part of waiting.
    tokio::time::sleep(settings.poll_interval).await;
    let after = child.number("rss").await?;
    child.end().await?;
    ours.unlock(guard).await?;
    Ok((after - before) / count as f64)
}

/// The growth over five of six slices. The first one is a warm-up.
async fn churn(bench: &mut Bench) -> Outcome<()> {
    let mut slice = bench.mode.pick(Duration::from_secs(5), Duration::from_millis(400));
    if bench.mode.long {
        slice = Duration::from_secs(100);
    }
    let mut child = Child::client(&bench.server.url(Transport::Tcp), &Settings::default()).await?;
    let (mut sizes, mut holds) = (Vec::new(), 0.0);
    for _ in 0..6 {
        holds += child.number(&format!("churn 64 {}", slice.as_millis())).await?;
        sizes.push(child.number("rss").await? / f64::from(1 << 20));
    }
    child.end().await?;
    let series = Series(vec![sizes[5] - sizes[0]]);
    let sizes: Vec<String> = sizes.into_iter().map(number).collect();
    let note = format!("{} calls in {} s; MiB: {}", number(holds), number(6.0 * slice.as_secs_f64()), sizes.join(", "));
    bench.add(Row::new("memory-churn", Transport::Tcp, "MiB", series).target(Target::AtMost(1.0)).note(note));
    Ok(())
}
