//! `fairlock bench`: how fast locks are on this server.

use std::time::{Duration, Instant};

use fairlock::{FairLock, LockClient};
use serde::Serialize;

use super::args::{Args, Bench};
use super::connect::{builder, connect_with};
use super::exit::{self, Failure};
use super::output::{Output, Style};
use super::render::Columns;

/// Lets the last tokens of its locks expire soon.
const TOKEN_TTL: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Measured {
    rounds: u32,
    ping: Spread,
    lock_and_unlock: Spread,
    hand_over: Spread,
}

/// The spread over all rounds, in microseconds.
#[derive(Debug, Serialize)]
struct Spread {
    p50_us: f64,
    p99_us: f64,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| {
            let index = times.len().saturating_sub(1) * share / 100;
            times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Self { p50_us: at(50), p99_us: at(99) }
    }
}

pub async fn run(args: &Args, bench: &Bench, out: &mut Output) -> Result<u8, Failure> {
    let token_ttl = TOKEN_TTL.max(args.strict_restart.unwrap_or_default());
    let connected = async || connect_with(args, builder(args, None).token_ttl(token_ttl)).await;
    let (one, two) = (connected().await?, connected().await?);
    // A name of its own, so that it waits for no other client.
    let name = format!("fairlock bench {}", one.id());
    let measured = Measured {
        rounds: bench.rounds,
        ping: ping(&one, bench.rounds).await?,
        lock_and_unlock: lock_and_unlock(&one.lock(&name), bench.rounds).await?,
        hand_over: hand_over(&one.lock(&name), &two.lock(&name), bench.rounds).await?,
    };
    for client in [one, two] {
        client.close().await.map_err(|error| Failure::new(exit::UNAVAILABLE, error.to_string()))?;
    }
    if bench.json {
        out.json(&measured)?
    } else {
        show(&measured, out)?
    }
    Ok(exit::OK)
}

async fn ping(client: &LockClient, rounds: u32) -> Result<Spread, Failure> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(client.ping().await?);
    }
    Ok(Spread::of(times))
}

async fn lock_and_unlock(lock: &FairLock, rounds: u32) -> Result<Spread, Failure> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        lock.lock().await?.unlock().await.map_err(|error| Failure::new(exit::UNAVAILABLE, exit::chain(&error)))?;
        times.push(begun.elapsed());
    }
    Ok(Spread::of(times))
}

/// Measures from the call of `unlock` to the guard of the waiter, which is another client.
async fn hand_over(one: &FairLock, two: &FairLock, rounds: u32) -> Result<Spread, Failure> {
    let mut times = Vec::new();
    let (mut holder, mut waiter) = (one, two);
    let mut guard = holder.lock().await?;
    for _ in 0..rounds {
        let unlock = async {
            while holder.status().await?.waiters == 0 {}
            let begun = Instant::now();
            // The waiter usually gets the lock before this answer arrives.
            guard.unlock().await.map_err(|error| Failure::new(exit::UNAVAILABLE, exit::chain(&error)))?;
            Ok::<_, Failure>(begun)
        };
        let wait = async {
            let next = waiter.lock().await?;
            Ok::<_, Failure>((next, Instant::now()))
        };
        let (begun, (next, got)) = futures::future::try_join(unlock, wait).await?;
        times.push(got.saturating_duration_since(begun));
        guard = next;
        std::mem::swap(&mut holder, &mut waiter);
    }
    guard.unlock().await.map_err(|error| Failure::new(exit::UNAVAILABLE, exit::chain(&error)))?;
    Ok(Spread::of(times))
}

fn show(measured: &Measured, out: &mut Output) -> Result<(), Failure> {
    let row = |name: &str, spread: &Spread| {
        let times = |of: &Spread| if of.p50_us > 0.0 { spread.p50_us / of.p50_us } else { 0.0 };
        let micros = |time: f64| format!("{time:.0} us");
        vec![name.to_owned(), micros(spread.p50_us), micros(spread.p99_us), format!("{:.2}", times(&measured.ping))]
    };
    let rows = [
        ["", "P50", "P99", "OF PING"].map(str::to_owned).to_vec(),
        row("ping", &measured.ping),
        row("lock and unlock", &measured.lock_and_unlock),
        row("hand-over", &measured.hand_over),
    ];
    let mut columns = Columns::default();
    rows.iter().for_each(|row| columns.fit(row));
    for (index, row) in rows.iter().enumerate() {
        let line = columns.line(row);
        out.line(if index == 0 { out.styled(Style::Bold, &line) } else { line })?;
    }
    Ok(())
}
