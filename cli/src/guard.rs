//! What `fairlock lock` holds: a lock, a slot of a semaphore, or a share of a read-write lock.

use std::ops::Deref;
use std::time::Duration;

use fairlock::{
    Held, HoldError, Kind, LockClient, LockError, LockGuard, Loss, Permit, ReadGuard, Tried, UnlockError, WriteGuard,
};

/// What the name is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Lock,
    Slots(u32),
    Shared,
    Exclusive,
}

impl Use {
    pub fn kind(self) -> Kind {
        match self {
            Self::Lock => Kind::Lock,
            Self::Slots(_) => Kind::Semaphore,
            Self::Shared | Self::Exclusive => Kind::RwLock,
        }
    }
}

pub enum Guard {
    Lock(LockGuard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    No,
    For(Duration),
    WithoutLimit,
}

impl Wait {
    /// What is left of it after a part of it.
    pub fn after(self, used: Duration) -> Self {
        match self {
            Self::For(longest) => longest.checked_sub(used).filter(|left| !left.is_zero()).map_or(Self::No, Self::For),
            wait => wait,
        }
    }
}

/// The same three calls on each kind, with its names for them.
macro_rules! take {
    ($of:expr, $wait:expr, $try:ident, $timeout:ident, $plain:ident) => {
        match $wait {
            Wait::No => $of.$try().await?,
            Wait::For(longest) => Tried::Acquired($of.$timeout(longest).await?),
            Wait::WithoutLimit => Tried::Acquired($of.$plain().await?),
        }
    };
}

impl Guard {
    pub async fn take(client: &LockClient, name: &str, used_as: Use, wait: Wait) -> Result<Tried<Self>, LockError> {
        Ok(match used_as {
            Use::Lock => {
                let lock = client.lock(name);
                take!(lock, wait, try_lock, lock_timeout, lock).map(Self::Lock)
            }
            Use::Slots(slots) => {
                let gate = client.semaphore(name, slots);
                take!(gate, wait, try_acquire, acquire_timeout, acquire).map(Self::Permit)
            }
            Use::Shared | Use::Exclusive => {
                let lock = client.rw_lock(name);
                match used_as {
                    Use::Shared => take!(lock, wait, try_read, read_timeout, read).map(Self::Read),
                    _ => take!(lock, wait, try_write, write_timeout, write).map(Self::Write),
                }
            }
        })
    }

    pub async fn lost(&self) -> Loss {
        match self {
            Self::Lock(guard) => guard.lost().await,
            Self::Permit(permit) => permit.lost().await,
            Self::Read(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
        }
    }

    /// Locks and permits stay taken for that long at least. Not asked for with the others.
    pub async fn release_at_least(self, at_least: Duration) -> Result<(), HoldError> {
        match self {
            Self::Lock(guard) => guard.unlock_at_least(at_least).await,
            Self::Permit(permit) => permit.release_at_least(at_least).await,
            guard => Ok(guard.release().await?),
        }
    }

    pub async fn release(self) -> Result<(), UnlockError> {
        match self {
            Self::Lock(guard) => guard.unlock().await.map(drop),
            Self::Permit(permit) => permit.release().await,
            Self::Read(guard) => guard.unlock().await.map(drop),
            Self::Write(guard) => guard.unlock().await.map(drop),
        }
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}
