//! The backend of a client: one engine, or a quorum of engines. Beside handles and the builder no file of the page knows which.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{Kind, Share};
use fairlock_proto::question::Question;
use fairlock_proto::requests::inspect::Inspected;

use crate::driver::client::{Client, Driver};
use crate::driver::{guard::DrivenGuard, guard::HoldView, lock::DrivenLock};
use crate::engine::context::Context;
use crate::engine::detached::{DetachRefusal, ExtendError};
use crate::engine::guard::EngineGuard;
use crate::engine::handles::{self, DetachOutcome};
use crate::engine::hold::Hold;
use crate::engine::lock::{Caller, EngineLock};
use crate::engine::owner::Owner;
use crate::engine::release::Unlocked;
use crate::engine::task_or_thread::TaskOrThread;
use crate::engine::{Engine, close};
use crate::error::{CloseError, LockError, Loss, RequestError, UnlockError};
use crate::quorum::context::Quorum;
use crate::quorum::guard::QuorumGuard;
use crate::quorum::hold::QuorumHold;
use crate::quorum::lock::QuorumLock;
use crate::store::error::SeveralServers;
use crate::store::runner::Answer;

#[derive(Clone)]
pub enum Backend {
    One(Arc<Engine>),
    /// On the state machine.
    Driven(Arc<Client>),
    Several(Arc<Quorum>),
}

/// A lock at one server or at several.
#[derive(Clone)]
pub enum AnyLock {
    One(EngineLock),
    Driven(DrivenLock),
    Several(QuorumLock),
}

pub enum AnyGuard {
    One(EngineGuard),
    Driven(DrivenGuard),
    /// Boxed: it is ten times as large.
    Several(Box<QuorumGuard>),
}

#[derive(Clone)]
pub enum AnyHold {
    One(Arc<Hold>),
    Driven(HoldView),
    Several(Arc<QuorumHold>),
}

/// The same call on either of them.
macro_rules! each {
    ($kind:ident, $value:expr, $it:ident => $call:expr) => {
        match $value {
            $kind::One($it) => $call,
            $kind::Driven($it) => $call,
            $kind::Several($it) => $call,
        }
    };
}
pub(crate) use each;

impl Backend {
    /// Of the only server.
    pub fn of(engine: Arc<Engine>) -> Self {
        if crate::driver::is_wanted() {
            return Self::Driven(Driver::start(engine));
        }
        Self::One(engine)
    }

    /// A share of this name, used as that kind. Several masters have locks only: see [`AnyLock::at_server`].
    pub fn lock(&self, kind: Kind, share: Share, name: &str) -> AnyLock {
        match self {
            Self::One(engine) => AnyLock::One(EngineLock::new(kind, share, engine.clone(), name)),
            Self::Driven(client) => AnyLock::Driven(DrivenLock::of(kind, share, client.clone(), name)),
            Self::Several(quorum) => AnyLock::Several(QuorumLock::new(quorum.clone(), name)),
        }
    }

    /// One for each server. There is always a first one.
    pub fn engines(&self) -> Vec<&Arc<Engine>> {
        match self {
            Self::One(engine) => vec![engine],
            Self::Driven(client) => vec![&client.driver().engine],
            Self::Several(quorum) => quorum.nodes.clients().map(|client| &client.driver().engine).collect(),
        }
    }

    /// What all servers have in common.
    fn context(&self) -> &Context {
        match self {
            Self::One(engine) => &engine.context,
            Self::Driven(client) => client.driver().context(),
            Self::Several(quorum) => &quorum.nodes.context,
        }
    }

    /// The same at all servers.
    pub fn id(&self) -> &str {
        &self.context().runner.client.id
    }

    pub async fn close(&self) -> Result<(), CloseError> {
        let open = match self {
            Self::One(engine) => Some((close::close(engine).await, 1)).filter(|(unfinished, _)| *unfinished > 0),
            Self::Driven(client) => Some((client.driver().close().await, 1)).filter(|(unfinished, _)| *unfinished > 0),
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
            Self::Driven(lock) => Self::Driven(lock.clone()),
            Self::Several(lock) => Self::Several(lock.clone()),
        }
    }

