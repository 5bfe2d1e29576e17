//! The backend of a client: one server, or several masters. In the public layer, only handles and the builder know
//! which.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::keys::{Kind, Share};

use crate::driver::client::Client;
use crate::driver::context::Context;
use crate::driver::detached::DetachOutcome;
use crate::driver::guard::{DrivenGuard, HoldView};
use crate::driver::lock::DrivenLock;
use crate::driver::outcome::{HoldError, Unlocked};
use crate::error::{CloseError, Loss, UnlockError};
use crate::quorum::context::Quorum;
use crate::quorum::guard::QuorumGuard;
use crate::quorum::hold::QuorumHold;
use crate::quorum::lock::QuorumLock;
use crate::store::error::SeveralServers;

#[derive(Clone)]
pub enum Backend {
    One(Arc<Client>),
    Several(Arc<Quorum>),
}

/// A lock at one server or at several. Cheap to clone: the future of each call owns a clone.
#[derive(Clone)]
pub enum AnyLock {
    One(Arc<DrivenLock>),
    Several(Arc<QuorumLock>),
}

pub enum AnyGuard {
    One(DrivenGuard),
    Several(QuorumGuard),
}

#[derive(Clone)]
pub enum AnyHold {
    One(HoldView),
    Several(Arc<QuorumHold>),
}

/// Makes the same call on either variant.
macro_rules! each {
    ($kind:ident, $value:expr, $it:ident => $call:expr) => {
        match $value {
            $kind::One($it) => $call,
            $kind::Several($it) => $call,
        }
    };
}
pub(crate) use each;

impl Backend {
    /// The lock of this kind and name, for that share. Several masters have locks only: see [`AnyLock::at_server`].
    pub fn lock(&self, kind: Kind, share: Share, name: &str) -> AnyLock {
        match self {
            Self::One(client) => AnyLock::One(Arc::new(DrivenLock::of(kind, share, client.clone(), name))),
            Self::Several(quorum) => AnyLock::Several(Arc::new(QuorumLock::new(quorum.clone(), name))),
        }
    }

    /// The context of each server, at least one.
    pub fn contexts(&self) -> impl Iterator<Item = &Arc<Context>> {
        let (one, several) = match self {
            Self::One(client) => (Some(client.driver().context()), None),
            Self::Several(quorum) => (None, Some(quorum.nodes.clients().map(|client| client.driver().context()))),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The client id, which is the same at all servers.
    pub fn id(&self) -> &str {
        self.contexts().next().map_or("", |context| &context.runner.client.id)
    }

    pub async fn close(&self) -> Result<(), CloseError> {
        let open = match self {
            Self::One(client) => Some((client.driver().close().await, 1)).filter(|(unfinished, _)| *unfinished > 0),
            Self::Several(quorum) => Box::pin(quorum.close()).await,
        };
        open.map_or(Ok(()), |(unfinished, servers)| Err(CloseError { unfinished, servers }))
    }
}

impl AnyLock {
    pub fn changed(&self, change: impl Fn(&DrivenLock) -> DrivenLock) -> Self {
        match self {
            Self::One(lock) => Self::One(Arc::new(change(lock))),
            Self::Several(lock) => Self::Several(Arc::new(lock.with_each(change))),
        }
    }

    /// The lock at each server.
    pub fn each(&self) -> &[DrivenLock] {
        match self {
            Self::One(lock) => slice::from_ref(&**lock),
            Self::Several(lock) => lock.each(),
        }
    }

    /// For calls that need a single server.
    pub fn of_one_server(&self) -> Result<&Self, SeveralServers> {
        if let Self::Several(_) = self { Err(SeveralServers) } else { Ok(self) }
    }

    /// The lock at its only server, for questions about it.
    pub fn at_server(&self) -> Result<&DrivenLock, SeveralServers> {
        self.of_one_server()?.each().first().ok_or(SeveralServers)
    }

    pub fn name(&self) -> &str {
        self.each().first().map_or("", DrivenLock::name)
    }

    /// The index of the same server under another address, if any.
    pub fn same_as(&self, server: usize) -> Option<usize> {
        match self {
            Self::Several(lock) => lock.same_as(server),
            Self::One(_) => None,
        }
    }
}

/// Acquires a lock. Not a function: a waiter would keep the arguments of one more call for as long as it waits.
macro_rules! acquire {
    ($lock:expr, $caller:expr, $if_busy:expr) => {
        match $lock {
            AnyLock::One(lock) => lock.acquire($caller, $if_busy).await?.map(AnyGuard::One),
            // Boxed, so that a wait at a single server does not reserve space for it.
            AnyLock::Several(lock) => Box::pin(lock.acquire($caller, $if_busy)).await?.map(AnyGuard::Several),
        }
    };
}
pub(crate) use acquire;

impl AnyGuard {
    pub fn hold(&self) -> AnyHold {
        match self {
            Self::One(guard) => AnyHold::One(guard.view()),
            Self::Several(guard) => AnyHold::Several(guard.hold().clone()),
        }
    }

    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        match self {
            Self::One(guard) => guard.unlock().await,
            Self::Several(guard) => Box::pin(guard.unlock()).await,
        }
    }

    /// How much of the name the guard holds.
    pub fn weight(&self) -> u32 {
        match self {
            Self::One(guard) => guard.weight(),
            Self::Several(_) => Share::LOCK.weight,
        }
    }

    /// Reduces how much of the name the guard holds.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        match self {
            Self::One(guard) => guard.shrink_to(weight).await,
            // Several masters have locks only.
            Self::Several(_) => Ok(()),
        }
    }

    /// Sets a new lease from now on; with several servers, at a majority of them.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        match self {
            Self::One(guard) => guard.extend(lease).await,
            Self::Several(guard) => Box::pin(guard.extend(lease)).await,
        }
    }

    /// Gives its hold to a handle.
    pub async fn detach(self, lease: Duration) -> DetachOutcome<Self> {
        match self {
            Self::One(guard) => guard.detach(lease).await.of(Self::One),
            guard => DetachOutcome::Refused(guard, HoldError::SeveralServers),
        }
    }

    /// Unlocks it, but the name stays taken until it has been held for `at_least`.
    pub async fn unlock_at_least(self, at_least: Duration) -> Result<(), HoldError> {
        match self {
            Self::One(guard) => guard.unlock_at_least(at_least).await,
            Self::Several(_) => Err(HoldError::SeveralServers),
        }
    }

    /// The prefix of its server's keys.
    pub fn prefix(&self) -> String {
        match self {
            Self::One(guard) => guard.prefix(),
            // Only handles need the prefix, and a quorum has none.
            Self::Several(_) => String::new(),
        }
    }

    /// The indices of its servers in the list.
    pub fn servers(&self) -> Vec<usize> {
        each!(Self, self, guard => guard.servers())
    }
}
