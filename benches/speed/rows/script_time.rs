//! The server's time for each script while many wait for one name, from the server's slow log.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock::FairLock;
use hdrhistogram::Histogram;

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::{Series, histogram, p50};
use crate::report::{Row, Target, number};
use crate::server::Logged;
use crate::{Bench, Outcome, Transport};

const SCRIPTS: [&str; 7] = ["acquire", "poll", "leave", "release", "renew", "force_unlock", "inspect"];

pub fn names() -> Vec<String> {
    SCRIPTS.iter().map(|script| name(script)).collect()
}

fn name(script: &str) -> String {
    format!("script-time-100000-{script}")
}

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let (waiters, clients) = bench.mode.pick((100_000, 20), (2000, 2));
    let window = bench.mode.pick(Duration::from_secs(5), Duration::from_millis(1500));
    // Long enough that all are queued before the first ticket expires, and that all polls get through.
    let poll_interval = bench.mode.pick(Duration::from_secs(2), Duration::from_secs(1));
    let settings = Settings {
        waiter_ttl: Duration::from_secs(60),
        poll_interval,
        // With this many waiters the clients are slow. This row is about the server.
        operation_timeout: Duration::from_secs(20),
        max_waiters: 200_000,
        ..Settings::default()
    };
    let url = bench.server.url(Transport::Tcp);
    let lock = settings.connect(&url).await?.lock("long");
    let ours = Ours(lock.clone());
    let first = ours.lock().await?;
    let mut children = Vec::new();
    for number in 1..=clients {
        let mut child = Child::client(&url, &settings).await?;
        child.ask(&format!("cycle long {} 1", waiters / clients)).await?;
        wait_for_queue(&ours, number * waiters / clients).await?;
        children.push(child);
    }
    ours.unlock(first).await?;
    let mut tally = Tally::default();
    for _ in 0..bench.mode.rounds() {
        bench.admin.log_every_command().await?;
        use_every_script(&lock, window).await?;
        tally.count(&bench.admin.logged_scripts().await?)?;
    }
    let still = lock.status().await?.waiters;
    for child in children {
        child.end().await?;
    }
    // The holder does not wait, and neither do the tasks that are about to queue again.
    if still < waiters * 99 / 100 {
        return Err(format!("only {still} waited at the end").into());
    }
    tally.rows(bench, still)
}

/// Makes the calls that run the other scripts. In the meantime the waiters hand the lock on, which runs acquire,
/// release, renew and poll.
async fn use_every_script(lock: &FairLock, window: Duration) -> Outcome<()> {
    const STEPS: u32 = 20;
    for _ in 0..STEPS {
        // These calls queue, and time out before they get the lock.
        let short_waits = (0..25).map(|_| lock.lock_timeout(Duration::from_millis(20)));
        futures::future::join_all(short_waits).await;
        lock.status().await?;
        lock.is_locked().await?;
        lock.force_unlock().await?;
        tokio::time::sleep(window / STEPS).await;
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    /// For each script, the p99 of each round in microseconds.
    p99: BTreeMap<String, Series>,
    all: BTreeMap<String, Histogram<u64>>,
}

impl Tally {
    fn count(&mut self, log: &[Logged]) -> Outcome<()> {
        let mut round = BTreeMap::<String, Histogram<u64>>::new();
        for call in log {
            for times in [&mut round, &mut self.all] {
                if !times.contains_key(&call.script) {
                    times.insert(call.script.clone(), histogram()?);
                }
                // In nanoseconds, like all histograms here.
                times.entry(call.script.clone()).and_modify(|times| times.saturating_record(call.micros * 1000));
            }
        }
        for (script, times) in round {
            self.p99.entry(script).or_default().push(times.value_at_quantile(0.99) as f64 / 1e3);
        }
        Ok(())
    }

    fn rows(&self, bench: &mut Bench, waiters: u64) -> Outcome<()> {
        for script in SCRIPTS {
            let (Some(p99), Some(all)) = (self.p99.get(script), self.all.get(script)) else {
                return Err(format!("{script} did not run").into());
            };
            let longest = number(all.max() as f64 / 1e3);
            let note = format!(
                "p99 of {} calls with {waiters} waiters; p50 {}, longest {longest} µs",
                all.len(),
                number(p50(all)),
            );
            let row = Row::new(name(script), Transport::Tcp, "µs", p99.clone());
            bench.add(row.target(Target::Below(1000.0)).note(note));
        }
        Ok(())
    }
}
