//! The backend of a client: one engine, or a quorum of engines. Beside handles and the builder no file of the page knows which.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::keys::{Kind, Share};

#[cfg(feature = "_machine")]
use crate::driver::client::{Client, Driver};
#[cfg(feature = "_machine")]
use crate::driver::{guard::DrivenGuard, guard::HoldView, lock::DrivenLock};
use crate::engine::detached::ExtendError;
use crate::engine::guard::EngineGuard;
use crate::engine::handles;
use crate::engine::hold::Hold;
use crate::engine::lock::EngineLock;
use crate::engine::release::Unlocked;
use crate::engine::{Engine, close};
use crate::error::{CloseError, Loss, UnlockError};
use crate::quorum::context::Quorum;
use crate::quorum::guard::QuorumGuard;
use crate::quorum::hold::QuorumHold;
use crate::quorum::lock::QuorumLock;
use crate::store::error::SeveralServers;

#[derive(Clone)]
pub enum Backend {
    One(Arc<Engine>),
    /// On the state machine.
    #[cfg(feature = "_machine")]
    Driven(Arc<Client>),
    Several(Arc<Quorum>),
}

/// A lock at one server or at several.
#[derive(Clone)]
pub enum AnyLock {
    One(EngineLock),
    #[cfg(feature = "_machine")]
    Driven(DrivenLock),
    Several(QuorumLock),
}

pub enum AnyGuard {
    One(EngineGuard),
    #[cfg(feature = "_machine")]
    Driven(DrivenGuard),
    /// Boxed: it is ten times as large.
    Several(Box<QuorumGuard>),
}

#[derive(Clone)]
pub enum AnyHold {
    One(Arc<Hold>),
    #[cfg(feature = "_machine")]
    Driven(HoldView),
    Several(Arc<QuorumHold>),
}

/// The same call on either of them.
macro_rules! each {
    ($kind:ident, $value:expr, $it:ident => $call:expr) => {
        match $value {
            $kind::One($it) => $call,
            #[cfg(feature = "_machine")]
            $kind::Driven($it) => $call,
            $kind::Several($it) => $call,
        }
    };
}
pub(crate) use each;

impl Backend {
    /// Of the only server.
    pub fn of(engine: Arc<Engine>) -> Self {
        #[cfg(feature = "_machine")]
        if crate::driver::is_wanted() {
            return Self::Driven(Driver::start(engine));
        }
        Self::One(engine)
    }

    /// A share of this name, used as that kind. Several masters have locks only: see [`AnyLock::at_server`].
    pub fn lock(&self, kind: Kind, share: Share, name: &str) -> AnyLock {
        match self {
            Self::One(engine) => AnyLock::One(EngineLock::new(kind, share, engine.clone(), name)),
            #[cfg(feature = "_machine")]
            Self::Driven(client) => {
                let lock = EngineLock::new(kind, share, client.driver().engine.clone(), name);
                AnyLock::Driven(DrivenLock::new(lock, client.clone()))
            }
            Self::Several(quorum) => AnyLock::Several(QuorumLock::new(quorum.clone(), name)),
        }
    }

    /// One for each server. There is always a first one.
    pub fn engines(&self) -> &[Arc<Engine>] {
        match self {
            Self::One(engine) => slice::from_ref(engine),
            #[cfg(feature = "_machine")]
            Self::Driven(client) => slice::from_ref(&client.driver().engine),
            Self::Several(quorum) => quorum.nodes.engines(),
        }
    }

    /// The same at all servers.
    pub fn id(&self) -> &str {
        self.engines().first().map_or("", |engine| &engine.context.runner.client.id)
    }

    pub async fn close(&self) -> Result<(), CloseError> {
        let open = match self {
            Self::One(engine) => Some((close::close(engine).await, 1)).filter(|(unfinished, _)| *unfinished > 0),
            #[cfg(feature = "_machine")]
            Self::Driven(client) => {
                let unfinished = client.driver().close().await;
                Some((unfinished + close::close(&client.driver().engine).await, 1))
                    .filter(|(unfinished, _)| *unfinished > 0)
            }
            Self::Several(quorum) => Box::pin(quorum.close()).await,
        };
        open.map_or(Ok(()), |(unfinished, servers)| Err(CloseError { unfinished, servers }))
    }
}

impl AnyLock {
    /// The same lock as one of several that a call takes together.
    pub fn as_part(&self) -> Self {
        match self {
            Self::One(lock) => Self::One(lock.as_part()),
            #[cfg(feature = "_machine")]
            Self::Driven(lock) => Self::Driven(lock.clone()),
            Self::Several(lock) => Self::Several(lock.as_part()),
        }
    }

