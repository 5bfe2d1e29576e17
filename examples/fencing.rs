//! A holder that was paused past its lease writes late, and the resource refuses the write by its token.
//!
//! `cargo run --example fencing`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! The resource is a Redis key that remembers the greatest token; a database row does the same
//! with `UPDATE … WHERE newest_token <= $1`.
//!
//! It ends with: `as claimed: the late write was refused`

use std::time::Duration;

use fairlock::LockClient;
use redis::aio::MultiplexedConnection;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Writes, unless a holder with a greater token has written.
const WRITE: &str = "if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
redis.call('EXPIRE', KEYS[1], 60)
return 1";

const RESOURCE: &str = "example:fencing:resource";

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let mut redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let brief = Duration::from_millis(500);
    let builder = || LockClient::builder().operation_timeout(brief).poll_interval(brief);
    let (one, two) = (builder().connect(&url).await?, builder().connect(&url).await?);

    // A fixed lease stands for a process that hangs: nothing renews it.
    let paused = one.lock("example:fencing").with_lease(brief).lock().await?;
    println!("A holds with token {}, and stops for a while", paused.token());
    let next = two.lock("example:fencing").lock().await?;
    println!("B holds with token {}", next.token());
    let of_b = write(&mut redis, next.token(), "B was here").await?;
    println!("B writes: {}", verdict(of_b));

    println!("A wakes up; is_valid() = {}; but suppose it had checked a moment earlier", paused.is_valid());
    let of_a = write(&mut redis, paused.token(), "A was here").await?;
    println!("A writes: {}", verdict(of_a));

    let value: String = redis::cmd("HGET").arg(RESOURCE).arg("value").query_async(&mut redis).await?;
    println!("the value is: {value}");
    next.unlock().await?;
    println!(
        "A's unlock returns: {}",
        paused.unlock().await.map_or_else(|error| error.to_string(), |freed| format!("{freed:?}"))
    );
    redis::cmd("DEL").arg(RESOURCE).exec_async(&mut redis).await?;
    one.close().await?;
    two.close().await?;
    if !of_b || of_a {
        return Err("the late write was not refused".into());
    }
    println!("as claimed: the late write was refused");
    Ok(())
}

async fn write(redis: &mut MultiplexedConnection, token: u64, value: &str) -> Outcome<bool> {
    let script = redis::Script::new(WRITE);
    Ok(script.key(RESOURCE).arg(token).arg(value).invoke_async(redis).await?)
}

fn verdict(written: bool) -> &'static str {
    if written { "accepted" } else { "refused, a later holder was here" }
}
