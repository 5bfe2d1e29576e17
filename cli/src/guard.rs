//! The guard that `fairlock lock` holds: of a lock, a slot of a semaphore, or a share of a read-write lock.

use std::ops::Deref;
use std::time::Duration;

use fairlock::{
    Held, HoldError, Kind, LockClient, LockError, LockGuard, Loss, Permit, ReadGuard, Tried, UnlockError, WriteGuard,
};

/// How the caller uses the name.
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

#[derive(Debug, Clone, Copy)]
pub enum Wait {
    No,
    For(Duration),
    WithoutLimit,
}

impl Wait {
    /// The rest of the wait, `used` later.
    pub fn after(self, used: Duration) -> Self {
        match self {
            Self::For(longest) => longest.checked_sub(used).filter(|left| !left.is_zero()).map_or(Self::No, Self::For),
            wait => wait,
        }
    }
}

/// Makes one of the three calls, by the name that it has for each kind.
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

    /// Releases a lock or permit, which stays taken for that long at least. The arguments exclude `at_least` for the
    /// other kinds.
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
