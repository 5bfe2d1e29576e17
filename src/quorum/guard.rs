//! What a holder of a quorum has in hand.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use super::acquire::Taken;
use super::context::{InUse, Quorum};
use super::error::TooFewAnswers;
use super::hold::{NodeGuard, QuorumHold, Share};
use crate::engine::error::{Loss, UnlockError};
use crate::engine::owner::Owner;
use crate::engine::release::{Release, Unlocked};

/// One hold on a majority of the servers. It ends with [`unlock`](Self::unlock), or when it is dropped.
///
/// A watchdog renews the lease at each of its servers. It is valid as long as a majority of all servers has it; a server
/// that is lost meanwhile does not come back into it.
///
/// ```no_run
/// # async fn example(client: fairlock::QuorumClient) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").lock().await?;
/// assert!(guard.is_valid() && guard.nodes().len() >= 2);
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct QuorumGuard {
    quorum: Arc<Quorum>,
    hold: Arc<QuorumHold>,
    /// Gone when it is being given back.
    share: Option<Share>,
    guards: Vec<NodeGuard>,
    in_use: Option<InUse>,
}

impl fmt::Debug for QuorumGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumGuard")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("nodes", &self.nodes())
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

impl QuorumGuard {
    /// What it holds at its servers is renewed in any case.
    #[allow(clippy::unused_self)]
    pub(crate) fn keep(&self) {}

    #[allow(clippy::unused_self)]
    pub(crate) fn complete(&self) {}

    pub(super) fn new(quorum: Arc<Quorum>, in_use: InUse, (share, guards): Taken) -> Self {
        Self { quorum, hold: share.hold().clone(), share: Some(share), guards, in_use: Some(in_use) }
    }

    /// Gives this hold back at all its servers and waits for their answers, for a majority of them as long as a release
    /// may take. One round trip to all of them at the same time.
    ///
    /// [`Unlocked::Freed`]: the lock is free, or the next waiter has it already.
    /// [`Unlocked::StillHeld`]: the owner has more guards.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// use fairlock::Unlocked;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.unlock().await?, Unlocked::Freed);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`UnlockError::Lost`] if the majority was lost before. [`UnlockError::Unknown`] or [`UnlockError::Refused`] if too
    /// few servers have confirmed; the client goes on trying.
    ///
    /// # Cancel safety
    /// Once called, the release is certain: if the future is dropped, the background finishes it.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        // Before anything is given back: that ends the holds too.
        let loss = self.hold.loss();
        let until = self.quorum.forgotten_at();
        let (quorum, hold, releases) = (self.quorum.clone(), self.hold.clone(), self.end());
        let releasing = pin!(release(&quorum, &hold, releases));
        let outcomes = quorum.drive(releasing).await.ok_or(UnlockError::RuntimeGone { until })?;
        match loss {
            Some(loss) => Err(UnlockError::Lost(loss)),
            None => together(outcomes, &hold, until),
        }
    }

    /// It is there, for those who look at spans.
    pub(super) fn show(&self) {
        self.hold.holding.show(&self.hold.who(), self.hold.token);
    }

    /// From here on it is given back, also where no server was told yet: a `close` finds no guard alive.
    fn end(&mut self) -> Vec<NodeRelease> {
        self.share = None;
        // Q7: the first node is told last.
        let guards = std::mem::take(&mut self.guards).into_iter().rev();
        let releases = guards.map(|node| (node.index, node.guard.into_release())).collect();
        self.hold.given_up.notify_waiters();
        releases
    }

    /// The fencing token. It is greater than that of every guard of this lock before it, and the same for all nested
    /// guards. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let first = lock.lock().await?;
    /// let token = first.token();
    /// first.unlock().await?;
    /// assert!(lock.lock().await?.token() > token);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// Whether a majority of the servers surely has the hold at this instant, by the local clock. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// servers[0].shut_down();
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// For how long a majority surely has it if no further renewal succeeds; zero when it is lost. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert!(guard.valid_for() > Duration::from_secs(20));
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// Resolves when the majority is lost, and says how the server was lost that ended it. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?;
    /// assert_eq!(guard.lost().await, fairlock::Loss::Forced);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Which servers this guard has and whose lease is not over, by their place in the list given to
    /// [`connect`](crate::QuorumClient::connect), from 0. A nested guard does without those that cannot be used when it is
    /// taken. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.nodes(), [0, 1, 2]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn nodes(&self) -> Vec<usize> {
        let is_mine = |index: usize| self.guards.iter().any(|node| node.index == index);
        let valid = self.hold.nodes.iter().filter(|node| node.hold.is_valid()).map(|node| node.index);
        valid.filter(|index| is_mine(*index)).collect()
    }

    /// Whose hold it is. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// use fairlock::Owner;
    ///
    /// let me = Owner::new();
    /// let guard = me.scope(async { client.lock("orders:42").lock().await }).await?;
    /// assert_eq!(guard.owner(), me);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.hold.owner
    }

    /// The name of the lock. No round trip.
    ///
    /// ```
    /// # #[cfg(feature = "embedded")] #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [0; 3].map(|_| fairlock::EmbeddedServer::new());
    /// # let client = fairlock::QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// assert_eq!(client.lock("orders:42").lock().await?.name(), "orders:42");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "embedded"))] fn main() {}
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hold.name
    }
}

