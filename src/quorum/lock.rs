//! A lock at a quorum, by its name: a call for it, from its beginning to its end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::keys::{Keys, Kind, Share};

use super::acquire::{ErrorsMet, Gathering, Taken};
use super::context::Quorum;
use super::guard::QuorumGuard;
use crate::engine::Engine;
use crate::engine::error::LockError;
use crate::engine::last_answer::too_late;
use crate::engine::lock::{Caller, EngineLock, within};
use crate::engine::observe::{self, ObservedCall};
use crate::metrics::LockMetrics;
use crate::store::clock::{is_over, now};

#[derive(Clone)]
pub struct QuorumLock {
    quorum: Arc<Quorum>,
    keys: Arc<Keys>,
    locks: Arc<[EngineLock]>,
    /// Whether it is one of the names that a call takes together.
    is_part: bool,
    metrics: LockMetrics,
}

impl QuorumLock {
    pub fn new(quorum: Arc<Quorum>, name: &str) -> Self {
        // The partial holds of a call are kept only while it is polled (P6).
        let part = |engine: &Arc<Engine>| EngineLock::new(Kind::Lock, Share::LOCK, engine.clone(), name).as_part();
        let locks = quorum.nodes.engines().iter().map(part).collect();
        let metrics = quorum.metrics.of_lock(name);
        let keys = Arc::new(Keys::new(&quorum.nodes.context.options().prefix, name));
        Self { quorum, keys, locks, is_part: false, metrics }
    }

    /// The lock at each server.
    pub fn each(&self) -> &[EngineLock] {
        &self.locks
    }

    pub fn with_each(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        Self { locks: self.locks.iter().map(change).collect(), ..self.clone() }
    }

    /// The same lock as one of several that a call takes together.
    pub fn as_part(&self) -> Self {
        Self { is_part: true, ..self.clone() }
    }

    /// The server that this one is, by another address.
    pub fn same_as(&self, server: usize) -> Option<usize> {
        self.quorum.nodes.same_as(server)
    }

    /// Whether it can be had at all, by its name, lease and label.
    pub fn check(&self) -> Result<(), LockError> {
        let checked = self.locks.iter().try_for_each(EngineLock::valid);
        checked.inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    /// `None`: the lock is not free, and the call does not wait.
    pub async fn acquire(
        &self,
        caller: Caller,
        wait: bool,
        limit: Option<Duration>,
    ) -> Result<Option<QuorumGuard>, LockError> {
        self.check()?;
        let told = ErrorsMet::default();
        let asking = self.asking(caller, &told);
        let told_of = ObservedCall::begin((asking.who(), caller.began), &self.metrics);
        let calling = pin!(async {
            tokio::select! {
                // In this order: a closed client has no usable server, and the call would wait for one.
                biased;
                ended = self.quorum.ended() => Err(ended),
                outcome = self.in_time(&asking, wait, limit) => outcome,
            }
        });
        let outcome = told_of.drive(calling).await;
        match &outcome {
            Ok(Some(guard)) => {
                if told_of.is_told() {
                    guard.show();
                }
                told_of.acquired(guard.hold.token, || told.is_of_others());
            }
            Ok(None) => told_of.busy(),
            Err(error) => told_of.failed(error),
        }
        outcome
    }

    fn asking<'a>(&'a self, caller: Caller, told: &'a ErrorsMet) -> Gathering<'a> {
        let Self { quorum, locks, metrics, .. } = self;
        let client = &quorum.nodes.context.runner.client.id;
        let entry = quorum.owners.entry(&self.keys, caller.owner, client);
        Gathering { quorum, locks, caller, entry, told, metrics }
    }

    /// Runs the call for at most this long.
    async fn in_time(
        &self,
        asking: &Gathering<'_>,
        wait: bool,
        limit: Option<Duration>,
    ) -> Result<Option<QuorumGuard>, LockError> {
        let limit = limit.map(|limit| now() + limit);
        // Nothing is asked then, as at one server.
        if is_over(limit) {
            return Err(too_late().await);
        }
        // Kept until it is known how far it was.
        let mut call = pin!(async { if wait { self.wait(asking).await.map(Some) } else { self.take(asking).await } });
        let taken = within(limit, call.as_mut()).await;
        let Some(taken) = taken.unwrap_or_else(|| Err(asking.out_of_time()))? else { return Ok(None) };
        let mut guard = QuorumGuard::new(self.quorum.clone(), taken);
        if !self.is_part {
            guard.complete();
        }
        Ok(Some(guard))
    }

    async fn wait(&self, asking: &Gathering<'_>) -> Result<Taken, LockError> {
        // A second branch of the scope waits for the first one, and re-enters.
        let _turn = asking.turn().await;
        let mut backoff = self.quorum.nodes.context.backoff();
        while let Some(hold) = asking.held() {
            if let Some(taken) = asking.reenter(&hold).await? {
                return Ok(taken);
            }
            backoff.pause().await;
        }
        asking.wait().await
    }

    async fn take(&self, asking: &Gathering<'_>) -> Result<Option<Taken>, LockError> {
        let Some(_turn) = asking.turn_in_time().await? else { return Ok(None) };
        while let Some(hold) = asking.held() {
            if let Some(taken) = asking.reenter(&hold).await? {
                return Ok(Some(taken));
            }
            if !hold.is_given_back() {
                return Err(asking.unreachable());
            }
        }
        asking.take().await
    }
}
