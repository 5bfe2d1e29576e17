//! Leader election: one process leads while the others wait.
//!
//! `cargo run -p fairlock-recipes --bin recipe-leader`, against `REDIS_URL` or redis://127.0.0.1/. It starts three
//! members as processes, kills the leader, and ends the next one with SIGTERM. `recipe-leader NAME` is one member:
//! start some of them in several shells to try it yourself.
//!
//! - When a leader is killed, the next one leads after its lease has ended. So the lease is short here.
//! - A leader that gets SIGTERM hands over at once.
//! - A leader that loses the lock stops at once: the member drops the future that does the work.
//!
//! It ends with: `3 leaders, one after the other: one was killed, one handed over, one stopped`

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use fairlock::{LockClient, LockGuard};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep, timeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// After a leader is killed, there is none for up to this long.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1) {
        Some(name) => member(&name).await,
        None => demonstrate().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One member. It runs until SIGTERM.
async fn member(name: &str) -> Outcome<()> {
    let mut end = unix::signal(SignalKind::terminate())?;
    let client = LockClient::builder()
        .lease(LEASE)
        .operation_timeout(LEASE / 3)
        .poll_interval(LEASE / 3)
        .waiter_ttl(LEASE)
        .grant_ttl(LEASE / 2)
        // `status` shows the label, so that other members and the people on call can see who leads.
        .label(name)
        .connect(url())
        .await?;
    // Closes the client in each case, so that the next member leads at once.
    client
        .run(async {
            tokio::select! {
                outcome = campaign(&client, name) => outcome,
                // Drops the leader's work, which then releases its guard.
                _ = end.recv() => {
                    println!("{name} hands over");
                    Ok(())
                }
            }
        })
        .await
}

/// Leads each time its turn comes.
async fn campaign(client: &LockClient, name: &str) -> Outcome<()> {
    let leadership = client.lock("example:leader");
    loop {
        println!("{name} waits");
        let guard = leadership.lock().await?;
        println!("{name} leads under token {}", guard.token());
        let loss = tokio::select! {
            // Checked first, so that the work does not go on after a loss.
            biased;
            loss = guard.lost() => loss,
            outcome = lead(&guard) => return outcome,
        };
        println!("{name} has lost it: {loss}");
    }
}

/// The leader's work. Each write carries the token, so that the resource can refuse a leader that was paused and does
/// not know that another one leads.
async fn lead(guard: &LockGuard) -> Outcome<()> {
    let _token = guard.token();
    loop {
        sleep(Duration::from_millis(50)).await;
    }
}

fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into())
}

async fn demonstrate() -> Outcome<()> {
    let mut members = Vec::new();
    // Each member waits in the queue before the next one starts, so they lead in this order.
    for name in ["one", "two", "three"] {
        let mut member = Member::start(name)?;
        member.hears("waits").await?;
        if name == "one" {
            member.hears("leads").await?;
        }
        members.push(member);
    }
    let [one, two, three] = &mut members[..] else { return Err("three members".into()) };

    let begun = Instant::now();
    one.end(Signal::SIGKILL).await?;
    let first = two.hears("leads").await?;
    println!("the next one leads {:?} after a kill; the lease is {LEASE:?}", begun.elapsed());

    let begun = Instant::now();
    two.end(Signal::SIGTERM).await?;
    let second = three.hears("leads").await?;
    let handed_over = begun.elapsed();
    println!("the next one leads {handed_over:?} after a SIGTERM");
    if handed_over >= LEASE {
        return Err("it waited for the lease".into());
    }

    // The operator's `force_unlock`: the leader is notified, and stops.
    let client = LockClient::connect(url()).await?;
    client.lock("example:leader").force_unlock().await?;
    three.hears("has lost it").await?;
    let third = three.hears("leads").await?;
    three.end(Signal::SIGTERM).await?;
    client.close().await?;
    if !(first < second && second < third) {
        return Err(format!("tokens that do not grow: {first}, {second}, {third}").into());
    }
    println!("3 leaders, one after the other: one was killed, one handed over, one stopped");
    Ok(())
}

/// Killed when dropped.
struct Member {
    name: &'static str,
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    fn start(name: &'static str) -> Outcome<Self> {
        let mut process =
            Command::new(std::env::current_exe()?).arg(name).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        Ok(Self { name, process, lines })
    }

    /// Waits for a line with these words, and returns the number at its end, or 0.
    async fn hears(&mut self, words: &str) -> Outcome<u64> {
        loop {
            let line = timeout(Duration::from_secs(30), self.lines.next_line()).await??;
            let line = line.ok_or_else(|| format!("{} has ended", self.name))?;
            println!("  {line}");
            if line.contains(words) {
                return Ok(line.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0));
            }
        }
    }

    async fn end(&mut self, signal: Signal) -> Outcome<()> {
        let pid = self.process.id().ok_or("it has ended already")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal)?;
        self.process.wait().await?;
        Ok(())
    }
}
