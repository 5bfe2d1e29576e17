//! Locking from threads, in code that is not async.
//!
//! `cargo run --example blocking`, against `REDIS_URL` or redis://127.0.0.1/. A client needs a runtime for its
//! connection and its renewals. Here a static runtime with one thread serves all threads of the program, which wait
//! with `block_on`.
//!
//! `block_on` panics on a thread of a runtime, because it would stop the tasks there. If async code calls a function
//! that blocks, run that function with `tokio::task::spawn_blocking`; it can then wait in the same way.
//!
//! It ends with: `800 updates by 8 threads, none was lost`

use std::ops::Deref;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockError, LockGuard, UnlockError};
use tokio::runtime::{Builder, Runtime};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const THREADS: u32 = 8;
const UPDATES: u32 = 100;

/// Lives as long as the program, so renewals go on while the threads do other work.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("locks").enable_all().build();
    runtime.expect("a thread can be started")
});

/// A lock for threads.
#[derive(Clone)]
struct BlockingLock(FairLock);

/// Releases the lock when dropped, like any guard, and does not wait for the release.
struct BlockingGuard(LockGuard);

impl BlockingLock {
    fn lock(&self) -> Result<BlockingGuard, LockError> {
        RUNTIME.block_on(self.0.lock()).map(BlockingGuard)
    }

    fn lock_timeout(&self, limit: Duration) -> Result<BlockingGuard, LockError> {
        RUNTIME.block_on(self.0.lock_timeout(limit)).map(BlockingGuard)
    }
}

impl BlockingGuard {
    fn unlock(self) -> Result<(), UnlockError> {
        RUNTIME.block_on(self.0.unlock()).map(drop)
    }
}

impl Deref for BlockingGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = RUNTIME.block_on(LockClient::connect(&url))?;
    let lock = BlockingLock(client.lock("example:blocking"));

    // The read and the write are separate, so without the lock updates would be lost.
    let counter = AtomicU32::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| work(&lock, &counter))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;

    // A thread cannot await the loss of its lock while it works. Long work therefore checks before each step.
    let guard = lock.lock()?;
    for _ in 0..10 {
        if !guard.is_valid() {
            return Err("the lock is lost: stop here".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let refused = lock.lock_timeout(Duration::from_millis(100));
    if !matches!(refused, Err(LockError::Timeout { .. })) {
        return Err("two threads have the lock".into());
    }
    drop(guard);
    RUNTIME.block_on(client.close())?;

    let updates = counter.into_inner();
    if updates != THREADS * UPDATES {
        return Err(format!("{} updates were lost", THREADS * UPDATES - updates).into());
    }
    println!("{updates} updates by {THREADS} threads, none was lost");
    Ok(())
}

fn work(lock: &BlockingLock, counter: &AtomicU32) -> Outcome<()> {
    for _ in 0..UPDATES {
        let guard = lock.lock()?;
        let before = counter.load(Ordering::Relaxed);
        thread::yield_now();
        counter.store(before + 1, Ordering::Relaxed);
        guard.unlock()?;
    }
    Ok(())
}
