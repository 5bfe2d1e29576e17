//! One attempt: asked -> queued -> held. Dropping it leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use crate::core::{Departure, RETRY_PAUSE};
use crate::error::{LockError, Loss};
use crate::hold::{Hold, Origin, Seat};
use crate::lease::{self, Queued};
use crate::release::Release;
use crate::store::reply::{Acquired, Renewed};
use crate::store::{Ask, Source, StoreError, now};
use crate::wake::{Verdict, Waiter};

/// What a caller wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) lease: Duration,
    pub(crate) watched: bool,
    pub(crate) wait: bool,
    pub(crate) scoped: bool,
}

/// Why there is no answer yet, for the caller who runs out of time.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// A request is out and not answered: that alone is no "somebody else holds it".
    unanswered: AtomicBool,
    cause: Mutex<Option<Source>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the request has no answer yet")]
struct NoAnswerYet;

impl Trouble {
    fn asks(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    fn is(&self, source: Source) {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    fn is_over(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn last(&self) -> Option<Source> {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cause.or_else(|| self.unanswered.load(Ordering::Relaxed).then(|| Arc::new(NoAnswerYet) as Source))
    }
}

/// One more guard's worth of the lock for this owner; `None` if it is not free and the wish is not
/// to wait. Tries for ever: the caller bounds the time by dropping it.
pub(crate) async fn acquire(seat: &Arc<Seat>, wish: Wish, trouble: &Trouble) -> Result<Option<Arc<Hold>>, LockError> {
    loop {
        if !wish.wait && seat.queueing.load(Ordering::Relaxed) {
            // Another branch of this owner is in the queue: whatever holds the lock, it is not free.
            return Ok(None);
        }
        let turn = seat.gate.clone().acquire_owned().await.map_err(|_| LockError::Closed)?;
        let Some(hold) = seat.hold().filter(|hold| hold.live() > 0 || hold.ended().is_none()) else {
            return first(seat, wish, trouble, turn).await;
        };
        if hold.live() > 0 {
            return Box::pin(reenter(hold, wish, trouble, turn)).await.map(Some);
        }
        // The last guard is gone and its release not yet sent. Entering now would keep the lock
        // from those who wait, so the release goes first (P3).
        let _ = Box::pin(Release::with_turn(hold, turn).run(now() + seat.core.patience())).await;
    }
}

/// One more hold on what the owner has. A hold that was lost meanwhile is told, never replaced.
async fn reenter(
    hold: Arc<Hold>,
    wish: Wish,
    trouble: &Trouble,
    turn: OwnedSemaphorePermit,
) -> Result<Arc<Hold>, LockError> {
    let (seat, core) = (&hold.seat, &hold.seat.core);
    let holds = hold.live();
    let ask = Ask {
        owner: &seat.owner_id,
        seq: core.next_seq(),
        nested: Some((hold.token, holds)),
        wait: wish.wait,
        lease: wish.lease.max(hold.lease()),
    };
    // Given up half-way, the server may count one too many: this sets it right (P4).
    let undo = Release::with_turn(hold.clone(), turn);
    while hold.end().is_none() {
        let mut last_ms = 0;
        // Before the await that may be the last one.
        hold.unsure();
        trouble.asks();
        match core.scripts.acquire(&seat.keys, ask, core.patience(), &mut last_ms).await {
            Ok(answer) => match answer.body {
                Acquired::Held { holds, lease_left, .. } => {
                    hold.extend(answer.sent, lease::told(answer.sent, lease_left, ask.lease));
                    if hold.end().is_some() || !hold.enter(holds, wish.lease, wish.watched) {
                        break;
                    }
                    drop(undo.cancel());
                    return Ok(hold);
                }
                Acquired::Late => {}
                _ => {
                    hold.lose(Loss::Gone);
                    break;
                }
            },
            Err(StoreError::Refused(refusal)) if !refusal.is_passing() => return Err(LockError::Refused(refusal)),
            Err(StoreError::Refused(refusal)) => trouble.is(Arc::new(refusal)),
            Err(StoreError::Closed) => return Err(LockError::Closed),
            Err(StoreError::NotSent(cause) | StoreError::Unknown(cause)) => trouble.is(cause),
        }
        sleep(RETRY_PAUSE).await;
    }
    Err(LockError::Lost)
}

/// The first hold: from nothing to owning the lock.
async fn first(
    seat: &Arc<Seat>,
    wish: Wish,
    trouble: &Trouble,
    _turn: OwnedSemaphorePermit,
) -> Result<Option<Arc<Hold>>, LockError> {
    loop {
        let mut attempt = Attempt::new(seat, wish);
        // In a box of its own, which is gone while it waits: waiters are many.
        let asked = Box::pin(attempt.ask(trouble)).await?;
        match asked {
            Asked::Held(hold) => return Ok(Some(hold)),
            Asked::Busy => return Ok(None),
            Asked::Queued => {
                if let Some(hold) = attempt.wait().await? {
                    return Ok(Some(hold));
                }
            }
            Asked::Over => {}
        }
        // The server forgot this attempt, or its answer came too late: a new one, at the end of
        // the queue. Dropping the old one leaves, should anything of it be there.
        drop(attempt);
        sleep(RETRY_PAUSE).await;
    }
}

/// A call that wants the lock: (owner, seq).
#[derive(Debug)]
struct Attempt {
    seat: Arc<Seat>,
    wish: Wish,
    seq: u64,
    waiter: Arc<Waiter>,
    /// Server time until which a copy without an answer may still be served; 0: none is under way.
    last_ms: i64,
    /// The server has a place or a hold for it, so dropping it has to leave.
    afoot: bool,
}

enum Asked {
    Held(Arc<Hold>),
    Queued,
    Busy,
    Over,
}

impl Attempt {
    fn new(seat: &Arc<Seat>, wish: Wish) -> Self {
        let seq = seat.core.next_seq();
        // Before anything is sent: the grant may come before the reply (R7).
        let waiter = seat.core.wake.register(&seat.keys, seq, &seat.owner_id, wish.lease);
        Self { seat: seat.clone(), wish, seq, waiter, last_ms: 0, afoot: false }
    }

    /// Asks until there is an answer; each retry is the same request (R1).
    async fn ask(&mut self, trouble: &Trouble) -> Result<Asked, LockError> {
        let seat = self.seat.clone();
        let core = &seat.core;
        let ask =
            Ask { owner: &seat.owner_id, seq: self.seq, nested: None, wait: self.wish.wait, lease: self.wish.lease };
        loop {
            trouble.asks();
            let outcome = core.scripts.acquire(&seat.keys, ask, core.patience(), &mut self.last_ms).await;
            match outcome {
                Ok(answer) => {
                    trouble.is_over();
                    match answer.body {
                        Acquired::Held { token, lease_left, .. } => {
                            let hold = self.told(token, answer.sent, lease_left);
                            return Ok(hold.map_or(Asked::Over, Asked::Held));
                        }
                        Acquired::Queued { floor, lease_left, more } => {
                            self.afoot = true;
                            let queued = Queued { asked: answer.sent, floor };
                            core.wake.queued(core, &self.waiter, queued, lease_left, more);
                            return Ok(Asked::Queued);
                        }
                        Acquired::Busy { more: false } => return Ok(Asked::Busy),
                        Acquired::Full { waiters } => return Err(LockError::QueueFull { waiters }),
                        // Free behind more dead tickets than one call clears: go on clearing.
                        Acquired::Busy { more: true } => continue,
                        // Our idea of the server's clock was off; this answer has put it right.
                        Acquired::Late => {}
                        Acquired::Lost | Acquired::Over => return Ok(Asked::Over),
                    }
                }
                Err(StoreError::Refused(refusal)) if !refusal.is_passing() => {
                    return Err(LockError::Refused(refusal));
                }
                Err(StoreError::Refused(refusal)) => trouble.is(Arc::new(refusal)),
                Err(StoreError::Closed) => return Err(LockError::Closed),
                Err(StoreError::NotSent(cause) | StoreError::Unknown(cause)) => trouble.is(cause),
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Waits in the queue. `None`: the place is lost.
    async fn wait(&mut self) -> Result<Option<Arc<Hold>>, LockError> {
        let seat = self.seat.clone();
        let _queueing = Queueing::new(&seat);
        let mut verdict = self.waiter.verdict().await;
        loop {
            match verdict {
                Verdict::Granted { token, sent, lease_left } => return Ok(self.told(token, sent, lease_left)),
                Verdict::Trusted { token, until } => {
                    // A grant lasts its own time at first; a shorter lease is shorter from the start.
                    let deadline = until.min(lease::deadline(now(), self.wish.lease));
                    return Ok(self.held(token, deadline, None));
                }
                Verdict::Confirm { token } => {
                    if let Some(hold) = Box::pin(self.confirm(token)).await {
                        return Ok(Some(hold));
                    }
                }
                Verdict::NoPlace => return Ok(None),
                Verdict::Failed(refusal) => return Err(LockError::Refused(*refusal)),
            }
            verdict = self.waiter.verdict().await;
        }
    }

    /// A grant that came too late to be trusted: one round trip tells (R7).
    async fn confirm(&mut self, token: u64) -> Option<Arc<Hold>> {
        let (seat, core) = (&self.seat, &self.seat.core);
        let renewed = core
            .scripts
            .renew(&seat.keys, &seat.owner_id, token, self.wish.lease, Some(self.seq), core.patience())
            .await;
        match renewed {
            Ok(answer) => {
                if let Renewed::Renewed { lease_left } = answer.body {
                    return self.told(token, answer.sent, lease_left);
                }
            }
            Err(error) => tracing::debug!(%error, "a grant could not be confirmed; polling"),
        }
        core.wake.hurry(&self.waiter);
        None
    }

    /// By the server's own word.
    fn told(&mut self, token: u64, sent: Instant, lease_left: Duration) -> Option<Arc<Hold>> {
        // Where a grant outlives the wanted lease, the first renewal has yet to set that.
        let renewed = (lease_left <= self.wish.lease).then_some(sent);
        self.held(token, lease::told(sent, lease_left, self.wish.lease), renewed)
    }

    /// Owning it, unless the time it was given is over already: then it is left.
    fn held(&mut self, token: u64, deadline: Instant, renewed: Option<Instant>) -> Option<Arc<Hold>> {
        if deadline <= now() {
            self.afoot = true;
            return None;
        }
        self.afoot = false;
        let last_ms = std::mem::take(&mut self.last_ms);
        let origin = Origin {
            token,
            attempt: self.seq,
            deadline,
            renewed,
            lease: self.wish.lease,
            watched: self.wish.watched,
            last_ms,
            scoped: self.wish.scoped,
        };
        let hold = Hold::begin(&self.seat, origin);
        // Ended by force between the server's word and ours: nobody found a hold to tell then.
        if self.waiter.is_revoked(token) {
            hold.lose(Loss::Forced);
        }
        Some(hold)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let core = &self.seat.core;
        // The leave before the poller may end: `close` waits while there is any task.
        if self.afoot || self.last_ms > 0 {
            let departure =
                Departure { seq: self.seq, attempt: self.seq, last_ms: self.last_ms, lease: self.wish.lease };
            core.leave(&self.seat, departure);
        }
        core.wake.deregister(&self.waiter);
    }
}

/// Says, while it lives, that whoever has the owner's turn is in the queue.
struct Queueing<'a>(&'a Seat);

impl<'a> Queueing<'a> {
    fn new(seat: &'a Seat) -> Self {
        seat.queueing.store(true, Ordering::Relaxed);
        Self(seat)
    }
}

impl Drop for Queueing<'_> {
    fn drop(&mut self) {
        self.0.queueing.store(false, Ordering::Relaxed);
    }
}
