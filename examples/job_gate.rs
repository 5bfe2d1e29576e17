//! A first-come-first-served gate for the jobs of several workers.
//!
//! `cargo run --example job_gate --features embedded` needs no server: the workers are clients of a server inside this
//! process. With `REDIS_URL` set, the example uses that server, and each worker is a process of its own.
//!
//! The example holds the gate while the jobs arrive, one after the other, each at the next worker. A job starts once
//! the server shows the one before it in the queue, so the order does not depend on sleeping. Then the gate opens, and
//! each job reports when it got in.
//!
//! It ends with: `FIFO kept: 20 jobs over 4 clients`
//! With `REDIS_URL` it ends with: `FIFO kept: 20 jobs over 4 processes`

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use fairlock::{EmbeddedServer, FairLock, LockClient};
use tokio::io::AsyncBufReadExt;
use tokio::sync::mpsc;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The token under which a job held the gate, and the number of the job.
type Served = (u64, usize);

const WORKERS: usize = 4;
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
    let backend = Backend::from_env();
    let client = backend.connect().await?;
    let name = format!("example:job_gate:{}", client.id());
    let gate = client.lock(&name);
    let holder = gate.lock().await?;
    let (report, mut served) = mpsc::channel(JOBS);
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Worker::start(&backend, &name, report.clone()).await?);
    }

    for job in 0..JOBS {
        workers[job % WORKERS].begin(job).await?;
        wait_for_queue(&gate, job + 1).await?;
    }
    let arrived: Vec<usize> = (0..JOBS).collect();
    println!("order of arrival: {arrived:?}");
    holder.unlock().await?;

    let mut in_order: Vec<Served> = Vec::new();
    while in_order.len() < JOBS {
        let next = tokio::time::timeout(Duration::from_secs(30), served.recv()).await?;
        in_order.push(next.ok_or("the workers ended too soon")?);
    }
    // Waits until the last jobs have released the gate: each keeps its sender until then.
    drop((workers, report));
    while served.recv().await.is_some() {}
    // Sorted by token: the order in which the jobs held the gate. The reports may arrive in another order.
    in_order.sort_unstable();
    let service: Vec<usize> = in_order.into_iter().map(|(_, job)| job).collect();
    println!("order of service: {service:?}");
    client.close().await?;
    let kept = service == arrived;
    println!("{}: {JOBS} jobs over {WORKERS} {}", if kept { "FIFO kept" } else { "FIFO broken" }, backend.workers());
    Ok(kept)
}

/// Polls the status until `length` calls wait.
async fn wait_for_queue(gate: &FairLock, length: usize) -> Outcome<()> {
    for _ in 0..10_000 {
        if gate.status().await?.queue.len() == length {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err("a job did not reach the queue".into())
}

/// The server that has the lock.
enum Backend {
    Embedded(EmbeddedServer),
    Redis(String),
}

impl Backend {
    fn from_env() -> Self {
        std::env::var("REDIS_URL").map_or_else(|_| Self::Embedded(EmbeddedServer::new()), Self::Redis)
    }

    async fn connect(&self) -> Outcome<LockClient> {
        Ok(match self {
            Self::Embedded(server) => LockClient::builder().embedded(server)?,
            Self::Redis(url) => LockClient::connect(url).await?,
        })
    }

    fn workers(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "clients",
            Self::Redis(_) => "processes",
        }
    }
}

enum Worker {
    Client { gate: FairLock, report: mpsc::Sender<Served> },
    Process { process: Child, stdin: ChildStdin },
}

impl Worker {
    async fn start(backend: &Backend, gate: &str, report: mpsc::Sender<Served>) -> Outcome<Self> {
        let Backend::Redis(url) = backend else {
            return Ok(Self::Client { gate: backend.connect().await?.lock(gate), report });
        };
        // Starts this program again.
        let mut process = Command::new(std::env::current_exe()?)
            .env(WORKER, gate)
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        std::thread::spawn(move || listen(stdout, &report));
        Ok(Self::Process { process, stdin })
    }

    async fn begin(&mut self, job: usize) -> Outcome<()> {
        match self {
            Self::Client { gate, report } => {
                let (gate, report) = (gate.clone(), report.clone());
                tokio::spawn(async move {
                    // The send fails only if the example has failed already.
                    pass(&gate, job, async |token| {
                        let _ = report.send((token, job)).await;
                    })
                    .await;
                });
            }
            Self::Process { stdin, .. } => writeln!(stdin, "{job}")?,
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Self::Process { process, .. } = self {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// One job: waits for the gate, reports its token, and works while it holds the gate.
async fn pass(gate: &FairLock, job: usize, report: impl AsyncFnOnce(u64)) {
    match gate.lock().await {
        Ok(guard) => {
            report(guard.token()).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            if let Err(error) = guard.unlock().await {
                eprintln!("job {job}: {error}");
            }
        }
        Err(error) => eprintln!("job {job}: {error}"),
    }
}

/// A worker process prints `<token> <job>` for each job.
fn listen(stdout: ChildStdout, report: &mpsc::Sender<Served>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let served = line.split_once(' ').and_then(|(token, job)| Some((token.parse().ok()?, job.parse().ok()?)));
        match served {
            Some(served) if report.blocking_send(served).is_ok() => {}
            _ => return,
        }
    }
}

/// The worker process. It reads the number of each job from stdin.
async fn work(gate: &str) -> Outcome<()> {
    let client = LockClient::connect(std::env::var("REDIS_URL")?).await?;
    let mut jobs = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(job) = jobs.next_line().await? {
        let (gate, job) = (client.lock(gate), job.parse()?);
        tokio::spawn(async move { pass(&gate, job, async |token| println!("{token} {job}")).await });
    }
    client.close().await?;
    Ok(())
}
