//! Takes the lock: rules Q1 to Q6.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fairlock_proto::effect::Way;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::context::Quorum;
use super::error::NoQuorum;
use super::hold::{Entry, GuardShare, NodeGuard, NodeHold, QuorumHold, whole_millis};
use super::nodes::Waiting;
use super::owners::OwnersTurn;
use crate::driver::guard::DrivenGuard;
use crate::driver::limit::{is_only_late, no_answer_yet};
use crate::driver::lock::{Caller, DrivenLock, IfBusy};
use crate::driver::observe::{Holding, Who};
use crate::driver::outcome::LockError;
use crate::driver::tried::{Busy, HeldBy, Tried};
use crate::metrics::LockMetrics;
use crate::store::clock::now;
use crate::store::error::Cause;
use crate::sync::Mutex;

/// One call.
pub struct Gathering {
    pub quorum: Arc<Quorum>,
    /// The lock at each node.
    pub locks: Arc<[DrivenLock]>,
    pub caller: Caller,
    /// The caller's entry. In a scope, the caller may re-enter its hold.
    pub entry: Arc<Entry>,
    /// Errors for a caller that runs out of time.
    pub told: ErrorsMet,
    pub metrics: LockMetrics,
}

/// The errors that a call has met so far.
#[derive(Default)]
pub struct ErrorsMet {
    /// Why a node did not serve.
    cause: Mutex<Option<Cause>>,
    /// Others have the lock, or were first.
    others: AtomicBool,
    /// The nodes that refuse until someone changes something.
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

    /// Records that a node refuses for good. Returns how many nodes do.
    fn refused_by(&self, index: usize) -> usize {
        let mut refusing = self.refusing.lock();
        refusing.insert(index);
        refusing.len()
    }

    fn served_by(&self, index: usize) {
        self.refusing.lock().remove(&index);
    }

    /// Forgets the refusing nodes: someone may have fixed them since.
    fn begin_round(&self) {
        self.refusing.lock().clear();
    }

    fn of_others(&self) {
        self.others.store(true, Ordering::Relaxed);
    }
}

/// The outcome of one try.
enum RoundEnd {
    Held(GuardShare),
    /// Others have the lock.
    Busy(Busy),
    /// Too few nodes serve, or one went away during the try.
    Failed,
}

/// The guards at some nodes.
type Got = BTreeMap<usize, DrivenGuard>;

/// The results of one round of requests.
#[derive(Default)]
struct RoundResults {
    got: Got,
    /// The first node where others have the lock.
    busy: Option<usize>,
    /// The holder at one of the busy nodes.
    holder: Option<Box<HeldBy>>,
}

/// Whether all of these guards are still valid.
fn is_whole(got: &Got) -> bool {
    got.values().all(|guard| guard.hold().is_valid())
}

/// Resolves when one of these guards loses its hold; never, if there are none.
async fn one_ended(got: &Got) {
    if got.is_empty() {
        return pending().await;
    }
    select_all(got.values().map(|guard| guard.hold().until_ended().boxed())).await;
}

