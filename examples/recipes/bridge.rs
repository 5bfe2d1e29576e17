//! For a migration during which old processes lock with `SET key NX PX` and new ones with fairlock. The new ones take
//! both locks, fairlock first. So an old process is never inside together with a new one, and the new ones keep their
//! order.
//!
//! `cargo run -p fairlock-recipes --bin recipe-bridge`, against `REDIS_URL` or redis://127.0.0.1/. It starts itself as
//! old and as new processes. All of them add one to the same number, with a read and a write. Then it kills a new
//! process inside its section.
//!
//! It ends with: `as claimed: 120 increments by 2 old and 2 new processes, none lost`

use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlock::{FairLock, LockClient, LockGuard};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The key of the old lock, and its TTL after each renewal.
const OLD_KEY: &str = "example:bridge:old";
const OLD_TTL: Duration = Duration::from_secs(2);
const NAME: &str = "example:bridge";
const NUMBER: &str = "example:bridge:number";
const EACH: u32 = 30;

/// The old lock, as many programs have it.
#[derive(Clone)]
struct OldLock {
    redis: MultiplexedConnection,
    /// A different value for each hold.
    value: String,
}

impl OldLock {
    /// Returns true if the key is ours now. A repeated call after a lost reply finds its own value.
    async fn try_take(&mut self) -> Result<bool, RedisError> {
        self.run(
            "return (redis.call('SET', KEYS[1], ARGV[1], 'NX') or redis.call('GET', KEYS[1]) == ARGV[1])
                 and redis.call('PEXPIRE', KEYS[1], ARGV[2])",
        )
        .await
    }

