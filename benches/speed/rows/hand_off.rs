//! Hand-offs of a lock: the time of each, and their number in a second.

use fairlock::LockClient;

use crate::baselines::{Publish, Retry};
use crate::contender::{Contender, Ours, Pace, relay};
use crate::measure::{Cost, Meter, Series, histogram, p50};
use crate::report::{Curve, Row, Target};
use crate::{Bench, Outcome, Transport};

const WAITERS: [u64; 4] = [2, 16, 64, 256];

pub fn names() -> Vec<String> {
    WAITERS.iter().flat_map(|waiters| [of_floor(*waiters), of_retry(*waiters)]).collect()
}

fn of_floor(waiters: u64) -> String {
    format!("hand-off-{waiters}")
}

fn of_retry(waiters: u64) -> String {
    format!("hand-off-vs-retry-{waiters}")
}

pub async fn latency(bench: &mut Bench) -> Outcome<()> {
    let mut curves = ["fairlock", "wake-and-retry", "floor: publish"].map(|name| (name, Vec::new()));
    for transport in [Transport::Tcp, Transport::Unix] {
        let url = bench.server.url(transport);
        let mut contenders = Contenders::connect(&url).await?;
        for waiters in WAITERS {
            if !bench.mode.wants(&of_floor(waiters)) && !bench.mode.wants(&of_retry(waiters)) {
                continue;
            }
            let medians = contenders.rounds(bench, transport, waiters).await?;
            if transport == Transport::Tcp {
                for ((_, points), median) in curves.iter_mut().zip(medians) {
                    points.extend(median.map(|median| (waiters as f64, median)));
                }
            }
        }
    }
    bench.report.curves.hand_off = curves.map(|(name, points)| Curve { name: name.to_owned(), points }).into();
    Ok(())
}

/// The locks to compare.
struct Contenders {
    ours: Ours,
    retry: Retry,
    floor: Publish,
    _client: LockClient,
}

impl Contenders {
    async fn connect(url: &str) -> Outcome<Self> {
        let client = LockClient::connect(url).await?;
        let (retry, floor) = (Retry::connect(url).await?, Publish::connect(url).await?);
        Ok(Self { ours: Ours(client.lock("hand-off")), retry, floor, _client: client })
    }

    /// Adds both rows, and returns the medians of ours, wake-and-retry and the floor.
    async fn rounds(&mut self, bench: &mut Bench, transport: Transport, waiters: u64) -> Outcome<[Option<f64>; 3]> {
        let count = bench.mode.pick(2000, 100);
        let [mut ours, mut retry, mut floor] = [const { Series(Vec::new()) }; 3];
        let [mut our_cost, mut retry_cost] = [Cost::default(), Cost::default()];
        for _ in 0..bench.mode.rounds() {
            floor.push(floor_p50(&mut self.floor, count).await?);
            ours.push(p50(&relay(&self.ours, waiters, count, Pace::Alone).await?.latency));
            retry.push(p50(&relay(&self.retry, waiters, count, Pace::Alone).await?.latency));
            // Separate runs measure the cost, with hand-offs only.
            cost(bench, &self.ours, waiters, count, &mut our_cost).await?;
            cost(bench, &self.retry, waiters, count, &mut retry_cost).await?;
        }
        let row = Row::new(of_floor(waiters), transport, "µs", ours.clone()).over("publish", &floor);
        bench.add(row.cost(&our_cost, None));
        let row = Row::new(of_retry(waiters), transport, "µs", ours.clone()).faster_than("wake-and-retry", &retry);
        bench.add(row.target(Target::AtLeast(1.5)).cost(&our_cost, Some(&retry_cost)));
        Ok([ours.median(), retry.median(), floor.median()])
    }
}

async fn floor_p50(floor: &mut Publish, count: u64) -> Outcome<f64> {
    let mut times = histogram()?;
    for _ in 0..count {
        times.record(u64::try_from(floor.once().await?.as_nanos())?)?;
    }
    Ok(p50(&times))
}

/// The CPU cost of a hand-off. It includes the lock call of a task that queues again, because each hand-off needs one.
async fn cost(bench: &mut Bench, lock: &impl Contender, waiters: u64, count: u64, cost: &mut Cost) -> Outcome<()> {
    let meter = Meter::begin(&mut bench.admin).await?;
    relay(lock, waiters, count, Pace::Flat).await?;
    // The waiters that remain at the end get the lock too, beyond the count.
    meter.end(&mut bench.admin, count + waiters, cost).await
}

/// Hand-offs a second, with many waiters and with two.
pub async fn throughput(bench: &mut Bench) -> Outcome<()> {
    let (many, count) = bench.mode.pick((5000, 20_000), (500, 1000));
    let url = bench.server.url(Transport::Tcp);
    let client = LockClient::connect(&url).await?;
    let (ours, retry) = (Ours(client.lock("hand-offs")), Retry::connect(&url).await?);
    let [mut few_rates, mut many_rates, mut retry_rates] = [const { Series(Vec::new()) }; 3];
    for _ in 0..bench.mode.rounds() {
        few_rates.push(rate(&ours, 2, count).await?);
        many_rates.push(rate(&ours, many, count).await?);
        retry_rates.push(rate(&retry, many, count).await?);
    }
    let few = crate::report::number(few_rates.median().unwrap_or(f64::NAN));
    let row =
        Row::new("hand-offs-5000", Transport::Tcp, "hand-offs/s", many_rates).over("wake-and-retry", &retry_rates);
    bench.add(row.target(Target::AtLeast(1.0)).note(format!("{many} waiters, both; ours with 2 waiters: {few}")));
    Ok(())
}

async fn rate(lock: &impl Contender, waiters: u64, count: u64) -> Outcome<f64> {
    let relay = relay(lock, waiters, count, Pace::Flat).await?;
    Ok(count as f64 / relay.elapsed.as_secs_f64())
}
