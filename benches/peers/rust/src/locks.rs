//! The Rust locks: `rust-locks fairlock|semaphore|rw-lock|rslock HOST:PORT`. It replies to each line of the input with
//! a line; `benches/peers/README.md` lists them.

use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Longer than any hold here, so that no lock expires in a run.
const LEASE: Duration = Duration::from_secs(30);
/// rslock retries after a random part of this. With its default of 200 ms it would mostly sleep.
const PAUSE: Duration = Duration::from_millis(2);
/// Permits of the semaphore.
const PERMITS: u32 = 4;
/// One worker in this many writes under a read-write lock.
const WRITES: usize = 4;

#[derive(Clone)]
enum Peer {
    Fairlock(fairlock::LockClient),
    Semaphore(fairlock::LockClient),
    RwLock(fairlock::LockClient),
    Rslock(rslock::LockManager),
}

enum Guard {
    Fairlock(fairlock::LockGuard),
    Permit(fairlock::Permit),
    Read(fairlock::ReadGuard),
    Write(fairlock::WriteGuard),
    Rslock(rslock::LockGuard),
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(peer), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rust-locks PEER HOST:PORT".into());
    };
    let peer = Peer::connect(&peer, &format!("redis://{address}/")).await?;
    let (mut lines, mut held) = (BufReader::new(tokio::io::stdin()).lines(), None);
    while let Some(line) = lines.next_line().await? {
        println!("{}", peer.answer(&line, &mut held).await?);
    }
    Ok(())
}

impl Peer {
    async fn connect(peer: &str, url: &str) -> Outcome<Self> {
        match peer {
            "fairlock" => Ok(Self::Fairlock(fairlock::LockClient::connect(url).await?)),
            "semaphore" => Ok(Self::Semaphore(fairlock::LockClient::connect(url).await?)),
            "rw-lock" => Ok(Self::RwLock(fairlock::LockClient::connect(url).await?)),
            "rslock" => {
                let mut manager = rslock::LockManager::new(vec![url]);
                manager.set_retry(3, PAUSE);
                Ok(Self::Rslock(manager))
            }
            _ => Err(format!("no such lock: {peer}").into()),
        }
    }

    async fn answer(&self, line: &str, held: &mut Option<Guard>) -> Outcome<String> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["open", _] => Ok("ready".into()),
            ["race", name, workers, hold, run, names] => {
                let (hold, run) = (Duration::from_micros(hold.parse()?), Duration::from_millis(run.parse()?));
                self.race(name, workers.parse()?, hold, run, names == "own").await
            }
            ["hold", name] => {
                *held = Some(self.take(name, 0).await?);
                Ok("held".into())
            }
            ["free"] => {
                held.take().ok_or("nothing is held")?.free().await?;
                Ok("freed".into())
            }
            ["wait", name, workers] => {
                for _ in 0..workers.parse()? {
                    tokio::spawn(self.clone().wait(name.to_owned()));
                }
                Ok("waiting".into())
            }
            _ => Err(format!("unknown: {line}").into()),
        }
    }

    async fn wait(self, name: String) -> Outcome<()> {
        let _guard = self.take(&name, 0).await?;
        println!("got");
        std::future::pending().await
    }

    async fn take(&self, name: &str, worker: usize) -> Outcome<Guard> {
        Ok(match self {
            Self::Fairlock(client) => Guard::Fairlock(client.lock(name).lock().await?),
            Self::Semaphore(client) => Guard::Permit(client.semaphore(name, PERMITS).acquire().await?),
            Self::RwLock(client) if worker % WRITES == 0 => Guard::Write(client.rw_lock(name).write().await?),
            Self::RwLock(client) => Guard::Read(client.rw_lock(name).read().await?),
            Self::Rslock(manager) => {
                Guard::Rslock(manager.acquire(name, LEASE).await.map_err(|error| error.to_string())?)
            }
        })
    }

    /// All workers take the lock as often as they can until the end of the run.
    async fn race(&self, name: &str, workers: usize, hold: Duration, run: Duration, own: bool) -> Outcome<String> {
        let until = Instant::now() + run;
        let named = |i| if own { format!("{name}{i}") } else { name.to_owned() };
        let running: Vec<_> = (0..workers).map(|i| tokio::spawn(self.clone().work(named(i), i, hold, until))).collect();
        let (mut longest, mut counts, mut pairs) = (Duration::ZERO, String::new(), Vec::new());
        for task in running {
            let (count, waited, seen) = task.await??;
            longest = longest.max(waited);
            counts += &format!(" {count}");
            pairs.extend(seen);
        }
        pairs.sort_unstable();
        let at = |percent: usize| pairs[(pairs.len() - 1) * percent / 100].as_nanos();
        Ok(format!("{} {} {}{counts}", longest.as_nanos(), at(50), at(99)))
    }

    async fn work(
        self,
        name: String,
        worker: usize,
        hold: Duration,
        until: Instant,
    ) -> Outcome<(u64, Duration, Vec<Duration>)> {
        let (mut count, mut longest, mut pairs) = (0, Duration::ZERO, Vec::new());
        while Instant::now() < until {
            let asked = Instant::now();
            let guard = self.take(&name, worker).await?;
            let waited = asked.elapsed();
            longest = longest.max(waited);
            // A wait that ends after the run does not count as a turn, but it counts as a wait.
            count += u64::from(Instant::now() < until);
            if !hold.is_zero() {
                // tokio's clock has steps of a millisecond, so its sleep would take up to two.
                tokio::task::spawn_blocking(move || std::thread::sleep(hold)).await?;
            }
            let given = Instant::now();
            guard.free().await?;
            pairs.push(waited + given.elapsed());
        }
        Ok((count, longest, pairs))
    }
}

impl Guard {
    async fn free(self) -> Outcome<()> {
        match self {
            Self::Fairlock(guard) => drop(guard.unlock().await?),
            Self::Permit(permit) => permit.release().await?,
            Self::Read(guard) => drop(guard.unlock().await?),
            Self::Write(guard) => drop(guard.unlock().await?),
            Self::Rslock(guard) => guard.release().await,
        }
        Ok(())
    }
}
