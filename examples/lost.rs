//! Work that stops when it loses its lock, once to `force_unlock` and once at the end of a fixed lease.
//!
//! `cargo run --example lost`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! It ends with: `as claimed: forced, then expired`

use std::time::Duration;

use fairlock::{LockClient, LockGuard, Loss};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let brief = Duration::from_millis(500);
    let client = LockClient::builder().operation_timeout(brief).poll_interval(brief).connect(&url).await?;
    let lock = client.lock("example:lost");

    println!("an operator unlocks by force:");
    let guard = lock.lock().await?;
    let operator = lock.clone();
    let force = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        operator.force_unlock().await
    });
    let forced = work_until_lost(&guard).await;
    force.await??;
    println!("  unlock returns: {:?}", guard.unlock().await);

    println!("a fixed lease ends:");
    let guard = lock.with_lease(brief).lock().await?;
    let expired = work_until_lost(&guard).await;

    println!("a cancellation token, for code that takes one:");
    let guard_of_another = lock.lock().await?;
    let cancelled = guard_of_another.ended_token();
    lock.force_unlock().await?;
    tokio::time::timeout(Duration::from_secs(5), cancelled.cancelled()).await?;
    println!("  ended_token() is cancelled");

    drop((guard, guard_of_another));
    client.close().await?;
    if (forced, expired) != (Loss::Forced, Loss::Expired) {
        return Err(format!("not as claimed: {forced}, then {expired}").into());
    }
    println!("as claimed: forced, then expired");
    Ok(())
}

/// Works until it loses the lock.
async fn work_until_lost(guard: &LockGuard) -> Loss {
    let mut steps = 0;
    let work = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            steps += 1;
        }
    };
    let loss = tokio::select! {
        loss = guard.lost() => loss,
        () = work => unreachable!("the work has no end"),
    };
    println!("  stopped after {steps} steps: {loss}; is_valid() = {}", guard.is_valid());
    loss
}
