//! An owner's hold on a majority.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fairlock_proto::slab::{Id, Slab};
use tokio_util::sync::CancellationToken;

use super::nodes::Nodes;
use super::owners::OwnerEntry;
use crate::driver::guard::DrivenGuard;
use crate::driver::hold::DrivenHold;
use crate::driver::observe::{Holding, Lost, Who};
use crate::driver::outcome::{Ended, HoldError, Loss};
use crate::store::clock::now;
use crate::sync::Mutex;

/// One owner at one lock.
pub type Entry = OwnerEntry<QuorumHold>;

/// The hold on one node that counts.
pub struct NodeHold {
    pub index: usize,
    pub hold: Arc<DrivenHold>,
}

/// A hold on a majority of the nodes. Nested guards share it (Q11).
pub struct QuorumHold {
    pub entry: Arc<Entry>,
    /// The terms of the call; see `keys::terms`.
    pub terms: Box<str>,
    pub began: Instant,
    /// Its span and metrics.
    pub holding: Holding,
    /// The fencing token: the greatest token of the nodes when the hold formed (Q3).
    pub token: u64,
    /// How many node holds must be valid.
    pub majority: usize,
    /// All of the client's nodes: later, two of them may lead to one server.
    pub all: Arc<Nodes>,
    /// The holds that count, in the order of the nodes. The client adds none later (Q10).
    pub nodes: Vec<NodeHold>,
    /// The longest lease that the client asked for, in milliseconds.
    pub longest_lease: AtomicU64,
    /// The node guards of each guard. Empty after a loss.
    pub guards: Mutex<Slab<Vec<NodeGuard>>>,
    /// Cancelled when the hold has ended: by a loss, or when a majority of its nodes has confirmed the release.
    pub over: CancellationToken,
    /// Set once: a loss is final, whatever a node answers later.
    pub loss: OnceLock<Loss>,
}

pub struct NodeGuard {
    pub index: usize,
    pub guard: DrivenGuard,
}

/// One guard's share of a hold. Dropping it releases it in the background.
pub struct GuardShare {
    pub hold: Arc<QuorumHold>,
    id: Id,
}

impl GuardShare {
    /// The first share of a new hold.
    pub fn first(hold: Arc<QuorumHold>, guards: Vec<NodeGuard>) -> Self {
        let id = hold.guards.lock().insert(guards);
        Self { hold, id }
    }

    /// One more share. Fails if the last share is gone and a release of the hold has begun.
    pub fn of(hold: Arc<QuorumHold>, guards: Vec<NodeGuard>) -> Result<Self, Vec<NodeGuard>> {
        let id = {
            let mut shares = hold.guards.lock();
            if shares.is_empty() {
                return Err(guards);
            }
            shares.insert(guards)
        };
        Ok(Self { hold, id })
    }

    /// Whether it has a guard on this node.
    pub fn is_at(&self, index: usize) -> bool {
        self.hold.guards.lock().get(self.id).is_some_and(|guards| guards.iter().any(|node| node.index == index))
    }

    /// Asks for a new lease at each node of this share.
    pub fn extends(&self, lease: Duration) -> Vec<impl Future<Output = Result<(), HoldError>> + Send + use<>> {
        self.hold.longest_lease.fetch_max(whole_millis(lease), Ordering::Relaxed);
        let guards = self.hold.guards.lock();
        guards.get(self.id).into_iter().flatten().map(|node| node.guard.extend(lease)).collect()
    }

    /// Ends the share. Returns its node guards, for their release.
    pub fn end(&mut self) -> Vec<NodeGuard> {
        let hold = &self.hold;
        // Before the release, which ends the holds too.
        let loss = hold.loss();
        let (guards, is_last) = {
            let mut shares = hold.guards.lock();
            let Some(guards) = shares.remove(self.id) else { return Vec::new() };
            (guards, shares.is_empty())
        };
        match loss {
            _ if !is_last => {}
            Some(loss) => hold.tell_of_loss(loss),
            None => hold.holding.freed(&hold.who(), hold.token, || hold.held_for()),
        }
        guards
    }
}

