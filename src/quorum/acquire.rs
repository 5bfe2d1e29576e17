//! How the lock is taken: the rules Q1 to Q6.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::context::Quorum;
use super::error::NoQuorum;
use super::hold::{Entry, GuardShare, NodeGuard, NodeHold, QuorumHold};
use super::nodes::Waiting;
use crate::engine::error::LockError;
use crate::engine::guard::EngineGuard;
use crate::engine::last_answer::no_answer_yet;
use crate::engine::lock::{Caller, EngineLock};
use crate::engine::observe::{Holding, Who};
use crate::engine::owners::OwnersTurn;
use crate::engine::requests;
use crate::metrics::LockMetrics;
use crate::store::clock::now;
use crate::store::error::Cause;
use crate::sync::Mutex;

/// One call.
pub struct Gathering<'a> {
    pub quorum: &'a Arc<Quorum>,
    /// The lock at each node.
    pub locks: &'a Arc<[EngineLock]>,
    pub caller: Caller,
    /// The caller. In a scope it may re-enter what it holds.
    pub entry: Arc<Entry>,
    /// Errors for a caller that runs out of time.
    pub told: &'a ErrorsMet,
    pub metrics: &'a LockMetrics,
}

/// The errors that a call has met so far.
#[derive(Default)]
pub struct ErrorsMet {
    /// Why a node did not serve.
    cause: Mutex<Option<Cause>>,
    /// Others have the lock, or were first.
    others: AtomicBool,
    /// The nodes that refuse until a person changes something.
    refusing: Mutex<BTreeSet<usize>>,
}

impl ErrorsMet {
    pub fn set(&self, cause: Cause) {
        *self.cause.lock() = Some(cause);
    }

    fn get(&self) -> Option<Cause> {
        self.cause.lock().clone()
    }

    pub fn is_of_others(&self) -> bool {
        self.others.load(Ordering::Relaxed)
    }

    /// A node refuses for good. Returns how many do.
    fn refused_by(&self, index: usize) -> usize {
        let mut refusing = self.refusing.lock();
        refusing.insert(index);
        refusing.len()
    }

    fn served_by(&self, index: usize) {
        self.refusing.lock().remove(&index);
    }

    /// What has refused before may have been mended since.
    fn begin_round(&self) {
        self.refusing.lock().clear();
    }

    fn of_others(&self) {
        self.others.store(true, Ordering::Relaxed);
    }
}

/// One guard's part of a hold, on the nodes that it has.
pub type Taken = (GuardShare, Vec<NodeGuard>);

/// The outcome of one try.
enum RoundEnd {
    Held(Taken),
    /// Others have it.
    Busy,
    /// Too few nodes serve, or one went away meanwhile.
    Failed,
}

/// The guards at some nodes.
type Got = BTreeMap<usize, EngineGuard>;

/// The answer of one node. `None`: others have it.
type Tryout = Result<Option<EngineGuard>, LockError>;

/// The results of one round of requests.
#[derive(Default)]
struct RoundResults {
    got: Got,
    /// The first node where others have the lock.
    busy: Option<usize>,
}

/// Keeps the guards of a call that is polled: until all are there, nothing else renews them (P6).
fn keep(got: &Got) {
    got.values().for_each(|guard| guard.hold.keep());
}

/// Whether all of these guards are still valid.
fn is_whole(got: &Got) -> bool {
    got.values().all(|guard| guard.hold.is_valid())
}

/// Keeps the guards while the caller polls this. Ends when one of them is lost.
async fn keep_on(got: &Got) {
    while is_whole(got) {
        keep(got);
        let valid_for = got.values().map(|guard| guard.hold.valid_for()).min().unwrap_or_default();
        sleep((valid_for / 4).clamp(Duration::from_millis(20), Duration::from_millis(500))).await;
    }
}

