//! Locks without contention: one task, and many tasks that each have a name.

use std::time::Instant;

use fairlock::{FairLock, LockClient};

use crate::baselines::Setnx;
use crate::connection::{MessageHandler, connect, ping};
use crate::contender::together;
use crate::measure::{Cost, Meter, Series, histogram, micros, p50};
use crate::report::{Curve, Row};
use crate::{Bench, Outcome, Transport};

pub const ALONE: [&str; 1] = ["uncontended"];

pub async fn alone(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(3000, 200);
    one_task(bench, Transport::Tcp, count).await?;
    // Without the peers: they run in their own process, and the machine may wake that process twice as fast as this
    // one.
    one_task(bench, Transport::Unix, count).await
}

async fn one_task(bench: &mut Bench, transport: Transport, count: u64) -> Outcome<()> {
    let url = bench.server.url(transport);
    let (client, setnx) = (LockClient::connect(&url).await?, Setnx::connect(&url).await?);
    let mut redis = connect(&url, MessageHandler::none()).await?;
    let [mut ours, mut theirs, mut floor] = [const { Series(Vec::new()) }; 3];
    let [mut our_cost, mut their_cost] = [Cost::default(), Cost::default()];
    for _ in 0..bench.mode.rounds() {
        let meter = Meter::begin(&mut bench.admin).await?;
        ours.push(our_pairs(&client, count).await?);
        meter.end(&mut bench.admin, count, &mut our_cost).await?;
        let meter = Meter::begin(&mut bench.admin).await?;
        theirs.push(setnx_pairs(&setnx, count).await?);
        meter.end(&mut bench.admin, count, &mut their_cost).await?;
        floor.push(ping_pairs(&mut redis, count).await?);
    }
    let floor = crate::report::number(floor.median().unwrap_or(f64::NAN));
    let row = Row::new("uncontended", transport, "µs", ours).faster_than("setnx", &theirs);
    let row = row.cost(&our_cost, Some(&their_cost));
    bench.add(row.note(format!("two PINGs take {floor} µs")));
    Ok(())
}

async fn our_pairs(client: &LockClient, count: u64) -> Outcome<f64> {
    let lock = client.lock("pair");
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        pair(&lock).await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    Ok(p50(&times))
}

async fn setnx_pairs(setnx: &Setnx, count: u64) -> Outcome<f64> {
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        let secret = setnx.try_lock("setnx").await?.ok_or("the SETNX lock is held")?;
        setnx.unlock("setnx", secret).await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    Ok(p50(&times))
}

async fn ping_pairs(redis: &mut redis::aio::MultiplexedConnection, count: u64) -> Outcome<f64> {
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        ping(redis).await?;
        ping(redis).await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    Ok(p50(&times))
}

/// One client, one connection, a name for each task.
pub async fn many(bench: &mut Bench) -> Outcome<()> {
    let mut curves = [curve("fairlock"), curve("setnx")];
    for transport in [Transport::Tcp, Transport::Unix] {
        let url = bench.server.url(transport);
        let (client, setnx) = (LockClient::connect(&url).await?, Setnx::connect(&url).await?);
        let tasks: &[u64] = if transport == Transport::Tcp { &[1, 10, 100, 1000] } else { &[1000] };
        for &tasks in tasks {
            let both = rounds_of(bench, &client, &setnx, tasks).await?;
            if transport == Transport::Tcp {
                for (curve, (rates, _)) in curves.iter_mut().zip(&both) {
                    curve.points.extend(rates.median().map(|rate| (tasks as f64, rate)));
                }
            }
            if tasks == 1000 {
                let [(ours, our_cost), (theirs, their_cost)] = both;
                let row = Row::new("uncontended-1000", transport, "pairs/s", ours).over("setnx", &theirs);
                bench.add(row.cost(&our_cost, Some(&their_cost)));
            }
        }
    }
    bench.report.curves.throughput = curves.into();
    Ok(())
}

fn curve(name: &str) -> Curve {
    Curve { name: name.to_owned(), points: Vec::new() }
}

/// Pairs a second and their CPU cost, for our lock and for SETNX.
async fn rounds_of(bench: &mut Bench, client: &LockClient, setnx: &Setnx, tasks: u64) -> Outcome<[(Series, Cost); 2]> {
    let each = bench.mode.pick(40_000, 2000) / tasks.max(10);
    let mut both = [const { (Series(Vec::new()), Cost { client: Series(Vec::new()), redis: Series(Vec::new()) }) }; 2];
    for _ in 0..bench.mode.rounds() {
        for (index, (rates, cost)) in both.iter_mut().enumerate() {
            let meter = Meter::begin(&mut bench.admin).await?;
            let begun = Instant::now();
            if index == 0 {
                our_tasks(client, tasks, each).await?
            } else {
                setnx_tasks(setnx, tasks, each).await?
            }
            rates.push((tasks * each) as f64 / (micros(begun.elapsed()) / 1e6));
            meter.end(&mut bench.admin, tasks * each, cost).await?;
        }
    }
    Ok(both)
}

async fn pair(lock: &FairLock) -> Outcome<()> {
    lock.lock().await?.unlock().await?;
    Ok(())
}

async fn our_tasks(client: &LockClient, tasks: u64, each: u64) -> Outcome<()> {
    let locks = (0..tasks).map(|number| client.lock(format!("pair:{number}")));
    let running = locks.map(|lock| async move {
        for number in 0..each {
            let begun = Instant::now();
            // Errors did happen on a busy machine, so the message reports the time.
            let when =
                |error| format!("{error}, {:?} after pair {number} of one in {tasks} tasks began", begun.elapsed());
            pair(&lock).await.map_err(when)?;
        }
        Ok(())
    });
    together(running).await?;
    Ok(())
}

async fn setnx_tasks(setnx: &Setnx, tasks: u64, each: u64) -> Outcome<()> {
    let running = (0..tasks).map(|number| {
        let (setnx, name) = (setnx.clone(), format!("setnx:{number}"));
        async move {
            for _ in 0..each {
                let secret = setnx.try_lock(&name).await?.ok_or("the SETNX lock is held")?;
                setnx.unlock(&name, secret).await?;
            }
            Ok(())
        }
    });
    together(running).await?;
    Ok(())
}
