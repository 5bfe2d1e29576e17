//! A cron job on many machines that runs once for each tick.
//!
//! `cargo run -p fairlock-recipes --bin recipe-cron`, against `REDIS_URL` or redis://127.0.0.1/. It starts three
//! machines as processes, with clocks that differ by up to 400 ms, and counts the runs of each tick.
//! `recipe-cron NAME` is one machine. It runs until you end it, with the settings `CRON_PERIOD_MS` and
//! `CRON_CLOCK_AHEAD_MS`.
//!
//! A lock alone is not enough: a machine with a slow clock comes to a tick after another machine has run it and
//! released the lock. So each machine reads the last tick under the lock, and writes it there.
//!
//! All machines wait for the lock at each tick. If the machine that runs the job dies, the next one runs it when the
//! lease ends. So each tick runs once, or again from its beginning after a machine died in the middle. (To run it at
//! most once, and never again, you need no lock: `SET cron:report:<tick> 1 NX EX 86400`.)
//!
//! It ends with: `3 ticks, 3 machines, each tick ran once`

use std::process::{ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlock::{FairLock, LockClient, LockError};
use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const LAST: &str = "example:cron:last";
const RUNS: &str = "example:cron:runs";

/// KEYS: the last run. ARGV: tick, token. A holder that was paused past its lease has a smaller token than the next
/// holder, and must not write.
const RECORD: &str = "
    local token = redis.call('HGET', KEYS[1], 'token')
    if token and tonumber(token) > tonumber(ARGV[2]) then return 0 end
    redis.call('HSET', KEYS[1], 'tick', ARGV[1], 'token', ARGV[2])
    return 1";

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1) {
        Some(name) => machine(&name).await,
        None => demonstrate().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cron: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One machine. It runs until you end it.
async fn machine(name: &str) -> Outcome<()> {
    let period = setting("CRON_PERIOD_MS", 1000)?.max(1);
    let clock_ahead = Duration::from_millis(setting("CRON_CLOCK_AHEAD_MS", 0)?);
    let client = LockClient::builder()
        .lease(Duration::from_secs(3))
        .operation_timeout(Duration::from_secs(1))
        .poll_interval(Duration::from_secs(1))
        .waiter_ttl(Duration::from_secs(3))
        .grant_ttl(Duration::from_millis(1500))
        .label(name)
        .connect(url())
        .await?;
    let lock = client.lock("example:cron");
    let mut redis = redis::Client::open(url())?.get_multiplexed_async_connection().await?;
    println!("{name} is ready");
    let mut tick = number_of(now(clock_ahead), period)?;
    loop {
        // A machine that comes late takes the tick of its clock and skips those before.
        tick = number_of(now(clock_ahead), period)?.max(tick + 1);
        let begins = Duration::from_millis(tick * period);
        sleep(begins.saturating_sub(now(clock_ahead))).await;
        match run_once(&lock, &mut redis, tick, name).await {
            Ok(true) => println!("{name} ran tick {tick}"),
            Ok(false) => println!("{name} found tick {tick} done"),
            // The next tick is another try.
            Err(error) => println!("{name} failed at tick {tick}: {error}"),
        }
    }
}

/// Returns true if this machine ran the tick. Waits first if another machine is running it.
async fn run_once(lock: &FairLock, redis: &mut MultiplexedConnection, tick: u64, name: &str) -> Outcome<bool> {
    let guard = lock.lock().await?;
    let last: Option<u64> = redis::cmd("HGET").arg(LAST).arg("tick").query_async(redis).await?;
    if last.is_some_and(|last| last >= tick) {
        guard.unlock().await?;
        return Ok(false);
    }
    tokio::select! {
        biased;
        // Stop: another machine may be running it by now.
        loss = guard.lost() => return Err(loss.into()),
        outcome = job(redis.clone(), tick, name) => outcome?,
    }
    let is_recorded: bool = Script::new(RECORD).key(LAST).arg(tick).arg(guard.token()).invoke_async(redis).await?;
    guard.unlock().await?;
    if is_recorded { Ok(true) } else { Err(LockError::Lost.into()) }
}

async fn job(mut redis: MultiplexedConnection, tick: u64, name: &str) -> Outcome<()> {
    println!("{name} begins tick {tick}");
    sleep(Duration::from_millis(setting("CRON_JOB_MS", 20)?)).await;
    redis::cmd("RPUSH").arg(RUNS).arg(tick).exec_async(&mut redis).await?;
    Ok(())
}

/// The time since 1970, by a clock that is ahead.
fn now(ahead: Duration) -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + ahead
}

fn number_of(now: Duration, period: u64) -> Outcome<u64> {
    Ok(u64::try_from(now.as_millis())? / period)
}

fn setting(name: &str, default: u64) -> Outcome<u64> {
    Ok(std::env::var(name).map_or(Ok(default), |text| text.parse())?)
}

fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into())
}

const TICKS: usize = 3;
const MACHINES: [(&str, u64); 3] = [("behind", 0), ("right", 200), ("ahead", 400)];

async fn demonstrate() -> Outcome<()> {
    let mut redis = redis::Client::open(url())?.get_multiplexed_async_connection().await?;
    redis::cmd("DEL").arg(LAST).arg(RUNS).exec_async(&mut redis).await?;
    let mut machines = Vec::new();
    for (name, ahead) in MACHINES {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(name)
            .env("CRON_CLOCK_AHEAD_MS", ahead.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let lines = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        machines.push((process, lines));
    }
    // The machine with the slowest clock comes last to each tick.
    let (_, lines) = &mut machines[0];
    let mut done = 0;
    while done < TICKS {
        let line = timeout(Duration::from_secs(30), lines.next_line()).await??.ok_or("it has ended")?;
        println!("  {line}");
        done += usize::from(line.contains(" ran ") || line.contains(" done"));
    }
    drop(machines);

    let runs: Vec<u64> = redis::cmd("LRANGE").arg(&[RUNS, "0", "-1"]).query_async(&mut redis).await?;
    redis::cmd("DEL").arg(LAST).arg(RUNS).exec_async(&mut redis).await?;
    if runs.len() < TICKS || runs.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("a tick ran twice, or not: {runs:?}").into());
    }
    println!("{TICKS} ticks, {} machines, each tick ran once", MACHINES.len());
    Ok(())
}
