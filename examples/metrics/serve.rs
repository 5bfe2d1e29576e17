//! Metrics for Prometheus: makes load, and serves what fairlock counts and measures.
//!
//! ```sh
//! cargo run -p fairlock-metrics --bin serve           # until Ctrl-C; with a number: for that many seconds
//! curl http://127.0.0.1:9000/metrics                  # or where LISTEN says
//! ```
//!
//! It needs a Redis, at `REDIS_URL` or redis://127.0.0.1/.
//!
//! It ends with: `served 17 metrics`

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use fairlock::{LockClient, LockError};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bounds of the buckets in seconds. A round trip takes less than the first, a long job more than the last.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

#[tokio::main]
async fn main() -> Outcome<()> {
    let listen: SocketAddr = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:9000".into()).parse()?;
    let seconds = std::env::args().nth(1).map(|seconds| seconds.parse()).transpose()?;
    // The recorder comes before the client, which looks for it only once.
    PrometheusBuilder::new()
        .with_http_listener(listen)
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .install()?;
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    // `orders:1` and `orders:2` count together: otherwise each name would be a series.
    let group = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let client = LockClient::builder().label("examples/metrics").metrics_group(group).connect(&url).await?;
    println!("http://{listen}/metrics");
    let tasks: Vec<_> = (0..8).map(|number| tokio::spawn(work(client.clone(), number))).collect();
    tokio::select! {
        () = over_after(seconds) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tasks.iter().for_each(|task| task.abort());
    client.close().await?;
    let page = read(listen).await?;
    let served: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE fairlock_")).collect();
    println!("served {} metrics", served.len());
    Ok(())
}

async fn over_after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// The load of a typical service: most tasks wait their turn for an order, one gives up soon, and one only checks
/// whether a report is under way.
async fn work(client: LockClient, number: u64) {
    for turn in number.. {
        // Different in each turn, and without another crate.
        let some = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let order = client.lock(format!("orders:{}", some % 3));
        let outcome = match number {
            0 => hold(client.lock("report").try_lock().await.map(|tried| tried.into_result().ok()), 400).await,
            1 => match timeout(Duration::from_millis(15), order.lock()).await {
                Ok(guard) => hold(guard.map(Some), some % 10).await,
                Err(_given_up) => Ok(()),
            },
            2 => hold(order.lock_timeout(Duration::from_millis(40)).await.map(Some), some % 10).await,
            _ => hold(order.lock().await.map(Some), 1 + some % 30).await,
        };
        match outcome {
            // The metrics count these, and the log reports once that a server is out of reach.
            Ok(()) | Err(LockError::Timeout { .. } | LockError::Unreachable(_)) => {}
            Err(error) => eprintln!("{error}"),
        }
        sleep(Duration::from_millis(1 + some % 20)).await;
    }
}

async fn hold(guard: Result<Option<fairlock::LockGuard>, LockError>, millis: u64) -> Result<(), LockError> {
    if let Some(guard) = guard? {
        sleep(Duration::from_millis(millis)).await;
        if let Err(error) = guard.unlock().await {
            eprintln!("{error}");
        }
    }
    Ok(())
}

/// Reads the page as Prometheus does.
async fn read(address: SocketAddr) -> Outcome<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}
