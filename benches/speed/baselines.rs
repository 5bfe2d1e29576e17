//! The contenders that rows compare with fairlock: the floor (PING, PUBLISH), a hand-written SETNX lock, and a fair
//! queue whose unlock wakes the first waiter, which then asks again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use crate::Outcome;
use crate::connection::{MessageHandler, connect, ping};
use crate::contender::Contender;

/// The same as fairlock's default.
const LEASE_MS: u64 = 30_000;

/// The floor of a hand-off: a script that publishes to another task of the same client.
pub struct Publish {
    redis: MultiplexedConnection,
    script: redis::Script,
    received: Arc<Received>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Received {
    message: Notify,
    /// When the task got the message.
    at: Mutex<Option<Instant>>,
    done: Notify,
}

impl Publish {
    pub async fn connect(url: &str) -> Outcome<Self> {
        let received = Arc::new(Received::default());
        let notify = received.clone();
        let mut redis = connect(url, MessageHandler::new(move |_| notify.message.notify_one())).await?;
        redis.subscribe("floor").await?;
        let task = tokio::spawn(receive(received.clone()));
        Ok(Self { redis, script: redis::Script::new("return redis.call('PUBLISH', ARGV[1], ARGV[2])"), received, task })
    }

    /// The time from the call until the other task has the message.
    pub async fn once(&mut self) -> Outcome<Duration> {
        ping(&mut self.redis).await?;
        let begun = Instant::now();
        let receivers: u32 = self.script.arg("floor").arg("your turn").invoke_async(&mut self.redis).await?;
        if receivers != 1 {
            return Err(format!("{receivers} connections received the floor's message, not one").into());
        }
        self.received.done.notified().await;
        let at = self.received.at.lock().unwrap_or_else(PoisonError::into_inner).ok_or("no message was received")?;
        Ok(at.duration_since(begun))
    }
}

impl Drop for Publish {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn receive(received: Arc<Received>) {
    loop {
        received.message.notified().await;
        *received.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        received.done.notify_one();
    }
}

/// The usual hand-written lock: SET NX PX, and a script that deletes the key if it still has our value.
#[derive(Clone)]
pub struct Setnx {
    redis: MultiplexedConnection,
    release: Arc<redis::Script>,
    next: Arc<AtomicU64>,
}

static CLIENTS: AtomicU64 = AtomicU64::new(0);

impl Setnx {
    pub async fn connect(url: &str) -> Outcome<Self> {
        let release = redis::Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
        );
        let redis = connect(url, MessageHandler::none()).await?;
        // Two clients of one name must not have the same secrets.
        let first = CLIENTS.fetch_add(1 << 32, Ordering::Relaxed);
        Ok(Self { redis, release: Arc::new(release), next: Arc::new(AtomicU64::new(first)) })
    }

    /// Returns the secret that releases the lock, or `None` if the lock is taken.
    pub async fn try_lock(&self, name: &str) -> Outcome<Option<u64>> {
        let secret = self.next.fetch_add(1, Ordering::Relaxed);
        let set = redis::cmd("SET").arg(name).arg(secret).arg("NX").arg("PX").arg(LEASE_MS).to_owned();
        let taken: bool = set.query_async(&mut self.redis.clone()).await?;
        Ok(taken.then_some(secret))
    }

    pub async fn unlock(&self, name: &str, secret: u64) -> Outcome<()> {
        let freed: u32 = self.release.key(name).arg(secret).invoke_async(&mut self.redis.clone()).await?;
        if freed == 1 { Ok(()) } else { Err("the SETNX lock was lost".into()) }
    }
}

/// SETNX in a loop, the usual way to wait for such a lock.
#[derive(Clone)]
pub struct SetnxLoop(pub Setnx);

impl Contender for SetnxLoop {
    type Guard = u64;

