//! The cost of waiting: CPU time of the client and of Redis while nothing else happens.

use std::time::{Duration, Instant};

use fairlock::LockGuard;

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::{Series, histogram, p50};
use crate::report::{Curve, Row, Target, number};
use crate::server::Admin;
use crate::{Bench, Outcome, Transport};

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let mut curves = ["client", "Redis"].map(|name| Curve { name: name.to_owned(), points: Vec::new() });
    for waiters in [100, 1000, 10_000] {
        let use_of_cpu = measure(bench, waiters).await?;
        for (curve, series) in curves.iter_mut().zip([&use_of_cpu.client, &use_of_cpu.redis]) {
            curve.points.extend(series.median().map(|percent| (waiters as f64, percent)));
        }
        if waiters == 10_000 {
            let note = format!("of a core, over {} s", use_of_cpu.time.as_secs());
            for (name, series, most) in [("client", use_of_cpu.client, 0.5), ("redis", use_of_cpu.redis, 0.3)] {
                let row = Row::new(format!("waiting-10000-{name}"), Transport::Tcp, "%", series);
                bench.add(row.target(Target::AtMost(most)).note(&note));
            }
        }
    }
    bench.report.curves.waiting = curves.into();
    if bench.mode.wants(POLL) { polls(bench, 10_000).await } else { Ok(()) }
}

pub const POLL: &str = "waiting-10000-poll";

/// Redis' time for a poll of a client with `waiters` waiters. The client polls more often than usual, so that the row
/// has enough polls.
async fn polls(bench: &mut Bench, waiters: u64) -> Outcome<()> {
    let settings = Settings { poll_interval: Duration::from_millis(20), ..Settings::default() };
    let (_held, child) = line_up(bench, &settings, waiters).await?;
    let (mut usual, mut all) = (Series::default(), histogram()?);
    for _ in 0..bench.mode.rounds() {
        bench.admin.log_every_command().await?;
        tokio::time::sleep(bench.mode.pick(Duration::from_secs(8), Duration::from_millis(500))).await;
        let mut round = histogram()?;
        for call in bench.admin.logged_scripts().await?.iter().filter(|call| call.script == "poll") {
            // In nanoseconds, like all histograms here.
            round.record(call.micros * 1000)?;
        }
        usual.push(round.value_at_quantile(0.99) as f64 / 1e3);
        all.add(&round)?;
    }
    child.end().await?;
    let [p50, longest] = [p50(&all), all.max() as f64 / 1e3].map(number);
    let note = format!("p99 of {} polls, one each 20 ms, of 16 tickets; p50 {p50}, longest {longest} µs", all.len());
    let row = Row::new(POLL, Transport::Tcp, "µs", usual).target(Target::AtMost(60.0));
    bench.add(row.note(note));
    Ok(())
}

/// A held lock, and a process whose tasks wait for it.
async fn line_up(bench: &mut Bench, settings: &Settings, waiters: u64) -> Outcome<(Held, Child)> {
    // The killed waiters of the last measurement would count too.
    bench.admin.clear().await?;
    let url = bench.server.url(Transport::Tcp);
    let lock = Ours(settings.connect(&url).await?.lock("waiting"));
    let guard = lock.lock().await?;
    let mut child = Child::client(&url, settings).await?;
    child.ask(&format!("wait waiting {waiters}")).await?;
    wait_for_queue(&lock, waiters).await?;
    Ok((Held { lock, _guard: guard }, child))
}

/// Released when dropped.
struct Held {
    lock: Ours,
    _guard: LockGuard,
}

async fn measure(bench: &mut Bench, waiters: u64) -> Outcome<UseOfCpu> {
    let (held, mut child) = line_up(bench, &Settings::default(), waiters).await?;
    // Each window has a whole number of polls.
    let window = bench.mode.pick(Duration::from_secs(4), Duration::from_millis(1500));
    tokio::time::sleep(window / 2).await;
    let windows = if waiters == 10_000 { bench.mode.rounds() } else { bench.mode.pick(3, 1) };
    let use_of_cpu = UseOfCpu::watch(&mut child, &mut bench.admin, windows, window).await?;
    let still = held.lock.waiters().await?;
    if still != waiters {
        return Err(format!("{still} instead of {waiters} wait").into());
    }
    child.end().await?;
    Ok(use_of_cpu)
}

/// CPU use in percent of a core, one value for each window.
#[derive(Default)]
pub struct UseOfCpu {
    pub client: Series,
    pub redis: Series,
    pub time: Duration,
}

impl UseOfCpu {
    pub async fn watch(child: &mut Child, admin: &mut Admin, windows: usize, window: Duration) -> Outcome<Self> {
        let mut use_of_cpu = Self::default();
        for _ in 0..windows {
            let (begun, client, redis) = (Instant::now(), child.number("cpu").await?, admin.cpu().await?);
            tokio::time::sleep(window).await;
            let (client, redis) = (child.number("cpu").await? - client, admin.cpu().await? - redis);
            let passed = begun.elapsed();
            use_of_cpu.client.push(client / 1e4 / passed.as_secs_f64());
            use_of_cpu.redis.push(redis.as_secs_f64() * 100.0 / passed.as_secs_f64());
            use_of_cpu.time += passed;
        }
        Ok(use_of_cpu)
    }
}
