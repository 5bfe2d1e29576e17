//! A name, with its status as a lock, a semaphore or a read-write lock.

use std::time::Duration;

use fairlock::{Holder, Kind, Listed, LockClient, LockStatus, RequestError, RwLockStatus, SemaphoreStatus, Waiter};
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
    /// Returns a status for each kind that the name is in use as. If it is not in use, returns the free lock.
    pub async fn ask(client: &LockClient, name: &str) -> Result<Vec<Self>, RequestError> {
        let (lock, semaphore, rw_lock) = tokio::join!(
            Self::of(client, Kind::Lock, name),
            Self::of(client, Kind::Semaphore, name),
            Self::of(client, Kind::RwLock, name),
        );
        let mut all = vec![lock?];
        for named in [semaphore, rw_lock] {
            match named {
                Err(RequestError::SeveralServers) => {}
                named => all.extend(Some(named?).filter(|named| named.status.is_in_use())),
            }
        }
        if all.len() > 1 && !all[0].status.is_in_use() {
            all.remove(0);
        }
        Ok(all)
    }

    /// The status of a name from a list, or `None` if the name is not in use any more. Reports a key that is not a
    /// lock, and lets the list go on.
    pub async fn ask_listed(client: &LockClient, listed: Listed) -> Result<Option<Self>, RequestError> {
        match Self::of(client, listed.kind, &listed.name).await {
            Ok(named) => Ok(named.status.is_in_use().then_some(named)),
            Err(RequestError::Refused(refusal)) if refusal.message.contains("fairlock: the key ") => {
                say(&format!("{}: {refusal}", text(&listed.name)));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub async fn of(client: &LockClient, kind: Kind, name: &str) -> Result<Self, RequestError> {
        let status = match kind {
            // The number of permits does not matter for a status.
            Kind::Semaphore => AnyStatus::Semaphore(client.semaphore(name, 1).status().await?),
            Kind::RwLock => AnyStatus::RwLock(client.rw_lock(name).status().await?),
            _ => AnyStatus::Lock(client.lock(name).status().await?),
        };
        Ok(Self { name: name.to_owned(), kind: status.kind(), status })
    }
}

impl AnyStatus {
    fn kind(&self) -> &'static str {
        match self {
            Self::Lock(_) => "lock",
            Self::Semaphore(_) => "semaphore",
            Self::RwLock(_) => "rw_lock",
        }
    }

    /// The holders that the status lists. A writer is the only one.
    pub fn holders(&self) -> Vec<&Holder> {
        match self {
            Self::Lock(status) => status.holder.iter().collect(),
            Self::Semaphore(status) => status.holders.iter().collect(),
            Self::RwLock(status) => status.writer.iter().chain(&status.readers).collect(),
        }
    }

    /// The number of holders, including those that the status does not list.
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

    fn is_in_use(&self) -> bool {
        // A semaphore with a limit for all clients is in use even without holders.
        let is_limited = matches!(self, Self::Semaphore(status) if status.set_permits.is_some());
        self.holding() > 0 || self.waiters() > 0 || is_limited
    }

    /// Whether a call would have to wait, as far as the status shows.
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

    /// The holders in a few words, or `None` if there are none.
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

/// `3 of 5 permits`; with every client's number if these differ.
pub fn permits(status: &SemaphoreStatus) -> String {
    let named: Vec<_> = status.named_permits.iter().map(u32::to_string).collect();
    match (status.set_permits, named.is_empty()) {
        (Some(0), _) => format!("paused, permits in use: {}", status.used),
        (Some(set), _) => format!("{} of {set} permits, as set for all clients", status.used),
        (None, false) => format!("{} of {} permits", status.used, named.join(" or ")),
        (None, true) => "0 permits".to_owned(),
    }
}
