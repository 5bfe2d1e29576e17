//! A lock at a quorum, by its name, and a call for it from beginning to end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use fairlock_proto::keys::{Keys, Kind, Share};

use super::acquire::{ErrorsMet, Gathering};
use super::context::Quorum;
use super::guard::QuorumGuard;
use super::hold::GuardShare;
use crate::driver::client::Client;
use crate::driver::limit::{too_late, within};
use crate::driver::lock::{Caller, DrivenLock, IfBusy};
use crate::driver::observe::{self, ObservedCall};
use crate::driver::outcome::LockError;
use crate::driver::task::carry_out;
use crate::driver::tried::{Busy, Tried};
use crate::metrics::LockMetrics;
use crate::store::clock::{is_over, now};

#[derive(Clone)]
pub struct QuorumLock {
    quorum: Arc<Quorum>,
    keys: Arc<Keys>,
    locks: Arc<[DrivenLock]>,
    metrics: LockMetrics,
}

impl QuorumLock {
    pub fn new(quorum: Arc<Quorum>, name: &str) -> Self {
        let part = |client: &Arc<Client>| DrivenLock::of(Kind::Lock, Share::LOCK, client.clone(), name);
        let locks = quorum.nodes.clients().map(part).collect();
        let metrics = quorum.metrics.of_lock(name);
        let keys = Arc::new(Keys::new(&quorum.nodes.context.options().prefix, name));
        Self { quorum, keys, locks, metrics }
    }

    /// The lock at each server.
    pub fn each(&self) -> &[DrivenLock] {
        &self.locks
    }

    pub fn with_each(&self, change: impl Fn(&DrivenLock) -> DrivenLock) -> Self {
        Self { locks: self.locks.iter().map(&change).collect(), ..self.clone() }
    }

    /// The server that is the same as this one, under another address.
    pub fn same_as(&self, server: usize) -> Option<usize> {
        self.quorum.nodes.same_as(server)
    }

    /// Checks the name, the lease and the label.
    pub fn check(&self) -> Result<(), LockError> {
        let checked = self.locks.iter().try_for_each(DrivenLock::valid);
        checked.inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    pub async fn acquire(&self, caller: Caller, if_busy: IfBusy) -> Result<Tried<QuorumGuard>, LockError> {
        self.check()?;
        let asking = Arc::new(self.asking(caller));
        let told_of = ObservedCall::begin((asking.who(), caller.began), &self.metrics);
        let outcome = told_of.drive(pin!(call(asking.clone(), if_busy))).await;
        match &outcome {
            Ok(Tried::Acquired(guard)) => {
                if told_of.is_told() {
                    guard.show();
                }
                told_of.acquired(guard.hold().token, || asking.told.is_of_others());
            }
            Ok(Tried::Busy(_)) => told_of.busy(),
            Err(error) => told_of.failed(error),
        }
        outcome
    }

    fn asking(&self, caller: Caller) -> Gathering {
        let Self { quorum, locks, metrics, .. } = self.clone();
        let client = &quorum.nodes.context.runner.client.id;
        let entry = quorum.owners.entry(&self.keys, caller.owner, client);
        Gathering { quorum, locks, caller, entry, told: ErrorsMet::default(), metrics }
    }
}

/// Lets a task of the client make the call.
async fn call(asking: Arc<Gathering>, if_busy: IfBusy) -> Result<Tried<QuorumGuard>, LockError> {
    let (IfBusy::Wait(timeout) | IfBusy::Return(timeout)) = if_busy;
    // A time-out that is too long to add is as good as none.
    let limit = timeout.and_then(|timeout| now().checked_add(timeout));
    // Asks nothing then, like a lock at one server.
    if is_over(limit) {
        return Err(too_late().await);
    }
    let work = || in_time(asking.clone(), if_busy, limit);
    carry_out(&asking.quorum.nodes.context, limit, || asking.out_of_time(), work).await
}

/// Runs the call until its limit.
async fn in_time(
    asking: Arc<Gathering>,
    if_busy: IfBusy,
    limit: Option<Instant>,
) -> Result<Tried<QuorumGuard>, LockError> {
    // Not dropped before `out_of_time` has seen how far it got.
    let mut call = pin!(async {
        match if_busy {
            IfBusy::Wait(_) => asking.lock().await.map(Tried::Acquired),
            IfBusy::Return(_) => asking.try_lock().await,
        }
    });
    let taken = tokio::select! {
        // In this order: a closed client has no usable server, and the call would wait for one.
        biased;
        ended = asking.quorum.ended() => Err(ended),
        taken = within(limit, call.as_mut()) => taken.unwrap_or_else(|| Err(asking.out_of_time())),
    };
    Ok(taken?.map(|share| QuorumGuard::new(asking.quorum.clone(), share)))
}

impl Gathering {
    async fn lock(&self) -> Result<GuardShare, LockError> {
        // A second branch of the scope waits for the first one, then re-enters.
        let _turn = self.turn().await;
        let mut backoff = self.quorum.nodes.context.backoff();
        while let Some(hold) = self.held() {
            if let Some(taken) = self.reenter(&hold).await? {
                return Ok(taken);
            }
            backoff.pause().await;
        }
        self.wait().await
    }

    async fn try_lock(&self) -> Result<Tried<GuardShare>, LockError> {
        let Some(_turn) = self.turn_in_time().await? else { return Ok(Tried::Busy(Busy::default())) };
        while let Some(hold) = self.held() {
            if let Some(taken) = self.reenter(&hold).await? {
                return Ok(Tried::Acquired(taken));
            }
            if !hold.is_given_back() {
                return Err(self.unreachable());
            }
        }
        self.take().await
    }
}
