//! The hold of an owner on a majority.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::nodes::Nodes;
use crate::engine::error::{Ended, Loss};
use crate::engine::guard::EngineGuard;
use crate::engine::hold::Hold;
use crate::engine::observe::{Holding, Lost, Who};
use crate::engine::owners::OwnerEntry;
use crate::store::clock::now;

/// One owner at one lock.
pub type Entry = OwnerEntry<QuorumHold>;

/// The hold on one node that counts.
pub struct NodeHold {
    /// The node.
    pub index: usize,
    pub hold: Arc<Hold>,
}

/// A hold on a majority of the nodes. Nested guards share it (Q11).
pub struct QuorumHold {
    pub entry: Arc<Entry>,
    /// The terms of the call, see `keys::terms`.
    pub terms: Box<str>,
    pub began: Instant,
    /// Its span and metrics.
    pub holding: Holding,
    /// The fencing token: the greatest one of the nodes when it was formed (Q3).
    pub token: u64,
    /// How many have to be valid.
    pub majority: usize,
    /// All of the client's nodes: two of them may lead to one server later.
    pub all: Arc<Nodes>,
    /// The holds that count, in the order of the nodes. None is added later (Q10).
    pub nodes: Vec<NodeHold>,
    /// Guards alive.
    pub shares: AtomicUsize,
    /// Cancelled when it has ended: it is lost, or a majority of its nodes has confirmed the release.
    pub over: CancellationToken,
    /// Set once: a loss is final, whatever a node answers later.
    pub loss: OnceLock<Loss>,
}

/// One guard's share of a hold. Dropped before the per-node guards, so that releasing those is not reported as a loss.
pub struct GuardShare(Arc<QuorumHold>);

impl GuardShare {
    /// The first share of a hold that has just been formed.
    pub fn first(hold: Arc<QuorumHold>) -> Self {
        Self(hold)
    }

    /// One more. `None`: the last one is gone, and the hold is being released.
    pub fn of(hold: Arc<QuorumHold>) -> Option<Self> {
        let more = |shares| if shares == 0 { None } else { Some(shares + 1) };
        hold.shares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        // Made only if it was counted, since dropping it counts it out.
        Some(Self(hold))
    }

    pub fn hold(&self) -> &Arc<QuorumHold> {
        &self.0
    }
}

impl Drop for GuardShare {
    fn drop(&mut self) {
        let hold = &self.0;
        // Before it is released: that ends the holds too.
        let loss = hold.loss();
        if hold.shares.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        match loss {
            Some(loss) => hold.tell_of_loss(loss),
            None => hold.holding.freed(&hold.who(), hold.token, || hold.held_for()),
        }
    }
}

impl QuorumHold {
    /// The m-th largest deadline (Q5): at each instant until then a majority is valid.
    pub fn valid_for(&self) -> Duration {
        let counting = self.nodes.iter().filter(|node| self.counts(node));
        let mut times: Vec<_> = counting.map(|node| node.hold.valid_for()).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let is_lost = self.loss.get().is_some();
        times.get(self.majority - 1).copied().filter(|_| !is_lost).unwrap_or_default()
    }

    /// Not if the node leads to the server of another one by now, since its name has moved: one server counts once.
    fn counts(&self, node: &NodeHold) -> bool {
        self.all.same_as(node.index).is_none()
    }

    /// Which nodes counted when it was formed.
    pub fn indices(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.index).collect()
    }

    pub fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    /// How the majority was lost. A node that a nested guard has not re-entered may have been released meanwhile, so it
    /// counts that too few are left, and that one of the others was lost.
    pub fn loss(&self) -> Option<Loss> {
        if let Some(loss) = self.loss.get() {
            return Some(*loss);
        }
        // Said once, it stays so.
        if self.over.is_cancelled() {
            return None;
        }
        let (mut left, mut losses, mut lost) = (0, 0, None);
        for node in &self.nodes {
            match node.hold.ended() {
                // Its release may have no answer for long.
                None if node.hold.live() == 0 => {}
                None if self.counts(node) => left += 1,
                // There it is the hold of the other node.
                None => {
                    losses += 1;
                    lost = lost.or(Some(Loss::Gone));
                }
                Some(Ended::Lost(loss)) => {
                    losses += 1;
                    // `Forced` wins over the loss of another server.
                    lost = lost.filter(|lost| *lost == Loss::Forced).or(Some(loss));
                }
                Some(Ended::Freed | Ended::Detached) => {}
            }
        }
        // Without guards the rule is that of its unlock: see `together`.
        let is_lost =
            if self.is_given_back() { self.nodes.len() < self.majority + losses } else { left < self.majority };
        lost.filter(|_| is_lost).map(|loss| *self.loss.get_or_init(|| loss))
    }

    /// Whether no guard is left.
    pub fn is_given_back(&self) -> bool {
        self.shares.load(Ordering::Relaxed) == 0
    }

    /// How it has ended, if it has. At the deadline of a majority it has, whether it is noticed or not.
    pub fn ended(&self) -> Option<Ended> {
        let loss = self.loss().map(Ended::Lost);
        loss.or_else(|| self.over.is_cancelled().then_some(Ended::Freed))
    }

    /// Cancelled when it has ended.
    pub fn over_token(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Resolves when it has ended.
    pub async fn until_ended(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.over.cancelled().await;
        }
    }

    /// Notes its end, if it has come: a node's hold has ended, or a guard's share at some nodes was dropped, which may
    /// have been the last of a majority.
    pub fn look(&self) {
        let Some(loss) = self.loss() else {
            // No call enters what has ended, also if it has a share already. Where one was lost, the others decide.
            let is_released = |node: &&NodeHold| matches!(node.hold.ended(), Some(Ended::Freed | Ended::Detached));
            if self.nodes.iter().filter(is_released).count() >= self.majority {
                self.over.cancel();
            }
            return;
        };
        self.over.cancel();
        // Otherwise the watchdog would renew what is left as long as the guard lives, and no other call would get past
        // it.
        self.nodes.iter().for_each(|node| node.hold.lose(loss));
        self.tell_of_loss(loss);
    }

    /// Guards alive.
    pub fn live(&self) -> u32 {
        u32::try_from(self.shares.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// The call that wants this lock and others is polled.
    pub fn keep(&self) {
        self.nodes.iter().for_each(|node| node.hold.keep());
    }

    /// The hold, for its log lines.
    pub fn who(&self) -> Who<'_> {
        self.entry.who(&self.terms, false)
    }

    fn held_for(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    fn tell_of_loss(&self, loss: Loss) {
        if self.holding.lost(|| self.held_for(), loss, true) {
            let lost = Lost { who: self.who(), token: self.token, held: self.held_for(), loss };
            // `close` logs once how many there were.
            if loss == Loss::Closed { lost.debug() } else { lost.warn() }
        }
    }
}

/// A guard on one node.
pub struct NodeGuard {
    pub index: usize,
    pub guard: EngineGuard,
}
