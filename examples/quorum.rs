//! A lock on five masters. Two of them are killed while clients work.
//!
//! `cargo run --example quorum` starts five servers (`redis-server` on the PATH, or the program in `REDIS_SERVER`) and
//! ends them. Workers of several clients take turns at a resource that checks tokens. It counts who is inside, and
//! refuses a token that is not greater than every token before it.
//!
//! It ends with: `quorum kept: 500 holds, 2 of 5 servers killed, 0 overlaps`

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fairlock::LockClient;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SERVERS: usize = 5;
const KILLED: usize = 2;
const CLIENTS: usize = 5;
const HOLDS_OF_EACH: u32 = 100;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(overlaps) => {
            let holds = CLIENTS as u32 * HOLDS_OF_EACH;
            println!("quorum kept: {holds} holds, {KILLED} of {SERVERS} servers killed, {overlaps} overlaps");
            if overlaps == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("quorum: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<u32> {
    let mut servers = (0..SERVERS).map(|_| Server::start()).collect::<Outcome<Vec<_>>>()?;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let resource = Arc::new(Resource::default());
    let mut workers = JoinSet::new();
    for _ in 0..CLIENTS {
        workers.spawn(work(urls.clone(), resource.clone()));
    }
    for number in 1..=KILLED {
        // Kills at a third and at two thirds of the work.
        while resource.holds.load(Ordering::SeqCst) < number as u32 * CLIENTS as u32 * HOLDS_OF_EACH / 3 {
            sleep(Duration::from_millis(5)).await;
        }
        // The first server is the one where the clients queue.
        drop(servers.remove(0));
        println!("killed a server after {} holds", resource.holds.load(Ordering::SeqCst));
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(resource.overlaps.load(Ordering::SeqCst))
}

async fn work(urls: Vec<String>, resource: Arc<Resource>) -> Outcome<()> {
    // New servers have forgotten nothing. In production leave `strict_restart` on: a server that comes back without
    // its data then counts only when the longest lease has ended.
    let each = LockClient::builder().operation_timeout(Duration::from_secs(1));
    let client = connect(each.without_strict_restart(), &urls).await?;
    let lock = client.lock("shared");
    for _ in 0..HOLDS_OF_EACH {
        let guard = lock.lock().await?;
        resource.visit(guard.token()).await;
        let nodes = guard.servers();
        if let Err(error) = guard.unlock().await {
            // The hold began on a majority, and one of its servers was killed. The rest of the hold ends with its
            // leases.
            println!("held on the servers {nodes:?}: {error}");
        }
    }
    client.close().await?;
    Ok(())
}

/// Retries, because the servers may need a moment until they listen.
async fn connect(builder: fairlock::LockClientBuilder, urls: &[String]) -> Outcome<LockClient> {
    let mut tries = 0;
    loop {
        match builder.clone().connect(urls).await {
            Ok(client) => return Ok(client),
            Err(error) if tries == 50 => return Err(error.into()),
            Err(_) => tries += 1,
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The resource that the lock protects.
#[derive(Default)]
struct Resource {
    inside: AtomicU32,
    last_token: AtomicU64,
    holds: AtomicU32,
    overlaps: AtomicU32,
}

impl Resource {
    async fn visit(&self, token: u64) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        let last = self.last_token.fetch_max(token, Ordering::SeqCst);
        if others > 0 || token <= last {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        sleep(Duration::from_millis(1)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.holds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> Outcome<Self> {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(std::env::temp_dir())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, port })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
