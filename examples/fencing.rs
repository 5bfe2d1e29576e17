//! A holder that was paused past its lease goes on, and the resource refuses its write. Each holder claims the
//! resource with its token before it reads, and its write succeeds only while that claim is the last one.
//!
//! `cargo run --example fencing`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! The resource is a number in a Redis hash. docs/guide.md has the statements for PostgreSQL and SQLite.
//!
//! It ends with: `as claimed: one of two increments was refused, and none was lost`

use std::time::Duration;

use fairlock::LockClient;
use redis::aio::MultiplexedConnection;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns 0 if a later holder has claimed the number.
const CLAIM: &str = "if tonumber(redis.call('HGET', KEYS[1], 'token') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return 1";

/// Returns 0 if a later holder has claimed the number.
const WRITE: &str = "if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'value', ARGV[2])
return 1";

const NUMBER: &str = "example:fencing:number";

/// A number that one holder at a time may change.
struct Number {
    redis: MultiplexedConnection,
}

impl Number {
    /// Must come before the first read.
    async fn claim(&mut self, token: u64) -> Outcome<bool> {
        Ok(redis::Script::new(CLAIM).key(NUMBER).arg(token).invoke_async(&mut self.redis).await?)
    }

    async fn read(&mut self) -> Outcome<u64> {
        let value: Option<u64> = redis::cmd("HGET").arg(NUMBER).arg("value").query_async(&mut self.redis).await?;
        Ok(value.unwrap_or(0))
    }

    /// Fails if a later token has claimed the number.
    async fn write(&mut self, token: u64, value: u64) -> Outcome<bool> {
        Ok(redis::Script::new(WRITE).key(NUMBER).arg(token).arg(value).invoke_async(&mut self.redis).await?)
    }

    async fn delete(&mut self) -> Outcome<()> {
        Ok(redis::cmd("DEL").arg(NUMBER).exec_async(&mut self.redis).await?)
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let mut number = Number { redis };
    number.delete().await?;
    let brief = Duration::from_millis(500);
    let builder = || LockClient::builder().operation_timeout(brief).poll_interval(brief);
    let (one, two) = (builder().connect(&url).await?, builder().connect(&url).await?);

    // A fixed lease is never renewed, like the lease of a process that hangs.
    let paused = one.lock("example:fencing").with_lease(brief).lock().await?;
    let claimed = number.claim(paused.token()).await?;
    let read_by_a = number.read().await?;
    println!(
        "A holds with token {}, claimed the number ({claimed}), read {read_by_a}, and stops for a while",
        paused.token()
    );

    let next = two.lock("example:fencing").lock().await?;
    let claimed = number.claim(next.token()).await?;
    let read_by_b = number.read().await?;
    println!("B holds with token {}, claimed the number ({claimed}), and read {read_by_b}", next.token());

    println!("A wakes up; is_valid() = {}; but suppose it had checked a moment earlier", paused.is_valid());
    let of_a = number.write(paused.token(), read_by_a + 1).await?;
    println!("A writes {}: {}", read_by_a + 1, verdict(of_a));
    let of_b = number.write(next.token(), read_by_b + 1).await?;
    println!("B writes {}: {}", read_by_b + 1, verdict(of_b));

    let value = number.read().await?;
    println!("the number is {value}");
    next.unlock().await?;
    let unlocked = paused.unlock().await;
    println!("A's unlock returns: {}", unlocked.map_or_else(|error| error.to_string(), |freed| format!("{freed:?}")));
    number.delete().await?;
    one.close().await?;
    two.close().await?;
    if of_a || !of_b || value != 1 {
        return Err("the late write was not refused".into());
    }
    println!("as claimed: one of two increments was refused, and none was lost");
    Ok(())
}

fn verdict(written: bool) -> &'static str {
    if written { "accepted" } else { "refused, a later holder has claimed it" }
}