    async fn lock(&self) -> Outcome<u64> {
        loop {
            if let Some(secret) = self.0.try_lock("setnx-loop").await? {
                return Ok(secret);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn unlock(&self, secret: u64) -> Outcome<()> {
        self.0.unlock("setnx-loop", secret).await
    }

    async fn pace(&self) -> Outcome<()> {
        ping(&mut self.0.redis.clone()).await
    }

    async fn waiters(&self) -> Outcome<u64> {
        Err("a SETNX lock does not know who waits".into())
    }
}

/// KEYS lock, queue, deadlines; ARGV waiter, lease ms, waiter ms. Returns 1 if the lock is yours, 0 if you are in the
/// queue.
const RETRY_ACQUIRE: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = redis.call('LINDEX', KEYS[2], 0)
while first and first ~= ARGV[1] and tonumber(redis.call('ZSCORE', KEYS[3], first) or 0) <= now do
  redis.call('LPOP', KEYS[2])
  redis.call('ZREM', KEYS[3], first)
  first = redis.call('LINDEX', KEYS[2], 0)
end
if (not first or first == ARGV[1]) and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if first then
    redis.call('LPOP', KEYS[2])
    redis.call('ZREM', KEYS[3], first)
  end
  return 1
end
if redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
return 0
";

/// KEYS lock, queue; ARGV holder, channel. Releases the lock and wakes the first waiter.
const RETRY_RELEASE: &str = r"
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local first = redis.call('LINDEX', KEYS[2], 0)
if first then redis.call('PUBLISH', ARGV[2], first) end
return 1
";

const RETRY_CHANNEL: &str = "retry:wake";
const RETRY_KEYS: [&str; 3] = ["retry:lock", "retry:queue", "retry:deadlines"];
/// How long a waiter waits for a message before it asks again: fairlock's poll interval.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
const RETRY_WAITER_MS: u64 = 6_000;

/// Wake-and-retry: a queue on the server. Unlock wakes the first in line, which then runs acquire again.
#[derive(Clone)]
pub struct Retry {
    redis: MultiplexedConnection,
    acquire: Arc<redis::Script>,
    release: Arc<redis::Script>,
    waiting: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
    next: Arc<AtomicU64>,
}

impl Retry {
    pub async fn connect(url: &str) -> Outcome<Self> {
        let waiting = Arc::new(Mutex::new(HashMap::<String, Arc<Notify>>::new()));
        let woken = waiting.clone();
        let handler = MessageHandler::new(move |waiter| {
            if let Some(notify) = woken.lock().unwrap_or_else(PoisonError::into_inner).get(waiter) {
                notify.notify_one();
            }
        });
        let mut redis = connect(url, handler).await?;
        redis.subscribe(RETRY_CHANNEL).await?;
        let scripts = [RETRY_ACQUIRE, RETRY_RELEASE].map(|source| Arc::new(redis::Script::new(source)));
        let [acquire, release] = scripts;
        Ok(Self { redis, acquire, release, waiting, next: Arc::default() })
    }

    async fn ask(&self, waiter: &str) -> Outcome<bool> {
        let mut call = self.acquire.prepare_invoke();
        RETRY_KEYS.iter().for_each(|key| {
            call.key(*key);
        });
        call.arg(waiter).arg(LEASE_MS).arg(RETRY_WAITER_MS);
        Ok(call.invoke_async(&mut self.redis.clone()).await?)
    }

    async fn wait(&self, waiter: &str, turn: &Notify) -> Outcome<()> {
        while !self.ask(waiter).await? {
            let _ = tokio::time::timeout(RETRY_INTERVAL, turn.notified()).await;
        }
        Ok(())
    }
}

impl Contender for Retry {
    type Guard = String;

    async fn lock(&self) -> Outcome<String> {
        let waiter = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let turn = Arc::new(Notify::new());
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(waiter.clone(), turn.clone());
        let outcome = self.wait(&waiter, &turn).await;
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&waiter);
        outcome.map(|()| waiter)
    }

    async fn unlock(&self, waiter: String) -> Outcome<()> {
        let mut call = self.release.prepare_invoke();
        call.key(RETRY_KEYS[0]).key(RETRY_KEYS[1]).arg(waiter).arg(RETRY_CHANNEL);
        let freed: u32 = call.invoke_async(&mut self.redis.clone()).await?;
        if freed == 1 { Ok(()) } else { Err("the wake-and-retry lock was lost".into()) }
    }

    async fn pace(&self) -> Outcome<()> {
        ping(&mut self.redis.clone()).await
    }

    async fn waiters(&self) -> Outcome<u64> {
        Ok(redis::cmd("LLEN").arg(RETRY_KEYS[1]).query_async(&mut self.redis.clone()).await?)
    }
}
