//! A hand-off over a link with a round trip of 10 ms, compared with a PING over the same link.

use std::time::{Duration, Instant};

use fairlock::LockClient;

use crate::baselines::Retry;
use crate::connection::{MessageHandler, connect, ping};
use crate::contender::{Ours, Pace, relay};
use crate::measure::{Series, histogram, p50};
use crate::proxy::Proxy;
use crate::report::{Row, Target};
use crate::{Bench, Outcome, Transport};

const DELAY: Duration = Duration::from_millis(5);
const WAITERS: u64 = 16;

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(100, 10);
    let proxy = Proxy::start(bench.server.port(), DELAY)?;
    let transport = Transport::Proxied(proxy.port);
    let url = bench.server.url(transport);
    let client = LockClient::connect(&url).await?;
    let (ours, retry) = (Ours(client.lock("link")), Retry::connect(&url).await?);
    let mut redis = connect(&url, MessageHandler::none()).await?;
    let [mut pings, mut our_times, mut retry_times] = [const { Series(Vec::new()) }; 3];
    for _ in 0..bench.mode.rounds() {
        pings.push(ping_ms(&mut redis, count).await?);
        our_times.push(p50(&relay(&ours, WAITERS, count, Pace::Alone).await?.latency) / 1e3);
        retry_times.push(p50(&relay(&retry, WAITERS, count, Pace::Alone).await?.latency) / 1e3);
    }
    let row = Row::new("hand-off-10ms", transport, "ms", our_times.clone()).over("ping", &pings);
    bench.add(row.target(Target::AtMost(1.3)).note(format!("{WAITERS} waiters")));
    let row = Row::new("hand-off-vs-retry-10ms", transport, "ms", our_times);
    bench.add(row.faster_than("wake-and-retry", &retry_times).note(format!("{WAITERS} waiters")));
    Ok(())
}

async fn ping_ms(redis: &mut redis::aio::MultiplexedConnection, count: u64) -> Outcome<f64> {
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        ping(redis).await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    Ok(p50(&times) / 1e3)
}
