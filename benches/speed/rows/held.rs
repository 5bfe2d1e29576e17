//! One client holds many locks: whether it keeps them, and at what cost.

use std::time::Duration;

use super::waiting::UseOfCpu;
use crate::child::{Child, Settings};
use crate::measure::Series;
use crate::report::{Row, Target};
use crate::{Bench, Outcome, Transport};

pub const NAMES: [&str; 4] = ["held-10000-lost", "held-10000-client", "held-10000-redis", "held-10000-connections"];

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let count = 10_000;
    // A window is a third of the lease: in each one, the client renews all locks once.
    let (lease, windows) = bench.mode.pick((30, 6), (3, 5));
    let (lease, window) = (Duration::from_secs(lease), Duration::from_secs(lease / 3));
    let before = bench.admin.info("clients", "connected_clients").await?;
    let mut child =
        Child::client(&bench.server.url(Transport::Tcp), &Settings { lease, ..Settings::default() }).await?;
    child.ask(&format!("hold {count}")).await?;
    let use_of_cpu = UseOfCpu::watch(&mut child, &mut bench.admin, windows, window).await?;
    let connections = bench.admin.info("clients", "connected_clients").await? - before;
    let lost = child.number("lost").await?;
    let on_server = bench.admin.run::<u64>(&["DBSIZE"]).await?;
    child.end().await?;
    // Each lock has two keys on the server, a hash and a token. This also counts losses that the client has missed.
    let lost = lost.max((2.0 * f64::from(count) - on_server as f64).max(0.0));
    let over = format!("{count} locks over {} s", use_of_cpu.time.as_secs());
    let [lost_name, client_name, redis_name, connections_name] = NAMES;
    let row = |name: &str, unit, series| Row::new(name, Transport::Tcp, unit, series).note(&over);
    bench.add(row(lost_name, "locks", Series(vec![lost])).target(Target::AtMost(0.0)));
    bench.add(row(client_name, "%", use_of_cpu.client).target(Target::AtMost(2.0)));
    bench.add(row(redis_name, "%", use_of_cpu.redis).target(Target::AtMost(2.0)));
    bench.add(row(connections_name, "connections", Series(vec![connections])).target(Target::AtMost(2.0)));
    Ok(())
}