    pub fn changed(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        match self {
            Self::One(lock) => Self::One(change(lock)),
            Self::Driven(lock) => Self::Driven(lock.changed(change)),
            Self::Several(lock) => Self::Several(lock.with_each(change)),
        }
    }

    /// The lock at each server.
    pub fn each(&self) -> impl Iterator<Item = &EngineLock> {
        self.at_each().map(|at| at.lock())
    }

    /// For calls that only one server has.
    pub fn of_one_server(&self) -> Result<&Self, SeveralServers> {
        if let Self::Several(_) = self { Err(SeveralServers) } else { Ok(self) }
    }

    /// The lock at its only server, for what is asked about it.
    pub fn at_server(&self) -> Result<At<'_>, SeveralServers> {
        self.of_one_server()?.at_each().next().ok_or(SeveralServers)
    }

    /// The same lock at each server, to be asked about.
    pub fn at_each(&self) -> impl Iterator<Item = At<'_>> {
        let (engine, driven): (_, &[DrivenLock]) = match self {
            Self::One(lock) => (Some(lock), &[]),
            Self::Driven(lock) => (None, slice::from_ref(lock)),
            Self::Several(lock) => (None, lock.each()),
        };
        engine.into_iter().map(At::Engine).chain(driven.iter().map(At::Driven))
    }

    pub fn name(&self) -> &str {
        self.each().next().map_or("", EngineLock::name)
    }

    /// The server that this one is, by another address.
    pub fn same_as(&self, server: usize) -> Option<usize> {
        match self {
            Self::Several(lock) => lock.same_as(server),
            _ => None,
        }
    }
}

/// A lock at one server, for what is asked about it.
#[derive(Clone, Copy)]
pub enum At<'a> {
    Engine(&'a EngineLock),
    Driven(&'a DrivenLock),
}

impl<'a> At<'a> {
    pub fn lock(self) -> &'a EngineLock {
        match self {
            Self::Engine(lock) => lock,
            Self::Driven(lock) => &lock.lock,
        }
    }

    /// The owners of this client that have it, and how many guards each has.
    pub fn guards(self) -> Vec<(Owner, u32)> {
        match self {
            Self::Engine(lock) => {
                let valid = lock.holds().into_iter().filter(|hold| hold.is_valid());
                valid.map(|hold| (hold.entry.owner, hold.live())).collect()
            }
            Self::Driven(lock) => {
                let valid = lock.holds().into_iter().filter(|hold| hold.is_valid());
                valid.map(|hold| (hold.entry.owner, hold.live())).collect()
            }
        }
    }

    /// Whether the task that runs now has it outside of any scope.
    pub fn is_held_by_this_task(self) -> bool {
        match self {
            Self::Engine(lock) => {
                let is_mine = |hold: &Arc<Hold>| !hold.scoped && hold.holder == TaskOrThread::current();
                lock.holds().iter().any(|hold| is_mine(hold) && hold.live() > 0 && hold.end().is_none())
            }
            Self::Driven(lock) => lock.is_held_by_this_task(),
        }
    }

    /// The holders, and the first `most` waiters.
    pub async fn inspect(self, most: u32) -> Result<Answer<Inspected>, RequestError> {
        match self {
            Self::Engine(lock) => lock.inspect(most).await,
            Self::Driven(lock) => lock.inspect(most).await,
        }
    }

    /// Ends the present hold, if it has the expected token. Returns whether there was one.
    pub async fn force_unlock(self, expected: Option<u64>) -> Result<bool, RequestError> {
        match self {
            Self::Engine(lock) => lock.force_unlock(expected).await,
            Self::Driven(lock) => lock.carry_out(Question::ForceUnlock { expected }).await,
        }
    }

    /// Sets the limit of a shared name for all clients; `None`: that of each client counts.
    pub async fn set_limit(self, limit: Option<u32>) -> Result<(), RequestError> {
        match self {
            Self::Engine(lock) => lock.set_limit(limit).await,
            Self::Driven(lock) => lock.carry_out(Question::SetLimit { limit }).await.map(drop),
        }
    }

    /// Takes what a handle holds. `None`: this owner holds the lock or waits for it already.
    pub async fn attach(self, caller: Caller, handle: &Handle) -> Result<Option<AnyGuard>, LockError> {
        match self {
            Self::Engine(lock) => Ok(lock.attach(caller, handle).await?.map(AnyGuard::One)),
            Self::Driven(lock) => Ok(lock.attach(caller, handle).await?.map(AnyGuard::Driven)),
        }
    }

    /// Sets a new lease for what a handle holds, unless more is left. `false`: it holds nothing.
    pub async fn extend_handle(self, handle: &Handle, lease: Duration) -> Result<bool, RequestError> {
        match self {
            Self::Engine(lock) => handles::extend_handle(lock, handle, lease).await,
            Self::Driven(lock) => lock.carry_out(Question::Extend { handle: handle.clone(), lease }).await,
        }
    }

    /// Gives back what a handle holds. `false`: it held nothing.
    pub async fn release_handle(self, handle: &Handle) -> Result<bool, RequestError> {
        match self {
            Self::Engine(lock) => handles::release_handle(lock, handle).await,
            Self::Driven(lock) => lock.carry_out(Question::Release { handle: handle.clone() }).await,
        }
    }
}

