//! Child processes that read commands as lines and answer each with a line. They are the peers, and clients of
//! fairlock whose CPU time and memory a row measures alone, or which a row stops or kills.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock::{FairLock, LockClient, LockGuard};
use futures::stream::{self, StreamExt, TryStreamExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::Outcome;
use crate::measure::own_cpu;

/// The first argument of this executable when it runs as a child.
pub const ROLE: &str = "--child";

/// A child process. Killed when dropped, even if it is stopped.
pub struct Child {
    process: tokio::process::Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub fn start(mut command: Command) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let lines = BufReader::new(process.stdout.take().ok_or("no stdout")?).lines();
        Ok(Self { process, stdin, lines })
    }

    /// Starts this executable as a client with these settings.
    pub async fn client(url: &str, settings: &Settings) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ROLE).arg(url).args(settings.words());
        let mut child = Self::start(command)?;
        child.ask("ping").await?;
        Ok(child)
    }

    pub async fn ask(&mut self, line: &str) -> Outcome<String> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        let answer = self.lines.next_line().await?.ok_or_else(|| format!("the child ended at: {line}"))?;
        match answer.strip_prefix("error ") {
            Some(error) => Err(format!("the child answered to {line}: {error}").into()),
            None => Ok(answer),
        }
    }

    pub async fn number(&mut self, line: &str) -> Outcome<f64> {
        Ok(self.ask(line).await?.parse()?)
    }

    /// Stops the process. Its connection stays open.
    pub fn freeze(&self) -> Outcome<()> {
        let id = self.process.id().ok_or("the child has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(id)?), Signal::SIGSTOP)?)
    }

    /// Kills the process: its connections close, and it releases nothing.
    pub async fn end(mut self) -> Outcome<()> {
        self.process.start_kill()?;
        self.process.wait().await?;
        Ok(())
    }
}

/// The options of a fairlock client that some rows change.
#[derive(Debug, Clone)]
pub struct Settings {
    pub lease: Duration,
    pub operation_timeout: Duration,
    pub waiter_ttl: Duration,
    pub poll_interval: Duration,
    pub grant_ttl: Duration,
    pub max_waiters: u32,
}

impl Default for Settings {
    /// The defaults of the library.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(2),
            waiter_ttl: Duration::from_secs(6),
            poll_interval: Duration::from_secs(2),
            grant_ttl: Duration::from_secs(3),
            max_waiters: 1 << 16,
        }
    }
}

impl Settings {
    pub async fn connect(&self, url: &str) -> Outcome<LockClient> {
        let builder = LockClient::builder().lease(self.lease).operation_timeout(self.operation_timeout);
        let builder = builder.waiter_ttl(self.waiter_ttl).grant_ttl(self.grant_ttl);
        Ok(builder.poll_interval(self.poll_interval).max_waiters(self.max_waiters).connect(url).await?)
    }

    fn words(&self) -> [String; 6] {
        let times = [self.lease, self.operation_timeout, self.waiter_ttl, self.poll_interval, self.grant_ttl];
        let [lease, operation_timeout, waiter_ttl, poll_interval, grant_ttl] =
            times.map(|time| time.as_millis().to_string());
        [lease, operation_timeout, waiter_ttl, poll_interval, grant_ttl, self.max_waiters.to_string()]
    }

    fn read(words: &[String]) -> Outcome<Self> {
        let number = |index: usize| -> Outcome<u32> { Ok(words.get(index).ok_or("a setting is missing")?.parse()?) };
        let millis = |index| -> Outcome<Duration> { Ok(Duration::from_millis(number(index)?.into())) };
        Ok(Self {
            lease: millis(0)?,
            operation_timeout: millis(1)?,
            waiter_ttl: millis(2)?,
            poll_interval: millis(3)?,
            grant_ttl: millis(4)?,
            max_waiters: number(5)?,
        })
    }
}

/// The main function of a child. `words` are the URL and the settings.
pub async fn serve(words: &[String]) -> Outcome<()> {
    let url = words.first().ok_or("a URL is missing")?;
    let client = Settings::read(&words[1..])?.connect(url).await?;
    let mut work = Work { client, guards: Vec::new(), over: Arc::default(), rounds: Arc::default() };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = work.run(&line).await.unwrap_or_else(|error| format!("error {error}"));
        println!("{answer}");
    }
    // The parent process has ended.
    std::process::exit(0)
}

struct Work {
    client: LockClient,
    guards: Vec<LockGuard>,
    over: Arc<AtomicBool>,
    /// The number of holds that the tasks of `cycle` had.
    rounds: Arc<AtomicU64>,
}