    async fn take(&mut self) -> Result<(), RedisError> {
        while !self.try_take().await? {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Returns true if the key was still ours.
    async fn renew(&mut self) -> Result<bool, RedisError> {
        self.run("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])").await
    }

    async fn give_back(&mut self) -> Result<bool, RedisError> {
        self.run("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])").await
    }

    async fn run(&mut self, script: &str) -> Result<bool, RedisError> {
        let ttl = OLD_TTL.as_millis() as u64;
        // nil: the key is not ours.
        let answer: Option<u64> =
            Script::new(script).key(OLD_KEY).arg(&self.value).arg(ttl).invoke_async(&mut self.redis).await?;
        Ok(answer == Some(1))
    }
}

/// Both locks. If dropped without `unlock`, it stops renewing the old key, and old processes wait until that expires.
struct Both {
    guard: LockGuard,
    old: OldLock,
    renewing: AbortOnDropHandle<()>,
    /// Cancelled when we lose either lock.
    lost: CancellationToken,
}

impl Both {
    /// Takes fairlock first: new processes wait in its queue, and only one of them at a time competes with the old
    /// ones.
    async fn lock(lock: &FairLock, redis: MultiplexedConnection) -> Outcome<Self> {
        let guard = lock.lock().await?;
        let mut old = OldLock { redis, value: format!("fairlock:{}", guard.token()) };
        old.take().await?;
        let lost = guard.ended_token().child_token();
        let renewing = AbortOnDropHandle::new(tokio::spawn(keep(old.clone(), lost.clone())));
        Ok(Self { guard, old, renewing, lost })
    }

    /// Releases in the reverse order: when the next new process gets fairlock, the old key is free.
    async fn unlock(mut self) -> Outcome<()> {
        self.renewing.abort();
        let was_ours = self.old.give_back().await?;
        self.guard.unlock().await?;
        if was_ours { Ok(()) } else { Err("the old key was lost before it was given back".into()) }
    }
}

/// Renews the old key until we lose either lock.
async fn keep(mut old: OldLock, lost: CancellationToken) {
    let mut renewed = Instant::now();
    while renewed.elapsed() < OLD_TTL && !lost.is_cancelled() {
        sleep(OLD_TTL / 6).await;
        let asked = Instant::now();
        match old.renew().await {
            Ok(true) => renewed = asked,
            Ok(false) => break,
            Err(error) => eprintln!("the old key could not be renewed: {error}"), // tries again
        }
    }
    lost.cancel();
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    match std::env::args().nth(1).as_deref() {
        Some("old") => old_process(redis).await,
        Some("new") => new_process(&url, redis).await,
        Some("stays") => stay_inside(&url, redis).await,
        _ => demonstrate(redis).await,
    }
}

async fn demonstrate(mut redis: MultiplexedConnection) -> Outcome<()> {
    redis::cmd("DEL").arg(&[OLD_KEY, NUMBER]).exec_async(&mut redis).await?;
    let mut processes = Vec::new();
    for role in ["old", "new", "old", "new"] {
        processes.push(start(role)?);
    }
    for process in &mut processes {
        if !process.wait().await?.success() {
            return Err("a process failed".into());
        }
    }
    let sum: u32 = redis::cmd("GET").arg(NUMBER).query_async(&mut redis).await?;
    println!("4 processes added {EACH} each, the number is {sum}");

    let mut killed = start("stays")?;
    let mut lines = BufReader::new(killed.stdout.take().ok_or("it has an output")?).lines();
    if lines.next_line().await?.as_deref() != Some("inside") {
        return Err("the process that was to be killed did not get in".into());
    }
    killed.kill().await?;
    // A crash leaves both locks: the old key until it expires, fairlock until its lease ends. You never have to delete
    // a key by hand.
    let left: i64 = redis::cmd("PTTL").arg(OLD_KEY).query_async(&mut redis).await?;
    println!("a new process was killed inside: old ones wait for the old key ({left} ms), new ones also for the lease");
    for role in ["old", "new"] {
        if !start(role)?.wait().await?.success() {
            return Err("nobody got in after the crash".into());
        }
    }
    redis::cmd("DEL").arg(NUMBER).exec_async(&mut redis).await?;
    if sum != 4 * EACH {
        return Err(format!("{} increments were lost", 4 * EACH - sum).into());
    }
    println!("as claimed: {sum} increments by 2 old and 2 new processes, none lost");
    Ok(())
}

fn start(role: &str) -> Outcome<Child> {
    let this = std::env::current_exe()?;
    Ok(Command::new(this).arg(role).stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
}

/// An old process, which does not know fairlock.
async fn old_process(redis: MultiplexedConnection) -> Outcome<()> {
    for turn in 0..EACH {
        let mut lock = OldLock { redis: redis.clone(), value: format!("old:{}:{turn}", std::process::id()) };
        lock.take().await?;
        add_one(redis.clone()).await?;
        lock.give_back().await?;
    }
    Ok(())
}

async fn new_process(url: &str, redis: MultiplexedConnection) -> Outcome<()> {
    let client = connect(url).await?;
    let lock = client.lock(NAME);
    for _turn in 0..EACH {
        let both = Both::lock(&lock, redis.clone()).await?;
        tokio::select! {
            added = add_one(redis.clone()) => added?,
            () = both.lost.cancelled() => return Err("stopped: one of both locks was lost".into()),
        }
        both.unlock().await?;
    }
    client.close().await?;
    Ok(())
}

async fn stay_inside(url: &str, redis: MultiplexedConnection) -> Outcome<()> {
    let client = connect(url).await?;
    let both = Both::lock(&client.lock(NAME), redis).await?;
    println!("inside");
    both.lost.cancelled().await;
    Ok(())
}

async fn connect(url: &str) -> Outcome<LockClient> {
    let lease = Duration::from_secs(2);
    Ok(LockClient::builder().lease(lease).operation_timeout(lease / 4).poll_interval(lease / 4).connect(url).await?)
}

/// Not atomic: two concurrent calls may add only one.
async fn add_one(mut redis: MultiplexedConnection) -> Outcome<()> {
    let number: Option<u32> = redis::cmd("GET").arg(NUMBER).query_async(&mut redis).await?;
    sleep(Duration::from_millis(1)).await;
    redis::cmd("SET").arg(NUMBER).arg(number.unwrap_or(0) + 1).exec_async(&mut redis).await?;
    Ok(())
}
