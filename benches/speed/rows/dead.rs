//! Many waiters that are stopped, or killed, ahead of a live one.

use std::time::{Duration, Instant};

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::Series;
use crate::report::{Row, Target};
use crate::{Bench, Outcome, Transport};

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let waiters: u64 = bench.mode.pick(10_000, 500);
    let quick = Settings {
        waiter_ttl: Duration::from_secs(2),
        poll_interval: Duration::from_millis(500),
        grant_ttl: Duration::from_secs(1),
        ..Settings::default()
    };
    let settings = bench.mode.pick(Settings::default(), quick);
    let [mut delays, mut calls] = [Series::default(), Series::default()];
    for _ in 0..bench.mode.rounds() {
        let (delay, longest) = round(bench, &settings, waiters).await?;
        delays.push(delay.as_secs_f64());
        calls.push(longest as f64);
    }
    let limit = settings.waiter_ttl.as_secs_f64() + 1.0;
    let note = format!("{waiters} dead; from their death to the guard");
    let row = Row::new("dead-waiters-10000", Transport::Tcp, "s", delays).target(Target::AtMost(limit));
    bench.add(row.note(note).strict());
    let row = Row::new("dead-waiters-10000-call", Transport::Tcp, "µs", calls).target(Target::AtMost(1000.0));
    bench.add(row.note("Redis time of the longest call of each round; the worst round counts").strict());
    Ok(())
}

/// How long the live waiter waited, and the longest call.
async fn round(bench: &mut Bench, settings: &Settings, waiters: u64) -> Outcome<(Duration, u64)> {
    let url = bench.server.url(Transport::Tcp);
    bench.admin.clear().await?;
    let (holder, live) = (settings.connect(&url).await?, settings.connect(&url).await?);
    let ours = Ours(holder.lock("dead"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, settings).await?;
    child.ask(&format!("wait dead {waiters}")).await?;
    wait_for_queue(&ours, waiters).await?;
    let lock = live.lock("dead");
    let live = tokio::spawn(async move { lock.lock().await.map(|guard| (Instant::now(), guard)) });
    wait_for_queue(&ours, waiters + 1).await?;
    bench.admin.log_every_command().await?;
    child.freeze()?;
    let died = Instant::now();
    ours.unlock(guard).await?;
    let got = tokio::time::timeout(Duration::from_secs(60), live).await;
    let (got, guard) = got.map_err(|_| "the live waiter never got the lock")???;
    let longest = bench.admin.logged_scripts().await?.iter().map(|call| call.micros).max();
    ours.unlock(guard).await?;
    child.end().await?;
    Ok((got - died, longest.ok_or("no script was run")?))
}

pub const KILLED: [&str; 3] = ["killed-waiters-100000", "killed-waiters-100000-calls", "killed-waiters-100000-call"];

/// Their connections are closed, so they are passed over at once, up to 2,000 places in a call.
pub async fn killed(bench: &mut Bench) -> Outcome<()> {
    let waiters: u64 = bench.mode.pick(100_000, 5_000);
    let settings = Settings {
        // None of them dies of its silence.
        waiter_ttl: Duration::from_secs(600),
        operation_timeout: Duration::from_secs(20),
        max_waiters: 200_000,
        ..Settings::default()
    };
    let [mut delays, mut calls, mut longest] = [Series::default(), Series::default(), Series::default()];
    for _ in 0..bench.mode.rounds() {
        let passing = pass_over_killed(bench, &settings, waiters).await?;
        delays.push(passing.delay.as_secs_f64() * 1e3);
        calls.push(passing.calls as f64);
        longest.push(passing.longest as f64);
    }
    let [delay, count, call] = KILLED;
    let note = format!("{waiters} killed; from the unlock to the guard of the one behind them");
    bench.add(Row::new(delay, Transport::Tcp, "ms", delays).note(note));
    let most = waiters as f64 / 2000.0 + 2.0;
    let row = Row::new(count, Transport::Tcp, "calls", calls).target(Target::AtMost(most));
    bench.add(row.note("scripts that ran meanwhile; one for each 2,000 places, and the first poll").strict());
    let row = Row::new(call, Transport::Tcp, "µs", longest).target(Target::Below(1000.0));
    bench.add(row.note("Redis time of the longest call of each round; the worst round counts").strict());
    Ok(())
}

struct Passing {
    delay: Duration,
    calls: usize,
    longest: u64,
}

async fn pass_over_killed(bench: &mut Bench, settings: &Settings, waiters: u64) -> Outcome<Passing> {
    let url = bench.server.url(Transport::Tcp);
    bench.admin.clear().await?;
    let (holder, live) = (settings.connect(&url).await?, settings.connect(&url).await?);
    let ours = Ours(holder.lock("killed"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, settings).await?;
    child.ask(&format!("wait killed {waiters}")).await?;
    wait_for_queue(&ours, waiters).await?;
    let lock = live.lock("killed");
    let live = tokio::spawn(async move { lock.lock().await.map(|guard| (Instant::now(), guard)) });
    wait_for_queue(&ours, waiters + 1).await?;
    let channels = channels(bench).await?;
    child.end().await?;
    while self::channels(bench).await? == channels {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bench.admin.log_every_command().await?;
    let unlocked = Instant::now();
    ours.unlock(guard).await?;
    let got = tokio::time::timeout(Duration::from_secs(60), live).await;
    let (got, guard) = got.map_err(|_| "the live waiter never got the lock")???;
    let scripts = bench.admin.logged_scripts().await?;
    ours.unlock(guard).await?;
    let longest = scripts.iter().map(|call| call.micros).max().ok_or("no script was run")?;
    Ok(Passing { delay: got - unlocked, calls: scripts.len(), longest })
}

/// On which clients hear of their grants.
async fn channels(bench: &mut Bench) -> Outcome<usize> {
    Ok(bench.admin.run::<Vec<String>>(&["PUBSUB", "CHANNELS", "fairlock:wake:*"]).await?.len())
}