    pub fn changed(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        match self {
            Self::One(lock) => Self::One(change(lock)),
            #[cfg(feature = "_machine")]
            Self::Driven(lock) => Self::Driven(lock.changed(change)),
            Self::Several(lock) => Self::Several(lock.with_each(change)),
        }
    }

    /// The lock at each server.
    pub fn each(&self) -> &[EngineLock] {
        match self {
            Self::One(lock) => slice::from_ref(lock),
            #[cfg(feature = "_machine")]
            Self::Driven(lock) => slice::from_ref(&lock.lock),
            Self::Several(lock) => lock.each(),
        }
    }

    /// For what several may hold at a time.
    pub fn at_server(&self) -> Result<&EngineLock, SeveralServers> {
        match self {
            Self::One(lock) => Ok(lock),
            #[cfg(feature = "_machine")]
            Self::Driven(lock) => Ok(&lock.lock),
            Self::Several(_) => Err(SeveralServers),
        }
    }

    pub fn name(&self) -> &str {
        self.each().first().map_or("", EngineLock::name)
    }

    /// The server that this one is, by another address.
    pub fn same_as(&self, server: usize) -> Option<usize> {
        match self {
            Self::Several(lock) => lock.same_as(server),
            _ => None,
        }
    }
}

/// Acquires a lock, with a limit or without one. `None`: it is not free, and the call does not wait. No function: a waiter would
/// keep the arguments of one more call for as long as it waits.
macro_rules! acquire {
    ($lock:expr, $caller:expr, $wait:expr, $limit:expr) => {
        match $lock {
            AnyLock::One(lock) => lock.acquire($caller, $wait, 0, $limit).await?.map(AnyGuard::One),
            #[cfg(feature = "_machine")]
            AnyLock::Driven(lock) => lock.acquire($caller, $wait, $limit).await?.map(AnyGuard::Driven),
            // Boxed: a waiter of one server needs no room for it.
            AnyLock::Several(lock) => {
                let guard = Box::pin(lock.acquire($caller, $wait, $limit)).await?;
                guard.map(|guard| AnyGuard::Several(Box::new(guard)))
            }
        }
    };
}
pub(crate) use acquire;

impl AnyGuard {
    pub fn hold(&self) -> AnyHold {
        match self {
            Self::One(guard) => AnyHold::One(guard.hold.clone()),
            #[cfg(feature = "_machine")]
            Self::Driven(guard) => AnyHold::Driven(guard.view()),
            Self::Several(guard) => AnyHold::Several(guard.hold.clone()),
        }
    }

    /// Its call has all that it wants.
    pub fn complete(&mut self) {
        each!(Self, self, guard => guard.complete());
    }

    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        match self {
            Self::One(guard) => guard.unlock().await,
            #[cfg(feature = "_machine")]
            Self::Driven(guard) => guard.unlock().await,
            Self::Several(guard) => Box::pin(guard.unlock()).await,
        }
    }

    /// How much of the name it has.
    pub fn weight(&self) -> u32 {
        match self {
            Self::One(guard) => guard.hold.weight(),
            #[cfg(feature = "_machine")]
            Self::Driven(guard) => guard.weight(),
            Self::Several(_) => Share::LOCK.weight,
        }
    }

    /// From here on it has that much of the name.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        match self {
            Self::One(guard) => guard.shrink_to(weight).await,
            #[cfg(feature = "_machine")]
            Self::Driven(guard) => guard.shrink_to(weight).await,
            // Several masters have locks only.
            Self::Several(_) => Ok(()),
        }
    }

    /// It only reads from here on.
    pub async fn downgrade(&mut self) -> Result<(), Loss> {
        match self {
            Self::One(guard) => guard.downgrade().await,
            guard => guard.shrink_to(Share::READER.weight).await,
        }
    }

    /// A new lease from now on. On several servers: at a majority of them.
    pub async fn extend(&self, lease: Duration) -> Result<(), ExtendError> {
        match self {
            Self::One(guard) => handles::extend(&guard.hold, lease).await,
            // With the issue of handles.
            #[cfg(feature = "_machine")]
            Self::Driven(_) => Err(ExtendError::Lost(Loss::Gone)),
            Self::Several(guard) => Box::pin(guard.extend(lease)).await,
        }
    }

    /// The places of its servers in the list.
    pub fn servers(&self) -> Vec<usize> {
        match self {
            Self::One(guard) => guard.hold.is_valid().then_some(0).into_iter().collect(),
            #[cfg(feature = "_machine")]
            Self::Driven(guard) => guard.servers(),
            Self::Several(guard) => guard.servers(),
        }
    }
}
