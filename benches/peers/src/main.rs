//! Measures the crates rslock and redis-lock. The benchmark writes a command as a line, and this program answers with
//! a line:
//!
//! `compete LOCK TASKS HOLD_US RUN_MS` -> the longest wait in nanoseconds, then the acquisitions of each task

use std::io::Write;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Far longer than any hold here, so that no lock expires in a run.
const LEASE: Duration = Duration::from_secs(30);
/// Both crates retry after a pause. With their defaults (200 ms, 1 s) they would mostly sleep.
const PAUSE: Duration = Duration::from_millis(1);

/// One thread, as in the benchmark itself.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("usage: fairlock-peers URL")?;
    let peers = Peers::connect(&url).await?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = peers.run(&line).await.unwrap_or_else(|error| format!("error {error}"));
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

#[derive(Clone)]
enum Peer {
    Rslock(rslock::LockManager),
    RedisLock(redis_for_redis_lock::Client),
}

enum Guard {
    Rslock(rslock::LockGuard),
    RedisLock(String),
}

struct Peers {
    rslock: Peer,
    redis_lock: Peer,
}

impl Peers {
    async fn connect(url: &str) -> Outcome<Self> {
        use redis_for_rslock::IntoConnectionInfo;
        let nodelay = redis_for_rslock::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = format!("{url}?protocol=resp3").into_connection_info()?.set_tcp_settings(nodelay);
        let mut manager = rslock::LockManager::from_clients(vec![redis_for_rslock::Client::open(info)?]);
        // It pauses for a random whole number of milliseconds below this: 0 or 1.
        manager.set_retry(3, 2 * PAUSE);
        let client = redis_for_redis_lock::Client::open(format!("{url}?protocol=resp3"))?;
        redis_lock::setup(&client).await.map_err(|error| error.to_string())?;
        Ok(Self { rslock: Peer::Rslock(manager), redis_lock: Peer::RedisLock(client) })
    }

    async fn run(&self, line: &str) -> Outcome<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["compete", peer, tasks, hold, run] => {
                let (hold, run) = (Duration::from_micros(hold.parse()?), Duration::from_millis(run.parse()?));
                compete(self.named(peer)?, tasks.parse()?, hold, run).await
            }
            _ => Err(format!("unknown: {line}").into()),
        }
    }

    fn named(&self, peer: &str) -> Outcome<Peer> {
        match peer {
            "rslock" => Ok(self.rslock.clone()),
            "redis-lock" => Ok(self.redis_lock.clone()),
            _ => Err(format!("no such lock: {peer}").into()),
        }
    }
}

impl Peer {
    async fn lock(&self, name: &str) -> Outcome<Guard> {
        match self {
            Self::Rslock(manager) => {
                let guard = manager.acquire(name, LEASE).await.map_err(|error| error.to_string())?;
                Ok(Guard::Rslock(guard))
            }
            Self::RedisLock(client) => {
                let mut lock = redis_lock::MultiResourceLock::new(client.clone())?;
                let id = lock.acquire(&[name.to_owned()], LEASE, LEASE, PAUSE).await?;
                Ok(Guard::RedisLock(id.ok_or("redis-lock waited too long")?))
            }
        }
    }

    async fn unlock(&self, guard: Guard) -> Outcome<()> {
        match (self, guard) {
            (_, Guard::Rslock(guard)) => guard.release().await,
            (Self::RedisLock(client), Guard::RedisLock(id)) => {
                redis_lock::MultiResourceLock::new(client.clone())?.release(&id).await?;
            }
            (Self::Rslock(_), Guard::RedisLock(_)) => return Err("a guard of the other lock".into()),
        }
        Ok(())
    }
}

/// All tasks take the lock as often as they can until the end of the run.
async fn compete(peer: Peer, tasks: usize, hold: Duration, run: Duration) -> Outcome<String> {
    let until = Instant::now() + run;
    let running: Vec<_> = (0..tasks).map(|_| tokio::spawn(compete_alone(peer.clone(), hold, until))).collect();
    let (mut longest, mut counts) = (Duration::ZERO, Vec::new());
    for task in running {
        let (count, waited) = task.await??;
        longest = longest.max(waited);
        counts.push(count.to_string());
    }
    Ok(format!("{} {}", longest.as_nanos(), counts.join(" ")))
}

async fn compete_alone(peer: Peer, hold: Duration, until: Instant) -> Outcome<(u64, Duration)> {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let asked = Instant::now();
        let guard = peer.lock("compete").await?;
        // A wait that ends after the run does not count as a hold, but it counts as a wait.
        longest = longest.max(asked.elapsed());
        count += u64::from(Instant::now() < until);
        tokio::time::sleep(hold).await;
        peer.unlock(guard).await?;
    }
    Ok((count, longest))
}
