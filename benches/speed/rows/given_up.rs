//! Short waits that give up, one after the other, after many patient waiters in the queue. Leftovers of them would
//! pile up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::Series;
use crate::report::{Row, Target, number};
use crate::server::{Logged, longest_call, p999};
use crate::{Bench, Outcome, Transport};

pub const NAMES: [&str; 2] = ["given-up-places", "given-up-call"];
const PATIENT: u64 = 256;
const AT_A_TIME: u64 = 64;

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let waits: u64 = bench.mode.pick(200_000, 2_000);
    let settings = Settings { max_waiters: 1000, ..Settings::default() };
    let [mut places, mut calls, mut usual] = [Series::default(), Series::default(), Series::default()];
    let mut scripts = Vec::new();
    for _ in 0..bench.mode.rounds() {
        let (most, log) = round(bench, &settings, waits).await?;
        let longest = longest_call(&log)?;
        places.push(most as f64);
        calls.push(longest.micros as f64);
        usual.push(p999(&log) as f64);
        scripts.push(longest.script.clone());
    }
    let [length, call] = NAMES;
    let row = Row::new(length, Transport::Tcp, "places", places).target(Target::AtMost(2.0 * 1000.0));
    bench
        .add(row.note(format!("the longest list, seen every 20 ms; {waits} waits given up behind {PATIENT}")).strict());
    let row = Row::new(call, Transport::Tcp, "µs", calls).target(Target::AtMost(1000.0));
    let usual = number(usual.median().unwrap_or(f64::NAN));
    let scripts = scripts.join(", ");
    let note =
        format!("Redis time of the longest call of each round: {scripts}; the worst round counts; p99.9 {usual} µs");
    bench.add(row.note(note).strict());
    Ok(())
}

/// Returns the greatest number of places, and all calls.
async fn round(bench: &mut Bench, settings: &Settings, waits: u64) -> Outcome<(u64, Vec<Logged>)> {
    let url = bench.server.url(Transport::Tcp);
    bench.admin.clear().await?;
    let client = settings.connect(&url).await?;
    let ours = Ours(client.lock("given-up"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, settings).await?;
    child.ask(&format!("wait given-up {PATIENT}")).await?;
    wait_for_queue(&ours, PATIENT).await?;
    bench.admin.log_every_command().await?;
    let left = Arc::new(AtomicU64::new(waits));
    let tasks: Vec<_> = (0..AT_A_TIME)
        .map(|_| {
            let (lock, left) = (client.lock("given-up"), left.clone());
            tokio::spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) as i64 > 0 {
                    let given_up = lock.lock_timeout(Duration::from_millis(2)).await;
                    debug_assert!(given_up.is_err(), "somebody holds it");
                }
            })
        })
        .collect();
    let mut most = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        most = most.max(bench.admin.run::<u64>(&["LLEN", "fairlock:{n:given-up}:queue"]).await?);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = bench.admin.logged_scripts().await?;
    ours.unlock(guard).await?;
    child.end().await?;
    Ok((most, log))
}