/// Acquires a lock, with a limit or without one. `None`: it is not free, and the call does not wait. No function: a waiter would
/// keep the arguments of one more call for as long as it waits.
macro_rules! acquire {
    ($lock:expr, $caller:expr, $wait:expr, $limit:expr) => {
        match $lock {
            AnyLock::One(lock) => lock.acquire($caller, $wait, 0, $limit).await?.map(AnyGuard::One),
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
            Self::Driven(guard) => AnyHold::Driven(guard.view()),
            Self::Several(guard) => AnyHold::Several(guard.hold().clone()),
        }
    }

    /// Its call has all that it wants.
    pub fn complete(&mut self) {
        if let Self::One(guard) = self {
            guard.complete();
        }
    }

    pub async fn unlock(self) -> Result<Unlocked, UnlockError> {
        match self {
            Self::One(guard) => guard.unlock().await,
            Self::Driven(guard) => guard.unlock().await,
            Self::Several(guard) => Box::pin(guard.unlock()).await,
        }
    }

    /// How much of the name it has.
    pub fn weight(&self) -> u32 {
        match self {
            Self::One(guard) => guard.hold.weight(),
            Self::Driven(guard) => guard.weight(),
            Self::Several(_) => Share::LOCK.weight,
        }
    }

    /// From here on it has that much of the name.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        match self {
            Self::One(guard) => guard.shrink_to(weight).await,
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
            Self::Driven(guard) => guard.extend(lease).await,
            Self::Several(guard) => Box::pin(guard.extend(lease)).await,
        }
    }

    /// Gives what it holds to a handle.
    pub async fn detach(self, lease: Duration) -> DetachOutcome<Self> {
        match self {
            Self::One(guard) => handles::detach(guard, lease).await.of(Self::One),
            Self::Driven(guard) => guard.detach(lease).await.of(Self::Driven),
            guard => DetachOutcome::Refused(guard, DetachRefusal::SeveralServers),
        }
    }

    /// What the keys of its server begin with.
    pub fn prefix(&self) -> String {
        match self {
            Self::One(guard) => guard.hold.context().options().prefix.clone(),
            Self::Driven(guard) => guard.prefix(),
            // A quorum has no handles, which name it.
            Self::Several(_) => String::new(),
        }
    }

    /// The places of its servers in the list.
    pub fn servers(&self) -> Vec<usize> {
        match self {
            Self::One(guard) => guard.hold.is_valid().then_some(0).into_iter().collect(),
            Self::Driven(guard) => guard.servers(),
            Self::Several(guard) => guard.servers(),
        }
    }
}
