//! A first-come-first-served gate for jobs of several worker processes.
//!
//! `scripts/job_gate`, or `cargo run --example job_gate`. Uses the server of `REDIS_URL`; without
//! it a private `redis-server` is started for the run.
//!
//! The gate is held while the jobs arrive, one after the other and each in another process. The
//! next one starts when the server shows the one before in its queue: no sleeping decides the
//! order. Then the gate opens, and each job says when it got in.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use fairlock::{FairLock, LockClient};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child as Process, ChildStdin, ChildStdout};
use tokio::sync::mpsc;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PROCESSES: usize = 4;
const JOBS: usize = 20;
const WORKER: &str = "FAIRLOCK_JOB_GATE_WORKER";

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match std::env::var(WORKER) {
        Ok(gate) => work(&gate).await.map(|()| true),
        Err(_) => run().await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("job_gate: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<bool> {
    let (_server, url) = server()?;
    let client = connect(&url).await?;
    let name = format!("example:job_gate:{}", client.id());
    let gate = client.lock(&name);
    let holder = gate.lock().await?;
    let (say, mut served) = mpsc::channel(JOBS);
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(Worker::start(&url, &name, say.clone())?);
    }

    for job in 0..JOBS {
        workers[job % PROCESSES].begin(job).await?;
        wait_for_queue(&gate, job + 1).await?;
    }
    let arrived: Vec<usize> = (0..JOBS).collect();
    println!("order of arrival: {arrived:?}");
    holder.unlock().await?;

    let mut in_order = Vec::new();
    while in_order.len() < JOBS {
        let next = tokio::time::timeout(Duration::from_secs(30), served.recv()).await?;
        in_order.push(next.ok_or("the workers ended too soon")?);
    }
    // By token: it tells the order in which the jobs held the gate, whatever order we heard it in.
    in_order.sort_unstable();
    let service: Vec<usize> = in_order.into_iter().map(|(_, job)| job).collect();
    println!("order of service: {service:?}");
    client.close().await?;
    let kept = service == arrived;
    println!("{}: {JOBS} jobs over {PROCESSES} processes", if kept { "FIFO kept" } else { "FIFO broken" });
    Ok(kept)
}

/// Asks the server until that many wait.
async fn wait_for_queue(gate: &FairLock, length: usize) -> Outcome<()> {
    for _ in 0..10_000 {
        if gate.status().await?.queue.len() == length {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err("a job did not reach the queue".into())
}

/// A process of its own: this program, started again.
struct Worker {
    _process: Process,
    stdin: ChildStdin,
}

impl Worker {
    fn start(url: &str, gate: &str, served: mpsc::Sender<(u64, usize)>) -> Outcome<Self> {
        let mut process = tokio::process::Command::new(std::env::current_exe()?)
            .env(WORKER, gate)
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        tokio::spawn(listen(BufReader::new(stdout).lines(), served));
        Ok(Self { _process: process, stdin })
    }

    async fn begin(&mut self, job: usize) -> Outcome<()> {
        self.stdin.write_all(format!("{job}\n").as_bytes()).await?;
        Ok(())
    }
}

/// Each line of a worker is `<token> <job>`.
async fn listen(mut lines: Lines<BufReader<ChildStdout>>, served: mpsc::Sender<(u64, usize)>) {
    while let Ok(Some(line)) = lines.next_line().await {
        let said = line.split_once(' ').and_then(|(token, job)| Some((token.parse().ok()?, job.parse().ok()?)));
        match said {
            Some(said) if served.send(said).await.is_ok() => {}
            _ => return,
        }
    }
}

/// The worker: every number on stdin is a job that wants through the gate.
async fn work(gate: &str) -> Outcome<()> {
    let client = connect(&std::env::var("REDIS_URL")?).await?;
    let mut jobs = BufReader::new(tokio::io::stdin()).lines();
    while let Some(job) = jobs.next_line().await? {
        let gate = client.lock(gate);
        tokio::spawn(async move {
            match gate.lock().await {
                Ok(guard) => {
                    println!("{} {job}", guard.token());
                    // The job's own work, alone behind the gate.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    if let Err(error) = guard.unlock().await {
                        eprintln!("job {job}: {error}");
                    }
                }
                Err(error) => eprintln!("job {job}: {error}"),
            }
        });
    }
    client.close().await?;
    Ok(())
}

/// A server that has only just been started may take a moment.
async fn connect(url: &str) -> Outcome<LockClient> {
    for _ in 0..100 {
        match LockClient::connect(url).await {
            Err(fairlock::ConnectError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            outcome => return Ok(outcome?),
        }
    }
    Ok(LockClient::connect(url).await?)
}

/// The server of `REDIS_URL`, or a private one that ends with this program.
fn server() -> Outcome<(Option<Private>, String)> {
    if let Ok(url) = std::env::var("REDIS_URL") {
        return Ok((None, url));
    }
    let dir = std::env::temp_dir().join(format!("fairlock-job-gate-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let socket = dir.join("redis.sock");
    let process = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--unixsocket")
        .arg(&socket)
        .arg("--dir")
        .arg(&dir)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("redis-server does not start ({error}): run scripts/setup, or set REDIS_URL"))?;
    Ok((Some(Private { process, dir }), format!("unix://{}", socket.display())))
}

struct Private {
    process: Child,
    dir: PathBuf,
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