impl Work {
    async fn run(&mut self, line: &str) -> Outcome<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ping"] => {}
            ["hold", count] => self.hold(count.parse()?).await?,
            ["wait", name, count] => self.wait(name, count.parse()?).await?,
            ["cycle", name, count, hold_ms] => {
                let lock = self.client.lock(name);
                self.cycle(&lock, count.parse()?, Duration::from_millis(hold_ms.parse()?)).await?;
            }
            ["churn", tasks, ms] => return self.churn(tasks.parse()?, Duration::from_millis(ms.parse()?)).await,
            ["lost"] => return Ok(self.guards.iter().filter(|guard| !guard.is_valid()).count().to_string()),
            ["cpu"] => return Ok(own_cpu()?.as_micros().to_string()),
            ["rss"] => return Ok(resident()?.to_string()),
            _ => return Err(format!("unknown: {line}").into()),
        }
        Ok("ok".to_owned())
    }

    /// Takes `count` locks, each with its own name. It sends few requests at a time, so that their buffers do not
    /// count as memory.
    async fn hold(&mut self, count: usize) -> Outcome<()> {
        self.guards.reserve_exact(count);
        let begin = self.guards.len();
        let client = &self.client;
        let acquiring = (begin..begin + count).map(|number| async move { client.lock(held(number)).lock().await });
        let guards: Vec<_> = stream::iter(acquiring).buffer_unordered(16).try_collect().await?;
        self.guards.extend(guards);
        Ok(())
    }

    /// Starts tasks that wait for the lock, and keep it if they get it.
    async fn wait(&self, name: &str, count: usize) -> Outcome<()> {
        let lock = self.client.lock(name);
        for number in 1..=count {
            let lock = lock.clone();
            tokio::spawn(async move {
                let _guard = lock.lock().await;
                std::future::pending::<()>().await;
            });
            pause_sometimes(&self.client.lock(name), number).await?;
        }
        self.client.lock(name).is_locked().await?;
        Ok(())
    }

    /// Starts tasks that take the lock again and again. They are in the queue when this returns.
    async fn cycle(&self, lock: &FairLock, count: usize, hold: Duration) -> Outcome<()> {
        for number in 1..=count {
            tokio::spawn(cycle(lock.clone(), hold, self.over.clone(), self.rounds.clone()));
            pause_sometimes(lock, number).await?;
        }
        lock.is_locked().await?;
        Ok(())
    }

    /// Locks names that change all the time, some of them from two tasks at once. Answers with the number of calls.
    async fn churn(&self, tasks: usize, time: Duration) -> Outcome<String> {
        let until = Instant::now() + time;
        let churning: Vec<_> =
            (0..tasks).map(|number| tokio::spawn(churn(self.client.clone(), number, until))).collect();
        let mut holds = 0;
        for task in churning {
            holds += task.await??;
        }
        Ok(holds.to_string())
    }
}

fn held(number: usize) -> String {
    format!("held:{number:06}")
}

/// Sends requests in batches of 500. A hundred thousand at once would time out on one connection.
async fn pause_sometimes(lock: &FairLock, number: usize) -> Outcome<()> {
    if number.is_multiple_of(500) {
        tokio::task::yield_now().await;
        lock.is_locked().await?;
    }
    Ok(())
}

async fn cycle(lock: FairLock, hold: Duration, over: Arc<AtomicBool>, rounds: Arc<AtomicU64>) {
    while !over.load(Ordering::Relaxed) {
        let Ok(guard) = lock.lock().await else { continue };
        // If holds take time, some of them outlast their first renewal.
        let past_renewal = rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) && !hold.is_zero();
        tokio::time::sleep(if past_renewal { Duration::from_millis(60) } else { hold }).await;
        // The hold may be lost: the row also calls force_unlock.
        let _ = guard.unlock().await;
    }
}

async fn churn(client: LockClient, number: usize, until: Instant) -> Outcome<u64> {
    let mut holds = 0;
    while Instant::now() < until {
        // Two tasks share each name, and the names change all the time.
        let lock = client.lock(format!("churn:{}:{}", number / 2, holds / 4));
        // Some of these waits time out.
        if let Ok(guard) = lock.lock_timeout(Duration::from_millis(1 + holds % 50)).await {
            guard.unlock().await?;
        }
        holds += 1;
    }
    Ok(holds)
}

/// The resident memory of this process in bytes.
fn resident() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).ok_or("an unknown /proc/self/statm")?.parse()?;
    Ok(pages * 4096)
}