impl Drop for QuorumGuard {
    fn drop(&mut self) {
        if self.guards.is_empty() {
            return;
        }
        let releases = self.end();
        let (quorum, hold, in_use) = (self.quorum.clone(), self.hold.clone(), self.in_use.take());
        self.quorum.spawn(async move {
            release(&quorum, &hold, releases).await;
            drop(in_use);
        });
    }
}

/// Of the guard on one node.
type NodeRelease = (usize, Release);

type Outcome = Result<Unlocked, UnlockError>;

/// Waits for each of them a short time, and for a majority as long as a release takes. What is dropped goes on in the
/// background.
async fn release(quorum: &Quorum, hold: &QuorumHold, releases: Vec<NodeRelease>) -> Vec<Outcome> {
    let (open, waited_for) = (FuturesUnordered::new(), BTreeSet::new());
    let mut releasing = Releasing { quorum, name: &hold.name, open, waited_for, outcomes: Vec::new() };
    releasing.begin(releases);
    releasing.answers(hold.majority).await;
    releasing.outcomes
}

/// Releases under way.
struct Releasing<'a> {
    quorum: &'a Quorum,
    name: &'a Arc<str>,
    open: FuturesUnordered<BoxFuture<'static, (usize, Outcome)>>,
    /// The nodes of those that are not late.
    waited_for: BTreeSet<usize>,
    outcomes: Vec<Outcome>,
}

impl Releasing<'_> {
    fn begin(&mut self, releases: Vec<NodeRelease>) {
        for (index, release) in releases {
            // Of a node that is down nothing is awaited.
            if self.quorum.nodes.is_usable(index) {
                self.waited_for.insert(index);
                self.open.push(async move { (index, release.run().await) }.boxed());
            }
        }
        // A release begins when it is polled.
        while let Some(Some(answer)) = self.open.next().now_or_never() {
            self.answered(answer);
        }
    }

    fn answered(&mut self, (index, outcome): (usize, Outcome)) {
        self.waited_for.remove(&index);
        self.outcomes.push(outcome);
    }

    /// Waits for all of them as long as a node may take, and longer only for so many.
    async fn answers(&mut self, needed: usize) {
        let nodes = &self.quorum.nodes;
        let mut patience = pin!(sleep(nodes.node_timeout));
        while !self.waited_for.is_empty() || self.confirmed() < needed {
            tokio::select! {
                biased;
                answer = self.open.next() => {
                    let Some(answer) = answer else { return };
                    self.answered(answer);
                }
                () = &mut patience, if !self.waited_for.is_empty() => {
                    // Asked first, as a release may only wait for the turn of its owner, who asks for the lock
                    // again. Without an answer the next calls do without the node (Q10).
                    for index in std::mem::take(&mut self.waited_for) {
                        nodes.doubt(index, self.name);
                    }
                }
            }
        }
    }

    fn confirmed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_ok()).count()
    }
}

/// What they say together of a hold that was not lost before.
fn together(outcomes: Vec<Outcome>, hold: &QuorumHold, until: Instant) -> Outcome {
    let (all, majority) = (hold.nodes.len(), hold.majority);
    let confirmed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok().copied()).collect();
    if confirmed.len() >= majority {
        let holds = confirmed.iter().filter_map(|unlocked| match unlocked {
            Unlocked::StillHeld(holds) => Some(*holds),
            _ => None,
        });
        return Ok(holds.max().map_or(Unlocked::Freed, Unlocked::StillHeld));
    }
    let errors = outcomes.into_iter().filter_map(Result::err);
    let (losses, others): (Vec<_>, Vec<_>) = errors.partition(|error| matches!(error, UnlockError::Lost(_)));
    let cause = || Arc::new(TooFewAnswers { confirmed: confirmed.len(), majority, last: None });
    Err(match losses.first() {
        // Only where the rest is no majority. A server without an answer may have held it until now.
        Some(loss) if all < majority + losses.len() => loss.clone(),
        _ => others.into_iter().next().unwrap_or_else(|| UnlockError::Unknown { until, cause: cause() }),
    })
}
