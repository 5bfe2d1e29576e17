//! Shows five traps of a hand-rolled SETNX lock, and how fairlock avoids each of them.
//!
//! `cargo run --example from_setnx`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! It ends with: `as claimed: five traps for SETNX, none for fairlock`

use std::time::Duration;

use fairlock::{LockClient, LockGuard};
use redis::aio::MultiplexedConnection;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const SETNX: &str = "example:setnx";
const NAME: &str = "example:from_setnx";
const LEASE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let mut redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    // A short lease needs a short operation_timeout and poll_interval.
    let brief = LEASE / 3;
    let client = LockClient::builder().lease(LEASE).operation_timeout(brief).poll_interval(brief).connect(&url).await?;
    let as_claimed = [
        dead_holder(&mut redis, &client).await?,
        wrong_delete(&mut redis, &client).await?,
        long_work(&mut redis, &client).await?,
        overtaking(&mut redis, &client).await?,
        nesting(&mut redis, &client).await?,
    ];
    redis::cmd("DEL").arg(SETNX).exec_async(&mut redis).await?;
    client.close().await?;
    if as_claimed != [true; 5] {
        return Err(format!("not all as claimed: {as_claimed:?}").into());
    }
    println!("as claimed: five traps for SETNX, none for fairlock");
    Ok(())
}

/// Plain `SETNX`, without an expiry. Returns true if we got the lock.
async fn setnx(redis: &mut MultiplexedConnection, who: &str) -> Outcome<bool> {
    Ok(redis::cmd("SETNX").arg(SETNX).arg(who).query_async(redis).await?)
}

/// The usual fix: one command that also sets the expiry.
async fn set_nx_px(redis: &mut MultiplexedConnection, who: &str) -> Outcome<bool> {
    let set = redis::cmd("SET").arg(SETNX).arg(who).arg("NX").arg("PX").arg(LEASE.as_millis() as u64).to_owned();
    Ok(set.query_async::<Option<String>>(redis).await?.is_some())
}

async fn delete(redis: &mut MultiplexedConnection) -> Outcome<bool> {
    Ok(redis::cmd("DEL").arg(SETNX).query_async(redis).await?)
}

async fn dead_holder(redis: &mut MultiplexedConnection, client: &LockClient) -> Outcome<bool> {
    println!("1. the holder dies before it sets an expiry");
    delete(redis).await?;
    setnx(redis, "A").await?;
    // A is dead, so its EXPIRE never comes.
    let ttl: i64 = redis::cmd("PTTL").arg(SETNX).query_async(redis).await?;
    tokio::time::sleep(2 * LEASE).await;
    let stuck = !setnx(redis, "B").await?;
    println!("   SETNX:    PTTL says {ttl}; after two leases B is still locked out: {stuck}");

    // To the server, a dead client just stops renewing. A fixed lease is not renewed either.
    let dead = client.lock(NAME).with_lease(LEASE).lock().await?;
    let guard = client.lock(NAME).lock_timeout(4 * LEASE).await?;
    println!("   fairlock: the lock was taken with a lease; B gets it when the lease ends");
    let freed = guard.token() > dead.token();
    guard.unlock().await?;
    Ok(stuck && freed)
}

async fn wrong_delete(redis: &mut MultiplexedConnection, client: &LockClient) -> Outcome<bool> {
    println!("2. a late DEL frees the lock of another holder");
    delete(redis).await?;
    set_nx_px(redis, "A").await?;
    tokio::time::sleep(LEASE + Duration::from_millis(50)).await;
    set_nx_px(redis, "B").await?;
    delete(redis).await?; // A does not know that its key has expired
    let stolen = set_nx_px(redis, "C").await?;
    println!("   SETNX:    A deletes B's lock, C gets in beside B: {stolen}");

    let late = client.lock(NAME).with_lease(LEASE).lock().await?;
    late.lost().await;
    let b = client.lock(NAME).lock().await?;
    let answer = late.unlock().await;
    let kept = b.is_valid() && client.lock(NAME).try_lock().await?.is_busy();
    println!("   fairlock: A's unlock returns {answer:?}, B keeps it: {kept}");
    b.unlock().await?;
    Ok(stolen && answer.is_err() && kept)
}

async fn long_work(redis: &mut MultiplexedConnection, client: &LockClient) -> Outcome<bool> {
    println!("3. the work takes longer than the expiry");
    delete(redis).await?;
    set_nx_px(redis, "A").await?;
    tokio::time::sleep(2 * LEASE).await; // A still works, and does not know that its key has expired
    let both = set_nx_px(redis, "B").await?;
    println!("   SETNX:    A and B are both inside: {both}");

    let guard = client.lock(NAME).lock().await?;
    tokio::time::sleep(2 * LEASE).await;
    let alone = guard.is_valid() && client.lock(NAME).try_lock().await?.is_busy();
    println!("   fairlock: the lease was renewed, A is alone: {alone}; had it been lost, lost() would say so");
    guard.unlock().await?;
    Ok(both && alone)
}

async fn overtaking(redis: &mut MultiplexedConnection, client: &LockClient) -> Outcome<bool> {
    println!("4. the last to come is served first");
    delete(redis).await?;
    set_nx_px(redis, "A").await?;
    // B tries, is refused, and sleeps until its next try. C comes in the gap.
    let b_refused = !set_nx_px(redis, "B").await?;
    delete(redis).await?;
    let overtaken = b_refused && set_nx_px(redis, "C").await? && !set_nx_px(redis, "B").await?;
    println!("   SETNX:    C came after B and is inside, B sleeps on: {overtaken}");

    let a = client.lock(NAME).lock().await?;
    let b = spawn_wait(client, 1).await?;
    let c = spawn_wait(client, 2).await?;
    a.unlock().await?;
    let b = b.await??;
    let b_first = !c.is_finished();
    let b_token = b.token();
    b.unlock().await?;
    let c = c.await??;
    println!("   fairlock: B before C: {}", b_first && b_token < c.token());
    let in_order = b_first && b_token < c.token();
    c.unlock().await?;
    Ok(overtaken && in_order)
}

async fn nesting(redis: &mut MultiplexedConnection, client: &LockClient) -> Outcome<bool> {
    println!("5. a function that holds the lock calls one that takes it");
    delete(redis).await?;
    set_nx_px(redis, "A").await?;
    let stuck = !set_nx_px(redis, "A").await?;
    println!("   SETNX:    A waits for itself: {stuck}");

    let lock = client.lock(NAME);
    let inner = lock.clone();
    // All calls inside `with` have one owner.
    let (outer, nested) = lock
        .with(|held| async move {
            let nested = inner.lock_timeout(LEASE).await?;
            Ok::<_, fairlock::LockError>((held.token(), nested.token()))
        })
        .await??;
    println!("   fairlock: the inner call re-enters, with the same token: {}", outer == nested);
    Ok(stuck && outer == nested)
}

/// Spawns a wait, and returns once the wait is at this position of the queue.
async fn spawn_wait(
    client: &LockClient,
    position: usize,
) -> Outcome<tokio::task::JoinHandle<Result<LockGuard, fairlock::LockError>>> {
    let lock = client.lock(NAME);
    let wait = tokio::spawn(async move { lock.lock().await });
    while client.lock(NAME).status().await?.queue.len() < position {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(wait)
}