impl Drop for GuardShare {
    fn drop(&mut self) {
        // Q7: the first node is released last.
        self.end().into_iter().rev().for_each(drop);
        self.hold.look();
    }
}

pub fn whole_millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

impl QuorumHold {
    pub fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease.load(Ordering::Relaxed))
    }

    /// The m-th largest deadline (Q5): a majority is valid at each instant until then.
    pub fn valid_for(&self) -> Duration {
        let counting = self.nodes.iter().filter(|node| self.counts(node));
        let mut times: Vec<_> = counting.map(|node| node.hold.valid_for()).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let is_lost = self.loss.get().is_some();
        times.get(self.majority - 1).copied().filter(|_| !is_lost).unwrap_or_default()
    }

    /// A node does not count if its name has moved to the server of another node: one server counts once.
    fn counts(&self, node: &NodeHold) -> bool {
        self.all.same_as(node.index).is_none()
    }

    /// The nodes that counted when the hold formed.
    pub fn indices(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.index).collect()
    }

    pub fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    /// How the majority was lost. A node that a nested guard has not re-entered may have been released in the meantime.
    /// So a loss needs both: too few nodes are left, and one of the others lost its hold.
    pub fn loss(&self) -> Option<Loss> {
        if let Some(loss) = self.loss.get() {
            return Some(*loss);
        }
        // A hold that has ended without a loss stays so.
        if self.over.is_cancelled() {
            return None;
        }
        let (mut left, mut losses, mut lost) = (0, 0, None);
        for node in &self.nodes {
            match node.hold.end_by_now() {
                // Its release may stay unanswered for long.
                None if node.hold.live() == 0 => {}
                None if self.counts(node) => left += 1,
                // The hold there belongs to the other node.
                None => {
                    losses += 1;
                    lost = lost.or(Some(Loss::Gone));
                }
                Some(Ended::Lost(loss)) => {
                    losses += 1;
                    // `Forced` wins over a loss at another server.
                    lost = lost.filter(|lost| *lost == Loss::Forced).or(Some(loss));
                }
                Some(Ended::Freed | Ended::Detached) => {}
            }
        }
        // Without guards the rule of the unlock applies: see `together`.
        let is_lost =
            if self.is_given_back() { self.nodes.len() < self.majority + losses } else { left < self.majority };
        lost.filter(|_| is_lost).map(|loss| *self.loss.get_or_init(|| loss))
    }

    /// Whether no guard is left.
    pub fn is_given_back(&self) -> bool {
        self.guards.lock().is_empty()
    }

    /// How the hold ended, if it has. At the deadline of its majority it has, whether anyone notices or not.
    pub fn ended(&self) -> Option<Ended> {
        let loss = self.loss().map(Ended::Lost);
        loss.or_else(|| self.over.is_cancelled().then_some(Ended::Freed))
    }

    pub fn over_token(&self) -> CancellationToken {
        self.over.clone()
    }

    pub async fn until_ended(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.over.cancelled().await;
        }
    }

    /// Records the end of the hold, if it has come. Call it when a node's hold has ended or a guard has dropped its
    /// share at some nodes, which may have been the last of a majority.
    pub fn look(&self) {
        let Some(loss) = self.loss() else {
            // No call enters a hold that has ended, even if the call has a share already. If a node lost its hold, the
            // others decide.
            let is_released = |node: &&NodeHold| matches!(node.hold.end(), Some(Ended::Freed | Ended::Detached));
            if self.nodes.iter().filter(is_released).count() >= self.majority {
                self.over.cancel();
            }
            return;
        };
        self.over.cancel();
        // Otherwise the client would renew the remaining holds while the guard lives, and no other call would get past
        // them. Dropped when the mutex is free.
        let left: Vec<_> = self.guards.lock().iter_mut().flat_map(std::mem::take).collect();
        drop(left);
        self.tell_of_loss(loss);
    }

    /// The number of live guards.
    pub fn live(&self) -> u32 {
        u32::try_from(self.guards.lock().len()).unwrap_or(u32::MAX)
    }

    /// The hold, for its log lines.
    pub fn who(&self) -> Who<'_> {
        self.entry.who(&self.terms)
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
