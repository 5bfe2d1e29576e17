//! Many stopped or killed waiters in front of a live one.

use std::time::{Duration, Instant};

use crate::child::{Child, Settings};
use crate::contender::{Contender, Ours, wait_for_queue};
use crate::measure::Series;
use crate::report::{Row, Target};
use crate::server::{Logged, longest_call};
use crate::{Bench, Outcome, Transport};

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let waiters: u64 = bench.mode.pick(10_000, 500);
    let quick = Settings {
        waiter_ttl: Duration::from_secs(2),
        poll_interval: Duration::from_millis(500),
        grant_ttl: Duration::from_secs(1),
        ..Settings::default()
    };
    let settings = bench.mode.pick(Settings::default(), quick);
    let [mut delays, mut calls] = [Series::default(), Series::default()];
    let mut scripts = Vec::new();
    for _ in 0..bench.mode.rounds() {
        let passing = pass_over(bench, &settings, waiters, Death::Frozen).await?;
        delays.push(passing.delay.as_secs_f64());
        calls.push(passing.longest.micros as f64);
        scripts.push(passing.longest.script);
    }
    let limit = settings.waiter_ttl.as_secs_f64() + 1.0;
    let note = format!("{waiters} dead; from their death to the guard");
    let row = Row::new("dead-waiters-10000", Transport::Tcp, "s", delays).target(Target::AtMost(limit));
    bench.add(row.note(note).strict());
    let row = Row::new("dead-waiters-10000-call", Transport::Tcp, "µs", calls).target(Target::AtMost(1000.0));
    bench.add(row.note(longest_calls(&scripts)).strict());
    Ok(())
}

fn longest_calls(scripts: &[String]) -> String {
    format!("Redis time of the longest call of each round: {}; the worst round counts", scripts.join(", "))
}

pub const KILLED: [&str; 3] = ["killed-waiters-100000", "killed-waiters-100000-calls", "killed-waiters-100000-call"];

/// The server sees that their connections are closed, and passes over up to 2,000 of their places in a call.
pub async fn killed(bench: &mut Bench) -> Outcome<()> {
    let waiters: u64 = bench.mode.pick(100_000, 5_000);
    let settings = Settings {
        // No waiter dies because it stops polling.
        waiter_ttl: Duration::from_secs(600),
        operation_timeout: Duration::from_secs(20),
        max_waiters: 200_000,
        ..Settings::default()
    };
    let [mut delays, mut calls, mut longest] = [Series::default(), Series::default(), Series::default()];
    let mut scripts = Vec::new();
    for _ in 0..bench.mode.rounds() {
        let passing = pass_over(bench, &settings, waiters, Death::Killed).await?;
        delays.push(passing.delay.as_secs_f64() * 1e3);
        calls.push(passing.calls as f64);
        longest.push(passing.longest.micros as f64);
        scripts.push(passing.longest.script);
    }
    let [delay, count, call] = KILLED;
    let note = format!("{waiters} killed; from the unlock to the guard of the one behind them");
    bench.add(Row::new(delay, Transport::Tcp, "ms", delays).note(note));
    let most = waiters as f64 / 1100.0 + 2.0;
    let row = Row::new(count, Transport::Tcp, "calls", calls).target(Target::AtMost(most));
    bench.add(row.note("scripts that ran meanwhile; one for each 1,100 places, and the first poll").strict());
    let row = Row::new(call, Transport::Tcp, "µs", longest).target(Target::Below(1000.0));
    bench.add(row.note(longest_calls(&scripts)).strict());
    Ok(())
}

/// How the waiters in front die.
#[derive(Clone, Copy)]
enum Death {
    /// Their connection stays open, so only the missing polls show it.
    Frozen,
    /// The server sees at once that their connection is closed.
    Killed,
}

impl Death {
    /// Stops or kills the child. From then on the server logs every command. Returns a stopped child, because its
    /// connection has to stay open.
    async fn comes_to(self, child: Child, bench: &mut Bench) -> Outcome<Option<Child>> {
        match self {
            Self::Frozen => {
                // Before the freeze, so that the time since the death is also the time since the unlock.
                bench.admin.log_every_command().await?;
                child.freeze()?;
                Ok(Some(child))
            }
            Self::Killed => {
                let channels = channels(bench).await?;
                child.end().await?;
                while self::channels(bench).await? == channels {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                // After the kill, so that the log counts none of the child's calls.
                bench.admin.log_every_command().await?;
                Ok(None)
            }
        }
    }
}

/// The live waiter's way past them.
struct Passing {
    /// From the unlock until the live waiter has its guard.
    delay: Duration,
    calls: usize,
    longest: Logged,
}

async fn pass_over(bench: &mut Bench, settings: &Settings, waiters: u64, death: Death) -> Outcome<Passing> {
    let url = bench.server.url(Transport::Tcp);
    bench.admin.clear().await?;
    let (holder, live) = (settings.connect(&url).await?, settings.connect(&url).await?);
    let ours = Ours(holder.lock("dead"));
    let guard = ours.lock().await?;
    let mut child = Child::client(&url, settings).await?;
    child.ask(&format!("wait dead {waiters}")).await?;
    wait_for_queue(&ours, waiters).await?;
    let lock = live.lock("dead");
    let live = tokio::spawn(async move { lock.lock().await.map(|guard| (Instant::now(), guard)) });
    wait_for_queue(&ours, waiters + 1).await?;
    let frozen = death.comes_to(child, bench).await?;
    let unlocked = Instant::now();
    ours.unlock(guard).await?;
    let got = tokio::time::timeout(Duration::from_secs(60), live).await;
    let (got, guard) = got.map_err(|_| "the live waiter never got the lock")???;
    let scripts = bench.admin.logged_scripts().await?;
    ours.unlock(guard).await?;
    if let Some(child) = frozen {
        child.end().await?;
    }
    Ok(Passing { delay: got - unlocked, calls: scripts.len(), longest: longest_call(&scripts)?.clone() })
}

/// The number of channels on which clients get their grants.
async fn channels(bench: &mut Bench) -> Outcome<usize> {
    Ok(bench.admin.run::<Vec<String>>(&["PUBSUB", "CHANNELS", "fairlock:wake:*"]).await?.len())
}
