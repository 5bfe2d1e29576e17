//! A name and its status, whatever it is used as.

use std::time::Duration;

use fairlock::{FairLock, Holder, Kind, LockClient, LockStatus, RequestError, RwLockStatus, SemaphoreStatus, Waiter};
use serde::Serialize;

use super::log::say;
use super::output::text;

/// A name with its status, as `--json` shows it.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: String,
    /// `lock`, `semaphore` or `rw_lock`.
    kind: &'static str,
    #[serde(flatten)]
    pub status: AnyStatus,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum AnyStatus {
    Lock(LockStatus),
    Semaphore(SemaphoreStatus),
    RwLock(RwLockStatus),
}

impl Named {
    pub async fn ask(client: &LockClient, name: &str) -> Result<Self, RequestError> {
        Self::of(client, &client.lock(name)).await
    }

    /// The same for a name from a list: it may have been released since it was found, and is `None` then. A key that is no
    /// lock is reported, and the list goes on.
    pub async fn ask_listed(client: &LockClient, lock: FairLock) -> Result<Option<Self>, RequestError> {
        match Self::of(client, &lock).await {
            Ok(named) => Ok(named.status.is_listed().then_some(named)),
            Err(RequestError::Refused(refusal)) if refusal.message.contains("fairlock: the key ") => {
                say(&format!("{}: {refusal}", text(lock.name())));
                Ok(None)
            }
            // It was released, and taken as another kind, more than once since.
            Err(RequestError::OtherKind { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn of(client: &LockClient, lock: &FairLock) -> Result<Self, RequestError> {
        let name = lock.name();
        let status = match lock.status().await {
            Err(RequestError::OtherKind { is: Kind::Semaphore, .. }) => semaphore(client, name).await?,
            Err(RequestError::OtherKind { is: Kind::RwLock, .. }) => {
                AnyStatus::RwLock(client.rw_lock(name).status().await?)
            }
            status => {
                let status = AnyStatus::Lock(status?);
                let limited = if status.is_free() { semaphore(client, name).await.ok() } else { None };
                // A number that was set for all clients stands there without holders too.
                limited.filter(|gate| gate.set_permits().is_some()).unwrap_or(status)
            }
        };
        Ok(Self { name: name.to_owned(), kind: status.kind(), status })
    }
}

async fn semaphore(client: &LockClient, name: &str) -> Result<AnyStatus, RequestError> {
    // The number does not matter to one who only asks.
    client.semaphore(name, 1).status().await.map(AnyStatus::Semaphore)
}

impl AnyStatus {
    fn kind(&self) -> &'static str {
        match self {
            Self::Lock(_) => "lock",
            Self::Semaphore(_) => "semaphore",
            Self::RwLock(_) => "rw_lock",
        }
    }

    /// The holders that are shown; a writer is the only one.
    pub fn holders(&self) -> Vec<&Holder> {
        match self {
            Self::Lock(status) => status.holder.iter().collect(),
            Self::Semaphore(status) => status.holders.iter().collect(),
            Self::RwLock(status) => status.writer.iter().chain(&status.readers).collect(),
        }
    }

    /// The number of holders, with the hidden ones.
    pub fn holding(&self) -> u64 {
        match self {
            Self::Lock(status) => status.holder.is_some().into(),
            Self::Semaphore(status) => status.holding,
            Self::RwLock(status) => status.reading + u64::from(status.writer.is_some()),
        }
    }

    pub fn queue(&self) -> &[Waiter] {
        match self {
            Self::Lock(status) => &status.queue,
            Self::Semaphore(status) => &status.queue,
            Self::RwLock(status) => &status.queue,
        }
    }

    pub fn waiters(&self) -> u64 {
        match self {
            Self::Lock(status) => status.waiters,
            Self::Semaphore(status) => status.waiters,
            Self::RwLock(status) => status.waiters,
        }
    }

    pub fn frozen_for(&self) -> Option<Duration> {
        match self {
            Self::Lock(status) => status.frozen_for,
            Self::Semaphore(status) => status.frozen_for,
            Self::RwLock(status) => status.frozen_for,
        }
    }

    pub fn is_free(&self) -> bool {
        self.holding() == 0 && self.waiters() == 0
    }

    fn is_listed(&self) -> bool {
        !self.is_free() || self.set_permits().is_some()
    }

    fn set_permits(&self) -> Option<u32> {
        if let Self::Semaphore(status) = self { status.set_permits } else { None }
    }

    /// Whether a call would have to wait, as far as is known: a semaphore has no permit left.
    pub fn is_taken(&self) -> bool {
        match self {
            Self::Lock(status) => status.holder.is_some() || !status.is_known(),
            Self::RwLock(_) => self.holding() > 0,
            Self::Semaphore(status) => {
                let limits = status.named_permits.iter().copied().max();
                let limit = status.set_permits.or(limits).unwrap_or(u32::MAX);
                status.waiters > 0 || status.used >= u64::from(limit)
            }
        }
    }

    /// The holders in a few words. `None`: there are none.
    pub fn in_short(&self) -> Option<String> {
        let first = self.holders().first().map(|holder| text(&holder.label));
        match self {
            Self::Lock(_) => first,
            Self::Semaphore(status) => Some(permits(status)),
            Self::RwLock(status) => match (&status.writer, status.reading) {
                (Some(_), _) => first.map(|label| format!("{label} (writes)")),
                (None, 1) => first.map(|label| format!("{label} (reads)")),
                (None, 0) => None,
                (None, reading) => Some(format!("{reading} readers")),
            },
        }
    }
}

/// `3 of 5 permits`; with the numbers of all clients where these differ.
pub fn permits(status: &SemaphoreStatus) -> String {
    let named: Vec<_> = status.named_permits.iter().map(u32::to_string).collect();
    match (status.set_permits, named.is_empty()) {
        (Some(0), _) => format!("paused, permits in use: {}", status.used),
        (Some(set), _) => format!("{} of {set} permits, as set for all clients", status.used),
        (None, false) => format!("{} of {} permits", status.used, named.join(" or ")),
        (None, true) => "0 permits".to_owned(),
    }
}
