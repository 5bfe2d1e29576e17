//! The kinds of holds, each by its own part of the public API: locks, permits, reads and writes.

use std::ops::Deref;
use std::time::Duration;

use fairlock::{
    DetachError, FairLock, FairRwLock, FairSemaphore, HandleError, Held, HoldHandle, LockClient, LockError, LockGuard,
    Loss, Permit, ReadGuard, Tried, UnlockError, WriteGuard,
};

/// A writer's units of a read-write lock. A reader has one.
pub const WHOLE: u32 = 1024;

/// A guard of any kind.
pub trait Guard: Deref<Target = Held> + Send + Sync {
    /// How the register treats its token, or `None` for permits, which have no order there.
    const AT_REGISTER: Option<&str>;

    fn lost(&self) -> impl Future<Output = Loss> + Send;
    fn release(self) -> impl Future<Output = Result<(), UnlockError>> + Send;
}

impl Guard for LockGuard {
    const AT_REGISTER: Option<&str> = Some("write");

    fn lost(&self) -> impl Future<Output = Loss> + Send {
        LockGuard::lost(self)
    }

    async fn release(self) -> Result<(), UnlockError> {
        self.unlock().await.map(drop)
    }
}

impl Guard for Permit {
    const AT_REGISTER: Option<&str> = None;

    fn lost(&self) -> impl Future<Output = Loss> + Send {
        Permit::lost(self)
    }

    fn release(self) -> impl Future<Output = Result<(), UnlockError>> + Send {
        Permit::release(self)
    }
}

impl Guard for ReadGuard {
    const AT_REGISTER: Option<&str> = Some("read");

    fn lost(&self) -> impl Future<Output = Loss> + Send {
        ReadGuard::lost(self)
    }

    async fn release(self) -> Result<(), UnlockError> {
        self.unlock().await.map(drop)
    }
}

impl Guard for WriteGuard {
    const AT_REGISTER: Option<&str> = Some("write");

    fn lost(&self) -> impl Future<Output = Loss> + Send {
        WriteGuard::lost(self)
    }

    async fn release(self) -> Result<(), UnlockError> {
        self.unlock().await.map(drop)
    }
}

/// A guard that can be detached.
pub trait Detachable: Guard + Sized {
    fn detach(self, lease: Duration) -> impl Future<Output = Result<HoldHandle, DetachError<Self>>> + Send;
    fn attach(client: &LockClient, handle: &HoldHandle) -> impl Future<Output = Result<Self, HandleError>> + Send;
}

impl Detachable for LockGuard {
    fn detach(self, lease: Duration) -> impl Future<Output = Result<HoldHandle, DetachError>> + Send {
        LockGuard::detach(self, lease)
    }

    fn attach(client: &LockClient, handle: &HoldHandle) -> impl Future<Output = Result<Self, HandleError>> + Send {
        client.attach(handle)
    }
}

impl Detachable for Permit {
    fn detach(self, lease: Duration) -> impl Future<Output = Result<HoldHandle, DetachError<Self>>> + Send {
        Permit::detach(self, lease)
    }

    fn attach(client: &LockClient, handle: &HoldHandle) -> impl Future<Output = Result<Self, HandleError>> + Send {
        client.attach_permit(handle)
    }
}

/// A name that a caller wants, and the ways to ask for it.
pub trait Wanted: Sync {
    type Guard: Guard;

    fn name(&self) -> &str;
    /// The fields about its share, for the history.
    fn share(&self) -> String;
    fn wait(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;
    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;
    fn try_it(&self) -> impl Future<Output = Result<Tried<Self::Guard>, LockError>> + Send;
}

impl Wanted for FairLock {
    type Guard = LockGuard;

    fn name(&self) -> &str {
        self.name()
    }

    fn share(&self) -> String {
        String::new()
    }

    fn wait(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send {
        self.lock()
    }

    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<LockGuard, LockError>> + Send {
        self.lock_timeout(limit)
    }

    fn try_it(&self) -> impl Future<Output = Result<Tried<LockGuard>, LockError>> + Send {
        self.try_lock()
    }
}

/// A number of permits of a semaphore.
pub struct Permits {
    pub semaphore: FairSemaphore,
    pub of: u32,
    pub weight: u32,
}

impl Wanted for Permits {
    type Guard = Permit;

    fn name(&self) -> &str {
        self.semaphore.name()
    }

    fn share(&self) -> String {
        share("permit", self.of, self.weight)
    }

    async fn wait(&self) -> Result<Permit, LockError> {
        if self.weight == 1 { self.semaphore.acquire().await } else { self.semaphore.acquire_many(self.weight).await }
    }

    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<Permit, LockError>> + Send {
        self.semaphore.acquire_many_timeout(self.weight, limit)
    }

    fn try_it(&self) -> impl Future<Output = Result<Tried<Permit>, LockError>> + Send {
        self.semaphore.try_acquire_many(self.weight)
    }
}

pub struct Reads(pub FairRwLock);

impl Wanted for Reads {
    type Guard = ReadGuard;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn share(&self) -> String {
        share("read", WHOLE, 1)
    }

    fn wait(&self) -> impl Future<Output = Result<ReadGuard, LockError>> + Send {
        self.0.read()
    }

    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<ReadGuard, LockError>> + Send {
        self.0.read_timeout(limit)
    }

    fn try_it(&self) -> impl Future<Output = Result<Tried<ReadGuard>, LockError>> + Send {
        self.0.try_read()
    }
}

pub struct Writes(pub FairRwLock);

impl Wanted for Writes {
    type Guard = WriteGuard;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn share(&self) -> String {
        share("write", WHOLE, WHOLE)
    }

    fn wait(&self) -> impl Future<Output = Result<WriteGuard, LockError>> + Send {
        self.0.write()
    }

    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<WriteGuard, LockError>> + Send {
        self.0.write_timeout(limit)
    }

    fn try_it(&self) -> impl Future<Output = Result<Tried<WriteGuard>, LockError>> + Send {
        self.0.try_write()
    }
}

fn share(mode: &str, of: u32, weight: u32) -> String {
    format!(r#","mode":"{mode}","of":{of},"w":{weight}"#)
}
