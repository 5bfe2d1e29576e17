//! A first-come-first-served gate for the jobs of several workers.
//!
//! `cargo run --example job_gate --features embedded` needs nothing else: the workers are clients of
//! a server inside this process. With `REDIS_URL` set the same happens on that server, and each worker
//! is a process of its own.
//!
//! The gate is held while the jobs arrive, one after the other and each at another worker. The next
//! one starts when the server shows the one before in its queue: no sleeping decides the order. Then
//! the gate opens, and each job says when it got in.
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

/// The token under which a job held the gate, and its number.
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
    let place = Place::from_env();
    let client = place.connect().await?;
    let name = format!("example:job_gate:{}", client.id());
    let gate = client.lock(&name);
    let holder = gate.lock().await?;
    let (say, mut served) = mpsc::channel(JOBS);
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Worker::start(&place, &name, say.clone()).await?);
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
    // By token: it tells the order in which the jobs held the gate, whatever order we heard it in.
    in_order.sort_unstable();
    let service: Vec<usize> = in_order.into_iter().map(|(_, job)| job).collect();
    println!("order of service: {service:?}");
    client.close().await?;
    let kept = service == arrived;
    println!("{}: {JOBS} jobs over {WORKERS} {}", if kept { "FIFO kept" } else { "FIFO broken" }, place.workers());
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

/// Where the lock is kept.
enum Place {
    Here(EmbeddedServer),
    Server(String),
}

impl Place {
    fn from_env() -> Self {
        std::env::var("REDIS_URL").map_or_else(|_| Self::Here(EmbeddedServer::new()), Self::Server)
    }

    async fn connect(&self) -> Outcome<LockClient> {
        Ok(match self {
            Self::Here(server) => LockClient::builder().embedded(server)?,
            Self::Server(url) => LockClient::connect(url).await?,
        })
    }

    fn workers(&self) -> &'static str {
        match self {
            Self::Here(_) => "clients",
            Self::Server(_) => "processes",
        }
    }
}

enum Worker {
    Client { gate: FairLock, say: mpsc::Sender<Served> },
    Process { process: Child, stdin: ChildStdin },
}

impl Worker {
    async fn start(place: &Place, gate: &str, say: mpsc::Sender<Served>) -> Outcome<Self> {
        let Place::Server(url) = place else {
            return Ok(Self::Client { gate: place.connect().await?.lock(gate), say });
        };
        // This program, started again.
        let mut process = Command::new(std::env::current_exe()?)
            .env(WORKER, gate)
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        std::thread::spawn(move || listen(stdout, &say));
        Ok(Self::Process { process, stdin })
    }

    async fn begin(&mut self, job: usize) -> Outcome<()> {
        match self {
            Self::Client { gate, say } => {
                let (gate, say) = (gate.clone(), say.clone());
                tokio::spawn(async move {
                    // Nobody listens only when the example has failed already.
                    pass(&gate, job, async |token| {
                        let _ = say.send((token, job)).await;
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
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// One job: waits its turn, says so, does its work alone behind the gate.
async fn pass(gate: &FairLock, job: usize, say: impl AsyncFnOnce(u64)) {
    match gate.lock().await {
        Ok(guard) => {
            say(guard.token()).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            if let Err(error) = guard.unlock().await {
                eprintln!("job {job}: {error}");
            }
        }
        Err(error) => eprintln!("job {job}: {error}"),
    }
}

/// Each line of a worker process is `<token> <job>`.
fn listen(stdout: ChildStdout, say: &mpsc::Sender<Served>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let said = line.split_once(' ').and_then(|(token, job)| Some((token.parse().ok()?, job.parse().ok()?)));
        match said {
            Some(said) if say.blocking_send(said).is_ok() => {}
            _ => return,
        }
    }
}

/// The worker process: every number on stdin is a job that wants through the gate.
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
