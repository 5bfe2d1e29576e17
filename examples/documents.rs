//! Readers share a document and writers are alone with it, over two clients. The store checks the writers' tokens.
//!
//! `cargo run --example documents`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! A document has two fields that belong together: a text and its length. A writer changes one after the other, so a
//! concurrent reader would see two that do not match. One writer is paused past its lease and wakes up in the middle
//! of its write. No lock with a lease can keep it out, but the store can, because a later writer has claimed the
//! document.
//!
//! It ends with: `100 readers saw whole documents, and the writer that was late was refused`

use std::time::Duration;

use fairlock::{FairRwLock, LockClient};
use futures::future::try_join_all;
use redis::aio::MultiplexedConnection;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns 0 if a later writer has claimed the document.
const CLAIM: &str = "if tonumber(redis.call('HGET', KEYS[1], 'token') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return 1";

/// Returns 0 if a later writer has claimed the document.
const SET: &str = "if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 1";

/// Keeps each document in a Redis hash.
#[derive(Clone)]
struct Store {
    redis: MultiplexedConnection,
    key: String,
}

impl Store {
    /// A writer claims the document with its token. A reader does not: other readers have smaller and greater tokens.
    async fn claim(&mut self, token: u64) -> Outcome<bool> {
        Ok(redis::Script::new(CLAIM).key(&self.key).arg(token).invoke_async(&mut self.redis).await?)
    }

    async fn set(&mut self, token: u64, field: &str, value: &str) -> Outcome<bool> {
        let script = redis::Script::new(SET);
        Ok(script.key(&self.key).arg(token).arg(field).arg(value).invoke_async(&mut self.redis).await?)
    }

    async fn get(&mut self, field: &str) -> Outcome<String> {
        Ok(redis::cmd("HGET").arg(&self.key).arg(field).query_async(&mut self.redis).await?)
    }

    async fn delete(&mut self) -> Outcome<()> {
        Ok(redis::cmd("DEL").arg(&self.key).exec_async(&mut self.redis).await?)
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let brief = Duration::from_millis(500);
    let builder = || LockClient::builder().operation_timeout(brief).poll_interval(brief);
    let (one, two) = (builder().connect(&url).await?, builder().connect(&url).await?);
    let name = format!("example:document:{}", one.id());
    let mut store = Store { redis, key: format!("{name}:data") };
    let (ours, theirs) = (one.rw_lock(&name), two.rw_lock(&name));

    write(&ours, &mut store, "the first text").await?;
    // They run in the order in which they come. Readers before a writer read together; readers after it see its text.
    let writers = (0..10).map(|number| {
        let (lock, mut store) = (ours.clone(), store.clone());
        async move { write(&lock, &mut store, &"word ".repeat(number + 1)).await }
    });
    let readers = (0..100).map(|_| read(&theirs, store.clone()));
    let (_, read) = futures::future::try_join(try_join_all(writers), try_join_all(readers)).await?;

    // A fixed lease is never renewed, like the lease of a process that hangs.
    let late = ours.with_lease(brief).write().await?;
    let claimed = store.claim(late.token()).await?;
    let half = store.set(late.token(), "text", "half of a").await?;
    println!(
        "a writer with token {} claims ({claimed}), writes one field ({half}), and stops for a while",
        late.token()
    );
    write(&theirs, &mut store, "written meanwhile").await?;
    let refused = !store.set(late.token(), "length", "9").await?;
    println!("it wakes up, and the store refuses its second field: {refused}");
    let text = read_whole(&theirs, &mut store).await?;
    store.delete().await?;
    one.close().await?;
    two.close().await?;
    if !refused || text != "written meanwhile" {
        return Err("the writer that was late has changed the document".into());
    }
    println!("{} readers saw whole documents, and the writer that was late was refused", read.len());
    Ok(())
}

async fn write(lock: &FairRwLock, store: &mut Store, text: &str) -> Outcome<()> {
    let guard = lock.write().await?;
    let token = guard.token();
    if !store.claim(token).await? || !store.set(token, "text", text).await? {
        return Err("a later writer was here".into());
    }
    store.set(token, "length", &text.len().to_string()).await?;
    // Reads the text back, together with other readers. No other writer can come in between.
    let guard = guard.downgrade().await?;
    let written = store.get("text").await?;
    guard.unlock().await?;
    if written == text { Ok(()) } else { Err("another writer came in between".into()) }
}

async fn read(lock: &FairRwLock, mut store: Store) -> Outcome<String> {
    read_whole(lock, &mut store).await
}

async fn read_whole(lock: &FairRwLock, store: &mut Store) -> Outcome<String> {
    let guard = lock.read().await?;
    let (text, length) = (store.get("text").await?, store.get("length").await?);
    guard.unlock().await?;
    if length == text.len().to_string() { Ok(text) } else { Err(format!("half a document: {text:?}, {length}").into()) }
}
