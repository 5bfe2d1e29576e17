//! A gate for each tenant of an HTTP service. Over all processes of the service, the requests of one tenant run one
//! after the other, and the requests of different tenants run in parallel.
//!
//! `cargo run -p fairlock-recipes --bin recipe-tenants`, against `REDIS_URL` or redis://127.0.0.1/. It starts the
//! service as a process, sends requests, and ends it with SIGTERM while some of them wait.
//! `recipe-tenants 127.0.0.1:8080` only serves:
//!
//! - `POST /tenants/acme/orders` waits for its turn, for at most ten seconds.
//! - `GET /health` returns 200 while the service can serve, and 503 while it cannot reach Redis or is shutting down.
//!
//! On SIGTERM the health page becomes 503. `TENANTS_NOTICE_MS` later, when a balancer has seen that, the service stops
//! accepting connections and finishes the requests that wait or run. Requests that take longer than `TENANTS_GRACE_MS`
//! get a 503. Nothing stays locked. If an HTTP client hangs up, its request leaves the queue. Work that has begun goes
//! on, and keeps the lock until it ends.
//!
//! It ends with: `6 requests of 2 tenants were answered, 4 of them after the SIGTERM`

use std::future::IntoFuture;
use std::pin::pin;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fairlock::{ConnectionState, LockClient, LockError, LockGuard};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long a request waits for its turn. Keep it below the timeout of your HTTP clients.
const PATIENCE: Duration = Duration::from_secs(10);
/// The work between two looks at the lock.
const STEP: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1) {
        Some(address) => serve(&address).await,
        None => demonstrate().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenants: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone)]
struct Service {
    client: LockClient,
    is_ending: watch::Receiver<bool>,
    work: Duration,
}

async fn serve(address: &str) -> Outcome<()> {
    let mut sigterm = unix::signal(SignalKind::terminate())?;
    let (notice, grace) = (setting("TENANTS_NOTICE_MS", 1_000)?, setting("TENANTS_GRACE_MS", 20_000)?);
    let client = LockClient::connect(url()).await?;
    let (end, is_ending) = watch::channel(false);
    let service =
        Service { client: client.clone(), is_ending: is_ending.clone(), work: setting("TENANTS_WORK_MS", 50)? };
    let routes =
        Router::new().route("/tenants/{tenant}/orders", post(order)).route("/health", get(health)).with_state(service);
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let serving = axum::serve(listener, routes).with_graceful_shutdown(told_to_end(is_ending, notice));
    let mut serving = pin!(serving.into_future());
    tokio::select! {
        outcome = &mut serving => outcome?,
        () = async {
            sigterm.recv().await;
            // The health page becomes 503, and a little later the service stops accepting connections. Open requests
            // go on.
            end.send_replace(true);
            sleep(grace).await;
        } => {
            // Waits end with an error and work with a loss, so each request still gets an answer.
            client.close().await?;
            serving.await?;
        }
    }
    client.close().await?;
    println!("ended");
    Ok(())
}

async fn told_to_end(mut is_ending: watch::Receiver<bool>, notice: Duration) {
    // An error means that the sender is gone, and this service with it.
    let _ = is_ending.wait_for(|is_ending| *is_ending).await;
    // A balancer whose connection is refused at once may take that for a crash, and it may still send requests.
    sleep(notice).await;
}