impl Gathering {
    /// The call, for its log lines.
    pub fn who(&self) -> Who<'_> {
        self.entry.who(self.terms())
    }

    fn terms(&self) -> &str {
        self.locks.first().map_or("", DrivenLock::terms)
    }

    /// The lease in milliseconds, the same at each node.
    fn lease(&self) -> u64 {
        let lease = self.locks.first().and_then(|lock| lock.lease.as_ref().ok());
        lease.map_or(0, |lease| whole_millis(lease.time))
    }

    /// The owner's turn: only one of its calls at a time acquires the lock.
    pub async fn turn(&self) -> OwnersTurn {
        self.entry.turn().await
    }

    /// `None`: another call of this owner waits in the queue.
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

    /// Waits for the lock without a limit.
    pub async fn wait(&self) -> Result<GuardShare, LockError> {
        let nodes = &self.quorum.nodes;
        // If no other client seems to want the lock, it is usually free, and one round trip is enough.
        if self.quorum.owners.has_one_owner(&self.entry.keys.lock, |hold| hold.ended().is_none())
            && !self.quorum.contention.is_likely(&self.entry.keys.name)
        {
            match self.try_once().await? {
                RoundEnd::Held(taken) => return Ok(taken),
                RoundEnd::Busy(_) => self.quorum.contention.seen(&self.entry.keys.name),
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
            // Q6: clients that fail together must not retry in step.
            tokio::select! {
                // A fixed order, so that a simulated run can be repeated.
                biased;
                () = backoff.pause() => {}
                () = changed, if nodes.usable().len() < nodes.majority() => {}
            }
        }
    }

    /// Takes the lock if it is free.
    pub async fn take(&self) -> Result<Tried<GuardShare>, LockError> {
        match self.try_once().await? {
            RoundEnd::Held(taken) => Ok(Tried::Acquired(taken)),
            RoundEnd::Busy(busy) => Ok(Tried::Busy(busy)),
            RoundEnd::Failed => Err(self.unreachable()),
        }
    }

    /// The error for a caller whose time has run out: only contention that it has seen becomes `Timeout` (decision 42).
    pub fn out_of_time(&self) -> LockError {
        let nodes = &self.quorum.nodes;
        if nodes.usable().len() < nodes.majority() {
            return self.unreachable();
        }
        let is_behind_others = || self.locks.iter().any(|lock| lock.is_behind_others(self.caller.owner));
        if self.told.is_of_others() || is_behind_others() {
            return LockError::Timeout { holder: None };
        }
        LockError::Unreachable(self.told.get().unwrap_or_else(no_answer_yet))
    }

    /// The error if too few nodes serve.
    pub fn unreachable(&self) -> LockError {
        let nodes = &self.quorum.nodes;
        let (usable, all, majority) = (nodes.usable().len(), nodes.all.len(), nodes.majority());
        let (frozen_for, twins, last) =
            (nodes.frozen_for(), nodes.twins(), self.told.get().or_else(|| nodes.why_skipped()));
        LockError::Unreachable(Arc::new(NoQuorum { usable, all, majority, frozen_for, twins, last }))
    }

    /// Tries all nodes once. Two calls at the same instant may split the nodes, and both end without a majority.
    async fn try_once(&self) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        let usable = nodes.usable();
        if usable.len() < nodes.majority() {
            return Ok(RoundEnd::Failed);
        }
        let RoundResults { got, busy, holder } = self.try_all(&usable, nodes.token_now(&usable)).await?;
        // Must not overtake the waiters at the gate, even if the other nodes are free (P3).
        let is_open = busy.is_none_or(|busy| usable.first() != Some(&busy));
        if got.len() >= nodes.majority() && is_open {
            return self.form(got).await;
        }
        let is_busy = busy.is_some();
        if !got.is_empty() {
            tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, got = got.len(), "split vote at once: others have the first server, or too many");
        }
        self.quorum.release(got.into_values()).await;
        Ok(if is_busy { RoundEnd::Busy(Busy { holder }) } else { RoundEnd::Failed })
    }

    /// Q1: waits at the first usable node, then takes the others.
    async fn wait_once(&self) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        let (mut got, mut from) = (BTreeMap::new(), 0);
        self.told.begin_round();
        // Looks again after each wait, which may have been long.
        while let Some(at) = nodes.usable().into_iter().find(|index| *index >= from)
            && nodes.usable().len() >= nodes.majority()
            && is_whole(&got)
        {
            from = at + 1;
            // If the call loses this node, or the node refuses the name, the call waits at the next one.
            let Some(guard) = self.wait_at(at, &got).await? else { continue };
            self.told.served_by(at);
            if guard.way == Way::HandedOver {
                // The wait may have been long.
                self.told.begin_round();
                self.quorum.contention.seen(&self.entry.keys.name);
                self.told.of_others();
            }
            got.insert(at, guard);
            let above: Vec<_> = nodes.usable().into_iter().filter(|index| *index > at).collect();
            let proposed = got.values().map(DrivenGuard::token).max().unwrap_or(0);
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

    /// Waits in the queue of one node, and keeps the guards at the others. `None`: the node became unusable, or another
    /// guard lost its hold.
    async fn wait_at(&self, index: usize, got: &Got) -> Result<Option<DrivenGuard>, LockError> {
        let Some(lock) = self.locks.get(index) else { return Ok(None) };
        // Dropping this makes the call leave the queue (R9).
        let mut locking = pin!(lock.acquire(self.caller, IfBusy::Wait(None)));
        tokio::select! {
            biased;
            outcome = &mut locking => outcome.map_or_else(|error| self.note(index, error).map(|()| None), |tried| Ok(tried.into_result().ok())),
            () = self.quorum.nodes.lost(index) => {
                // Checks this before the call leaves the queue.
                if lock.is_behind_others(self.caller.owner) {
                    self.told.of_others();
                }
                Ok(None)
            }
            () = one_ended(got) => Ok(None),
        }
    }

    /// Records an error that another node may not have; returns an error that ends the call as `Err`.
    fn note(&self, index: usize, error: LockError) -> Result<(), LockError> {
        let nodes = &self.quorum.nodes;
        match error {
            LockError::Unreachable(cause) => self.told.set(cause),
            // The other nodes are no majority.
            LockError::Refused(_) if self.told.refused_by(index) > nodes.all.len() - nodes.majority() => {
                return Err(error);
            }
            LockError::Refused(refusal) => self.told.set(Arc::new(refusal)),
            // This owner's own hold on that node has ended.
            LockError::Lost => {}
            error => return Err(error),
        }
        Ok(())
    }

    /// The node did not answer in time.
    fn suspect(&self, index: usize, cause: Cause) {
        let nodes = &self.quorum.nodes;
        let cause = if is_only_late(&cause) { nodes.no_answer() } else { cause };
        self.told.set(cause.clone());
        nodes.suspect(index, &self.entry.keys, cause);
    }

    /// Tries these nodes at the same time. Skips a node that does not answer in time (Q10); its request leaves when it
    /// is dropped (Q6, R9). `proposed`: the token that the nodes should give if they can (Q3).
    async fn try_all(&self, indices: &[usize], proposed: u64) -> Result<RoundResults, LockError> {
        let timeout = self.quorum.nodes.node_timeout;
        let trying = indices.iter().filter_map(|index| {
            let lock = self.locks.get(*index)?;
            // An earlier release of this owner goes first, and its time does not count against the node (Q10).
            let was_releasing = lock.is_releasing(self.caller.owner);
            Some(async move { (*index, was_releasing, lock.try_at_node(self.caller, proposed, timeout).await) })
        });
        let (mut round, mut failed) = (RoundResults::default(), None);
        for (index, was_releasing, outcome) in join_all(trying).await {
            if outcome.is_ok() {
                self.told.served_by(index);
            }
            match outcome {
                Ok(Tried::Acquired(guard)) => drop(round.got.insert(index, guard)),
                Ok(Tried::Busy(Busy { holder })) => {
                    self.told.of_others();
                    round.busy.get_or_insert(index);
                    round.holder = round.holder.or(holder);
                }
                // The time ran out: an error that may pass does not end a call earlier.
                Err(LockError::Unreachable(cause)) if was_releasing => {
                    self.told.set(cause);
                    self.quorum.nodes.doubt(index, &self.entry.keys);
                }
                Err(LockError::Unreachable(cause)) => self.suspect(index, cause),
                Err(error) => failed = self.note(index, error).err().or(failed),
            }
        }
        // After all outcomes, because dropping the guards releases them.
        failed.map_or(Ok(round), Err)
    }

    /// Q3, Q4: forms a hold on the nodes that count.
    async fn form(&self, got: Got) -> Result<RoundEnd, LockError> {
        let nodes = &self.quorum.nodes;
        // None of these was raised before: no call re-enters a hold that its owner has released, so each is a new hold.
        let token = got.values().map(DrivenGuard::token).max().unwrap_or(0);
        // If all nodes gave the same token, as the client asked, none needs a raise.
        let is_given_alike = got.values().all(|guard| guard.token() == token);
        let raised = if is_given_alike { got } else { self.raise(got, token).await };
        let (counting, others): (Vec<_>, Vec<_>) = raised.into_iter().partition(|(_, guard)| guard.hold().is_valid());
        let counting: Vec<_> = counting.into_iter().map(|(index, guard)| NodeGuard { index, guard }).collect();
        // Releases the nodes that do not count.
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
            nodes: counting
                .iter()
                .map(|node| NodeHold { index: node.index, hold: node.guard.hold().clone() })
                .collect(),
            longest_lease: AtomicU64::new(self.lease()),
            guards: Mutex::default(),
            over: CancellationToken::new(),
            loss: OnceLock::new(),
        });
        tracing::debug!(target: "fairlock::quorum", name = %self.entry.keys.name, token, nodes = ?hold.indices(), "has a majority");
        for node in &hold.nodes {
            let whole = Arc::downgrade(&hold);
            node.hold.at_end(move || whole.upgrade().into_iter().for_each(|whole| whole.look()));
        }
        let share = GuardShare::first(hold.clone(), counting);
        // A part that ended before the loop set its `at_end` has called nothing.
        hold.look();
        self.entry.set_hold(&hold);
        Ok(RoundEnd::Held(share))
    }

    /// Raises all nodes to this token. Releases the guards whose node did not acknowledge it.
    async fn raise(&self, got: Got, token: u64) -> Got {
        let nodes = &self.quorum.nodes;
        let raising = got.into_iter().map(|(index, guard)| async move {
            // Asks even the node that gave this token: its answer confirms that no force_unlock has ended the hold
            // there.
            let lock = self.locks.get(index);
            let raising = async { lock?.raise(guard.hold(), token).await.ok() };
            (index, timeout(nodes.node_timeout, raising).await, guard)
        });
        let mut acknowledged = BTreeMap::new();
        for (index, raised, guard) in join_all(raising).await {
            match raised {
                Ok(Some(true)) => drop(acknowledged.insert(index, guard)),
                // Dropping it releases it.
                Ok(_) => {}
                Err(_) => self.suspect(index, nodes.no_answer()),
            }
        }
        acknowledged
    }

    /// This owner's hold, while it has guards.
    pub fn held(&self) -> Option<Arc<QuorumHold>> {
        self.entry.hold().filter(|hold| !hold.is_given_back())
    }

    /// Q11: adds a guard on the nodes of a hold. `None`: too few of them answer now, or the last guard has ended.
    pub async fn reenter(&self, hold: &Arc<QuorumHold>) -> Result<Option<GuardShare>, LockError> {
        let nodes = &self.quorum.nodes;
        // If a node's hold has ended, a new one would be no part of this hold (Q10).
        let valid: Vec<_> = hold.nodes.iter().filter(|node| node.hold.is_valid()).collect();
        let served: Vec<_> = valid.iter().copied().filter(|node| nodes.is_usable(node.index)).collect();
        // If too few are usable, one may be back before its time runs out.
        let entered = if served.len() >= hold.majority { served } else { valid };
        let locking = entered.into_iter().filter_map(|node| {
            let lock = self.locks.get(node.index)?;
            // Never waits: another call of this owner may release everything in the meantime, and a call that queues at
            // several nodes may be served at some of them before the waiters at the gate (Q1).
            Some(async move { (node, lock.try_at_node(self.caller, 0, nodes.node_timeout).await) })
        });
        let mut guards = Vec::new();
        for (node, outcome) in join_all(locking).await {
            match outcome {
                // With another token the node's hold has ended in the meantime, and this is a new one.
                Ok(Tried::Acquired(guard)) if guard.token() == node.hold.token => {
                    guards.push(NodeGuard { index: node.index, guard });
                }
                // Probes the node first: the call may only have waited for a release of this owner (Q10).
                Err(LockError::Unreachable(_)) => nodes.doubt(node.index, &self.entry.keys),
                _ => {}
            }
        }
        // Q4: a node may have lost its hold while another one did not answer.
        guards.retain(|node| node.guard.hold().is_valid());
        let is_whole = guards.len() >= hold.majority && hold.is_valid();
        let share = if is_whole { GuardShare::of(hold.clone(), guards) } else { Err(guards) };
        let guards = match share {
            Ok(share) => return Ok(Some(share)),
            Err(guards) => guards,
        };
        self.quorum.release(guards.into_iter().map(|node| node.guard)).await;
        if hold.loss().is_some() { Err(LockError::Lost) } else { Ok(None) }
    }
}
