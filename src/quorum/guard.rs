//! The guard of a hold on a quorum, and its release.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::keys::Keys;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use super::context::Quorum;
use super::error::TooFewAnswers;
use super::hold::{GuardShare, NodeGuard, QuorumHold};
use crate::driver::outcome::{HoldError, Loss, UnlockError, Unlocked};

/// One guard of a hold on a majority of the servers. Dropping it releases it in the background.
pub struct QuorumGuard {
    quorum: Arc<Quorum>,
    share: GuardShare,
}

impl QuorumGuard {
    pub fn new(quorum: Arc<Quorum>, share: GuardShare) -> Self {
        if share.hold.over.is_cancelled() {
            // The hold was lost just before, when it had no guard, and was reported as released.
            let _ = share.hold.loss.set(Loss::Expired);
        }
        Self { quorum, share }
    }

    pub fn hold(&self) -> &Arc<QuorumHold> {
        &self.share.hold
    }

    /// Releases the guard at all its servers, and waits for a majority of answers, for as long as a release may take.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let (quorum, hold) = (self.quorum.clone(), self.share.hold.clone());
        // Before the release, which ends the holds too.
        let (loss, until) = (hold.loss(), quorum.forgotten_at(&hold));
        let releasing = pin!(release(&quorum, &hold, self.share.end()));
        let outcomes = quorum.drive(releasing).await.ok_or(UnlockError::RuntimeGone { until })?;
        match loss {
            Some(loss) => Err(UnlockError::Lost(loss)),
            None => together(outcomes, &hold, until),
        }
    }

    /// Sets a new lease from now on, at all servers that the client can reach. Fails unless a majority has it.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        let mut extending: FuturesUnordered<_> = self.share.extends(lease).into_iter().collect();
        let (mut done, mut failed, mut other) = (0, Vec::new(), None);
        while let Some(outcome) = extending.next().await {
            match outcome {
                Ok(()) => done += 1,
                Err(HoldError::Request(error)) => failed.push(error),
                Err(error) => other = Some(error),
            }
            if done >= self.share.hold.majority {
                // Does not wait for the others.
                self.quorum.nodes.context.spawn(async move { while extending.next().await.is_some() {} });
                return Ok(());
            }
        }
        let failed = TooFewAnswers::error(failed, done, self.share.hold.majority);
        let loss = self.share.hold.loss().map(HoldError::Lost);
        loss.or(failed.map(HoldError::Request)).or(other).map_or(Ok(()), Err)
    }

    /// Opens the hold's tracing span.
    pub fn show(&self) {
        let hold = self.hold();
        hold.holding.show(&hold.who(), hold.token);
    }

    /// The servers where this guard has a valid lease, by their places in the list. A nested guard goes without servers
    /// that were unusable when it began.
    pub fn servers(&self) -> Vec<usize> {
        let valid = self.share.hold.nodes.iter().filter(|node| node.hold.is_valid()).map(|node| node.index);
        valid.filter(|index| self.share.is_at(*index)).collect()
    }
}

type ReleaseOutcome = Result<Unlocked, UnlockError>;

/// Waits a short time for all answers, and for a majority as long as a release may take. A dropped release goes on in
/// the background.
async fn release(quorum: &Quorum, hold: &QuorumHold, guards: Vec<NodeGuard>) -> Vec<ReleaseOutcome> {
    let (open, waited_for) = (FuturesUnordered::new(), BTreeSet::new());
    let mut releasing = Releasing { quorum, keys: &hold.entry.keys, open, waited_for, outcomes: Vec::new() };
    releasing.begin(guards);
    hold.look();
    releasing.answers(hold.majority).await;
    releasing.outcomes
}

/// Releases under way.
struct Releasing<'a> {
    quorum: &'a Quorum,
    keys: &'a Arc<Keys>,
    open: FuturesUnordered<BoxFuture<'static, (usize, ReleaseOutcome)>>,
    /// The nodes whose releases are not late yet.
    waited_for: BTreeSet<usize>,
    outcomes: Vec<ReleaseOutcome>,
}

impl Releasing<'_> {
    fn begin(&mut self, guards: Vec<NodeGuard>) {
        // Q7: the first node is released last.
        for NodeGuard { index, guard } in guards.into_iter().rev() {
            // Waits for a server that is down only while a majority is missing: that server may be back in a moment.
            if self.quorum.nodes.is_usable(index) {
                self.waited_for.insert(index);
            }
            self.open.push(async move { (index, guard.unlock().await) }.boxed());
        }
        // A release begins with its first poll.
        while let Some(Some(answer)) = self.open.next().now_or_never() {
            self.answered(answer);
        }
    }

    fn answered(&mut self, (index, outcome): (usize, ReleaseOutcome)) {
        self.waited_for.remove(&index);
        self.outcomes.push(outcome);
    }

    /// Waits for all answers for `node_timeout`, and longer only until `needed` have confirmed the same.
    async fn answers(&mut self, needed: usize) {
        let nodes = &self.quorum.nodes;
        let mut patience = pin!(sleep(nodes.node_timeout));
        while !self.waited_for.is_empty() || self.agree() < needed {
            tokio::select! {
                biased;
                answer = self.open.next() => {
                    let Some(answer) = answer else { return };
                    self.answered(answer);
                }
                () = &mut patience, if !self.waited_for.is_empty() => {
                    // Probes the nodes first: a release may only wait for the turn of its owner, whose other call asks
                    // for the lock again. If a node does not answer the probe, the next calls skip it (Q10).
                    for index in std::mem::take(&mut self.waited_for) {
                        nodes.doubt(index, self.keys);
                    }
                }
            }
        }
    }

    /// How many have confirmed the same: that the lock is free there, or that the owner still has it.
    fn agree(&self) -> usize {
        let confirmed: Vec<_> = self.outcomes.iter().flatten().collect();
        let freed = confirmed.iter().filter(|unlocked| ***unlocked == Unlocked::Freed).count();
        freed.max(confirmed.len() - freed)
    }
}

/// The common outcome for a hold that was not lost before.
fn together(outcomes: Vec<ReleaseOutcome>, hold: &QuorumHold, until: Instant) -> ReleaseOutcome {
    let (all, majority) = (hold.nodes.len(), hold.majority);
    let confirmed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok().copied()).collect();
    if confirmed.len() >= majority {
        let holds = confirmed.iter().filter_map(|unlocked| match unlocked {
            Unlocked::StillHeld(holds) => Some(*holds),
            _ => None,
        });
        // A nested call may have entered it at a minority, and not be polled.
        let is_freed = confirmed.len() - holds.clone().count() >= majority;
        return Ok(holds.max().filter(|_| !is_freed).map_or(Unlocked::Freed, Unlocked::StillHeld));
    }
    let errors = outcomes.into_iter().filter_map(Result::err);
    let (losses, others): (Vec<_>, Vec<_>) = errors.partition(|error| matches!(error, UnlockError::Lost(_)));
    let cause = || Arc::new(TooFewAnswers { confirmed: confirmed.len(), majority, last: None });
    Err(match losses.first() {
        // Only if the rest is no majority: a server without an answer may have held it until now.
        Some(loss) if all < majority + losses.len() => loss.clone(),
        _ => others.into_iter().next().unwrap_or_else(|| UnlockError::Unknown { until, cause: cause() }),
    })
}
