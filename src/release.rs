//! Giving back: one guard's end, told to the server. Dropping it finishes it in the background.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout_at};

use crate::core::RETRY_PAUSE;
use crate::error::{Loss, UnlockError};
use crate::hold::{End, Hold};
use crate::store::reply::Released;
use crate::store::{Ending, StoreError, now};

/// What an unlock did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unlocked {
    /// The lock is free, or already the next waiter's.
    Freed,
    /// The same owner still has this many holds on it.
    StillHeld(u32),
}

/// Makes the server count as many holds as there are guards. Begun when a guard ends, or when a
/// nested acquire was given up half-way.
#[derive(Debug)]
pub(crate) struct Release {
    hold: Arc<Hold>,
    /// The owner's turn at the server; kept until the outcome is known.
    turn: Option<OwnedSemaphorePermit>,
    /// The request that was sent, if one was: a retry repeats it (R1).
    sent: Option<Sent>,
    /// Known, or somebody else's by now: dropping it does nothing.
    finished: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    seq: u64,
    holds: u32,
    /// An earlier copy may have run.
    again: bool,
}

impl Release {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { hold, turn: None, sent: None, finished: false }
    }

    /// For somebody who is through the gate already.
    pub(crate) fn with_turn(hold: Arc<Hold>, turn: OwnedSemaphorePermit) -> Self {
        Self { hold, turn: Some(turn), sent: None, finished: false }
    }

    /// Nothing to give back after all; hands the turn on.
    pub(crate) fn cancel(mut self) -> Option<OwnedSemaphorePermit> {
        self.finished = true;
        self.turn.take()
    }

    /// Until the outcome is known or `limit` is there. Dropped before, it goes on in the background.
    pub(crate) async fn run(mut self, limit: Instant) -> Result<Unlocked, UnlockError> {
        let outcome = timeout_at(limit.into(), self.finish()).await;
        // On a time-out `self` is dropped unfinished, which hands it to the background.
        outcome.unwrap_or_else(|_| Err(UnlockError::Unknown { until: self.forgotten_at() }))
    }

    fn forgotten_at(&self) -> Instant {
        self.hold.seat.core.forgotten_at(self.hold.lease())
    }

    async fn finish(&mut self) -> Result<Unlocked, UnlockError> {
        if let Some(End::Lost(loss)) = self.hold.ended() {
            self.finished = true;
            return Err(UnlockError::Lost(loss));
        }
        if self.turn.is_none() {
            // Closed never: the gate lives as long as its seat.
            self.turn = self.hold.seat.gate.clone().acquire_owned().await.ok();
        }
        loop {
            if let Some(outcome) = self.known() {
                self.finished = true;
                self.turn = None;
                return outcome;
            }
            self.send().await;
        }
    }

    /// The outcome, if it needs no request, or no further one.
    fn known(&self) -> Option<Result<Unlocked, UnlockError>> {
        let hold = &self.hold;
        // With guards left a deadline that passed ends the hold; without, the answer says more.
        let end = if hold.live() > 0 { hold.end() } else { hold.ended() };
        match end {
            Some(End::Freed) => return Some(Ok(Unlocked::Freed)),
            Some(End::Lost(loss)) => return Some(Err(UnlockError::Lost(loss))),
            None => {}
        }
        match hold.unsettled() {
            None => Some(Ok(Unlocked::StillHeld(hold.live()))),
            Some(_) => None,
        }
    }

    /// One request, and what its answer means for the hold.
    async fn send(&mut self) {
        let hold = self.hold.clone();
        let core = &hold.seat.core;
        let sent = self.next(hold.live());
        if sent.holds == 0 {
            hold.dismiss();
        }
        hold.unsure();
        // Late copies of a release do no harm; those of the acquire are what a tombstone is for (R3).
        let ending =
            Ending { owner: &hold.seat.owner_id, seq: sent.seq, attempt: hold.attempt, last_ms: hold.last_ms() };
        // Before the await that may lose the answer.
        self.sent = Some(Sent { again: true, ..sent });
        match core.scripts.release(&hold.seat.keys, ending, hold.token, sent.holds, core.patience()).await {
            Ok(answer) => self.settle(sent, &answer.body),
            Err(error) => {
                if matches!(error, StoreError::NotSent(_) | StoreError::Refused(_)) {
                    self.sent = Some(sent);
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// The same request again, or a new one when the number of guards has changed since.
    fn next(&self, live: u32) -> Sent {
        match self.sent {
            Some(sent) if sent.holds == live => sent,
            _ => Sent { seq: self.hold.seat.core.next_seq(), holds: live, again: false },
        }
    }

    fn settle(&self, sent: Sent, answer: &Released) {
        let hold = &self.hold;
        if let Released::Freed { more: true, .. } | Released::Gone { more: true } = answer {
            hold.seat.core.clear(&hold.seat.keys);
        }
        match *answer {
            Released::Freed { token, .. } if token == hold.token => hold.freed(),
            Released::Held { holds } => hold.settle(holds),
            // Not there under our token, and our lease not over: the copy before this one freed it.
            Released::Freed { .. } | Released::Gone { .. } if sent.again && now() < hold.deadline() => hold.freed(),
            // What was freed had come back under another token: ours had been lost (R11).
            Released::Freed { .. } | Released::Gone { .. } | Released::Lost => hold.lose(Loss::Gone),
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (hold, turn, sent) = (self.hold.clone(), self.turn.take(), self.sent);
        let limit = self.forgotten_at();
        let core = hold.seat.core.clone();
        core.spawn(async move {
            let mut rest = Rest(Self { hold, turn, sent, finished: false });
            // Past the limit the lease is over, and there is nothing left to finish.
            let _ = timeout_at(limit.into(), rest.0.finish()).await;
        });
    }
}

/// A release in the background. A runtime that shuts down drops it, and it must not spawn again.
struct Rest(Release);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.finished = true;
    }
}