/// One order. It runs alone for its tenant, in the order in which the orders came.
async fn order(State(service): State<Service>, Path(tenant): Path<String>) -> Response {
    let gate = service.client.lock(format!("example:tenant:{tenant}"));
    let guard = match gate.lock_timeout(PATIENCE).await {
        Ok(guard) => guard,
        Err(LockError::Timeout { .. }) => {
            return refuse(StatusCode::TOO_MANY_REQUESTS, "too many orders of this tenant");
        }
        // The client is closed, or the server is out of reach.
        Err(error) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    // The guard moves into the thread: if the HTTP client hangs up, this future is dropped, but the thread goes on. If
    // the future kept the guard, the next order would then come in next to it.
    let worked = tokio::task::spawn_blocking(move || {
        let written = write(&tenant, &guard, service.work);
        (written, guard)
    });
    match worked.await {
        Ok((Some(written), guard)) => match guard.unlock().await {
            Ok(_) => written.into_response(),
            // The order was written, but maybe at the same time as another one. The token in the database shows which
            // came later.
            Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        Ok((None, _)) => refuse(StatusCode::SERVICE_UNAVAILABLE, "the lock was lost"),
        Err(panicked) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &panicked.to_string()),
    }
}

fn refuse(status: StatusCode, why: &str) -> Response {
    (status, [(header::RETRY_AFTER, "1")], format!("{why}\n")).into_response()
}

/// Blocking work in steps, as with a database that checks the token. A running thread cannot be stopped, so it checks
/// before each step whether it still has the lock. It returns when it began and ended.
fn write(tenant: &str, guard: &LockGuard, work: Duration) -> Option<String> {
    let (begun, token) = (millis(), guard.token());
    for _step in 0..work.as_millis() / STEP.as_millis() {
        if !guard.is_valid() {
            return None;
        }
        std::thread::sleep(STEP);
    }
    Some(format!("{tenant} {token} {begun} {}\n", millis()))
}

/// Answers 200 if this process should get requests.
async fn health(State(service): State<Service>) -> Response {
    if *service.is_ending.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    let state = service.client.state();
    let status = match state.connection() {
        ConnectionState::Connected => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let servers = state.servers.iter().map(|server| format!("{}: {}\n", server.address, server.connection));
    (status, servers.collect::<String>()).into_response()
}

fn millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

fn setting(name: &str, default: u64) -> Outcome<Duration> {
    let millis = std::env::var(name).map_or(Ok(default), |text| text.parse())?;
    Ok(Duration::from_millis(millis))
}

fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into())
}

async fn demonstrate() -> Outcome<()> {
    let (mut service, address) = start().await?;
    println!("GET /health: {}", ask(&address, "GET /health").await?);

    let mut requests = Vec::new();
    for tenant in ["acme", "acme", "acme", "globex", "globex", "globex"] {
        let address = address.clone();
        requests.push(tokio::spawn(async move { ask(&address, &format!("POST /tenants/{tenant}/orders")).await }));
    }
    // Waits until the service works on two requests, one of each tenant.
    let client = LockClient::connect(url()).await?;
    for tenant in ["acme", "globex"] {
        let gate = client.lock(format!("example:tenant:{tenant}"));
        while gate.status().await?.waiters != 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let pid = service.id().ok_or("it has ended")?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
    println!("SIGTERM");

    let mut last: [(String, u64); 2] = Default::default();
    let mut answered = 0;
    for request in requests {
        let answer = timeout(Duration::from_secs(30), request).await???;
        println!("POST: {}", answer.trim());
        let [status, tenant, token, ..] = answer.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(answer.into());
        };
        let token = token.parse()?;
        let seen = last.iter_mut().find(|(name, _)| name == tenant || name.is_empty()).ok_or("a third tenant")?;
        if status != "200" || token == seen.1 {
            return Err(format!("not served alone: {answer}").into());
        }
        *seen = (tenant.to_owned(), token);
        answered += 1;
    }
    if !service.wait().await?.success() {
        return Err("the service failed".into());
    }
    for tenant in ["acme", "globex"] {
        if client.lock(format!("example:tenant:{tenant}")).is_locked().await? {
            return Err(format!("{tenant} is still locked").into());
        }
    }
    client.close().await?;
    println!("{answered} requests of 2 tenants were answered, 4 of them after the SIGTERM");
    Ok(())
}

/// Starts the service as a process, and returns its address.
async fn start() -> Outcome<(Child, String)> {
    let mut service = Command::new(std::env::current_exe()?)
        .arg("127.0.0.1:0")
        .env("TENANTS_WORK_MS", "300")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(service.stdout.take().ok_or("no output")?).lines();
    let line = timeout(Duration::from_secs(30), lines.next_line()).await??.ok_or("it has ended")?;
    let address = line.strip_prefix("listening on ").ok_or("no address")?.to_owned();
    // Keeps reading: if the pipe were closed, the service's last prints would panic.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((service, address))
}

/// Sends a request without an HTTP library, and returns the status and the body.
async fn ask(address: &str, request: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?;
    Ok(format!("{status} {body}"))
}
