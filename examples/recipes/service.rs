//! An ordinary service: it writes invoices for many tenants, with any number of processes.
//!
//! `cargo run -p fairlock-recipes --bin recipe-service`, against `REDIS_URL` or redis://127.0.0.1/, then
//! `curl -X POST localhost:8080/tenants/acme/invoices`. On SIGTERM it accepts no new connection, answers the requests
//! that it has, and leaves nothing locked.
//!
//! It ends with: `closed, and nothing is locked`

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use fairlock::{Error, ErrorKind, FairLock, FairSemaphore, Held, LockClient, owner};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisError, Script};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long a request waits for its turn. Keep it below the timeout of your HTTP clients.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes an invoice, unless a later holder of the lock has written one. So a process that was paused past its lease
/// changes nothing.
const WRITE: &str = "
    if tonumber(redis.call('HGET', KEYS[1], 'token') or '0') > tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'token', ARGV[1], ARGV[2], ARGV[3])
    redis.call('EXPIRE', KEYS[1], 86400)
    return 1";

#[derive(Clone)]
struct Service {
    locks: LockClient,
    /// Renders at most three invoices at a time, over all processes.
    renderers: FairSemaphore,
    store: MultiplexedConnection,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".into());
    // The one place that configures Redis.
    let redis = redis::Client::open(url)?;
    let locks = LockClient::connect(redis.clone()).await?;
    let service = Service {
        renderers: locks.semaphore("example:renderers", 3),
        store: redis.get_multiplexed_async_connection().await?,
        locks: locks.clone(),
    };
    let routes = Router::new().route("/tenants/{tenant}/invoices", post(invoice)).with_state(service);
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move {
            terminated.recv().await;
        })
        .await?;
    // Waits for the releases of the dropped guards.
    locks.close().await?;
    println!("closed, and nothing is locked");
    Ok(())
}

/// Runs alone for this tenant, over all processes, in the order of the requests. All calls in the scope have one
/// owner.
async fn invoice(State(service): State<Service>, Path(tenant): Path<String>) -> Result<String, Failure> {
    owner::scope(async {
        let guard = service.tenant(&tenant).lock_timeout(PATIENCE).await.map_err(Error::from)?;
        let number = tokio::select! {
            number = service.write(&tenant, &guard) => number?,
            // Stops at once: another process may have the lock by now.
            loss = guard.lost() => return Err(Error::from(loss).into()),
        };
        guard.unlock().await.map_err(Error::from)?;
        Ok(format!("invoice {number} of {tenant}\n"))
    })
    .await
}

impl Service {
    fn tenant(&self, tenant: &str) -> FairLock {
        self.locks.lock(format!("example:tenant:{tenant}"))
    }

    async fn write(&self, tenant: &str, held: &Held) -> Result<u64, Failure> {
        let number = self.next_number(tenant).await?;
        let text = self.renderers.try_with(async |_permit| render(tenant, number).await).await?;
        let key = format!("example:invoices:{tenant}");
        let mut store = self.store.clone();
        let script = Script::new(WRITE);
        let is_written: bool = script.key(key).arg(held.token()).arg(number).arg(text).invoke_async(&mut store).await?;
        if is_written { Ok(number) } else { Err(Failure::Overtaken) }
    }

    /// Takes the tenant's lock itself, so that callers need not hold it. This caller does, so the call re-enters.
    async fn next_number(&self, tenant: &str) -> Result<u64, Failure> {
        let mut store = self.store.clone();
        self.tenant(tenant)
            .try_with(async |_held| Ok(store.incr(format!("example:invoices:{tenant}:last"), 1).await?))
            .await
    }
}

async fn render(tenant: &str, number: u64) -> Result<String, Failure> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("invoice {number} for {tenant}"))
}

enum Failure {
    Lock(Error),
    Store(RedisError),
    /// The store has the token of a later holder.
    Overtaken,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Lock(error) if error.kind() == ErrorKind::Timeout => {
                (StatusCode::TOO_MANY_REQUESTS, error.to_string())
            }
            Self::Lock(error) if error.is_retryable() => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Lock(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            Self::Store(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Overtaken => (StatusCode::CONFLICT, "another process has written meanwhile".to_owned()),
        };
        (status, format!("{text}\n")).into_response()
    }
}
