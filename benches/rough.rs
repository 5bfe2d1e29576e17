//! Two first numbers, measured in one run on one server of its own: what a lock and its unlock cost
//! beside a hand-rolled SETNX pair on the same kind of connection, and what a hand-over takes.
//!
//! `cargo bench --bench rough`. Medians of interleaved rounds; compare the ratio, not the times.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fairlock::LockClient;
use redis::aio::MultiplexedConnection;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 9;
const PAIRS: u32 = 2000;
const HANDOVERS: u32 = 2000;

#[tokio::main]
async fn main() -> Outcome<()> {
    let dir = std::env::temp_dir().join(format!("fairlock-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let _server = Server::start(port, &dir)?;
    let url = format!("redis://127.0.0.1:{port}/");
    let client = connect(&url).await?;
    let mut setnx = connect_setnx(port).await?;

    let (mut ours, mut theirs, mut handovers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(pairs(&client).await?);
        theirs.push(setnx_pairs(&mut setnx).await?);
        handovers.push(hand_over(&client).await?);
    }
    let (ours, theirs, handover) = (median(&mut ours), median(&mut theirs), median(&mut handovers));
    println!("lock + unlock        {:>8.1} us", micros(ours));
    println!("SETNX + delete       {:>8.1} us", micros(theirs));
    println!("ratio                {:>8.2}   (SETNX time / ours; more is better)", micros(theirs) / micros(ours));
    println!("hand-over, 16 tasks  {:>8.1} us", micros(handover));
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// One uncontended lock and unlock.
async fn pairs(client: &LockClient) -> Outcome<Duration> {
    let lock = client.lock("pair");
    let begun = Instant::now();
    for _ in 0..PAIRS {
        lock.lock().await?.unlock().await?;
    }
    Ok(begun.elapsed() / PAIRS)
}

/// The usual hand-rolled lock: SET NX PX, and a script that deletes it if it is still ours.
async fn setnx_pairs(connection: &mut MultiplexedConnection) -> Outcome<Duration> {
    let release = redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
    );
    let begun = Instant::now();
    for number in 0..PAIRS {
        let set = redis::cmd("SET").arg("setnx").arg(number).arg("NX").arg("PX").arg(30_000).to_owned();
        set.exec_async(connection).await?;
        let freed: u32 = release.key("setnx").arg(number).invoke_async(connection).await?;
        assert_eq!(freed, 1);
    }
    Ok(begun.elapsed() / PAIRS)
}

/// From hand to hand among 16 tasks that wait all the time.
async fn hand_over(client: &LockClient) -> Outcome<Duration> {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let lock = client.lock("hand-over");
            tokio::spawn(async move {
                for _ in 0..HANDOVERS / 16 {
                    let guard = lock.lock().await.map_err(|error| error.to_string())?;
                    guard.unlock().await.map_err(|error| error.to_string())?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(begun.elapsed() / HANDOVERS)
}

async fn connect(url: &str) -> Outcome<LockClient> {
    for _ in 0..200 {
        if let Ok(client) = LockClient::connect(url).await {
            return Ok(client);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(LockClient::connect(url).await?)
}

/// With the settings that fairlock uses: RESP3 and no delay.
async fn connect_setnx(port: u16) -> Outcome<MultiplexedConnection> {
    use redis::IntoConnectionInfo;
    let info = format!("redis://127.0.0.1:{port}/?protocol=resp3").into_connection_info()?;
    let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
    Ok(redis::Client::open(info)?.get_multiplexed_async_connection().await?)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

struct Server(Child);

impl Server {
    fn start(port: u16, dir: &std::path::Path) -> Outcome<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(dir).stdout(Stdio::null());
        Ok(Self(command.spawn().map_err(|error| format!("redis-server does not start ({error}): run scripts/setup"))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
