//! The measurements of one side, on command. They use only an API that older libraries have too.

use std::io::{BufRead, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use fairlock::LockClient;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::contender::{Ours, Pace, relay};
use crate::measure::histogram;

/// The first argument of this executable when it runs as a side.
pub const ROLE: &str = "--side";

/// A row, and the size of one of its rounds.
pub struct Plan {
    pub name: &'static str,
    pub unit: &'static str,
    pub count: u64,
    /// Many short rounds rather than few long ones: a machine may wake a process twice as fast for some seconds as in
    /// the next.
    pub rounds: usize,
    pub both: bool,
}

/// Over TCP and over a Unix socket.
const fn both(name: &'static str, unit: &'static str, count: u64, rounds: usize) -> Plan {
    Plan { name, unit, count, rounds, both: true }
}

pub const PLANS: [Plan; 7] = [
    both("uncontended", "µs", 500, 41),
    both("uncontended-1000", "pairs/s", 10_000, 15),
    both("hand-off-2", "µs", 500, 31),
    both("hand-off-16", "µs", 500, 31),
    both("hand-off-64", "µs", 500, 31),
    both("hand-off-256", "µs", 500, 31),
    Plan { both: false, ..both("hand-offs-5000", "hand-offs/s", 20_000, 7) },
];

const TASKS: u64 = 1000;

/// Ends the server when this process ends. It matters only if the parent, which would end the server, was killed: then
/// reading or printing fails here. In all other cases the parent kills this process, which drops nothing.
struct EndOfServer<'a>(&'a str);

impl Drop for EndOfServer<'_> {
    fn drop(&mut self) {
        let end = b"SHUTDOWN NOSAVE\r\n";
        let _ = match self.0.strip_prefix("unix://") {
            Some(path) => UnixStream::connect(path).and_then(|mut socket| socket.write_all(end)),
            None => {
                let address = self.0.trim_start_matches("redis://").trim_end_matches('/');
                TcpStream::connect(address).and_then(|mut socket| socket.write_all(end))
            }
        };
    }
}

pub fn serve(url: &str) -> Outcome<()> {
    let _end = EndOfServer(url);
    // One thread for everything, which leaves the second core to Redis.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = LockClient::connect(url).await?;
        for line in std::io::stdin().lock().lines() {
            // This read blocks the library too, but between the rows it holds no lock and waits for none.
            match row(&client, &line?).await {
                Ok(value) => println!("{value}"),
                Err(error) => println!("{error}"),
            }
        }
        Ok(())
    })
}

async fn row(client: &LockClient, line: &str) -> Outcome<f64> {
    let (name, count) = line.split_once(' ').ok_or("a count is missing")?;
    let count = count.parse()?;
    match name {
        "uncontended" => one_task(client, count).await,
        "uncontended-1000" => many_tasks(client, count).await,
        "hand-offs-5000" => rate(client, count).await,
        _ => match name.strip_prefix("hand-off-") {
            Some(waiters) => hand_off(client, waiters.parse()?, count).await,
            None => Err(format!("there is no row {name}").into()),
        },
    }
}

/// The median of a lock and an unlock, in microseconds.
async fn one_task(client: &LockClient, count: u64) -> Outcome<f64> {
    let lock = client.lock("pair");
    let mut times = histogram()?;
    for _ in 0..count {
        let begun = Instant::now();
        lock.lock().await?.unlock().await?;
        times.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    }
    Ok(times.value_at_quantile(0.5) as f64 / 1e3)
}

/// Pairs a second of tasks that each have a name.
async fn many_tasks(client: &LockClient, count: u64) -> Outcome<f64> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for number in 0..TASKS {
        let lock = client.lock(format!("pair:{number}"));
        tasks.spawn(async move {
            for _ in 0..count / TASKS {
                lock.lock().await?.unlock().await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// The median in microseconds of a hand-off while nothing else happens.
async fn hand_off(client: &LockClient, waiters: u64, count: u64) -> Outcome<f64> {
    let relay = relay(&Ours(client.lock("hand-off")), waiters, count, Pace::Alone).await?;
    Ok(relay.latency.value_at_quantile(0.5) as f64 / 1e3)
}

/// Hand-offs a second with many waiters.
async fn rate(client: &LockClient, count: u64) -> Outcome<f64> {
    let relay = relay(&Ours(client.lock("hand-offs")), 5 * TASKS, count, Pace::Flat).await?;
    Ok(count as f64 / relay.elapsed.as_secs_f64())
}
