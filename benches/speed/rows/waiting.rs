//! The cost of waiting: CPU time of the client and of Redis while nothing else happens.

use std::time::{Duration, Instant};

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::Series;
use crate::report::{Curve, Row, Target};
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
            for (name, series) in [("client", use_of_cpu.client), ("redis", use_of_cpu.redis)] {
                let row = Row::new(format!("waiting-10000-{name}"), Transport::Tcp, "%", series);
                bench.add(row.target(Target::AtMost(5.0)).note(&note));
            }
        }
    }
    bench.report.curves.waiting = curves.into();
    Ok(())
}

async fn measure(bench: &mut Bench, waiters: u64) -> Outcome<UseOfCpu> {
    // The killed waiters of the last measurement would count too.
    bench.admin.clear().await?;
    let url = bench.server.url(Transport::Tcp);
    let settings = Settings::default();
    let ours = Ours(settings.connect(&url).await?.lock("waiting"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, &settings).await?;
    child.ask(&format!("wait waiting {waiters}")).await?;
    wait_for_queue(&ours, waiters).await?;
    // Each window has a whole number of polls.
    let window = bench.mode.pick(Duration::from_secs(4), Duration::from_millis(1500));
    tokio::time::sleep(window / 2).await;
    let windows = if waiters == 10_000 { bench.mode.rounds() } else { bench.mode.pick(3, 1) };
    let use_of_cpu = UseOfCpu::watch(&mut child, &mut bench.admin, windows, window).await?;
    let still = ours.waiters().await?;
    if still != waiters {
        return Err(format!("{still} instead of {waiters} wait").into());
    }
    child.end().await?;
    ours.unlock(guard).await?;
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