impl Gathering<'_> {
    /// The call, for its log lines.
    pub fn who(&self) -> Who<'_> {
        self.entry.who(self.terms(), false)
    }

    fn terms(&self) -> &str {
        self.locks.first().map_or("", EngineLock::terms)
    }

    /// The owner's turn: one of its calls at a time acquires the lock.
    pub async fn turn(&self) -> OwnersTurn {
        self.entry.turn().await
    }

    /// `None`: another call of this owner waits behind others.
    pub async fn turn_in_time(&self) -> Result<Option<OwnersTurn>, LockError> {
        let runner = &self.quorum.nodes.context.runner;
        if self.entry.is_queueing() {
            return Ok(None);
        }
        match self.entry.turn_in_time(runner.limit()).await {
            Some(turn) => Ok(Some(turn)),
            None if self.entry.is_queueing() => Ok(None),
            None => Err(LockError::Unreachable(no_answer_yet())),
        }
    }

    /// Waits for the lock, without an end.
    pub async fn wait(&self) -> Result<Taken, LockError> {
        let nodes = &self.quorum.nodes;
        // If no other client is known to want it, it is usually free, and one round trip is enough.
        if self.quorum.owners.has_one_owner(&self.entry.keys.lock, |hold| hold.ended().is_none())
            && !self.quorum.contention.is_likely(&self.entry.keys.name)
        {
            match self.try_once().await? {
                RoundEnd::Held(taken) => return Ok(taken),
                RoundEnd::Busy => self.quorum.contention.seen(&self.entry.keys.name),
                RoundEnd::Failed => {}
            }
        }
        let (_waiting, _queueing) = (Waiting::begin(nodes, &self.entry.keys), self.entry.queueing());
        let mut backoff = self.quorum.nodes.context.backoff();
        loop {
            let changed = nodes.changed.notified();
            if let RoundEnd::Held(taken) = self.wait_once().await? {
                return Ok(taken);
            }
            // Q6: clients that fail together do not come back in step.
            tokio::select! {
                // A fixed order, so that a simulated run can be repeated.
                biased;
                () = backoff.pause() => {}
                () = changed, if nodes.usable().len() < nodes.majority() => {}
            }
        }
    }

    /// Takes it if it is free. `None`: others have it.
    pub async fn take(&self) -> Result<Option<Taken>, LockError> {
        match self.try_once().await? {
            RoundEnd::Held(taken) => Ok(Some(taken)),
            RoundEnd::Busy => Ok(None),
            RoundEnd::Failed => Err(self.unreachable()),
        }
    }

    /// For a caller whose time is over: only seen contention is reported as `Timeout` (decision 42).
    pub fn out_of_time(&self) -> LockError {
        let nodes = &self.quorum.nodes;
        if nodes.usable().len() < nodes.majority() {
            return self.unreachable();
        }
        let is_behind_others = || self.locks.iter().any(|lock| lock.is_behind_others(self.caller.owner));
        if self.told.is_of_others() || is_behind_others() {
            return LockError::Timeout;
        }
        LockError::Unreachable(self.told.get().unwrap_or_else(no_answer_yet))
    }

    /// Too few nodes serve.
    pub fn unreachable(&self) -> LockError {
        let nodes = &self.quorum.nodes;
        let (usable, all, majority) = (nodes.usable().len(), nodes.all.len(), nodes.majority());
        let (frozen_for, twins, last) =
            (nodes.frozen_for(), nodes.twins(), self.told.get().or_else(|| nodes.why_skipped()));
        LockError::Unreachable(Arc::new(NoQuorum { usable, all, majority, frozen_for, twins, last }))
    }

    /// Asks all nodes once. Two calls at the same instant may split the nodes, and both end without a majority.
    async fn try_once(&self) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        let usable = nodes.usable();
        if usable.len() < nodes.majority() {
            return Ok(RoundEnd::Failed);
        }
        let RoundResults { got, busy } = self.try_all(&usable, nodes.token_now(&usable)).await?;
        // Not past the waiters at the gate, although the others are free (P3).
        let is_open = busy.is_none_or(|busy| usable.first() != Some(&busy));
        if got.len() >= nodes.majority() && is_open {
            return self.form(got).await;
        }
        let is_busy = busy.is_some();
        if !got.is_empty() {
            tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, got = got.len(), "split vote at once: others have the first server, or too many");
        }
        self.quorum.release(got.into_values()).await;
        Ok(if is_busy { RoundEnd::Busy } else { RoundEnd::Failed })
    }

    /// Q1: waits at the first node that can be used, and takes the others.
    async fn wait_once(&self) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        let (mut got, mut from) = (BTreeMap::new(), 0);
        self.told.begin_round();
        // Read again after each wait, which may have been long.
        while let Some(at) = nodes.usable().into_iter().find(|index| *index >= from)
            && nodes.usable().len() >= nodes.majority()
            && is_whole(&got)
        {
            from = at + 1;
            // If this node is lost or refuses the name, the call waits at the next one.
            let Some(guard) = self.wait_at(at, &got).await? else { continue };
            self.told.served_by(at);
            if guard.hold.was_queued {
                // It may have been a long wait.
                self.told.begin_round();
                self.quorum.contention.seen(&self.entry.keys.name);
                self.told.of_others();
            }
            got.insert(at, guard);
            let above: Vec<_> = nodes.usable().into_iter().filter(|index| *index > at).collect();
            keep(&got);
            let proposed = got.values().map(EngineGuard::token).max().unwrap_or(0);
            let round = self.try_all(&above, proposed).await?;
            got.extend(round.got);
            if got.len() >= nodes.majority() {
                return self.form(got).await;
            }
            let Some(busy) = round.busy else {
                tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, got = got.len(), "too many servers are out");
                break;
            };
            // Q2: a waiter holds nothing above. Otherwise two calls that came in by different gates could wait for each
            // other.
            let above = got.split_off(&busy);
            if !above.is_empty() {
                tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, given_back = above.len(), "split vote after a wait: others have too many servers");
            }
            self.quorum.release(above.into_values()).await;
            from = busy;
        }
        self.quorum.release(got.into_values()).await;
        Ok(RoundEnd::Failed)
    }

    /// Waits in the queue of one node, and keeps what it has at others. `None`: the node can no longer be used, or one of the
    /// others is lost.
    async fn wait_at(&self, index: usize, got: &Got) -> Result<Option<EngineGuard>, LockError> {
        let Some(lock) = self.locks.get(index) else { return Ok(None) };
        // Dropped, the call leaves the queue (R9).
        let mut locking = pin!(lock.acquire(self.caller, true, 0, None));
        tokio::select! {
            biased;
            outcome = &mut locking => outcome.or_else(|error| self.note(index, error).map(|()| None)),
            () = self.quorum.nodes.lost(index) => {
                // Asked while the call is in the queue.
                if lock.is_behind_others(self.caller.owner) {
                    self.told.of_others();
                }
                Ok(None)
            }
            // At the gate there is nothing to keep.
            () = keep_on(got), if !got.is_empty() => Ok(None),
        }
    }

    /// Records an error that another node may not have; returns an error that ends the call as `Err`.
    fn note(&self, index: usize, error: LockError) -> Result<(), LockError> {
        let nodes = &self.quorum.nodes;
        match error {
            LockError::Unreachable(cause) => self.told.set(cause),
            // The others are no majority.
            LockError::Refused(_) if self.told.refused_by(index) > nodes.all.len() - nodes.majority() => {
                return Err(error);
            }
            LockError::Refused(refusal) => self.told.set(Arc::new(refusal)),
            // This owner's own hold on that node is over.
            LockError::Lost => {}
            error => return Err(error),
        }
        Ok(())
    }

    fn suspect(&self, index: usize) {
        if let Some(cause) = self.quorum.nodes.suspect(index, &self.entry.keys) {
            self.told.set(cause);
        }
    }

    /// Tries these nodes at the same time. A node without an answer in time is skipped (Q10); its request leaves when
    /// it is dropped (Q6, R9). `proposed`: the token that they are to give, where they can (Q3).
    async fn try_all(&self, indices: &[usize], proposed: u64) -> Result<RoundResults, LockError> {
        let trying = indices.iter().filter_map(|index| {
            let lock = self.locks.get(*index)?;
            Some(async move { (*index, self.try_at(*index, lock, proposed).await) })
        });
        let (mut round, mut failed) = (RoundResults::default(), None);
        for (index, outcome) in join_all(trying).await {
            if let Some(Ok(_)) = outcome {
                self.told.served_by(index);
            }
            match outcome {
                Some(Ok(Some(guard))) => drop(round.got.insert(index, guard)),
                Some(Ok(None)) => {
                    self.told.of_others();
                    round.busy.get_or_insert(index);
                }
                Some(Err(error)) => failed = self.note(index, error).err().or(failed),
                None => {}
            }
        }
        // After all outcomes: dropping what was got releases it.
        failed.map_or(Ok(round), Err)
    }

    /// `None`: no answer in time.
    async fn try_at(&self, index: usize, lock: &EngineLock, proposed: u64) -> Option<Tryout> {
        let nodes = &self.quorum.nodes;
        // What this owner has released before comes first, and is no part of the time that the node has (Q10).
        if timeout(nodes.node_timeout, lock.own_turn(self.caller.owner)).await.is_err() {
            self.told.set(no_answer_yet());
            nodes.doubt(index, &self.entry.keys);
            return None;
        }
        let answer = timeout(nodes.node_timeout, lock.acquire(self.caller, false, proposed, None)).await;
        if answer.is_err() {
            self.suspect(index);
        }
        answer.ok()
    }

    /// Q3, Q4: a hold on those nodes that count.
    async fn form(&self, got: Got) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        // None of them was raised before: what this owner has released is never entered again, so each is a new hold.
        let token = got.values().map(EngineGuard::token).max().unwrap_or(0);
        // If all nodes gave the same token, as the client had asked, there is nothing to raise.
        let is_given_alike = got.values().all(|guard| guard.token() == token);
        let raised = if is_given_alike { got } else { self.raise(got, token).await };
        let (counting, others): (Vec<_>, Vec<_>) = raised.into_iter().partition(|(_, guard)| guard.hold.is_valid());
        let counting: Vec<_> = counting.into_iter().map(|(index, guard)| NodeGuard { index, guard }).collect();
        // A node that does not count is not held for nothing.
        drop(others);
        if counting.len() < nodes.majority() {
            self.quorum.release(counting.into_iter().map(|node| node.guard)).await;
            return Ok(RoundEnd::Failed);
        }
        let hold = Arc::new(QuorumHold {
            entry: self.entry.clone(),
            terms: self.terms().into(),
            token,
            began: now(),
            holding: Holding::begin(self.metrics.clone()),
            majority: nodes.majority(),
            all: nodes.clone(),
            nodes: counting.iter().map(|node| NodeHold { index: node.index, hold: node.guard.hold.clone() }).collect(),
            shares: AtomicUsize::new(1),
            over: CancellationToken::new(),
            loss: OnceLock::new(),
        });
        tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, token, nodes = ?hold.indices(), "has a majority");
        for node in &hold.nodes {
            let whole = Arc::downgrade(&hold);
            // Each is a new hold, which is a part of nothing else.
            let _ = node.hold.at_end.set(Box::new(move || whole.upgrade().into_iter().for_each(|whole| whole.look())));
        }
        // A part that ended before its `at_end` was set has called nothing.
        hold.look();
        self.entry.set_hold(&hold);
        Ok(RoundEnd::Held((GuardShare::first(hold), counting)))
    }

    /// Raises all of them to this token. Guards whose node did not acknowledge it are released.
    async fn raise(&self, got: Got, token: u64) -> Got {
        let nodes = &self.quorum.nodes;
        let raising = got.into_iter().map(|(index, guard)| async move {
            // Also at the node that gave it: the answer confirms that no force_unlock has ended it there.
            let raised = timeout(nodes.node_timeout, requests::raise(&guard.hold, token)).await;
            (index, guard, raised)
        });
        let mut acknowledged = BTreeMap::new();
        for (index, guard, raised) in join_all(raising).await {
            match raised {
                Ok(Ok(true)) => drop(acknowledged.insert(index, guard)),
                // Dropping it releases it.
                Ok(_) => {}
                Err(_) => self.suspect(index),
            }
        }
        acknowledged
    }

    /// The hold of this owner, while it has guards.
    pub fn held(&self) -> Option<Arc<QuorumHold>> {
        self.entry.hold().filter(|hold| !hold.is_given_back())
    }

    /// Q11: one more guard on the nodes of a hold. `None`: too few of them answer now, or its last guard has ended.
    pub async fn reenter(&self, hold: &Arc<QuorumHold>) -> Result<Option<Taken>, LockError> {
        let nodes = &self.quorum.nodes;
        // If it has ended, a new hold would have no part in this one (Q10).
        let valid: Vec<_> = hold.nodes.iter().filter(|node| node.hold.is_valid()).collect();
        let served: Vec<_> = valid.iter().copied().filter(|node| nodes.is_usable(node.index)).collect();
        // Where too few can be used, one may be back before its time is over.
        let entered = if served.len() >= hold.majority { served } else { valid };
        let locking = entered.into_iter().filter_map(|node| {
            let lock = self.locks.get(node.index)?;
            // Never waits: another call of this owner may release it all meanwhile, and a call that queues at several
            // nodes may be served at some of them past the waiters at the gate (Q1).
            Some(async move { (node, timeout(nodes.node_timeout, lock.acquire(self.caller, false, 0, None)).await) })
        });
        let mut guards = Vec::new();
        for (node, outcome) in join_all(locking).await {
            match outcome {
                // Another token: it has ended meanwhile, and this is a new one.
                Ok(Ok(Some(guard))) if guard.token() == node.hold.token => {
                    guards.push(NodeGuard { index: node.index, guard });
                }
                Ok(_) => {}
                // Asked first, as the call may only wait for a release of this owner (Q10).
                Err(_) => nodes.doubt(node.index, &self.entry.keys),
            }
        }
        // Q4: one may have been lost while another one had no answer.
        guards.retain(|node| node.guard.hold.is_valid());
        let is_whole = guards.len() >= hold.majority && hold.is_valid();
        // Counted only now: a call that rests has no part in what becomes of the hold.
        if let Some(share) = is_whole.then(|| GuardShare::of(hold.clone())).flatten() {
            return Ok(Some((share, guards)));
        }
        self.quorum.release(guards.into_iter().map(|node| node.guard)).await;
        if hold.loss().is_some() { Err(LockError::Lost) } else { Ok(None) }
    }
}
